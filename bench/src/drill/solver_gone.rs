//! `solver-gone`: the solver is killed; then the policy file is cut short where it lies, replaced
//! by a damaged copy, and by one of another layout; at last a solver comes back.
//!
//! Nobody may notice: proxies serve by what they hold, and say so on their metric. Guardrails have no
//! part in that, which the same world without them beside it shows.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use super::alerts;
use super::plan::{Pace, Plan};
use super::record::{Record, answered, arrived, failures, homes};
use super::sampler::Look;
use super::users::{Keys, Tries};
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
const ENGINES: usize = 4;
const CAPACITY_RPS: f64 = 40.0;
const RATE_RPS: f64 = 80.0;
/// Each conversation asks about twice in five seconds.
const KEYS: Keys = Keys::Among(200);
/// Age at which a policy is stale, seconds.
const STALE_S: f64 = 3.0;
const ALERTS: [&str; 1] = ["PointsmanPolicyStale"];
/// Seconds of load before, between two harms, and after the solver is back.
const BEFORE_S: f64 = 8.0;
const BETWEEN_S: f64 = 6.0;
const BACK_S: f64 = 6.0;

/// Bytes at the start of a region file that a damaged copy keeps: its kind and layout.
const HEADER_BYTES: usize = 4_096;

/// A harm done to the policy file.
#[derive(Clone, Copy)]
enum Harm {
    /// It is cut short in place: what is mapped beyond its end is no more.
    Truncated,
    /// Its copy, with other bytes behind the header, is in its place.
    Corrupt,
    /// Another file is in its place, whose layout nobody knows.
    Foreign,
}

/// Runs the drill.
pub(super) async fn run(args: &Args, alarm: &Rc<Alarm>) -> anyhow::Result<Outcome> {
    let mut plan = Plan::simple(ENGINES, CAPACITY_RPS, RATE_RPS, PACE);
    plan.proxy = format!("stale_after_s = {STALE_S}\n");
    let without = plan.clone().unguarded();
    let (played, off) = tokio::join!(
        play(args, alarm, "gone", plan),
        play(args, alarm, "gone-off", without)
    );
    let (played, off) = (played?, off?);
    let Played {
        world,
        records,
        mut verdict,
        gone,
    } = played;
    judge_answers("", &records, gone, &mut verdict);
    judge_answers("off_", &off.records, off.gone, &mut verdict);
    alerts::judge(&mut verdict, &args.rules, &world.sampler, &ALERTS).await;
    let mut outcome = Outcome {
        verdict,
        ..Outcome::default()
    };
    let panel = world.answers_panel("answers a second by engine", &records);
    outcome.picture.panel(panel);
    let age = |look: &Look| {
        let age = world
            .sampler
            .sum(look, "pointsman_proxy_policy_age_seconds", &[])?;
        age.is_finite().then_some(age)
    };
    let panel = super::picture::Panel::new("age of the policy, seconds");
    outcome
        .picture
        .panel(panel.line("age", world.line(age)).bar(STALE_S));
    world.draw_marks(&mut outcome.picture);
    Ok(outcome)
}

/// One world after all that.
struct Played {
    world: World,
    records: Vec<Record>,
    /// What it said of its rungs.
    verdict: Verdict,
    /// From the solver's death to its return.
    gone: (u64, u64),
}

async fn play(args: &Args, alarm: &Rc<Alarm>, name: &str, plan: Plan) -> anyhow::Result<Played> {
    let mut world = World::start(args, alarm, name, plan, |cast| {
        vec![chat(cast, KEYS, Tries::ONE)]
    })
    .await?;
    let mut verdict = Verdict::default();
    world.users.set_rate("chat", RATE_RPS);
    world.rest(BEFORE_S).await?;
    expect_rung(&world, "fresh", "while the solver runs", &mut verdict).await;
    let gone_ns = world.mark("solver killed");
    world.cast.kill_solver().await?;
    world.look_anew();
    world.rest(STALE_S + 2.0).await?;
    expect_rung(&world, "stale", "after the solver's death", &mut verdict).await;
    harm_the_file(args, &mut world, &mut verdict).await?;
    let back_ns = world.mark("solver starts");
    world.cast.start_solver().await?;
    world.look_anew();
    world.rest(BACK_S).await?;
    expect_rung(&world, "fresh", "once a solver is back", &mut verdict).await;
    let records = world.finish().await?;
    Ok(Played {
        world,
        records,
        verdict,
        gone: (gone_ns, back_ns),
    })
}

