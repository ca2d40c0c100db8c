//! Real processes for the tests: instruments that end with their test, and what they print.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than anything here takes; a wait that gets there has failed.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

/// A running instrument.
pub(crate) struct Instrument {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Value>,
}

impl Instrument {
    /// Starts it.
    pub(crate) fn start(line: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_pointsman-bench"))
            .args(line)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the instrument starts");
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines() {
                let line = serde_json::from_str(&line.unwrap()).expect("a line of JSON");
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        Self {
            child,
            input,
            lines,
        }
    }

    /// The next line that it prints.
    pub(crate) fn line(&self) -> Value {
        self.lines.recv_timeout(WATCHDOG).expect("a line in time")
    }

    /// The next line of a kind, others left out.
    pub(crate) fn event(&self, event: &str) -> Value {
        loop {
            let line = self.line();
            if line["event"] == event {
                return line;
            }
        }
    }

    /// Tells it something.
    pub(crate) fn tell(&mut self, word: &str) {
        let input = self.input.as_mut().unwrap();
        // One write: the client takes what one read brings for whole lines.
        input.write_all(format!("{word}\n").as_bytes()).unwrap();
    }

    /// The address of its ready line.
    pub(crate) fn address(&self) -> SocketAddr {
        let ready = self.line();
        assert_eq!(ready["ready"], true, "{ready}");
        ready["listen"][0].as_str().unwrap().parse().unwrap()
    }
}

impl Drop for Instrument {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server and its address.
pub(crate) struct Server {
    _instrument: Instrument,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts one and waits until it is ready.
    pub(crate) fn start(line: &[&str]) -> Self {
        let instrument = Instrument::start(line);
        let address = instrument.address();
        Self {
            _instrument: instrument,
            address,
        }
    }

    /// A bare engine.
    pub(crate) fn bare(line: &[&str]) -> Self {
        Self::start(&[&["bare-engine"], line].concat())
    }

    /// A relay to `engine`.
    pub(crate) fn relay(from: &str, to: &str, engine: &Self, line: &[&str]) -> Self {
        let engine = engine.address.to_string();
        let pair = ["relay", "--from", from, "--to", to, "--engine", &engine];
        Self::start(&[&pair, line].concat())
    }

    /// What an engine says of itself.
    pub(crate) fn stats(&self) -> Value {
        let answer = exchange(self.address, "GET", "/mock/stats", "");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
        serde_json::from_str(body).expect("a JSON body")
    }

    /// Waits until it says so.
    pub(crate) fn wait(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        let started = Instant::now();
        while !is_so(&self.stats()) {
            assert!(
                started.elapsed() < WATCHDOG,
                "never: {what}: {}",
                self.stats()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Runs load to its end; its report.
pub(crate) fn load(address: SocketAddr, line: &[&str]) -> Value {
    let address = address.to_string();
    let load = Instrument::start(&[&["bare-load", "--addr", &address], line].concat());
    let report = load.event("report");
    load.event("done");
    report
}

/// One exchange of HTTP/1.1, whose answer has a length.
pub(crate) fn exchange(address: SocketAddr, method: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: t\r\ncontent-length: {length}\r\n\r\n");
    stream
        .write_all(format!("{head}{body}").as_bytes())
        .unwrap();
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut piece).unwrap();
        answer.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&answer).into_owned();
        let is_whole = text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            length.is_some_and(|length| length.parse() == Ok(body.len()))
        });
        if is_whole || count == 0 {
            return text;
        }
    }
}

/// What a program that is installed prints.
pub(crate) fn output(program: &str, line: &[&str]) -> String {
    let output = Command::new(program)
        .args(line)
        .output()
        .unwrap_or_else(|error| panic!("{program}, which scripts/setup installs: {error}"));
    assert!(output.status.success(), "{program}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// `curl` by HTTP/2 with prior knowledge: body, version and status.
pub(crate) fn curl(address: SocketAddr, path: &str, more: &[&str]) -> String {
    let url = format!("http://{address}{path}");
    let always = [
        "-sS",
        "--http2-prior-knowledge",
        "-w",
        " %{http_version} %{http_code}",
        &url,
    ];
    output("curl", &[&always, more].concat())
}

/// `h2load`'s line about requests.
pub(crate) fn h2load(address: SocketAddr, path: &str, line: &[&str]) -> String {
    let url = format!("http://{address}{path}");
    let text = output("h2load", &[line, &[&url]].concat());
    let requests = text.lines().find(|line| line.starts_with("requests:"));
    requests.unwrap_or_else(|| panic!("{text}")).to_owned()
}
