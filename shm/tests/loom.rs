//! Models of the two protocols, run by loom over every order of memory operations that the
//! language allows (up to `LOOM_MAX_PREEMPTIONS`), and the proof that each model can fail: with one
//! ordering taken away, loom must find what goes wrong.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p pointsman-shm --release --test loom`

#![cfg(loom)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use pointsman_shm::seqlock::{Flaw, Seen, Words, with_flaw};
use pointsman_shm::signals::record::{Life, add, copy, enter};

/// Words of one buffer: a length and two words of payload.
const BUFFER: usize = 3;

/// Begins what is said of a reader that saw what was never published.
const WRONG: &str = "seen wrong: ";

/// Flaws are a switch of the whole process: one model at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn model(body: impl Fn() + Sync + Send + 'static) {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    explore(body);
}

/// Runs a model with an ordering missing and expects loom to find an order that breaks it.
fn must_fail(flaw: Flaw, body: impl Fn() + Sync + Send + 'static) {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let found = with_flaw(flaw, || catch_unwind(AssertUnwindSafe(|| explore(body))));
    let panic = found.expect_err("a model with an ordering missing fails");
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    // Not any panic: loom also gives up where its own bounds are met.
    assert!(
        text.is_some_and(|text| text.contains(WRONG)),
        "without {flaw:?} the model fails of something else: {text:?}"
    );
}

fn explore(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 20_000;
    // The variable, where it is set, decides.
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.check(body);
}

struct Region {
    sequence: AtomicU64,
    begun: AtomicU64,
    buffers: [Vec<AtomicU64>; 2],
}

impl Region {
    fn new() -> Region {
        let buffer = || (0..BUFFER).map(|_| AtomicU64::new(0)).collect();
        Region {
            sequence: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            buffers: [buffer(), buffer()],
        }
    }

    fn words(&self) -> Words<'_> {
        let [a, b] = &self.buffers;
        Words {
            sequence: &self.sequence,
            begun: &self.begun,
            buffers: [a, b],
        }
    }
}

/// What publication `number` holds: its number, once or twice.
fn content(number: u64) -> Vec<u64> {
    if number % 3 == 2 {
        vec![2, number]
    } else {
        vec![3, number, number]
    }
}

/// Reads once; what is whole was published whole, and no number is below one seen before.
fn check_read(region: &Region, last: &mut u64) {
    let mut copy = Vec::new();
    match region.words().read(&mut copy) {
        Seen::Whole(number) => {
            assert_eq!(copy, content(number), "{WRONG}torn");
            assert!(number >= *last, "{WRONG}back from {last} to {number}");
            *last = number;
        }
        Seen::Busy => {}
        Seen::Empty => assert_eq!(*last, 0, "{WRONG}nothing after something"),
        other => panic!("{WRONG}{other:?}"),
    }
}

fn publishes_on_and_on() {
    let region = Arc::new(Region::new());
    let writer = {
        let region = Arc::clone(&region);
        thread::spawn(move || {
            for number in 0..3 {
                region.words().publish(number, &content(number + 1));
            }
        })
    };
    let mut last = 0;
    check_read(&region, &mut last);
    check_read(&region, &mut last);
    writer.join().unwrap();
    check_read(&region, &mut last);
    assert_eq!(last, 3);
}

#[test]
fn a_reader_never_sees_a_torn_payload_or_an_older_one() {
    model(publishes_on_and_on);
}

#[test]
fn i10_a_writer_that_stops_at_any_store_leaves_the_last_publication_and_is_succeeded() {
    // Stores of publication 2: begun, two words, sequence.
    for stop in 0..=4 {
        model(move || {
            let region = Arc::new(Region::new());
            region.words().publish(0, &content(1));
            let writer = {
                let region = Arc::clone(&region);
                thread::spawn(move || {
                    let mut left = stop;
                    region.words().publish_while(1, &content(2), || {
                        left -= 1;
                        left >= 0
                    })
                })
            };
            let mut last = 1;
            check_read(&region, &mut last);
            let stands = if writer.join().unwrap() { 2 } else { 1 };
            check_read(&region, &mut last);
            assert_eq!(last, stands);
            // The next writer takes over while the reader goes on.
            let successor = {
                let region = Arc::clone(&region);
                thread::spawn(move || region.words().publish(stands, &content(stands + 1)))
            };
            check_read(&region, &mut last);
            successor.join().unwrap();
            check_read(&region, &mut last);
            assert_eq!(last, stands + 1);
        });
    }
}

#[test]
fn the_sequence_model_notices_each_missing_ordering() {
    for flaw in [
        Flaw::NoWriterFence,
        Flaw::RelaxedSequence,
        Flaw::NoReaderFence,
    ] {
        must_fail(flaw, publishes_on_and_on);
    }
}

/// A record lives twice, counts in tens in its first life and in ones in its second.
///
/// The reader is the spawned thread: a writer that is spawned begins by loading its own word, and
/// loom then misses the orders in which the reader's load came before (it remembers only the last
/// access to a word). The flaws below would go unnoticed.
fn record_is_reborn() {
    let record: Arc<Vec<AtomicU64>> = Arc::new((0..3).map(|_| AtomicU64::new(0)).collect());
    let reader = {
        let record = Arc::clone(&record);
        thread::spawn(move || {
            let first = check_record(&record, 0);
            check_record(&record, first);
        })
    };
    for (generation, amount) in [(1, 10), (2, 1)] {
        assert!(enter(&record, generation));
        add(&record[1], amount);
        add(&record[2], amount);
    }
    reader.join().unwrap();
    let mut words = [0; 3];
    assert_eq!(copy(&record, &mut words), Life::Of(2));
    assert_eq!(words, [2, 1, 1]);
}

/// Reads once; all counters are of one life, which is not before `last`.
fn check_record(record: &[AtomicU64], last: u32) -> u32 {
    let mut words = [0; 3];
    match copy(record, &mut words) {
        Life::Of(generation) => {
            assert!(generation >= last, "{WRONG}an earlier life");
            let amount = if generation == 1 { 10 } else { 1 };
            assert_eq!(words[0], u64::from(generation), "{WRONG}another life");
            for counter in &words[1..] {
                let of_this_life = *counter == 0 || *counter == amount;
                assert!(of_this_life, "{WRONG}{words:?} mixes lives");
            }
            generation
        }
        Life::Unused => {
            assert_eq!(last, 0, "{WRONG}no life after one");
            last
        }
        Life::Changing => last,
    }
}

#[test]
fn a_reader_never_mixes_two_lives_of_a_record() {
    model(record_is_reborn);
}

#[test]
fn the_record_model_notices_each_missing_ordering() {
    for flaw in [
        Flaw::NoLifeFence,
        Flaw::RelaxedLife,
        Flaw::NoLifeReaderFence,
    ] {
        must_fail(flaw, record_is_reborn);
    }
}
