//! A real engine swept, fitted and planned with: what llama.cpp's server takes to a first token at
//! one mix of tokens, told from sweeps of another by the built binaries alone.
//!
//! How well is asked with `POINTSMAN_SWEEP_S=5` only (`scripts/deep sweeps`), seconds a step: a
//! real engine's times are what others on the machine leave it. So both mixes are swept in turn,
//! round by round, at parts of what the engine was seen to do, and medians of the rounds are
//! compared. Without it, a short sweep shows that the engine is read right.

#![expect(clippy::unwrap_used, reason = "a test may end at any surprise")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use pointsman_tests::folder::Folder;
use pointsman_tests::locate::binary;
use pointsman_tests::process::run;
use pointsman_tests::solver::{command, llama, llama_wide};
use pointsman_tests::wait::LONG;
use serde_json::{Value, json};

/// How far a planned first token may be from the median that was seen.
const MOST_OFF: f64 = 0.25;
/// Tokens of prompts and answers that are fitted.
const FITTED: (u64, u64) = (256, 32);
/// And those that are planned: half as much again of a prompt, half the answer.
const OTHER: (u64, u64) = (384, 16);
/// Width of the model: a prompt must take longer than a moment in which others have the processor.
const WIDTH: u32 = 256;
/// Sweeps of each mix, in turn.
const ROUNDS: u64 = 5;
/// Loads that are fitted, as parts of what the engine can do of that mix; the last one fills it.
const FITTED_LOADS: [f64; 6] = [0.15, 0.25, 0.35, 0.45, 0.55, 2.0];
/// Loads that are planned, as parts of what it can do of the other.
const OTHER_LOADS: [f64; 3] = [0.2, 0.4, 0.55];
/// So many times what one request after another gives is more than the engine can do.
const TOO_MUCH: f64 = 3.0;
/// Requests that the engine may have, slots and a queue: what it has left after a step that filled
/// it must be gone before the next.
const MOST_AT_ONCE: &str = "16";

/// A sample by its columns.
type Row = BTreeMap<String, Value>;

#[test]
fn a_sweep_reads_a_real_engines_tokens_and_times() {
    let folder = Folder::new();
    let (_daemon, engine) = llama(&folder);
    let out = folder.path().join("samples.jsonl");
    let line = [
        "--mix", "200:6", "--loads", "10,20", "--shared", "0.5", "--seed", "3",
    ];
    let rows = sweep(engine, &out, "0.5", &line);
    assert!(!rows.is_empty());
    for row in &rows {
        // Two prompts of unlike lengths told how many tokens a word is.
        assert!(
            (number(row, "prompt_tokens") / 200.0 - 1.0).abs() < 0.15,
            "{row:?}"
        );
        assert_eq!(number(row, "output_tokens"), 6.0);
        assert!((0.2..0.7).contains(&number(row, "hit_rate")), "{row:?}");
        assert!(number(row, "ttft_ms") > 0.0 && number(row, "tbot_ms") > 0.0);
        assert_eq!(
            (&row["kind"], &row["model"]),
            (&json!("llama"), &json!("tiny"))
        );
    }
}

#[test]
fn a_sweep_of_one_mix_tells_the_first_token_of_another() {
    let Ok(seconds) = std::env::var("POINTSMAN_SWEEP_S") else {
        eprintln!("skipped: POINTSMAN_SWEEP_S is not set (scripts/deep sweeps)");
        return;
    };
    let folder = Folder::new();
    let (_daemon, engine) = llama_wide(&folder, WIDTH);
    let sweeps = Sweeps {
        engine,
        out: folder.path().join("samples.jsonl"),
        seconds,
    };
    let (own_rps, other_rps) = (
        sweeps.capacity_rps(FITTED, 1),
        sweeps.capacity_rps(OTHER, 2),
    );
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        // Prompts that no sweep before had, so that none is found in the cache.
        own.push(sweeps.run(FITTED, &FITTED_LOADS.map(|part| part * own_rps), 10 * round));
        others.push(sweeps.run(
            OTHER,
            &OTHER_LOADS.map(|part| part * other_rps),
            10 * round + 1,
        ));
    }
    let fit = fitted(&folder, &middles(&own));
    eprintln!("{fit}");
    assert_eq!(fit["capacity"]["bound"], "measured");
    assert_eq!(fit["mixes"].as_array().unwrap().len(), 1);
    let seen = middles(&others);
    assert_eq!(seen.len(), OTHER_LOADS.len());
    let mut worst = 0.0_f64;
    for row in &seen {
        let seen_ms = number(row, "ttft_ms_p50") - number(row, "network_ms");
        let planned_ms = planned(&folder, row);
        let off = planned_ms / seen_ms - 1.0;
        eprintln!(
            "{OTHER:?} at {:.2}/s: planned {planned_ms:.2} ms, seen {seen_ms:.2} ms, {:+.1} %",
            number(row, "load_rps"),
            100.0 * off
        );
        worst = worst.max(off.abs());
    }
    assert!(worst < MOST_OFF, "{worst}");
}

/// Sweeps of one engine.
struct Sweeps {
    engine: SocketAddr,
    out: PathBuf,
    seconds: String,
}

