//! A drill's world while it runs: processes, users and sampler on one line of time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use super::Args;
use super::cast::Cast;
use super::picture::{Panel, Picture};
use super::plan::Plan;
use super::record::{Outcome, Record};
use super::sampler::{Look, Pages, Sampler};
use super::users::{Group, Keys, Tries, Users};
use crate::alarm::Alarm;
use crate::sys::monotonic_ns;

/// Longest wait for requests under way once nobody asks any more.
const LAST_WITHIN: Duration = Duration::from_secs(35);
/// Time between two looks where it matters when something happens.
const CLOSE_LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time of one point in a picture.
const STEP_NS: u64 = 1_000_000_000;

/// A running world.
pub(super) struct World {
    pub(super) cast: Cast,
    pub(super) users: Rc<Users>,
    pub(super) sampler: Rc<Sampler>,
    began_ns: u64,
    marks: RefCell<Vec<(u64, String)>>,
}

impl World {
    /// Starts a world whose users are silent. `name` tells it apart from others of this process.
    pub(super) async fn start(
        args: &Args,
        alarm: &Rc<Alarm>,
        name: &str,
        plan: Plan,
        groups: impl FnOnce(&Cast) -> Vec<Group>,
    ) -> anyhow::Result<Self> {
        let cast = Cast::start(args, name, plan).await?;
        let users = Users::start(alarm, groups(&cast), args.seed);
        let sampler = Sampler::start(pages(&cast));
        Ok(Self {
            cast,
            users,
            sampler,
            began_ns: monotonic_ns(),
            marks: RefCell::default(),
        })
    }

    /// Notes that something is done to the world now; when.
    pub(super) fn mark(&self, text: &str) -> u64 {
        let now_ns = monotonic_ns();
        tracing::info!(at_s = self.seconds(now_ns), "{text}");
        self.marks.borrow_mut().push((now_ns, text.to_owned()));
        now_ns
    }

    /// Lets time pass while all processes run; the moment after it.
    pub(super) async fn rest(&mut self, seconds: f64) -> anyhow::Result<u64> {
        self.cast.rest(Duration::from_secs_f64(seconds)).await?;
        Ok(monotonic_ns())
    }

    /// The same, and looks at everything all the time: for what is to happen within a bar.
    pub(super) async fn rest_looking(&mut self, seconds: f64) -> anyhow::Result<u64> {
        let until_ns = monotonic_ns() + (seconds * 1e9) as u64;
        while monotonic_ns() < until_ns {
            self.cast.rest(CLOSE_LOOK_EVERY).await?;
            self.sampler.look().await;
        }
        Ok(monotonic_ns())
    }

    /// Looks at the processes that are there now from now on.
    pub(super) fn look_anew(&self) {
        self.sampler.set_pages(pages(&self.cast));
    }

    /// Ends the users, waits for their last requests, and looks a last time. All records.
    pub(super) async fn finish(&mut self) -> anyhow::Result<Vec<Record>> {
        self.users.pause();
        let deadline = tokio::time::Instant::now() + LAST_WITHIN;
        while self.users.under_way() > 0 && tokio::time::Instant::now() < deadline {
            self.cast.rest(Duration::from_millis(100)).await?;
        }
        self.sampler.look().await;
        self.sampler.end();
        Ok(self.users.records())
    }

    /// Seconds since this world began.
    pub(super) fn seconds(&self, at_ns: u64) -> f64 {
        at_ns.saturating_sub(self.began_ns) as f64 / 1e9
    }

    /// Adds this world's marks to a picture.
    pub(super) fn draw_marks(&self, picture: &mut Picture) {
        for (at_ns, text) in self.marks.borrow().iter() {
            picture.mark(self.seconds(*at_ns), text);
        }
    }

    /// Answers a second by engine, and what was not answered, over time.
    pub(super) fn answers_panel(&self, title: &str, records: &[Record]) -> Panel {
        let mut lines: BTreeMap<String, BTreeMap<u64, f64>> = BTreeMap::new();
        for record in records {
            let name = match (record.outcome, record.engine) {
                (Outcome::Answered, Some(engine)) => self.users.engine(engine),
                (outcome, _) => outcome.name(),
            };
            let step = record.arrived_ns.saturating_sub(self.began_ns) / STEP_NS;
            *lines.entry(name).or_default().entry(step).or_default() += 1.0;
        }
        let steps = |line: &BTreeMap<u64, f64>| line.keys().next_back().copied();
        let last = lines.values().filter_map(steps).max().unwrap_or(0);
        let mut panel = Panel::new(title);
        for (name, line) in lines {
            let point = |step| (step as f64 + 0.5, line.get(&step).copied().unwrap_or(0.0));
            panel = panel.line(&name, (0..=last).map(point).collect());
        }
        panel
    }

    /// A quantile of the TTFT of each second's arrivals, milliseconds.
    pub(super) fn ttft_line(&self, records: &[Record], quantile: f64) -> Vec<(f64, f64)> {
        let mut seconds: BTreeMap<u64, Vec<&Record>> = BTreeMap::new();
        for record in records {
            let step = record.arrived_ns.saturating_sub(self.began_ns) / STEP_NS;
            seconds.entry(step).or_default().push(record);
        }
        let point = |(step, records): (u64, Vec<&Record>)| {
            Some((
                step as f64 + 0.5,
                super::record::ttft_ms(&records, quantile)?,
            ))
        };
        seconds.into_iter().filter_map(point).collect()
    }

    /// A value of every look over time; looks without it are left out.
    pub(super) fn line(&self, of: impl Fn(&Look) -> Option<f64>) -> Vec<(f64, f64)> {
        let looks = self.sampler.looks();
        let point = |look: &Look| Some((self.seconds(look.at_ns), of(look)?));
        looks.iter().filter_map(point).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.users.end();
        self.sampler.end();
    }
}

/// The one group of a simple plan: many conversations, nobody tries again.
pub(super) fn chat(cast: &Cast, keys: Keys, tries: Tries) -> Group {
    Group {
        name: "chat",
        model: "chat".to_owned(),
        tokens: cast.plan.pace.tokens,
        targets: cast.listeners(&cast.plan.frontends[0].name),
        headers: Vec::new(),
        keys,
        tries,
    }
}

fn pages(cast: &Cast) -> Pages {
    Pages {
        proxies: cast.proxy_pages(),
        solver: cast.solver_page(),
        engines: cast.controls(),
    }
}
