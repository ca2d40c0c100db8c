//! Why weights are what they are: what is printed, that it adds up, and that prices are true.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failed test"
)]

#[expect(dead_code, reason = "the other test binaries use the rest")]
mod control;
mod explained;

use std::path::Path;

use control::{Engine, Place, Solver, eventually};
use explained::{adds_up, of, random_fleet, said, set, why};
use pointsman_shm::policy::PlannedState;
use pointsman_solver::model::explain::{
    Explanation, Full, LimitKind, Micros, Rule, Wanted, explain,
};
use pointsman_solver::model::optimise::optimise;
use pointsman_solver::model::problem::EngineNow;
use pointsman_solver::model::topology::{Method, Topology};
use pointsman_solver::model::what_if::{described, solve};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

const TALK: &str = include_str!("../../tests/data/three-regions.toml");

#[test]
fn the_talk_is_explained_to_the_letter_by_both_methods() {
    let dir = tempfile::tempdir().unwrap();
    for method in ["lp", "network"] {
        let text = TALK.replace("[solver]\n", &format!("[solver]\nmethod = \"{method}\"\n"));
        let file = dir.path().join("talk.toml");
        std::fs::write(&file, text).unwrap();
        let file = file.display().to_string();
        let (well, told) = said(&["explain", "--topology", &file, "--frontend", "B"]);
        assert!(well, "{told}");
        let expected = "\
milliseconds of one more request at each engine

frontend B, class chat: 120.000 req/s; one more costs 235.000 ms, one less saves 235.000 ms
  engine            weight      req/s    network    service congestion   capacity   movement     bounds       cost      total     beyond
  B                 0.8333    100.000      2.000    200.000      0.000     33.000      0.000      0.000      0.000    235.000      0.000
  C                 0.1667     20.000     35.000    200.000      0.000      0.000      0.000      0.000      0.000    235.000      0.000
  A                 0.0000      0.000     60.000    200.000      0.000      0.000      0.000      0.000      0.000    260.000     25.000
  (refuse)                                                                                                          40000.000  39765.000
  - B is full: 235 ms to squeeze one more in; C costs 35 ms of distance and wins the last 20 req/s
  - A would cost 25 ms more
  - capacity at B is worth 33 ms/s a request

full
  capacity of engine B: one more request/s of the capacity's mix would save 33.000 ms/s
";
        let first = format!(
            "method {method}; prices from exchanges of single requests at the plan: exact\n"
        );
        assert_eq!(told, first + expected);

        let arguments = ["explain", "--topology", &file, "--json"];
        let (well, told) = said(&arguments);
        assert!(well, "{told}");
        let why: Explanation = serde_json::from_str(&told).unwrap();
        assert_eq!(adds_up(&why), 9);
        let marginal: Vec<Option<Micros>> = why.sources.iter().map(|s| s.one_more_ms).collect();
        assert_eq!(marginal, [202, 235, 202].map(|ms| Some(Micros(ms * 1_000))));
        assert_eq!(why.limits.len(), 1);
        assert_eq!(why.limits[0].saves_ms, Micros(33_000));
    }
    let (well, told) = said(&["explain", "--topology", "/nowhere", "--engine", "B"]);
    assert!(!well && told.contains("read /nowhere"), "{told}");
}

#[test]
fn what_is_asked_for_is_told_alone_and_unknown_names_are_refused() {
    let topology = Topology::parse("t.toml", TALK).unwrap();
    let ground = solve(&topology, &described(&topology)).unwrap();
    let ask = |frontend: &str, class: &str, engine: &str| {
        let some = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        let wanted = Wanted {
            frontend: some(frontend),
            class: some(class),
            engine: some(engine),
        };
        explain(&topology, &ground, &wanted)
    };
    let one = ask("B", "chat", "C").unwrap();
    assert_eq!((one.sources.len(), one.sources[0].choices.len()), (1, 1));
    assert_eq!(one.sources[0].choices[0].engine, "C");
    assert_eq!(one.limits, []);
    for (asked, told) in [
        (("D", "", ""), "no frontend \"D\"; there are A, B, C"),
        (("", "talk", ""), "no class \"talk\"; there are chat"),
        (("", "", "D"), "no engine \"D\"; there are A, B, C"),
    ] {
        assert_eq!(ask(asked.0, asked.1, asked.2).unwrap_err(), told);
    }
}

