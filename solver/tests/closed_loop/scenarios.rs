//! What happens to the fleet, and what weights may do about it.

use pointsman_solver::model::topology::ClassId;

use crate::checks::{Run, SETTLED};
use crate::fleet::Fleet;
use crate::plant::Plant;
use crate::stage::Stage;

/// Time before anything happens, seconds.
const WARM_S: f64 = 120.0;
const TICK_S: f64 = 2.0;
const LAGS_S: [f64; 3] = [1.0, 5.0, 15.0];
/// What ten passes take, seconds.
const TEN_TICKS_S: f64 = 10.0 * TICK_S;
/// Time in which what nobody announced is found out, seconds.
const FOUND_OUT_S: f64 = 720.0;
/// Time for which it is watched, seconds.
const WATCHED_S: f64 = 860.0;

pub(crate) fn seeds() -> u64 {
    let given = std::env::var("POINTSMAN_LOOP_SEEDS").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(1)
}

pub(crate) fn stage(fleet: Fleet, lag_s: f64, seed: u64) -> Stage {
    let topology = fleet.topology();
    let plant = Plant::new(&topology, fleet.curve(), 5.0, seed);
    Stage::new(topology, plant, lag_s)
}

/// A fleet that settled, and its weights.
fn warm(fleet: Fleet, lag_s: f64, seed: u64) -> (Stage, Vec<f64>) {
    let mut stage = stage(fleet, lag_s, seed);
    stage.run(WARM_S);
    let before = stage.weights();
    (stage, before)
}

/// What a part of a run is held against; what it breaks.
struct Bars {
    name: String,
    settled_s: f64,
    one_way: bool,
}

fn broken(bars: &Bars, run: &Run, before: &[f64]) -> Vec<String> {
    let from = run.points[0].0;
    let settled = run.settled_s() - from;
    let after = run.part(from + bars.settled_s, f64::MAX);
    let reversals = run.reversals();
    let overshoot = run.overshoot(before, SETTLED);
    let deviation = after.deviation();
    println!(
        "{}: settled after {settled:.0} s, {reversals} reversals, overshoot {overshoot:.3}, \
         deviation {deviation:.4}, moved {:.3}",
        bars.name,
        run.moved(before)
    );
    let mut broken = Vec::new();
    if settled > bars.settled_s {
        broken.push(format!("{}: settled after {settled} s", bars.name));
    }
    if reversals > usize::from(!bars.one_way) {
        broken.push(format!("{}: {reversals} reversals", bars.name));
    }
    if overshoot > 0.1 {
        broken.push(format!("{}: overshoot {overshoot}", bars.name));
    }
    if deviation >= 0.02 {
        broken.push(format!("{}: deviation {deviation}", bars.name));
    }
    if !broken.is_empty() {
        println!("{}: {:.3?}", bars.name, run.worst(before));
    }
    broken
}

/// A part of a run, the weights before it, and what it breaks.
struct Judged {
    name: String,
    before: Vec<f64>,
    run: Run,
    broken: Vec<String>,
}

/// Runs on from something that happened just now.
fn judge(
    stage: &mut Stage,
    name: &str,
    lag_s: f64,
    settled_s: f64,
    watched_s: f64,
    one_way: bool,
) -> Judged {
    let before = stage.weights();
    let from = stage.now_s;
    stage.run(watched_s);
    let bars = Bars {
        name: format!("{name}, lag {lag_s} s"),
        settled_s,
        one_way,
    };
    let run = stage.run.part(from, f64::MAX);
    let broken = broken(&bars, &run, &before);
    if !broken.is_empty() {
        let since = stage.why.iter().filter(|(at, _)| *at >= from);
        let since: Vec<_> = since.collect();
        println!("{}: published {since:?}", bars.name);
    }
    Judged {
        name: bars.name,
        before,
        run,
        broken,
    }
}

fn demand_rises(fleet: Fleet, lag_s: f64, seed: u64) -> Vec<Judged> {
    let (mut stage, _) = warm(fleet, lag_s, seed);
    let source = stage
        .plant
        .source(pointsman_solver::model::topology::FrontendId(0), ClassId(0));
    stage.plant.clients[source].grow(0.5);
    let bar_s = TEN_TICKS_S + lag_s;
    vec![judge(
        &mut stage,
        "demand +50 %",
        lag_s,
        bar_s,
        200.0,
        false,
    )]
}

