//! What signal pages come to, read as they rise, restart and end.

use super::*;
use pointsman_shm::signals::{Shape, SignalsWriter};

const SHAPE: Shape = Shape {
    shards: 2,
    classes: 4,
    engines: 4,
    pairs: 8,
};
const GENERATION: Generation = Generation(7);
const CLASS: (ClassSlot, Generation) = (ClassSlot(1), GENERATION);
const PAIR: (PairNumber, Generation) = (PairNumber(3), GENERATION);

struct Proxy {
    writer: SignalsWriter,
    shards: Vec<signals::ShardSignals>,
}

impl Proxy {
    fn start(dir: &Path) -> Self {
        let writer = SignalsWriter::create(&dir.join("f/signals"), SHAPE).unwrap();
        let shards = (0..SHAPE.shards)
            .map(|shard| writer.segment(shard))
            .collect();
        Self { writer, shards }
    }

    fn offer(&self, shard: usize, priority: u8, count: usize) {
        let class = self.shards[shard].class(CLASS.0, GENERATION).unwrap();
        for _ in 0..count {
            class.offered(priority);
        }
    }
}

fn offered(delta: &Delta) -> Option<(u64, u64)> {
    delta
        .offered
        .get(&CLASS)
        .map(|by_priority| (by_priority[0], by_priority[1]))
}

#[test]
fn differences_are_summed_over_shards_and_processes() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = Metrics::default();
    let one = Proxy::start(dir.path());
    one.offer(0, 0, 1_000);
    let mut pages = Pages::new(dir.path(), "f");
    // A page that was there before us is only a starting point.
    let first = pages.look(&metrics);
    assert_eq!(
        (first.measured, first.length_s, offered(&first)),
        (false, 0.0, None)
    );
    assert_eq!((first.live_pages, first.live_hosts), (1, 1));
    one.offer(0, 0, 5);
    one.offer(1, 1, 2);
    let two = Proxy::start(dir.path());
    two.offer(0, 0, 3);
    let second = pages.look(&metrics);
    // The second process began after the last look: all it counted is new.
    assert_eq!(offered(&second), Some((8, 2)));
    assert!(second.measured && second.length_s > 0.0);
    assert_eq!((second.live_pages, second.live_hosts), (2, 1));
    let third = pages.look(&metrics);
    assert_eq!(offered(&third), Some((0, 0)));
    assert_eq!(metrics.value(&metrics::SIGNAL_PAGES, &["f"]), Some(2.0));
    assert_eq!(metrics.value(&metrics::SIGNAL_PAGE_ERRORS, &["f"]), None);
}

#[test]
fn a_dead_page_is_read_once_more_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = Metrics::default();
    let mut pages = Pages::new(dir.path(), "f");
    assert_eq!(pages.look(&metrics), Delta::default());
    let proxy = Proxy::start(dir.path());
    pages.look(&metrics);
    proxy.offer(0, 0, 4);
    let path = proxy.writer.path().to_owned();
    drop(proxy);
    let last = pages.look(&metrics);
    assert_eq!(offered(&last), Some((4, 0)));
    assert_eq!(
        (last.measured, last.live_pages, last.live_hosts),
        (true, 0, 0)
    );
    assert_eq!(last.adopted_version, None);
    assert!(!path.exists());
    let after = pages.look(&metrics);
    assert_eq!((after.measured, offered(&after)), (false, None));
}

#[test]
fn tokens_in_flight_and_adopted_versions_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = Metrics::default();
    let mut pages = Pages::new(dir.path(), "f");
    pages.look(&metrics);
    let proxy = Proxy::start(dir.path());
    proxy.shards[0].beat(boottime_ns(), 12);
    proxy.shards[1].beat(boottime_ns(), 11);
    let engine = proxy.shards[1].engine(EngineSlot(2), GENERATION).unwrap();
    for _ in 0..3 {
        engine.attempt_started();
    }
    engine.attempt_ended(signals::Outcome::Success);
    let pair = proxy.shards[1].pair(PAIR.0, GENERATION).unwrap();
    pair.tokens(500, 200, 90, false);
    pair.tokens(0, 0, 110, true);
    pair.attempt();
    pair.ttft_us(250_000);
    pair.tbot_us(900_000, 30);
    engine.rtt_us(2_500);
    engine.rtt_us(3_500);
    engine.connect_us(4_000);
    engine.upload_us(700);
    engine.upload_us(900);
    let delta = pages.look(&metrics);
    let service = Service {
        length_s: 0.0,
        attempts: 1,
        answers: (2, 1),
        prompt_tokens: (500, 200),
        output_tokens: 200,
        first_tokens: (1, 250_000),
        gaps: (30, 900_000),
    };
    assert_eq!(delta.served.get(&PAIR), Some(&service));
    let trips = RoundTrips {
        count: 2,
        sum_us: 6_000,
    };
    assert_eq!(delta.trips.get(&(EngineSlot(2), GENERATION)), Some(&trips));
    let sent = Sent {
        attempts: 3,
        opened: (1, 4_000),
        uploads: (2, 1_600),
    };
    assert_eq!(delta.sent.get(&(EngineSlot(2), GENERATION)), Some(&sent));
    assert_eq!(delta.adopted_version, Some(11));
    assert_eq!(delta.in_flight.get(&(EngineSlot(2), GENERATION)), Some(&2));
    let expected = Tokens {
        answers: 2,
        estimated: 1,
        prompt: 500,
        cached: 200,
        output: 200,
    };
    assert_eq!(delta.tokens.get(&PAIR), Some(&expected));
}

