//! What would be otherwise, as the binary prints it.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failed test"
)]

use std::path::Path;
use std::process::Command;

use pointsman_solver::model::topology::{EngineId, Topology};
use pointsman_solver::model::what_if::loss::Fleet;
use pointsman_solver::model::what_if::{described, solve};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::Value;

fn talk() -> String {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
    data.join("three-regions.toml").display().to_string()
}

fn said(arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman-solver"));
    let output = command.args(arguments).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

fn told(arguments: &[&str]) -> String {
    let (well, told) = said(arguments);
    assert!(well, "{told}");
    told
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&told(&[arguments, &["--json"]].concat())).unwrap()
}

fn near(what: &str, got: &Value, expected: f64) {
    let got = got.as_f64().unwrap();
    assert!(
        (got - expected).abs() < 1e-6,
        "{what}: {got}, not {expected}"
    );
}

#[test]
fn another_capacity_is_shown_beside_the_one_of_the_file() {
    let told = told(&["plan", &talk(), "--set", "engines.B.capacity=120"]);
    let expected = "                                 before          after         change
demand req/s                    250.000        250.000         +0.000
refused req/s                     0.000          0.000         +0.000
latency ms                      204.640        202.000         -2.640
objective ms/s                51160.000      50500.000       -660.000
worst utilisation           1.0000 at B    1.0000 at B
weights that change: 2
  frontend B, class chat, engine B: 0.8333 -> 1.0000
  frontend B, class chat, engine C: 0.1667 -> 0.0000
utilisations that change: 1
  engine C: 0.7500 -> 0.5000
";
    assert_eq!(told, expected);
    let several = ["--set", "rtt.B.C=30", "--set", "demand.B.chat=130"];
    let report = json(&[&["plan", &talk()], &several[..]].concat());
    // 10 more requests and 10 that go with the 20, each at 230 ms instead of 235.
    let after = 90.0 * 202.0 + 100.0 * 202.0 + 30.0 * 230.0 + 40.0 * 202.0;
    near("objective", &report["after"]["objective_ms_per_s"], after);
    near("demand", &report["after"]["demand_rps"], 260.0);
}

#[test]
fn what_cannot_be_set_is_refused_with_what_can() {
    for (setting, expected) in [
        (
            "engines.X.capacity=1",
            "engines has no name \"X\"; there are A, B, C",
        ),
        (
            "motors.B=1",
            "no section \"motors\"; a path is one of solver.KEY, priorities.NAME.KEY",
        ),
        (
            "engines.B.colour=1",
            "unknown key `colour`: expected one of `name`, `region`",
        ),
    ] {
        let (well, told) = said(&["plan", &talk(), "--set", setting]);
        assert!(!well && told.contains(expected), "{told}");
        assert!(
            told.starts_with(&format!("pointsman-solver: --set {setting}: ")),
            "{told}"
        );
    }
}

#[test]
fn every_single_loss_says_what_it_would_refuse() {
    let told = told(&["plan", &talk(), "--without", "each"]);
    let lines: Vec<&str> = told.lines().collect();
    let losses = ["nothing", "engine A", "engine B", "engine C"];
    let named = losses.iter().chain(&["region a", "region b", "region c"]);
    for (line, name) in lines[1..].iter().zip(named) {
        assert!(line.starts_with(&format!("{name} ")), "{line}");
    }
    let last = "worst loss of one engine refuses 28.00 % of requests";
    assert_eq!(*lines.last().unwrap(), last, "{told}");
    let report = json(&["plan", &talk(), "--without", "each"]);
    near("ratio", &report["n_minus_1_shed_ratio"], 0.28);
    for (row, refused) in [
        (0, 70.0),
        (1, 70.0),
        (2, 50.0),
        (3, 70.0),
        (4, 70.0),
        (5, 50.0),
    ] {
        near("refused", &report["losses"][row]["shed_rps"], refused);
    }
    near("worst", &report["losses"][0]["worst_utilisation"], 1.0);
}

