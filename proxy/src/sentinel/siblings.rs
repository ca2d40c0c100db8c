//! The other proxy processes of this host: what they have in flight and what they are offered, from
//! their signal pages.
//!
//! There are others while one process takes over from another, and for as long as the older one's
//! last streams run. An allowance is the host's, so each takes what the others have off its own. A
//! page is read only while its process lives; nobody is asked, and a page that cannot be read counts
//! for nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use pointsman_shm::Error;
use pointsman_shm::id::{ClassSlot, EngineSlot, Generation};
use pointsman_shm::signals::{Flights, Instance, SignalsReader, list};

use crate::decide::allowance::Others;

/// Time between two looks for processes that came or went.
const LIST_NS: u64 = 500_000_000;
/// A process that began no attempt for so long only finishes what it has.
const SERVING_NS: u64 = 1_000_000_000;
/// Most processes that are looked at.
const MOST: usize = 64;

/// The other processes.
pub(super) struct Siblings {
    dir: PathBuf,
    /// This process's own page, once it has one.
    own: Option<(PathBuf, Instance)>,
    living: Vec<Sibling>,
    /// Pages of processes that have ended.
    ended: BTreeSet<PathBuf>,
    next_list_ns: u64,
    complaint: Option<String>,
    /// First attempts offered to all of them since each was first looked at.
    offered: Offered,
}

/// Counts of first attempts by class, with the life of its slot number.
type Offered = BTreeMap<ClassSlot, (Generation, u64)>;

/// One other process.
struct Sibling {
    page: SignalsReader,
    /// By rising slot.
    flights: Vec<Flights>,
    started: Option<u64>,
    /// When it last began an attempt, or was first seen.
    began_at_ns: u64,
    /// It was seen to begin one.
    has_begun: bool,
    /// What it was offered at the last look.
    offered: Offered,
}

impl Siblings {
    /// None known yet; their pages are in `dir`.
    pub(super) fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            own: None,
            living: Vec::new(),
            ended: BTreeSet::new(),
            next_list_ns: 0,
            complaint: None,
            offered: Offered::new(),
        }
    }

    /// Says which page is this process's own.
    pub(super) fn set_own(&mut self, page: &Path, instance: Instance) {
        self.own = Some((page.to_path_buf(), instance));
    }

    /// Whether this process is alone.
    pub(super) fn is_empty(&self) -> bool {
        self.living.is_empty()
    }

    /// Looks at them all; now and then also for others.
    pub(super) fn look(&mut self, now_ns: u64) {
        if now_ns >= self.next_list_ns {
            self.next_list_ns = now_ns + LIST_NS;
            let found = self.find(now_ns);
            self.complain(found);
        }
        let mut read = Ok(());
        for sibling in &mut self.living {
            if let Err(error) = sibling.read(now_ns) {
                read = Err(error);
            }
        }
        self.complain(read);
    }

    /// Takes in what they were offered since the last look. What one was offered before it was first
    /// looked at is old news.
    pub(super) fn look_at_demand(&mut self) {
        let mut read = Ok(());
        for sibling in &mut self.living {
            match sibling.page.offered() {
                Ok(offered) => sibling.tell_offered(offered, &mut self.offered),
                Err(error) => read = Err(error),
            }
        }
        self.complain(read);
    }

    /// First attempts of a class that they were offered, a count that only rises.
    pub(super) fn offered(&self, class: ClassSlot, life: Generation) -> u64 {
        let known = self.offered.get(&class);
        known.map_or(0, |&(of, count)| if of == life { count } else { 0 })
    }

    /// How many of them began an attempt lately. One that has just started serves nobody yet, though
    /// room is kept for it.
    pub(super) fn serving(&self, now_ns: u64) -> u32 {
        let own = self.own.as_ref().map(|(_, instance)| age(*instance));
        let serves = |sibling: &&Sibling| {
            let is_older = own.is_none_or(|own| age(sibling.page.instance()) < own);
            sibling.is_serving(now_ns) && (sibling.has_begun || is_older)
        };
        let serving = self.living.iter().filter(serves);
        u32::try_from(serving.count()).unwrap_or(u32::MAX)
    }

    /// What they have at an engine.
    pub(super) fn at(&self, slot: EngineSlot, life: Generation, now_ns: u64) -> Others {
        let own = self.own.as_ref().map(|(_, instance)| age(*instance));
        let mut others = Others::default();
        for sibling in &self.living {
            let there = sibling.in_flight(slot, life);
            others.in_flight = others.in_flight.saturating_add(there);
            if sibling.is_serving(now_ns) {
                others.serving += 1;
                // A process without a page of its own is the youngest.
                let is_older = own.is_none_or(|own| age(sibling.page.instance()) < own);
                others.older += u32::from(is_older);
            }
        }
        others
    }

    /// Lets go of those that have ended and takes up those that are new.
    fn find(&mut self, now_ns: u64) -> Result<(), Error> {
        let pages = list(&self.dir)?;
        self.ended.retain(|page| pages.contains(page));
        let mut trouble = None;
        self.living
            .retain_mut(|sibling| match sibling.page.alive() {
                Ok(is_alive) => is_alive,
                Err(error) => {
                    trouble = Some(error);
                    false
                }
            });
        for path in pages {
            let is_own = self.own.as_ref().is_some_and(|(own, _)| *own == path);
            let is_known = self.living.iter().any(|known| known.page.path() == path);
            if is_own || is_known || self.ended.contains(&path) || self.living.len() == MOST {
                continue;
            }
            let opened = SignalsReader::open(&path).and_then(|mut page| Ok((page.alive()?, page)));
            match opened {
                Ok((true, page)) => self.living.push(Sibling {
                    page,
                    flights: Vec::new(),
                    started: None,
                    began_at_ns: now_ns,
                    has_begun: false,
                    offered: Offered::new(),
                }),
                Ok((false, _)) => {
                    self.ended.insert(path);
                }
                // Gone since it was listed.
                Err(Error::Absent { .. }) => {}
                Err(error) => trouble = Some(error),
            }
        }
        trouble.map_or(Ok(()), Err)
    }

    fn complain(&mut self, result: Result<(), Error>) {
        let Err(error) = result else {
            return;
        };
        let text = error.to_string();
        if self.complaint.as_ref() != Some(&text) {
            tracing::warn!(%error, "another process's page cannot be read: its requests do not count");
            self.complaint = Some(text);
        }
    }
}

