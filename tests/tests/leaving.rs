//! Clients that leave, connections that live a moment, peers that are slow, signals that interrupt:
//! nothing leaks, nothing is cut, nobody else notices.
//!
//! Entries E01, I01, I05, I06 and I07 of the list of known failures, each by name
//! (`tests/README.md`), and the thousand abandoned streams.

#![expect(clippy::unwrap_used, reason = "a test may end at any surprise")]

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pointsman_shm::signals::{EngineCounters, SignalsReader, list};
use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, Client, STREAMED, UNARY, chat, post, post_with};
use pointsman_tests::engine::{Conn, Engine, Unreachable, What};
use pointsman_tests::policy::{Draft, FRONTEND};
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::sys;
use pointsman_tests::wait::{LONG, SOON, eventually, eventually_equals};
use pointsman_tests::wire::Ending;

both_drivers!(
    a_thousand_abandoned_streams_free_everything,
    e01_aborts_at_every_stage_leave_no_count_behind,
    i01_short_lived_connections_leak_nothing,
    i01_connects_that_time_out_leak_nothing,
    i05_a_slow_reader_gets_every_byte,
    i05_a_slow_engine_gets_every_byte,
    i06_interrupted_calls_fail_no_request,
    i07_random_cancels_touch_no_other_stream,
);

/// Idle engine connections go soon, so that a count of sockets comes to rest.
const SOON_IDLE: &str = "[timeouts]\nengine_idle_ms = 300\n";

fn a_thousand_abandoned_streams_free_everything(driver: Driver) {
    const STREAMS: usize = 1_000;
    let engine = Engine::silent();
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), SOON_IDLE);
    let (base, sockets) = (proxy.daemon.descriptors(), proxy.daemon.sockets());
    let clients: Vec<Client> = (0..STREAMS)
        .map(|_| {
            let mut client = proxy.connect();
            client.send(chat(true));
            client
        })
        .collect();
    eventually_equals(LONG, "requests at the engine", &STREAMS, || {
        engine.requests().len()
    });
    proxy.await_in_flight(STREAMS);
    let leaving = Instant::now();
    for (number, client) in clients.into_iter().enumerate() {
        if number % 2 == 0 {
            client.close();
        } else {
            client.reset();
        }
    }
    eventually_equals(LONG, "engine requests released", &STREAMS, || {
        engine.ended_by_peer()
    });
    for event in engine.events() {
        let released = matches!(event.what, What::PeerEnded(_));
        assert!(
            !released || event.at > leaving,
            "released before its client left: {event:?}"
        );
    }
    assert_eq!(
        engine.connections(),
        STREAMS,
        "an abandoned request was sent again"
    );
    proxy.await_rest();
    proxy.await_metric("pointsman_proxy_client_cancels_total", &[], STREAMS as f64);
    proxy.await_sockets(sockets);
    eventually(SOON, "the proxy's descriptors are back to base", || {
        (proxy.daemon.descriptors() <= base).then_some(())
    });
}

fn e01_aborts_at_every_stage_leave_no_count_behind(driver: Driver) {
    const SEED: u64 = 11;
    const SESSIONS: usize = 400;
    eprintln!("seed {SEED}");
    let (first, second) = (steady_engine(), steady_engine());
    let (turn, well) = (AtomicUsize::new(0), Arc::new(AtomicBool::new(false)));
    let is_well = Arc::clone(&well);
    let breaking = Engine::serving(move |conn, _| match is_well.load(Relaxed) {
        true => _ = conn.respond(200, "{}"),
        false => break_off(conn, turn.fetch_add(1, Relaxed)),
    });
    let addresses = [&first, &second, &breaking].map(Engine::address);
    let draft = |with_first: bool| {
        let draft = Draft::new().engine("E1", addresses[0]);
        let draft = draft.engine("E2", addresses[1]).engine("E3", addresses[2]);
        let draft = match with_first {
            true => draft.route("m", &[("E1", 0.5), ("E2", 0.25), ("E3", 0.25)]),
            false => draft.route("m", &[("E2", 0.75), ("E3", 0.25)]),
        };
        // One that was not given back would soon be missed.
        draft.with(|policy| policy.engines.iter_mut().for_each(|one| one.allowance = 16))
    };
    let more = "shards = 2\n[timeouts]\nengine_idle_ms = 300\nfirst_byte_ms = 300\n\
                [hedge]\nenabled = true";
    let mut proxy = Proxy::configured(driver, &draft(true), more);
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (proxy, random) = (&proxy, Random(SEED + worker));
            scope.spawn(move || abort_at_random(proxy, random, 300));
        }
    });
    // Also the one that was gone meanwhile, with what it was doing.
    proxy.adopt(&draft(false));
    proxy.await_rest();
    assert_ended_as_often_as_started(&proxy);
    well.store(true, Relaxed);
    proxy.adopt(&draft(true));
    let before = first.requests().len();
    for number in 0..SESSIONS {
        let fields = format!("X-Session-Id: s{number}\r\n");
        let _ = proxy.ask(post_with(CHAT, &fields, UNARY));
    }
    let got = first.requests().len() - before;
    // Half of them: five standard deviations are 50.
    assert!((150..=250).contains(&got), "{got} of {SESSIONS}");
    proxy.await_rest();
    assert_ended_as_often_as_started(&proxy);
}

