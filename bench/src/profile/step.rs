//! One step of a sweep: requests at a load for a while, and what became of those in the middle.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::task::JoinSet;

use super::ask::{self, Answer, Failure};
use super::watch::Watch;
use super::{Arrivals, Row};
use crate::alarm::Alarm;
use crate::load::exponential_ns;
use crate::sys::monotonic_ns;

/// Longest that requests still under way are waited for at the end of a step, beside its length.
const DRAIN: Duration = Duration::from_secs(5);

/// What a step needs to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) load_rps: f64,
    pub(super) arrivals: Arrivals,
    /// Time before anything counts.
    pub(super) settle: Duration,
    /// Time that counts.
    pub(super) measured: Duration,
    /// Longest a request takes.
    pub(super) timeout: Duration,
    pub(super) max_in_flight: usize,
    pub(super) seed: u64,
}

/// What came of a step.
pub(super) struct Seen {
    /// Arrivals in the time that counts.
    arrived: u64,
    /// Whole answers that ended in it.
    completed: u64,
    answers: Vec<Answer>,
    failures: Vec<Failure>,
    seconds: f64,
}

/// A request's fate.
struct Fate {
    arrived_ns: u64,
    done_ns: u64,
    outcome: Result<Answer, Failure>,
}

/// Runs a step; `request` makes the bytes of each. Dropping the future leaves the engine.
pub(super) async fn run(
    plan: &Plan,
    address: SocketAddr,
    watch: &Rc<Watch>,
    alarm: &Rc<Alarm>,
    mut request: impl FnMut() -> Vec<u8>,
) -> Seen {
    let fates: Rc<RefCell<Vec<Fate>>> = Rc::default();
    let mut tasks = JoinSet::new();
    let mut rng = SmallRng::seed_from_u64(plan.seed);
    let begun_ns = monotonic_ns();
    let from_ns = begun_ns + nanoseconds(plan.settle);
    let to_ns = from_ns + nanoseconds(plan.measured);
    let (mut next_ns, mut arrived) = (begun_ns, 0);
    loop {
        next_ns += match plan.arrivals {
            Arrivals::Poisson => exponential_ns(plan.load_rps, &mut rng),
            Arrivals::Even => (1e9 / plan.load_rps) as u64,
        };
        if next_ns >= to_ns {
            break;
        }
        let bytes = request();
        alarm.until(next_ns).await;
        arrived += u64::from(next_ns >= from_ns);
        let (fates, watch, timeout) = (Rc::clone(&fates), Rc::clone(watch), plan.timeout);
        let is_full = watch.in_flight() >= plan.max_in_flight;
        tasks.spawn_local(async move {
            let outcome = match is_full {
                true => Err(Failure::Broken("--max-in-flight is reached".to_owned())),
                false => {
                    let _present = watch.enter();
                    ask::ask(address, &bytes, timeout).await
                }
            };
            fates.borrow_mut().push(Fate {
                arrived_ns: next_ns,
                done_ns: monotonic_ns(),
                outcome,
            });
        });
        // What has ended is not kept.
        while tasks.try_join_next().is_some() {}
    }
    alarm.until(to_ns).await;
    let drain = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(plan.measured + DRAIN, drain).await;
    tasks.shutdown().await;
    let fates = fates.take();
    seen(arrived, &fates, (from_ns, to_ns))
}

fn seen(arrived: u64, fates: &[Fate], (from_ns, to_ns): (u64, u64)) -> Seen {
    let within = |at_ns: u64| (from_ns..to_ns).contains(&at_ns);
    let completed = fates
        .iter()
        .filter(|f| f.outcome.is_ok() && within(f.done_ns));
    let counted = || fates.iter().filter(|f| within(f.arrived_ns));
    Seen {
        arrived,
        completed: completed.count() as u64,
        answers: counted()
            .filter_map(|f| f.outcome.as_ref().ok().copied())
            .collect(),
        failures: counted()
            .filter_map(|f| f.outcome.as_ref().err().cloned())
            .collect(),
        seconds: (to_ns - from_ns) as f64 / 1e9,
    }
}

impl Seen {
    /// The first failure, where nothing succeeded.
    pub(super) fn only_failures(&self) -> Option<&Failure> {
        self.failures.first().filter(|_| self.answers.is_empty())
    }

    /// Shortest time a connection took: the network's round trip, milliseconds.
    pub(super) fn connect_ms(&self) -> Option<f64> {
        let least = self.answers.iter().map(|a| a.connect_ns).min();
        least.map(|ns| ns as f64 / 1e6)
    }

