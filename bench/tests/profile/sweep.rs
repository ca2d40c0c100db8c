//! The instrument itself: the mock engine through real sockets, interference, ceilings, Ctrl-C.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use pointsman_bench::engine::Curve;
use pointsman_solver::fit::read::{Middle, read};
use pointsman_solver::fit::sample::Sample;
use pointsman_solver::fit::{fit, tokens};
use serde_json::Value;

use super::off;

/// Longer than anything here takes; a wait that gets there has failed.
const WATCHDOG: Duration = Duration::from_secs(120);

struct Engine {
    child: Child,
    address: SocketAddr,
}

impl Engine {
    fn start(line: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_pointsman-bench"))
            .arg("engine")
            .args(line)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut ready).unwrap();
        let ready: Value = serde_json::from_str(&ready).unwrap();
        Self {
            address: ready["listen"][0].as_str().unwrap().parse().unwrap(),
            child,
        }
    }

    /// A request of somebody else's, with an answer that lasts; it ends with the connection.
    fn occupied(&self) -> TcpStream {
        let body = r#"{"model":"mock","stream":true,"max_tokens":100000,"pace_us":20000}"#;
        let mut stream = TcpStream::connect(self.address).unwrap();
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\n";
        let length = body.len();
        write!(stream, "{head}content-length: {length}\r\n\r\n{body}").unwrap();
        stream
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn profile(engine: &Engine, out: &Path, line: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman-bench"));
    command
        .args(["profile", "--engine", &format!("http://{}", engine.address)])
        .args(["--seed", "7", "--out"])
        .arg(out)
        .args(line)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn samples(path: &Path) -> Vec<Sample> {
    let text = std::fs::read_to_string(path).unwrap();
    read("samples", &text, Middle::Median).unwrap()
}

fn told(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Waits until a file has so many lines.
fn await_lines(path: &Path, lines: usize) {
    let begun = Instant::now();
    let count = || std::fs::read_to_string(path).map_or(0, |text| text.lines().count());
    while count() < lines {
        assert!(begun.elapsed() < WATCHDOG, "never: {lines} lines");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_sweep_of_the_mock_through_sockets_gives_its_curves_back() {
    let (ttft, tbot) = ("0:200,0.5:220,1:400", "0:20,0.6:24,1:40");
    // 200 requests/s of 400 + 5 x 40 ms keep 120 running: it is full there.
    let engine = Engine::start(&[
        "--profile",
        ttft,
        "--tbot",
        tbot,
        "--capacity-rps",
        "200",
        "--events",
        "6",
        "--max-running",
        "120",
        "--cache-gain",
        "0",
    ]);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("samples.csv");
    let line = [
        "--mix",
        "100:6",
        "--loads",
        "20,60,100,140,180,250,280",
        "--seconds",
        "1.5",
        "--settle-s",
        "1.5",
        "--arrivals",
        "even",
        "--kind",
        "mock",
    ];
    let output = profile(&engine, &out, &line).output().unwrap();
    let told = told(&output);
    eprintln!("{told}");
    assert!(output.status.success());
    let samples = samples(&out);
    let fit = fit("mock", "mock", &samples).unwrap();
    let one = &samples[0];
    assert_eq!((one.kind.as_str(), one.model.as_str()), ("mock", "mock"));
    assert!(off(one.prompt_tokens, 100.0) < 0.05, "{one:?}");
    assert_eq!(one.output_tokens, 6.0);
    assert!(one.hit_rate < 0.2, "{one:?}");
    assert!(one.kv_use.is_some());
    let capacity_off = off(fit.capacity_rps(fit.reference), 200.0);
    eprintln!("capacity off {:.1} %", capacity_off * 100.0);
    // Five percent on a machine at rest; others' work lengthens real times.
    let most = if std::env::var_os("POINTSMAN_SWEEP_S").is_some() {
        0.05
    } else {
        0.15
    };
    assert!(fit.work.seen_full && capacity_off < most);
    let (ttft, tbot): (Curve, Curve) = (ttft.parse().unwrap(), tbot.parse().unwrap());
    for utilisation in [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9] {
        let found = fit.expected(200.0 * utilisation, tokens(one));
        let offs = (
            off(found.ttft_ms, ttft.at(utilisation)),
            off(found.tbot_ms, tbot.at(utilisation)),
        );
        eprintln!(
            "{utilisation}: TTFT off {:.3}, TBOT off {:.3}",
            offs.0, offs.1
        );
        assert!(offs.0 < most && offs.1 < most, "{found:?}");
    }
}

#[test]
fn a_common_beginning_is_found_in_the_cache_and_recorded() {
    let engine = Engine::start(&["--profile", "0:20", "--tbot", "0:2"]);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("samples.jsonl");
    let line = [
        "--mix",
        "800:4",
        "--shared",
        "0.5",
        "--loads",
        "20",
        "--seconds",
        "0.5",
        "--settle-s",
        "0.1",
    ];
    let output = profile(&engine, &out, &line).output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    let samples = samples(&out);
    assert_eq!(samples.len(), 1);
    assert!(off(samples[0].hit_rate, 0.5) < 0.1, "{samples:?}");
}

#[test]
fn an_engine_that_serves_others_is_refused_and_one_that_begins_to_is_left() {
    let engine = Engine::start(&["--profile", "0:20", "--tbot", "0:2"]);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("samples.csv");
    let line = [
        "--mix",
        "50:4",
        "--loads",
        "20,20,20,20,20,20,20,20,20,20,20,20",
        "--seconds",
        "1",
        "--settle-s",
        "0.1",
    ];
    let other = engine.occupied();
    let output = profile(&engine, &out, &line).output().unwrap();
    assert!(!output.status.success());
    let refusal = "the engine has 1 requests running or waiting that are not this sweep's";
    assert!(told(&output).contains(refusal), "{}", told(&output));
    // With --force it is swept.
    let short = [
        "--mix",
        "50:4",
        "--loads",
        "20",
        "--seconds",
        "0.3",
        "--settle-s",
        "0.1",
        "--force",
    ];
    let output = profile(&engine, &out, &short).output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    drop(other);
    // Somebody comes while it is swept.
    let out = folder.path().join("disturbed.csv");
    let child = profile(&engine, &out, &line).spawn().unwrap();
    await_lines(&out, 2);
    let other = engine.occupied();
    let output = child.wait_with_output().unwrap();
    drop(other);
    assert!(!output.status.success());
    // Seen within a step, or before the next one.
    let told = told(&output);
    let is_told = told.contains("others use it") || told.contains("not this sweep's");
    assert!(is_told, "{told}");
    assert!(!samples(&out).is_empty());
}

#[test]
fn a_ceiling_ends_a_sweep_and_so_does_an_interrupt_with_a_whole_file() {
    let engine = Engine::start(&["--profile", "0:30,1:30,2:330", "--capacity-rps", "40"]);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("samples.csv");
    let quick = ["--mix", "50:16", "--seconds", "0.5", "--settle-s", "0.5"];
    let line = [
        &quick[..],
        &["--loads", "20,300,301,302", "--max-ttft-ms", "100"],
    ]
    .concat();
    let output = profile(&engine, &out, &line).output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    assert_eq!(samples(&out).len(), 2, "{}", told(&output));
    let out = folder.path().join("interrupted.csv");
    let line = [&quick[..], &["--start-rps", "10", "--factor", "1.01"]].concat();
    let child = profile(&engine, &out, &line).spawn().unwrap();
    await_lines(&out, 3);
    let sent = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    assert!(told(&output).contains("interrupted: "), "{}", told(&output));
    assert!(samples(&out).len() >= 2);
}