impl Sibling {
    fn read(&mut self, now_ns: u64) -> Result<(), Error> {
        self.flights = self.page.flights()?;
        let counts = self.flights.iter().map(|at| at.started);
        let started = counts.fold(0, u64::saturating_add);
        if self.started.is_some_and(|before| started > before) {
            self.began_at_ns = now_ns;
            self.has_begun = true;
        }
        self.started = Some(started);
        Ok(())
    }

    /// Adds to `sum` what it was offered since it was last asked.
    fn tell_offered(&mut self, offered: Vec<(ClassSlot, Generation, u64)>, sum: &mut Offered) {
        for (class, life, count) in offered {
            let before = self.offered.insert(class, (life, count));
            let more = match before {
                Some((known, before)) if known == life => count.saturating_sub(before),
                Some(_) | None => 0,
            };
            let known = sum.entry(class).or_insert((life, 0));
            if known.0 != life {
                *known = (life, 0);
            }
            known.1 = known.1.wrapping_add(more);
        }
    }

    fn is_serving(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.began_at_ns) < SERVING_NS
    }

    fn in_flight(&self, slot: EngineSlot, life: Generation) -> u64 {
        let found = self.flights.binary_search_by_key(&slot, |at| at.slot);
        let at = found.ok().map(|at| &self.flights[at]);
        at.filter(|at| at.generation == life)
            .map_or(0, |at| at.in_flight)
    }
}

/// What orders processes by age.
fn age(instance: Instance) -> (u64, u32) {
    (instance.start_ns, instance.pid)
}

#[cfg(test)]
mod tests {
    use pointsman_shm::signals::{Outcome, Shape, SignalsWriter};

    use super::*;

    const ENGINE: EngineSlot = EngineSlot(2);
    const LIFE: Generation = Generation(1);
    const S: u64 = 1_000_000_000;

