//! Passes of the solver over measurements that change, without clocks or I/O.

use pointsman_shm::id::EngineSlot;
use pointsman_shm::policy::{PlannedState, Policy};
use pointsman_solver::model::explain::Ground;
use pointsman_solver::model::topology::{ClassId, EngineId, FrontendId, Topology};
use pointsman_solver::model::units::{NonNegative, Share};
use pointsman_solver::tick::{
    Candidate, DemandSample, EngineSample, Health, Inputs, Reason, TickOutcome, TickState, tick,
};

const SECOND: u64 = 1_000_000_000;

/// The three regions, with what a test wants changed.
fn topology(change: impl Fn(String) -> String) -> Topology {
    let text = include_str!("../../tests/data/three-regions.toml").to_owned();
    Topology::parse("three-regions.toml", &change(text)).expect("good")
}

fn inputs(topology: &Topology, now_s: u64, demand: [f64; 3]) -> Inputs {
    let mut inputs = Inputs {
        now_ns: now_s * SECOND,
        unix_ms: 1_800_000_000_000,
        ..Inputs::default()
    };
    for (f, rps) in demand.into_iter().enumerate() {
        inputs.demand.push(DemandSample {
            frontend: FrontendId(f),
            class: ClassId(0),
            by_priority_rps: vec![NonNegative::new(rps).expect("a rate")],
            prompt_tokens: None,
            output_tokens: None,
            cached_tokens: None,
        });
    }
    for f in topology.frontend_ids() {
        for e in topology.engine_ids() {
            let address = topology
                .address(f, e)
                .expect("one")
                .parse()
                .expect("an address");
            inputs.addresses.insert((f, e), vec![address]);
        }
    }
    inputs
}

fn health(inputs: &mut Inputs, engine: usize, health: Health) {
    inputs.engines.push(EngineSample {
        health,
        ..EngineSample::unknown(EngineId(engine))
    });
}

/// One pass whose publications all succeed.
fn pass(topology: &Topology, state: &mut TickState, inputs: &Inputs) -> Vec<Option<Reason>> {
    let outcome = tick(topology, state, inputs);
    assert_eq!(outcome.status.name(), "optimal");
    publish(state, &outcome, inputs.now_ns)
}

fn publish(state: &mut TickState, outcome: &TickOutcome, now_ns: u64) -> Vec<Option<Reason>> {
    let one = |candidate: &Candidate| {
        candidate
            .policy
            .validate()
            .expect("a policy that proxies take");
        if candidate.publish.is_some() {
            state.confirm(candidate.frontend, candidate.policy.clone(), now_ns);
        }
        candidate.publish
    };
    outcome.candidates.iter().map(one).collect()
}

fn standing(state: &TickState, frontend: usize) -> &Policy {
    state.standing(FrontendId(frontend)).expect("published")
}

fn weights(policy: &Policy) -> Vec<f64> {
    policy.classes[0]
        .eligible
        .iter()
        .map(|e| e.weight)
        .collect()
}

fn slots(policy: &Policy, engine: u16) -> usize {
    policy.classes[0]
        .table
        .iter()
        .filter(|e| **e == EngineSlot(engine))
        .count()
}

#[test]
fn the_first_pass_publishes_everything_and_the_second_nothing() {
    let topology = topology(|t| t);
    let mut state = TickState::new(&topology, 7);
    let demand = [90.0, 120.0, 40.0];
    let reasons = pass(&topology, &mut state, &inputs(&topology, 1, demand));
    assert_eq!(reasons, [Some(Reason::First); 3]);
    let policy = standing(&state, 1);
    assert_eq!(
        (policy.version, policy.epoch, policy.frontend.as_str()),
        (1, 7, "B")
    );
    let expected = [0.0, 100.0 / 120.0, 20.0 / 120.0];
    for (got, expected) in weights(policy).iter().zip(expected) {
        assert!((got - expected).abs() < 1e-9);
    }
    // 4,096 x 5/6 = 3,413.33
    assert_eq!(
        [slots(policy, 0), slots(policy, 1), slots(policy, 2)],
        [0, 3_413, 683]
    );
    assert!(
        policy.classes[0]
            .admitted_rps
            .iter()
            .all(|r| r.is_infinite())
    );

    assert_eq!(
        pass(&topology, &mut state, &inputs(&topology, 3, demand)),
        [None; 3]
    );
    assert_eq!(
        pass(&topology, &mut state, &inputs(&topology, 60, demand)),
        [None; 3]
    );
    let aged = pass(&topology, &mut state, &inputs(&topology, 61, demand));
    assert_eq!(aged, [Some(Reason::Age); 3]);
    assert_eq!(standing(&state, 1).version, 2);
}

