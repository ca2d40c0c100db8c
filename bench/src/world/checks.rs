//! The three phases of `--once` and what must hold in each.
//!
//! Everything is measured from the users' side: which engine answered is in the answer itself, and
//! a phase counts the requests that started in it. Random arrivals make a share wobble; the bounds
//! are some four standard deviations wide at the numbers of requests counted.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::scene::{Demand, OUTSIDE, REGIONS};
use super::screen::Screen;
use super::stage::Stage;
use super::traffic::{Counts, Traffic};
use crate::load::{Connection, Seen};

/// Index of each frontend in [`REGIONS`].
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
const ALL: [usize; 3] = [A, B, C];

/// Requests of B's that the first share is measured over.
const SHARE_REQUESTS: u64 = 5_000;
/// B's demand in the second phase.
const MORE_RPS: f64 = 140.0;
/// Ticks of the solver after its average has settled.
const TICKS_AFTER: u64 = 3;
/// How long the second share is measured.
const MEASURED: Duration = Duration::from_secs(30);
/// How long requests must go on without solver and engine.
const ALONE: Duration = Duration::from_secs(20);
/// Requests of B and C together that this must be, at least: half of what is expected.
const ALONE_REQUESTS: u64 = 900;

/// What was checked and how it came out.
pub(super) struct Verdicts {
    screen: Rc<Screen>,
    made: usize,
    failed: usize,
}

impl Verdicts {
    /// No checks yet.
    pub(super) fn new(screen: Rc<Screen>) -> Self {
        Self {
            screen,
            made: 0,
            failed: 0,
        }
    }

    /// Checks made.
    pub(super) fn made(&self) -> usize {
        self.made
    }

    /// Checks that do not hold.
    pub(super) fn failed(&self) -> usize {
        self.failed
    }

    fn phase(&self, text: &str) {
        self.screen.say(text);
    }

    fn check(&mut self, holds: bool, text: &str) {
        self.made += 1;
        self.failed += usize::from(!holds);
        self.screen.say(&format!(
            "  {:<7} {text}",
            if holds { "ok" } else { "FAILED" }
        ));
    }
}

/// Runs the three phases.
pub(super) async fn three_phases(
    stage: &mut Stage<'_>,
    verdicts: &mut Verdicts,
) -> anyhow::Result<()> {
    let traffic = stage.traffic()?;
    as_configured(stage, &traffic, verdicts).await?;
    demand_rises(stage, &traffic, verdicts).await?;
    solver_and_engine_end(stage, &traffic, verdicts).await?;
    let outside = stage.engine_stats(OUTSIDE.0).await?;
    let requests = outside["requests"]
        .as_u64()
        .context("no count of requests")?;
    let text = format!(
        "{} is not eligible and was sent {requests} requests (0)",
        OUTSIDE.0
    );
    verdicts.check(requests == 0, &text);
    Ok(())
}

/// Phase 1: demand as configured.
async fn as_configured(
    stage: &mut Stage<'_>,
    traffic: &Rc<Traffic>,
    verdicts: &mut Verdicts,
) -> anyhow::Result<()> {
    verdicts.phase("1. demand as configured: A 90, B 120, C 40 requests/s");
    let epoch = traffic.begin_epoch();
    let within = Duration::from_secs(180);
    let enough = stage
        .wait_until(within, async |_| {
            traffic.counts(epoch, B).answers() >= SHARE_REQUESTS
        })
        .await?;
    let counts = traffic.counts(epoch, B);
    let (share, planned) = (100.0 * counts.share("C"), 100.0 * 20.0 / 120.0);
    let text = format!(
        "B sends C {share:.1} % of {} requests; 20/120 is {planned:.1} % (within 2)",
        counts.answers()
    );
    verdicts.check(enough && (share - planned).abs() <= 2.0, &text);
    none_failed(traffic, &[epoch], &ALL, verdicts);
    Ok(())
}

/// Phase 2: B sends more, and the solver sees it in the signal pages.
async fn demand_rises(
    stage: &mut Stage<'_>,
    traffic: &Rc<Traffic>,
    verdicts: &mut Verdicts,
) -> anyhow::Result<()> {
    verdicts.phase("2. B sends 140 requests/s; demand is what the proxies see");
    let first = traffic.begin_epoch();
    stage.start_solver(Demand::Signals).await?;
    traffic.set_rate(B, MORE_RPS);
    let mut settled_at = None;
    let within = Duration::from_secs(120);
    let view = stage.view();
    let settled = stage
        .wait_until(within, async |_| {
            let Some(status) = view.status().await else {
                return false;
            };
            let frontend = status.frontend(REGIONS[B].0);
            let steady =
                frontend.is_some_and(|frontend| frontend.classes.iter().all(|class| class.settled));
            if settled_at.is_none() && steady && status.demand_source == "signals" {
                settled_at = Some(status.ticks);
            }
            settled_at.is_some_and(|ticks| status.ticks >= ticks + TICKS_AFTER)
        })
        .await?;
    verdicts.check(
        settled,
        &format!("the average settled and {TICKS_AFTER} ticks passed"),
    );
    let epoch = traffic.begin_epoch();
    let (mut demands, mut planned) = (Vec::new(), Vec::new());
    stage
        .wait_until(MEASURED, async |_| {
            if let Some(status) = view.status().await
                && let Some(frontend) = status.frontend(REGIONS[B].0)
            {
                let demand = frontend.demand_rps;
                demands.push(demand);
                planned.push(100.0 * (demand - 100.0) / demand);
            }
            false
        })
        .await?;
    ensure!(!demands.is_empty(), "the solver's status told no demand");
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (demand, planned) = (mean(&demands), mean(&planned));
    let counts = traffic.counts(epoch, B);
    let share = 100.0 * counts.share("C");
    let text = format!(
        "B sends C {share:.1} % of {} requests; the solver's d is {demand:.1}/s and (d-100)/d is \
         {planned:.1} % (within 3)",
        counts.answers()
    );
    verdicts.check(
        counts.answers() > 0 && (share - planned).abs() <= 3.0,
        &text,
    );
    none_failed(traffic, &[first, epoch], &ALL, verdicts);
    Ok(())
}

