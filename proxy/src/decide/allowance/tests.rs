//! Tokens counted to the last one, alone and by many threads at once.

use std::sync::Barrier;
use std::sync::atomic::AtomicUsize;

use super::*;

const ENGINE: EngineSlot = EngineSlot(5);

fn granted_to(shards: u16, tokens: i64) -> Allowances {
    let allowances = Allowances::new(shards);
    allowances.grant(ENGINE, tokens);
    allowances
}

/// Requests that a shard begins before it refuses, of at most 1,000.
fn begun(allowances: &Allowances, shard: u16) -> usize {
    let shard = allowances.shard(shard);
    let begin = |_: &usize| {
        let has_room = shard.has_room(ENGINE);
        if has_room {
            shard.take(ENGINE);
        }
        has_room
    };
    (0..1_000).take_while(begin).count()
}

#[test]
fn any_shard_reaches_every_token_and_no_more() {
    for (shards, tokens) in [(16, 8), (16, 3), (16, 1), (1, 7), (3, 100), (16, 0)] {
        for shard in [0, shards / 2, shards - 1] {
            let allowances = granted_to(shards, tokens);
            assert_eq!(
                begun(&allowances, shard),
                tokens as usize,
                "{shards} shards"
            );
            assert_eq!(allowances.free(ENGINE), 0);
            for other in 0..shards {
                assert!(!allowances.shard(other).has_room(ENGINE));
            }
        }
    }
}

#[test]
fn a_token_comes_back_to_the_shard_that_used_it() {
    let allowances = granted_to(4, 4);
    assert_eq!(begun(&allowances, 2), 4);
    let shard = allowances.shard(2);
    (0..4).for_each(|_| shard.give_back(ENGINE));
    assert!(shard.has_own(ENGINE));
    assert!(!allowances.shard(1).has_own(ENGINE));
    assert!(allowances.shard(1).has_room(ENGINE), "reached all the same");
    assert_eq!(begun(&allowances, 1), 4);
}

#[test]
fn an_engine_without_a_grant_takes_nothing() {
    let allowances = granted_to(2, 5);
    assert!(!allowances.shard(0).has_room(EngineSlot(6)));
    let beyond = EngineSlot(u16::MAX);
    allowances.grant(beyond, 7);
    assert!(!allowances.shard(0).has_room(beyond));
}

#[test]
fn a_lowered_allowance_waits_until_enough_has_ended() {
    let allowances = granted_to(4, 8);
    (0..6).for_each(|_| allowances.shard(0).take(ENGINE));
    // Eight were granted, six are taken, now four may be.
    allowances.grant(ENGINE, -4);
    assert_eq!(allowances.free(ENGINE), -2);
    let shard = allowances.shard(0);
    for still_free in [-1, 0] {
        shard.give_back(ENGINE);
        allowances.settle(ENGINE);
        assert_eq!(allowances.free(ENGINE), still_free);
        assert!((0..4).all(|shard| !allowances.shard(shard).has_room(ENGINE)));
    }
    shard.give_back(ENGINE);
    allowances.settle(ENGINE);
    assert_eq!(begun(&allowances, 3), 1);
    // What was taken away comes back whole.
    allowances.grant(ENGINE, 4);
    assert_eq!(begun(&allowances, 1), 4);
}

#[test]
fn shards_that_see_the_last_token_at_once_owe_it() {
    let allowances = granted_to(3, 1);
    let shards = [0, 1, 2].map(|shard| allowances.shard(shard));
    assert!(shards.iter().all(|shard| shard.has_room(ENGINE)));
    shards.iter().for_each(|shard| shard.take(ENGINE));
    assert_eq!(allowances.free(ENGINE), -2, "one request a shard but one");
    shards[..2].iter().for_each(|shard| shard.give_back(ENGINE));
    assert!(!shards[0].has_own(ENGINE) || allowances.free(ENGINE) == 0);
    allowances.settle(ENGINE);
    assert!(shards.iter().all(|shard| !shard.has_room(ENGINE)));
    shards[2].give_back(ENGINE);
    assert_eq!(allowances.free(ENGINE), 1);
}