fn engine_lost_and_back(fleet: Fleet, lag_s: f64, seed: u64) -> Vec<Judged> {
    let (mut stage, _) = warm(fleet, lag_s, seed);
    lost_and_back(&mut stage, ["engine lost", "engine back"], lag_s)
}

fn lost_and_back(stage: &mut Stage, names: [&str; 2], lag_s: f64) -> Vec<Judged> {
    let bar_s = TEN_TICKS_S + lag_s;
    let engine = stage.engine("a1");
    stage.plant.kill(engine);
    let lost = judge(stage, names[0], lag_s, bar_s, 160.0, false);
    stage.plant.engines[engine.0].alive = true;
    let back = judge(stage, names[1], lag_s, bar_s, 160.0, false);
    vec![lost, back]
}

fn capacity_falls(fleet: Fleet, lag_s: f64, seed: u64) -> Vec<Judged> {
    let (mut stage, _) = warm(fleet, lag_s, seed);
    let engine = stage.engine("a1");
    stage.plant.engines[engine.0].capacity = 0.7;
    let name = "capacity -30 %";
    vec![judge(&mut stage, name, lag_s, FOUND_OUT_S, WATCHED_S, true)]
}

fn times_change(fleet: Fleet, factor: f64, lag_s: f64, seed: u64) -> Vec<Judged> {
    let (mut stage, _) = warm(fleet, lag_s, seed);
    let engine = stage.engine("a1");
    stage.plant.engines[engine.0].times = (factor, factor);
    let name = format!("times x {factor}");
    vec![judge(
        &mut stage,
        &name,
        lag_s,
        FOUND_OUT_S,
        WATCHED_S,
        true,
    )]
}

/// Two kinds of requests of one length, on different engines.
fn settled_fleet() -> Fleet {
    Fleet {
        alike: std::env::var_os("POINTSMAN_LOOP_UNLIKE").is_none(),
        ..Fleet::default()
    }
}

