//! A running solver's history: recorded through kills, and rolled back to.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failed test"
)]

#[expect(dead_code, reason = "the other test binary uses the rest")]
mod recorded;

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Parser;
use pointsman_solver::cli::{Cli, execute};
use recorded::{WATCHDOG, run, text};

/// A running solver; killed when dropped.
struct Daemon(std::process::Child);

impl Daemon {
    fn start(dir: &Path) -> Self {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_pointsman-solver"));
        command
            .arg("run")
            .arg("--topology")
            .arg(dir.join("topology.toml"));
        command.arg("--run-dir").arg(dir.join("run"));
        command.arg("--state-dir").arg(dir.join("state"));
        command.args(["--listen", "127.0.0.1:0"]);
        command.stdout(std::process::Stdio::null());
        command.stderr(std::process::Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // By SIGKILL: nothing is flushed or finished.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes a topology for [`Daemon`]: nobody answers at the engines' addresses, which are planned
/// with all the same.
fn describe_daemon(dir: &Path, tick_ms: u64) {
    let described = text(4, 60).replace("127.0.0.1:900", "127.0.0.1:1");
    let demand = "[[demand]]\nfrontend = \"a\"\nroute = \"chat\"\nrps = 90\n";
    let settings = format!("[solver]\ntick_ms = {tick_ms}\ndemand = \"configured\"\n");
    let described = described.replacen("[solver]\n", &settings, 1) + demand;
    std::fs::write(dir.join("topology.toml"), described).unwrap();
}

#[test]
fn what_a_killed_daemon_recorded_solves_to_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    describe_daemon(dir.path(), 10);
    let state = dir.path().join("state");
    let ticks = || {
        let all = ["history", "--all", "--last", "100000", "--json"];
        let (told, ended) = run(&state, &all);
        let told: Option<serde_json::Value> = ended.ok().and_then(|()| told.parse().ok());
        told.map_or(0, |told| told["ticks"].as_array().unwrap().len())
    };
    let mut before = 0;
    for _ in 0..2 {
        let daemon = Daemon::start(dir.path());
        let begun = Instant::now();
        while ticks() < before + 40 {
            assert!(begun.elapsed() < WATCHDOG, "{} ticks", ticks());
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(daemon);
        before = ticks();
    }
    let (told, ended) = run(&state, &["replay", "--json"]);
    assert_eq!(ended, Ok(()), "{told}");
    let replayed: serde_json::Value = serde_json::from_str(&told).unwrap();
    let count = |key: &str| replayed[key].as_u64().unwrap();
    assert_eq!(
        count("ticks") + count("without_answer"),
        before as u64,
        "{told}"
    );
    assert_eq!(
        (count("differing"), count("not_replayed")),
        (0, 0),
        "{told}"
    );
    assert!(count("ticks") >= 40, "{told}");
}

/// Shares by engine, those without one left out.
type Shares = Vec<(String, f64)>;

/// Weights of class `chat` in the last published policy of frontend `a`, and its version.
fn last(state: &Path) -> Option<(Shares, u64)> {
    let (told, _) = run(
        state,
        &["history", "--frontend", "a", "--last", "1", "--json"],
    );
    let told: serde_json::Value = told.parse().ok()?;
    let made = told["ticks"][0]["made"].as_array()?.clone();
    let made = made.iter().find(|made| made["frontend"] == "a")?.clone();
    let version = made["version"].as_u64()?;
    let version = version.to_string();
    let (told, ended) = run(state, &["show", &version, "--frontend", "a", "--json"]);
    ended.ok()?;
    let shown: serde_json::Value = told.parse().unwrap();
    let classes = shown[0]["classes"].as_array().unwrap();
    let chat = classes.iter().find(|class| class["class"] == "chat")?;
    let mut weights: Shares = chat["weights"]
        .as_array()
        .unwrap()
        .iter()
        .map(|w| {
            (
                w["engine"].as_str().unwrap().to_owned(),
                w["weight"].as_f64().unwrap(),
            )
        })
        .filter(|(_, weight)| *weight > 0.0)
        .collect();
    weights.sort_by(|a, b| a.0.cmp(&b.0));
    Some((weights, version.parse().unwrap()))
}

#[test]
fn a_rollback_pins_the_weights_of_the_version_named() {
    let dir = tempfile::tempdir().unwrap();
    describe_daemon(dir.path(), 100);
    let (state, run_dir) = (dir.path().join("state"), dir.path().join("run"));
    let run_dir = run_dir.to_str().unwrap();
    let daemon = Daemon::start(dir.path());
    let until = |what: &str, holds: &dyn Fn(&Shares) -> bool| {
        let begun = Instant::now();
        loop {
            if let Some((weights, version)) = last(&state).filter(|(weights, _)| holds(weights)) {
                return (weights, version);
            }
            assert!(
                begun.elapsed() < WATCHDOG,
                "never: {what}: {:?}",
                last(&state)
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let order = |arguments: &[&str]| {
        let mut all = vec!["pointsman-solver"];
        all.extend(arguments);
        all.extend(["--run-dir", run_dir]);
        let mut out = Vec::new();
        execute(&Cli::parse_from(all), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let (planned, first) = until("a plan", &|_| true);
    let class = ["--frontend", "a", "--class", "chat"];
    let ordered = [("e1".to_owned(), 0.25), ("e3".to_owned(), 0.75)];
    assert_ne!(planned, ordered);
    order(&[&["set-weight", "--weights", "e1=0.25,e3=0.75"], &class[..]].concat());
    let (_, version) = until("set weights", &|weights| *weights == ordered);
    assert!(version > first);
    order(&[&["unset-weight"], &class[..]].concat());
    until("the plan again", &|weights| *weights != ordered);

    let version = version.to_string();
    let all = [
        "rollback",
        &version,
        "--frontend",
        "a",
        "--run-dir",
        run_dir,
        "--reason",
        "worse",
    ];
    let (told, ended) = run(&state, &all);
    assert_eq!(ended, Ok(()));
    assert!(
        told.starts_with(&format!("pinned back: \"a\" to version {version}\n")),
        "{told}"
    );
    let (_, latest) = until("the rollback", &|weights| *weights == ordered);
    assert!(latest.to_string() != version);
    assert!(order(&["status"]).contains("worse"));
    order(&["unpin"]);
    until("the plan once more", &|weights| *weights != ordered);

    let (_, ended) = run(&state, &["rollback", "99999", "--run-dir", run_dir]);
    assert_eq!(ended, Err("version 99999 is not in the history".into()));
    // Orders are inputs: what was solved under them is solved again under them.
    drop(daemon);
    let (told, ended) = run(&state, &["replay"]);
    assert_eq!(ended, Ok(()), "{told}");
}
