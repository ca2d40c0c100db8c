//! What an operator does to the daemon as a process: orders over its socket, reloads, gates.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failed test"
)]

#[expect(dead_code, reason = "the other test binary uses the rest")]
mod control;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::process::Command;

use control::{Engine, Place, Solver, eventually, slots, weights};
use pointsman_shm::policy::{PlannedState, Policy};
use pointsman_shm::signals::{Outcome, Shape, SignalsWriter};
use serde_json::Value;

const PAGE: &str = "vllm:num_requests_running 3\nvllm:num_requests_waiting 1\n";
const CONFIGURED: &str = "demand = \"configured\"\n";
const SIGHUP: i32 = 1;
const SIGKILL: i32 = 9;

/// One frontend and three engines, each of which can do half of the demand.
struct World {
    place: Place,
    engines: Vec<(&'static str, Option<Engine>)>,
}

impl World {
    fn new() -> Self {
        let engines = ["B", "C", "D"].map(|name| (name, Some(Engine::start(PAGE))));
        Self {
            place: Place::new(),
            engines: engines.into(),
        }
    }

    fn text(&self, solver: &str) -> String {
        let names: Vec<&str> = self.engines.iter().map(|(name, _)| *name).collect();
        self.text_of(&names, solver)
    }

    /// The topology with some of the engines.
    fn text_of(&self, names: &[&str], solver: &str) -> String {
        let mut text = format!(
            "[solver]\nheadroom = 1\ntick_ms = 200\nscrape_ms = 200\nscrape_timeout_ms = 150\n\
             table_bits = 10\n{solver}\n[[frontends]]\nname = \"F\"\n\
             [[routes]]\nname = \"chat\"\nmodel = \"m\"\nprompt_tokens = 500\noutput_tokens = 100\n\
             [[demand]]\nfrontend = \"F\"\nroute = \"chat\"\nrps = 100\n"
        );
        for (at, (name, engine)) in self.engines.iter().enumerate() {
            if !names.contains(name) {
                continue;
            }
            let address = engine.as_ref().unwrap().address;
            let ms = 2 + 10 * at;
            text.push_str(&format!(
                "[[engines]]\nname = \"{name}\"\nkind = \"k\"\nmodels = [\"m\"]\n\
                 address = \"{address}\"\n\
                 capacity = {{ rps = 80, prompt_tokens = 500, output_tokens = 100 }}\n\
                 [[rtt]]\nfrontend = \"F\"\nengine = \"{name}\"\nms = {ms}\n"
            ));
        }
        text
    }

    fn start(&self, solver: &str) -> Solver {
        Solver::start(&self.place, &self.text(solver))
    }

    fn write(&self, text: &str) {
        std::fs::write(self.place.dir.path().join("topology.toml"), text).unwrap();
    }

    /// A command of the binary; whether it went well, and what it said.
    fn order(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman-solver"));
        command.args(arguments).arg("--run-dir");
        let output = command.arg(self.place.run_dir()).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    }

    fn ordered(&self, arguments: &[&str]) -> String {
        let (well, said) = self.order(arguments);
        assert!(well, "{arguments:?}: {said}");
        said
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let (well, said) = self.order(arguments);
        assert!(!well, "{arguments:?}: {said}");
        said
    }

    fn policy(&self) -> Policy {
        eventually("a policy", || self.place.policy("F"))
    }
}

/// A proxy's page, with what a proxy would count on it.
struct Proxy {
    writer: SignalsWriter,
}

impl Proxy {
    fn start(world: &World) -> Self {
        let shape = Shape {
            shards: 1,
            classes: 8,
            engines: 8,
            pairs: 8,
        };
        let folder = world.place.run_dir().join("F/signals");
        Self {
            writer: SignalsWriter::create(&folder, shape).unwrap(),
        }
    }

    /// Requests for every engine of a policy, which end as told.
    fn work(&self, policy: &Policy, outcome: Outcome) {
        let shard = self.writer.segment(0);
        shard.beat(pointsman_shm::boottime_ns(), policy.version);
        let class = &policy.classes[0];
        let class = shard.class(class.slot, class.generation).unwrap();
        for engine in &policy.engines {
            class.offered(0);
            let engine = shard.engine(engine.slot, engine.generation).unwrap();
            engine.attempt_started();
            engine.attempt_ended(outcome);
        }
    }
}

fn metric(solver: &Solver, series: &str) -> Option<f64> {
    let page = solver.get("/metrics").1;
    let line = page.lines().find(|line| {
        let name = line.rsplit_once(' ').map(|(name, _)| name);
        name == Some(&format!("pointsman_solver_{series}"))
    })?;
    line.rsplit_once(' ')?.1.parse().ok()
}

fn engine<'a>(status: &'a Value, name: &str) -> &'a Value {
    let engines = status["engines"].as_array().unwrap();
    engines.iter().find(|one| one["engine"] == name).unwrap()
}

