//! Choices to the exact engine, and what happens as engines refuse one after the other.

use pointsman_shm::id::Generation;
use pointsman_shm::policy::{PlannedState, Policy};
use proptest::prelude::*;

use super::*;
use crate::decide::allowance::Allowances;
use crate::decide::guard::{GuardState, GuardWord};
use crate::decide::mix::finish;
use crate::decide::testing;

mod doubts;

const THIRDS: &[(u16, f64)] = &[(3, 0.5), (5, 0.25), (9, 0.25)];

struct World {
    policy: Policy,
    index: PolicyIndex,
    words: GuardTable,
    back_offs: BackOffs,
    allowances: Allowances,
    tried: Tried,
    now_ns: u64,
}

impl World {
    fn new(policy: Policy) -> Self {
        Self {
            index: PolicyIndex::build(&policy, &|_| true),
            allowances: Allowances::of(&policy, 2),
            policy,
            words: GuardTable::new(),
            back_offs: BackOffs::new(),
            tried: Tried::default(),
            now_ns: 1,
        }
    }

    fn of(weights: &[(u16, f64)]) -> Self {
        let engines: Vec<u16> = weights.iter().map(|&(engine, _)| engine).collect();
        Self::new(testing::policy(&engines, &[weights]))
    }

    fn select(&mut self, key: u64) -> Result<Selection, Refused> {
        let mut guards = Guards {
            words: &self.words,
            back_offs: &mut self.back_offs,
            allowances: self.allowances.shard(0),
            now_ns: self.now_ns,
        };
        select(&self.index, 0, key, &mut guards, &self.tried)
    }

    /// Asks without choosing, which has to agree with what a choice comes to.
    fn refused(&mut self, key: u64) -> Option<Refused> {
        let guards = Guards {
            words: &self.words,
            back_offs: &mut self.back_offs,
            allowances: self.allowances.shard(0),
            now_ns: self.now_ns,
        };
        refused(&self.index, 0, key, &guards, &self.tried)
    }

    fn engine(&mut self, key: u64) -> u16 {
        self.select(key).unwrap().engine.0
    }

    fn guard(&self, engine: u16, change: impl FnOnce(&mut GuardState)) {
        let mut state = GuardState::clear(Generation(1));
        change(&mut state);
        self.words
            .store(EngineSlot(engine), GuardWord::pack(&state));
    }

    /// Requests of 10,000 keys by engine.
    fn counts(&mut self, engines: &[u16]) -> Vec<usize> {
        let chosen: Vec<u16> = (0..10_000).map(|key| self.engine(finish(key))).collect();
        engines
            .iter()
            .map(|engine| chosen.iter().filter(|&e| e == engine).count())
            .collect()
    }
}

/// Within five standard deviations of the binomial share.
fn near(count: usize, of: usize, share: f64) -> bool {
    let (of, count) = (of as f64, count as f64);
    (count - of * share).abs() <= 5.0 * (of * share * (1.0 - share)).sqrt()
}

#[test]
fn a_key_goes_where_its_high_bits_say() {
    let mut world = World::of(THIRDS);
    for (key, slot, engine) in [
        (0, 0, 3),
        (0x7fff_ffff_ffff_ffff, 511, 3),
        (0x8000_0000_0000_0000, 512, 5),
        (0xbfff_ffff_ffff_ffff, 767, 5),
        (0xc000_0000_0000_0000, 768, 9),
        (u64::MAX, 1023, 9),
    ] {
        let selection = world.select(key).unwrap();
        assert_eq!(
            (selection.engine.0, selection.via),
            (engine, Via::Table),
            "{key:x}"
        );
        assert_eq!((selection.table_slot, selection.table_len), (slot, 1024));
        let place = world.index.place_of(0, selection.engine).unwrap();
        let eligible = &world.policy.classes[0].eligible[usize::from(place)];
        assert_eq!(eligible.engine.0, engine);
    }
}