impl Sweeps {
    /// What came of requests of one mix at these loads.
    fn run(&self, (prompt, output): (u64, u64), loads_rps: &[f64], seed: u64) -> Vec<Row> {
        let loads: Vec<String> = loads_rps.iter().map(|load| format!("{load:.3}")).collect();
        let (mix, seed) = (format!("{prompt}:{output}"), seed.to_string());
        let line = ["--mix", &mix, "--loads", &loads.join(","), "--seed", &seed];
        let line = [
            &line[..],
            &["--arrivals", "even", "--max-in-flight", MOST_AT_ONCE],
        ]
        .concat();
        let rows = sweep(self.engine, &self.out, &self.seconds, &line);
        assert_eq!(rows.len(), loads.len(), "{rows:?}");
        rows
    }

    /// What the engine can do of a mix, requests per second.
    fn capacity_rps(&self, mix: (u64, u64), seed: u64) -> f64 {
        let alone = &self.run(mix, &[1.0], 1_000 * seed)[0];
        let gaps_ms = (mix.1 - 1) as f64 * number(alone, "tbot_ms_p50");
        let alone_ms = number(alone, "ttft_ms_p50") + gaps_ms;
        let full = &self.run(mix, &[TOO_MUCH * 1e3 / alone_ms], 1_000 * seed + 1)[0];
        eprintln!("{mix:?}: {alone:?} alone, full {full:?}");
        number(full, "completed_rps")
    }
}

/// Sweeps the engine and gives the samples.
fn sweep(engine: SocketAddr, out: &Path, seconds: &str, line: &[&str]) -> Vec<Row> {
    let mut command = Command::new(binary("pointsman-bench"));
    command
        .args(["profile", "--engine", &format!("http://{engine}")])
        .args(["--kind", "llama", "--model", "tiny", "--settle-s", "0.3"])
        .args(["--seconds", seconds, "--max-ttft-ms", "1000", "--out"])
        .arg(out)
        .args(line);
    let finished = run(command, 10 * LONG);
    eprintln!("{}", finished.stdout);
    assert_eq!(finished.code, 0, "{finished:?}");
    let text = std::fs::read_to_string(out).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The fit of samples, which also stays in the folder as a piece of a topology.
fn fitted(folder: &Folder, rows: &[Row]) -> Value {
    let lines = rows.iter().map(|row| json!(row).to_string() + "\n");
    let samples = folder.write("fitted.jsonl", &lines.collect::<String>());
    let out = folder.path().join("fitted.toml");
    let [samples, out] = [&samples, &out].map(|path| path.to_str().unwrap());
    let said = command(&["fit", samples, "--median", "--out", out, "--json"]);
    assert_eq!(said.code, 0, "{said:?}");
    let mut said: Value = serde_json::from_str(&said.stdout).unwrap();
    said["fits"][0].take()
}

/// Each step's middle over the rounds: a round that others disturbed is not heard.
fn middles(rounds: &[Vec<Row>]) -> Vec<Row> {
    let steps = rounds.iter().map(Vec::len).min().unwrap();
    (0..steps)
        .map(|step| {
            let rows: Vec<&Row> = rounds.iter().map(|rows| &rows[step]).collect();
            let mut middle = rows[0].clone();
            for (column, value) in middle.iter_mut().filter(|(_, value)| value.is_number()) {
                *value = json!(median(rows.iter().map(|row| number(row, column)).collect()));
            }
            // What was done of what came, not the middles of both: they move together.
            let kept = rows
                .iter()
                .map(|row| number(row, "completed_rps") / number(row, "load_rps"));
            let done_rps = number(&middle, "load_rps") * median(kept.collect());
            middle.insert("completed_rps".to_owned(), json!(done_rps));
            middle
        })
        .collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// What a plan with the fitted profile expects of the engine under one sample's load and tokens.
fn planned(folder: &Folder, row: &Row) -> f64 {
    let prompt_tokens = number(row, "prompt_tokens");
    let cached_tokens = prompt_tokens * number(row, "hit_rate");
    let fleet = format!(
        r#"
[[frontends]]
name = "f"

[[engines]]
name = "L"
kind = "llama"
models = ["tiny"]
address = "127.0.0.1:1"

[[rtt]]
frontend = "f"
engine = "L"
ms = 0

[[routes]]
name = "other"
model = "tiny"
prompt_tokens = {prompt_tokens}
cached_tokens = {cached_tokens}
output_tokens = {}

[[demand]]
frontend = "f"
route = "other"
rps = {}
"#,
        number(row, "output_tokens"),
        number(row, "load_rps")
    );
    let profiles = std::fs::read_to_string(folder.path().join("fitted.toml")).unwrap();
    let file = folder.write("topology.toml", &(fleet + &profiles));
    let said = command(&["plan", file.to_str().unwrap(), "--json"]);
    assert_eq!(said.code, 0, "{said:?}");
    let plan: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(plan["assumed"], json!([]), "{plan}");
    let planned = &plan["routes"][0]["weights"][0]["planned_ttft_ms"];
    planned.as_f64().unwrap()
}

fn number(row: &Row, column: &str) -> f64 {
    row[column].as_f64().unwrap()
}
