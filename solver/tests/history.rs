//! Recorded ticks: solved again to the same bytes, read while they are written, asked for by a
//! person.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failed test"
)]

mod recorded;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pointsman_solver::history::keeper::{Came, CameOut, Described, Keeper};
use pointsman_solver::history::read::{Item, Walk, segments};
use pointsman_solver::history::replay::{CRASHED, LATE, Replayed, replay};
use pointsman_solver::history::{Bounds, folder};
use pointsman_solver::metrics;
use pointsman_solver::model::topology::Topology;
use pointsman_solver::model::units::NonNegative;
use pointsman_solver::tick::{DemandSample, Inputs, TickState, tick};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use recorded::{World, large, network, run, text};

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
fn a_thousand_ticks_of_the_network_method_solve_to_the_same_bytes_also_at_the_pivot_limit() {
    let unlimited = 1_000_000;
    let mut world = World::of(6, large(), network(5, 60, unlimited));
    let mut limit = unlimited;
    for n in 1..=1_000_u64 {
        if n % 125 == 0 {
            limit = if limit == unlimited { 2 } else { unlimited };
            world.describe(network(
                4 + n as usize / 125 % 3,
                50 + (n / 9) as u32,
                limit,
            ));
        }
        if n % 330 == 0 {
            world.restart();
        }
        let limited = world.limited;
        assert_eq!(world.pass(|came| assert_eq!(came.made.len(), 3)), "optimal");
        assert!(world.limited == limited || limit == 2);
    }
    drop(std::mem::replace(&mut world.keeper, Keeper::off()));
    println!("{} of 1000 ticks ended at the pivot limit", world.limited);
    assert!(world.limited >= 50, "{}", world.limited);
    let expected = Replayed {
        ticks: 1_000,
        policies: 3_000,
        ..Replayed::default()
    };
    assert_eq!(world.replay(), expected);
}

/// 20 frontends, 200 engines of three kinds, 8 classes, tables of full length.
fn fleet() -> String {
    let mut text = "[solver]\nmethod = \"network\"\ntable_bits = 12\n".to_owned();
    let region = |n: usize| format!("r{}", n % 10);
    for f in 0..20 {
        text += &format!(
            "[[frontends]]\nname = \"f{f}\"\nregion = \"{}\"\n",
            region(f)
        );
    }
    for e in 0..200 {
        text += &format!(
            "[[engines]]\nname = \"e{e}\"\nregion = \"{}\"\nkind = \"k{}\"\n\
             models = [\"m\"]\naddress = \"127.0.0.1:{}\"\n\
             capacity = {{ rps = {}, prompt_tokens = 500, output_tokens = 100 }}\n",
            region(e),
            e % 3,
            9_000 + e,
            20 + e % 7,
        );
    }
    for (f, r) in (0..20).flat_map(|f| (0..10).map(move |r| (f, r))) {
        let ms = 2 + 11 * (f % 10_usize).abs_diff(r);
        text += &format!("[[rtt]]\nfrontend = \"f{f}\"\nregion = \"r{r}\"\nms = {ms}\n");
    }
    for c in 0..8 {
        text += &format!(
            "[[routes]]\nname = \"c{c}\"\nmodel = \"m\"\nprompt_tokens = {}\n\
             output_tokens = {}\n",
            400 + 100 * c,
            100 + 20 * c
        );
        if c > 0 {
            text += &format!("headers = {{ x-kind = \"{c}\" }}\n");
        }
    }
    text
}

#[test]
#[ignore = "prints sizes of a large fleet's history; wants an optimised build"]
fn sizes_of_a_large_fleets_history() {
    let topology = Topology::parse("t.toml", &fleet()).unwrap();
    let mut state = TickState::new(&topology, 1);
    let mut rng = StdRng::seed_from_u64(3);
    let dir = tempfile::tempdir().unwrap();
    let metrics = Arc::new(metrics::Metrics::default());
    let described = Described {
        file: "t.toml".into(),
        text: fleet(),
    };
    let bounds = Some(large());
    let mut keeper = Keeper::start(folder(dir.path()), bounds, described, &metrics);
    let mut rates = vec![3.0; 20 * topology.classes.len()];
    let mut packing = std::time::Duration::ZERO;
    for n in 0..20_u64 {
        let mut inputs = inputs_of(&topology, n);
        for (sample, rate) in inputs.demand.iter_mut().zip(&mut rates) {
            *rate *= rng.random_range(0.95..1.05);
            sample.by_priority_rps = vec![NonNegative::new(*rate).unwrap()];
        }
        let begun = keeper.begin(&state);
        let outcome = tick(&topology, &mut state, &inputs);
        let mut came = Came::planned(&outcome);
        for candidate in outcome.candidates {
            let published = candidate.publish.is_some();
            let (frontend, policy) = (candidate.frontend, candidate.policy);
            if published {
                state.confirm(frontend, policy.clone(), inputs.now_ns);
            }
            came.made.push(CameOut {
                frontend,
                policy,
                reason: candidate.publish,
                published,
            });
        }
        let handed = std::time::Instant::now();
        keeper.keep(begun, &state, inputs, came);
        while metrics.value(&metrics::HISTORY_TICKS, &[]).unwrap_or(0.0) <= n as f64 {
            std::thread::yield_now();
        }
        packing += handed.elapsed();
        let bytes = metrics.value(&metrics::HISTORY_BYTES, &[]).unwrap();
        println!("tick {n}: {bytes} bytes in all, {packing:?} packed and written");
    }
    drop(keeper);
    let replayed = replay(
        Walk::new(segments(&folder(dir.path())).unwrap()),
        &(0..=u64::MAX),
    );
    assert_eq!((replayed.ticks, replayed.difference), (20, None));
}

/// A healthy fleet with demand everywhere.
fn inputs_of(topology: &Topology, n: u64) -> Inputs {
    let mut inputs = Inputs {
        now_ns: (1_000 + 2 * n) * 1_000_000_000,
        unix_ms: 1_800_000_000_000 + 2_000 * n,
        ..Inputs::default()
    };
    for frontend in topology.frontend_ids() {
        for class in topology.class_ids() {
            inputs.demand.push(DemandSample {
                frontend,
                class,
                by_priority_rps: Vec::new(),
                prompt_tokens: None,
                output_tokens: None,
                cached_tokens: None,
            });
        }
        for id in topology.engine_ids() {
            let address = ([127, 0, 0, 1], 9_000 + id.0 as u16).into();
            inputs.addresses.insert((frontend, id), vec![address]);
        }
    }
    inputs
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