#[test]
fn an_engine_at_its_allowance_passes_keys_on_and_all_at_theirs_shed() {
    let mut world = World::of(THIRDS);
    let key = 0;
    assert_eq!(world.engine(key), 3);
    // This shard uses up its own tokens and nearly all of the other's.
    let take = |world: &World, shard| world.allowances.shard(shard).take(EngineSlot(3));
    (0..99).for_each(|_| take(&world, 0));
    assert!(!world.allowances.shard(0).has_own(EngineSlot(3)));
    assert_eq!(world.engine(key), 3, "one is left, next door");
    take(&world, 1);
    let selection = world.select(key).unwrap();
    assert_ne!((selection.engine.0, selection.via), (3, Via::Table));
    for engine in [5, 9] {
        (0..100).for_each(|_| world.allowances.shard(0).take(EngineSlot(engine)));
    }
    let refused = world.select(key).unwrap_err();
    assert_eq!(refused.over_allowance, 3);
    assert!(refused.is_busy());
    world.allowances.shard(0).give_back(EngineSlot(9));
    assert_eq!(world.engine(key), 9);
    // One that is out is not counted as busy.
    world.guard(3, |state| state.out = true);
    world.allowances.shard(0).take(EngineSlot(9));
    let refused = world.select(key).unwrap_err();
    assert_eq!((refused.out, refused.over_allowance), (1, 2));
    // Nor is one that is ejected, whatever it still has in flight.
    world.guard(5, |state| state.penalty = 1.0);
    world.guard(9, |state| state.penalty = 1.0);
    let refused = world.select(key).unwrap_err();
    assert_eq!((refused.out, refused.ejected), (1, 2));
    assert!(!refused.is_busy());
}

#[test]
fn e06_e21_the_same_policy_gives_the_same_engine_everywhere() {
    let (mut one, mut two) = (World::of(THIRDS), World::of(THIRDS));
    for world in [&one, &two] {
        world.guard(5, |state| state.penalty = 0.5);
        world.guard(9, |state| state.out = true);
    }
    for key in (0..2_000).map(finish) {
        assert_eq!(one.select(key), two.select(key));
    }
}

#[test]
fn e06_an_engine_that_goes_moves_only_its_own_keys() {
    let mut world = World::of(THIRDS);
    let before: Vec<u16> = (0..10_000).map(|key| world.engine(finish(key))).collect();
    world.guard(5, |state| state.out = true);
    for (key, before) in (0..).zip(&before) {
        let now = world.engine(finish(key));
        assert!(now == *before || *before == 5, "{key}: {before} to {now}");
        assert_ne!(now, 5);
    }
}

#[test]
fn e08_conversations_of_a_full_engine_move_together_and_come_home() {
    let mut world = World::of(THIRDS);
    let keys = || (0..10_000).map(finish);
    let before: Vec<u16> = keys().map(|key| world.engine(key)).collect();
    // Others are far from full, so each conversation has one other home, and keeps it.
    (0..100).for_each(|_| world.allowances.shard(0).take(EngineSlot(3)));
    let during: Vec<u16> = keys().map(|key| world.engine(key)).collect();
    let again: Vec<u16> = keys().map(|key| world.engine(key)).collect();
    assert_eq!(during, again);
    for (before, during) in before.iter().zip(&during) {
        assert!(*during != 3 && (during == before || *before == 3));
    }
    // Every other host that finds it full sends them to the same place.
    let mut other = World::of(THIRDS);
    (0..100).for_each(|_| other.allowances.shard(1).take(EngineSlot(3)));
    let elsewhere: Vec<u16> = keys().map(|key| other.engine(key)).collect();
    assert_eq!(during, elsewhere);
    world.allowances.shard(0).give_back(EngineSlot(3));
    let after: Vec<u16> = keys().map(|key| world.engine(key)).collect();
    assert_eq!(after, before);
}

#[test]
fn e09_shares_follow_the_table_and_equal_engines_share_equally() {
    let counts = World::of(THIRDS).counts(&[3, 5, 9]);
    assert!(
        near(counts[0], 10_000, 0.5) && near(counts[1], 10_000, 0.25),
        "{counts:?}"
    );
    let counts = World::of(&[(1, 0.25), (2, 0.25), (3, 0.25), (4, 0.25)]).counts(&[1, 2, 3, 4]);
    assert!(
        counts.iter().all(|&count| near(count, 10_000, 0.25)),
        "{counts:?}"
    );
}

