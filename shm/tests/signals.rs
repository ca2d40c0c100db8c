//! Signal files on a real folder: counting, lives, growth, death.

#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::thread;

use pointsman_shm::Error;
use pointsman_shm::id::{ClassSlot, EngineSlot, Generation, PairNumber};
use pointsman_shm::signals::{
    BlockLoad, EngineCounters, Flights, Outcome, Shape, ShedCause, SignalsReader, SignalsWriter,
    list, reap,
};
use tempfile::TempDir;

const SHAPE: Shape = Shape {
    shards: 2,
    classes: 2,
    engines: 3,
    pairs: 4,
};
const FIRST: Generation = Generation(1);
const SECOND: Generation = Generation(2);

fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn only_file(dir: &Path) -> SignalsReader {
    let paths = list(dir).unwrap();
    assert_eq!(paths.len(), 1, "{paths:?}");
    SignalsReader::open(&paths[0]).unwrap()
}

#[test]
fn what_is_under_way_is_read_alone_and_through_a_growth() {
    let dir = folder();
    let mut writer = SignalsWriter::create(dir.path(), SHAPE).unwrap();
    let mut reader = only_file(dir.path());
    assert_eq!(reader.flights().unwrap(), []);
    assert_eq!(reader.instance(), writer.instance());
    for shard in 0..2 {
        let signals = writer.segment(shard);
        let engine = signals.engine(EngineSlot(1), SECOND).unwrap();
        (0..3).for_each(|_| engine.attempt_started());
        engine.attempt_ended(Outcome::ALL[usize::from(shard) * (Outcome::COUNT - 1)]);
        engine.rtt_us(1);
    }
    let flights = |in_flight| Flights {
        slot: EngineSlot(1),
        generation: SECOND,
        started: 6,
        in_flight,
    };
    assert_eq!(reader.flights().unwrap(), [flights(4)]);
    let engines = SHAPE.engines * 2;
    writer.grow(Shape { engines, ..SHAPE }).unwrap();
    let signals = writer.segment(0);
    let engine = signals.engine(EngineSlot(1), SECOND).unwrap();
    engine.attempt_ended(Outcome::Success);
    assert!(writer.settle().unwrap());
    assert_eq!(reader.flights().unwrap(), [flights(3)]);
}