/// Ends an attempt badly, in one way after the other.
fn break_off(conn: &mut Conn, turn: usize) {
    match turn % 6 {
        0 => conn.reset(),
        1 => {
            conn.stream_head();
            conn.reset();
        }
        2 => {
            conn.stream_head();
            conn.chunk("data: {}\n\n");
            conn.reset();
        }
        3 => _ = conn.respond(503, "{}"),
        4 => _ = conn.respond(500, "{}"),
        _ => _ = conn.await_end(),
    }
}

/// Clients that leave in the middle of a request, behind it, behind the head of an answer, or not
/// before its end.
fn abort_at_random(proxy: &Proxy, mut random: Random, times: usize) {
    for number in 0..times {
        let fields = format!("X-Session-Id: s{number}\r\n");
        let body = if random.below(2) == 0 {
            UNARY
        } else {
            STREAMED
        };
        let request = post_with(CHAT, &fields, body);
        let mut client = proxy.connect();
        match random.below(4) {
            0 => client.send(&request[..random.below(request.len())]),
            1 => client.send(&request),
            stage => {
                client.send(&request);
                let mut answer = client.head();
                if stage > 2 {
                    client.body(&mut answer);
                }
            }
        }
        if random.below(2) == 0 {
            client.reset();
        }
    }
}

/// By the signals that the solver reads.
fn assert_ended_as_often_as_started(proxy: &Proxy) {
    let dir = proxy.folder().region_dir(FRONTEND).join("signals");
    eventually(SOON, "as many attempts ended as were started", || {
        let mut reader = SignalsReader::open(&list(&dir).unwrap()[0]).unwrap();
        let engines = reader.snapshot().unwrap().engines;
        let open =
            |(_, engine): &(_, EngineCounters)| engine.started != engine.ended.iter().sum::<u64>();
        (!engines.is_empty() && !engines.iter().any(open)).then_some(())
    });
}

