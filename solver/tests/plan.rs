//! The binary on small fleets whose plans can be worked out by hand.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/data")
        .join(name)
}

fn solver(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pointsman-solver"))
        .args(args)
        .output()
        .expect("the binary")
}

fn plan(file: &Path) -> Value {
    let output = solver(&["plan", &file.display().to_string(), "--json"]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn near(what: &str, got: f64, expected: f64) {
    assert!(
        (got - expected).abs() <= 1e-6,
        "{what}: {got}, not {expected}"
    );
}

fn find<'a>(list: &'a Value, keys: &[(&str, &str)]) -> Option<&'a Value> {
    list.as_array()?
        .iter()
        .find(|item| keys.iter().all(|(key, value)| item[*key] == *value))
}

/// Requests per second that a route of a frontend sends to an engine.
fn rate(plan: &Value, frontend: &str, route: &str, engine: &str) -> f64 {
    let keys = [("frontend", frontend), ("route", route)];
    let route = find(&plan["routes"], &keys).expect("the route");
    let arc = find(&route["weights"], &[("engine", engine)]).expect("an eligible engine");
    arc["rate_rps"].as_f64().expect("a number")
}

fn weight(plan: &Value, frontend: &str, route: &str, engine: &str) -> f64 {
    let keys = [("frontend", frontend), ("route", route)];
    let route = find(&plan["routes"], &keys).expect("the route");
    let arc = find(&route["weights"], &[("engine", engine)]).expect("an eligible engine");
    arc["weight"].as_f64().expect("a number")
}

fn shed(plan: &Value, priority: &str) -> f64 {
    let found = find(&plan["shed"], &[("priority", priority)]);
    found.map_or(0.0, |s| s["rate_rps"].as_f64().expect("a number"))
}

fn objective(plan: &Value) -> f64 {
    plan["objective_ms_per_s"].as_f64().expect("a number")
}

fn check_engine(plan: &Value, name: &str, load: f64, capacity: f64) {
    let engine = find(&plan["engines"], &[("engine", name)]).expect("the engine");
    near(name, engine["load"].as_f64().expect("a number"), load);
    near(
        name,
        engine["capacity"].as_f64().expect("a number"),
        capacity,
    );
    near(
        name,
        engine["utilisation"].as_f64().expect("a number"),
        load / capacity,
    );
}

#[test]
fn three_regions_send_only_what_does_not_fit() {
    let plan = plan(&data("three-regions.toml"));
    near("objective", objective(&plan), 51_160.0);
    let model = plan["model_ms_per_s"].as_f64().expect("a number");
    near("by the pieces", model, 51_160.0);
    let expected = [[90.0, 0.0, 0.0], [0.0, 100.0, 20.0], [0.0, 0.0, 40.0]];
    for (f, row) in ["A", "B", "C"].iter().zip(expected) {
        for (e, rps) in ["A", "B", "C"].iter().zip(row) {
            near(&format!("{f} to {e}"), rate(&plan, f, "chat", e), rps);
        }
    }
    near("weight", weight(&plan, "B", "chat", "C"), 20.0 / 120.0);
    check_engine(&plan, "A", 90.0, 100.0);
    check_engine(&plan, "B", 100.0, 100.0);
    check_engine(&plan, "C", 60.0, 80.0);
    assert_eq!(plan["shed"], serde_json::json!([]));
}

#[test]
fn opportunity_is_what_an_engine_is_worth_to_others() {
    let plan = plan(&data("opportunity.toml"));
    near("objective", objective(&plan), 40_300.0);
    near("A to Y", rate(&plan, "A", "chat", "Y"), 100.0);
    near("A to X", rate(&plan, "A", "chat", "X"), 0.0);
    near("B to X", rate(&plan, "B", "chat", "X"), 100.0);
    near("B to Y", rate(&plan, "B", "chat", "Y"), 0.0);
}

#[test]
fn marginal_latency_decides_not_average_latency() {
    let plan = plan(&data("marginal.toml"));
    near("objective", objective(&plan), 7_800.0);
    near("near", rate(&plan, "A", "chat", "near"), 50.0);
    near("far", rate(&plan, "A", "chat", "far"), 20.0);
}

#[test]
fn of_a_mix_the_heavy_requests_travel() {
    let plan = plan(&data("mix.toml"));
    near("short near", rate(&plan, "A", "short", "near"), 50.0);
    near("short far", rate(&plan, "A", "short", "far"), 0.0);
    near("long near", rate(&plan, "A", "long", "near"), 5.0);
    near("long far", rate(&plan, "A", "long", "far"), 5.0);
    near("objective", objective(&plan), 60.0 * 200.0 + 5.0 * 40.0);
    check_engine(&plan, "near", 100.0, 100.0);
    check_engine(&plan, "far", 50.0, 100.0);
}