#[test]
fn what_is_not_confirmed_is_decided_again() {
    let topology = topology(|t| t);
    let mut state = TickState::new(&topology, 1);
    let inputs = inputs(&topology, 1, [90.0, 120.0, 40.0]);
    for _ in 0..2 {
        let outcome = tick(&topology, &mut state, &inputs);
        let (reason, version) = (
            outcome.candidates[0].publish,
            outcome.candidates[0].policy.version,
        );
        assert_eq!((reason, version), (Some(Reason::First), 1));
    }
}

#[test]
fn more_demand_moves_as_much_as_a_step_allows_each_pass() {
    let topology = topology(|t| t);
    let mut state = TickState::new(&topology, 1);
    pass(
        &topology,
        &mut state,
        &inputs(&topology, 1, [90.0, 120.0, 40.0]),
    );
    let before = standing(&state, 1).classes[0].table.clone();
    let more = [90.0, 140.0, 40.0];
    // 20 of 120 become 40 of 140, a move of 0.119; the overload of B's engine forces all of it.
    let reasons = pass(&topology, &mut state, &inputs(&topology, 3, more));
    assert_eq!(reasons[1], Some(Reason::Feasibility));
    let weight = weights(standing(&state, 1))[2];
    assert!((weight - 40.0 / 140.0).abs() < 1e-6, "{weight}");
    // Exactly the slots that the weights demand have moved: 683 became 1,170.
    let after = &standing(&state, 1).classes[0].table;
    let moved = before.iter().zip(after).filter(|(a, b)| a != b).count();
    assert_eq!(moved, 1_170 - 683);

    // Less demand again: nothing forces a move, so it takes steps of a tenth.
    let less = [45.0, 70.0, 20.0];
    let mut seen = vec![];
    for i in 0..4 {
        pass(&topology, &mut state, &inputs(&topology, 5 + 2 * i, less));
        seen.push(weights(standing(&state, 1))[2]);
    }
    let start = 40.0 / 140.0;
    for (got, expected) in seen.iter().zip([start - 0.1, start - 0.2, 0.0, 0.0]) {
        assert!((got - expected).abs() < 1e-6, "{seen:?}");
    }
}

#[test]
fn a_frontend_without_a_policy_does_not_hold_the_others() {
    let topology = topology(|t| t);
    let mut state = TickState::new(&topology, 1);
    // What is published for A never arrives.
    let mut pass = |now_s: u64, demand: [f64; 3]| {
        let given = inputs(&topology, now_s, demand);
        let mut outcome = tick(&topology, &mut state, &given);
        assert_eq!(outcome.candidates[0].publish, Some(Reason::First));
        outcome.candidates[0].publish = None;
        publish(&mut state, &outcome, given.now_ns);
        weights(standing(&state, 1))[2]
    };
    let far = pass(1, [90.0, 140.0, 40.0]);
    assert!((far - 40.0 / 140.0).abs() < 1e-6, "{far}");
    // All of B fits near it again, which is worth going there by steps of a tenth.
    let less = [45.0, 70.0, 20.0];
    let seen = [3, 5, 7].map(|now_s| pass(now_s, less));
    for (got, expected) in seen.iter().zip([far - 0.1, far - 0.2, 0.0]) {
        assert!((got - expected).abs() < 1e-6, "{seen:?}");
    }
}

