//! Recorded ticks: solved again to the same bytes, read while they are written, asked for by a
//! person.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failed test"
)]

mod recorded;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pointsman_solver::history::keeper::{Came, Keeper};
use pointsman_solver::history::read::{Item, Walk, segments};
use pointsman_solver::history::replay::{CRASHED, LATE, Replayed};
use pointsman_solver::history::{Bounds, folder};
use pointsman_solver::metrics;
use pointsman_solver::model::units::NonNegative;
use pointsman_solver::tick::tick;
use recorded::{World, large, run, text};

#[test]
fn a_thousand_recorded_ticks_of_a_wandering_world_solve_to_the_same_bytes() {
    let mut world = World::new(4, large());
    let (mut late, mut crashed, mut refused, mut published) = (0, 0, 0, 0);
    for n in 1..=1_000_u64 {
        match n {
            _ if n % 97 == 0 => {
                world.wasted(LATE);
                late += 1;
                continue;
            }
            _ if n % 211 == 0 => {
                world.wasted(CRASHED);
                crashed += 1;
                continue;
            }
            _ if n % 180 == 0 => {
                world.describe(text(4 + (n / 180) as usize % 3, 50 + (n / 9) as u32))
            }
            _ if n % 330 == 0 => world.restart(),
            _ => {}
        }
        if n % 173 == 0 {
            // More than any engine could be planned for: refused before solving.
            let calm = std::mem::replace(&mut world.demand, vec![0.0; 6]);
            let inputs_of = |world: &mut World| {
                let mut inputs = world.inputs();
                let rates = &mut inputs.demand[0].by_priority_rps;
                rates[0] = NonNegative::new(1e15).unwrap();
                inputs
            };
            let inputs = inputs_of(&mut world);
            let begun = world.keeper.begin(&world.state);
            let outcome = tick(&world.topology, &mut world.state, &inputs);
            assert_eq!(outcome.status.name(), "refused");
            let came = Came::failed("refused", &outcome.status.to_string());
            world.keeper.keep(begun, &world.state, inputs, came);
            world.written();
            world.demand = calm;
            refused += 1;
            continue;
        }
        let status = world.pass(|came| {
            assert_eq!(came.made.len(), 3);
        });
        assert_eq!(status, "optimal");
    }
    drop(std::mem::replace(&mut world.keeper, Keeper::off()));
    for item in Walk::new(world.segments()) {
        if let Item::Tick(tick) = item {
            published += tick.head.made.iter().filter(|made| made.published).count();
        }
    }
    assert_eq!((late, crashed, refused), (10, 4, 5));
    assert!(
        published > 300,
        "the world must move: {published} publications"
    );
    let replayed = world.replay();
    let expected = Replayed {
        ticks: 1_000 - late - crashed,
        policies: 3 * (1_000 - late - crashed - refused),
        without_answer: late + crashed,
        ..Replayed::default()
    };
    assert_eq!(replayed, expected);
    let bytes: u64 = world
        .segments()
        .iter()
        .map(|s| s.metadata().unwrap().len())
        .sum();
    println!("{published} publications, {} bytes a tick", bytes / 1_000);
    assert_eq!(
        world.metrics.value(&metrics::HISTORY_LOST, &["queue"]),
        Some(0.0)
    );
}

#[test]
fn a_policy_that_a_replay_does_not_find_again_is_named_to_the_field() {
    let mut world = World::new(11, large());
    for n in 0..6 {
        world.pass(|came| {
            if n == 3 {
                let weight = &mut came.made[1].policy.classes[0].eligible[2].weight;
                *weight = f64::from_bits(weight.to_bits() ^ 1);
            }
        });
    }
    drop(std::mem::replace(&mut world.keeper, Keeper::off()));
    let replayed = world.replay();
    assert_eq!((replayed.ticks, replayed.differing), (6, 1));
    let difference = replayed.difference.unwrap();
    assert_eq!(
        (difference.tick, difference.frontend.as_deref()),
        (4, Some("b"))
    );
    let what = &difference.what;
    assert!(
        what.starts_with("classes.0.eligible.2.weight: recorded "),
        "{what}"
    );
    let (told, ended) = run(world.dir.path(), &["replay"]);
    assert!(told.contains("1 ticks differ"), "{told}");
    let error = ended.unwrap_err();
    assert!(
        error.starts_with("tick 4 differs: frontend b, version "),
        "{error}"
    );
    // What was published around it is not touched by it.
    let (told, ended) = run(world.dir.path(), &["replay", "--from", "1", "--to", "1"]);
    assert_eq!(ended, Ok(()));
    assert!(told.ends_with("solved again: the same bytes\n"), "{told}");
}

