//! System calls of a shard, counted by strace at a proxy that runs as operators run it.

use pointsman_tests::both_drivers;
use pointsman_tests::proxy::Driver;

use crate::allocations::draft;
use crate::lockstep::{Answers, PAIRS, Pair, Streams, listener};
use crate::traced::{Calls, Traced};

/// Tokens one by one, bursts, and requests of one count.
const COUNTED: usize = 64;
/// Bursts of one count.
const BURSTS: usize = 8;
/// Streams of a burst.
const STREAMS: usize = 32;

both_drivers!(system_calls_are_as_few_as_the_page_says);

fn system_calls_are_as_few_as_the_page_says(driver: Driver) {
    println!(
        "{:<9} {:<8} {:<16} {:>6} {:>6}  which",
        "driver", "pair", "of one", "calls", "ops"
    );
    for pair in PAIRS {
        let ([alone, burst], answer) = counts(driver, pair);
        let most = most(driver, pair);
        for (what, calls, count, most) in [
            ("token, alone", alone, COUNTED, most[0]),
            ("token, burst", burst, BURSTS * STREAMS, most[1]),
            ("request", answer, COUNTED, most[2]),
        ] {
            print(driver, pair, what, &calls, count);
            let each = calls.total() as f64 / count as f64;
            assert!(
                each <= most,
                "{driver:?} {pair:?}, a {what}: {each} calls of at most {most}"
            );
        }
    }
}

/// Most system calls of a token alone, of one in a burst, and of a request.
fn most(driver: Driver, pair: Pair) -> [f64; 3] {
    match (driver, pair.name()) {
        (Driver::IoUring, "h1-h1") => [2.2, 0.3, 6.5],
        (Driver::IoUring, "h1-h2c") => [2.2, 0.3, 8.5],
        (Driver::IoUring, _) => [3.2, 0.3, 8.5],
        (Driver::Epoll, "h1-h1") => [4.2, 3.2, 10.5],
        (Driver::Epoll, "h1-h2c") => [4.2, 1.3, 12.5],
        (Driver::Epoll, "h2c-h1") => [4.2, 2.3, 10.5],
        (Driver::Epoll, _) => [4.2, 0.3, 12.5],
    }
}

fn print(driver: Driver, pair: Pair, what: &str, calls: &Calls, count: usize) {
    let each = |calls: u64| calls as f64 / count as f64;
    let by_name: Vec<String> = calls
        .by_name
        .iter()
        .map(|(name, &calls)| format!("{name} {:.2}", each(calls)))
        .collect();
    println!(
        "{:<9} {:<8} {what:<16} {:>6.2} {:>6.2}  {}",
        driver.name(),
        pair.name(),
        each(calls.total()),
        each(calls.submitted),
        by_name.join(", "),
    );
}

/// Calls of tokens alone, of bursts, and of whole answers.
fn counts(driver: Driver, pair: Pair) -> ([Calls; 2], Calls) {
    let listener = listener();
    let draft = draft(pair, listener.local_addr().unwrap());
    let traced = Traced::start(driver, &draft);
    let address = traced.proxy.address;
    let mut answers = Answers::open(address, &listener, pair);
    answers.ask(address, &listener);
    let answer = traced.during(COUNTED, || answers.ask(address, &listener));
    drop(answers);
    let mut streams = Streams::open(address, &listener, pair, STREAMS);
    // Always of the same stream: another's could come in the same turn.
    let alone = traced.during(COUNTED, || streams.token(0));
    let burst = traced.during(BURSTS, || {
        streams.burst(|stop| {
            let signal = if stop { libc::SIGSTOP } else { libc::SIGCONT };
            traced.proxy.daemon.signal(signal);
        });
    });
    ([alone, burst], answer)
}