#[test]
fn a_drain_survives_kill_9_and_is_undone_step_by_step() {
    let world = World::new();
    let solver = world.start(CONFIGURED);
    let share = slots(&world.policy())["B"];
    assert!(share > 100, "{share}");
    let said = world.ordered(&[
        "drain",
        "B",
        "--reason",
        "a bad disk",
        "--who",
        "ada",
        "--expires",
        "2h",
    ]);
    assert!(
        said.contains("published policies are made with it"),
        "{said}"
    );
    solver.end(SIGKILL);
    let closed = |policy: &Policy| {
        let engine = policy.engines.iter().find(|e| e.id == "B").unwrap();
        assert_eq!(
            (engine.state, engine.allowance),
            (PlannedState::Draining, 0)
        );
        assert_eq!(slots(policy).get("B"), None);
        assert_eq!(weights(policy)["B"], 0.0);
        let class = &policy.classes[0];
        assert!(class.standby.iter().all(|one| one.engine != engine.slot));
    };
    // What stands while no solver runs, and what the next one publishes.
    closed(&world.policy());
    let version = world.policy().version;
    let solver = world.start("demand = \"configured\"\npublish_max_age_s = 0.5\n");
    eventually("later policies", || {
        let policy = world.policy();
        closed(&policy);
        (policy.version > version + 1).then_some(())
    });

    let status = solver.status();
    let order = &status["orders"][0];
    assert_eq!(order["what"], "drain of engine \"B\"");
    assert!(
        order["who"].as_str().unwrap().starts_with("ada (uid "),
        "{order}"
    );
    assert_eq!(order["why"], "a bad disk");
    assert!(order["expires_in_s"].as_f64().unwrap() > 7_000.0, "{order}");
    let page = world.ordered(&["status"]);
    assert!(
        page.starts_with("ORDER drain of engine \"B\" by ada"),
        "{page}"
    );

    let said = world.refused(&["undrain", "C"]);
    assert!(said.contains("is not drained"), "{said}");
    world.ordered(&["undrain", "B"]);
    // Each later policy gives back a step of it.
    eventually("B's share back", || {
        let now = slots(&world.policy()).get("B").copied().unwrap_or(0);
        (now + 20 >= share).then_some(())
    });
    assert_eq!(solver.status()["orders"], Value::Array(vec![]));
}

#[test]
fn status_tells_when_a_drained_engine_may_be_taken_out() {
    let world = World::new();
    let solver = world.start(CONFIGURED);
    world.policy();
    world.ordered(&["drain", "B"]);
    let later = world.policy();
    let proxy = Proxy::start(&world);
    let shard = proxy.writer.segment(0);
    let b = later.engines.iter().find(|e| e.id == "B").unwrap();
    let running = shard.engine(b.slot, b.generation).unwrap();
    running.attempt_started();
    let waits = |what: &str| {
        eventually(what, || {
            let version = world.policy().version;
            shard.beat(pointsman_shm::boottime_ns(), version);
            let status = solver.status();
            let drain = &engine(&status, "B")["drain"];
            let waits = drain["waits_for"].as_str().unwrap_or("nothing");
            waits
                .contains(what)
                .then(|| drain["may_be_taken_out"].clone())
        })
    };
    assert_eq!(waits("1 requests in flight"), false);
    running.attempt_ended(Outcome::Success);
    assert_eq!(waits("nothing"), true);
    assert!(
        world
            .ordered(&["status"])
            .contains("drained: MAY BE TAKEN OUT")
    );
}

#[test]
fn the_last_engine_of_a_class_is_drained_by_force_only() {
    let world = World::new();
    let _solver = world.start(CONFIGURED);
    world.ordered(&["drain", "B"]);
    world.ordered(&["drain", "C"]);
    let said = world.refused(&["drain", "D"]);
    assert!(said.contains("chat") && said.contains("--force"), "{said}");
    let said = world.refused(&["drain", "Z"]);
    assert!(
        said.contains("no engine \"Z\"; there are B, C, D"),
        "{said}"
    );
    world.ordered(&["drain", "D", "--force"]);
    assert!(world.policy().classes[0].table.is_empty());
}

