//! The sentinel against real region files, turned by hand.

use pointsman_shm::engine_state::Health;
use pointsman_shm::id::Generation;
use pointsman_shm::region::{Stamp, Writer};

use super::*;
use crate::metrics::OutReason;
use crate::policy::{self, ShardPolicy};

/// A sentinel with one shard, its folders, and a clock that the test moves.
struct World {
    dir: Arc<tempfile::TempDir>,
    sentinel: Sentinel,
    shard: ShardPolicy,
    process: Arc<ProcessMetrics>,
    guard: Arc<GuardTable>,
    allowances: Arc<Allowances>,
    now_ns: u64,
}

impl World {
    fn new() -> Self {
        Self::on(Arc::new(tempfile::tempdir().unwrap()), "")
    }

    /// Another process of the same host.
    fn beside(other: &Self) -> Self {
        Self {
            now_ns: other.now_ns,
            ..Self::on(Arc::clone(&other.dir), "")
        }
    }

    /// In this folder, with more lines of configuration.
    fn on(dir: Arc<tempfile::TempDir>, more: &str) -> Self {
        let text = format!(
            "frontend = 'A'\nlisten = ['127.0.0.1:0']\nshards = 1\nrun_dir = '{0}/run'\n\
             state_dir = '{0}/state'\n{more}",
            dir.path().display()
        );
        let host = crate::config::Host { cores: 1 };
        let config = crate::config::parse(&text, "proxy.toml".as_ref(), host).unwrap();
        let (publisher, mut shards) = policy::channel(1);
        let process = Arc::new(ProcessMetrics::default());
        let guard = Arc::new(GuardTable::new());
        let allowances = Arc::new(Allowances::new(1));
        let shared = Shared {
            config: Arc::new(config),
            guard: Arc::clone(&guard),
            allowances: Arc::clone(&allowances),
            outlooks: Arc::default(),
            process: Arc::clone(&process),
            shards: vec![Arc::default()],
            load: Arc::default(),
        };
        let sentinel = Sentinel::new(shared, publisher);
        let shard = shards.remove(0);
        Self {
            dir,
            sentinel,
            shard,
            process,
            guard,
            allowances,
            now_ns: monotonic_ns(),
        }
    }

    fn writer(&self, kind: Kind) -> Writer {
        Writer::open(&self.dir.path().join("run/A"), kind).unwrap()
    }

    fn publish(&self, version: u64) -> Writer {
        let mut writer = self.writer(Kind::Policy);
        let payload = fixture::policy(version, "A").encode();
        writer
            .publish(Stamp { version, epoch: 1 }, &payload)
            .unwrap();
        writer
    }

    /// One turn, a second later.
    fn turn(&mut self) -> u64 {
        self.now_ns += 1_000_000_000;
        self.sentinel.turn(self.now_ns);
        self.shard.refresh();
        self.shard.store_running();
        self.shard.version()
    }
}

#[test]
fn e17_a_policy_that_comes_later_is_adopted() {
    let mut world = World::new();
    assert_eq!(world.sentinel.first_look().unwrap().len(), 1);
    assert_eq!(world.turn(), 0);
    assert!(!world.process.has_policy());
    let writer = world.publish(3);
    assert_eq!(world.turn(), 3);
    assert_eq!(world.process.policy_version.value(), 3);
    writer.heartbeat(boottime_ns());
    world.turn();
    assert_eq!(world.process.rung(boottime_ns(), 30_000), Rung::Fresh);
    assert_eq!(world.process.running_version.value(), 3);
}

#[test]
fn the_copy_on_disk_serves_until_the_region_has_a_policy() {
    let mut world = World::new();
    let payload = fixture::policy(5, "A").encode();
    let state = world.dir.path().join("state/A");
    pointsman_shm::disk::save(
        &state,
        &Stamp {
            version: 5,
            epoch: 1,
        },
        &payload,
    )
    .unwrap();
    world.sentinel.first_look().unwrap();
    assert_eq!(world.process.rung(boottime_ns(), 30_000), Rung::Disk);
    assert_eq!(world.turn(), 5);
    let _writer = world.publish(6);
    assert_eq!(world.turn(), 6);
    assert_ne!(world.process.rung(boottime_ns(), 30_000), Rung::Disk);
}