#[test]
fn the_commands_tell_what_was_decided_and_what_changed() {
    let mut world = World::new(5, large());
    for _ in 0..30 {
        world.pass(|_| ());
    }
    drop(std::mem::replace(&mut world.keeper, Keeper::off()));
    let dir = world.dir.path();
    let (told, ended) = run(dir, &["history", "--last", "3"]);
    assert_eq!(ended, Ok(()));
    assert_eq!(
        told.lines()
            .filter(|line| line.starts_with("tick "))
            .count(),
        3,
        "{told}"
    );
    assert!(told.contains("2027-01-15T08:"), "{told}");
    let (told, _) = run(
        dir,
        &[
            "history",
            "--all",
            "--last",
            "99",
            "--json",
            "--frontend",
            "a",
        ],
    );
    let listed: serde_json::Value = serde_json::from_str(&told).unwrap();
    let ticks = listed["ticks"].as_array().unwrap();
    assert_eq!(
        (ticks.len(), listed["missing"].as_array().unwrap().len()),
        (30, 0)
    );
    assert_eq!(ticks[0]["made"][0]["reason"], "first");
    assert_eq!(ticks[0]["made"][0]["change"], "the first");
    assert!(ticks[0]["cost"]["total"].as_f64().unwrap() > 0.0);

    let (told, ended) = run(dir, &["show", "1", "--frontend", "b"]);
    assert_eq!(ended, Ok(()));
    assert!(
        told.starts_with("frontend b, version 1, epoch 3\n"),
        "{told}"
    );
    assert!(told.contains("published for first: the first"), "{told}");
    let (told, _) = run(dir, &["show", "1", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(shown.as_array().unwrap().len(), 3, "one of each frontend");
    let weights = shown[0]["classes"][0]["weights"].as_array().unwrap();
    let sum: f64 = weights.iter().map(|w| w["weight"].as_f64().unwrap()).sum();
    let slots: u64 = weights.iter().map(|w| w["slots"].as_u64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    assert_eq!(slots, 256);

    let (told, ended) = run(dir, &["diff", "1", "2", "--frontend", "a"]);
    assert_eq!(ended, Ok(()));
    assert!(told.starts_with("frontend a, version 1 -> 2\n  "), "{told}");
    let (_, ended) = run(dir, &["show", "9999"]);
    assert_eq!(ended, Err("version 9999 is not in the history".into()));
    let (_, ended) = run(&dir.join("nowhere"), &["history"]);
    assert!(
        ended
            .unwrap_err()
            .contains("nowhere/history: no history there")
    );

    let (told, ended) = run(dir, &["replay", "--json"]);
    assert_eq!(ended, Ok(()));
    let replayed: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(
        (&replayed["ticks"], &replayed["differing"]),
        (&30.into(), &0.into())
    );
    let file = world.segments().remove(0);
    let (_, ended) = run(dir, &["replay", file.to_str().unwrap()]);
    assert_eq!(ended, Ok(()));
}

#[test]
fn a_reader_meanwhile_sees_whole_ticks_in_order() {
    // Small bounds, so that segments come and go under the reader.
    let mut world = World::new(
        21,
        Bounds {
            ticks: 64,
            bytes: 1 << 30,
        },
    );
    world.pass(|_| ());
    let dir = folder(world.dir.path());
    let over = Arc::new(AtomicBool::new(false));
    let done = over.clone();
    let reading = std::thread::spawn(move || {
        let (mut rounds, mut seen) = (0_u64, 0_u64);
        while !done.load(Ordering::SeqCst) || rounds == 0 {
            let mut last = None;
            for item in Walk::new(segments(&dir).unwrap()) {
                match item {
                    Item::Tick(tick) => {
                        let number = tick.head.number;
                        assert!(last.is_none_or(|last| last < number), "{last:?}, {number}");
                        for i in 0..tick.policies.len() {
                            let policy = tick.policy(i).unwrap();
                            assert_eq!(policy.version, tick.head.made[i].version);
                        }
                        tick.inputs().unwrap();
                        last = Some(number);
                        seen += 1;
                    }
                    Item::Head(head) => panic!("tick {} follows from a lost one", head.number),
                    Item::Gap(why) => {
                        let fine = why.contains("writes now") || why.contains("deleted meanwhile");
                        assert!(fine, "{why}");
                    }
                }
            }
            rounds += 1;
        }
        (rounds, seen)
    });
    for _ in 0..300 {
        world.pass(|_| ());
    }
    over.store(true, Ordering::SeqCst);
    let (rounds, seen) = reading.join().unwrap();
    println!("{rounds} rounds, {seen} ticks read");
    assert!(seen >= rounds);
    let replayed = world.replay();
    assert_eq!(replayed.difference, None);
    assert!((8..=64).contains(&replayed.ticks), "{replayed:?}");
}