#[test]
fn set_weights_pins_and_holds_outlive_a_restart_and_expire() {
    let world = World::new();
    let solver = world.start(CONFIGURED);
    world.policy();
    let given = "B=1,C=1,D=2";
    let set = [
        "set-weight",
        "--frontend",
        "F",
        "--class",
        "chat",
        "--weights",
        given,
    ];
    world.ordered(&set);
    let quarters = [("B", 0.25), ("C", 0.25), ("D", 0.5)];
    let expected = quarters.map(|(name, weight)| (name.to_owned(), weight));
    assert_eq!(weights(&world.policy()), expected.clone().into());
    let stands = world.policy().version;
    let said = world.refused(&["pin", "999999"]);
    assert!(
        said.contains(&format!("it stands: {stands} at \"F\"")),
        "{said}"
    );
    world.ordered(&["pin", &stands.to_string(), "--reason", "as it was"]);
    world.ordered(&["unset-weight", "--frontend", "F", "--class", "chat"]);
    world.ordered(&["hold"]);
    solver.end(SIGKILL);
    let solver = world.start("demand = \"configured\"\npublish_max_age_s = 0.3\n");
    let version = world.policy().version;
    eventually("later policies", || {
        (world.policy().version > version + 2).then_some(())
    });
    assert_eq!(weights(&world.policy()), expected.into());
    let whats: Vec<String> = solver.status()["orders"]
        .as_array()
        .unwrap()
        .iter()
        .map(|order| order["what"].as_str().unwrap().to_owned())
        .collect();
    let pin = format!("pin of frontend \"F\" to version {stands}");
    assert_eq!(whats, ["hold of all weights", &pin]);
    // A drain is laid over them.
    world.ordered(&["drain", "D"]);
    assert_eq!(weights(&world.policy())["B"], 0.5);
    world.ordered(&["undrain", "D"]);
    world.ordered(&["unhold"]);
    world.ordered(&["unpin"]);
    assert!(
        world
            .refused(&["unpin"])
            .contains("nothing of it is pinned")
    );
    world.ordered(&["hold", "--expires", "1s"]);
    eventually("the hold's end", || {
        let orders = solver.status()["orders"].clone();
        (orders == Value::Array(vec![])).then_some(())
    });
    let kept = std::fs::read_to_string(world.place.dir.path().join("state/overrides.json"));
    let kept: Value = serde_json::from_str(&kept.unwrap()).unwrap();
    assert_eq!(kept["hold"], Value::Null);
}

#[test]
fn the_socket_is_its_owners_and_tells_what_it_does_not_understand() {
    let world = World::new();
    let solver = world.start(CONFIGURED);
    let path = world.place.run_dir().join("control.sock");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let ask = |line: &[u8]| {
        let mut stream = UnixStream::connect(&path).unwrap();
        let _ = stream.write_all(line);
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        answer["error"].as_str().unwrap().to_owned()
    };
    assert!(ask(b"{\"do\":\"dance\"}\n").contains("unknown variant `dance`"));
    assert!(ask(b"{\"do\":\"status\",\"x\":1}\n").contains("unknown field `x`"));
    assert!(ask(b"not json\n").contains("not understood"));
    let long = format!("{{\"do\":\"hold\",\"why\":\"{}\"}}\n", "x".repeat(501));
    assert!(ask(long.as_bytes()).contains("reason of 501 bytes: at most 500"));
    drop(solver);
    assert!(world.refused(&["status"]).contains("is it running"));
}

#[test]
fn a_kept_file_that_is_damaged_stops_the_start() {
    let world = World::new();
    let state = world.place.dir.path().join("state");
    std::fs::create_dir_all(&state).unwrap();
    std::fs::write(state.join("overrides.json"), "{\"version\":1,\"dra").unwrap();
    let mut command = world.place.command(&world.text(CONFIGURED));
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(
        said.contains("overrides.json") && said.contains("repair it"),
        "{said}"
    );
}

