//! What the model's terms come to, to the number: the price of movement, standby weights, and the
//! network once it is measured.

use std::fmt::Write;

use pointsman_shm::id::EngineSlot;
use pointsman_solver::model::problem::{DemandNow, EngineNow, Now, Problem};
use pointsman_solver::model::topology::{ClassId, EngineId, FrontendId, Method, Topology};
use pointsman_solver::model::units::NonNegative;
use pointsman_solver::tick::{DemandSample, Inputs, Sent, TickState, tick};

use super::fleet::{arc, engine, flat, problem, settle, solved, source};

/// Two engines that take 200 and 400 ms for a prompt, of which `follow_ups` are of a conversation.
fn movement_ms(follow_ups: f64) -> f64 {
    let mut text = format!(
        "[solver]\nfollow_up_share = {follow_ups}\nturn_gap_s = 60\nhorizon_s = 1800\n\
         [[frontends]]\nname = \"A\"\n[[routes]]\nname = \"r\"\nmodel = \"m\"\nprompt_tokens = \
         2000\noutput_tokens = 100\n"
    );
    for (e, prefill_tps) in [(1, 10_000), (2, 5_000)] {
        text += &format!(
            "[[engines]]\nname = \"e{e}\"\nkind = \"k\"\nmodels = [\"m\"]\naddress = \
             \"127.0.0.1:{e}\"\ncapacity = {{ prefill_tps = {prefill_tps}, decode_tps = 1000 }}\n\
             [[rtt]]\nfrontend = \"A\"\nengine = \"e{e}\"\nms = 1\n"
        );
    }
    let topology = Topology::parse("mu.toml", &text).expect("good");
    let demand = DemandNow {
        by_priority_rps: vec![1.0],
        mix: topology.classes[0].mix,
    };
    let now = Now {
        demand: &[demand],
        engines: &[EngineNow::described(1), EngineNow::described(1)],
        previous: &[None],
        reachable: &[true, true],
        hold_observed: true,
    };
    Problem::new(&topology, &now).sources[0].movement_ms
}

#[test]
fn movement_costs_what_a_conversation_loses_over_the_time_a_plan_stands() {
    // 300 ms for one in two, once a minute of thirty: 300 x 0.5 / 30.
    assert!((movement_ms(0.5) - 5.0).abs() < 1e-12);
    assert!((movement_ms(1.0) - 10.0).abs() < 1e-12);
    // Never less than what keeps near-equal engines from changing places.
    assert_eq!(movement_ms(0.01), 0.5);
    assert_eq!(movement_ms(0.0), 0.5);
}

#[test]
fn growth_is_no_movement_and_a_moved_request_counts_once() {
    let arcs = vec![arc(0, 1.0, 0.01), arc(1, 60.0, 0.01)];
    let mut grown = problem(
        vec![flat()],
        vec![engine(1.0), engine(1.0)],
        vec![source(0, 0, [30.0, 0.0], arcs)],
    );
    grown.sources[0].previous = Some(vec![1.0, 0.0]);
    grown.sources[0].demand_rps = vec![60.0, 0.0];
    settle(&mut grown);
    for method in [Method::Network, Method::Lp] {
        assert_eq!(solved(&grown, method, "growth").terms.movement, 0.0);
    }
    // A tenth of 60 requests/s comes home at 0.5 ms each.
    grown.sources[0].previous = Some(vec![0.0, 1.0]);
    for method in [Method::Network, Method::Lp] {
        let moved = solved(&grown, method, "home").terms.movement;
        assert!((moved - 3.0).abs() < 1e-6, "{moved}");
    }
}

