//! Two headrooms do not add up to refusing good traffic: a forecast that runs ahead of demand, and
//! safe capacity that runs behind hard capacity.

use pointsman_solver::model::topology::{ClassId, EngineId, FrontendId, Topology};
use pointsman_solver::model::units::NonNegative;
use pointsman_solver::tick::{DemandSample, Inputs, TickOutcome, TickState, tick};

/// Requests per second of both engines together.
const CAPACITY_RPS: f64 = 200.0;

fn topology(method: &str) -> Topology {
    let mut text = format!(
        "[solver]\nmethod = \"{method}\"\nheadroom = 0.85\n[[frontends]]\nname = \"A\"\n[[routes]]\n\
         name = \"chat\"\nmodel = \"m\"\n"
    );
    for (e, ms) in [(1, 2), (2, 60)] {
        text += &format!(
            "[[engines]]\nname = \"e{e}\"\nkind = \"k\"\nmodels = [\"m\"]\naddress = \
             \"127.0.0.1:{e}\"\ncapacity = {{ rps = {} }}\n[[rtt]]\nfrontend = \"A\"\nengine = \
             \"e{e}\"\nms = {ms}\n",
            CAPACITY_RPS / 2.0
        );
    }
    Topology::parse("headroom.toml", &text).expect("good")
}

/// The first pass at a demand.
fn pass(method: &str, rps: f64) -> TickOutcome {
    let topology = topology(method);
    let mut inputs = Inputs {
        now_ns: 1_000_000_000,
        unix_ms: 1_800_000_000_000,
        ..Inputs::default()
    };
    inputs.demand.push(DemandSample {
        frontend: FrontendId(0),
        class: ClassId(0),
        by_priority_rps: vec![NonNegative::new(rps).expect("a rate")],
        prompt_tokens: None,
        output_tokens: None,
        cached_tokens: None,
    });
    for e in topology.engine_ids() {
        let address = topology.address(FrontendId(0), e).expect("one");
        let address = address.parse().expect("an address");
        inputs
            .addresses
            .insert((FrontendId(0), EngineId(e.0)), vec![address]);
    }
    tick(&topology, &mut TickState::new(&topology, 1), &inputs)
}

#[test]
fn a_forecast_ahead_of_demand_sheds_nothing_below_hard_capacity() {
    for method in ["network", "lp"] {
        // 0.84 of capacity, forecast 15 % higher, against safe capacity: 0.966 over 0.85.
        let outcome = pass(method, 0.84 * CAPACITY_RPS * 1.15);
        let plan = outcome.plan.as_ref().expect("a plan");
        assert_eq!(plan.terms.shed, 0.0, "{method}");
        let class = &outcome.candidates[0].policy.classes[0];
        assert_eq!(class.admitted_rps, [f64::INFINITY], "{method}");
        for engine in &plan.engines {
            let load = engine.utilisation;
            assert!(load > 0.85 && load <= 1.0 + 1e-9, "{method}: {load}");
        }
        // Only beyond hard capacity something is refused, and just as much as is too much.
        let over = pass(method, 1.05 * CAPACITY_RPS);
        let admitted = over.candidates[0].policy.classes[0].admitted_rps[0];
        assert!(
            (admitted - CAPACITY_RPS).abs() < 1e-6,
            "{method}: {admitted}"
        );
    }
}