#[test]
fn a_dead_engine_leaves_at_once_and_returns_to_its_slots() {
    let topology = topology(|t| t);
    let mut state = TickState::new(&topology, 1);
    let demand = [45.0, 60.0, 40.0];
    pass(&topology, &mut state, &inputs(&topology, 1, demand));
    let before = standing(&state, 2).clone();
    assert_eq!(slots(&before, 2), 4_096);

    let mut dead = inputs(&topology, 3, demand);
    health(&mut dead, 2, Health::Down);
    let reasons = pass(&topology, &mut state, &dead);
    assert_eq!(reasons, [Some(Reason::EnginesChanged); 3]);
    let policy = standing(&state, 2);
    assert_eq!(policy.engines[2].state, PlannedState::Out);
    assert_eq!(policy.engines[2].allowance, 0);
    assert_eq!((slots(policy, 1), slots(policy, 2)), (4_096, 0));
    assert!(
        policy.classes[0]
            .standby
            .iter()
            .all(|s| s.engine != EngineSlot(2))
    );
    assert_eq!(
        policy.classes[0].eligible.len(),
        3,
        "dead is not the same as not allowed"
    );

    for i in 0..12 {
        let mut alive = inputs(&topology, 5 + i, demand);
        health(&mut alive, 2, Health::Up);
        pass(&topology, &mut state, &alive);
    }
    assert_eq!(slots(standing(&state, 2), 2), 4_096);
    assert!(standing(&state, 2).classes[0].table == before.classes[0].table);
}

#[test]
fn where_everything_looks_dead_we_are_blind() {
    let topology = topology(|t| t);
    let mut state = TickState::new(&topology, 1);
    let demand = [90.0, 120.0, 40.0];
    pass(&topology, &mut state, &inputs(&topology, 1, demand));
    let mut dead = inputs(&topology, 3, demand);
    (0..3).for_each(|e| health(&mut dead, e, Health::Down));
    let outcome = tick(&topology, &mut state, &dead);
    assert_eq!(
        outcome
            .candidates
            .iter()
            .map(|c| c.publish)
            .collect::<Vec<_>>(),
        [None; 3]
    );
    assert_eq!(
        outcome.notes,
        ["every engine of class \"chat\" looks dead: they are planned as if they were well"]
    );
}

#[test]
fn a_restart_moves_nothing() {
    let topology = topology(|t| t);
    let mut state = TickState::new(&topology, 1);
    pass(
        &topology,
        &mut state,
        &inputs(&topology, 1, [90.0, 120.0, 40.0]),
    );
    let mut policies: Vec<Policy> = (0..3).map(|f| standing(&state, f).clone()).collect();
    policies.reverse();
    let mut state = TickState::restore(&topology, 1, policies, 100 * SECOND, 1_800_000_000_000);
    let again = inputs(&topology, 101, [90.0, 120.0, 40.0]);
    let outcome = tick(&topology, &mut state, &again);
    for candidate in &outcome.candidates {
        let before = state.standing(candidate.frontend).expect("restored");
        assert_eq!(candidate.publish, None);
        assert_eq!(candidate.policy.version, before.version + 1);
        assert_eq!(candidate.policy.engines, before.engines);
        assert!(candidate.policy.classes[0].table == before.classes[0].table);
    }
}

#[test]
fn versions_rise_above_what_could_not_be_read() {
    let topology = topology(|t| t);
    let mut state = TickState::new(&topology, 1);
    state.raise_version(FrontendId(1), 41);
    pass(
        &topology,
        &mut state,
        &inputs(&topology, 1, [90.0, 120.0, 40.0]),
    );
    let versions: Vec<u64> = (0..3).map(|f| standing(&state, f).version).collect();
    assert_eq!(versions, [1, 42, 1]);
}

#[test]
fn overload_is_no_failure_and_its_end_is_published() {
    let topology = topology(|t| t);
    let mut state = TickState::new(&topology, 1);
    pass(
        &topology,
        &mut state,
        &inputs(&topology, 1, [100.0, 150.0, 80.0]),
    );
    let admitted: f64 = (0..3)
        .map(|f| standing(&state, f).classes[0].clone())
        .map(|class| class.admitted_rps[0].min(class.demand_rps))
        .sum();
    assert!((admitted - 280.0).abs() < 1e-6, "{admitted}");
    let reasons = pass(
        &topology,
        &mut state,
        &inputs(&topology, 3, [90.0, 120.0, 40.0]),
    );
    assert!(reasons.contains(&Some(Reason::Feasibility)), "{reasons:?}");
    for f in 0..3 {
        assert!(standing(&state, f).classes[0].admitted_rps[0].is_infinite());
    }
}