fn everywhere(scenario: impl Fn(f64, u64) -> Vec<Judged>) {
    let mut broken = Vec::new();
    for lag_s in LAGS_S {
        let runs: Vec<Vec<Judged>> = (1..=seeds()).map(|seed| scenario(lag_s, seed)).collect();
        for (seed, judged) in (1..).zip(&runs) {
            let found = judged.iter().flat_map(|one| &one.broken);
            broken.extend(found.map(|text| format!("seed {seed}: {text}")));
        }
        for part in 0..runs[0].len() {
            let part: Vec<&Judged> = runs.iter().map(|run| &run[part]).collect();
            broken.extend(mean_overshoot(&part));
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// What the mean of runs that differ by chance alone goes beyond its final value; it is held to the
/// less, the more they are.
fn mean_overshoot(runs: &[&Judged]) -> Option<String> {
    let of = |runs: Vec<&Run>| Run::mean(&runs);
    let mean = of(runs.iter().map(|one| &one.run).collect());
    let count = runs.len() as f64;
    let before = |i: usize| runs.iter().map(|one| one.before[i]).sum::<f64>() / count;
    let before: Vec<f64> = (0..mean.last().len()).map(before).collect();
    let overshoot = mean.overshoot(&before, SETTLED / count.sqrt());
    println!(
        "{}: overshoot of the mean of {count}: {overshoot:.3}",
        runs[0].name
    );
    (overshoot > 0.1).then(|| format!("{}: the mean's overshoot {overshoot}", runs[0].name))
}

#[test]
fn demand_that_rises_by_half_is_followed_in_ten_passes() {
    everywhere(|lag_s, seed| demand_rises(settled_fleet(), lag_s, seed));
}

#[test]
fn an_engine_that_is_lost_and_back_moves_weights_once_each_way() {
    everywhere(|lag_s, seed| engine_lost_and_back(settled_fleet(), lag_s, seed));
}

/// Conversations that move lose their cache, so that moving makes work.
#[test]
fn cache_hits_that_moving_costs_do_not_keep_weights_moving() {
    everywhere(|lag_s, seed| {
        let (mut stage, _) = warm(settled_fleet(), lag_s, seed);
        stage.plant.cold_work = 0.4;
        let names = ["engine lost, caches cold", "engine back, caches cold"];
        lost_and_back(&mut stage, names, lag_s)
    });
}

#[test]
fn a_capacity_that_fell_unannounced_is_found_out() {
    everywhere(|lag_s, seed| capacity_falls(settled_fleet(), lag_s, seed));
}

#[test]
fn latencies_of_half_moves_weights_one_way() {
    everywhere(|lag_s, seed| times_change(settled_fleet(), 0.5, lag_s, seed));
}

#[test]
fn latencies_of_half_as_much_again_move_weights_one_way() {
    everywhere(|lag_s, seed| times_change(settled_fleet(), 1.5, lag_s, seed));
}

#[test]
fn without_price_of_movement_and_bound_on_steps_the_same_plant_fails() {
    let loose = Fleet {
        movement_ms: 0.0,
        max_step: 1.0,
        ..settled_fleet()
    };
    let once = |lag_s, seed| {
        let mut judged = demand_rises(loose, lag_s, seed);
        judged.extend(engine_lost_and_back(loose, lag_s, seed));
        judged.into_iter().flat_map(|one| one.broken).collect()
    };
    let runs = (1..=4).flat_map(|seed| LAGS_S.map(|lag_s| (lag_s, seed)));
    let broken = runs
        .map(|(lag_s, seed)| once(lag_s, seed))
        .find(|b: &Vec<String>| !b.is_empty());
    println!("{:#?}", broken.expect("something breaks"));
}

/// A distance that is shorter by 20 ms, between frontend a and the engines of region c.
fn closer(stage: &mut Stage, by_ms: f64) {
    for engine in ["c1", "c2"] {
        let engine = stage.engine(engine);
        stage.plant.rtt_ms[engine.0] -= by_ms;
    }
}

#[test]
fn a_gain_that_lasts_is_taken_and_a_minute_of_it_moves_nothing() {
    let from_a_to = |stage: &Stage, region: &str| -> f64 {
        let one = |i: usize| stage.weight(0, "chat", &format!("{region}{i}"));
        one(1) + one(2)
    };
    for lag_s in LAGS_S {
        // Latency that load adds is little, so distance decides, and every region has room.
        let fleet = Fleet {
            flat: true,
            demand: 0.9,
            ..Fleet::default()
        };
        let grown = || {
            let (mut stage, _) = warm(fleet, lag_s, 1);
            // More at a than its engines should do: the rest goes to b and c, which are as near.
            stage.plant.clients[0].grow(0.5);
            stage.run(240.0);
            stage
        };
        let mut stage = grown();
        let (to_b, to_c) = (from_a_to(&stage, "b"), from_a_to(&stage, "c"));
        assert!(to_b > 0.05, "{to_b} {to_c}");
        let from = stage.now_s;
        closer(&mut stage, 20.0);
        stage.run(60.0);
        closer(&mut stage, -20.0);
        stage.run(300.0);
        // The same fleet without that minute, which chance treats alike.
        let mut twin = grown();
        twin.run(360.0);
        let moved = stage
            .run
            .part(from, f64::MAX)
            .apart(&twin.run.part(from, f64::MAX));
        assert_eq!(moved, 0.0, "of any weight at any time");
        let from = stage.now_s;
        closer(&mut stage, 20.0);
        stage.run(900.0);
        let taken = from_a_to(&stage, "c");
        let settled = stage.run.part(from, f64::MAX).settled_s() - from;
        println!(
            "lag {lag_s} s: a minute moved {moved:.4}; then to b {to_b:.3}, to c {to_c:.3} -> \
             {taken:.3} after {settled:.0} s"
        );
        // All of it, but for what demand did meanwhile; half of the time that a plan is to stand.
        let all = to_b + to_c;
        assert!((taken - all).abs() < SETTLED, "{all} {taken}");
        assert!(from_a_to(&stage, "b") < SETTLED, "{to_b}");
    }
}