#[test]
fn e02_without_a_table_the_standby_list_decides_by_its_weights() {
    let mut policy = testing::policy(&[1, 2, 3], &[&[(1, 0.0), (2, 0.0), (3, 0.0)]]);
    assert!(policy.classes[0].table.is_empty());
    for (standby, weight) in policy.classes[0].standby.iter_mut().zip([1.0, 2.0, 7.0]) {
        standby.weight = weight;
    }
    let mut world = World::new(policy.clone());
    assert_eq!(world.select(1).unwrap().via, Via::Standby);
    let counts = world.counts(&[1, 2, 3]);
    for (count, share) in counts.iter().zip([0.1, 0.2, 0.7]) {
        assert!(near(*count, 10_000, share), "{counts:?}");
    }
    policy.classes[0].standby.clear();
    let mut bare = World::new(policy);
    assert_eq!(bare.select(1).unwrap().via, Via::Rest);
    let counts = bare.counts(&[1, 2, 3]);
    assert!(
        counts.iter().all(|&count| near(count, 10_000, 1.0 / 3.0)),
        "{counts:?}"
    );
}

#[test]
fn e02_no_engine_no_class_and_odd_standby_weights() {
    let mut empty = World::new(testing::policy(&[], &[&[]]));
    assert_eq!(empty.select(1), Err(Refused::default()));
    assert!(!Refused::default().is_busy());
    let mut none = World::new(testing::policy(&[], &[]));
    assert_eq!(none.select(1), Err(Refused::default()));
    let mut policy = testing::policy(&[1, 2, 3], &[&[(1, 0.0), (2, 0.0), (3, 0.0)]]);
    for (standby, weight) in policy.classes[0]
        .standby
        .iter_mut()
        .zip([f64::NAN, -1.0, 1e-320])
    {
        standby.weight = weight;
    }
    let mut world = World::new(policy);
    assert_eq!(world.counts(&[3]), [10_000]);
}

#[test]
fn a_zero_weight_engine_is_the_last_resort_and_no_other_is() {
    // Engine 4 is in the policy, but not eligible.
    let mut world = World::new(testing::policy(&[3, 4, 5], &[&[(3, 1.0), (5, 0.0)]]));
    assert_eq!(world.counts(&[3, 5]), [10_000, 0]);
    world.guard(3, |state| state.out = true);
    assert_eq!(world.counts(&[3, 5]), [0, 10_000]);
    world.guard(5, |state| state.draining = true);
    let refused = Refused {
        out: 1,
        draining: 1,
        ..Refused::default()
    };
    assert_eq!(world.select(7), Err(refused));
    assert!(!refused.is_busy());
}

#[test]
fn refused_keys_find_another_engine_of_the_table_first() {
    let mut world = World::of(THIRDS);
    (0..100).for_each(|_| world.allowances.shard(0).take(EngineSlot(9)));
    let moved: Vec<Selection> = (0..10_000)
        .map(|key| world.select(finish(key)).unwrap())
        .filter(|selection| selection.table_slot >= 768)
        .collect();
    let rehashed = moved
        .iter()
        .filter(|selection| selection.via == Via::Rehash)
        .count();
    // Each of two looks hits engine 9 again with probability 1/4.
    assert!(
        near(rehashed, moved.len(), 1.0 - 1.0 / 16.0),
        "{rehashed} of {}",
        moved.len()
    );
    assert!(moved.iter().all(|selection| selection.engine.0 != 9));
    assert!(moved.iter().all(|selection| selection.via != Via::Table));
}

