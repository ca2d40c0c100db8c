//! The daemon as a process: real binary, real region files, scripted engines.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failed test"
)]

mod control;

use std::process::Stdio;

use control::{Engine, Place, Solver, eventually, slots, unwritable, weights};
use pointsman_shm::engine_state::Health;
use pointsman_shm::signals::{Shape, ShedCause, SignalsWriter};
use pointsman_solver::collect::exposition;

const PAGE: &str = "vllm:num_requests_running 3\nvllm:num_requests_waiting 1\n";
const SIGTERM: i32 = 15;
const SIGHUP: i32 = 1;
const SIGKILL: i32 = 9;

/// Two regions: B has 20 requests/s more than its engine can do, C has room; one slot is 1/4096.
fn topology(b: &str, c: &str, solver: &str) -> String {
    let engine = |name: &str, address: &str, rps: u32| {
        let region = name.to_lowercase();
        format!(
            "[[engines]]\nname = \"{name}\"\nregion = \"{region}\"\nkind = \"k\"\nmodels = [\"m\"]\n\
             address = \"{address}\"\n\
             capacity = {{ rps = {rps}, prompt_tokens = 500, output_tokens = 100 }}\n"
        )
    };
    let rtt = |frontend: &str, engine: &str, ms: u32| {
        format!("[[rtt]]\nfrontend = \"{frontend}\"\nengine = \"{engine}\"\nms = {ms}\n")
    };
    [
        format!(
            "[solver]\ndemand = \"configured\"\nheadroom = 1\ntick_ms = 200\nscrape_ms = 200\n\
             scrape_timeout_ms = 150\ntable_bits = 12\n{solver}\n"
        ),
        "[[frontends]]\nname = \"B\"\nregion = \"b\"\n[[frontends]]\nname = \"C\"\nregion = \"c\"\n"
            .into(),
        "[[profiles]]\nname = \"flat\"\nkind = \"k\"\npoints = [ { utilisation = 0.0, ttft_ms = 200.0, \
         tbot_ms = 0.0 }, { utilisation = 1.0, ttft_ms = 200.0, tbot_ms = 0.0 } ]\n"
            .into(),
        engine("B", b, 100),
        engine("C", c, 80),
        rtt("B", "B", 2),
        rtt("B", "C", 35),
        rtt("C", "C", 2),
        rtt("C", "B", 35),
        "[[routes]]\nname = \"chat\"\nmodel = \"m\"\nprompt_tokens = 500\noutput_tokens = 100\n".into(),
        "[[demand]]\nfrontend = \"B\"\nroute = \"chat\"\nrps = 120\n".into(),
        "[[demand]]\nfrontend = \"C\"\nroute = \"chat\"\nrps = 40\n".into(),
    ]
    .concat()
}

/// Both engines up, and their topology.
fn world(solver: &str) -> (Engine, Engine, String) {
    let (b, c) = (Engine::start(PAGE), Engine::start(PAGE));
    let text = topology(&b.address.to_string(), &c.address.to_string(), solver);
    (b, c, text)
}

#[test]
fn weights_are_published_and_shown() {
    let place = Place::new();
    let (b, c, _) = world("");
    // E18: a name is resolved by the solver; the policy holds addresses.
    let named = format!("localhost:{}", b.address.port());
    let text = topology(&named, &c.address.to_string(), "");
    let solver = Solver::start(&place, &text);
    let policy = eventually("a policy", || place.policy("B"));
    let found = weights(&policy);
    assert!((found["B"] - 100.0 / 120.0).abs() < 1e-6, "{found:?}");
    assert!((found["C"] - 20.0 / 120.0).abs() < 1e-6, "{found:?}");
    let table = slots(&policy);
    assert!(
        (table["B"] as f64 - 4096.0 * found["B"]).abs() <= 1.0,
        "{table:?}"
    );
    assert_eq!(table["B"] + table["C"], 4096);
    let resolved = &policy
        .engines
        .iter()
        .find(|engine| engine.id == "B")
        .unwrap()
        .addresses;
    assert!(resolved.contains(&b.address), "{resolved:?}");
    let own = weights(&eventually("a policy", || place.policy("C")));
    assert!((own["C"] - 1.0).abs() < 1e-9, "{own:?}");

    assert_eq!(solver.get("/healthz"), (200, "ok\n".into()));
    eventually("readiness", || {
        (solver.get("/readyz").0 == 200).then_some(())
    });
    let status = solver.status();
    let frontend = &status["frontends"][0];
    assert_eq!(
        (frontend["frontend"].as_str(), frontend["reason"].as_str()),
        (Some("B"), Some("first"))
    );
    assert_eq!(frontend["demand_rps"], 120.0);
    let class = &frontend["classes"][0];
    assert_eq!(class["demand_rps"], 120.0);
    assert_eq!(class["weights"][0]["engine"], "B");
    assert_eq!(class["weights"][0]["weight"].as_f64(), Some(found["B"]));
    assert_eq!(status["last_tick"], "optimal");
    assert_eq!(status["settled"], true);
    assert_eq!(status["demand_source"], "configured");
    assert!(place.heartbeat_age_ns("B").is_some());
}

