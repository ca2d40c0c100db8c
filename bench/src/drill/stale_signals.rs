//! `stale-signals`: the solver stands still for half a minute, so engine state is frozen, and
//! somebody else doubles the load of one engine meanwhile.
//!
//! The solver is stopped (SIGSTOP), not killed: its files stay as they are and its sockets are
//! open, as when a host swaps. With it stopped, whoever asks an engine for its health is a proxy.
//! Twice its load is more than the crowded engine can do, so requests pile up there unless the
//! guards hold them back: the same world without guardrails runs beside it.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::json;

use super::alerts;
use super::picture::Panel;
use super::plan::{Pace, Plan};
use super::record::{Record, answered, arrived, failures};
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
const RATE_RPS: f64 = 0.6 * CAPACITY_RPS * ENGINES as f64;
const CROWDED: &str = "a";
/// An allowance is what the plan sends to an engine and what it may have to take over, without the
/// usual burst on top, so that it is met before the engine's own queue is full.
const BURST: &str = "allowance_burst = 1.0\n";
/// Seconds before, while frozen, and after.
const BEFORE_S: f64 = 8.0;
const FROZEN_S: f64 = 33.0;
const AFTER_S: f64 = 6.0;
/// Until this age a policy is fresh, and allowances are what it says; later a quarter more passes.
const FRESH_S: f64 = 30.0;
/// After 30 s a policy is stale; one that nobody confirmed for 20 s is told after 10 s more.
const ALERTS: [&str; 2] = ["PointsmanPolicyStale", "PointsmanPolicyUnconfirmed"];
/// Two shards can take the last place at once.
const OVERSHOOT: f64 = 1.0;
/// Own probes must begin so soon.
const PROBES_WITHIN_S: f64 = 6.0;

/// One world after its half minute.
struct Played {
    world: World,
    records: Vec<Record>,
    /// The crowded engine's share when all stood still.
    share: f64,
    /// Allowances of the policy that stood meanwhile.
    allowances: BTreeMap<String, f64>,
    from_ns: u64,
    to_ns: u64,
}

/// Runs the drill.
pub(super) async fn run(args: &Args, alarm: &Rc<Alarm>) -> anyhow::Result<Outcome> {
    let mut plan = Plan::simple(ENGINES, CAPACITY_RPS, RATE_RPS, PACE);
    let without = plan.clone().unguarded();
    plan.solver = BURST.to_owned();
    let (played, off) = tokio::join!(
        play(args, alarm, "stale", plan),
        play(args, alarm, "stale-off", without)
    );
    let (played, off) = (played?, off?);
    let mut outcome = Outcome::default();
    let verdict = &mut outcome.verdict;
    verdict.note("share_before", played.share);
    judge_probes(&played, &off, verdict);
    judge_allowances(&played, &off, verdict);
    let Played { world, records, .. } = &played;
    let ours: Vec<_> = arrived(records, played.from_ns, played.to_ns)
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
    let panel = world.answers_panel("answers a second by engine, others' included", records);
    outcome.picture.panel(panel);
    let crowd = |world: &World| {
        let name = "pointsman_proxy_engine_in_flight";
        world.line(|look| world.sampler.sum(look, name, &[("engine", CROWDED)]))
    };
    let panel = Panel::new("ours in flight at the crowded engine")
        .line("guarded", crowd(world))
        .line("not", crowd(&off.world))
        .bar(played.allowances[CROWDED]);
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

async fn play(args: &Args, alarm: &Rc<Alarm>, name: &str, plan: Plan) -> anyhow::Result<Played> {
    let mut world = World::start(args, alarm, name, plan, |cast| {
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
    let from_ns = world.mark("solver stands still");
    world.cast.freeze_solver(true)?;
    world.look_anew();
    let share = world.cast.weights("front", "chat")?[CROWDED];
    let mut allowances = BTreeMap::new();
    for engine in &world.cast.plan.engines {
        let allowance = world.cast.allowance("front", &engine.name)?;
        allowances.insert(engine.name.clone(), f64::from(allowance));
    }
    // As much again as it has from us.
    world.users.set_rate("others", (share * RATE_RPS).max(1.0));
    world.rest_looking(PROBES_WITHIN_S + 1.0).await?;
    world.rest(FROZEN_S - PROBES_WITHIN_S - 1.0).await?;
    let to_ns = world.mark("it goes on");
    world.cast.freeze_solver(false)?;
    world.look_anew();
    world.users.set_rate("others", 0.0);
    world.rest(AFTER_S).await?;
    let records = world.finish().await?;
    Ok(Played {
        world,
        records,
        share,
        allowances,
        from_ns,
        to_ns,
    })
}

/// Health checks that engines had while the solver could make none.
fn judge_probes(played: &Played, off: &Played, verdict: &mut Verdict) {
    let mut latest: Option<f64> = Some(0.0);
    for (engine, at_s) in probes(played) {
        verdict.note(&format!("probe_of_{engine}_s"), at_s);
        latest = latest.zip(at_s).map(|(latest, at_s)| latest.max(at_s));
    }
    verdict.measure(
        "probed_s",
        latest,
        Bar::AtMost(PROBES_WITHIN_S),
        "seconds until the proxy asked every engine itself",
    );
    let without = probes(off).into_iter().filter(|(_, at_s)| at_s.is_some());
    verdict.measure(
        "off_probed",
        Some(without.count() as f64),
        Bar::AtMost(0.0),
        "without guardrails: engines that were asked at all (or the drill is void)",
    );
}

/// When each engine was first asked, seconds after the solver stood still.
fn probes(played: &Played) -> Vec<(String, Option<f64>)> {
    let looks = played.world.sampler.looks();
    // A check of the solver's that was on its way arrives within the first second.
    let frozen = within(&looks, played.from_ns + 1_000_000_000, played.to_ns);
    let engines = played.world.cast.plan.engines.iter();
    let first = |name: &str| {
        let checks = |look: &Look| look.engine(name, "/paths/~1health").unwrap_or(0.0);
        let before = checks(frozen.first()?);
        let probed = frozen.iter().find(|look| checks(look) > before)?;
        Some((probed.at_ns - played.from_ns) as f64 / 1e9)
    };
    engines
        .map(|engine| (engine.name.clone(), first(&engine.name)))
        .collect()
}

/// No engine over its allowance; without allowances the crowded one was.
fn judge_allowances(played: &Played, off: &Played, verdict: &mut Verdict) {
    verdict.note("allowances", json!(played.allowances));
    verdict.measure(
        "off_most_over_allowance",
        most_over(off, &played.allowances),
        Bar::Above(OVERSHOOT),
        "without guardrails: most of ours at an engine beyond them (or the drill is void)",
    );
    verdict.measure(
        "most_over_allowance",
        most_over(played, &played.allowances),
        Bar::AtMost(OVERSHOOT),
        "most requests of ours at an engine beyond its allowance",
    );
}

/// Most in flight at an engine beyond its allowance, by the proxy's own count at each look: what
/// the engine counts has others' requests in it.
fn most_over(played: &Played, allowances: &BTreeMap<String, f64>) -> Option<f64> {
    let looks = played.world.sampler.looks();
    let fresh_ns = played.from_ns + (FRESH_S * 1e9) as u64;
    let frozen = within(&looks, played.from_ns, fresh_ns);
    let over = allowances.iter().flat_map(|(engine, allowance)| {
        let labels = [("engine", &**engine)];
        frozen.iter().filter_map(move |look| {
            let name = "pointsman_proxy_engine_in_flight";
            Some(played.world.sampler.sum(look, name, &labels)? - allowance)
        })
    });
    over.reduce(f64::max)
}
