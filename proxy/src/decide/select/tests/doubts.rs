//! Penalties and back-offs where nobody else would take a request, and what is told of it then.

use super::*;

#[test]
fn an_engine_whose_room_came_back_while_others_were_asked_is_there_and_taken() {
    let mut world = World::of(THIRDS);
    world.guard(3, |state| state.out = true);
    let guards = Guards {
        words: &world.words,
        back_offs: &mut world.back_offs,
        allowances: world.allowances.shard(0),
        now_ns: world.now_ns,
    };
    let question = Question {
        index: &world.index,
        key: 0,
        guards: &guards,
        tried: &world.tried,
        lenience: Lenience::None,
    };
    // As it stands when another shard was quicker than this one's second look.
    let refused = question.count(world.index.class(0).unwrap());
    assert_eq!((refused.out, refused.over_allowance), (1, 2));
    assert!(refused.is_busy());
}

/// Two engines at half each: a quarter of all keys is refused by both, and one engine is as good as
/// the other.
#[test]
fn penalties_move_keys_and_refuse_none_where_nobody_else_is_there() {
    let mut world = World::of(&[(3, 0.5), (5, 0.5)]);
    let whole: Vec<u16> = (0..10_000).map(|key| world.engine(finish(key))).collect();
    world.guard(3, |state| state.penalty = 0.5);
    world.guard(5, |state| state.penalty = 0.5);
    let both: Vec<u16> = (0..10_000).map(|key| world.engine(finish(key))).collect();
    let stayed = whole.iter().zip(&both).filter(|(a, b)| a == b).count();
    // Half by its own engine's word, and of the other half each that the other refuses as well.
    assert!(near(stayed, 10_000, 0.75), "{stayed}");
    // The other one is down, or refused a connection a moment ago, or was tried: the same.
    let only_third = |world: &mut World| assert_eq!(world.counts(&[3, 5]), [10_000, 0]);
    world.guard(5, |state| state.out = true);
    only_third(&mut world);
    world.guard(5, |_| {});
    world
        .back_offs
        .failed(EngineSlot(5), Generation(1), world.now_ns);
    only_third(&mut world);
    world.back_offs = BackOffs::new();
    assert!(world.tried.push(EngineSlot(5)));
    only_third(&mut world);
    world.tried = Tried::default();
    // While the other one has its share of all that is in flight, nothing spills over.
    (0..100).for_each(|_| world.allowances.shard(0).take(EngineSlot(5)));
    let refused: Vec<bool> = (0..10_000)
        .map(|key| world.select(finish(key)).is_err())
        .collect();
    let refused = refused.into_iter().filter(|refused| *refused).count();
    assert!(near(refused, 10_000, 0.5), "{refused}");
    // Ejected is another word: it takes nothing.
    world.guard(3, |state| state.penalty = 1.0);
    world.guard(5, |state| state.out = true);
    let refused = world.select(1).unwrap_err();
    assert_eq!((refused.ejected, refused.out), (1, 1));
}

#[test]
fn where_all_refused_a_connection_a_moment_ago_all_are_asked_again() {
    let mut world = World::of(THIRDS);
    for engine in [3, 5, 9] {
        world
            .back_offs
            .failed(EngineSlot(engine), Generation(1), world.now_ns);
    }
    let counts = world.counts(&[3, 5, 9]);
    assert!(near(counts[0], 10_000, 0.5), "{counts:?}");
    // That was nobody's trial: each is backed off as long as it was.
    world.back_offs.succeeded(EngineSlot(9), Generation(1));
    assert_eq!(world.counts(&[9]), [10_000]);
    world.now_ns += 1_000_000_000;
    assert_eq!(world.engine(0), 3, "its trial");
    // A request that was somewhere is not sent round among those that refuse.
    let mut world = World::of(THIRDS);
    for engine in [3, 5] {
        world
            .back_offs
            .failed(EngineSlot(engine), Generation(1), world.now_ns);
    }
    assert!(world.tried.push(EngineSlot(9)));
    let refused = world.select(0).unwrap_err();
    assert_eq!((refused.backed_off, refused.tried), (2, 1));
}