#[test]
fn small_fleets_add_up() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
    let mut choices = 0;
    for file in [
        "marginal",
        "mix",
        "opportunity",
        "overload",
        "three-regions",
    ] {
        let text = std::fs::read_to_string(data.join(format!("{file}.toml"))).unwrap();
        for method in ["lp", "network"] {
            let topology = set(&text, &[&format!("solver.method={method}")]);
            let why = why(&topology);
            choices += adds_up(&why);
            for source in &why.sources {
                for used in source.choices.iter().filter(|c| c.rate_rps > 1e-3) {
                    let slack = why.tolerance_ms + 0.002;
                    let beyond = used.beyond_ms.unwrap().ms();
                    // A used engine may stand at a kink of its curve: then one more costs more.
                    assert!(
                        beyond <= slack || used.congestion_ms.0 > 0,
                        "{file}: {used:?}"
                    );
                }
            }
        }
    }
    assert_eq!(choices, 2 * (2 + 4 + 4 + 1 + 9));
}

#[test]
fn prices_are_what_the_next_request_and_the_next_capacity_change() {
    const SMALL: f64 = 0.01;
    let seed = 71;
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut checks, mut scarce) = (0, 0);
    for case in 0..32 {
        let method = ["lp", "network"][case % 2];
        // With headroom, load beyond what is safe is charged in steps.
        let headroom = [1.0, 0.85][case / 2 % 2];
        let text = random_fleet(&mut rng, method, headroom);
        let topology = set(&text, &[]);
        let cost = |topology: &Topology| {
            let ground = solve(topology, &described(topology)).unwrap();
            ground.solution.terms.total()
        };
        let (base, explained) = (cost(&topology), why(&topology));
        assert_eq!(explained.tolerance_ms, 0.0);
        adds_up(&explained);
        let mut near = |what: &str, told: f64, found: f64| {
            let what = format!("seed {seed}, case {case}, {method}, {what}: {told}, {found}");
            // Refusing grows dearer in pieces and rounds off; the rest is linear.
            assert!((told - found).abs() <= 0.01 + 1e-4 * found.abs(), "{what}");
            checks += 1;
        };
        // Where requests are refused, more demand also widens the pieces that refusing is priced
        // in, which no price of a single request sees.
        let refused = explained.sources.iter().any(|s| s.shed_rps > 0.0);
        for (d, demand) in topology.demand.iter().enumerate().filter(|_| !refused) {
            let name = &topology.frontends[demand.frontend.0].name;
            let more = demand.rps.value() + SMALL;
            let other = set(&text, &[&format!("demand.{name}.chat={more}")]);
            let found = (cost(&other) - base) / SMALL;
            let told = explained.sources[d].one_more_ms.unwrap().ms();
            near(&format!("demand at {name}"), told, found);
        }
        for limit in &explained.limits {
            assert_eq!(limit.kind, LimitKind::Capacity);
            let name = limit.of.as_ref().unwrap();
            let engine = topology.engines.iter().find(|e| e.name == *name).unwrap();
            let more = engine.capacity.rps.value() + SMALL;
            let other = set(&text, &[&format!("engines.{name}.capacity={more}")]);
            let found = (base - cost(&other)) / SMALL;
            near(&format!("capacity of {name}"), limit.saves_ms.ms(), found);
            scarce += 1;
        }
    }
    println!("{checks} finite differences, {scarce} of capacities");
    assert!(checks > 80 && scarce > 15, "{checks}, {scarce}");
}

#[test]
fn a_bound_on_movement_says_what_one_more_would_save() {
    for method in [Method::Lp, Method::Network] {
        let topology = set(TALK, &["demand.B.chat=30"]);
        let mut ground = solve(&topology, &described(&topology)).unwrap();
        let mut problem = ground.problem.clone();
        problem.method = method;
        // All of B's requests are at C, and only a tenth of them moves in one pass.
        problem.sources[1].previous = Some(vec![0.0, 0.0, 1.0]);
        ground.solution = optimise(&problem).unwrap();
        ground.problem = problem;
        let why = explain(&topology, &ground, &Wanted::default()).unwrap();
        adds_up(&why);
        let source = of(&why, "B", "chat");
        let rates: Vec<i64> = source
            .choices
            .iter()
            .map(|c| c.rate_rps.round() as i64)
            .collect();
        assert_eq!(rates, [27, 3, 0]);
        // C is 35 - 2 ms farther, and moving costs half a millisecond.
        assert_eq!(source.limits.len(), 1);
        assert_eq!(source.limits[0].kind, LimitKind::MaxStep);
        assert_eq!(source.limits[0].saves_ms, Micros(32_500));
        assert_eq!(source.one_more_ms, Some(Micros(234_750)));
        let b = source.choices.iter().find(|c| c.engine == "B").unwrap();
        assert_eq!(b.movement_ms, Micros(1_000_250));
        let words = "it moves as much as max_step allows: one more would save 32.5 ms";
        assert!(
            source.words.contains(&words.to_owned()),
            "{:?}",
            source.words
        );
    }
}

