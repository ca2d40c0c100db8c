//! Two engines and every reason to swing between them: late signals, few of them, and an optimum
//! at a corner (E22).

use pointsman_solver::model::topology::{FrontendId, Topology};

use crate::checks::Run;
use crate::fleet::CURVE;
use crate::plant::Plant;
use crate::stage::Stage;

/// Time between passes, seconds.
const PERIOD_S: f64 = 5.0;
const LAG_S: f64 = 5.0;
/// Passes that are watched, and those before weights are held to anything.
const CYCLES: usize = 100;
const BEGINS: usize = 20;
const MAX_STEP: f64 = 0.1;

/// Two engines by name, milliseconds away and requests per second; and what comes.
fn corner(engines: [(&str, u32, f64); 2], demand_rps: f64, seed: u64) -> Stage {
    let mut text = format!(
        "[solver]\nmethod = \"network\"\ndemand = \"signals\"\nmax_step = {MAX_STEP:?}\n\
         tick_ms = {}\n[[frontends]]\nname = \"f\"\n[[profiles]]\nkind = \"k\"\npoints = [\n",
        (PERIOD_S * 1e3) as u64
    );
    for (utilisation, ttft, tbot) in CURVE {
        text += &format!(
            "{{ utilisation = {utilisation:?}, ttft_ms = {ttft:?}, tbot_ms = {tbot:?} }},\n"
        );
    }
    text += "]\n[[routes]]\nname = \"chat\"\nmodel = \"m\"\nprompt_tokens = 500\n\
             output_tokens = 100\n";
    for (i, (name, rtt_ms, rps)) in engines.into_iter().enumerate() {
        text += &format!(
            "[[engines]]\nname = \"{name}\"\nregion = \"r\"\nkind = \"k\"\nmodels = [\"m\"]\n\
             address = \"127.0.0.1:900{i}\"\n\
             capacity = {{ rps = {rps:?}, prompt_tokens = 500, output_tokens = 100 }}\n\
             [[rtt]]\nfrontend = \"f\"\nengine = \"{name}\"\nms = {rtt_ms}\n"
        );
    }
    text += &format!("[[demand]]\nfrontend = \"f\"\nroute = \"chat\"\nrps = {demand_rps:?}\n");
    let topology = Topology::parse("corner.toml", &text).expect("good");
    let plant = Plant::new(&topology, &CURVE, 5.0, seed);
    Stage::new(topology, plant, LAG_S)
}

/// A hundred passes; the weights from the twentieth on, and the longest step of all.
fn watched(stage: &mut Stage) -> (Run, f64) {
    stage.run(CYCLES as f64 * PERIOD_S);
    let pairs = stage.run.points.windows(2);
    let step = |pair: &[(f64, Vec<f64>)]| {
        let moved = pair[0].1.iter().zip(&pair[1].1);
        moved.map(|(a, b)| (b - a).max(0.0)).sum::<f64>()
    };
    let longest = pairs.map(step).fold(0.0, f64::max);
    let from = BEGINS as f64 * PERIOD_S;
    (stage.run.part(from, f64::MAX), longest)
}

#[test]
fn e22_weights_of_two_like_engines_do_not_swing() {
    for seed in 1..=4 {
        // 120 % of what one engine can do.
        let mut stage = corner([("left", 10, 60.0), ("right", 10, 60.0)], 72.0, seed);
        let (run, longest) = watched(&mut stage);
        let deviation = run.deviation();
        println!("seed {seed}: deviation {deviation:.4}, longest step {longest:.3}");
        assert!(deviation < 0.1, "seed {seed}: {deviation}");
        assert!(longest <= MAX_STEP + 1e-9, "seed {seed}: {longest}");
    }
}

#[test]
fn e22_a_small_engine_that_is_near_is_not_filled_to_its_knee() {
    for seed in 1..=4 {
        let mut stage = corner([("near", 1, 1.0), ("far", 40, 10.0)], 5.0, seed);
        let (run, longest) = watched(&mut stage);
        // Of the requests that really come, over the one a second that it can do.
        let clients = &stage.plant.clients[0];
        let most_rps = clients.count / (clients.think_s + 0.12 + 100.0 * 0.015);
        let policy = stage.state.standing(FrontendId(0)).expect("published");
        let slot = policy
            .engines
            .iter()
            .find(|e| e.id == "near")
            .expect("listed")
            .slot;
        let eligible = &policy.classes[0].eligible;
        let at = eligible
            .iter()
            .position(|e| e.engine == slot)
            .expect("eligible");
        let near = |(_, weights): &(f64, Vec<f64>)| weights[at] * most_rps;
        let most = run.points.iter().map(near).fold(0.0, f64::max);
        let deviation = run.deviation();
        println!(
            "seed {seed}: near engine at most {most:.2} full, deviation {deviation:.4}, longest \
             step {longest:.3}"
        );
        assert!(most <= 0.8, "seed {seed}: {most}");
        assert!(most > 0.2, "seed {seed}: it is near and is used: {most}");
        assert!(deviation < 0.1, "seed {seed}: {deviation}");
        assert!(longest <= MAX_STEP + 1e-9, "seed {seed}: {longest}");
    }
}
