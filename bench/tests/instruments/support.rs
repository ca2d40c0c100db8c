//! Real processes for the tests: an engine that ends with its test, a load run and its report.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than anything here takes; a wait that gets there has failed.
const WATCHDOG: Duration = Duration::from_secs(60);

/// A running engine process.
pub(crate) struct Engine {
    child: Child,
    pub(crate) address: SocketAddr,
    control: SocketAddr,
}

impl Engine {
    /// Starts an engine and waits until it is ready.
    pub(crate) fn start(line: &[&str]) -> Self {
        let mut child = bench(&[&["engine"], line].concat())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the engine starts");
        let mut ready = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut ready).unwrap();
        let ready: Value = serde_json::from_str(&ready).expect("a ready line");
        let parse = |value: &Value| value.as_str().unwrap().parse().unwrap();
        Self {
            address: parse(&ready["listen"][0]),
            control: parse(&ready["control"]),
            child,
        }
    }

    /// Changes switches, by the control listener.
    pub(crate) fn set(&self, switches: Value) {
        let answer = exchange(self.control, "POST", "/mock/set", &switches.to_string());
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }

    pub(crate) fn stats(&self) -> Value {
        self.control_stats()
    }

    pub(crate) fn control_stats(&self) -> Value {
        self.control("GET", "/mock/stats", "")
    }

    pub(crate) fn control(&self, method: &str, path: &str, body: &str) -> Value {
        parse_body(&exchange(self.control, method, path, body))
    }

    /// The whole answer of the engine itself, head included.
    pub(crate) fn answer(&self, method: &str, path: &str, body: &str) -> String {
        exchange(self.address, method, path, body)
    }

    pub(crate) fn json(&self, path: &str) -> Value {
        parse_body(&self.answer("GET", path, ""))
    }

    pub(crate) fn text(&self, path: &str) -> String {
        self.answer("GET", path, "")
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The binary under test with a command line.
pub(crate) fn bench(line: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman-bench"));
    command.args(line);
    command
}

/// Runs load on an engine; its report.
pub(crate) fn load(engine: &Engine, line: &[&str]) -> Value {
    load_line(&[&["--addr", &engine.address.to_string()], line].concat())
}

/// Runs load; its report.
pub(crate) fn load_line(line: &[&str]) -> Value {
    let output = bench(&[&["load", "--json"], line].concat())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("a report")
}

/// Sends a chat request and leaves the answer to be read.
pub(crate) fn request(engine: &Engine, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(engine.address).unwrap();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    let length = body.len();
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\ncontent-length: {length}\r\n\r\n");
    stream
        .write_all(format!("{head}{body}").as_bytes())
        .unwrap();
    stream
}

/// Waits for a condition; panics when the watchdog's time is over.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < WATCHDOG, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn exchange(address: SocketAddr, method: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n"
    );
    stream
        .write_all(format!("{head}{body}").as_bytes())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn parse_body(answer: &str) -> Value {
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
    serde_json::from_str(body).expect("a JSON body")
}

pub(crate) fn read_some(stream: &mut TcpStream) -> String {
    let mut buffer = [0; 16 * 1024];
    let count = stream.read(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..count]).into_owned()
}

pub(crate) fn unhex(value: &Value) -> String {
    let digits = value.as_str().unwrap().as_bytes();
    let bytes = digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap());
    String::from_utf8(bytes.collect()).unwrap()
}
