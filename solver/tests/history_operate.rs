//! History and what it serves, by the real binary over a real solver of the method `network`:
//! shown, compared, rolled back to, solved again; and policies that are not to be published.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failed test"
)]

#[expect(dead_code, reason = "the other test binaries use the rest")]
mod control;

use std::process::Command;

use control::{Engine, Place, Solver, eventually, weights};
use pointsman_shm::policy::Policy;
use pointsman_shm::region::{Kind, Stamp, Writer};
use serde_json::Value;

const SIGTERM: i32 = 15;

/// Two regions: B has 20 requests/s more than its engine can do, C has room; a whole class may
/// move in one pass.
fn topology(engines: &[(&str, &Engine, u32)]) -> String {
    let mut text = "[solver]\nmethod = \"network\"\ndemand = \"configured\"\nheadroom = 1\n\
                    tick_ms = 100\nscrape_ms = 100\nscrape_timeout_ms = 80\ntable_bits = 8\n\
                    max_step = 1\n\
                    [[profiles]]\nname = \"flat\"\nkind = \"k\"\npoints = [ { utilisation = 0.0, \
                    ttft_ms = 200.0, tbot_ms = 0.0 } ]\n\
                    [[routes]]\nname = \"chat\"\nmodel = \"m\"\n"
        .to_owned();
    for (frontend, rps) in [("B", 120), ("C", 40)] {
        text += &format!(
            "[[frontends]]\nname = \"{frontend}\"\n[[demand]]\nfrontend = \"{frontend}\"\nroute = \
             \"chat\"\nrps = {rps}\n"
        );
        for (at, (name, ..)) in engines.iter().enumerate() {
            let ms = if (frontend == "B") == (at == 0) {
                2
            } else {
                35
            };
            text +=
                &format!("[[rtt]]\nfrontend = \"{frontend}\"\nengine = \"{name}\"\nms = {ms}\n");
        }
    }
    for (name, engine, rps) in engines {
        text += &format!(
            "[[engines]]\nname = \"{name}\"\nkind = \"k\"\nmodels = [\"m\"]\naddress = \
             \"{}\"\ncapacity = {{ rps = {rps}, prompt_tokens = 500, output_tokens = 100 }}\n",
            engine.address
        );
    }
    text
}

fn engine() -> Engine {
    Engine::start("vllm:num_requests_running 0\n")
}

/// The binary's commands on one solver's folders.
struct Asked<'a>(&'a Place);

impl Asked<'_> {
    fn said(&self, arguments: &[&str]) -> (bool, String) {
        let dir = |name: &str| self.0.dir.path().join(name).display().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman-solver"));
        command.args(arguments);
        match arguments[0] {
            "rollback" => command.args(["--run-dir", &dir("run"), "--state-dir", &dir("state")]),
            "history" | "show" | "diff" | "replay" => command.args(["--state-dir", &dir("state")]),
            _ => command.args(["--run-dir", &dir("run")]),
        };
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    }

    fn told(&self, arguments: &[&str]) -> String {
        let (well, told) = self.said(arguments);
        assert!(well, "{arguments:?}: {told}");
        told
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let told = self.told(&[arguments, &["--json"]].concat());
        serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error}: {told}"))
    }
}

/// A policy of a frontend with the weights that a test waits for.
fn until(place: &Place, frontend: &str, expected: &[(&str, f64)]) -> Policy {
    eventually(&format!("{expected:?} at {frontend}"), || {
        let policy = place.policy(frontend)?;
        let found = weights(&policy);
        let near = |(engine, weight): &(&str, f64)| (found[*engine] - weight).abs() < 1e-6;
        expected.iter().all(near).then_some(policy)
    })
}

