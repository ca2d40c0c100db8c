//! Many routes in few classes: routes cost a policy their own bytes, and the optimiser nothing.

use std::fmt::Write;

use pointsman_shm::policy::Policy;
use pointsman_solver::model::topology::{ClassId, Topology};
use pointsman_solver::model::units::NonNegative;
use pointsman_solver::tick::{DemandSample, Inputs, TickState, tick};

const CLASSES: usize = 24;
const FRONTENDS: usize = 3;
const ENGINES: usize = 48;

/// A fleet in which every class has `each` routes. The first of each come first: they name the
/// classes.
fn topology(each: usize) -> Topology {
    let mut text = String::from("[solver]\nmethod = \"network\"\n");
    let mut put = |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("a string");
    for f in 0..FRONTENDS {
        put(format_args!(
            "[[frontends]]\nname = \"f{f}\"\nregion = \"r{f}\""
        ));
        for r in 0..FRONTENDS {
            let ms = 2 + 40 * f.abs_diff(r);
            put(format_args!(
                "[[rtt]]\nfrontend = \"f{f}\"\nregion = \"r{r}\"\nms = {ms}"
            ));
        }
    }
    for e in 0..ENGINES {
        let serves = |k: &usize| (e + k).is_multiple_of(4) || e % CLASSES == *k;
        let names = |k: usize| (0..each).map(move |n| format!("\"model-{k:02}-{n:03}\""));
        let models: Vec<String> = (0..CLASSES).filter(serves).flat_map(names).collect();
        put(format_args!(
            "[[engines]]\nname = \"e{e:02}\"\nregion = \"r{}\"\nkind = \"k\"\naddress = \
             \"127.0.0.1:{}\"\ncapacity = {{ rps = {} }}\nmodels = [{}]",
            e % FRONTENDS,
            9_000 + e,
            50 + e % 7 * 10,
            models.join(", ")
        ));
    }
    for n in 0..each {
        for k in 0..CLASSES {
            put(format_args!(
                "[[routes]]\nname = \"chat-{k:02}-{n:03}\"\nmodel = \"model-{k:02}-{n:03}\"\n\
                 prompt_tokens = {}",
                400 + k
            ));
        }
    }
    Topology::parse("routes.toml", &text).expect("good")
}

/// Two passes at the same demand by class: the policies that stand after each.
fn policies(topology: &Topology) -> Vec<Policy> {
    let mut state = TickState::new(topology, 1);
    let mut published = Vec::new();
    for (n, factor) in [(1, 1.0), (2, 1.3)] {
        let mut inputs = Inputs {
            now_ns: n * 60_000_000_000,
            unix_ms: 1_800_000_000_000,
            ..Inputs::default()
        };
        for f in topology.frontend_ids() {
            for k in 0..CLASSES {
                let rps = factor * (10.0 + (7 * k + 3 * f.0) as f64 % 11.0 * 4.0);
                inputs.demand.push(DemandSample {
                    frontend: f,
                    class: ClassId(k),
                    by_priority_rps: vec![NonNegative::new(rps).expect("a rate")],
                    prompt_tokens: None,
                    output_tokens: None,
                    cached_tokens: None,
                });
            }
            for e in topology.engine_ids() {
                let address = topology.address(f, e).expect("one");
                let address = address.parse().expect("an address");
                inputs.addresses.insert((f, e), vec![address]);
            }
        }
        let outcome = tick(topology, &mut state, &inputs);
        assert_eq!(outcome.status.name(), "optimal");
        for candidate in outcome.candidates {
            assert!(candidate.publish.is_some(), "pass {n}");
            state.confirm(candidate.frontend, candidate.policy.clone(), inputs.now_ns);
            published.push(candidate.policy);
        }
    }
    published
}

#[test]
fn three_thousand_six_hundred_routes_cost_their_own_bytes_and_move_nothing() {
    let (few, many) = (topology(1), topology(150));
    assert_eq!((few.routes.len(), few.classes.len()), (24, CLASSES));
    assert_eq!((many.routes.len(), many.classes.len()), (3_600, CLASSES));
    let mut most = 0;
    for (few, many) in policies(&few).iter().zip(policies(&many)) {
        assert_eq!((few.routes.len(), many.routes.len()), (24, 3_600));
        for (a, b) in few.classes.iter().zip(&many.classes) {
            assert_eq!(a.table, b.table, "{}", a.name);
        }
        assert_eq!(few.classes, many.classes);
        assert_eq!(few.engines, many.engines);
        let bytes = many.encode().len() - few.encode().len();
        most = most.max(bytes.div_ceil(3_600 - 24));
    }
    println!("{most} bytes a route");
    assert!(most <= 128, "{most} bytes a route");
}
