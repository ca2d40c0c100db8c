//! Instructions that a shard executes and bytes that it copies for one token and one request, by
//! valgrind: callgrind counts instructions of the shard's thread, dhat what `memcpy` and its kind
//! move.
//!
//! Two runs that differ by whole bursts (or requests) and nothing else: the difference, divided, is
//! what one token (or request) costs. A request goes on only when the shard rests, after its first
//! half as after its second, because a shard that is slow finds an answer there and has one wait
//! less. Not a token alone: whether the shard looked once more before the next one came is chance
//! here. Minutes, not seconds, so it runs when asked for:
//!
//! ```text
//! POINTSMAN_COSTS=valgrind cargo test --release -p pointsman-proxy --test costs valgrind \
//!     -- --nocapture --test-threads=1
//! ```
//!
//! POINTSMAN_COSTS_STREAMS=N has N streams in a burst in place of 32: with hundreds, what a stream
//! keeps is no longer in the caches when its turn comes. Beside the instructions stand the accesses
//! to memory that found their line not in the first cache, and in neither, in a model of one of 32
//! KiB and a second of 1 MiB, which knows of no fetching ahead.
//!
//! With POINTSMAN_COSTS_KEEP=FOLDER the profiles stay there, for callgrind_annotate; with
//! POINTSMAN_COSTS_PAIRS=NAMES only those pairs run (`h1-h2c,h2c-h2c`).

use std::path::Path;
use std::time::Duration;

use pointsman_tests::both_drivers;
use pointsman_tests::proxy::{Driver, Proxy};

use crate::allocations::draft;
use crate::lockstep::{Answers, PAIRS, Pair, Streams, listener};
use crate::traced::{await_rest, shard_of};

/// Bursts of the shorter run and by which the longer one is longer; of requests as many as bursts
/// of [`STREAMS`] have tokens.
const BURSTS: usize = 10;
/// Streams of a burst.
const STREAMS: usize = 32;
/// The modelled caches: bytes, ways, bytes of a line.
const CACHES: [&str; 2] = ["--D1=32768,8,64", "--LL=1048576,8,64"];
/// A proxy under valgrind ends slowly.
const END: Duration = Duration::from_secs(120);

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Bursts of so many streams.
    Burst(usize),
    Request,
}

impl Work {
    /// Tokens, or requests, of the shorter run and by which the longer one is longer.
    fn count(self) -> usize {
        match self {
            Self::Burst(streams) => BURSTS * streams,
            Self::Request => BURSTS * STREAMS,
        }
    }
}

both_drivers!(valgrind_counts_instructions_and_copies);

fn valgrind_counts_instructions_and_copies(driver: Driver) {
    if std::env::var("POINTSMAN_COSTS").as_deref() != Ok("valgrind") {
        eprintln!("POINTSMAN_COSTS is not `valgrind`: not run");
        return;
    }
    println!(
        "{:<9} {:<8} {:<13} {:>12} {:>9} {:>9} {:>12}",
        "driver", "pair", "of one", "instructions", "missed 1", "missed 2", "bytes copied"
    );
    let names = std::env::var("POINTSMAN_COSTS_PAIRS").unwrap_or_default();
    let is_asked = |pair: &Pair| names.is_empty() || names.split(',').any(|one| one == pair.name());
    let pairs: Vec<Pair> = PAIRS.into_iter().filter(is_asked).collect();
    assert!(
        !pairs.is_empty(),
        "POINTSMAN_COSTS_PAIRS={names} names no pair"
    );
    let streams = std::env::var("POINTSMAN_COSTS_STREAMS");
    let streams: usize = streams.map_or(STREAMS, |count| count.parse().expect("a number"));
    for pair in pairs {
        for work in [Work::Burst(streams), Work::Request] {
            let count = work.count();
            let of_one = |less: u64, more: u64| (more as f64 - less as f64) / count as f64;
            let [less, more] = [count, 2 * count].map(|count| executed(driver, pair, work, count));
            let [instructions, missed, missed_both] =
                std::array::from_fn(|at| of_one(less[at], more[at]));
            let [less, more] = [count, 2 * count].map(|count| copied(driver, pair, work, count));
            let copied = of_one(less, more);
            println!(
                "{:<9} {:<8} {:<13} {instructions:>12.0} {missed:>9.1} {missed_both:>9.1} \
                 {copied:>12.0}",
                driver.name(),
                pair.name(),
                match work {
                    Work::Burst(_) => "token, burst",
                    Work::Request => "request",
                },
            );
            // Where nothing is copied, what else a proxy moves differs by some bytes either way.
            assert!(
                instructions > 0.0 && copied > -256.0,
                "more work costs more"
            );
        }
    }
}