#[test]
fn an_engine_without_an_address_is_left_out_and_said_so() {
    let topology = topology(|t| t);
    let mut state = TickState::new(&topology, 1);
    let mut inputs = inputs(&topology, 1, [90.0, 120.0, 40.0]);
    inputs.addresses.remove(&(FrontendId(1), EngineId(2)));
    let outcome = tick(&topology, &mut state, &inputs);
    assert_eq!(
        outcome.notes,
        ["engine \"C\" has no address seen from frontend \"B\": left out there"]
    );
    publish(&mut state, &outcome, SECOND);
    let names: Vec<&str> = standing(&state, 1)
        .engines
        .iter()
        .map(|e| e.id.as_str())
        .collect();
    assert_eq!(names, ["A", "B"]);
    // Once known, an address that no longer resolves stays.
    inputs.addresses.clear();
    inputs.now_ns = 3 * SECOND;
    let outcome = tick(&topology, &mut state, &inputs);
    assert_eq!(outcome.candidates[0].policy.engines.len(), 3);
}

fn observe(mut text: String) -> String {
    text = text.replace("mode = \"control\"", "mode = \"observe\"");
    for (frontend, weights) in [
        ("A", "A = 1"),
        ("B", "A = 0.1, B = 0.2, C = 0.7"),
        ("C", "C = 1.0"),
    ] {
        text += &format!(
            "\n[[weights]]\nfrontend = \"{frontend}\"\nroute = \"chat\"\nweights = {{ {weights} }}\n"
        );
    }
    text
}

#[test]
fn observe_publishes_the_operators_weights_bit_by_bit() {
    let topology = topology(observe);
    let mut state = TickState::new(&topology, 1);
    let inputs = inputs(&topology, 1, [90.0, 120.0, 40.0]);
    let outcome = tick(&topology, &mut state, &inputs);
    publish(&mut state, &outcome, SECOND);
    let bits: Vec<u64> = weights(standing(&state, 1))
        .iter()
        .map(|w| w.to_bits())
        .collect();
    assert_eq!(
        bits,
        [0.1_f64.to_bits(), 0.2_f64.to_bits(), 0.7_f64.to_bits()]
    );
    // 409.6, 819.2 and 2,867.2 slots.
    let policy = standing(&state, 1);
    assert_eq!(
        [slots(policy, 0), slots(policy, 1), slots(policy, 2)],
        [410, 819, 2_867]
    );
    // B's 84 and C's 40 are more than C's 80, and still nobody is refused by plan.
    assert!(policy.classes[0].admitted_rps[0].is_infinite());
    // What the solver would do is beside it.
    let advice = outcome.advice.expect("advice");
    assert!((advice.terms.total() - 51_160.0).abs() < 1e-6);
    assert!((advice.sources[1].arcs[2].rate_rps - 20.0).abs() < 1e-6);
}

#[test]
fn standby_lists_and_allowances_leave_room_for_a_lost_engine() {
    let topology = topology(|t| t);
    let mut state = TickState::new(&topology, 1);
    pass(
        &topology,
        &mut state,
        &inputs(&topology, 1, [45.0, 70.0, 20.0]),
    );
    let policy = standing(&state, 2);
    let standby: Vec<u16> = policy.classes[0]
        .standby
        .iter()
        .map(|s| s.engine.0)
        .collect();
    assert_eq!(standby.len(), 3);
    assert!(policy.classes[0].standby.iter().all(|s| s.weight > 0.0));
    // C's 20 req/s of 235 ms keep 4.7 in flight at B, should C's engine die.
    for engine in &policy.engines {
        assert!(
            engine.allowance >= 10,
            "{}: {}",
            engine.id,
            engine.allowance
        );
    }
}