#[test]
fn a_policy_for_another_frontend_is_counted_and_ignored() {
    let mut world = World::new();
    let mut writer = world.publish(1);
    world.sentinel.first_look().unwrap();
    assert_eq!(world.turn(), 1);
    std::thread::sleep(Duration::from_millis(25));
    let payload = fixture::policy(2, "B").encode();
    writer
        .publish(
            Stamp {
                version: 2,
                epoch: 1,
            },
            &payload,
        )
        .unwrap();
    assert_eq!(world.turn(), 1);
    assert_eq!(world.process.rejected.value(), 1);
    std::thread::sleep(Duration::from_millis(25));
    let payload = fixture::policy(3, "A").encode();
    writer
        .publish(
            Stamp {
                version: 3,
                epoch: 1,
            },
            &payload,
        )
        .unwrap();
    assert_eq!(world.turn(), 3);
}

#[test]
fn engine_state_becomes_guard_words_and_wears_off() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let mut world = World::on(dir, "[probes]\nenabled = false\n");
    let (policy, states) = two_engines(1, PlannedState::Active, Health::Down);
    let stamp = Stamp {
        version: 1,
        epoch: 1,
    };
    let mut policies = world.writer(Kind::Policy);
    policies.publish(stamp, &policy).unwrap();
    world.sentinel.first_look().unwrap();
    world.turn();
    let word = |world: &World| world.guard.load(EngineSlot(0)).unpack();
    assert!(!word(&world).out);
    let mut writer = world.writer(Kind::Engines);
    writer.publish(stamp, &states).unwrap();
    writer.heartbeat(boottime_ns());
    world.turn();
    assert!(word(&world).out);
    assert_eq!(world.process.labels().engines[0].out, Some(OutReason::Down));
    world.now_ns += 31_000_000_000;
    world.turn();
    assert!(!word(&world).out);
    // Its ejection ends by trial, as ever.
    let out = world.process.labels().engines[0].out;
    assert_ne!(out, Some(OutReason::Down));
}

/// As after a reboot, where the run folder is on a disk: nothing in it says how engines are now.
#[test]
fn what_was_published_before_this_boot_says_nothing_of_engines() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let mut world = World::on(dir, "[probes]\nenabled = false\n");
    let (policy, states) = two_engines(1, PlannedState::Active, Health::Down);
    let stamp = |version| Stamp { version, epoch: 1 };
    let mut policies = world.writer(Kind::Policy);
    policies.publish(stamp(1), &policy).unwrap();
    let mut writer = world.writer(Kind::Engines);
    // Nobody beat in this boot.
    writer.publish(stamp(1), &states).unwrap();
    world.sentinel.first_look().unwrap();
    world.turn();
    let word = |world: &World| world.guard.load(EngineSlot(0)).unpack();
    assert!(!word(&world).out);
    std::thread::sleep(Duration::from_millis(25));
    writer.publish(stamp(2), &states).unwrap();
    writer.heartbeat(boottime_ns());
    world.turn();
    assert!(word(&world).out);
}

/// A policy of two engines for one class, and a state that says of the first how it is.
fn two_engines(version: u64, first: PlannedState, health: Health) -> (Vec<u8>, Vec<u8>) {
    let mut policy = fixture::policy(version, "A");
    policy.engines.push(fixture::engine(1, "e1"));
    policy.engines[0].state = first;
    let class = &mut policy.classes[0];
    class.eligible[0].weight = 0.5;
    let mut other = class.eligible[0];
    (other.engine, other.pair.0) = (EngineSlot(1), 1);
    class.eligible.push(other);
    class.table[32..].fill(EngineSlot(1));
    let states = EngineStates {
        version,
        epoch: 1,
        engines: vec![
            fixture::engine_state(0, health),
            fixture::engine_state(1, Health::Up),
        ],
    };
    (policy.encode(), states.encode())
}