fn i01_short_lived_connections_leak_nothing(driver: Driver) {
    let engine = Engine::named("E");
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), SOON_IDLE);
    let sockets = proxy.daemon.sockets();
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (answered, proxy) = (&answered, &proxy);
            scope.spawn(move || {
                for turn in 0..500 {
                    if visit(proxy, worker * 500 + turn) {
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(
        answered.into_inner(),
        400,
        "every fifth visit waits for its answer"
    );
    proxy.await_rest();
    proxy.await_sockets(sockets);
    assert_eq!(proxy.ask(chat(false)).status(), 200);
}

/// One short visit; whether it was answered.
fn visit(proxy: &Proxy, number: usize) -> bool {
    let mut client = proxy.connect();
    match number % 5 {
        0 => client.close(),
        1 => client.reset(),
        2 => {
            client.send(&chat(false)[..40]);
            client.reset();
        }
        3 => {
            client.send(chat(true));
            client.close();
        }
        _ => {
            client.send(chat(false));
            return client.response().status() == 200;
        }
    }
    false
}

fn i01_connects_that_time_out_leak_nothing(driver: Driver) {
    let silent = Unreachable::new();
    let engine = Engine::named("E2");
    let draft = Draft::with_standby(silent.address(), engine.address());
    let proxy = Proxy::configured(driver, &draft, SOON_IDLE);
    let sockets = proxy.daemon.sockets();
    // Many leave while the proxy still connects.
    for _ in 0..50 {
        let mut client = proxy.connect();
        client.send(chat(true));
        proxy.await_in_flight(1);
        client.reset();
        proxy.await_in_flight(0);
    }
    // Few wait for the connect to time out: more at once than the retry budget has tokens for
    // would be refused.
    let mut waiting: Vec<Client> = (0..3).map(|_| proxy.connect()).collect();
    waiting
        .iter_mut()
        .for_each(|client| client.send(chat(true)));
    for client in &mut waiting {
        assert_eq!(client.response().text(), r#"{"engine":"E2"}"#);
    }
    drop(waiting);
    let timed_out = [("engine", "E1"), ("outcome", "connect_timeout")];
    assert!(
        proxy
            .metrics()
            .sum("pointsman_proxy_attempts_total", &timed_out)
            >= 1.0
    );
    proxy.await_rest();
    proxy.await_sockets(sockets);
}

fn i05_a_slow_reader_gets_every_byte(driver: Driver) {
    const LENGTH: usize = 8 << 20;
    let engine = Engine::serving(|conn, request| {
        let body = pattern(LENGTH, 1);
        if request.text() == UNARY {
            conn.respond(200, std::str::from_utf8(&body).unwrap());
            return;
        }
        conn.stream_head();
        let mut from = 0;
        let mut random = Random(5);
        while from < LENGTH {
            let to = (from + 1 + random.below(40_000)).min(LENGTH);
            conn.chunk(&body[from..to]);
            from = to;
        }
        conn.end_stream();
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let expected = pattern(LENGTH, 1);
    for stream in [false, true] {
        let mut client = proxy.connect();
        client.set_receive_buffer(64 << 10);
        client.send(chat(stream));
        let mut answer = client.head();
        // Far slower than the engine writes, until both sides' buffers are full; then freely.
        for _ in 0..200 {
            client.sip(2048);
            std::thread::sleep(Duration::from_millis(2));
        }
        client.body(&mut answer);
        assert_eq!(answer.ending, Ending::Complete);
        assert!(
            answer.body == expected,
            "bytes changed on the way, stream: {stream}"
        );
    }
}

fn i05_a_slow_engine_gets_every_byte(driver: Driver) {
    const LENGTH: usize = 8 << 20;
    let engine = Engine::start(|conn| {
        conn.set_receive_buffer(128 << 10);
        // The proxy's first write meets a full buffer.
        std::thread::sleep(Duration::from_millis(300));
        if let Some(request) = conn.request() {
            let whole = request.body.len() == LENGTH + UNARY.len();
            conn.respond(if whole { 200 } else { 500 }, "{}");
        }
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let text = String::from_utf8(pattern(LENGTH - 2, 2)).unwrap();
    let body = UNARY.replace("[]", &format!("[\"{text}\"]"));
    assert_eq!(body.len(), LENGTH + UNARY.len());
    assert_eq!(proxy.ask(post(CHAT, &body)).status(), 200);
    assert!(
        engine.requests()[0].body == body.as_bytes(),
        "bytes changed on the way"
    );
}

fn i06_interrupted_calls_fail_no_request(driver: Driver) {
    let engine = steady_engine();
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    // Stopping and continuing a process interrupts calls that wait, as a debugger or a frozen
    // container does; signals that are ignored by default go to every thread besides.
    let served = under_load(&proxy, || {
        for _ in 0..200 {
            proxy.daemon.signal(libc::SIGSTOP);
            std::thread::sleep(Duration::from_millis(1));
            proxy.daemon.signal(libc::SIGCONT);
            for thread in proxy.daemon.threads() {
                for signal in [libc::SIGWINCH, libc::SIGURG, libc::SIGCHLD, libc::SIGCONT] {
                    let _gone = sys::kill_thread(proxy.daemon.pid(), thread, signal);
                }
            }
            std::thread::sleep(Duration::from_millis(3));
        }
    });
    assert!(served > 0);
    let calls = match driver {
        Driver::IoUring => "io_uring_enter",
        Driver::Epoll => "epoll_wait,epoll_pwait,epoll_pwait2",
    };
    inject_eintr(&proxy, calls);
    proxy.await_rest();
}

/// Has strace answer every fifth of these calls with EINTR while requests are served. Says so
/// where strace is missing or not allowed to trace.
fn inject_eintr(proxy: &Proxy, calls: &str) {
    let log = proxy.folder().path().join("strace.log");
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-q", "-p", &proxy.daemon.pid().to_string(), "-o"])
        .arg(&log);
    strace.args(["-e", &format!("trace={calls}")]);
    strace.args(["-e", &format!("inject={calls}:error=EINTR:when=3+5")]);
    strace
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    sys::die_with_parent(&mut strace);
    let Ok(mut tracer) = strace.spawn() else {
        return eprintln!("strace is not installed: calls were interrupted by signals only");
    };
    let injected = || {
        std::fs::read_to_string(&log)
            .unwrap_or_default()
            .matches("INJECTED")
            .count()
    };
    let attached = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        // Something must happen for a call to be traced.
        assert_eq!(proxy.ask(chat(false)).status(), 200);
        injected() > 0 || tracer.try_wait().unwrap().is_some()
    });
    if !attached || tracer.try_wait().unwrap().is_some() {
        tracer.kill().ok();
        tracer.wait().ok();
        return eprintln!("strace may not trace here: calls were interrupted by signals only");
    }
    under_load(proxy, || {
        eventually(LONG, "200 calls are interrupted", || {
            (injected() >= 200).then_some(())
        });
    });
    sys::kill(tracer.id(), libc::SIGINT);
    tracer.wait().ok();
}

fn i07_random_cancels_touch_no_other_stream(driver: Driver) {
    const SEED: u64 = 7;
    eprintln!("seed {SEED}");
    let engine = steady_engine();
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), SOON_IDLE);
    let sockets = proxy.daemon.sockets();
    let mut resident = Vec::new();
    for round in 0..3 {
        under_load(&proxy, || {
            std::thread::scope(|scope| {
                for worker in 0..4 {
                    let proxy = &proxy;
                    let random = Random(SEED + round * 4 + worker);
                    scope.spawn(move || leave_at_random(proxy, random, 250));
                }
            });
        });
        proxy.await_rest();
        resident.push(proxy.daemon.resident_bytes());
    }
    let grown = resident[2].saturating_sub(resident[0]);
    assert!(
        grown < 8 << 20,
        "2,000 cancels after the first 1,000 took {grown} bytes"
    );
    proxy.await_sockets(sockets);
}

fn leave_at_random(proxy: &Proxy, mut random: Random, times: usize) {
    for _ in 0..times {
        let mut client = proxy.connect();
        let request = chat(random.below(2) == 0);
        let sent = if random.below(4) == 0 {
            random.below(request.len())
        } else {
            request.len()
        };
        client.send(&request[..sent]);
        if sent == request.len() {
            client.read_ahead(random.below(20_000));
        }
        if random.below(2) == 0 {
            client.reset();
        }
    }
}

/// An engine that answers with 64 KiB of a pattern, streamed in pieces or whole.
fn steady_engine() -> Engine {
    Engine::serving(|conn, request| {
        let body = pattern(64 << 10, 3);
        if request.text() == UNARY {
            conn.respond(200, std::str::from_utf8(&body).unwrap());
        } else {
            conn.stream_head();
            for chunk in body.chunks(3_001) {
                if !conn.chunk(chunk) {
                    return;
                }
            }
            conn.end_stream();
        }
    })
}

/// Serves four clients, whose every answer must be whole and right, for as long as `trouble`
/// lasts; how many answers there were.
fn under_load(proxy: &Proxy, trouble: impl FnOnce()) -> usize {
    let expected = pattern(64 << 10, 3);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = proxy.connect();
                    let mut served = 0;
                    while !over.load(Ordering::Relaxed) {
                        let body = if served % 2 == 0 { STREAMED } else { UNARY };
                        client.send(post_with(CHAT, "X-Canary: 1\r\n", body));
                        let answer = client.response();
                        assert_eq!((answer.status(), answer.ending), (200, Ending::Complete));
                        assert!(answer.body == expected, "another stream's bytes");
                        served += 1;
                    }
                    served
                })
            })
            .collect();
        let ended = OnDrop(&over);
        trouble();
        drop(ended);
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .sum()
    })
}

/// Ends the load even when the trouble panics, so that the failure is told and not hung on.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Printable bytes that tell their place, so that a shifted or swapped block is seen.
fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..length)
        .map(|_| b'a' + u8::try_from(random.below(26)).unwrap())
        .collect()
}

/// SplitMix64: the same sequence for the same seed, everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % bound as u64).unwrap()
    }
}