#[test]
fn overload_sheds_the_lowest_priority_first() {
    let plan = plan(&data("overload.toml"));
    near("high", shed(&plan, "high"), 0.0);
    near("low", shed(&plan, "low"), 50.0);
    near("served", rate(&plan, "A", "chat", "near"), 100.0);
    check_engine(&plan, "near", 100.0, 100.0);
}

#[test]
fn observe_shows_what_the_solver_would_do_beside_what_is_published() {
    let text = std::fs::read_to_string(data("three-regions.toml")).expect("the file");
    let mut text = text.replace("mode = \"control\"", "mode = \"observe\"");
    for frontend in ["A", "B", "C"] {
        text += &format!(
            "\n[[weights]]\nfrontend = \"{frontend}\"\nroute = \"chat\"\nweights = {{ A = 0.1, B = \
             0.2, C = 0.7 }}\n"
        );
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("observe.toml");
    std::fs::write(&file, text).expect("written");
    let plan = plan(&file);
    near("objective", objective(&plan), 51_160.0);
    near("B to C", rate(&plan, "B", "chat", "C"), 20.0);
    let route = find(&plan["routes"], &[("frontend", "B")]).expect("the route");
    let published: Vec<f64> = ["A", "B", "C"]
        .iter()
        .map(|e| {
            find(&route["published"], &[("engine", e)]).expect("it")["weight"]
                .as_f64()
                .expect("a number")
        })
        .collect();
    assert_eq!(published, [0.1, 0.2, 0.7]);
}

#[test]
fn the_same_file_gives_the_same_bytes() {
    for name in ["three-regions.toml", "mix.toml", "overload.toml"] {
        let file = data(name).display().to_string();
        let (a, b) = (
            solver(&["plan", &file, "--json"]),
            solver(&["plan", &file, "--json"]),
        );
        assert_eq!(a.stdout, b.stdout);
    }
}

#[test]
fn a_plan_is_verified_by_the_other_method() {
    for name in [
        "three-regions.toml",
        "opportunity.toml",
        "marginal.toml",
        "mix.toml",
        "overload.toml",
    ] {
        let text = std::fs::read_to_string(data(name)).expect("the file");
        let plain = plan(&data(name));
        for (method, other) in [("network", "lp"), ("lp", "network")] {
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join(name);
            let line = format!("[solver]\nmethod = \"{method}\"\n");
            std::fs::write(&file, text.replacen("[solver]\n", &line, 1)).expect("written");
            let file = file.display().to_string();
            let output = solver(&["plan", &file, "--verify", "--json"]);
            assert_eq!(output.status.code(), Some(0), "{name}: {output:?}");
            let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let verified = &plan["verified"];
            assert_eq!(
                (&plan["method"], &verified["method"]),
                (&method.into(), &other.into())
            );
            let number = |key: &str| verified[key].as_f64().expect("a number");
            assert!(number("gap").abs() < 1e-6, "{name}: {verified}");
            let off = number("objective_ms_per_s") / objective(&plain) - 1.0;
            assert!(off.abs() < 1e-6, "{name}: {verified}");
            let output = solver(&["plan", &file, "--verify"]);
            let told = String::from_utf8_lossy(&output.stdout).into_owned();
            let last = told.lines().last().expect("a line");
            assert!(
                last.starts_with(&format!("verified by the method {other}: objective "))
                    && last.contains("ms/s; the plan costs 0.0000 % "),
                "{last}"
            );
        }
    }
    let file = data("three-regions.toml").display().to_string();
    assert_eq!(plan(&data("three-regions.toml"))["verified"], Value::Null);
    let refused = solver(&["plan", &file, "--verify", "--without", "each"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

#[test]
fn check_says_good_or_what_is_wrong() {
    let good = solver(&["check", &data("three-regions.toml").display().to_string()]);
    assert_eq!(good.status.code(), Some(0));
    let text = String::from_utf8_lossy(&good.stdout).into_owned();
    assert!(
        text.contains("3 frontends, 3 engines, 1 routes in 1 classes"),
        "{text}"
    );

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("bad.toml");
    std::fs::write(&file, "[solver]\nheadroom = 1.5\n").expect("written");
    let bad = solver(&["check", &file.display().to_string()]);
    assert_eq!(bad.status.code(), Some(1));
    assert_eq!(bad.stdout, b"");
    assert_eq!(
        String::from_utf8_lossy(&bad.stderr),
        format!(
            "pointsman-solver: {}:2: solver.headroom = 1.5: must be above 0, at most 1\n",
            file.display()
        )
    );
}

#[test]
fn a_missing_file_is_named() {
    let output = solver(&["plan", "/nowhere/at/all.toml"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.starts_with("pointsman-solver: read /nowhere/at/all.toml: No such file"),
        "{text}"
    );
}