    fn page(dir: &Path) -> SignalsWriter {
        let shape = Shape {
            shards: 2,
            classes: 1,
            engines: 4,
            pairs: 1,
        };
        SignalsWriter::create(dir, shape).unwrap()
    }

    #[test]
    fn what_others_have_in_flight_is_counted_while_they_live() {
        let dir = tempfile::tempdir().unwrap();
        let older = page(dir.path());
        let own = page(dir.path());
        let mut siblings = Siblings::new(dir.path().to_path_buf());
        siblings.set_own(own.path(), own.instance());
        siblings.look(S);
        let others = |in_flight, serving, older| Others {
            in_flight,
            serving,
            older,
        };
        assert_eq!(siblings.at(ENGINE, LIFE, S), others(0, 1, 1));

        let shards = [older.segment(0), older.segment(1)];
        let begin = |shard: usize| {
            shards[shard]
                .engine(ENGINE, LIFE)
                .unwrap()
                .attempt_started()
        };
        begin(0);
        begin(1);
        begin(1);
        siblings.look(2 * S);
        assert_eq!(siblings.at(ENGINE, LIFE, 2 * S), others(3, 1, 1));
        assert_eq!(siblings.serving(2 * S), 1);
        let another = Generation(2);
        assert_eq!(siblings.at(ENGINE, another, 2 * S), others(0, 1, 1));
        // It begins nothing any more, then ends one, then goes.
        siblings.look(3 * S);
        assert_eq!(siblings.at(ENGINE, LIFE, 3 * S), others(3, 0, 0));
        assert_eq!(siblings.serving(3 * S), 0);
        let cell = shards[0].engine(ENGINE, LIFE).unwrap();
        cell.attempt_ended(Outcome::Success);
        siblings.look(3 * S + 1);
        assert_eq!(siblings.at(ENGINE, LIFE, 3 * S), others(2, 0, 0));
        drop((shards, older));
        siblings.look(4 * S);
        assert!(siblings.is_empty());
        assert_eq!(siblings.at(ENGINE, LIFE, 4 * S), Others::default());
    }

    #[test]
    fn what_others_are_offered_counts_from_when_they_are_first_looked_at() {
        const CLASS: ClassSlot = ClassSlot(0);
        let dir = tempfile::tempdir().unwrap();
        let other = page(dir.path());
        let own = page(dir.path());
        let cells = [other.segment(0), other.segment(1)];
        let offer = |shard: usize, priority| {
            let cell = cells[shard].class(CLASS, LIFE).unwrap();
            cell.offered(priority);
        };
        (0..1_000).for_each(|_| offer(0, 0));
        let mut siblings = Siblings::new(dir.path().to_path_buf());
        siblings.set_own(own.path(), own.instance());
        siblings.look(S);
        siblings.look_at_demand();
        assert_eq!(siblings.offered(CLASS, LIFE), 0);
        for (shard, priority) in [(0, 0), (1, 3), (1, 0)] {
            offer(shard, priority);
        }
        siblings.look_at_demand();
        siblings.look_at_demand();
        assert_eq!(siblings.offered(CLASS, LIFE), 3);
        assert_eq!(siblings.offered(CLASS, Generation(2)), 0);
        // What is known stays when it ends, so that no rate falls.
        drop((cells, other));
        siblings.look(2 * S);
        siblings.look_at_demand();
        assert!(siblings.is_empty());
        assert_eq!(siblings.offered(CLASS, LIFE), 3);
    }

    #[test]
    fn a_younger_process_leaves_the_odd_token() {
        let dir = tempfile::tempdir().unwrap();
        let own = page(dir.path());
        let _younger = page(dir.path());
        let mut siblings = Siblings::new(dir.path().to_path_buf());
        siblings.look(S);
        assert_eq!(siblings.at(ENGINE, LIFE, S).older, 2, "no page, no age");
        let mut siblings = Siblings::new(dir.path().to_path_buf());
        siblings.set_own(own.path(), own.instance());
        siblings.look(S);
        let others = siblings.at(ENGINE, LIFE, S);
        assert_eq!((others.serving, others.older), (1, 0));
        assert_eq!(siblings.serving(S), 0, "it has begun nothing yet");
    }
}
