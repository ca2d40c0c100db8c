//! `fit` as a person uses it: samples in, a piece of a topology out that `check` takes.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failed test"
)]

use std::path::{Path, PathBuf};

use clap::Parser;
use pointsman_solver::cli::{Cli, execute};
use pointsman_solver::fit::read::{Middle, read};
use pointsman_solver::fit::{Tokens, fit};
use pointsman_solver::model::topology::Topology;
use pointsman_solver::model::units::Positive;
use serde_json::Value;

/// An engine whose time between tokens is 8 ms / (1 - 0.8 u), full at 10 requests/s of 1,000 and
/// 200 tokens; what it did beyond that is what it can do.
fn csv(loads: &[f64]) -> String {
    let mut text =
        "kind,model,load_rps,completed_rps,prompt_tokens,output_tokens,ttft_ms,tbot_ms\n"
            .to_owned();
    for load in loads {
        let u = (load / 10.0_f64).min(1.0);
        let tbot = 8.0 / (1.0 - 0.8 * u);
        let ttft = tbot + 50.0 + if *load > 10.0 { 900.0 } else { 0.0 };
        text += &format!("h,m,{load},{},1000,200,{ttft},{tbot}\n", load.min(10.0));
    }
    text
}

fn run(line: &[&str]) -> Result<String, String> {
    let cli = Cli::try_parse_from([&["pointsman-solver"], line].concat())
        .map_err(|error| error.to_string())?;
    let mut out = Vec::new();
    execute(&cli, &mut out).map_err(|error| error.to_string())?;
    Ok(String::from_utf8(out).unwrap())
}