#[test]
fn one_loss_is_shown_beside_what_is() {
    // Half the demand: A and C carry all of it without B, and B's 60 go to C at 35 ms.
    let halves = ["A.chat=45", "B.chat=60", "C.chat=20"];
    let halves = halves.map(|half| format!("demand.{half}"));
    let mut arguments = vec!["plan".to_owned(), talk(), "--without".to_owned()];
    arguments.push("engine:B".to_owned());
    for half in halves {
        arguments.extend(["--set".to_owned(), half]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let report = json(&arguments);
    near("refused", &report["after"]["shed_rps"], 0.0);
    near(
        "latency",
        &report["after"]["latency_ms"],
        (125.0 * 202.0 + 60.0 * 33.0) / 125.0,
    );
    near("worst", &report["after"]["worst_utilisation"], 1.0);
    for (wrong, expected) in [
        ("engine:X", "no engine \"X\"; there are A, B, C"),
        ("region:x", "no region \"x\"; there are a, b, c"),
        ("B", "must be engine:NAME, region:NAME or each"),
    ] {
        let (well, told) = said(&["plan", &talk(), "--without", wrong]);
        assert!(!well && told.contains(expected), "{told}");
    }
}

#[test]
fn rules_meet_the_same_recorded_demand() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log.jsonl");
    let line = "{\"demand\":[{\"frontend\":\"A\",\"route\":\"chat\",\"rps\":90},\
                {\"frontend\":\"B\",\"route\":\"chat\",\"rps\":120},\
                {\"frontend\":\"C\",\"route\":\"chat\",\"rps\":40}]}\n";
    std::fs::write(&log, line.repeat(5)).unwrap();
    let log = log.display().to_string();
    let rules = ["--compare", "nearest,static,optimised", "--log", &log];
    let report = json(&[&["plan", &talk()], &rules[..]].concat());
    assert_eq!(
        (&report["ticks"], &report["left_out"]),
        (&Value::from(5), &Value::from(0))
    );
    near("demand", &report["demand_rps"], 250.0);
    let row = |rule: usize, key: &str| &report["rows"][rule][key];
    // Nearest: B is offered 120 and refuses 20.
    near("nearest", row(0, "latency_ms"), 202.0);
    near("nearest", row(0, "worst_utilisation_p99"), 1.2);
    near("nearest", row(0, "shed_ratio"), 20.0 / 250.0);
    near("nearest", row(0, "cross_region_share"), 0.0);
    // Static: by 100, 100 and 80 of 280.
    let at = |ms: [f64; 3]| (100.0 * ms[0] + 100.0 * ms[1] + 80.0 * ms[2]) / 280.0;
    let all = 90.0 * at([2.0, 60.0, 60.0]) + 120.0 * at([60.0, 2.0, 35.0]);
    let all = all + 40.0 * at([60.0, 35.0, 2.0]);
    near("static", row(1, "latency_ms"), 200.0 + all / 250.0);
    near("static", row(1, "worst_utilisation_p99"), 250.0 / 280.0);
    near("static", row(1, "shed_ratio"), 0.0);
    let home = (90.0 * 100.0 + 120.0 * 100.0 + 40.0 * 80.0) / 280.0;
    near("static", row(1, "cross_region_share"), 1.0 - home / 250.0);
    // Optimised: 20 of B's go to C.
    near("optimised", row(2, "latency_ms"), 51_160.0 / 250.0);
    near("optimised", row(2, "worst_utilisation_p99"), 1.0);
    near("optimised", row(2, "shed_ratio"), 0.0);
    near("optimised", row(2, "cross_region_share"), 20.0 / 250.0);
    near("optimised", row(2, "cost_ms_per_s"), 51_160.0);
    for rule in 0..3 {
        near("moved", row(rule, "moved_per_tick"), 0.0);
    }
    let table = told(&[&["plan", &talk()], &rules[..]].concat());
    assert!(
        table.contains("nearest        202.000            1.2000    8.00 %"),
        "{table}"
    );
}

#[test]
fn a_log_that_cannot_be_read_is_told_by_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log.jsonl");
    let name = log.display().to_string();
    let good = "{\"unix_ms\":5,\"demand\":[]}\n";
    for (bad, expected) in [
        (
            "{\"demand\":[{\"frontend\":\"X\",\"route\":\"chat\",\"rps\":1}]}",
            "no frontend \"X\"",
        ),
        (
            "{\"demand\":[{\"frontend\":\"A\",\"route\":\"chat\",\"rps\":-1}]}",
            "rps -1: must be",
        ),
        ("{\"unix_ms\":4,\"demand\":[]}", "unix_ms 4 is before 5"),
        ("{\"demand\":[],\"colour\":1}", "unknown field `colour`"),
        ("demand", "expected value"),
    ] {
        std::fs::write(&log, format!("{good}{bad}\n")).unwrap();
        let (well, told) = said(&["plan", &talk(), "--compare", "static", "--log", &name]);
        assert!(
            !well && told.contains("line 2: ") && told.contains(expected),
            "{told}"
        );
    }
    let (well, told) = said(&["plan", "--compare", "static", "--log", &name]);
    assert!(
        !well && told.contains("the log names no topology"),
        "{told}"
    );
    let (well, told) = said(&["plan", &talk(), "--compare", "best", "--log", &name]);
    assert!(
        !well && told.contains("a rule is nearest, static or optimised"),
        "{told}"
    );
}

