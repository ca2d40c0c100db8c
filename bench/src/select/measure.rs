//! The measured loops: each call alone between two readings of the counter, or sixteen at a time.
//!
//! A call alone is serialised and pays for the counter; a batch shows what calls cost when the
//! processor may overlap them, as it does inside a request's other work. Nothing is subtracted.

use std::hint::black_box;

use anyhow::{bail, ensure};
use hdrhistogram::Histogram;

use super::cpu;
use super::keys::{Ask, Asks};
use super::subject::Subject;
use crate::sys::monotonic_ns;

/// Calls of a batch.
pub(super) const BATCH: usize = 16;
/// Longest sample that is told apart from a longer one, in ticks: a second and more.
const MOST_TICKS: u64 = u32::MAX as u64;
/// A thread that was away comes back to caches that others filled: this long after, its samples
/// say something about itself again.
const SETTLED_NS: u64 = 4_000_000;
/// A row that takes longer has failed.
const WATCHDOG_NS: u64 = 60_000_000_000;

/// How long a row is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Least time.
    pub(super) span_ns: u64,
    /// Least samples.
    pub(super) samples: u64,
    /// Least policies taken up meanwhile.
    pub(super) policies: u64,
    /// Samples between two checks of an answer, each beside a look at the clock. A check touches
    /// memory that the calls do not, so it must be rarer than the percentiles that count.
    pub(super) stretch: u64,
    /// Samples that are taken and forgotten first.
    pub(super) warmup: u64,
}

/// What a row's calls came to.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    /// Ticks of each sample.
    pub(super) ticks: Histogram<u64>,
    /// Calls of one sample.
    pub(super) calls_each: usize,
    /// Time it took in all.
    pub(super) span_ns: u64,
    /// Answers that were checked and right; a wrong one is an error.
    pub(super) checked: u64,
    /// Policies taken up meanwhile.
    pub(super) policies: u64,
    /// Ticks of the samples that nothing disturbed: none for [`SETTLED_NS`] before.
    pub(super) quiet: Histogram<u64>,
    /// Times that the kernel gave the core to somebody else.
    pub(super) switches: u64,
}

/// How calls are put between two readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grouping {
    /// One.
    Single,
    /// [`BATCH`].
    Batched,
}

/// Measures a subject.
pub(super) fn measure(
    subject: &mut impl Subject,
    asks: &mut Asks,
    grouping: Grouping,
    window: Window,
) -> anyhow::Result<Taken> {
    match grouping {
        Grouping::Single => run::<1>(subject, asks, window),
        Grouping::Batched => run::<BATCH>(subject, asks, window),
    }
}

fn run<const CALLS: usize>(
    subject: &mut impl Subject,
    asks: &mut Asks,
    window: Window,
) -> anyhow::Result<Taken> {
    for _ in 0..window.warmup {
        sample::<CALLS>(subject, asks);
    }
    let mut taken = Taken::none(CALLS)?;
    let (began_ns, policies) = (monotonic_ns(), subject.taken_up());
    let mut calm = Calm::begin(began_ns);
    // Half as wide as a reading, so that fewer lines of the nearest cache are theirs: seconds fit.
    let mut stretch = Vec::with_capacity(window.stretch as usize);
    let narrow = |spent: u64| u32::try_from(spent).unwrap_or(u32::MAX);
    loop {
        stretch.clear();
        for _ in 1..window.stretch {
            stretch.push(narrow(sample::<CALLS>(subject, asks).0));
        }
        let before = subject.taken_up();
        let (spent, asked, chosen) = sample::<CALLS>(subject, asks);
        stretch.push(narrow(spent));
        // A policy that came inside a batch: only the last call is sure to have gone by it.
        let unsure = if subject.taken_up() == before {
            0
        } else {
            CALLS - 1
        };
        for (nth, (ask, chosen)) in asked.iter().zip(chosen).enumerate() {
            check(subject, ask, chosen, nth >= unsure)?;
            taken.checked += 1;
        }
        let now_ns = monotonic_ns();
        taken.record(&stretch, calm.held_until(now_ns));
        taken.span_ns = now_ns - began_ns;
        taken.policies = subject.taken_up() - policies;
        let enough = taken.ticks.len() >= window.samples && taken.policies >= window.policies;
        if enough && taken.span_ns >= window.span_ns {
            taken.switches = calm.switches;
            return Ok(taken);
        }
        ensure!(
            taken.span_ns < WATCHDOG_NS.max(window.span_ns * 2),
            "only {} of {} policies came in {} s",
            taken.policies,
            window.policies,
            taken.span_ns / 1_000_000_000
        );
    }
}