/// A folder with a file of samples in it.
fn folder(samples: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("samples.csv");
    std::fs::write(&path, samples).unwrap();
    (dir, path)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

const LOADS: [f64; 8] = [0.5, 2.0, 4.0, 6.0, 8.0, 9.5, 13.0, 16.0];

/// A fleet of two engines of the kind, one of them with two replicas, and a route of long prompts.
const FLEET: &str = r#"
[[frontends]]
name = "a"

[[engines]]
name = "one"
kind = "h"
models = ["m"]
address = "127.0.0.1:9"

[[engines]]
name = "two"
kind = "h"
models = ["m"]
address = "127.0.0.1:10"
replicas = 2

[[rtt]]
frontend = "a"
region = ""
ms = 2

[[routes]]
name = "chat"
model = "m"
prompt_tokens = 1000
output_tokens = 200

[[routes]]
name = "long"
model = "m"
requires = ["tools"]
prompt_tokens = 3000
output_tokens = 200
"#;

#[test]
fn a_fit_at_the_end_of_a_topology_gives_its_engines_capacity_and_curves() {
    let (dir, samples) = folder(&csv(&LOADS));
    let out = dir.path().join("h.toml");
    let said = run(&["fit", text(&samples), "--out", text(&out)]).unwrap();
    assert!(
        said.starts_with("h m: 8 samples, 2 of them of a full engine\n"),
        "{said}"
    );
    assert!(
        said.contains("capacity: 10.00 requests/s of 1000 uncached prompt"),
        "{said}"
    );
    let fitted = std::fs::read_to_string(&out).unwrap();
    assert_eq!(fitted, run(&["fit", text(&samples)]).unwrap());
    let fleet = dir.path().join("topology.toml");
    std::fs::write(&fleet, format!("{FLEET}{fitted}")).unwrap();
    let said = run(&["check", text(&fleet)]).unwrap();
    assert!(!said.contains("assumed"), "{said}");
    let topology = Topology::parse("t.toml", &format!("{FLEET}{fitted}")).unwrap();
    let rps: Vec<f64> = topology
        .engines
        .iter()
        .map(|e| e.capacity.rps.value())
        .collect();
    assert!(
        (rps[0] - 10.0).abs() < 0.01 && (rps[1] - 20.0).abs() < 0.02,
        "{rps:?}"
    );
    // 10 requests/s of 50 ms of prompt and 30 of answer are what fills it: 0.8 of its seconds. A
    // token of answers that read nothing takes less of them than one that reads 1,100 does.
    let capacity = &topology.engines[0].capacity;
    assert!(
        (capacity.prefill_tps.value() / 16_000.0 - 1.0).abs() < 0.01,
        "{capacity:?}"
    );
    assert_eq!(capacity.context_tokens.map(Positive::value), Some(10_000.0));
    let read_tps = capacity.decode_tps.value() / 1.11;
    assert!((read_tps / 5_333.3 - 1.0).abs() < 0.01, "{capacity:?}");
    // One curve for each length of prompt: three times the tokens, three times the 50 ms.
    let curve = |class: usize| &topology.profiles[topology.classes[class].eligible[0].profile.0];
    for utilisation in [0.2, 0.6, 0.95] {
        let ((ttft, tbot), (long_ttft, long_tbot)) =
            (curve(0).at(utilisation), curve(1).at(utilisation));
        assert_eq!(tbot, long_tbot);
        assert!((ttft - tbot - 50.0).abs() < 0.5, "{ttft} {tbot}");
        assert!(
            (long_ttft - long_tbot - 150.0).abs() < 1.5,
            "{long_ttft} {long_tbot}"
        );
        assert!(
            (tbot / (8.0 / (1.0 - 0.8 * utilisation)) - 1.0).abs() < 0.05,
            "{tbot}"
        );
    }
}

#[test]
fn a_plan_expects_what_the_fit_does_of_long_and_of_cached_prompts() {
    // Prompts of 1,600 tokens, 600 of them cached.
    let samples = csv(&LOADS)
        .replace("output_tokens,", "hit_rate,output_tokens,")
        .replace(",1000,200,", ",1600,0.375,200,");
    let samples = read("samples.csv", &samples, Middle::Mean).unwrap();
    let fit = fit("h", "m", &samples).unwrap();
    let fitted = pointsman_solver::fit::write::toml(std::slice::from_ref(&fit));
    assert!(
        fitted.contains("prompt_tokens = 1600.0\ncached_tokens = 600.0\n"),
        "{fitted}"
    );
    let fleet = FLEET
        .replace(
            "prompt_tokens = 1000",
            "prompt_tokens = 1600\ncached_tokens = 600",
        )
        .replace(
            "prompt_tokens = 3000",
            "prompt_tokens = 9000\ncached_tokens = 7000",
        );
    let topology = Topology::parse("t.toml", &format!("{fleet}{fitted}")).unwrap();
    for (class, uncached_tokens, cached_tokens) in [(0, 1_000.0, 600.0), (1, 2_000.0, 7_000.0)] {
        let tokens = Tokens {
            uncached_tokens,
            cached_tokens,
            output_tokens: 200.0,
        };
        let class = &topology.classes[class];
        let planned_rps = 1.0 / class.mix.engine_seconds(&topology.engines[0].capacity);
        let fitted_rps = fit.capacity_rps(tokens);
        assert!(
            (planned_rps / fitted_rps - 1.0).abs() < 1e-3,
            "{planned_rps}"
        );
        let curve = &topology.profiles[class.eligible[0].profile.0];
        for utilisation in [0.0, 0.3, 0.6, 0.9] {
            let (ttft, tbot) = curve.at(utilisation);
            let wanted = fit.expected(utilisation * fitted_rps, tokens);
            assert!(
                (ttft / wanted.ttft_ms - 1.0).abs() < 0.01,
                "{ttft}, {wanted:?}"
            );
            assert!(
                (tbot / wanted.tbot_ms - 1.0).abs() < 0.01,
                "{tbot}, {wanted:?}"
            );
        }
    }
    // An answer's token reads 9,100 tokens instead of 1,700: 1.91 of what it costs, not 1.17.
    let seconds = |class: usize| {
        let mix = topology.classes[class].mix;
        mix.engine_seconds(&topology.engines[0].capacity)
    };
    let (prompt, answer) = (0.05 / 0.8, 0.03 / 0.8);
    assert!((seconds(0) / (prompt + answer) - 1.0).abs() < 0.01);
    let long = 2.0 * prompt + answer * 1.91 / 1.17;
    assert!((seconds(1) / long - 1.0).abs() < 0.01, "{}", seconds(1));
}

#[test]
fn an_engines_own_capacity_wins_and_without_any_the_profile_is_asked_for() {
    let (_dir, samples) = folder(&csv(&LOADS));
    let fitted = run(&["fit", text(&samples)]).unwrap();
    let own = FLEET.replace("replicas = 2", "capacity = { rps = 7 }");
    let topology = Topology::parse("t.toml", &format!("{own}{fitted}")).unwrap();
    assert_eq!(topology.engines[1].capacity.rps.value(), 7.0);
    let refused = Topology::parse("t.toml", FLEET).unwrap_err().to_string();
    assert_eq!(
        refused,
        "t.toml:5: engines \"one\": capacity is missing: give rps, or prefill_tps and decode_tps, or \
         max_running, here or in its profile"
    );
    let share = fitted.replace("prompt_tokens = 1000", "# ");
    let refused = Topology::parse("t.toml", &format!("{FLEET}{share}"))
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("prompt_share needs prompt_tokens"),
        "{refused}"
    );
}