#[test]
fn what_was_down_or_drained_comes_back_over_ten_seconds_and_within_a_minute() {
    for (state, health) in [
        (PlannedState::Active, Health::Down),
        (PlannedState::Draining, Health::Up),
        (PlannedState::Out, Health::Up),
    ] {
        // Nobody listens at the engines' addresses, which own checks would find out.
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let mut world = World::on(dir, "[probes]\nenabled = false\n");
        let (mut policies, mut states) = (world.writer(Kind::Policy), world.writer(Kind::Engines));
        let mut tell = |version, state, health| {
            let (policy, engines) = two_engines(version, state, health);
            let stamp = Stamp { version, epoch: 1 };
            std::thread::sleep(Duration::from_millis(25));
            policies.publish(stamp, &policy).unwrap();
            states.publish(stamp, &engines).unwrap();
            states.heartbeat(boottime_ns());
        };
        tell(1, state, health);
        world.sentinel.first_look().unwrap();
        let word = |world: &World| world.guard.load(EngineSlot(0)).unpack();
        for _ in 0..20 {
            world.turn();
            let word = word(&world);
            assert!(word.out || word.draining, "{state:?} {word:?}");
        }
        tell(2, PlannedState::Active, Health::Up);
        let mut shares = Vec::new();
        while shares.last() != Some(&1.0) && shares.len() < 600 {
            world.now_ns += HOUSEKEEPING_NS;
            world.sentinel.turn(world.now_ns);
            world.shard.refresh();
            world.shard.store_running();
            let word = word(&world);
            let is_open = !word.out && !word.draining;
            shares.push(if is_open { 1.0 - word.penalty } else { 0.0 });
        }
        assert_eq!(shares.last(), Some(&1.0), "{state:?}: {shares:?}");
        // It may be open for one turn before its penalty is seen to.
        let shares = &shares[1..];
        assert!(shares.is_sorted(), "{state:?}: {shares:?}");
        assert!(shares[0] <= 0.05 + 1e-6, "{state:?}: {shares:?}");
        assert!(shares.len() >= 100, "{state:?}: {} turns", shares.len());
    }
}

#[test]
fn own_health_checks_begin_when_the_control_planes_word_is_five_seconds_old() {
    let mut world = World::new();
    let _policy = world.publish(1);
    world.sentinel.first_look().unwrap();
    let mut writer = world.writer(Kind::Engines);
    let up = fixture::engine_state(0, Health::Up);
    let states = EngineStates {
        version: 1,
        epoch: 1,
        engines: vec![up],
    };
    let stamp = Stamp {
        version: 1,
        epoch: 1,
    };
    writer.publish(stamp, &states.encode()).unwrap();
    writer.heartbeat(boottime_ns());
    let checks = |world: &World| -> u64 {
        let probes = world.process.probes.iter();
        probes.map(|counter| counter.value()).sum()
    };
    // Seen at its first look, and an age is counted from there.
    for _ in 0..6 {
        world.turn();
    }
    assert_eq!(checks(&world), 0);
    // Six seconds: begun; nobody listens there, which shows at the next turn at the latest.
    world.turn();
    world.turn();
    assert_eq!(checks(&world), 1);
}

#[test]
fn adoptions_are_at_least_10_ms_apart() {
    let mut world = World::new();
    let mut writer = world.publish(1);
    world.sentinel.first_look().unwrap();
    assert_eq!(world.turn(), 1);
    std::thread::sleep(Duration::from_millis(25));
    let publish = |writer: &mut Writer, version| {
        let payload = fixture::policy(version, "A").encode();
        writer
            .publish(Stamp { version, epoch: 1 }, &payload)
            .unwrap();
    };
    publish(&mut writer, 2);
    assert_eq!(world.turn(), 2);
    std::thread::sleep(Duration::from_millis(25));
    publish(&mut writer, 3);
    // The sentinel's own clock has not moved on by 10 ms.
    world.sentinel.turn(world.now_ns + ADOPT_NS - 1);
    world.shard.refresh();
    assert_eq!(world.shard.version(), 2);
    world.sentinel.turn(world.now_ns + ADOPT_NS);
    world.shard.refresh();
    assert_eq!(world.shard.version(), 3);
}

