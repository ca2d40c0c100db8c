//! Allocations of a shard, counted in the process that it runs in.

use std::net::SocketAddr;
use std::sync::mpsc;

use pointsman_proxy::config::{self, Host};
use pointsman_tests::both_drivers;
use pointsman_tests::folder::Folder;
use pointsman_tests::policy::{Draft, FRONTEND, Publisher};
use pointsman_tests::proxy::Driver;

use crate::counting::{self, Counted, counted};
use crate::lockstep::{Answers, PAIRS, Pair, Protocol, Streams, listener};

/// Tokens, and requests, of one count.
const COUNTED: u64 = 200;
/// What is done before counting begins: buffers and tables have grown to their size by then.
const BEFORE: u64 = 100;
/// Streams side by side.
const STREAMS: usize = 32;

/// Streams that are held while what another one holds is counted, and how many of these.
const HELD: [usize; 2] = [32, 96];

both_drivers!(
    allocations_are_as_few_as_the_page_says,
    a_held_stream_holds_as_little_as_the_page_says
);

/// One count at a time, so that no other test's shards count.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Between two tokens a stream keeps its future, its connections' and a small buffer.
fn a_held_stream_holds_as_little_as_the_page_says(driver: Driver) {
    let _alone = alone();
    for pair in PAIRS {
        let each = held_bytes(driver, pair);
        println!(
            "{:<9} {:<8} a held stream holds {each} bytes",
            driver.name(),
            pair.name()
        );
        let most = most_held(pair);
        assert!(each <= most, "{driver:?} {pair:?}: {each} of {most} bytes");
    }
}

/// Most bytes that a held stream may hold.
fn most_held(pair: Pair) -> i64 {
    match (pair.client, pair.engine) {
        (Protocol::Http1, Protocol::Http1) => 5_000,
        (Protocol::Http1, Protocol::Http2) => 5_100,
        (Protocol::Http2, Protocol::Http1) => 6_900,
        (Protocol::Http2, Protocol::Http2) => 6_400,
    }
}

/// Bytes that a stream holds that waits for its third token, as the mean of many.
fn held_bytes(driver: Driver, pair: Pair) -> i64 {
    let [standing, counted] = HELD;
    let listener = listener();
    let proxy = Inside::start(driver, draft(pair, listener.local_addr().unwrap()));
    let mut streams = Streams::open(proxy.address, &listener, pair, standing);
    (0..standing).for_each(|at| streams.token(at));
    let held = since(|| {
        streams.begin(proxy.address, &listener, counted);
        (standing..standing + counted).for_each(|at| streams.token(at));
    });
    (held.bytes as i64 - held.freed as i64) / counted as i64
}

/// Every pair in turn.
fn allocations_are_as_few_as_the_page_says(driver: Driver) {
    let _alone = alone();
    println!(
        "{:<9} {:<8} {:<8} {:>8} {:>9} {:>9}",
        "driver", "pair", "of one", "count", "bytes", "kept"
    );
    for pair in PAIRS {
        let token = of_tokens(driver, pair);
        let answer = of_answers(driver, pair);
        for (what, counted) in [("token", token), ("request", answer)] {
            println!(
                "{:<9} {:<8} {what:<8} {:>8.2} {:>9.1} {:>9.1}",
                driver.name(),
                pair.name(),
                counted.count as f64 / COUNTED as f64,
                counted.bytes as f64 / COUNTED as f64,
                (counted.bytes as f64 - counted.freed as f64) / COUNTED as f64,
            );
        }
        let most = most(pair);
        for (counted, most) in [(token, most[0]), (answer, most[1])] {
            // A table that grows now and then is none's.
            let bound = most * COUNTED + COUNTED / 20;
            assert!(
                counted.count <= bound,
                "{driver:?} {pair:?}: {counted:?} of {most} each"
            );
            let kept = counted.bytes.saturating_sub(counted.freed);
            assert!(
                kept <= 64 * 1024,
                "{driver:?} {pair:?}: {counted:?}: what is taken is given back"
            );
        }
    }
}

/// Most allocations of a token and of a request.
fn most(pair: Pair) -> [u64; 2] {
    match (pair.client, pair.engine) {
        (Protocol::Http1, Protocol::Http1) => [0, 11],
        (Protocol::Http1, Protocol::Http2) => [1, 32],
        (Protocol::Http2, Protocol::Http1) => [2, 34],
        (Protocol::Http2, Protocol::Http2) => [3, 53],
    }
}

fn of_tokens(driver: Driver, pair: Pair) -> Counted {
    let listener = listener();
    let proxy = Inside::start(driver, draft(pair, listener.local_addr().unwrap()));
    let mut streams = Streams::open(proxy.address, &listener, pair, STREAMS);
    let mut tokens = |count: u64| (0..count).for_each(|n| streams.token(n as usize % STREAMS));
    tokens(BEFORE);
    since(|| tokens(COUNTED))
}

fn of_answers(driver: Driver, pair: Pair) -> Counted {
    let listener = listener();
    let proxy = Inside::start(driver, draft(pair, listener.local_addr().unwrap()));
    let mut answers = Answers::open(proxy.address, &listener, pair);
    let mut ask = |count: u64| (0..count).for_each(|_| answers.ask(proxy.address, &listener));
    ask(BEFORE);
    since(|| ask(COUNTED))
}

fn since(work: impl FnOnce()) -> Counted {
    let before = counted();
    work();
    let after = counted();
    Counted {
        count: after.count - before.count,
        bytes: after.bytes - before.bytes,
        freed: after.freed - before.freed,
    }
}

pub(crate) fn draft(pair: Pair, engine: SocketAddr) -> Draft {
    let draft = Draft::single(engine);
    match pair.engine {
        Protocol::Http1 => draft,
        Protocol::Http2 => draft.http2(),
    }
}

/// A proxy in this process. It runs as long as the process: only a signal to all of it would end it.
struct Inside {
    address: SocketAddr,
    _publisher: Publisher,
    _folder: Folder,
}

impl Inside {
    fn start(driver: Driver, draft: Draft) -> Self {
        counting::begin();
        let folder = Folder::new();
        let mut publisher = Publisher::open(&folder.region_dir(FRONTEND));
        publisher.publish(&draft);
        let text = format!(
            "frontend = \"{FRONTEND}\"\nlisten = [\"127.0.0.1:0\"]\nadmin = \"127.0.0.1:0\"\n\
             io_driver = \"{}\"\nshards = 1\npin = false\nrun_dir = \"{}\"\nstate_dir = \"{}\"\n",
            driver.name(),
            folder.run_dir().display(),
            folder.state_dir().display(),
        );
        let config = config::parse(&text, "proxy.toml".as_ref(), Host { cores: 1 }).unwrap();
        let (say, hear) = mpsc::channel();
        std::thread::spawn(move || {
            pointsman_proxy::process::run(config, |ready| {
                say.send(serde_json::to_value(ready).unwrap()).unwrap();
            })
        });
        let ready = hear.recv().expect("the proxy starts");
        Self {
            address: ready["listen"][0].as_str().unwrap().parse().unwrap(),
            _publisher: publisher,
            _folder: folder,
        }
    }
}