#[test]
fn g11_the_page_is_whole_and_in_form() {
    let place = Place::new();
    let (_b, c, text) = world("");
    let odd = "\"C \\\"quoted\\\" \\\\ back\"";
    let text = text
        .replace(
            "name = \"C\"\nregion = \"c\"\nkind",
            &format!("name = {odd}\nregion = \"c\"\nkind"),
        )
        .replace("engine = \"C\"", &format!("engine = {odd}"));
    let solver = Solver::start(&place, &text);
    drop(c);
    eventually("an engine seen down", || {
        let page = solver.get("/metrics").1;
        (page.contains("pointsman_solver_scrape_errors_total{engine=\"C \\\"quoted\\\" \\\\ back\",reason=\"refused\"}")
            && page.contains("pointsman_solver_engine_up{engine=\"B\"} 1"))
        .then_some(())
    });
    let page = solver.get("/metrics").1;
    let parsed = exposition::parse(page.as_bytes(), true);
    let samples = page.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(
        (parsed.sample_count, parsed.truncated),
        (samples, false),
        "{page}"
    );
    for name in [
        "ticks_total",
        "ready",
        "publications_total",
        "policy_version",
        "policy_age_seconds",
        "solve_failures_total",
        "solve_seconds_bucket",
        "objective_ms_per_s",
        "demand_rps",
        "signal_pages",
        "engine_load",
        "engine_utilisation",
        "weight",
        "shed_rps",
        "engine_up",
        "scrapes_total",
        "scrape_errors_total",
        "signal_absent",
    ] {
        assert!(
            page.contains(&format!("\npointsman_solver_{name}")),
            "{name} is not on {page}"
        );
    }
}

#[test]
fn engine_state_follows_the_engines_without_a_new_policy() {
    let place = Place::new();
    let (b, c, text) = world("engine_state_ms = 100");
    let solver = Solver::start(&place, &text);
    let of = |name: &str| {
        let policy = place.policy("B")?;
        let slot = policy.engines.iter().find(|engine| engine.id == name)?.slot;
        let states = place.engine_states("B")?;
        let state = *states.engines.iter().find(|state| state.slot == slot)?;
        Some((states, state))
    };
    let (states, state) = eventually("both up", || {
        of("B").filter(|(_, state)| state.running == Some(3))
    });
    assert_eq!(
        (state.health, state.waiting, state.kv_use),
        (Health::Up, Some(1), None)
    );
    assert!(state.health_age_ms < u32::MAX && state.load_age_ms < u32::MAX);
    let policy_version = place.policy("B").unwrap().version;
    b.show("vllm:num_requests_running 7\nvllm:kv_cache_usage_perc 0.25\n");
    let (later, state) = eventually("new figures", || {
        of("B").filter(|(_, state)| state.running == Some(7))
    });
    assert_eq!((state.waiting, state.kv_use), (None, Some(0.25)));
    assert!(later.version > states.version);
    assert_eq!(place.policy("B").unwrap().version, policy_version);

    drop(c);
    eventually("C down", || {
        of("C").filter(|(_, state)| state.health == Health::Down)
    });
    // And the next plan does without it.
    let policy = eventually("a policy without C", || {
        place
            .policy("B")
            .filter(|policy| weights(policy).get("C").is_none_or(|w| *w == 0.0))
    });
    assert!(policy.version > policy_version);
    assert_eq!(slots(&policy).get("C"), None);
    assert!(
        (policy.classes[0].admitted_rps[0]) < 120.0,
        "100 + 80 became 100: some is shed"
    );
    drop(solver);
}