#[test]
fn what_a_context_costs_is_told_to_be_assumed_unless_it_is_given() {
    let (_dir, samples) = folder(&csv(&LOADS));
    let told = |line: &[&str]| {
        let fit = [&["fit", text(&samples)], line].concat();
        let json: Value = serde_json::from_str(&run(&[&fit[..], &["--json"]].concat())?).unwrap();
        let capacity = json["fits"][0]["capacity"].clone();
        Ok::<_, String>((run(&fit)?, capacity))
    };
    let (assumed, json) = told(&[]).unwrap();
    for line in [
        "# a token of an answer costs twice as much where it reads 10000 tokens, ASSUMED: fill the \
         engine with three mixes of unlike prompts and answers to know, or give --context-tokens\n",
        ", context_tokens = 10000.0 } # measured; context_tokens is assumed\n",
    ] {
        assert!(assumed.contains(line), "{assumed}");
    }
    assert_eq!(
        (&json["context_tokens"], &json["context"]),
        (&10_000.0.into(), &"assumed".into())
    );
    let (given, json) = told(&["--context-tokens", "2500"]).unwrap();
    assert!(
        given.contains("where it reads 2500 tokens, as given\n")
            && given.contains(", context_tokens = 2500.0 } # measured\n"),
        "{given}"
    );
    assert_eq!(json["context"], "given");
    let (none, json) = told(&["--context-tokens", "none"]).unwrap();
    assert!(
        none.contains("# a token of an answer costs the same whatever it reads, as given\n")
            && !none.contains("context_tokens ="),
        "{none}"
    );
    assert_eq!(
        (&json["context_tokens"], &json["context"]),
        (&Value::Null, &"given".into())
    );
    let refused = told(&["--context-tokens", "0"]).unwrap_err();
    assert!(
        refused.contains("\"0\": must be a number of tokens above 0, or none"),
        "{refused}"
    );
}