#[test]
fn j05_a_good_topology_is_swapped_in_and_a_bad_one_changes_nothing() {
    let world = World::new();
    let text = world.text_of(&["B", "C"], CONFIGURED);
    let solver = Solver::start(&world.place, &text);
    assert_eq!(weights(&world.policy()).len(), 2);
    let outcome = |name: &str| {
        metric(
            &solver,
            &format!("topology_reloads_total{{outcome=\"{name}\"}}"),
        )
    };
    world.write(&text.replace("headroom = 1", "headroom = true"));
    solver.signal(SIGHUP);
    eventually("the refusal", || outcome("refused"));
    let status = solver.status();
    assert_eq!(status["reload"]["taken"], false);
    let told = status["reload"]["lines"][0].as_str().unwrap();
    assert!(
        told.contains("topology.toml:2") && told.contains("headroom"),
        "{told}"
    );
    assert!(solver.log_text().contains("topology refused"));
    let before = world.policy();

    world.write(&world.text(CONFIGURED));
    solver.signal(SIGHUP);
    eventually("D in the policy", || {
        weights(&world.policy()).contains_key("D").then_some(())
    });
    let status = solver.status();
    assert_eq!(status["reload"]["taken"], true);
    let lines = status["reload"]["lines"].to_string();
    assert!(
        lines.contains("engine \\\"D\\\": added") && !lines.contains("setting"),
        "{lines}"
    );
    eventually("D asked", || metric(&solver, "engine_up{engine=\"D\"}"));
    // What stays keeps its numbers.
    let numbers = |policy: &Policy| {
        let two = policy.engines.iter().filter(|e| e.id != "D");
        two.map(|e| (e.id.clone(), e.slot, e.generation))
            .collect::<Vec<_>>()
    };
    assert_eq!(numbers(&world.policy()), numbers(&before));

    world.write(&text);
    let said = world.ordered(&["reload"]);
    assert!(said.contains("engine \"D\": removed"), "{said}");
    assert_eq!(metric(&solver, "engine_up{engine=\"D\"}"), None);
    assert!(world.ordered(&["reload"]).contains("nothing changed"));
    assert_eq!(outcome("taken"), Some(2.0));
}

#[test]
fn j05_hundreds_of_reloads_leave_nothing_behind() {
    let world = World::new();
    let texts = [
        world.text(CONFIGURED),
        world.text_of(&["B", "C"], CONFIGURED),
    ];
    // A second frontend comes and goes with its files.
    let frontend = "[[frontends]]\nname = \"G\"\n";
    let more = ["B", "C"].map(|e| format!("[[rtt]]\nfrontend = \"G\"\nengine = \"{e}\"\nms = 9\n"));
    let texts = [
        texts[0].clone(),
        format!("{}{frontend}{}", texts[1], more.concat()),
    ];
    let solver = Solver::start(&world.place, &texts[0]);
    let files = || {
        std::fs::read_dir(format!("/proc/{}/fd", solver.pid()))
            .unwrap()
            .count()
    };
    let reload = |turn: usize| {
        world.write(&texts[(turn + 1) % 2]);
        let said = world.ordered(&["reload"]);
        assert!(said.contains("engine \"D\": "), "{said}");
    };
    (0..10).for_each(reload);
    let settle = || {
        eventually("one topology alone", || {
            let alive = metric(&solver, "topology_generations_alive")?;
            (alive == 1.0).then_some(())
        });
        // The scraper of the engine that came back has its connection again.
        eventually("D asked", || metric(&solver, "engine_up{engine=\"D\"}"));
        files()
    };
    let before = settle();
    (10..200).for_each(reload);
    let after = eventually("as many files as before", || {
        let after = settle();
        (after <= before + 2).then_some(after)
    });
    assert!(after <= before + 2, "{before} files, then {after}");
    assert_eq!(metric(&solver, "topology_generation"), Some(200.0));
    let page = solver.get("/metrics").1;
    assert!(!page.contains("frontend=\"G\""), "{page}");
}