#[test]
fn a_policy_of_the_network_method_is_shown_compared_and_rolled_back_to() {
    let place = Place::new();
    let (b, c) = (engine(), engine());
    let solver = Solver::start(&place, &topology(&[("B", &b, 100), ("C", &c, 80)]));
    let asked = Asked(&place);
    let planned = [("B", 100.0 / 120.0), ("C", 20.0 / 120.0)];
    let first = until(&place, "B", &planned).version;
    asked.told(&["drain", "C", "--reason", "a test"]);
    let alone = until(&place, "B", &[("B", 1.0), ("C", 0.0)]).version;
    asked.told(&["undrain", "C"]);
    let back = until(&place, "B", &planned).version;
    assert!(first < alone && alone < back);
    let (first, alone) = (first.to_string(), alone.to_string());
    let recorded = |version: &str| {
        eventually("the version is in the history", || {
            let (well, _) = asked.said(&["show", version, "--frontend", "B"]);
            well.then_some(())
        });
    };
    recorded(&back.to_string());

    let listed = asked.json(&["history", "--frontend", "B", "--last", "50"]);
    let made = |tick: &Value| tick["made"].as_array().unwrap().clone();
    let versions: Vec<u64> = (listed["ticks"].as_array().unwrap().iter())
        .flat_map(made)
        .filter(|made| made["frontend"] == "B" && made["published"] == true)
        .map(|made| made["version"].as_u64().unwrap())
        .collect();
    let expected: Vec<u64> = (1..=versions.len() as u64).collect();
    assert_eq!(versions, expected, "{listed}");

    let shown = asked.json(&["show", &first, "--frontend", "B"]);
    let of = |engine: &str| {
        let weights = shown[0]["classes"][0]["weights"].as_array().unwrap();
        let found = weights.iter().find(|w| w["engine"] == engine).unwrap();
        found["weight"].as_f64().unwrap()
    };
    for (engine, weight) in planned {
        assert!((of(engine) - weight).abs() < 1e-6, "{shown}");
    }
    let different = asked.told(&["diff", &first, &alone, "--frontend", "B"]);
    let head = format!("frontend B, version {first} -> {alone}\n");
    assert!(different.starts_with(&head), "{different}");
    assert!(
        different.contains("class chat: B has 1.0000 of it, had 0.8333\n")
            && different.contains("class chat: C has 0.0000 of it, had 0.1667\n")
            && different.contains("engine C: state Active -> Draining\n"),
        "{different}"
    );

    let rolled = asked.told(&["rollback", &alone, "--frontend", "B", "--reason", "worse"]);
    let told = format!("pinned back: \"B\" to version {alone}\n");
    assert!(rolled.starts_with(&told), "{rolled}");
    let pinned = until(&place, "B", &[("B", 1.0), ("C", 0.0)]);
    assert!(pinned.version > back);
    // C's own are the plan's, as ever: it is not pinned.
    until(&place, "C", &[("B", 0.0), ("C", 1.0)]);
    let status = solver.status();
    let order = &status["orders"][0];
    assert_eq!(order["why"], "worse", "{order}");
    let what = format!("pin of frontend \"B\" to version {alone}");
    assert_eq!(order["what"], what.as_str());
    let why = asked.json(&["explain", "--frontend", "B"]);
    assert_eq!(why["method"], "network");
    assert_eq!(why["sources"][0]["fixed_by"], "ordered");
    asked.told(&["unpin"]);
    let last = until(&place, "B", &planned).version;
    recorded(&last.to_string());

    assert!(solver.end(SIGTERM).success());
    let replayed = asked.json(&["replay"]);
    assert_eq!(
        (&replayed["differing"], &replayed["not_replayed"]),
        (&Value::from(0), &Value::from(0)),
        "{replayed}"
    );
    assert!(replayed["policies"].as_u64().unwrap() >= 8, "{replayed}");

    // Nothing that the old version names is left: there is nothing to roll back to.
    let solver = Solver::start(&place, &topology(&[("X", &b, 100), ("Y", &c, 80)]));
    let stands = until(&place, "B", &[("X", 100.0 / 120.0), ("Y", 20.0 / 120.0)]);
    let (well, told) = asked.said(&["rollback", &alone, "--frontend", "B"]);
    let expected = format!(
        "version {alone} of frontend \"B\" has no class and engine that the topology still has"
    );
    assert!(!well && told.contains(&expected), "{told}");
    assert_eq!(solver.status()["orders"], Value::Array(Vec::new()));
    assert_eq!(weights(&place.policy("B").unwrap()), weights(&stands));
}

/// Puts a changed policy where a frontend's stands, as a damaged or foreign state folder would.
fn replace(place: &Place, frontend: &str, change: impl Fn(&mut Policy)) {
    let mut policy = place.policy(frontend).unwrap();
    policy.version += 1;
    change(&mut policy);
    let stamp = Stamp {
        version: policy.version,
        epoch: policy.epoch,
    };
    let mut writer = Writer::open(&place.run_dir().join(frontend), Kind::Policy).unwrap();
    let payload = policy.encode();
    eventually("the region's pace", || writer.publish(stamp, &payload).ok());
}

#[test]
fn a_policy_that_breaks_a_rule_is_refused_with_its_name_and_what_stands_stays() {
    let place = Place::new();
    let (b, c) = (engine(), engine());
    let text = topology(&[("B", &b, 100), ("C", &c, 80)]);
    let solver = Solver::start(&place, &text);
    for frontend in ["B", "C"] {
        eventually("a policy", || place.policy(frontend));
    }
    let kept = place.policy("C").unwrap().version;
    assert!(solver.end(SIGTERM).success());
    // B's state says a version that nothing can follow; C's has rates that are none.
    replace(&place, "B", |policy| policy.version = u64::MAX);
    replace(&place, "C", |policy| {
        policy.classes[0].admitted_rps[0] = f64::NAN;
    });
    let stands = place.policy("B").unwrap();

    let solver = Solver::start(&place, &text);
    let series = "pointsman_solver_publications_refused_total{frontend=\"B\",rule=\"version\"} ";
    let page = eventually("some passes were refused", || {
        let page = solver.get("/metrics").1;
        let counted = page.lines().find_map(|line| line.strip_prefix(series));
        counted
            .is_some_and(|n| n.parse::<u32>().unwrap() >= 3)
            .then_some(page)
    });
    assert!(!page.contains("publications_refused_total{frontend=\"C\""));
    let reason = format!("does not follow version {}", u64::MAX);
    let log = solver.log_text();
    let said = log
        .lines()
        .filter(|line| line.contains("policy not published") && line.contains(&reason));
    assert_eq!(said.count(), 1, "said once, however often: {log}");
    let noted = eventually("status says why", || {
        let status = solver.status();
        let notes = status["notes"].as_array()?.clone();
        notes.into_iter().find(|note| {
            let note = note.as_str().unwrap();
            note.starts_with("policy of frontend \"B\" was not published: ")
        })
    });
    assert!(noted.as_str().unwrap().contains(&reason), "{noted}");
    assert_eq!(place.policy("B").unwrap(), stands);
    // Nothing is built on rates that are none: C has a sound policy, after the broken one.
    let sound = eventually("a sound policy of C", || {
        place.policy("C").filter(|policy| policy.version > kept + 1)
    });
    assert_eq!(sound.classes[0].admitted_rps, [f64::INFINITY]);
    let (known, _) = (weights(&sound), solver);
    assert!((known["C"] - 1.0).abs() < 1e-6, "{known:?}");
}
