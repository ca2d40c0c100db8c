//! A writer that publishes without pause is killed at random points while a reader looks on.
//!
//! The writer is this test's own binary, started again with an environment variable. What it
//! publishes says of itself whether it is whole: the version repeated, in a length that follows
//! from the version, or a policy built from it. `POINTSMAN_KILLS` sets the number of kills (100),
//! `POINTSMAN_SEED` replays a run's moments as far as a scheduler lets them be replayed.

#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use pointsman_shm::Error;
use pointsman_shm::id::{ClassSlot, EngineSlot, Generation, PairNumber};
use pointsman_shm::policy::{
    Class, Eligible, Endpoints, Engine, FeatureMatch, Mode, PlannedState, Policy, Protocol, Route,
};
use pointsman_shm::region::{Kind, Read, Reader, Stamp, Writer};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const DIR: &str = "POINTSMAN_KILL_TEST_DIR";
/// A wait that takes longer is a failure, not a slow machine.
const WATCHDOG: Duration = Duration::from_secs(60);
/// Byte positions of the header's words that tell whether a publication is in progress.
const SEQUENCE_AT: u64 = 16 * 8;
const BEGUN_AT: u64 = 32 * 8;

/// What the reading thread saw.
#[derive(Default)]
struct Watched {
    reads: AtomicU64,
    busy: AtomicU64,
    version: AtomicU64,
    failure: Mutex<Option<String>>,
    stop: AtomicBool,
}

#[test]
fn i10_a_writer_killed_while_it_publishes_never_shows_half_a_policy() {
    if std::env::var_os(DIR).is_some() {
        return;
    }
    let kills: u64 = number("POINTSMAN_KILLS").unwrap_or(100);
    let seed = number("POINTSMAN_SEED").unwrap_or_else(|| StdRng::from_os_rng().random());
    println!("POINTSMAN_SEED={seed} POINTSMAN_KILLS={kills}");
    let mut random = StdRng::seed_from_u64(seed);
    let dir = tempfile::Builder::new()
        .prefix("kill")
        .tempdir_in("/dev/shm")
        .unwrap();
    let watched = Arc::new(Watched::default());
    let watcher = {
        let (watched, dir) = (Arc::clone(&watched), dir.path().to_path_buf());
        thread::spawn(move || watch(&dir, &watched))
    };

    let (mut inside, mut standing, mut done) = (0, 0, 0);
    // Where a loaded machine lets too few land inside a publication, more are added, to a bound.
    for kill in 0..3 * kills {
        if kill >= kills && inside * 4 >= kills {
            break;
        }
        done = kill + 1;
        let mut writer = start_writer(dir.path());
        wait_for_publication(dir.path(), standing, &mut writer.0);
        spin(Duration::from_micros(random.random_range(0..3000)));
        // Three of four kills take aim, so that many land inside a publication however a round's
        // time divides between preparing one and storing it.
        if kill % 4 != 0 {
            aim(dir.path());
        }
        writer.0.kill().unwrap();
        writer.0.wait().unwrap();
        let (sequence, begun) = progress(dir.path());
        assert!(
            begun == sequence || begun == sequence + 1,
            "{begun} after {sequence}"
        );
        inside += u64::from(begun != sequence);
        // Whatever was in progress, a reader that comes now gets the last one that was finished.
        let version = read_whole(dir.path());
        assert!(
            version > standing,
            "kill {kill}: {version} does not follow {standing}"
        );
        standing = version;
        if watched.failure.lock().unwrap().is_some() {
            break;
        }
    }
    // The watcher catches up with the last publication, or says why it cannot.
    let caught_up = || {
        watched.version.load(Ordering::Acquire) == standing
            || watched.failure.lock().unwrap().is_some()
    };
    wait_until("the reader has the last publication", caught_up);
    watched.stop.store(true, Ordering::Release);
    watcher.join().unwrap();

    let (reads, busy) = (
        watched.reads.load(Ordering::Relaxed),
        watched.busy.load(Ordering::Relaxed),
    );
    println!("{done} kills, {inside} inside a publication; {standing} publications");
    println!("{reads} whole reads, {busy} that ran out of tries");
    assert_eq!(watched.failure.lock().unwrap().take(), None);
    assert!(reads > 0);
    assert!(
        inside * 4 >= kills,
        "only {inside} of {done} kills landed inside a publication"
    );
}