#[test]
fn a_penalty_takes_its_fraction_less_what_the_plan_counts() {
    let mut world = World::of(THIRDS);
    world.guard(3, |state| state.penalty = 0.4);
    let before: Vec<u16> = (0..10_000).map(|key| world.engine(finish(key))).collect();
    let kept = before.iter().filter(|&&engine| engine == 3).count();
    assert!(near(kept, 10_000, 0.5 * 0.6), "{kept}");
    world.policy.engines[0].planned_factor = 0.6;
    world.index = PolicyIndex::build(&world.policy, &|_| true);
    let counts = world.counts(&[3]);
    assert!(near(counts[0], 10_000, 0.5), "{counts:?}");
    // Of another life of the slot number, the word says nothing.
    world.policy.engines[0].planned_factor = 1.0;
    world.policy.engines[0].generation = Generation(2);
    world.index = PolicyIndex::build(&world.policy, &|_| true);
    let counts = world.counts(&[3]);
    assert!(near(counts[0], 10_000, 0.5), "{counts:?}");
}

#[test]
fn a_penalty_is_as_large_before_the_plan_takes_it_as_after_and_gives_the_same_keys_back() {
    let planned = |weight: f64, planned_factor: f64| {
        let weights = [(3, weight), (5, 1.0 - weight)];
        let mut policy = testing::policy(&[3, 5], &[&weights]);
        policy.engines[0].planned_factor = planned_factor;
        World::new(policy)
    };
    let keys = |world: &mut World| -> Vec<u64> {
        let keys = (0..10_000).map(finish);
        keys.filter(|&key| world.engine(key) == 3).collect()
    };
    let mut before = planned(0.5, 1.0);
    let whole = keys(&mut before);
    for penalty in [0.25, 0.5, 0.75] {
        before.guard(3, |state| state.penalty = penalty);
        let kept = keys(&mut before);
        let share = 0.5 * (1.0 - penalty);
        assert!(near(kept.len(), 10_000, share), "{penalty}: {}", kept.len());
        assert!(kept.iter().all(|key| whole.contains(key)));
        // The plan has taken half of it, or all.
        for taken in [penalty / 2.0, penalty] {
            let mut after = planned(0.5 * (1.0 - taken), 1.0 - taken);
            after.guard(3, |state| state.penalty = penalty);
            let kept = keys(&mut after).len();
            assert!(near(kept, 10_000, share), "{penalty} {taken}: {kept}");
        }
    }
    before.guard(3, |state| state.penalty = 0.0);
    assert_eq!(keys(&mut before), whole);
}

#[test]
fn standby_only_engines_wait_for_a_refusal() {
    let mut world = World::of(THIRDS);
    world.guard(3, |state| state.standby_only = true);
    let counts = world.counts(&[3]);
    // A refused key stays off the table's engine 3 unless both other looks hit 3 too (1/4).
    assert!(counts[0] < 10_000 / 4, "{counts:?}");
    for engine in [5, 9] {
        world.guard(engine, |state| state.out = true);
    }
    assert_eq!(world.counts(&[3]), [10_000]);
    let mut policy = testing::policy(&[1, 2], &[&[(1, 1.0), (2, 0.0)]]);
    policy.engines[0].state = PlannedState::StandbyOnly;
    let mut planned = World::new(policy);
    let selection = planned.select(5).unwrap();
    assert_eq!(selection.via, Via::Standby);
}

#[test]
fn what_the_policy_or_the_host_rules_out_is_refused() {
    let mut policy = testing::policy(&[1, 2, 3, 4], &[&[(1, 0.5), (2, 0.5), (3, 0.0), (4, 0.0)]]);
    policy.engines[0].state = PlannedState::Out;
    policy.engines[1].state = PlannedState::Draining;
    policy.engines[2].allowance = 0;
    policy.engines[3].credential = "unknown".into();
    let mut world = World::new(policy);
    assert_eq!(world.counts(&[4]), [10_000]);
    world.index = PolicyIndex::build(&world.policy, &|engine| engine.credential.is_empty());
    let refused = world.select(1).unwrap_err();
    let expected = Refused {
        out: 2,
        draining: 1,
        over_allowance: 1,
        ..Refused::default()
    };
    assert_eq!(refused, expected);
    assert!(refused.is_busy());
}

