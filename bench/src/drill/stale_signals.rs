//! `stale-signals`: the solver stands still for half a minute, so engine state is frozen, and
//! somebody else doubles the load of one engine meanwhile.
//!
//! The solver is stopped (SIGSTOP), not killed: its files stay as they are and its sockets are
//! open, as when a host swaps. With it stopped, whoever asks an engine for its health is a proxy.

use std::rc::Rc;

use serde_json::json;

use super::alerts;
use super::picture::Panel;
use super::plan::{Pace, Plan};
use super::record::{answered, arrived, failures};
use super::sampler::{Look, within};
use super::users::{Group, Keys, Tries};
use super::verdict::{Bar, Verdict};
use super::world::{World, chat};
use super::{Args, Outcome};
use crate::alarm::Alarm;

const PACE: Pace = Pace {
    idle_ms: 50.0,
    full_ms: 120.0,
    tbot_ms: 5.0,
    tokens: 10,
};
const ENGINES: usize = 3;
const CAPACITY_RPS: f64 = 40.0;
const RATE_RPS: f64 = 0.45 * CAPACITY_RPS * ENGINES as f64;
const CROWDED: &str = "a";
/// Seconds before, while frozen, and after.
const BEFORE_S: f64 = 8.0;
const FROZEN_S: f64 = 33.0;
const AFTER_S: f64 = 6.0;
/// After 30 s a policy is stale; one that nobody confirmed for 20 s is told after 10 s more.
const ALERTS: [&str; 2] = ["PointsmanPolicyStale", "PointsmanPolicyUnconfirmed"];
/// Own probes must begin so soon.
const PROBES_WITHIN_S: f64 = 6.0;

/// Runs the drill.
pub(super) async fn run(args: &Args, alarm: &Rc<Alarm>) -> anyhow::Result<Outcome> {
    let mut plan = Plan::simple(ENGINES, CAPACITY_RPS, RATE_RPS, PACE);
    plan.frontends[0].shards = 4;
    let overshoot = plan.frontends[0].shards as f64 - 1.0;
    let mut world = World::start(args, alarm, "stale", plan, |cast| {
        let ours = chat(cast, Keys::Among(2_000), Tries::ONE);
        let direct = cast.address(CROWDED).map(|(listen, _)| listen);
        let others = Group {
            name: "others",
            targets: direct.into_iter().collect(),
            ..ours.clone()
        };
        vec![ours, others]
    })
    .await?;
    world.users.set_rate("chat", RATE_RPS);
    world.rest(BEFORE_S).await?;
    let share = world.cast.weights("front", "chat")?[CROWDED];
    let from_ns = world.mark("solver stands still");
    world.cast.freeze_solver(true)?;
    world.look_anew();
    // As much again as it has from us.
    world.users.set_rate("others", (share * RATE_RPS).max(1.0));
    world.rest(FROZEN_S).await?;
    let to_ns = world.mark("it goes on");
    world.cast.freeze_solver(false)?;
    world.look_anew();
    world.users.set_rate("others", 0.0);
    world.rest(AFTER_S).await?;
    let records = world.finish().await?;
    let mut outcome = Outcome::default();
    let verdict = &mut outcome.verdict;
    verdict.note("share_before", share);
    judge_probes(&world, from_ns, to_ns, verdict);
    verdict.measure(
        "most_over_allowance",
        most_over(&world, from_ns, to_ns)?,
        Bar::AtMost(overshoot),
        "most requests of ours at an engine beyond its allowance",
    );
    let ours: Vec<_> = arrived(&records, from_ns, to_ns)
        .into_iter()
        .filter(|record| record.group == "chat")
        .collect();
    verdict.note("requests", ours.len());
    verdict.note("failures", json!(failures(&ours)));
    verdict.measure(
        "failed",
        Some((ours.len() - answered(&ours)) as f64),
        Bar::AtMost(0.0),
        "requests that failed while it stood still",
    );
    alerts::judge(verdict, &args.rules, &world.sampler, &ALERTS).await;
    let panel = world.answers_panel("answers a second by engine, others' included", &records);
    outcome.picture.panel(panel);
    let mut panel = Panel::new("health checks that engines had");
    for engine in &world.cast.plan.engines {
        let checks = |look: &Look| look.engine(&engine.name, "/paths/~1health");
        panel = panel.line(&engine.name, world.line(checks));
    }
    outcome.picture.panel(panel);
    world.draw_marks(&mut outcome.picture);
    Ok(outcome)
}

/// Health checks that engines had while the solver could make none.
fn judge_probes(world: &World, from_ns: u64, to_ns: u64, verdict: &mut Verdict) {
    let looks = world.sampler.looks();
    // A check of the solver's that was on its way arrives within the first second.
    let still_ns = from_ns + 1_000_000_000;
    let frozen = within(&looks, still_ns, to_ns);
    let mut latest: Option<f64> = Some(0.0);
    for engine in &world.cast.plan.engines {
        let checks = |look: &Look| look.engine(&engine.name, "/paths/~1health").unwrap_or(0.0);
        let before = frozen.first().map(checks);
        let probed = frozen
            .iter()
            .find(|look| before.is_some_and(|before| checks(look) > before));
        let at_s = probed.map(|look| (look.at_ns - from_ns) as f64 / 1e9);
        verdict.note(&format!("probe_of_{}_s", engine.name), at_s);
        latest = latest.zip(at_s).map(|(latest, at_s)| latest.max(at_s));
    }
    // Looks are half a second apart.
    verdict.measure(
        "probed_s",
        latest,
        Bar::AtMost(PROBES_WITHIN_S + 0.5),
        "seconds until the proxy asked every engine itself",
    );
}

/// Most in flight at an engine beyond its allowance, by the proxy's own count at each look.
fn most_over(world: &World, from_ns: u64, to_ns: u64) -> anyhow::Result<Option<f64>> {
    let looks = world.sampler.looks();
    let mut most = None;
    for engine in &world.cast.plan.engines {
        let allowance = f64::from(world.cast.allowance("front", &engine.name)?);
        let labels = [("engine", &*engine.name)];
        let over = within(&looks, from_ns, to_ns).iter().filter_map(|look| {
            let name = "pointsman_proxy_engine_in_flight";
            Some(world.sampler.sum(look, name, &labels)? - allowance)
        });
        most = over.chain(most).reduce(f64::max);
    }
    Ok(most)
}