#[test]
fn a_restart_continues_versions_and_moves_nothing() {
    let place = Place::new();
    let (_b, _c, text) = world("");
    let solver = Solver::start(&place, &text);
    let before = eventually("a policy", || place.policy("B"));
    let first_epoch = solver.status()["epoch"].as_u64().unwrap();
    // Killed, then restarted cleanly, then killed again.
    let mut ending = SIGKILL;
    let mut solver = solver;
    for start in 1..=3 {
        let exit = solver.end(ending);
        assert_eq!(exit.code(), (ending == SIGTERM).then_some(0));
        ending = if ending == SIGKILL { SIGTERM } else { SIGKILL };
        solver = Solver::start(&place, &text);
        assert_eq!(solver.status()["epoch"].as_u64(), Some(first_epoch + start));
        eventually("a plan", || {
            solver.status()["ticks"]
                .as_u64()
                .filter(|ticks| *ticks >= 2)
        });
        let after = place.policy("B").unwrap();
        assert!(after.version >= before.version && after.epoch >= before.epoch);
        assert_eq!(after.classes[0].table, before.classes[0].table);
        assert_eq!(weights(&after), weights(&before));
        let numbers = |policy: &pointsman_shm::policy::Policy| {
            let engines = policy
                .engines
                .iter()
                .map(|e| (e.id.clone(), e.slot, e.generation));
            let class = &policy.classes[0];
            let pairs = class
                .eligible
                .iter()
                .map(|one| (one.engine, one.pair, one.pair_generation));
            (
                engines.collect::<Vec<_>>(),
                class.slot,
                class.generation,
                pairs.collect::<Vec<_>>(),
            )
        };
        assert_eq!(numbers(&after), numbers(&before));
    }
}

#[test]
fn versions_rise_across_restarts_when_something_is_published() {
    let place = Place::new();
    let (_b, _c, text) = world("publish_max_age_s = 0.3");
    let mut last = 0;
    for _ in 0..3 {
        let solver = Solver::start(&place, &text);
        let policy = eventually("a newer policy", || {
            place.policy("B").filter(|policy| policy.version > last + 1)
        });
        assert_eq!(policy.epoch, solver.status()["epoch"].as_u64().unwrap());
        last = policy.version;
        solver.end(SIGKILL);
    }
}

#[test]
fn a_second_solver_is_refused_by_name() {
    let place = Place::new();
    let (_b, _c, text) = world("");
    let solver = Solver::start(&place, &text);
    let second = place.command(&text).stdin(Stdio::null()).output().unwrap();
    assert!(!second.status.success());
    assert_eq!(second.stdout, b"");
    let told = String::from_utf8(second.stderr).unwrap();
    let named = format!("is written by process {} already", solver.pid());
    assert!(told.contains(&named) && told.contains("policy"), "{told}");
    // The first goes on.
    let ticks = solver.status()["ticks"].as_u64().unwrap();
    eventually("more ticks", || {
        solver.status()["ticks"].as_u64().filter(|now| *now > ticks)
    });
}

#[test]
fn a_run_folder_that_cannot_be_written_is_named() {
    let place = Place::new();
    let (_b, _c, text) = world("");
    let key = format!("run_dir = {:?}", unwritable().display().to_string());
    let path = place.dir.path().join("other.toml");
    std::fs::write(&path, text.replace("table_bits = 12", &key)).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_pointsman-solver"));
    let output = command
        .arg("run")
        .arg("--topology")
        .arg(&path)
        .output()
        .unwrap();
    assert!(!output.status.success());
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        told.contains("/proc/self") && told.contains("run_dir"),
        "{told}"
    );
}

#[test]
fn observed_weights_are_the_operators_byte_for_byte() {
    let place = Place::new();
    let (_b, _c, text) = world("mode = \"observe\"");
    let given = [("B", 0.7_f64, 0.3_f64), ("C", 0.1, 0.9)];
    let text = given.iter().fold(text, |text, (frontend, b, c)| {
        format!(
            "{text}[[weights]]\nfrontend = \"{frontend}\"\nroute = \"chat\"\n\
             weights = {{ B = {b}, C = {c} }}\n"
        )
    });
    let solver = Solver::start(&place, &text);
    for (frontend, b, c) in given {
        let found = weights(&eventually("a policy", || place.policy(frontend)));
        assert_eq!(found["B"].to_bits(), b.to_bits());
        assert_eq!(found["C"].to_bits(), c.to_bits());
    }
    // What the solver would do is shown beside it.
    let advice = eventually("advice", || {
        let status = solver.status();
        status["advice"]
            .as_array()
            .filter(|advice| !advice.is_empty())
            .cloned()
    });
    assert_eq!(advice[0]["frontend"], "B");
    let weight = advice[0]["weights"][0]["weight"].as_f64().unwrap();
    assert!((weight - 100.0 / 120.0).abs() < 1e-6, "{advice:?}");
    assert_eq!(
        solver.status()["frontends"][0]["classes"][0]["mode"],
        "observe"
    );
}