/// Knows how long the thread has had its core to itself.
struct Calm {
    count: u64,
    since_ns: u64,
    stretch_ns: u64,
    switches: u64,
}

impl Calm {
    fn begin(now_ns: u64) -> Self {
        Self {
            count: cpu::switches(),
            since_ns: now_ns.saturating_sub(SETTLED_NS),
            stretch_ns: now_ns,
            switches: 0,
        }
    }

    /// Ends a stretch: whether nothing disturbed it, nor the time before it.
    fn held_until(&mut self, now_ns: u64) -> bool {
        let lost = cpu::switches().saturating_sub(self.count);
        let begun_ns = std::mem::replace(&mut self.stretch_ns, now_ns);
        self.count += lost;
        self.switches += lost;
        if lost > 0 {
            self.since_ns = now_ns;
        }
        begun_ns >= self.since_ns.saturating_add(SETTLED_NS)
    }
}

impl Taken {
    fn none(calls_each: usize) -> anyhow::Result<Self> {
        let ticks = Histogram::new_with_bounds(1, MOST_TICKS, 3)?;
        Ok(Self {
            quiet: ticks.clone(),
            ticks,
            calls_each,
            span_ns: 0,
            checked: 0,
            policies: 0,
            switches: 0,
        })
    }

    fn record(&mut self, stretch: &[u32], is_quiet: bool) {
        for spent in stretch.iter().copied().map(u64::from) {
            self.ticks.saturating_record(spent);
            if is_quiet {
                self.quiet.saturating_record(spent);
            }
        }
    }
}

/// Makes `calls` calls after as many as there are keys: for a profiler, which is told to count
/// nothing but [`counted`].
pub(super) fn repeat(subject: &mut impl Subject, asks: &mut Asks, calls: u64) {
    for _ in 0..asks.count() {
        let ask = asks.next();
        subject.prepare(&ask);
        black_box(subject.choose(&ask));
    }
    for _ in 0..calls {
        let ask = asks.next();
        subject.prepare(&ask);
        black_box(counted(subject, black_box(&ask)));
    }
}

/// One call, as a function of its own.
#[inline(never)]
fn counted(subject: &mut impl Subject, ask: &Ask) -> Option<u16> {
    subject.choose(ask)
}

/// Takes one sample: its ticks, what was asked and what was answered.
#[inline(always)]
fn sample<const CALLS: usize>(
    subject: &mut impl Subject,
    asks: &mut Asks,
) -> (u64, [Ask; CALLS], [Option<u16>; CALLS]) {
    let asked: [Ask; CALLS] = std::array::from_fn(|_| asks.next());
    asked.iter().for_each(|ask| subject.prepare(ask));
    let mut chosen = [None; CALLS];
    let start = cpu::ticks();
    for (ask, chosen) in black_box(&asked).iter().zip(&mut chosen) {
        *chosen = subject.choose(ask);
    }
    black_box(&mut chosen);
    let end = cpu::ticks();
    (end.wrapping_sub(start), asked, chosen)
}