#[test]
fn the_signals_file_grows_with_the_policy() {
    let mut world = World::new();
    let mut writer = world.publish(1);
    let mut handles = world.sentinel.first_look().unwrap();
    let mut handle = handles.remove(0);
    world.turn();
    let (slot, life) = (EngineSlot(100), Generation(1));
    assert!(handle.segment().engine(slot, life).is_none());
    let mut policy = fixture::policy(2, "A");
    policy.engines.push(fixture::engine(100, "e100"));
    std::thread::sleep(Duration::from_millis(25));
    writer
        .publish(
            Stamp {
                version: 2,
                epoch: 1,
            },
            &policy.encode(),
        )
        .unwrap();
    assert_eq!(world.turn(), 2);
    handle.tick(boottime_ns(), 2);
    assert!(handle.segment().engine(slot, life).is_some());
    world.turn();
    assert_eq!(world.process.signals_errors.value(), 0);
}

#[test]
fn wakes_seldom_while_nothing_is_in_flight() {
    let world = World::new();
    let shard = Arc::clone(&world.sentinel.shared.shards[0]);
    assert_eq!(world.sentinel.pause(), IDLE_LOOK);
    shard.in_flight.increment();
    assert_eq!(world.sentinel.pause(), LOOK);
    shard.in_flight.decrement();
    assert_eq!(world.sentinel.pause(), IDLE_LOOK);
}

/// Requests that this process may begin at engine 0.
fn tokens(world: &World) -> i64 {
    world.allowances.free(EngineSlot(0))
}

#[test]
fn a_policy_is_adopted_with_its_allowances() {
    let mut world = World::new();
    let mut writer = world.publish(1);
    writer.heartbeat(boottime_ns());
    world.sentinel.first_look().unwrap();
    assert_eq!(tokens(&world), 100, "before any shard runs it");
    assert_eq!(world.sentinel.shared.load.granted(EngineSlot(0)), 100);
    let shard = Arc::clone(&world.allowances);
    shard.shard(0).take(EngineSlot(0));
    let mut policy = fixture::policy(2, "A");
    policy.engines[0].allowance = 7;
    policy.engines.push(fixture::engine(5, "e5"));
    std::thread::sleep(Duration::from_millis(25));
    let stamp = |version| Stamp { version, epoch: 1 };
    writer.publish(stamp(2), &policy.encode()).unwrap();
    assert_eq!(world.turn(), 2);
    assert_eq!(tokens(&world), 6);
    assert_eq!(world.allowances.free(EngineSlot(5)), 100);
    // An engine that leaves takes its tokens along, but for the one in use.
    let mut policy = fixture::policy(3, "A");
    policy.engines[0].slot = EngineSlot(5);
    policy.classes[0].eligible[0].engine = EngineSlot(5);
    policy.classes[0].table = vec![EngineSlot(5); 64];
    std::thread::sleep(Duration::from_millis(25));
    writer.publish(stamp(3), &policy.encode()).unwrap();
    assert_eq!(world.turn(), 3);
    assert_eq!(
        tokens(&world),
        6,
        "until a moment ago it could still be chosen"
    );
    world.turn();
    assert_eq!(tokens(&world), -1);
    world.allowances.shard(0).give_back(EngineSlot(0));
    assert_eq!(tokens(&world), 0);
}

#[test]
fn a_stale_policy_lets_a_quarter_more_pass() {
    let mut world = World::new();
    let writer = world.publish(1);
    writer.heartbeat(boottime_ns());
    world.sentinel.first_look().unwrap();
    world.turn();
    assert_eq!((world.sentinel.rung, tokens(&world)), (Rung::Fresh, 100));
    // Nobody has confirmed it for a minute.
    let long_ago = boottime_ns().saturating_sub(60_000_000_000);
    writer.heartbeat(long_ago);
    world.turn();
    assert_eq!((world.sentinel.rung, tokens(&world)), (Rung::Stale, 125));
    writer.heartbeat(boottime_ns());
    world.turn();
    assert_eq!((world.sentinel.rung, tokens(&world)), (Rung::Fresh, 100));
}