    /// Mean time of a whole answer, seconds.
    pub(super) fn answer_s(&self) -> f64 {
        let sum: u64 = self.answers.iter().map(|a| a.ttft_ns + a.gaps_ns).sum();
        sum as f64 / 1e9 / self.answers.len().max(1) as f64
    }

    /// The step as a sample; without an answer there is none. `asked_tokens` stands for a prompt
    /// where the engine does not say how long it was.
    pub(super) fn row(&self, asked_tokens: u64) -> Option<Row> {
        let count = self.answers.len() as f64;
        if self.answers.is_empty() {
            return None;
        }
        let sum = |value: fn(&Answer) -> u64| self.answers.iter().map(value).sum::<u64>() as f64;
        let prompts = self
            .answers
            .iter()
            .map(|a| a.prompt_tokens.unwrap_or(asked_tokens));
        let prompt_tokens = prompts.sum::<u64>() as f64;
        let cached = sum(|a| a.cached_tokens.unwrap_or(0)).min(prompt_tokens);
        let gaps: Vec<f64> = self
            .answers
            .iter()
            .filter(|a| a.gaps > 0)
            .map(|a| a.gaps_ns as f64 / 1e6 / a.gaps as f64)
            .collect();
        let firsts = self
            .answers
            .iter()
            .map(|a| a.ttft_ns as f64 / 1e6)
            .collect();
        Some(Row {
            load_rps: self.arrived as f64 / self.seconds,
            completed_rps: self.completed as f64 / self.seconds,
            failed_share: self.failures.len() as f64 / self.arrived.max(1) as f64,
            prompt_tokens: prompt_tokens / count,
            hit_rate: cached / prompt_tokens.max(1.0),
            output_tokens: sum(|a| a.output_tokens) / count,
            ttft_ms: (sum(|a| a.ttft_ns) / 1e6 / count, median(firsts)),
            tbot_ms: (
                sum(|a| a.gaps_ns) / 1e6 / sum(|a| a.gaps).max(1.0),
                median(gaps),
            ),
            seconds: self.seconds,
            ..Row::default()
        })
    }
}

/// The middle value; 0 of nothing.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n => f64::midpoint(values[(n - 1) / 2], values[n / 2]),
    }
}

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fate(arrived_ns: u64, done_ns: u64, ttft_ms: u64) -> Fate {
        Fate {
            arrived_ns,
            done_ns,
            outcome: Ok(Answer {
                connect_ns: 1_000_000,
                ttft_ns: ttft_ms * 1_000_000,
                gaps_ns: 30_000_000,
                gaps: 3,
                prompt_tokens: Some(100),
                cached_tokens: Some(25),
                output_tokens: 4,
            }),
        }
    }

    #[test]
    fn what_arrived_in_the_middle_makes_the_sample_and_what_ended_there_the_rate() {
        const S: u64 = 1_000_000_000;
        let mut fates = vec![
            fate(S / 2, 3 * S / 2, 900),
            fate(S, 3 * S / 2, 40),
            fate(2 * S, 4 * S, 50),
            fate(2 * S, 3 * S / 2, 90),
        ];
        fates.push(Fate {
            outcome: Err(Failure::Timeout),
            ..fate(2 * S, 2 * S, 0)
        });
        let seen = seen(8, &fates, (S, 3 * S));
        let row = seen.row(7).unwrap();
        assert_eq!(
            (row.load_rps, row.completed_rps, row.failed_share),
            (4.0, 1.5, 0.125)
        );
        assert_eq!((row.ttft_ms, row.tbot_ms), ((60.0, 50.0), (10.0, 10.0)));
        assert_eq!(
            (row.prompt_tokens, row.hit_rate, row.output_tokens),
            (100.0, 0.25, 4.0)
        );
        assert_eq!((seen.connect_ms(), seen.only_failures()), (Some(1.0), None));
        assert!((seen.answer_s() - 0.09).abs() < 1e-9);
    }

    #[test]
    fn without_an_answer_there_is_no_sample() {
        let failed = Fate {
            outcome: Err(Failure::Timeout),
            ..fate(5, 6, 0)
        };
        let seen = seen(1, &[failed], (0, 10));
        assert_eq!(
            (seen.row(1), seen.only_failures()),
            (None, Some(&Failure::Timeout))
        );
        assert_eq!(seen.connect_ms(), None);
    }
}