/// The writer's side: publishes until it is killed.
#[test]
fn writer_that_is_killed() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else {
        return;
    };
    let mut writer = Writer::open_without_pause_for_tests(&dir, Kind::Policy).unwrap();
    assert!(writer.repaired().is_none(), "{:?}", writer.repaired());
    let parent = parent_id();
    let begin = Instant::now();
    let mut version = writer.last().map_or(0, |stamp| stamp.version);
    while begin.elapsed() < WATCHDOG && parent_id() == parent {
        version += 1;
        let stamp = Stamp {
            version,
            epoch: epoch_of(version),
        };
        writer.publish(stamp, &payload(version)).unwrap();
    }
}

fn watch(dir: &Path, watched: &Watched) {
    let mut reader = None;
    let mut bytes = Vec::new();
    while !watched.stop.load(Ordering::Acquire) {
        let outcome = match &mut reader {
            None => match Reader::open(dir, Kind::Policy) {
                Ok(opened) => {
                    reader = Some(opened);
                    continue;
                }
                Err(Error::Absent { .. }) => continue,
                Err(error) => Err(error.to_string()),
            },
            Some(reader) => match reader.read(&mut bytes) {
                Ok(Read::Fresh(stamp)) => check(stamp, &bytes).map(|()| Some(stamp.version)),
                Ok(Read::Busy | Read::Empty) => Ok(None),
                Err(error) => Err(error.to_string()),
            },
        };
        match outcome {
            Ok(Some(version)) => {
                let before = watched.version.swap(version, Ordering::AcqRel);
                assert!(version >= before, "{version} after {before}");
                watched.reads.fetch_add(1, Ordering::Relaxed);
            }
            Ok(None) => {}
            Err(why) => {
                *watched.failure.lock().unwrap() = Some(why);
                break;
            }
        }
    }
    let busy = reader.map_or(0, |reader| reader.busy_count());
    watched.busy.store(busy, Ordering::Relaxed);
}

// === payloads that say whether they are whole ===

fn epoch_of(version: u64) -> u64 {
    1 + version / 1000
}

fn payload(version: u64) -> Vec<u8> {
    if is_policy(version) {
        policy(version).encode()
    } else {
        repeated(version)
    }
}

fn is_policy(version: u64) -> bool {
    version % 16 == 1
}

/// The version again and again, 1 to some 200,000 times. The longest lengths come late, so that
/// files are replaced by larger ones all through the run.
fn repeated(version: u64) -> Vec<u8> {
    let scrambled = version.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let longest = 120_000 + 4 * version.min(20_000);
    let count = 1 + scrambled % longest;
    let mut bytes = version.to_le_bytes().repeat(count as usize);
    bytes.truncate(bytes.len() - (version % 8) as usize);
    bytes
}