#[test]
fn half_the_engines_unscrapable_hold_the_weights_while_proxies_succeed() {
    let mut world = World::new();
    let solver = world.start(CONFIGURED);
    let policy = world.policy();
    let proxy = Proxy::start(&world);
    let up = || metric(&solver, "engine_up{engine=\"C\"}") == Some(1.0);
    eventually("C seen", || up().then_some(()));
    let before = weights(&policy);
    let holding = |solver: &Solver| metric(solver, "gate_holding{reason=\"engines_vanished\"}");
    for (_, engine) in &mut world.engines[..2] {
        // Proxies succeed before and after.
        for _ in 0..50 {
            proxy.work(&policy, Outcome::Success);
        }
        *engine = None;
    }
    eventually("the gate", || {
        proxy.work(&policy, Outcome::Success);
        let down = ["B", "C"].map(|e| metric(&solver, &format!("engine_up{{engine=\"{e}\"}}")));
        (down == [Some(0.0); 2] && holding(&solver) == Some(1.0)).then_some(())
    });
    let ticks = solver.status()["ticks"].as_u64().unwrap();
    eventually("ten more passes", || {
        proxy.work(&policy, Outcome::Success);
        assert_eq!(weights(&world.policy()), before);
        (solver.status()["ticks"].as_u64().unwrap() > ticks + 10).then_some(())
    });
    let held = solver.status()["held"][0].clone();
    assert_eq!(held["reason"], "engines_vanished");
    assert!(
        held["detail"].as_str().unwrap().contains("2 of 3 engines"),
        "{held}"
    );
    assert!(
        world
            .ordered(&["status"])
            .starts_with("HELD engines_vanished")
    );
    let log = solver.log_text();
    assert_eq!(log.matches("weights are held").count(), 1, "said once");
    // Proxies find them dead, too: they are.
    eventually("a policy without them", || {
        proxy.work(&policy, Outcome::ConnectRefused);
        proxy.work(&policy, Outcome::ConnectRefused);
        (weights(&world.policy())["D"] == 1.0).then_some(())
    });
    eventually("the end of the hold", || {
        (holding(&solver) == Some(0.0)).then_some(())
    });
}

#[test]
fn an_emptied_topology_is_refused_while_its_engines_serve() {
    let world = World::new();
    let solver = world.start(CONFIGURED);
    let policy = world.policy();
    let proxy = Proxy::start(&world);
    let before = weights(&policy);
    let ticks = || solver.status()["ticks"].as_u64().unwrap();
    let begun = ticks();
    eventually("passes that saw the successes", || {
        proxy.work(&policy, Outcome::Success);
        (ticks() > begun + 3).then_some(())
    });
    world.write(&world.text_of(&["B"], CONFIGURED));
    let said = world.refused(&["reload"]);
    assert!(
        said.contains("topology_shrunk") && said.contains("--force"),
        "{said}"
    );
    assert_eq!(weights(&world.policy()), before);
    assert!(metric(&solver, "gate_holds_total{reason=\"topology_shrunk\"}").unwrap() >= 1.0);
    world.ordered(&["drain", "C"]);
    world.ordered(&["drain", "D"]);
    let said = world.ordered(&["reload"]);
    assert!(said.contains("engine \"D\": removed"), "{said}");
    let notes = eventually("the notes", || {
        let notes = solver.status()["notes"].to_string();
        notes.contains("no such engine").then_some(notes)
    });
    assert!(notes.contains("drain of engine \\\"D\\\""), "{notes}");
}

#[test]
fn zeroed_pages_hold_the_weights_and_are_no_demand() {
    let world = World::new();
    let solver = world.start("demand = \"signals\"\ndemand_average_s = 1\n");
    let policy = world.policy();
    let proxy = Proxy::start(&world);
    let demand = || {
        solver.status()["frontends"][0]["demand_rps"]
            .as_f64()
            .unwrap()
    };
    eventually("measured demand", || {
        proxy.work(&policy, Outcome::Success);
        (solver.status()["frontends"][0]["demand_age_s"].is_number() && demand() > 20.0)
            .then_some(())
    });
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(proxy.writer.path())
        .unwrap();
    let length = file.metadata().unwrap().len() as usize;
    let mut zeroings = 0;
    eventually("the hold", || {
        for _ in 0..30 {
            proxy.work(&policy, Outcome::Success);
        }
        file.write_all_at(&vec![0; length - 4096], 4096).unwrap();
        zeroings += 1;
        assert!(demand() > 20.0, "nothing is not what was measured");
        metric(&solver, "gate_holds_total{reason=\"demand_unreadable\"}")
    });
    assert!(zeroings > 0);
    assert!(solver.log_text().contains("signal page went back"));
    // Counted anew, it is believed again.
    eventually("the end of the hold", || {
        proxy.work(&policy, Outcome::Success);
        let holding = metric(&solver, "gate_holding{reason=\"demand_unreadable\"}");
        (holding == Some(0.0)).then_some(())
    });
}