#[test]
fn demand_comes_from_signal_pages_with_what_was_shed() {
    let place = Place::new();
    let (_b, _c, text) = world("demand_average_s = 0.5");
    let text = text.replace("demand = \"configured\"", "demand = \"signals\"");
    let solver = Solver::start(&place, &text);
    let policy = eventually("a policy", || place.policy("C"));
    // The start value stands while nobody measures.
    assert_eq!(solver.status()["frontends"][1]["demand_rps"], 40.0);
    let shape = Shape {
        shards: 1,
        classes: 8,
        engines: 8,
        pairs: 8,
    };
    let writer = SignalsWriter::create(&place.run_dir().join("C/signals"), shape).unwrap();
    let shard = writer.segment(0);
    let class = shard
        .class(policy.classes[0].slot, policy.classes[0].generation)
        .unwrap();
    // What was offered was refused: arrivals that leave no trace would not be believed.
    let offer = || {
        for _ in 0..20 {
            class.offered(0);
            class.shed(ShedCause::AdmittedRate, 0);
        }
    };
    let demand = |solver: &Solver| {
        let status = solver.status();
        let frontend = &status["frontends"][1];
        let sum = frontend["demand_rps"].as_f64().unwrap();
        assert_eq!(frontend["classes"][0]["demand_rps"].as_f64(), Some(sum));
        (sum, frontend["signal_pages"].as_u64().unwrap())
    };
    // An idle proxy is a measurement: demand falls towards nothing.
    eventually("demand of an idle proxy", || {
        (demand(&solver).0 < 10.0).then_some(())
    });
    assert_eq!(demand(&solver).1, 1);
    assert!(solver.status()["frontends"][1]["demand_age_s"].is_number());
    assert!(solver.status()["frontends"][0]["demand_age_s"].is_null());
    // Offered, not admitted, is what counts.
    eventually("demand of a busy proxy", || {
        offer();
        (demand(&solver).0 > 100.0).then_some(())
    });
    eventually("a policy for it", || {
        offer();
        place
            .policy("C")
            .filter(|policy| policy.classes[0].demand_rps > 100.0)
    });
    // The frontend without a page keeps its start value.
    assert_eq!(solver.status()["frontends"][0]["demand_rps"], 120.0);
    let path = writer.path().to_owned();
    drop((shard, writer));
    eventually("the dead page reaped", || (!path.exists()).then_some(()));
}

#[test]
fn signals_stop_it_or_have_the_topology_read_again() {
    let place = Place::new();
    let (_b, _c, text) = world("");
    let solver = Solver::start(&place, &text);
    solver.signal(SIGHUP);
    eventually("the log line", || {
        let log = solver.log_text();
        (log.contains("topology reloaded") && log.contains("unchanged")).then_some(())
    });
    let ticks = solver.status()["ticks"].as_u64().unwrap();
    eventually("more ticks", || {
        solver.status()["ticks"].as_u64().filter(|now| *now > ticks)
    });
    let version = eventually("a policy", || place.policy("B")).version;
    assert_eq!(solver.end(SIGTERM).code(), Some(0));
    assert_eq!(
        place.policy("B").unwrap().version,
        version,
        "the policy stands"
    );
}

#[test]
fn e17_engines_that_come_up_later_are_used_without_a_restart() {
    let place = Place::new();
    let (b, c, text) = world("");
    let address = c.address;
    drop((b, c));
    let solver = Solver::start(&place, &text);
    let up = |name: &str| {
        let status = solver.status();
        let engines = status["engines"].as_array().unwrap();
        let engine = engines
            .iter()
            .find(|engine| engine["engine"] == name)
            .unwrap();
        engine["health"] == "up"
    };
    eventually("both seen down", || {
        let page = solver.get("/metrics").1;
        let down = |name| {
            page.contains(&format!(
                "pointsman_solver_engine_up{{engine=\"{name}\"}} 0"
            ))
        };
        (down("B") && down("C")).then_some(())
    });
    let revived = Engine::revive(address, PAGE);
    eventually("C up", || up("C").then_some(()));
    let policy = eventually("a policy that uses C", || {
        place
            .policy("C")
            .filter(|policy| weights(policy).get("C").is_some_and(|w| *w == 1.0))
    });
    assert_eq!(slots(&policy)["C"], 4096);
    drop(revived);
}

#[test]
fn e18_an_engine_whose_name_has_no_address_stops_nothing() {
    let place = Place::new();
    let (b, _c, _) = world("");
    let text = topology(&b.address.to_string(), "no-such-engine.invalid:80", "");
    let solver = Solver::start(&place, &text);
    let policy = eventually("a policy", || place.policy("B"));
    assert_eq!(slots(&policy)["B"], 4096);
    assert!(policy.engines.iter().all(|engine| engine.id != "C"));
    eventually("readiness", || {
        (solver.get("/readyz").0 == 200).then_some(())
    });
    let page = eventually("the failed lookup", || {
        let page = solver.get("/metrics").1;
        page.contains("name_resolution_failures_total{name=\"no-such-engine.invalid:80\"")
            .then_some(page)
    });
    assert!(
        !page.contains("engine_up{engine=\"C\"}"),
        "no verdict without an address"
    );
    let notes = solver.status()["notes"].to_string();
    assert!(notes.contains('C'), "{notes}");
}