#[test]
fn what_a_lost_engine_served_fits_into_the_allowances_of_the_others() {
    // So large that allowances are rates and not chance: each frontend has an engine of its own.
    let large = |text: String| text.replace("rps = 100,", "rps = 9000,");
    let topology = topology(|text| large(text.replace("rps = 80,", "rps = 9000,")));
    let mut state = TickState::new(&topology, 1);
    let demand = [0.65, 0.6, 0.55].map(|full| full * 9_000.0);
    pass(&topology, &mut state, &inputs(&topology, 1, demand));
    for (frontend, own_rps) in demand.into_iter().enumerate() {
        let policy = standing(&state, frontend);
        let mut others_rps = 0.0;
        for (weight, engine) in weights(policy).into_iter().zip(&policy.engines) {
            if weight == 0.0 {
                // All engines answer in 200 ms at any load.
                others_rps += f64::from(engine.allowance) / (engine.network_ms + 200.0) * 1e3;
            }
        }
        assert!(
            others_rps >= own_rps,
            "frontend {frontend}: {others_rps} of {own_rps} req/s"
        );
    }
}

#[test]
fn a_penalty_lowers_a_capacity_and_is_named() {
    let topology = topology(|t| t);
    let mut state = TickState::new(&topology, 1);
    let mut inputs = inputs(&topology, 1, [90.0, 60.0, 40.0]);
    let penalty = Share::new(0.5).expect("a share");
    inputs.engines.push(EngineSample {
        penalty,
        ..EngineSample::unknown(EngineId(1))
    });
    let outcome = tick(&topology, &mut state, &inputs);
    let plan = outcome.plan.expect("a plan");
    assert_eq!(plan.engines[1].planned_factor, 0.5);
    assert!((plan.engines[1].capacity_rps - 50.0).abs() < 1e-9);
    assert!((plan.engines[1].load_rps - 50.0).abs() < 1e-6);
    assert_eq!(outcome.candidates[0].policy.engines[1].planned_factor, 0.5);
}

#[test]
fn e22_weights_settle_and_a_small_near_engine_is_held_below_its_knee() {
    // Two alike engines for 120 % of one; a demand that wavers by 5 %.
    let text = |near: f64, far: f64, far_ms: f64| {
        format!(
            "[[frontends]]\nname = \"A\"\n[[engines]]\nname = \"near\"\nkind = \"k\"\nmodels = \
             [\"m\"]\naddress = \"127.0.0.1:1\"\ncapacity = {{ rps = {near} }}\n[[engines]]\nname \
             = \"far\"\nkind = \"k\"\nmodels = [\"m\"]\naddress = \"127.0.0.1:2\"\ncapacity = {{ \
             rps = {far} }}\n[[rtt]]\nfrontend = \"A\"\nengine = \"near\"\nms = 1\n[[rtt]]\n\
             frontend = \"A\"\nengine = \"far\"\nms = {far_ms}\n[[routes]]\nname = \"chat\"\nmodel \
             = \"m\"\n"
        )
    };
    for (near, far, far_ms, demand) in [(10.0, 10.0, 1.0, 12.0), (1.0, 10.0, 40.0, 5.0)] {
        let topology = Topology::parse("t.toml", &text(near, far, far_ms)).expect("good");
        let mut state = TickState::new(&topology, 1);
        let mut late = vec![];
        for cycle in 0..100_u64 {
            let waver = 1.0 + 0.05 * f64::from(u8::try_from(cycle % 3).expect("small")) - 0.05;
            let mut now = inputs(&topology, 1 + 5 * cycle, [demand * waver, 0.0, 0.0]);
            now.demand.truncate(1);
            let outcome = tick(&topology, &mut state, &now);
            let load = outcome.plan.as_ref().expect("a plan").engines[0].utilisation;
            publish(&mut state, &outcome, now.now_ns);
            let weight = weights(standing(&state, 0))[0];
            if let Some(before) = late.last()
                && cycle > 0
            {
                let step: f64 = weight - before;
                assert!(step.abs() <= 0.1 + 1e-6, "cycle {cycle}: {step}");
            }
            assert!(load <= 0.85 + 1e-6, "cycle {cycle}: near engine at {load}");
            late.push(weight);
        }
        let late = &late[20..];
        let mean = late.iter().sum::<f64>() / late.len() as f64;
        let variance = late.iter().map(|w| (w - mean).powi(2)).sum::<f64>() / late.len() as f64;
        assert!(
            variance.sqrt() < 0.1,
            "standard deviation {}",
            variance.sqrt()
        );
    }
}