/// So many frontends, engines and classes of like requests, each class on a quarter of the engines.
fn fleet(rng: &mut StdRng, [frontends, engines, classes]: [usize; 3], load: f64) -> String {
    let mut text = "[solver]\ndemand = \"configured\"\n[[profiles]]\nkind = \"k\"\npoints = [{ \
                    utilisation = 0, ttft_ms = 200, tbot_ms = 0 }, { utilisation = 0.7, ttft_ms = \
                    260, tbot_ms = 0 }, { utilisation = 1, ttft_ms = 900, tbot_ms = 0 }]\n"
        .to_owned();
    let mut room = 0.0;
    for e in 0..engines {
        let rps = f64::from(rng.random_range(20..60));
        room += rps;
        let models: Vec<String> = (0..classes)
            .filter(|c| (e + c) % classes.min(4) == 0)
            .map(|c| format!("\"m{c}\""))
            .collect();
        text += &format!(
            "[[engines]]\nname = \"e{e}\"\nkind = \"k\"\nmodels = [{}]\naddress = \
             \"127.0.0.1:1\"\ncapacity = {{ rps = {rps}, prompt_tokens = 500, output_tokens = 100 \
             }}\n",
            models.join(", ")
        );
    }
    for c in 0..classes {
        text += &format!("[[routes]]\nname = \"c{c}\"\nmodel = \"m{c}\"\n");
    }
    let one = room * load / (frontends * classes) as f64;
    for f in 0..frontends {
        text += &format!("[[frontends]]\nname = \"f{f}\"\n");
        for c in 0..classes {
            let rps = one * rng.random_range(0.5..1.5);
            text += &format!("[[demand]]\nfrontend = \"f{f}\"\nroute = \"c{c}\"\nrps = {rps}\n");
        }
        for e in 0..engines {
            let ms = rng.random_range(1..120);
            text += &format!("[[rtt]]\nfrontend = \"f{f}\"\nengine = \"e{e}\"\nms = {ms}\n");
        }
    }
    text
}

#[test]
fn a_loss_planned_from_the_plan_that_stands_costs_what_one_from_nothing_does() {
    let seed = 31;
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut losses, mut refusing, mut farthest) = (0, 0, 0.0_f64);
    for case in 0..12 {
        let load = rng.random_range(0.6..1.2);
        let size = [
            rng.random_range(2..5),
            rng.random_range(4..12),
            rng.random_range(1..5),
        ];
        let topology = Topology::parse("t.toml", &fleet(&mut rng, size, load)).unwrap();
        let ground = solve(&topology, &described(&topology)).unwrap();
        let (mut cold, mut warm) = (
            Fleet::new(&ground.problem, None),
            Fleet::new(&ground.problem, None),
        );
        let whole = warm.whole().unwrap();
        for e in 0..topology.engines.len() {
            let lost = [EngineId(e)];
            let (from_nothing, from_plan) = (cold.without(&lost), warm.without(&lost));
            let (from_nothing, from_plan) = (from_nothing.unwrap(), from_plan.unwrap());
            let what = format!("seed {seed}, case {case}, engine {e}");
            let off = from_plan.objective_ms / from_nothing.objective_ms - 1.0;
            farthest = farthest.max(off.abs());
            // Plans whose pieces cost the same may differ in what pieces leave out.
            assert!(off.abs() < 1e-5, "{what}: {off}");
            let shed = from_plan.shed_ratio() - from_nothing.shed_ratio();
            assert!(shed.abs() < 1e-6, "{what}: {shed}");
            assert!(from_plan.objective_ms >= whole.objective_ms, "{what}");
            losses += 1;
            refusing += usize::from(from_plan.shed_ratio() > whole.shed_ratio());
        }
        // The fleet is whole again.
        assert_eq!(warm.whole().unwrap(), whole);
    }
    println!("{losses} losses, {refusing} of which refuse more; off by {farthest:e} at most");
    assert!(losses > 60 && refusing > 20, "{losses}, {refusing}");
}

#[test]
fn a_loss_is_planned_without_the_share_that_a_misfit_has() {
    let topology = Topology::parse("t.toml", &std::fs::read_to_string(talk()).unwrap()).unwrap();
    let mut ground = solve(&topology, &described(&topology)).unwrap();
    let free = Fleet::new(&ground.problem, None).whole().unwrap();
    let arcs = ground.problem.sources.iter_mut().flat_map(|s| &mut s.arcs);
    for arc in arcs.filter(|arc| arc.engine == EngineId(1)) {
        arc.most = Some(0.1);
    }
    let mut bound = Fleet::new(&ground.problem, None);
    assert_eq!(bound.whole().unwrap(), free);
    let lost = [EngineId(0)];
    assert!((bound.without(&lost).unwrap().shed_ratio() - 0.28).abs() < 1e-6);
}

#[test]
#[ignore = "prints times of a large fleet's losses"]
fn times_of_each_loss_of_a_large_fleet() {
    let mut rng = StdRng::seed_from_u64(8);
    let topology = Topology::parse("t.toml", &fleet(&mut rng, [20, 200, 8], 0.8)).unwrap();
    let ground = solve(&topology, &described(&topology)).unwrap();
    for warm in [false, true] {
        let begun = std::time::Instant::now();
        let mut fleet = Fleet::new(&ground.problem, None);
        if warm {
            fleet.whole().unwrap();
        }
        let mut worst: f64 = 0.0;
        for e in 0..topology.engines.len() {
            worst = worst.max(fleet.without(&[EngineId(e)]).unwrap().shed_ratio());
        }
        let took = begun.elapsed();
        println!("200 losses, from the plan that stands: {warm}, {took:?}; worst {worst}");
    }
}