#[test]
fn tried_engines_are_left_out_until_none_is_left() {
    let mut world = World::of(THIRDS);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let engine = world.select(1).unwrap().engine;
        assert!(!seen.contains(&engine));
        seen.push(engine);
        assert!(world.tried.push(engine));
    }
    assert_eq!(
        world.select(1),
        Err(Refused {
            tried: 3,
            ..Refused::default()
        })
    );
    for engine in 20..25 {
        assert!(world.tried.push(EngineSlot(engine)));
    }
    assert!(world.tried.is_full());
    assert!(!world.tried.push(EngineSlot(30)));
}

#[test]
fn who_would_not_take_a_key_is_told_with_the_cause() {
    let all = [
        (3, 0.25),
        (5, 0.25),
        (9, 0.125),
        (11, 0.125),
        (12, 0.125),
        (13, 0.125),
    ];
    let mut world = World::of(&all);
    world.policy.engines[5].state = PlannedState::Draining;
    world.index = PolicyIndex::build(&world.policy, &|_| true);
    world.guard(3, |state| state.out = true);
    (0..100).for_each(|_| world.allowances.shard(0).take(EngineSlot(5)));
    world.guard(9, |state| state.penalty = 1.0);
    world
        .back_offs
        .failed(EngineSlot(11), Generation(1), world.now_ns);
    let told = |world: &mut World| {
        let mut guards = Guards {
            words: &world.words,
            back_offs: &mut world.back_offs,
            allowances: world.allowances.shard(0),
            now_ns: world.now_ns,
        };
        let refusals = refusals(&world.index, 0, 7, &mut guards, &world.tried);
        let told = refusals
            .iter()
            .map(|(engine, refusal)| (engine.0, refusal.label()));
        told.collect::<Vec<_>>()
    };
    let mut expected = vec![
        (3, "out"),
        (5, "over_allowance"),
        (9, "ejected"),
        (11, "backed_off"),
        (13, "draining"),
    ];
    assert_eq!(told(&mut world), expected);
    // Who is left is who is chosen; once tried it is one more, and nobody is.
    assert_eq!(world.engine(7), 12);
    assert!(world.tried.push(EngineSlot(12)));
    expected.insert(4, (12, "tried"));
    assert_eq!(told(&mut world), expected);
    assert!(world.select(7).is_err());
}

#[test]
fn e13_a_backed_off_engine_is_skipped_and_then_tried_by_one_request() {
    let mut world = World::of(&[(1, 1.0), (2, 0.0)]);
    world
        .back_offs
        .failed(EngineSlot(1), Generation(1), world.now_ns);
    assert_eq!(world.engine(5), 2);
    world.now_ns += 1_000_000_000;
    assert_eq!(world.engine(5), 1, "the trial");
    assert_eq!(world.engine(5), 2, "while it is going on");
    world.back_offs.succeeded(EngineSlot(1), Generation(1));
    assert_eq!(world.engine(5), 1);
}

#[test]
fn more_engines_than_the_standby_list_holds_are_used_too() {
    let weights: Vec<(u16, f64)> = (0..40)
        .map(|engine| (engine, if engine == 0 { 1.0 } else { 0.0 }))
        .collect();
    let engines: Vec<u16> = (0..40).collect();
    let mut policy = testing::policy(&engines, &[&weights]);
    policy.classes[0].standby.truncate(16);
    let mut world = World::new(policy);
    for engine in 0..16 {
        world.guard(engine, |state| state.out = true);
    }
    let selection = world.select(1).unwrap();
    assert_eq!(selection.via, Via::Rest);
    let counts = world.counts(&engines);
    assert!(counts[..16].iter().all(|&count| count == 0));
    assert!(
        counts[16..]
            .iter()
            .all(|&count| near(count, 10_000, 1.0 / 24.0)),
        "{counts:?}"
    );
}

#[test]
fn logarithms_are_close_to_the_librarys_and_pinned() {
    for hash in (0..1000).map(finish).chain([0, 1, u64::MAX, 1 << 63]) {
        let u = (hash | 1) as f64 / 18_446_744_073_709_551_616.0;
        let expected = -u.ln();
        let found = negative_ln(hash);
        assert!(
            (found - expected).abs() <= 1e-11 * expected.max(1.0),
            "{hash}: {found}"
        );
        assert!(
            found > 0.0 || hash > u64::MAX - (1 << 12),
            "{hash}: {found}"
        );
    }
    assert_eq!(
        negative_ln(1 << 63).to_bits(),
        std::f64::consts::LN_2.to_bits()
    );
    assert_eq!(negative_ln(finish(1)).to_bits(), PINNED_LN);
}

