//! The numbering's promises, one by one and then under stress.
//!
//! The stress test does not wait for a crash to show a policy freed too early: every policy is
//! consistent in itself (its text repeats its version), so a shard that reads freed and reused
//! memory sees a contradiction. AddressSanitizer makes the same test exact.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::*;
use crate::sentinel::fixture;

fn publish(publisher: &mut Publisher, version: u64) {
    let mut policy = fixture::policy(version, "A");
    policy.classes[0].name = format!("class of version {version}");
    let index = PolicyIndex::build(&policy, &|_| true);
    publisher.publish(policy, index, Source::Region);
}

#[test]
fn a_shard_takes_up_the_newest_and_says_so_once() {
    let (mut publisher, mut shards) = channel(1);
    let shard = &mut shards[0];
    assert!(!shard.refresh());
    assert!(shard.current().is_none());
    assert_eq!(shard.version(), 0);
    publish(&mut publisher, 10);
    publish(&mut publisher, 11);
    assert_eq!(
        shard.version(),
        0,
        "nothing changes under a shard that did not ask"
    );
    assert!(shard.refresh());
    assert!(!shard.refresh());
    assert_eq!(shard.version(), 11);
    assert_eq!(shard.current().map(|adopted| adopted.number), Some(2));
    assert_eq!(publisher.oldest_running_version(), 11);
}

#[test]
fn what_a_shard_may_still_run_stays() {
    let (mut publisher, mut shards) = channel(2);
    publish(&mut publisher, 1);
    publish(&mut publisher, 2);
    publish(&mut publisher, 3);
    assert_eq!(publisher.live_count(), 3, "no shard has said anything yet");
    shards[0].refresh();
    publisher.collect();
    assert_eq!(
        publisher.live_count(),
        3,
        "the other shard may be taking up any of them"
    );
    assert_eq!(publisher.oldest_running_version(), 0);
    shards[1].refresh();
    publisher.collect();
    assert_eq!(publisher.live_count(), 1);
    publish(&mut publisher, 4);
    shards[0].refresh();
    publisher.collect();
    assert_eq!(publisher.live_count(), 2, "a shard still runs version 3");
    assert_eq!(
        shards[1].current().map(|adopted| adopted.policy.version),
        Some(3)
    );
    assert_eq!(publisher.oldest_running_version(), 3);
}

#[test]
fn an_ended_shard_holds_nothing() {
    let (mut publisher, mut shards) = channel(2);
    publish(&mut publisher, 1);
    shards[0].refresh();
    shards.remove(1);
    publish(&mut publisher, 2);
    assert_eq!(publisher.live_count(), 2);
    shards[0].refresh();
    publisher.collect();
    assert_eq!(publisher.live_count(), 1);
    assert_eq!(publisher.oldest_running_version(), 2);
}

#[test]
fn a_shard_outlives_the_publisher() {
    let (mut publisher, mut shards) = channel(1);
    publish(&mut publisher, 1);
    shards[0].refresh();
    drop(publisher);
    assert_eq!(shards[0].version(), 1);
    assert!(!shards[0].refresh());
}

#[test]
fn readers_never_see_a_freed_policy_and_memory_stays_bounded() {
    const SHARDS: u16 = 3;
    const PUBLICATIONS: u64 = 5_000;
    let (mut publisher, shards) = channel(SHARDS);
    let is_over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = shards
        .into_iter()
        .map(|mut shard| {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || {
                let mut last = 0;
                while !is_over.load(Ordering::Relaxed) {
                    shard.refresh();
                    let Some(adopted) = shard.current() else {
                        continue;
                    };
                    let version = adopted.policy.version;
                    assert!(version >= last, "version {version} after {last}");
                    let name = &adopted.policy.classes[0].name;
                    assert_eq!(*name, format!("class of version {version}"));
                    last = version;
                }
                last
            })
        })
        .collect();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut most = 0;
    for version in 1..=PUBLICATIONS {
        publish(&mut publisher, version);
        most = most.max(publisher.live_count());
        // A reader that the machine does not run holds everything: let it run.
        while publisher.live_count() > 64 {
            assert!(Instant::now() < deadline, "a reader does not move on");
            std::thread::yield_now();
            publisher.collect();
        }
    }
    while publisher.oldest_running_version() < PUBLICATIONS {
        assert!(
            Instant::now() < deadline,
            "a reader does not reach the last version"
        );
        std::thread::yield_now();
    }
    publisher.collect();
    assert_eq!(publisher.live_count(), 1);
    assert!(most <= 65);
    is_over.store(true, Ordering::Relaxed);
    for reader in readers {
        assert_eq!(reader.join().unwrap(), PUBLICATIONS);
    }
}