#[test]
fn memory_that_is_short_has_a_price_of_its_own() {
    // 500 tokens of prompt for 0.2 s, and tokens that take no time: 100 token-seconds a request.
    let full = "output_tokens = 100, kv_tokens = 5000 }";
    let text = TALK.replacen("output_tokens = 100 }", full, 2);
    let method = "solver.method=lp";
    let topology = set(&text, &[method, "demand.A.chat=40", "demand.B.chat=95"]);
    let why = why(&topology);
    adds_up(&why);
    let source = of(&why, "B", "chat");
    let rates = source
        .choices
        .iter()
        .map(|c| (c.engine.as_str(), c.rate_rps.round() as i64));
    let rates: Vec<(&str, i64)> = rates.collect();
    // B's memory holds 50 requests/s, C can do 40 beside its own, A has room.
    assert_eq!(
        rates,
        [("B", 50), ("C", 40), ("A", 5)],
        "{method}: {why:#?}"
    );
    assert_eq!(source.choices[0].full, Some(Full::Kv));
    assert_eq!(source.one_more_ms, Some(Micros(260_000)));
    assert_eq!(source.choices[0].capacity_ms, Some(Micros(58_000)));
    // What 1000 tokens hold more, 10 requests/s, saves the way to A: 260 - 202 ms each.
    let limits: Vec<(LimitKind, &str, Micros)> = (why.limits.iter())
        .map(|l| (l.kind, l.of.as_deref().unwrap(), l.saves_ms))
        .collect();
    let expected = [
        (LimitKind::Kv, "B", Micros(580_000)),
        (LimitKind::Capacity, "C", Micros(25_000)),
    ];
    assert_eq!(limits, expected, "{method}");
    let words = "KV memory at B is worth 580 ms/s a 1000 tokens".to_owned();
    assert!(source.words.contains(&words), "{:?}", source.words);
}

#[test]
fn every_rule_that_excludes_an_engine_is_named() {
    let engine = |name: &str, more: &str| {
        format!(
            "[[engines]]\nname = \"{name}\"\nkind = \"k\"\naddress = \"127.0.0.1:1\"\ncapacity = \
             {{ rps = 10 }}\n{more}\n[[rtt]]\nfrontend = \"F\"\nengine = \"{name}\"\nms = 1\n"
        )
    };
    let mut text = "[solver]\ndemand = \"configured\"\n[[frontends]]\nname = \"F\"\n".to_owned();
    text += &engine(
        "good",
        "models = [\"m\", \"m:a\"]\ncapabilities = [\"x\"]\nregion = \"eu\"",
    );
    text += &engine(
        "other",
        "models = [\"n\"]\ncapabilities = [\"x\"]\nregion = \"eu\"",
    );
    text += &engine("bare", "models = [\"m\"]\nregion = \"eu\"");
    text += &engine(
        "far",
        "models = [\"m\"]\ncapabilities = [\"x\"]\nregion = \"us\"",
    );
    text += &engine(
        "unnamed",
        "models = [\"m\"]\ncapabilities = [\"x\"]\nregion = \"eu\"",
    );
    text += "[[routes]]\nname = \"chat\"\nmodel = \"m\"\ncapabilities = [\"x\"]\nregions = \
             [\"eu\"]\nengines = [\"good\", \"other\", \"bare\", \"far\"]\n";
    text += "[[routes]]\nname = \"tuned\"\nmodel = \"m:a\"\nadapter = \"a\"\nprompt_tokens = 600\n";
    let topology = Topology::parse("t.toml", &text).unwrap();
    let why = why(&topology);
    let rules = |class: &str| -> Vec<(String, Rule)> {
        let excluded = &of(&why, "F", class).excluded;
        excluded
            .iter()
            .map(|e| (e.engine.clone(), e.rule))
            .collect()
    };
    let named = |list: &[(&str, Rule)]| -> Vec<(String, Rule)> {
        list.iter()
            .map(|(name, rule)| ((*name).to_owned(), *rule))
            .collect()
    };
    assert_eq!(
        rules("chat"),
        named(&[
            ("other", Rule::Model),
            ("bare", Rule::Capability),
            ("far", Rule::Region),
            ("unnamed", Rule::Engines),
        ])
    );
    let adapter = ["other", "bare", "far", "unnamed"].map(|name| (name, Rule::Adapter));
    assert_eq!(rules("tuned"), named(&adapter));
    let words = &of(&why, "F", "chat").excluded[2].why;
    assert_eq!(
        words,
        "it stands in region \"us\", which the route does not allow"
    );
}