/// Harms the policy file in one way after the other.
async fn harm_the_file(
    args: &Args,
    world: &mut World,
    verdict: &mut Verdict,
) -> anyhow::Result<()> {
    let file = world.cast.region("front").join("policy");
    let good = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut rng = SmallRng::seed_from_u64(args.seed);
    for (harm, name) in [
        (Harm::Truncated, "truncated"),
        (Harm::Corrupt, "corrupt"),
        (Harm::Foreign, "foreign"),
    ] {
        let rejected = |look: &Look| {
            let name = "pointsman_proxy_policy_rejected_total";
            world.sampler.sum(look, name, &[])
        };
        let before = rejected(&world.sampler.last());
        world.mark(&format!("policy file {name}"));
        harm.apply(&file, &good, &mut rng)
            .with_context(|| format!("cannot harm {}", file.display()))?;
        world.cast.rest(Duration::from_secs_f64(BETWEEN_S)).await?;
        let after = format!("with a {name} policy file");
        expect_rung(world, "stale", &after, verdict).await;
        let noticed = rejected(&world.sampler.last()).zip(before);
        verdict.measure(
            &format!("rejected_{name}"),
            noticed.map(|(after, before)| after - before),
            Bar::AtLeast(1.0),
            &format!("{name} files that the proxy refused"),
        );
    }
    Ok(())
}

/// Nobody failed, and nobody moved from the solver's death to its return.
fn judge_answers(
    prefix: &str,
    records: &[Record],
    (gone_ns, back_ns): (u64, u64),
    verdict: &mut Verdict,
) {
    let all = arrived(records, 0, u64::MAX);
    verdict.note(&format!("{prefix}requests"), all.len());
    verdict.note(&format!("{prefix}failures"), json!(failures(&all)));
    let where_ = if prefix.is_empty() {
        ""
    } else {
        "without guardrails: "
    };
    verdict.measure(
        &format!("{prefix}failed"),
        (!all.is_empty()).then(|| (all.len() - answered(&all)) as f64),
        Bar::AtMost(0.0),
        &format!("{where_}requests that failed"),
    );
    let (before, _) = homes(&arrived(records, 0, gone_ns));
    let (_, torn) = homes(&arrived(records, gone_ns, back_ns));
    let (during, _) = homes(&arrived(records, gone_ns, back_ns));
    let elsewhere = during
        .iter()
        .filter(|(key, home)| before.get(key).is_some_and(|was| was != *home));
    verdict.note(&format!("{prefix}conversations"), during.len());
    verdict.measure(
        &format!("{prefix}moved"),
        (!during.is_empty()).then_some((torn.len() + elsewhere.count()) as f64),
        Bar::AtMost(0.0),
        &format!("{where_}conversations that moved while there was no solver"),
    );
}

/// The rung on which every proxy says it stands.
async fn expect_rung(world: &World, rung: &str, when: &str, verdict: &mut Verdict) {
    world.sampler.look().await;
    let name = "pointsman_proxy_policy_rung";
    let look = world.sampler.last();
    let stands = world.sampler.sum(&look, name, &[("rung", rung)]) == Some(1.0);
    verdict.check(stands, &format!("the rung is {rung} {when}"));
}

impl Harm {
    fn apply(self, file: &Path, good: &[u8], rng: &mut SmallRng) -> std::io::Result<()> {
        match self {
            Self::Truncated => {
                let open = std::fs::File::options().write(true).open(file)?;
                open.set_len(0)
            }
            Self::Corrupt => {
                let mut bytes = good.to_vec();
                for byte in bytes.iter_mut().skip(HEADER_BYTES).step_by(64) {
                    *byte ^= rng.random_range(1..=255_u8);
                }
                replace(file, &bytes)
            }
            Self::Foreign => {
                let mut bytes = vec![0_u8; 64 * 1_024];
                rng.fill(&mut bytes[..]);
                bytes[..8].copy_from_slice(b"NOTOURS\0");
                replace(file, &bytes)
            }
        }
    }
}

/// Puts a file in another's place at once.
fn replace(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let beside = file.with_extension("harmed");
    std::fs::write(&beside, bytes)?;
    std::fs::rename(&beside, file)
}