fn policy(version: u64) -> Policy {
    let slot = EngineSlot((version % 4000) as u16);
    let engine = Engine {
        slot,
        generation: Generation(1),
        id: format!("engine-{version}"),
        kind: "h100".to_owned(),
        region: "a".to_owned(),
        addresses: vec!["127.0.0.1:9001".parse().unwrap()],
        protocol: Protocol::Http1,
        authority: "engine".to_owned(),
        sni: String::new(),
        credential: String::new(),
        health_path: "/health".to_owned(),
        state: PlannedState::Active,
        ready_replicas: 1,
        allowance: 10,
        planned_factor: 1.0,
        planned_utilisation: 0.5,
        hard_capacity: 100.0,
        safe_capacity: 85.0,
        network_ms: 1.0,
        idle_timeout_ms: 0,
        max_connections: 0,
        max_streams: 0,
        profile: Vec::new(),
        profile_assumed: true,
    };
    let eligible = Eligible {
        engine: slot,
        pair: PairNumber(7),
        pair_generation: Generation(1),
        weight: 1.0,
        work: 0.01,
        kv_token_seconds: 0.0,
        idle_ttft_ms: 100.0,
        planned_ttft_ms: 150.0,
    };
    let class = Class {
        slot: ClassSlot(0),
        generation: Generation(1),
        name: "chat".to_owned(),
        mode: Mode::Control,
        demand_rps: version as f64,
        eligible: vec![eligible],
        table: vec![slot; 4096],
        standby: Vec::new(),
        admitted_rps: vec![f64::INFINITY],
    };
    let route = Route {
        name: "chat".to_owned(),
        model: "m".to_owned(),
        adapter: String::new(),
        class: 0,
        endpoints: Endpoints::ALL,
        features: FeatureMatch::default(),
        body_bytes_min: 0,
        body_bytes_max: u32::MAX,
        headers: Vec::new(),
        default_priority: 0,
        listed: true,
    };
    Policy {
        version,
        epoch: epoch_of(version),
        frontend: "A".to_owned(),
        created_unix_ms: 0,
        hosts: 1,
        priorities: vec!["default".to_owned()],
        engines: vec![engine],
        classes: vec![class],
        routes: vec![route].into(),
    }
}

fn check(stamp: Stamp, bytes: &[u8]) -> Result<(), String> {
    let version = stamp.version;
    if stamp.epoch != epoch_of(version) {
        return Err(format!("version {version} with epoch {}", stamp.epoch));
    }
    if is_policy(version) {
        let decoded = Policy::decode(bytes).map_err(|e| format!("version {version}: {e}"))?;
        if decoded != policy(version) {
            return Err(format!("version {version} is another policy"));
        }
        return Ok(());
    }
    if bytes != repeated(version) {
        return Err(format!(
            "version {version} is not whole: {} bytes",
            bytes.len()
        ));
    }
    Ok(())
}

// === the killed process and its file ===

/// A child that dies with the test, also with one that fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_writer(dir: &Path) -> Killed {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writer_that_is_killed", "--test-threads=1", "-q"])
        .env(DIR, dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    Killed(child)
}

/// Waits until the new writer's own publications have begun.
fn wait_for_publication(dir: &Path, standing: u64, child: &mut Child) {
    let mut bytes = Vec::new();
    wait_until("the writer publishes", || {
        assert_eq!(
            child.try_wait().unwrap(),
            None,
            "the writer ended by itself"
        );
        let Ok(mut reader) = Reader::open(dir, Kind::Policy) else {
            return false;
        };
        matches!(reader.read(&mut bytes), Ok(Read::Fresh(stamp)) if stamp.version > standing)
    });
}

/// Sequence and begun sequence of the file that stands at the path.
fn progress(dir: &Path) -> (u64, u64) {
    progress_of(&File::open(dir.join("policy")).unwrap())
}

fn progress_of(file: &File) -> (u64, u64) {
    let mut words = [0; (BEGUN_AT - SEQUENCE_AT) as usize + 8];
    file.read_exact_at(&mut words, SEQUENCE_AT).unwrap();
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    (word(&words[..8]), word(&words[words.len() - 8..]))
}

/// Waits for a publication in progress. What comes of it is up to the writer. One whose file was
/// replaced meanwhile is not waited for.
fn aim(dir: &Path) {
    let file = File::open(dir.join("policy")).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(50) {
        let (sequence, begun) = progress_of(&file);
        if begun == sequence + 1 {
            return;
        }
    }
}

fn read_whole(dir: &Path) -> u64 {
    let mut bytes = Vec::new();
    let mut reader = Reader::open(dir, Kind::Policy).unwrap();
    match reader.read(&mut bytes).unwrap() {
        Read::Fresh(stamp) => {
            check(stamp, &bytes).unwrap();
            stamp.version
        }
        other => panic!("nobody writes, and yet {other:?}"),
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < WATCHDOG, "waited too long until {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// Waits more exactly than a sleep can.
fn spin(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}