#[test]
fn an_engine_that_cannot_be_spoken_to_or_is_unwell_gets_nothing_and_is_told_by_its_rule() {
    let tls = |name: &str| {
        let lines = format!("name = \"B\"\nregion = \"b\"\nprotocol = \"http1-tls\"\n{name}");
        TALK.replacen("name = \"B\"\nregion = \"b\"\nkind", &(lines + "kind"), 1)
    };
    let rules = |topology: &Topology, engines: &[EngineNow]| -> Vec<(String, Rule, String)> {
        let ground = solve(topology, engines).unwrap();
        assert_eq!(
            ground.solution.shares[1][1] > 0.0,
            ground.problem.sources[1].arcs[1].open
        );
        let why = explain(topology, &ground, &Wanted::default()).unwrap();
        adds_up(&why);
        let excluded = of(&why, "B", "chat").excluded.iter();
        excluded
            .map(|e| (e.engine.clone(), e.rule, e.why.clone()))
            .collect()
    };
    let topology = Topology::parse("t.toml", &tls("server_name = \"gpu..b\"\n")).unwrap();
    let told = rules(&topology, &described(&topology));
    assert_eq!(
        (told.len(), told[0].0.as_str(), told[0].1),
        (1, "B", Rule::Protocol)
    );
    assert_eq!(
        told[0].2,
        "protocol unsupported: it speaks TLS, and its name \"gpu..b\" is neither a DNS name nor an \
         address that proxies could check"
    );
    let warned = topology
        .warnings
        .iter()
        .filter(|w| w.contains("cannot speak TLS to it"));
    assert_eq!(warned.count(), 1, "{:?}", topology.warnings);
    // By its address, or by a name that can be: nothing is wrong.
    for name in ["", "server_name = \"gpu-b.example\"\n"] {
        let topology = Topology::parse("t.toml", &tls(name)).unwrap();
        assert_eq!(rules(&topology, &described(&topology)), []);
        assert!(topology.unspoken.is_empty());
    }
    let topology = Topology::parse("t.toml", TALK).unwrap();
    for (state, ready_share, rule) in [
        (PlannedState::Out, 1.0, Rule::Down),
        (PlannedState::Out, 0.0, Rule::NoReplica),
        (PlannedState::StandbyOnly, 1.0, Rule::StandbyOnly),
        (PlannedState::Draining, 1.0, Rule::Drained),
    ] {
        let mut engines = described(&topology);
        (engines[1].state, engines[1].ready_share) = (state, ready_share);
        let told = rules(&topology, &engines);
        assert_eq!((told.len(), told[0].1), (1, rule));
    }
}