/// Phase 3: half the demand, no solver, no engine in C.
async fn solver_and_engine_end(
    stage: &mut Stage<'_>,
    traffic: &Rc<Traffic>,
    verdicts: &mut Verdicts,
) -> anyhow::Result<()> {
    verdicts.phase("3. all demand is halved, the solver stopped, and C's engine killed");
    let before = traffic.begin_epoch();
    for (frontend, rate_rps) in [REGIONS[A].1, MORE_RPS, REGIONS[C].1]
        .into_iter()
        .enumerate()
    {
        traffic.set_rate(frontend, rate_rps / 2.0);
    }
    stage.rest(Duration::from_secs(3)).await?;
    stage.stop_solver().await?;
    stage.rest(Duration::from_secs(2)).await?;
    let stats = stage.engine_stats("C").await?;
    let at_kill = stats["active"]
        .as_u64()
        .context("no count of active requests")?;
    let after = traffic.begin_epoch();
    stage.kill_engine("C").await?;
    stage.rest(ALONE).await?;
    for frontend in ALL {
        traffic.set_rate(frontend, 0.0);
    }
    let done = stage
        .wait_until(Duration::from_secs(30), async |_| {
            ALL.iter().all(|&frontend| {
                [before, after]
                    .iter()
                    .all(|&epoch| traffic.counts(epoch, frontend).under_way() == 0)
            })
        })
        .await?;
    verdicts.check(done, "every request that started has ended");
    judge_the_end(traffic, before, after, at_kill, verdicts);
    Ok(())
}

fn judge_the_end(
    traffic: &Traffic,
    before: u64,
    after: u64,
    at_kill: u64,
    verdicts: &mut Verdicts,
) {
    for frontend in [B, C] {
        let counts = traffic.counts(after, frontend);
        let text = format!(
            "{} goes on: {} of {} requests after the kill answered, by {}",
            REGIONS[frontend].0,
            counts.answers(),
            counts.started,
            engines(&counts)
        );
        verdicts.check(counts.answers() > 0 && counts.failures() == 0, &text);
        if counts.failures() > 0 {
            verdicts.phase(&format!("          failures: {:?}", counts.failed));
        }
    }
    let alone = traffic.counts(after, B).plus(&traffic.counts(after, C));
    let text = format!(
        "B and C: {} answers without solver and engine",
        alone.answers()
    );
    verdicts.check(alone.answers() >= ALONE_REQUESTS, &text);
    let earlier = ALL
        .iter()
        .map(|&frontend| traffic.counts(before, frontend))
        .fold(Counts::default(), |sum, one| sum.plus(&one));
    let text = format!(
        "of {at_kill} requests under way at C's engine when it was killed, {} broke {:?} (no more)",
        earlier.failures(),
        earlier.failed
    );
    verdicts.check(earlier.failures() <= at_kill, &text);
    let all = ALL
        .iter()
        .map(|&frontend| traffic.counts(after, frontend))
        .fold(Counts::default(), |sum, one| sum.plus(&one));
    let outside = all
        .answered
        .keys()
        .any(|engine| engine != "A" && engine != "B");
    verdicts.check(
        !outside,
        &format!("only A and B answered after the kill: {}", engines(&all)),
    );
}

/// Streams through the proxy to real engines: all complete.
pub(super) async fn real_engines(stage: &Stage<'_>, verdicts: &mut Verdicts) -> anyhow::Result<()> {
    const STREAMS: u64 = 8;
    let template = stage.template();
    for (frontend, address) in stage.listen_addresses()? {
        let (mut complete, mut bytes, mut last) = (0, 0, String::new());
        for number in 0..STREAMS {
            let mut seen = Seen::default();
            let outcome = match Connection::open(address).await {
                Ok(mut connection) => {
                    connection
                        .exchange(&template.request(number), &mut seen, |_, _| {})
                        .await
                }
                Err(failure) => Err(failure),
            };
            bytes += seen.body_bytes;
            match (outcome, seen.status) {
                (Ok(()), Some(200)) => complete += 1,
                (Ok(()), status) => last = format!(", last status {}", status.unwrap_or(0)),
                (Err(failure), _) => last = format!(", last failure: {failure}"),
            }
        }
        let text = format!(
            "{complete} of {STREAMS} streams through {frontend} complete, {bytes} bytes{last}"
        );
        verdicts.check(complete == STREAMS, &text);
    }
    Ok(())
}

/// Checks that no request of these epochs has failed.
fn none_failed(traffic: &Traffic, epochs: &[u64], frontends: &[usize], verdicts: &mut Verdicts) {
    let mut sum = Counts::default();
    for &epoch in epochs {
        for &frontend in frontends {
            sum = sum.plus(&traffic.counts(epoch, frontend));
        }
    }
    let mut text = format!(
        "{} requests answered, {} failed (0)",
        sum.answers(),
        sum.failures()
    );
    if sum.failures() > 0 {
        text.push_str(&format!(": {:?}", sum.failed));
    }
    verdicts.check(sum.failures() == 0, &text);
}

/// Answers by engine, in words.
fn engines(counts: &Counts) -> String {
    let parts: Vec<String> = counts
        .answered
        .iter()
        .map(|(engine, count)| format!("{engine} {count}"))
        .collect();
    parts.join(", ")
}