#[test]
fn everything_counted_by_two_shards_is_read_as_one_sum() {
    let dir = folder();
    assert_eq!(
        list(&dir.path().join("absent")).unwrap(),
        Vec::<std::path::PathBuf>::new()
    );
    let writer = SignalsWriter::create(dir.path(), SHAPE).unwrap();
    for shard in 0..2u8 {
        let signals = writer.segment(u16::from(shard));
        let class = signals.class(ClassSlot(1), FIRST).unwrap();
        class.offered(0);
        class.offered(15);
        class.admitted(0);
        class.shed(ShedCause::Draining, 15);
        class.shed(ShedCause::AdmittedRate, 2);
        class.client_ttft_us(100);
        class.moved();
        class.block(4095, 4096, 7);
        class.block(64, 4096, 5);
        class.block(4096, 4096, 1000);
        let engine = signals.engine(EngineSlot(2), FIRST).unwrap();
        engine.attempt_started();
        engine.attempt_started();
        engine.attempt_ended(Outcome::Ours);
        engine.connect_us(1);
        engine.upload_us(2);
        engine.ttft_us(64);
        engine.tbot_us(96);
        engine.rtt_us(u64::MAX >> 8);
        engine.late();
        engine.penalised_us(50_000);
        let pair = signals.pair(PairNumber(3), FIRST).unwrap();
        pair.attempt();
        pair.tokens(100, 40, 7, shard == 0);
        pair.ttft_us(500);
        pair.tbot_us(60, 6);
        signals.beat(1000 + u64::from(shard), 9);
        assert!(
            signals.class(ClassSlot(2), FIRST).is_none(),
            "beyond the shape"
        );
        assert!(signals.engine(EngineSlot(3), FIRST).is_none());
        assert!(signals.pair(PairNumber(4), FIRST).is_none());
        assert!(
            signals.pair(PairNumber(0), Generation(0)).is_none(),
            "0 is no life"
        );
    }
    let snapshot = only_file(dir.path()).snapshot().unwrap();
    assert_eq!(snapshot.instance.pid, std::process::id());
    assert_eq!(snapshot.shape, SHAPE);
    let beats: Vec<_> = snapshot
        .shards
        .iter()
        .map(|s| (s.beat_ns, s.policy_version))
        .collect();
    assert_eq!(beats, [(1000, 9), (1001, 9)]);
    let [(ClassSlot(1), class)] = &snapshot.classes[..] else {
        panic!("{:?}", snapshot.classes)
    };
    assert_eq!(
        (class.offered[0], class.offered[15], class.offered[1]),
        (2, 2, 0)
    );
    assert_eq!((class.admitted[0], class.moved), (2, 2));
    assert_eq!(class.shed[ShedCause::Draining as usize][15], 2);
    assert_eq!(class.shed[ShedCause::AdmittedRate as usize][2], 2);
    assert_eq!(class.shed.iter().flatten().sum::<u64>(), 4);
    assert_eq!(
        (class.client_ttft.count, class.client_ttft.sum_us),
        (2, 200)
    );
    let blocks = class.blocks(4096);
    assert_eq!(blocks.len(), 64);
    assert_eq!(
        blocks[63],
        BlockLoad {
            arrivals: 2,
            work_milli: 14
        }
    );
    assert_eq!(
        blocks[1],
        BlockLoad {
            arrivals: 2,
            work_milli: 10
        }
    );
    assert_eq!(blocks.iter().map(|block| block.arrivals).sum::<u64>(), 4);
    assert_eq!(
        class.blocks(64),
        [BlockLoad {
            arrivals: 4,
            work_milli: 24
        }]
    );
    let [(EngineSlot(2), engine)] = &snapshot.engines[..] else {
        panic!()
    };
    assert_eq!((engine.started, engine.in_flight()), (4, 2));
    assert_eq!(engine.ended[Outcome::Ours as usize], 2);
    assert_eq!(engine.ended.iter().sum::<u64>(), 2);
    assert_eq!((engine.connect.sum_us, engine.upload.sum_us), (2, 4));
    assert_eq!((engine.late, engine.penalised_us), (2, 100_000));
    let later = EngineCounters {
        late: 5,
        penalised_us: 130_000,
        ..engine.clone()
    };
    let since = later.since(engine);
    assert_eq!((since.late, since.penalised_us), (3, 30_000));
    assert_eq!(
        (
            engine.ttft.buckets[1],
            engine.tbot.buckets[2],
            engine.rtt.buckets[63]
        ),
        (2, 2, 2)
    );
    let [(PairNumber(3), pair)] = &snapshot.pairs[..] else {
        panic!()
    };
    assert_eq!(
        (pair.attempts, pair.prompt_tokens, pair.cached_tokens),
        (2, 200, 80)
    );
    assert_eq!(
        (pair.output_tokens, pair.answers, pair.estimated),
        (14, 2, 1)
    );
    assert_eq!((pair.ttft_sum_us, pair.ttft_count), (1000, 2));
    assert_eq!((pair.tbot_sum_us, pair.tbot_gaps), (120, 12));
}

#[test]
fn a_slot_in_a_new_life_forgets_and_stragglers_of_the_old_one_are_not_counted() {
    let dir = folder();
    let writer = SignalsWriter::create(dir.path(), SHAPE).unwrap();
    let (a, b) = (writer.segment(0), writer.segment(1));
    a.engine(EngineSlot(0), FIRST).unwrap().attempt_started();
    b.engine(EngineSlot(0), FIRST).unwrap().attempt_started();
    let mut reader = only_file(dir.path());
    let before = reader.snapshot().unwrap().engines[0].1.clone();
    assert_eq!((before.generation, before.started), (FIRST, 2));
    a.engine(EngineSlot(0), SECOND).unwrap().attempt_started();
    assert!(
        a.engine(EngineSlot(0), FIRST).is_none(),
        "its attempt ends in no life"
    );
    let after = reader.snapshot().unwrap().engines[0].1.clone();
    assert_eq!(
        (after.generation, after.started),
        (SECOND, 1),
        "the other shard's old life is out"
    );
    assert_eq!(after.since(&before).started, 1);
}

