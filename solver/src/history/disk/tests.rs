//! The writer on folders that are small, full, taken, or left behind by a killed one.

use super::*;
use crate::history::keeper::Described;
use crate::history::read::{Item, Walk, segments};
use crate::model::topology::{FrontendId, Topology};
use crate::run::fixtures::{TOPOLOGY, policy, topology};
use crate::tick::{Inputs, Reason, TickState};

struct Place {
    dir: tempfile::TempDir,
    metrics: Arc<Metrics>,
    asks: Arc<AtomicBool>,
    topology: Topology,
    /// What text a start brings.
    text: String,
}

impl Place {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            metrics: Arc::default(),
            asks: Arc::default(),
            topology: topology(TOPOLOGY),
            text: TOPOLOGY.to_owned(),
        }
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("history")
    }

    fn writer(&self, ticks: u64, bytes: u64) -> Writer {
        let (asks, metrics) = (self.asks.clone(), self.metrics.clone());
        Writer::new(self.folder(), Bounds { ticks, bytes }, asks, metrics)
    }

    fn record(&self, version: u64, start: bool) -> Record {
        let mut made = policy(&self.topology, 90.0);
        made.version = version;
        let described = Described {
            file: "t.toml".into(),
            text: self.text.clone(),
        };
        let state = || TickState::new(&self.topology, 2);
        Record {
            start: start.then(|| (Arc::new(described), state())),
            inputs: Inputs {
                now_ns: version,
                ..Inputs::default()
            },
            came: Came {
                status: "optimal".into(),
                made: vec![CameOut {
                    frontend: FrontendId(0),
                    policy: made,
                    reason: Some(Reason::Benefit),
                    published: true,
                }],
                ..Came::default()
            },
        }
    }

    fn lost(&self, cause: &str) -> f64 {
        self.metrics
            .value(&metrics::HISTORY_LOST, &[cause])
            .unwrap_or(0.0)
    }

    fn written(&self) -> f64 {
        self.metrics
            .value(&metrics::HISTORY_TICKS, &[])
            .unwrap_or(0.0)
    }

    /// Bytes of all segments on disk.
    fn size(&self) -> u64 {
        let size = |path: PathBuf| fs::metadata(path).unwrap().len();
        segments(&self.folder())
            .unwrap()
            .into_iter()
            .map(size)
            .sum()
    }

    /// Versions that can be read, and what is missing.
    fn read(&self) -> (Vec<u64>, Vec<String>) {
        let (mut versions, mut gaps) = (Vec::new(), Vec::new());
        for item in Walk::new(segments(&self.folder()).unwrap()) {
            match item {
                Item::Tick(tick) => {
                    assert_eq!(tick.policy(0).unwrap().version, tick.head.made[0].version);
                    assert_eq!(tick.inputs().unwrap().now_ns, tick.head.made[0].version);
                    versions.push(tick.head.made[0].version);
                }
                Item::Head(head) => gaps.push(format!("only the head of {}", head.number)),
                Item::Gap(why) => gaps.push(why),
            }
        }
        (versions, gaps)
    }

    /// As a keeper would: a start where one is asked for.
    fn step(&self, writer: &mut Writer, version: u64) {
        let start = self.asks.swap(false, Ordering::Relaxed);
        writer.step(self.record(version, start || version == 1), Instant::now());
    }
}

#[test]
fn the_bounds_hold_after_every_tick_and_the_oldest_goes_first() {
    // By count, then by bytes: a start takes about a kilobyte, other ticks some hundred bytes.
    for (ticks, bytes) in [(40, 1 << 20), (100_000, 24 << 10)] {
        let place = Place::new();
        let mut writer = place.writer(ticks, bytes);
        for version in 1..=400 {
            place.step(&mut writer, version);
            assert!(place.size() <= bytes, "{} at {version}", place.size());
            let (versions, gaps) = place.read();
            assert_eq!(gaps, Vec::<String>::new());
            assert!(versions.len() as u64 <= ticks);
            let least = ticks.min(24).min(version);
            assert!(
                versions.len() as u64 >= least,
                "{} at {version}",
                versions.len()
            );
            let expected: Vec<u64> = (version + 1 - versions.len() as u64..=version).collect();
            assert_eq!(versions, expected);
        }
        assert_eq!(place.written(), 400.0);
        let bytes = place.metrics.value(&metrics::HISTORY_BYTES, &[]);
        assert_eq!(bytes, Some(place.size() as f64));
    }
}