#[test]
fn what_is_granted_is_shared_out_evenly() {
    let allowances = granted_to(16, 8);
    let own = (0..16).filter(|&shard| allowances.shard(shard).has_own(ENGINE));
    assert_eq!(own.count(), 8);
    // The odd tokens of the next engine lie with other shards.
    let next = EngineSlot(6);
    allowances.grant(next, 8);
    let holders = |engine| -> Vec<u16> {
        let has_own = |shard: &u16| allowances.shard(*shard).has_own(engine);
        (0..16).filter(has_own).collect()
    };
    let (of_one, of_next) = (holders(ENGINE), holders(next));
    assert_ne!(of_one, of_next);
}

/// Sixteen shards at once, each beginning and ending as fast as it can.
fn peak(tokens: i64) -> (usize, i64) {
    const SHARDS: u16 = 16;
    const ROUNDS: usize = 2_000;
    let allowances = granted_to(SHARDS, tokens);
    let (in_flight, peak) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Barrier::new(usize::from(SHARDS));
    std::thread::scope(|scope| {
        for shard in 0..SHARDS {
            let (allowances, in_flight, peak, start) = (&allowances, &in_flight, &peak, &start);
            scope.spawn(move || {
                let shard = allowances.shard(shard);
                start.wait();
                for round in 0..ROUNDS {
                    if !shard.has_room(ENGINE) {
                        std::thread::yield_now();
                        continue;
                    }
                    shard.take(ENGINE);
                    let now = in_flight.fetch_add(1, Ordering::SeqCst) + 1;
                    peak.fetch_max(now, Ordering::SeqCst);
                    if round % 4 == 0 {
                        std::thread::yield_now();
                    }
                    in_flight.fetch_sub(1, Ordering::SeqCst);
                    shard.give_back(ENGINE);
                }
            });
        }
    });
    (peak.into_inner(), allowances.free(ENGINE))
}

#[test]
fn sixteen_shards_at_once_keep_to_the_allowance_and_the_stated_overshoot() {
    for tokens in [8, 3] {
        let (peak, free) = peak(tokens);
        println!("allowance {tokens}: peak {peak}");
        assert!(peak >= 1, "nothing was taken");
        assert!(peak <= tokens as usize + 15, "peak {peak} of {tokens}");
        assert_eq!(free, tokens, "tokens were lost or made");
    }
}

#[test]
fn alone_a_process_has_the_whole_allowance() {
    for in_flight in [0, 3, 8, 20] {
        assert_eq!(granted(8, in_flight, &Others::default()), 8);
    }
    assert_eq!(granted(u32::MAX, 0, &Others::default()), MAX_TOKENS);
}

#[test]
fn one_that_only_finishes_its_streams_leaves_the_rest_to_the_other() {
    let others = |in_flight| Others {
        in_flight,
        ..Others::default()
    };
    assert_eq!(granted(8, 0, &others(5)), 3);
    assert_eq!(granted(8, 3, &others(5)), 3);
    assert_eq!(granted(8, 3, &others(2)), 6);
    assert_eq!(granted(8, 0, &others(9)), 0);
    assert_eq!(granted(8, 4, &others(7)), 1, "three too many: it gives way");
    assert_eq!(granted(8, 0, &others(u64::MAX)), 0);
}

#[test]
fn processes_that_serve_share_what_is_free() {
    let with = |in_flight, older| Others {
        in_flight,
        serving: 1,
        older,
    };
    // The sum of both is the allowance, whoever has how much in flight.
    for (one, two) in [(0, 0), (5, 0), (2, 3), (0, 8)] {
        let older = granted(8, one, &with(u64::from(two), 0));
        let younger = granted(8, two, &with(u64::from(one), 1));
        assert_eq!(older + younger, 8, "{one} and {two} in flight");
        assert!(older >= one && younger >= two);
    }
    // The only token is the older one's.
    assert_eq!(granted(1, 0, &with(0, 0)), 1);
    assert_eq!(granted(1, 0, &with(0, 1)), 0);
}

#[test]
fn a_policy_that_nobody_confirms_lets_a_quarter_more_pass() {
    let of = [0, 1, 4, 5, u32::MAX].map(unconfirmed);
    assert_eq!(of, [0, 2, 5, 7, u32::MAX]);
}