const PINNED_LN: u64 = 4_607_561_696_656_342_043;

fn guard_state() -> impl Strategy<Value = GuardState> {
    let flag = || proptest::bool::weighted(0.2);
    let penalty = prop_oneof![Just(0.0), Just(1.0), 0.0..1.0];
    (flag(), flag(), flag(), penalty, 1..3u32).prop_map(
        |(out, draining, standby_only, penalty, generation)| GuardState {
            generation: Generation(generation),
            out,
            draining,
            standby_only,
            penalty,
        },
    )
}

proptest! {
    /// Whatever happens to engines, a request goes to a willing one of its class while there is
    /// one, never to another, and is refused with every engine counted once when there is none.
    #[test]
    fn no_request_leaves_the_eligible_set(
        words in proptest::collection::vec(guard_state(), 8),
        keys in proptest::collection::vec(any::<u64>(), 1..20),
        failed in proptest::collection::vec(0..8u16, 0..8),
        full in proptest::collection::vec(0..8u16, 0..4),
        tried in proptest::collection::vec(0..8u16, 0..4),
        standby in 0..5usize,
    ) {
        let weights: &[(u16, f64)] = &[(0, 0.5), (2, 0.5), (4, 0.0), (6, 0.0)];
        let mut policy = testing::policy(&[0, 1, 2, 3, 4, 5, 6, 7], &[weights]);
        policy.classes[0].standby.truncate(standby);
        let mut world = World::new(policy);
        for (engine, word) in (0..).zip(&words) {
            world.words.store(EngineSlot(engine), GuardWord::pack(word));
        }
        for &engine in &failed {
            world.back_offs.failed(EngineSlot(engine), Generation(1), world.now_ns);
        }
        for &engine in &full {
            (0..100).for_each(|_| world.allowances.shard(1).take(EngineSlot(engine)));
        }
        for &engine in &tried {
            prop_assert!(world.tried.push(EngineSlot(engine)));
        }
        // Who could take anything at all: neither ruled out nor full, and not tried.
        let word = |engine: u16| {
            let word = &words[usize::from(engine)];
            (word.generation == Generation(1)).then_some(word)
        };
        let is_there = |engine: &u16| {
            let known = word(*engine);
            let is_out = known.is_some_and(|w| w.out || w.draining || w.penalty >= 1.0);
            !is_out && !full.contains(engine) && !tried.contains(engine)
        };
        let there: Vec<u16> = [0, 2, 4, 6].into_iter().filter(is_there).collect();
        for key in keys {
            let asked = world.refused(key);
            let selected = world.select(key);
            prop_assert_eq!(asked, selected.err());
            match selected {
                Ok(selection) => {
                    let engine = selection.engine.0;
                    prop_assert!(there.contains(&engine));
                    // One that was doubted only where all are.
                    let doubted = |engine: &u16| {
                        failed.contains(engine) || word(*engine).is_some_and(|w| w.penalty > 0.0)
                    };
                    prop_assert!(!failed.contains(&engine) || there.iter().all(doubted));
                    let by_table = matches!(selection.via, Via::Table | Via::Rehash);
                    let is_standby = word(engine).is_some_and(|word| word.standby_only);
                    prop_assert!(!(by_table && is_standby));
                }
                Err(refused) => {
                    let counted = refused.out + refused.draining + refused.over_allowance
                        + refused.penalised + refused.ejected + refused.backed_off
                        + refused.tried;
                    prop_assert_eq!(counted, 4);
                    // Somebody who is there is refused only where another is full, or where the
                    // request was elsewhere already.
                    let is_moved = refused.tried > 0;
                    prop_assert!(there.is_empty() || refused.is_busy() || is_moved);
                }
            }
        }
    }
}
