//! `allowance`: one engine behind one proxy of sixteen shards, whose policy allows eight requests
//! in flight, and then three: fewer than shards.
//!
//! First far more comes than is allowed, and the engine itself counts the most it ever had at once.
//! Then as many users as the allowance has room for ask one request after the other: none may be
//! refused, on whatever shards their connections are.

use std::rc::Rc;

use serde_json::json;

use super::alerts;
use super::plan::{Pace, Plan};
use super::record::{Outcome as End, arrived};
use super::users::{Keys, Tries};
use super::verdict::{Bar, Verdict};
use super::world::{World, chat};
use super::{Args, Outcome};
use crate::alarm::Alarm;

const PACE: Pace = Pace {
    idle_ms: 80.0,
    full_ms: 80.0,
    tbot_ms: 10.0,
    tokens: 5,
};
const CAPACITY_RPS: f64 = 60.0;
const SHARDS: usize = 16;
/// The plan is for far less than the flood.
const ALERTS: [&str; 1] = ["PointsmanShedUnplanned"];
/// Several times what any of the allowances lets through.
const FLOOD_RPS: f64 = 250.0;
/// Seconds of each part.
const FLOOD_S: f64 = 8.0;
const UNDER_S: f64 = 8.0;
/// Solvers started at most to find the burst that gives an allowance.
const MOST_STARTS: usize = 16;

/// Runs the drill.
pub(super) async fn run(args: &Args, alarm: &Rc<Alarm>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::default();
    let (eight, three, off) = tokio::join!(
        play(args, alarm, 8),
        play(args, alarm, 3),
        flood_unguarded(args, alarm)
    );
    outcome.verdict.measure(
        "off_peak",
        off?,
        Bar::Above((8 + SHARDS - 1) as f64),
        "without an allowance: most requests at the engine in the flood (or the drill is void)",
    );
    for (allowance, played) in [(8, eight?), (3, three?)] {
        let (mut world, peak, verdict) = played;
        outcome.verdict.join(verdict);
        let records = world.finish().await?;
        outcome.verdict.note(&format!("of_{allowance}_peak"), peak);
        let title = format!("allowance {allowance}: requests a second by engine or refusal");
        outcome.picture.panel(world.answers_panel(&title, &records));
        if allowance == 8 {
            let sampler = &world.sampler;
            alerts::judge(&mut outcome.verdict, &args.rules, sampler, &ALERTS).await;
            world.draw_marks(&mut outcome.picture);
        }
    }
    Ok(outcome)
}

async fn play(
    args: &Args,
    alarm: &Rc<Alarm>,
    allowance: u32,
) -> anyhow::Result<(World, Option<f64>, Verdict)> {
    let mut plan = Plan::simple(1, CAPACITY_RPS, 20.0, PACE);
    plan.frontends[0].shards = SHARDS;
    plan.engines[0].max_running *= 20;
    plan.solver = "demand = \"configured\"\n".to_owned();
    let name = format!("allowance-{allowance}");
    let mut world = World::start(args, alarm, &name, plan, |cast| {
        vec![chat(cast, Keys::Among(10_000), Tries::ONE)]
    })
    .await?;
    let mut verdict = Verdict::default();
    let found = tune(&mut world, allowance).await?;
    verdict.measure(
        &format!("of_{allowance}_allowance"),
        Some(f64::from(found)),
        Bar::AtMost(f64::from(allowance)),
        "requests in flight that the policy allows",
    );
    world.cast.set_all(&json!({})).await?;
    let from_ns = world.mark("flood");
    world.users.set_rate("chat", FLOOD_RPS);
    let to_ns = world.rest(FLOOD_S).await?;
    world.users.pause();
    world.rest(2.0).await?;
    let peak = world.cast.stats("a").await?["peak_active"].as_f64();
    verdict.measure(
        &format!("of_{allowance}_over"),
        peak.map(|peak| peak - f64::from(found)),
        Bar::AtMost((SHARDS - 1) as f64),
        "most requests at the engine beyond that, in a flood",
    );
    verdict.measure(
        &format!("of_{allowance}_least"),
        peak.map(|peak| peak - f64::from(found)),
        Bar::AtLeast(0.0),
        "the flood filled the allowance (or the drill is void)",
    );
    let records = world.users.records();
    let flood = arrived(&records, from_ns, to_ns);
    let refused = flood
        .iter()
        .filter(|record| matches!(record.outcome, End::Refused { .. }));
    verdict.note(&format!("of_{allowance}_refused_in_flood"), refused.count());
    let from_ns = world.mark("as many users as are allowed");
    world.users.work("chat", found as usize);
    let to_ns = world.rest(UNDER_S).await?;
    world.users.pause();
    world.rest(1.0).await?;
    let records = world.users.records();
    let under = arrived(&records, from_ns, to_ns);
    let failed = under.iter().filter(|one| one.outcome != End::Answered);
    verdict.note(&format!("of_{allowance}_requests_under"), under.len());
    verdict.measure(
        &format!("of_{allowance}_failed_under"),
        (!under.is_empty()).then_some(failed.count() as f64),
        Bar::AtMost(0.0),
        "requests that failed while the sum was never over it",
    );
    Ok((world, peak, verdict))
}

/// The same flood where nobody holds it back; the most that the engine had at once.
async fn flood_unguarded(args: &Args, alarm: &Rc<Alarm>) -> anyhow::Result<Option<f64>> {
    let mut plan = Plan::simple(1, CAPACITY_RPS, 20.0, PACE).unguarded();
    plan.frontends[0].shards = SHARDS;
    plan.engines[0].max_running *= 20;
    plan.solver.push_str("demand = \"configured\"\n");
    let mut world = World::start(args, alarm, "allowance-off", plan, |cast| {
        vec![chat(cast, Keys::Among(10_000), Tries::ONE)]
    })
    .await?;
    world.users.set_rate("chat", FLOOD_RPS);
    world.rest(FLOOD_S).await?;
    let peak = world.cast.stats("a").await?["peak_active"].as_f64();
    world.finish().await?;
    Ok(peak)
}

/// Finds the burst factor with which the solver's policy has this allowance, by halving; what the
/// policy has at the end.
async fn tune(world: &mut World, wanted: u32) -> anyhow::Result<u32> {
    let (mut low, mut high) = (1e-3_f64, 100.0_f64);
    for _ in 0..MOST_STARTS {
        let burst = (low * high).sqrt();
        world.cast.kill_solver().await?;
        world.cast.plan.solver = format!("demand = \"configured\"\nallowance_burst = {burst:.6}\n");
        world.cast.start_solver().await?;
        let found = world.cast.policy_of_this_start("front").await?;
        let allowance = found.engines.first().map_or(0, |engine| engine.allowance);
        match allowance.cmp(&wanted) {
            std::cmp::Ordering::Less => low = burst,
            std::cmp::Ordering::Greater => high = burst,
            std::cmp::Ordering::Equal => {
                world.look_anew();
                // Proxies adopt it within a turn of their sentinel.
                world.rest(1.0).await?;
                return Ok(allowance);
            }
        }
    }
    anyhow::bail!("no allowance_burst gives an allowance of {wanted}")
}