#[test]
fn a_growing_file_loses_no_count_and_takes_none_twice() {
    let dir = folder();
    let mut writer = SignalsWriter::create(dir.path(), SHAPE).unwrap();
    let mut reader = only_file(dir.path());
    let mut handles = vec![writer.segment(0), writer.segment(1)];
    let count = |handle: &pointsman_shm::signals::ShardSignals| {
        handle.class(ClassSlot(0), FIRST).unwrap().offered(0);
        handle.pair(PairNumber(3), FIRST).unwrap().attempt();
    };
    handles.iter().for_each(count);
    let seen = |reader: &mut SignalsReader| {
        let snapshot = reader.snapshot().unwrap();
        (
            snapshot.classes[0].1.offered[0],
            snapshot.pairs[0].1.attempts,
            snapshot.shape.engines,
        )
    };
    assert_eq!(seen(&mut reader), (2, 2, 3));

    let larger = Shape {
        shards: 2,
        classes: 200,
        engines: 900,
        pairs: 5000,
    };
    writer.grow(larger).unwrap();
    assert_eq!(writer.shape(), larger);
    count(&handles[0]);
    assert!(!writer.settle().unwrap(), "nobody has moved");
    handles[0] = writer.segment(0);
    count(&handles[0]);
    assert!(handles[0].engine(EngineSlot(899), FIRST).is_some());
    count(&handles[1]);
    assert!(!writer.settle().unwrap(), "one has moved");
    assert!(matches!(writer.grow(SHAPE), Err(Error::Growing { .. })));
    assert_eq!(
        seen(&mut reader),
        (4, 4, 3),
        "the shard that moved stands still meanwhile"
    );
    assert_eq!(
        list(dir.path()).unwrap().len(),
        1,
        "the larger file is not in sight"
    );
    handles[1] = writer.segment(1);
    assert!(!writer.settle().unwrap(), "a handle that was not used yet");
    handles[1].beat(5, 1);
    assert!(writer.settle().unwrap());
    assert!(writer.settle().unwrap());
    count(&handles[1]);
    assert_eq!(seen(&mut reader), (6, 6, 900));
    assert!(reader.alive().unwrap());
    assert_eq!(seen(&mut only_file(dir.path())), (6, 6, 900));

    writer.grow(SHAPE).unwrap();
    assert_eq!(writer.shape(), larger, "a file never shrinks");
    let other_shards = Shape {
        shards: 3,
        ..larger
    };
    assert!(matches!(
        writer.grow(other_shards),
        Err(Error::TooLarge { .. })
    ));
    drop(handles);
    writer
        .grow(Shape {
            engines: 901,
            ..larger
        })
        .unwrap();
    assert!(
        writer.settle().unwrap(),
        "shards without a handle are carried by the process"
    );
    assert_eq!(seen(&mut reader), (6, 6, 901));
}

#[test]
fn a_process_knows_its_gaps_wherever_its_shards_stand() {
    let dir = folder();
    let mut writer = SignalsWriter::create(dir.path(), SHAPE).unwrap();
    let mut handles = [writer.segment(0), writer.segment(1)];
    let (slot, other) = (EngineSlot(2), Generation(2));
    let gap = |handle: &pointsman_shm::signals::ShardSignals, us| {
        handle.engine(slot, FIRST).unwrap().tbot_us(us);
    };
    assert_eq!(writer.gaps(slot, FIRST), (0, 0));
    gap(&handles[0], 10);
    gap(&handles[1], 30);
    assert_eq!(writer.gaps(slot, FIRST), (2, 40));
    assert_eq!(writer.gaps(slot, other), (0, 0));
    assert_eq!(
        writer.gaps(EngineSlot(900), FIRST),
        (0, 0),
        "beyond the file"
    );
    let larger = Shape {
        engines: 900,
        ..SHAPE
    };
    writer.grow(larger).unwrap();
    gap(&handles[0], 1);
    assert_eq!(writer.gaps(slot, FIRST), (3, 41));
    handles[0] = writer.segment(0);
    gap(&handles[0], 5);
    gap(&handles[1], 7);
    assert_eq!(writer.gaps(slot, FIRST), (5, 53), "one has moved");
    handles[1] = writer.segment(1);
    gap(&handles[1], 9);
    assert!(writer.settle().unwrap());
    assert_eq!(writer.gaps(slot, FIRST), (6, 62));
}

