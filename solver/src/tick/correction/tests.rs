//! One engine, one frontend, and looks as a proxy counts them.

use super::*;
use crate::model::topology::FrontendId;
use crate::tick::Service;

const SECOND_NS: u64 = 1_000_000_000;
const LOOK_S: u64 = 2;
/// Requests a second that the engine can do.
const FULL_RPS: f64 = 50.0;
const KEY: (FrontendId, ClassId, EngineId) = (FrontendId(0), ClassId(0), EngineId(0));

struct Bench {
    topology: Topology,
    memory: Memory,
    now_s: u64,
    penalty: f64,
}

impl Bench {
    /// Requests of so many tokens, at four bytes each, from so far away.
    fn new(rtt_ms: u32, prompt_tokens: u32) -> Self {
        let text = format!(
            "[solver]\ndemand = \"signals\"\nbytes_per_token = 4.0\n\
             [[frontends]]\nname = \"f\"\n\
             [[profiles]]\nkind = \"k\"\npoints = [\n\
             {{ utilisation = 0.0, ttft_ms = 100.0, tbot_ms = 10.0 }},\n\
             {{ utilisation = 1.0, ttft_ms = 200.0, tbot_ms = 20.0 }},\n]\n\
             [[engines]]\nname = \"e\"\nkind = \"k\"\nmodels = [\"m\"]\n\
             address = \"127.0.0.1:9001\"\n\
             capacity = {{ rps = {FULL_RPS:?}, prompt_tokens = {prompt_tokens}, \
             output_tokens = 100 }}\n\
             [[rtt]]\nfrontend = \"f\"\nengine = \"e\"\nms = {rtt_ms}\n\
             [[routes]]\nname = \"chat\"\nmodel = \"m\"\nprompt_tokens = {prompt_tokens}\n\
             output_tokens = 100\n\
             [[demand]]\nfrontend = \"f\"\nroute = \"chat\"\nrps = 10\n"
        );
        Self {
            topology: Topology::parse("one.toml", &text).expect("good"),
            memory: Memory::default(),
            now_s: 0,
            penalty: 0.0,
        }
    }

    /// A look at the engine under this load, of which it answers a part, first tokens that long
    /// after the profile's and the network's time.
    fn look(&mut self, load: f64, answered: f64, late_ms: f64) -> Corrected {
        let count = (load * FULL_RPS * LOOK_S as f64).round() as u64;
        let answers = (answered * count as f64).round() as u64;
        let (ttft_ms, tbot_ms) = self.topology.profiles[0].at(load);
        let service = Service {
            length_s: LOOK_S as f64,
            attempts: count,
            answers: (answers, 0),
            first_tokens: (count, ((ttft_ms + late_ms) * 1e3) as u64 * count),
            gaps: (99 * count, (tbot_ms * 1e3) as u64 * 99 * count),
            ..Service::default()
        };
        self.pass(Some(service))
    }

    fn pass(&mut self, served: Option<Service>) -> Corrected {
        self.now_s += LOOK_S;
        let mut inputs = Inputs {
            now_ns: self.now_s * SECOND_NS,
            ..Inputs::default()
        };
        inputs.witness.served.extend(served.map(|s| (KEY, s)));
        let penalty = crate::model::units::Share::new(self.penalty).expect("a share");
        inputs.engines.push(crate::tick::EngineSample {
            penalty,
            ..crate::tick::EngineSample::unknown(KEY.2)
        });
        let state = TickState::new(&self.topology, 1);
        let world = World::new(&self.topology, &state, &inputs);
        self.memory.absorb(&self.topology, &state, &world, &inputs);
        self.memory.corrected(&self.topology)[0]
    }
}

#[test]
fn a_far_frontend_with_long_prompts_is_neither_misfit_nor_queue() {
    // 120,000 bytes take three rounds beyond the first, of 60 ms each.
    for (load, answered) in [(0.97, 0.8), (0.7, 1.0)] {
        let mut far = Bench::new(60, 30_000);
        for _ in 0..60 {
            let corrected = far.look(load, answered, 4.0 * 60.0);
            assert_eq!((corrected.misfit, corrected.factor), (None, 1.0));
        }
    }
    // From next door it is the engine that takes so long: one that is full, or one that does not
    // fit its profile.
    let mut near = Bench::new(0, 30_000);
    let last = (0..60).map(|_| near.look(0.97, 0.8, 240.0)).last();
    assert!(last.is_some_and(|c| c.factor < 1.0), "{last:?}");
    let mut near = Bench::new(0, 30_000);
    let last = (0..60).map(|_| near.look(0.7, 1.0, 240.0)).last();
    assert!(last.is_some_and(|c| c.misfit.is_some()), "{last:?}");
}

/// What a pass makes of an engine after looks of a time, a silence, and looks of another time.
fn around(silent_s: u64, [before_s, after_s]: [u64; 2], look: [f64; 3]) -> Corrected {
    let mut bench = Bench::new(0, 30_000);
    let [load, answered, late_ms] = look;
    let looks = |bench: &mut Bench, seconds: u64| {
        let looks = (0..seconds / LOOK_S).map(|_| bench.look(load, answered, late_ms));
        looks.last().expect("a look")
    };
    looks(&mut bench, before_s);
    for _ in 0..silent_s / LOOK_S {
        bench.pass(None);
    }
    looks(&mut bench, after_s)
}

#[test]
fn what_was_seen_before_a_silence_is_no_evidence_after_it() {
    // A minute of it makes a misfit.
    let misfit = [0.7, 1.0, 240.0];
    assert!(around(2, [40, 40], misfit).misfit.is_some());
    assert_eq!(around(300, [40, 40], misfit).misfit, None);
    // Half a minute of a queue measures a capacity.
    let full = [0.97, 0.8, 240.0];
    assert!(around(2, [18, 14], full).factor < 1.0);
    assert_eq!(around(300, [18, 14], full).factor, 1.0);
}

#[test]
fn what_a_penalised_engine_can_do_is_what_it_could_before() {
    let mut bench = Bench::new(0, 30_000);
    bench.penalty = 0.6;
    for _ in 0..60 {
        let corrected = bench.look(0.6, 1.0, 0.0);
        assert_eq!((corrected.misfit, corrected.factor), (None, 1.0));
    }
}