#[test]
fn a_full_disk_is_counted_pauses_and_costs_nothing_but_history() {
    let place = Place::new();
    let mut writer = place.writer(1_000, 1 << 20);
    place.step(&mut writer, 1);
    place.step(&mut writer, 2);
    // Every write to it finds no space.
    let good = writer.open.take().unwrap();
    writer.open = Some(Open {
        file: File::options().append(true).open("/dev/full").unwrap(),
        path: good.path,
        first: good.first,
        bytes: good.bytes,
        before: good.before,
    });
    place.step(&mut writer, 3);
    assert_eq!((place.written(), place.lost("disk")), (2.0, 1.0));
    assert!(writer.paused_until.is_some() && writer.said);
    // While it pauses, records are lost, also those that bring a start.
    place.step(&mut writer, 4);
    assert_eq!((place.written(), place.lost("disk")), (2.0, 2.0));
    writer.paused_until = None;
    // What follows from a lost record is lost with it.
    writer.step(place.record(5, false), Instant::now());
    assert_eq!(place.lost("disk"), 3.0);
    place.step(&mut writer, 6);
    place.step(&mut writer, 7);
    assert_eq!((place.written(), place.lost("disk")), (4.0, 3.0));
    assert_eq!(place.read(), (vec![1, 2, 6, 7], vec![]));
}

#[test]
fn a_folder_in_the_way_stops_history_only() {
    let place = Place::new();
    fs::write(place.folder(), b"in the way").unwrap();
    let mut writer = place.writer(1_000, 1 << 20);
    place.step(&mut writer, 1);
    assert_eq!((place.written(), place.lost("disk")), (0.0, 1.0));
    fs::remove_file(place.folder()).unwrap();
    writer.paused_until = None;
    place.step(&mut writer, 2);
    assert_eq!(place.read(), (vec![2], vec![]));
}

#[test]
fn one_solver_a_folder() {
    let place = Place::new();
    let mut first = place.writer(1_000, 1 << 20);
    let mut second = place.writer(1_000, 1 << 20);
    place.step(&mut first, 1);
    second.step(place.record(2, true), Instant::now());
    assert_eq!((place.written(), place.lost("locked")), (1.0, 1.0));
    drop(first);
    second.paused_until = None;
    second.step(place.record(3, true), Instant::now());
    assert_eq!(place.read(), (vec![1, 3], vec![]));
}

#[test]
fn a_killed_writer_leaves_a_torn_tail_that_the_next_one_does_not_touch() {
    let place = Place::new();
    let mut writer = place.writer(1_000, 1 << 20);
    for version in 1..=3 {
        place.step(&mut writer, version);
    }
    drop(writer);
    let left = segments(&place.folder()).unwrap().remove(0);
    let whole = fs::read(&left).unwrap();
    fs::write(&left, &whole[..whole.len() - 1]).unwrap();
    let mut writer = place.writer(1_000, 1 << 20);
    writer.step(place.record(4, true), Instant::now());
    place.step(&mut writer, 5);
    let (versions, gaps) = place.read();
    assert_eq!(versions, [1, 2, 4, 5]);
    assert_eq!(gaps.len(), 1);
    assert!(
        gaps[0].contains("at the end are no whole record"),
        "{gaps:?}"
    );
    assert_eq!(fs::read(&left).unwrap(), whole[..whole.len() - 1]);
    // A damaged record takes those with it that follow from it, up to the next start.
    let mut bytes = whole;
    bytes[HEADER + 100] ^= 1;
    fs::write(&left, bytes).unwrap();
    let (versions, gaps) = place.read();
    assert_eq!(versions, [4, 5]);
    assert!(gaps[0].contains("are damaged and skipped"), "{gaps:?}");
    assert_eq!(gaps[1..], ["only the head of 2", "only the head of 3"]);
}

#[test]
fn a_tick_too_large_is_lost_alone() {
    let mut place = Place::new();
    let mut writer = place.writer(1_000, 32 << 10);
    place.step(&mut writer, 1);
    let good = place.text.clone();
    // Deflate makes nothing of this.
    let mut word = 1_u64;
    let noise = |_| {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        char::from(b'!' + (word >> 33) as u8 % 90)
    };
    place.text = (0..8 << 10).map(noise).collect();
    writer.step(place.record(2, true), Instant::now());
    assert_eq!((place.written(), place.lost("large")), (1.0, 1.0));
    place.text = good;
    place.step(&mut writer, 3);
    assert_eq!(place.read(), (vec![1, 3], vec![]));
}

#[test]
fn a_policy_that_breaks_the_contract_is_kept_by_its_name_only() {
    let place = Place::new();
    let mut writer = place.writer(1_000, 1 << 20);
    let mut record = place.record(1, true);
    // Too long for any payload.
    record.came.made[0].policy.engines[0].authority = "x".repeat(300);
    record.came.made[0].published = false;
    writer.step(record, Instant::now());
    let items: Vec<Item> = Walk::new(segments(&place.folder()).unwrap()).collect();
    let [Item::Tick(tick)] = &items[..] else {
        panic!("{items:?}");
    };
    assert_eq!(tick.head.made[0].frontend, "A");
    assert_eq!(tick.policies, [Vec::<u8>::new()]);
}