#[test]
fn standby_weights_are_spare_requests_by_nearness_at_sixteen_engines_at_most() {
    let mut text = String::from(
        "[solver]\nheadroom = 0.85\n[[frontends]]\nname = \"A\"\n[[routes]]\nname = \"r\"\nmodel = \
         \"m\"\n[[profiles]]\nkind = \"k\"\npoints = [{ utilisation = 0.0, ttft_ms = 200, tbot_ms = \
         0 }]\n",
    );
    for e in 0..20 {
        write!(
            text,
            "[[engines]]\nname = \"e{e:02}\"\nkind = \"k\"\nmodels = [\"m\"]\naddress = \
             \"127.0.0.1:{}\"\ncapacity = {{ rps = 100 }}\n[[rtt]]\nfrontend = \"A\"\nengine = \
             \"e{e:02}\"\nms = {}\n",
            9_000 + e,
            1 + 10 * e
        )
        .expect("a string takes any text");
    }
    let topology = Topology::parse("standby.toml", &text).expect("good");
    let mut inputs = Inputs {
        now_ns: 1_000_000_000,
        unix_ms: 1_800_000_000_000,
        ..Inputs::default()
    };
    inputs.demand.push(DemandSample {
        frontend: FrontendId(0),
        class: ClassId(0),
        by_priority_rps: vec![NonNegative::new(20.0).expect("a rate")],
        prompt_tokens: None,
        output_tokens: None,
        cached_tokens: None,
    });
    for e in topology.engine_ids() {
        let address = topology.address(FrontendId(0), e).expect("one");
        let address = address.parse().expect("an address");
        inputs.addresses.insert((FrontendId(0), e), vec![address]);
    }
    let outcome = tick(&topology, &mut TickState::new(&topology, 1), &inputs);
    let standby = &outcome.candidates[0].policy.classes[0].standby;
    // All 20 requests/s are at the nearest: it has 65 to spare, the others 85; 201 ms and on.
    let weight = |e: u16| {
        let spare = if e == 0 { 65.0 } else { 85.0 };
        spare * (201.0 / (201.0 + 10.0 * f64::from(e))).powi(2)
    };
    let mut expected: Vec<(EngineSlot, f64)> =
        (0..20).map(|e| (EngineSlot(e), weight(e))).collect();
    expected.sort_by(|a, b| b.1.total_cmp(&a.1));
    expected.truncate(16);
    assert_eq!(standby.len(), 16);
    for (got, (slot, weight)) in standby.iter().zip(expected) {
        assert_eq!(got.engine, slot);
        assert!((got.weight - weight).abs() < 1e-6, "{got:?}, not {weight}");
    }
}

#[test]
fn measured_connections_and_uploads_take_the_place_of_estimates() {
    // 120,000 bytes: three rounds beyond the first.
    let mut text = String::from(
        "[solver]\nbytes_per_token = 4\nhandshake_share = 0.5\n[[frontends]]\nname = \"A\"\n\
         [[routes]]\nname = \"r\"\nmodel = \"m\"\nprompt_tokens = 30000\noutput_tokens = 100\n",
    );
    for (e, ms) in [(1, 10), (2, 40)] {
        text += &format!(
            "[[engines]]\nname = \"e{e}\"\nkind = \"k\"\nmodels = [\"m\"]\naddress = \
             \"127.0.0.1:{e}\"\ncapacity = {{ rps = 100, prompt_tokens = 30000, output_tokens = 100 \
             }}\n[[rtt]]\nfrontend = \"A\"\nengine = \"e{e}\"\nms = {ms}\n"
        );
    }
    let topology = Topology::parse("ways.toml", &text).expect("good");
    let mut state = TickState::new(&topology, 1);
    let mut pass = |second: u64, measured: bool| -> Vec<f64> {
        let mut inputs = Inputs {
            now_ns: second * 1_000_000_000,
            unix_ms: 1_800_000_000_000,
            ..Inputs::default()
        };
        inputs.demand.push(DemandSample {
            frontend: FrontendId(0),
            class: ClassId(0),
            by_priority_rps: vec![NonNegative::new(20.0).expect("a rate")],
            prompt_tokens: None,
            output_tokens: None,
            cached_tokens: None,
        });
        for e in topology.engine_ids() {
            let address = topology.address(FrontendId(0), e).expect("one");
            let address = address.parse().expect("an address");
            inputs.addresses.insert((FrontendId(0), e), vec![address]);
        }
        // Of forty requests at each engine eight open a connection, for 25 and 90 ms; sending takes
        // 5 and 100 ms.
        for (e, connect_us, upload_us) in [(0, 25_000, 5_000), (1, 90_000, 100_000)] {
            let sent = Sent {
                attempts: 40,
                opened: (8, 8 * connect_us),
                uploads: (40, 40 * upload_us),
            };
            if measured {
                let key = (FrontendId(0), EngineId(e));
                inputs.witness.sent.insert(key, sent);
            }
        }
        let outcome = tick(&topology, &mut state, &inputs);
        for candidate in outcome.candidates {
            state.confirm(candidate.frontend, candidate.policy, inputs.now_ns);
        }
        let plan = outcome.plan.expect("a plan");
        plan.sources[0].arcs.iter().map(|a| a.network_ms).collect()
    };
    let near = |got: &[f64], expected: [f64; 2]| {
        let close = |(a, b): (&f64, f64)| (a - b).abs() < 1e-9;
        assert!(
            got.iter().zip(expected).all(close),
            "{got:?}, not {expected:?}"
        );
    };
    // Four rounds and half a handshake.
    for second in (0..96).step_by(2) {
        near(&pass(second, true), [45.0, 180.0]);
    }
    // A minute and a half is enough: a round trip, what sending took (of the near one a socket hides
    // one round), and a fifth of a connection.
    near(&pass(96, true), [10.0 + 10.0 + 5.0, 40.0 + 100.0 + 18.0]);
    // What is no longer measured is forgotten.
    near(&pass(400, false), [45.0, 180.0]);
}