#[test]
fn a_running_solver_explains_itself_and_what_it_recorded() {
    let engines =
        ["B", "C", "D"].map(|name| (name, Engine::start("vllm:num_requests_running 0\n")));
    let mut text = "[solver]\nheadroom = 1\ntick_ms = 100\nscrape_ms = 100\nscrape_timeout_ms = \
                    80\ndemand = \"configured\"\n[[frontends]]\nname = \"F\"\n[[routes]]\nname = \
                    \"chat\"\nmodel = \"m\"\n[[demand]]\nfrontend = \"F\"\nroute = \"chat\"\nrps \
                    = 100\n"
        .to_owned();
    for (at, (name, engine)) in engines.iter().enumerate() {
        text += &format!(
            "[[engines]]\nname = \"{name}\"\nkind = \"k\"\nmodels = [\"m\"]\naddress = \
             \"{}\"\ncapacity = {{ rps = 80 }}\n[[rtt]]\nfrontend = \"F\"\nengine = \
             \"{name}\"\nms = {}\n",
            engine.address,
            2 + 10 * at
        );
    }
    let place = Place::new();
    let solver = Solver::start(&place, &text);
    let run_dir = place.run_dir().display().to_string();
    let state_dir = place.dir.path().join("state").display().to_string();
    let ask = |more: &[&str]| said(&[&["explain", "--json"], more].concat());
    let explained = |(well, told): (bool, String)| -> Explanation {
        assert!(well, "{told}");
        serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error}: {told}"))
    };
    let why = eventually("a plan", || {
        let (well, told) = ask(&["--run-dir", &run_dir]);
        well.then(|| explained((well, told)))
    });
    assert_eq!(adds_up(&why), 3);

    let (well, told) = said(&["drain", "D", "--run-dir", &run_dir]);
    assert!(well, "{told}");
    let drained = eventually("the drain is explained", || {
        let why = explained(ask(&["--run-dir", &run_dir]));
        (why.sources[0].excluded.len() == 1).then_some(why)
    });
    assert_eq!(drained.sources[0].excluded[0].rule, Rule::Drained);
    assert_eq!(drained.sources[0].excluded[0].why, "it is drained");
    let (well, told) = said(&["explain", "--run-dir", &run_dir, "--frontend", "X"]);
    assert_eq!(
        (well, told.contains("no frontend \"X\"; there are F")),
        (false, true),
        "{told}"
    );

    // Losing one of two that are needed would refuse a fifth.
    let status = eventually("every loss was looked at", || {
        let status = solver.status();
        (status["n_minus_1"]["engines"] == 2).then_some(status)
    });
    let ratio = status["n_minus_1"]["shed_ratio"].as_f64().unwrap();
    assert!((ratio - 0.2).abs() < 1e-6, "{ratio}");
    let (_, page) = solver.get("/metrics");
    let mut lines = page.lines();
    let told = lines.find_map(|line| line.strip_prefix("pointsman_solver_n_minus_1_shed_ratio "));
    let told: f64 = told.expect("the metric").parse().unwrap();
    assert!((told - 0.2).abs() < 1e-6, "{told}");

    let (well, told) = said(&["hold", "--run-dir", &run_dir]);
    assert!(well, "{told}");
    let held = eventually("the hold is explained", || {
        let why = explained(ask(&["--run-dir", &run_dir]));
        why.sources[0].fixed_by.is_some().then_some(why)
    });
    adds_up(&held);
    assert!(held.sources[0].words[0].contains("held by an operator or a gate, not chosen"));

    // What was recorded first is what the first tick saw, before anybody drained anything.
    let recorded = eventually("the first tick is on disk", || {
        let (well, told) = ask(&["--tick", "1", "--state-dir", &state_dir]);
        well.then(|| explained((well, told)))
    });
    assert_eq!(recorded.sources[0].excluded, []);
    assert_eq!(adds_up(&recorded), 3);
    let (well, told) = ask(&["--tick", "1000000", "--state-dir", &state_dir]);
    assert!(
        !well && told.contains("tick 1000000 is not in the history"),
        "{told}"
    );

    // The same record serves other rules.
    let log = [
        "plan",
        "--compare",
        "nearest,optimised",
        "--json",
        "--log",
        &state_dir,
    ];
    let report = eventually("some ticks are on disk", || {
        let (well, told) = said(&log);
        assert!(well, "{told}");
        let report: serde_json::Value = serde_json::from_str(&told).unwrap();
        (report["ticks"].as_u64().unwrap() > 3).then_some(report)
    });
    let (near, best) = (&report["rows"][0], &report["rows"][1]);
    assert_eq!(near["worst_utilisation_p99"], 1.25);
    let refused = near["shed_ratio"].as_f64().unwrap();
    assert!((refused - 0.2).abs() < 1e-6, "{refused}");
    assert_eq!(best["shed_ratio"], 0.0);
}

#[test]
fn a_misfit_and_a_penalty_that_gain_nothing_are_told_from_a_bound_of_the_topology() {
    let topology = Topology::parse("talk.toml", TALK).unwrap();
    for (is_own, factor, kind, words) in [
        (
            true,
            1.0,
            LimitKind::Misfit,
            "unlike its profile and gains no share",
        ),
        (
            true,
            0.95,
            LimitKind::Penalty,
            "is penalised and gains no share",
        ),
        (false, 1.0, LimitKind::MaxShare, "has its max_share"),
    ] {
        let mut ground = solve(&topology, &described(&topology)).unwrap();
        // A sends all its requests to its own engine, which is next to it.
        ground.engines[0].planned_factor = factor;
        match is_own {
            true => ground.problem.sources[0].arcs[0].most = Some(0.5),
            false => ground.problem.engines[0].max_share = Some(0.5),
        }
        ground.solution = optimise(&ground.problem).unwrap();
        let why = explain(&topology, &ground, &Wanted::default()).unwrap();
        let limits = why.sources.iter().flat_map(|s| &s.limits);
        let kinds: Vec<LimitKind> = limits.map(|limit| limit.kind).collect();
        assert!(kinds.contains(&kind), "{kinds:?}");
        let said: Vec<&str> = why
            .sources
            .iter()
            .flat_map(|s| &s.words)
            .map(String::as_str)
            .collect();
        let said = said.join("\n");
        assert!(said.contains(words), "{said}");
    }
}