#[test]
fn json_tells_all_of_it() {
    let (_dir, samples) = folder(&csv(&LOADS));
    let said: Value =
        serde_json::from_str(&run(&["fit", text(&samples), "--json"]).unwrap()).unwrap();
    let fit = &said["fits"][0];
    assert_eq!((&fit["kind"], &fit["model"]), (&"h".into(), &"m".into()));
    assert_eq!(
        (&fit["samples"], &fit["saturated_samples"]),
        (&8.into(), &2.into())
    );
    let capacity = &fit["capacity"];
    assert_eq!(
        (&capacity["bound"], &capacity["split"]),
        (&"measured".into(), &"steps".into())
    );
    let points = fit["points"].as_array().unwrap();
    let number = |p: &Value, key: &str| p[key].as_f64().unwrap();
    for key in ["ttft_ms", "tbot_ms"] {
        let slopes: Vec<f64> = points
            .windows(2)
            .map(|w| {
                let x = number(&w[1], "utilisation") - number(&w[0], "utilisation");
                (number(&w[1], key) - number(&w[0], key)) / x
            })
            .collect();
        assert!(slopes[0] >= 0.0, "{slopes:?}");
        assert!(slopes.windows(2).all(|w| w[1] >= w[0] - 1e-6), "{slopes:?}");
    }
    assert!(number(&fit["error"], "ttft_worst") < 0.01);
}

#[test]
fn an_engine_that_was_never_full_has_a_capacity_of_at_least_that() {
    let (_dir, samples) = folder(&csv(&[0.5, 2.0, 4.0, 6.0]));
    let said = run(&["fit", text(&samples)]).unwrap();
    assert!(
        said.contains("# capacity: at least 6.000 requests/s"),
        "{said}"
    );
    assert!(
        said.contains("# a lower bound: no sample saw the engine full"),
        "{said}"
    );
    let json: Value =
        serde_json::from_str(&run(&["fit", text(&samples), "--json"]).unwrap()).unwrap();
    assert_eq!(json["fits"][0]["capacity"]["bound"], "lower_bound");
}

#[test]
fn pictures_are_drawn_one_for_each_fit() {
    let other = csv(&LOADS).replace("h,m,", "g,m,");
    let both = csv(&LOADS) + other.split_once('\n').unwrap().1;
    let (dir, samples) = folder(&both);
    let picture = dir.path().join("fit.svg");
    run(&["fit", text(&samples), "--svg", text(&picture)]).unwrap();
    for name in ["fit-g-m.svg", "fit-h-m.svg"] {
        let svg = std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
        // A circle for each sample in both panels; those of a full engine are hollow.
        assert_eq!(svg.matches("<circle ").count(), 16);
        assert_eq!(svg.matches("fill=\"none\" stroke=\"#1b6ca8\"").count(), 4);
        assert_eq!(svg.matches("<polyline ").count(), 2);
        assert!(svg.contains(">full</text>") && !svg.contains("NaN"));
    }
}

#[test]
fn samples_that_tell_nothing_are_refused_by_name() {
    let refused = |samples: &str| {
        let (_dir, path) = folder(samples);
        run(&["fit", text(&path)]).unwrap_err()
    };
    assert_eq!(
        refused(&csv(&[1.0, 2.0, 13.0])),
        "h m: 2 samples of an engine that kept up, 1 of a full one: at least 4 of the first are needed"
    );
    assert_eq!(
        refused(&csv(&[4.0, 4.1, 4.2, 4.3])),
        "h m: loads from 4 to 4.3 requests/s tell no curve: the highest must be at least 1.5 times \
         the lowest"
    );
    let bad = refused(&csv(&LOADS).replace("h,m,4,4,", "h,m,4,four,"));
    assert!(
        bad.contains("samples.csv:4: completed_rps = four: must be a number from"),
        "{bad}"
    );
    assert!(run(&["fit"]).is_err());
    let absent = run(&["fit", "no/such/file.csv"]).unwrap_err();
    assert!(absent.starts_with("read no/such/file.csv: "), "{absent}");
}

#[test]
fn kinds_can_be_named_on_the_command_line() {
    let (_dir, samples) = folder(&csv(&LOADS).replace("h,m,", ",,"));
    let said = run(&["fit", text(&samples), "--kind", "x y", "--model", "q\"1"]).unwrap();
    assert!(said.contains("kind = \"x y\"\nmodel = 'q\"1'\n"), "{said}");
}