fn check(subject: &impl Subject, ask: &Ask, chosen: Option<u16>, sure: bool) -> anyhow::Result<()> {
    let key = String::from_utf8_lossy(&ask.key);
    let class = ask.class;
    let Some(engine) = chosen else {
        bail!("key {key} of class {class} was refused, though no engine refuses");
    };
    ensure!(
        subject.is_eligible(ask, engine),
        "key {key} of class {class} went to engine {engine}, which is not eligible"
    );
    ensure!(
        !sure || subject.is_right(ask, engine),
        "key {key} of class {class} went to engine {engine}, where it does not belong"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::keys::Order;
    use super::*;

    /// Answers 0, and something else at one call.
    struct Counting {
        calls: u64,
        odd_at: u64,
        odd: Option<u16>,
    }

    impl Subject for Counting {
        fn prepare(&mut self, _: &Ask) {}

        fn choose(&mut self, _: &Ask) -> Option<u16> {
            self.calls += 1;
            if self.calls == self.odd_at {
                self.odd
            } else {
                Some(0)
            }
        }

        fn is_eligible(&self, _: &Ask, chosen: u16) -> bool {
            chosen < 2
        }

        fn is_right(&self, _: &Ask, chosen: u16) -> bool {
            chosen == 0
        }

        fn taken_up(&self) -> u64 {
            self.calls / 100
        }
    }

    const WINDOW: Window = Window {
        span_ns: 0,
        samples: 10,
        policies: 0,
        stretch: 1,
        warmup: 5,
    };

    fn counted(
        grouping: Grouping,
        window: Window,
        odd_at: u64,
        odd: Option<u16>,
    ) -> (anyhow::Result<Taken>, u64) {
        let mut subject = Counting {
            calls: 0,
            odd_at,
            odd,
        };
        let mut asks = Asks::new(16, 1, Order::InTurn, 1);
        let taken = measure(&mut subject, &mut asks, grouping, window);
        (taken, subject.calls)
    }

    #[test]
    fn a_window_ends_when_it_has_its_samples_and_policies() {
        let (taken, calls) = counted(Grouping::Single, WINDOW, 0, None);
        let taken = taken.unwrap();
        assert_eq!((taken.ticks.len(), taken.checked, calls), (10, 10, 15));
        let (taken, calls) = counted(Grouping::Batched, WINDOW, 0, None);
        let taken = taken.unwrap();
        assert_eq!((taken.ticks.len(), taken.checked, calls), (10, 160, 240));
        assert_eq!(taken.calls_each, BATCH);
        let window = Window {
            policies: 3,
            stretch: 4,
            ..WINDOW
        };
        let taken = counted(Grouping::Single, window, 0, None).0.unwrap();
        assert_eq!(
            (taken.policies, taken.ticks.len(), taken.checked),
            (3, 296, 74)
        );
    }

    #[test]
    fn a_refusal_and_a_wrong_engine_are_errors() {
        let refused = |grouping, odd_at, odd| {
            let error = counted(grouping, WINDOW, odd_at, odd).0.unwrap_err();
            error.to_string()
        };
        let text = refused(Grouping::Single, 8, None);
        assert!(text.contains("was refused"), "{text}");
        let text = refused(Grouping::Single, 8, Some(2));
        assert!(text.contains("engine 2, which is not eligible"), "{text}");
        let text = refused(Grouping::Batched, 130, Some(1));
        assert!(
            text.contains("engine 1, where it does not belong"),
            "{text}"
        );
    }

    #[test]
    fn an_answer_by_the_policy_before_need_only_be_eligible() {
        // The seventh batch is calls 97 to 112, and the policy changes at the hundredth.
        let old = counted(Grouping::Batched, WINDOW, 98, Some(1)).0;
        assert_eq!(old.unwrap().checked, 160);
        assert!(counted(Grouping::Batched, WINDOW, 98, Some(2)).0.is_err());
        assert!(counted(Grouping::Batched, WINDOW, 112, Some(1)).0.is_err());
    }
}