#[test]
fn two_processes_of_a_host_keep_to_one_allowance() {
    let mut older = World::new();
    older.publish(1).heartbeat(boottime_ns());
    let handles = older.sentinel.first_look().unwrap();
    older.turn();
    assert_eq!(tokens(&older), 100);
    let (slot, life) = (EngineSlot(0), Generation(1));
    // It has ten in flight when the next process starts.
    let begin = || {
        older.allowances.shard(0).take(slot);
        let cell = handles[0].segment().engine(slot, life).unwrap();
        cell.attempt_started();
    };
    (0..10).for_each(|_| begin());
    let mut younger = World::beside(&older);
    younger.sentinel.first_look().unwrap();
    assert_eq!(
        tokens(&younger),
        45,
        "half of what is free, before it serves"
    );
    let sharers = |world: &World| world.sentinel.shared.load.sharers();
    assert_eq!((sharers(&older), sharers(&younger)), (1, 2));
    // Room is kept for the younger one; the rates are the older one's until it begins.
    older.turn();
    assert_eq!(older.allowances.free(slot), 45);
    assert_eq!(sharers(&older), 1);
    // A second later the older one has begun nothing more and only finishes what it has.
    younger.turn();
    younger.turn();
    assert_eq!(tokens(&younger), 90);
    assert_eq!(sharers(&younger), 1);
    for ended in 1..=10 {
        older.allowances.shard(0).give_back(slot);
        let cell = handles[0].segment().engine(slot, life).unwrap();
        cell.attempt_ended(pointsman_shm::signals::Outcome::Success);
        younger.turn();
        assert_eq!(tokens(&younger), 90 + ended);
    }
    drop((handles, older));
    younger.turn();
    assert_eq!(tokens(&younger), 100);
}

#[test]
fn shards_learn_how_full_engines_are_and_the_floor_is_filled_again() {
    let mut world = World::new();
    let writer = world.publish(1);
    writer.heartbeat(boottime_ns());
    world.sentinel.first_look().unwrap();
    let board = Arc::clone(&world.process.retry_board);
    let class = pointsman_shm::id::ClassSlot(0);
    // Planned: half of a capacity of 1, known before the first request.
    assert_eq!(board.utilisation(class), 0.5);
    while board.borrow_token(0.5) {}
    world.turn();
    assert_eq!(board.floor(), 0);
    for _ in 0..60 {
        world.turn();
    }
    assert_eq!(board.floor(), 2);
    // The plan knows of 1 a second, each of 0.1; 5 a second arrive.
    let metrics = Arc::clone(&world.sentinel.shared.shards[0]);
    for _ in 0..60 {
        for _ in 0..5 {
            metrics.offered((class, Generation(1)));
        }
        world.turn();
    }
    let found = board.utilisation(class);
    assert!((found - 0.9).abs() < 1e-3, "{found}");
    // 97 of 100 that may be are in flight.
    for _ in 0..97 {
        metrics.engine(EngineSlot(0)).in_flight.increment();
    }
    world.turn();
    assert_eq!(board.utilisation(class), 0.97);
    // Beside another process of the host it may have less.
    let load = &world.sentinel.shared.load;
    load.set_granted(EngineSlot(0), 97);
    world.turn();
    assert_eq!(board.utilisation(class), 1.0);
    assert!(!board.borrow_token(board.utilisation(class)));
}

#[test]
fn demand_is_the_hosts_whichever_process_it_came_to() {
    let mut older = World::new();
    older.publish(1).heartbeat(boottime_ns());
    let handles = older.sentinel.first_look().unwrap();
    let mut younger = World::beside(&older);
    younger.sentinel.first_look().unwrap();
    let class = pointsman_shm::id::ClassSlot(0);
    let board = Arc::clone(&younger.process.retry_board);
    // The plan knows of 1 a second, each of 0.1 of what the engine can do; 5 a second come, all to
    // the other process.
    for _ in 0..60 {
        let cell = handles[0].segment().class(class, Generation(1)).unwrap();
        (0..5).for_each(|_| cell.offered(0));
        younger.turn();
    }
    let found = board.utilisation(class);
    assert!((found - 0.9).abs() < 1e-3, "{found}");
}