#[test]
fn counts_of_a_running_shard_survive_many_growths() {
    let dir = folder();
    let mut writer = SignalsWriter::create(dir.path(), Shape { shards: 1, ..SHAPE }).unwrap();
    let mut reader = only_file(dir.path());
    let (send, receive) = std::sync::mpsc::channel();
    send.send(writer.segment(0)).unwrap();
    let shard = thread::spawn(move || {
        let mut counted = 0u64;
        let mut handle = receive.recv().unwrap();
        loop {
            for _ in 0..100 {
                handle.class(ClassSlot(0), FIRST).unwrap().offered(3);
                counted += 1;
            }
            match receive.try_recv() {
                Ok(newer) => handle = newer,
                Err(std::sync::mpsc::TryRecvError::Empty) => {}
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return counted,
            }
        }
    });
    let mut last = 0;
    for engines in 4..24 {
        writer
            .grow(Shape {
                shards: 1,
                engines,
                ..SHAPE
            })
            .unwrap();
        send.send(writer.segment(0)).unwrap();
        while !writer.settle().unwrap() {
            let snapshot = reader.snapshot().unwrap();
            let offered = snapshot
                .classes
                .first()
                .map_or(0, |(_, class)| class.offered[3]);
            assert!(offered >= last, "{offered} after {last}");
            last = offered;
            thread::yield_now();
        }
    }
    drop(send);
    let counted = shard.join().unwrap();
    assert_eq!(reader.snapshot().unwrap().classes[0].1.offered[3], counted);
    assert_eq!(reader.snapshot().unwrap().shape.engines, 23);
}

#[test]
fn a_dead_processs_file_is_read_once_more_and_reaped() {
    let dir = folder();
    let writer = SignalsWriter::create(dir.path(), SHAPE).unwrap();
    let path = writer.path().to_path_buf();
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    let boot = pointsman_shm::BootId::current().unwrap();
    assert!(
        name.starts_with(&format!("{boot}-{}-", std::process::id())),
        "{name}"
    );
    let handle = writer.segment(0);
    handle.pair(PairNumber(0), FIRST).unwrap().attempt();
    let mut reader = SignalsReader::open(&path).unwrap();
    assert!(reader.alive().unwrap());
    assert!(matches!(reap(&path), Err(Error::Alive { .. })));
    // The lock goes when the last map does, as with the process.
    drop(writer);
    assert!(reader.alive().unwrap(), "a shard still writes");
    handle.pair(PairNumber(0), FIRST).unwrap().attempt();
    drop(handle);
    assert!(!reader.alive().unwrap());
    // What a process that died while it grew leaves behind goes too.
    let half_made = dir.path().join(format!(".{name}.new"));
    fs::write(&half_made, b"half").unwrap();
    assert_eq!(reader.snapshot().unwrap().pairs[0].1.attempts, 2);
    reap(&path).unwrap();
    assert!(!path.exists() && !half_made.exists());
    assert_eq!(
        reader.snapshot().unwrap().pairs[0].1.attempts,
        2,
        "what is open stays readable"
    );
    assert!(matches!(reap(&path), Err(Error::Absent { .. })));
}

#[test]
fn i08_a_signal_file_cut_short_kills_neither_side_and_is_named() {
    let dir = folder();
    let writer = SignalsWriter::create(dir.path(), SHAPE).unwrap();
    let handle = writer.segment(0);
    handle.pair(PairNumber(0), FIRST).unwrap().attempt();
    let reader = || SignalsReader::open(writer.path()).unwrap();
    let mut readers = [reader(), reader(), reader()];
    OpenOptions::new()
        .write(true)
        .open(writer.path())
        .unwrap()
        .set_len(0)
        .unwrap();
    handle.pair(PairNumber(0), FIRST).unwrap().attempt();
    let errors = [
        readers[0].snapshot().unwrap_err(),
        readers[1].flights().unwrap_err(),
        readers[2].offered().unwrap_err(),
    ];
    for error in errors.map(|error| error.to_string()) {
        assert!(error.contains("cut short"), "{error}");
    }
    assert!(matches!(
        SignalsReader::open(writer.path()),
        Err(Error::Short { .. })
    ));
}

#[test]
fn i10_impossible_lengths_in_a_signal_file_are_named() {
    let dir = folder();
    let writer = SignalsWriter::create(dir.path(), SHAPE).unwrap();
    let whole = fs::read(writer.path()).unwrap();
    let copy = dir.path().join("copy");
    let mut refused = 0;
    for word in 0..18 {
        for value in [0, 1, 5, 4096, 1 << 20, u64::MAX] {
            let mut changed = whole.clone();
            changed[word * 8..word * 8 + 8].copy_from_slice(&u64::to_le_bytes(value));
            let _ = fs::remove_file(&copy);
            fs::write(&copy, &changed).unwrap();
            match SignalsReader::open(&copy).and_then(|mut reader| reader.snapshot()) {
                Ok(snapshot) => assert!(snapshot.classes.is_empty()),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 50, "{refused}");
    let huge = Shape {
        shards: 1025,
        ..SHAPE
    };
    assert!(matches!(
        SignalsWriter::create(dir.path(), huge),
        Err(Error::TooLarge { .. })
    ));
}