#[test]
fn how_engines_answered_and_what_became_of_arrivals_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = Metrics::default();
    let mut pages = Pages::new(dir.path(), "f");
    let proxy = Proxy::start(dir.path());
    pages.look(&metrics);
    let slot = (EngineSlot(2), GENERATION);
    let engine = proxy.shards[1].engine(slot.0, slot.1).unwrap();
    for outcome in signals::Outcome::ALL {
        engine.attempt_started();
        engine.attempt_ended(outcome);
    }
    let class = proxy.shards[0].class(CLASS.0, CLASS.1).unwrap();
    class.shed(signals::ShedCause::NoEngine, 1);
    let delta = pages.look(&metrics);
    let answers = Answers {
        succeeded: 3,
        failed: 8,
    };
    assert_eq!(delta.answers.get(&slot), Some(&answers));
    assert_eq!(
        (delta.handled, delta.blind),
        (signals::Outcome::COUNT as u64 + 1, false)
    );
}

#[test]
fn a_process_that_stood_still_is_one_voice_on_a_penalty() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = Metrics::default();
    let proxies = [Proxy::start(dir.path()), Proxy::start(dir.path())];
    let mut pages = Pages::new(dir.path(), "f");
    pages.look(&metrics);
    let engine = (EngineSlot(0), GENERATION);
    for (proxy, us) in proxies.iter().zip([60_000_000, 1_000]) {
        let cell = proxy.shards[0].engine(engine.0, engine.1).unwrap();
        cell.penalised_us(us);
    }
    let delta = pages.look(&metrics);
    let told_us = delta.seen[&engine].penalised_us;
    let most_us = ((delta.length_s + LATE_S) * 1e6) as u64;
    assert_eq!(told_us, most_us + 1_000);
}

#[test]
fn a_page_that_went_back_or_is_refused_is_missed_and_not_taken_for_silence() {
    use std::os::unix::fs::FileExt as _;
    let dir = tempfile::tempdir().unwrap();
    let metrics = Metrics::default();
    let mut pages = Pages::new(dir.path(), "f");
    let proxy = Proxy::start(dir.path());
    proxy.offer(0, 0, 50);
    pages.look(&metrics);
    let path = proxy.writer.path();
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len() as usize;
    file.write_all_at(&vec![0; length - 4096], 4096).unwrap();
    let zeroed = pages.look(&metrics);
    assert_eq!(
        (zeroed.blind, zeroed.measured, offered(&zeroed)),
        (true, false, None)
    );
    // From there on it is a page as any.
    proxy.offer(0, 0, 4);
    let after = pages.look(&metrics);
    assert_eq!((after.blind, offered(&after)), (false, Some((4, 0))));
    // A page that lost its head stays missed for as long as it is there.
    pages.open.clear();
    pages.missed.insert(proxy.writer.path().to_owned());
    file.write_all_at(&[0; 64], 0).unwrap();
    for _ in 0..2 {
        let refused = pages.look(&metrics);
        assert_eq!((refused.blind, refused.live_pages), (true, 0));
    }
}

#[test]
fn a_file_that_is_no_page_is_counted_and_the_others_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = Metrics::default();
    let proxy = Proxy::start(dir.path());
    let junk = proxy
        .writer
        .path()
        .with_file_name("e97fdc2e221c4cbbb2d4c1be5770a86f-1-1");
    std::fs::write(junk, b"not a page").unwrap();
    let mut pages = Pages::new(dir.path(), "f");
    pages.look(&metrics);
    proxy.offer(0, 0, 2);
    let delta = pages.look(&metrics);
    assert_eq!((offered(&delta), delta.live_pages), (Some((2, 0)), 1));
    assert_eq!(
        metrics.value(&metrics::SIGNAL_PAGE_ERRORS, &["f"]),
        Some(2.0)
    );
}