#[test]
fn cached_tokens_are_no_work_where_the_mix_is_measured() {
    let measured = |t: String| t.replacen("[solver]\n", "[solver]\ntoken_mix = \"measured\"\n", 1);
    let topology = topology(measured);
    let demand = [90.0, 120.0, 40.0];
    let tokens = |inputs: &mut Inputs, cached: f64| {
        for sample in &mut inputs.demand {
            sample.prompt_tokens = NonNegative::new(500.0);
            sample.output_tokens = NonNegative::new(100.0);
            sample.cached_tokens = NonNegative::new(cached);
        }
    };
    let plan = |cached: f64| {
        let mut inputs = inputs(&topology, 1, demand);
        tokens(&mut inputs, cached);
        let mut state = TickState::new(&topology, 7);
        tick(&topology, &mut state, &inputs).ground.expect("a plan")
    };
    let near = |got: f64, expected: f64| assert!((got - expected).abs() < 1e-9, "{got}");
    // An output token is worth ten of the prompt: 150 of these are 10 ms of an engine.
    let (cold, warm, all) = (plan(0.0), plan(400.0), plan(500.0));
    let way = |ground: &Ground| ground.problem.sources[1].arcs[1];
    near(way(&cold).seconds, 0.01);
    near(way(&warm).seconds, 0.01 * 110.0 / 150.0);
    // The last token of a prompt is computed even where all of it is cached.
    near(way(&all).seconds, 0.01 * 100.1 / 150.0);
    // B has room for 136 such requests instead of 100, and for all of its 120 then.
    near(cold.solution.shares[1][1], 100.0 / 120.0);
    near(warm.solution.shares[1][1], 1.0);
    near(warm.solution.utilisation[1], 1.2 * 110.0 / 150.0);
    // They travel and hold memory like any other, and a move loses them.
    let rest = |ground: &Ground| (way(ground).network_ms, way(ground).kv_token_s);
    assert_eq!(rest(&cold), rest(&warm));
    assert_eq!(
        cold.problem.sources[1].movement_ms,
        warm.problem.sources[1].movement_ms
    );
    // With the described mix nothing that is measured of tokens counts.
    let topology = self::topology(|t| t);
    let mut inputs = inputs(&topology, 1, demand);
    tokens(&mut inputs, 400.0);
    let mut state = TickState::new(&topology, 7);
    let described = tick(&topology, &mut state, &inputs);
    near(
        described.ground.expect("a plan").problem.sources[1].arcs[1].seconds,
        0.01,
    );
}

#[test]
fn cached_tokens_are_read_by_the_answer_where_a_context_costs() {
    let reading = |t: String| {
        t.replacen("[solver]\n", "[solver]\ntoken_mix = \"measured\"\n", 1)
            .replace(
                "output_tokens = 100 }",
                "output_tokens = 100, context_tokens = 550 }",
            )
    };
    let topology = topology(reading);
    let seconds = |prompt: f64, cached: f64| {
        let mut inputs = inputs(&topology, 1, [90.0, 120.0, 40.0]);
        for sample in &mut inputs.demand {
            sample.prompt_tokens = NonNegative::new(prompt);
            sample.output_tokens = NonNegative::new(100.0);
            sample.cached_tokens = NonNegative::new(cached);
        }
        let ground = tick(&topology, &mut TickState::new(&topology, 7), &inputs).ground;
        ground.expect("a plan").problem.sources[1].arcs[1].seconds
    };
    let near = |got: f64, expected: f64| assert!((got - expected).abs() < 1e-9, "{got}");
    // A token that reads 550 costs twice: 50 of the prompt and 200 of the answer are 10 ms.
    near(seconds(500.0, 0.0), 0.01);
    // A hundred of the prompt are computed, all 500 read.
    near(seconds(500.0, 400.0), 0.01 * 210.0 / 250.0);
    // As many computed of a longer one, of which the answer's tokens cost 1 + 1,650 / 550.
    near(seconds(1_600.0, 1_500.0), 0.01 * 410.0 / 250.0);
}