/// Instructions of the shard's thread over a proxy's life, accesses to memory that missed the first
/// cache, and those that missed both.
fn executed(driver: Driver, pair: Pair, work: Work, count: usize) -> [u64; 3] {
    let held = tempfile::tempdir().unwrap();
    let name = format!("{}-{}-{work:?}-{count}", driver.name(), pair.name());
    let folder = match std::env::var_os("POINTSMAN_COSTS_KEEP") {
        Some(folder) => Path::new(&folder).join(name),
        None => held.path().to_owned(),
    };
    std::fs::create_dir_all(&folder).unwrap();
    let out = format!("--callgrind-out-file={}/out", folder.display());
    let tool = [
        "valgrind",
        "-q",
        "--tool=callgrind",
        "--separate-threads=yes",
        "--cache-sim=yes",
        CACHES[0],
        CACHES[1],
        &*out,
    ];
    live(&tool, driver, pair, work, count);
    // The shard is the thread that ran requests.
    let parts = std::fs::read_dir(&folder).unwrap().flatten();
    let texts = parts.filter_map(|part| std::fs::read_to_string(part.path()).ok());
    let totals =
        texts.filter(|text| text.contains("serve::stream") || text.contains("serve::request"));
    // Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw
    totals
        .filter_map(|text| numbers_after(&text, "totals: "))
        .map(|sums| [sums[0], sums[4] + sums[5], sums[7] + sums[8]])
        .max()
        .expect("a shard's profile")
}

/// Bytes copied over a proxy's life.
fn copied(driver: Driver, pair: Pair, work: Work, count: usize) -> u64 {
    let held = tempfile::tempdir().unwrap();
    let log = held.path().join("log");
    let (out, log_file) = (
        format!("--dhat-out-file={}/out", held.path().display()),
        format!("--log-file={}", log.display()),
    );
    let tool = ["valgrind", "--tool=dhat", "--mode=copy", &*out, &*log_file];
    live(&tool, driver, pair, work, count);
    total_of(&log)
}

/// A proxy's life under a tool, with so much work in it.
fn live(tool: &[&str], driver: Driver, pair: Pair, work: Work, count: usize) {
    let listener = listener();
    let draft = draft(pair, listener.local_addr().unwrap());
    let mut proxy = Proxy::under(tool, driver, &draft);
    match work {
        Work::Burst(at_once) => {
            let mut streams = Streams::open(proxy.address, &listener, pair, at_once);
            let daemon = &proxy.daemon;
            for _ in 0..count / at_once {
                streams.burst(|stop| {
                    daemon.signal(if stop { libc::SIGSTOP } else { libc::SIGCONT });
                });
            }
        }
        Work::Request => {
            let mut answers = Answers::open(proxy.address, &listener, pair);
            let shard = shard_of(&proxy).expect("a proxy has a shard");
            let rest = || await_rest(&proxy, shard);
            (0..count).for_each(|_| answers.ask_pausing(proxy.address, &listener, rest));
        }
    }
    proxy.await_rest();
    proxy.daemon.terminate(END);
}

/// `==1234== Total:     1,234 bytes in 5 blocks`
fn total_of(log: &Path) -> u64 {
    let text = std::fs::read_to_string(log).unwrap();
    let line = text
        .lines()
        .find(|line| line.contains("Total:"))
        .unwrap_or_else(|| panic!("{text}"));
    let digits: String = line
        .split("Total:")
        .nth(1)
        .unwrap()
        .split("bytes")
        .next()
        .unwrap()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    digits.parse().unwrap()
}

/// The numbers of the line that begins with `mark`, in callgrind's order of its events.
fn numbers_after(text: &str, mark: &str) -> Option<[u64; 9]> {
    let line = text.split(mark).nth(1)?.lines().next()?;
    let numbers: Vec<u64> = line.split_whitespace().flat_map(str::parse).collect();
    numbers.try_into().ok()
}
