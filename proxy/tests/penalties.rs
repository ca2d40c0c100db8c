//! Engines that are worse than their peers, seen from outside: who gets requests, and what people
//! are told. One proxy, scripted engines, both I/O drivers.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use pointsman_shm::policy::ProfilePoint;
use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, Client, STREAMED, UNARY, post_with};
use pointsman_tests::engine::{Conn, Engine};
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{LONG, eventually};
use pointsman_tests::wire::Message;

both_drivers!(
    /// E13, E15: out after as many failures as configured, and tried again when it is well.
    e15_an_engine_that_fails_is_ejected_and_tried_again,
    /// E04: what clients did wrong, and refusals for want of room, are held against nobody.
    e04_refusals_and_clients_faults_eject_nobody,
    an_engine_five_times_slower_loses_requests,
    whole_answers_are_compared_by_their_tokens,
    /// E05: nothing comes from it that could be compared.
    e05_an_engine_that_hangs_loses_requests_while_they_wait,
    an_engine_that_nobody_speaks_of_is_asked_and_left_out_while_it_is_down,
    where_all_engines_are_down_none_is_left_out,
);

const EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";
/// The table that the harness leaves out of a configuration which does not name it.
const ON: &str = "[penalties]\nenabled = true";
const PENALTY: &str = "pointsman_proxy_engine_penalty";

/// Answers with one token after so long; a health check at once.
fn token_after(conn: &mut Conn, request: &Message, wait: Duration) {
    if is_health_check(request) {
        conn.respond(200, "{}");
        return;
    }
    thread::sleep(wait);
    conn.stream_head();
    conn.chunk(EVENT);
    conn.chunk(DONE);
    conn.end_stream();
}

fn is_health_check(request: &Message) -> bool {
    request.target() == ("GET", "/health")
}

/// Model `m` on two engines, each for half of the keys.
fn halves(driver: Driver, first: &Engine, second: &Engine, more: &str) -> Proxy {
    let draft = Draft::new()
        .engine("E1", first.address())
        .engine("E2", second.address())
        .route("m", &[("E1", 0.5), ("E2", 0.5)]);
    Proxy::configured(driver, &draft, more)
}

fn penalty(proxy: &Proxy, engine: &str) -> f64 {
    proxy.metrics().sum(PENALTY, &[("engine", engine)])
}

/// A streamed request of conversation `number`.
fn request(number: u64) -> Vec<u8> {
    post_with(CHAT, &format!("x-session-id: s{number}\r\n"), STREAMED)
}

/// Clients that ask, each one request after the other, until this is dropped.
struct Load {
    ends: Arc<AtomicBool>,
    clients: Vec<thread::JoinHandle<()>>,
}

impl Load {
    fn start(proxy: &Proxy, clients: u64) -> Self {
        Self::of(proxy, clients, request)
    }

    fn of(proxy: &Proxy, clients: u64, request: fn(u64) -> Vec<u8>) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let next = Arc::new(AtomicU64::new(0));
        let client = |_| {
            let (address, ends, next) = (proxy.address, Arc::clone(&ends), Arc::clone(&next));
            thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let mut client = Client::connect(address);
                    client.send(request(number));
                    let _ = client.response();
                }
            })
        };
        let clients = (0..clients).map(client).collect();
        Self { ends, clients }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            let ended = client.join();
            assert!(ended.is_ok() || thread::panicking());
        }
    }
}

fn await_penalty(proxy: &Proxy, engine: &str, least: f64) -> f64 {
    let what = format!("the penalty of {engine} is at least {least}");
    eventually(LONG, &what, || {
        Some(penalty(proxy, engine)).filter(|penalty| *penalty >= least)
    })
}

fn e15_an_engine_that_fails_is_ejected_and_tried_again(driver: Driver) {
    let fails = Arc::new(AtomicBool::new(true));
    let first = Engine::serving(|conn, asked| token_after(conn, asked, Duration::ZERO));
    let second = Engine::serving({
        let fails = Arc::clone(&fails);
        move |conn, asked| {
            if fails.load(Ordering::Relaxed) {
                conn.respond(500, "{}");
            } else {
                token_after(conn, asked, Duration::ZERO);
            }
        }
    });
    let more = "[penalties]\nfailures_in_a_row = 3\neject_s = 2\n[probes]\nafter_ms = 3600000";
    let proxy = halves(driver, &first, &second, more);
    let load = Load::start(&proxy, 2);
    await_penalty(&proxy, "E2", 1.0);
    let out = [("engine", "E2"), ("reason", "ejected")];
    proxy.await_metric("pointsman_proxy_engine_out", &out, 1.0);
    // Its health check fails, so it stays out beyond its time.
    let failed = [("outcome", "failed")];
    eventually(LONG, "its health is asked for", || {
        let probes = proxy.metrics().sum("pointsman_proxy_probes_total", &failed);
        (probes >= 4.0).then_some(())
    });
    assert_eq!(penalty(&proxy, "E2"), 1.0);
    fails.store(false, Ordering::Relaxed);
    eventually(LONG, "it is tried with a few requests", || {
        (penalty(&proxy, "E2") < 1.0).then_some(())
    });
    drop(load);
    let ejections = "pointsman_proxy_engine_ejections_total";
    assert_eq!(proxy.metrics().sum(ejections, &[("engine", "E2")]), 1.0);
    assert_eq!(penalty(&proxy, "E1"), 0.0);
    proxy.await_rest();
}

fn e04_refusals_and_clients_faults_eject_nobody(driver: Driver) {
    let first = Engine::serving(|conn, asked| token_after(conn, asked, Duration::ZERO));
    for status in [400, 422, 429, 503] {
        let second = Engine::serving(move |conn, _| {
            conn.respond(status, "{}");
        });
        let proxy = halves(driver, &first, &second, ON);
        for number in 0..60 {
            let _ = proxy.ask(request(number));
        }
        assert!(second.requests().len() >= 10, "{status}");
        // Several looks later nothing is held against it.
        thread::sleep(Duration::from_millis(300));
        assert_eq!(penalty(&proxy, "E2"), 0.0, "{status}");
    }
}

fn an_engine_five_times_slower_loses_requests(driver: Driver) {
    let wait = |ms: u64| {
        move |conn: &mut Conn, asked: &Message| token_after(conn, asked, Duration::from_millis(ms))
    };
    let (first, second) = (Engine::serving(wait(100)), Engine::serving(wait(600)));
    let proxy = halves(driver, &first, &second, ON);
    let load = Load::start(&proxy, 12);
    await_penalty(&proxy, "E2", 0.5);
    drop(load);
    assert_eq!(penalty(&proxy, "E1"), 0.0);
    let late = "pointsman_proxy_engine_late_total";
    assert!(proxy.metrics().sum(late, &[("engine", "E2")]) >= 1.0);
    proxy.await_rest();
}

/// One engine is to be quick with the first token and slow with the others, one the other way round;
/// forty-one take either as long.
fn whole_answers_are_compared_by_their_tokens(driver: Driver) {
    const USAGE: &str = "{\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":41}}";
    let whole = |conn: &mut Conn, asked: &Message| {
        if !is_health_check(asked) {
            thread::sleep(Duration::from_millis(440));
        }
        conn.respond(200, USAGE);
    };
    let (first, second) = (Engine::serving(whole), Engine::serving(whole));
    let draft = Draft::new()
        .engine("E1", first.address())
        .engine("E2", second.address())
        .route("m", &[("E1", 0.5), ("E2", 0.5)])
        .with(|policy| {
            for (at, ttft_ms, tbot_ms) in [(0, 20.0, 10.5), (1, 200.0, 6.0)] {
                let engine = &mut policy.engines[at];
                engine.profile_assumed = false;
                engine.profile = vec![ProfilePoint {
                    utilisation: 0.5,
                    ttft_ms,
                    tbot_ms,
                }];
                let eligible = &mut policy.classes[0].eligible[at];
                (eligible.idle_ttft_ms, eligible.planned_ttft_ms) = (ttft_ms, ttft_ms);
            }
        });
    let proxy = Proxy::configured(driver, &draft, ON);
    let unstreamed = |number: u64| post_with(CHAT, &format!("x-session-id: s{number}\r\n"), UNARY);
    let load = Load::of(&proxy, 12, unstreamed);
    // By the first token alone it would be found after some fifty.
    eventually(LONG, "the quick one has given a hundred answers", || {
        assert_eq!(penalty(&proxy, "E1"), 0.0);
        let given = [("engine", "E1"), ("outcome", "success")];
        let given = proxy
            .metrics()
            .sum("pointsman_proxy_attempts_total", &given);
        (given >= 100.0).then_some(())
    });
    drop(load);
    assert_eq!(penalty(&proxy, "E2"), 0.0);
    proxy.await_rest();
}

fn e05_an_engine_that_hangs_loses_requests_while_they_wait(driver: Driver) {
    let first = Engine::serving(|conn, asked| token_after(conn, asked, Duration::from_millis(50)));
    let hangs = Arc::new(AtomicBool::new(false));
    let second = Engine::serving({
        let hangs = Arc::clone(&hangs);
        move |conn, asked| {
            if hangs.load(Ordering::Relaxed) {
                conn.await_end();
            } else {
                token_after(conn, asked, Duration::from_millis(50));
            }
        }
    });
    let proxy = halves(driver, &first, &second, ON);
    for number in 0..40 {
        assert_eq!(proxy.ask(request(number)).status(), 200);
    }
    hangs.store(true, Ordering::Relaxed);
    let mut held = Vec::new();
    eventually(LONG, "it is penalised though it answers nothing", || {
        let mut client = proxy.connect();
        client.send(request(1_000 + held.len() as u64));
        held.push(client);
        (penalty(&proxy, "E2") > 0.0).then_some(())
    });
    assert_eq!(penalty(&proxy, "E1"), 0.0);
    drop(held);
    proxy.await_rest();
}

fn an_engine_that_nobody_speaks_of_is_asked_and_left_out_while_it_is_down(driver: Driver) {
    let first = Engine::serving(|conn, asked| token_after(conn, asked, Duration::ZERO));
    // Nobody listens there any more.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let gone = listener.local_addr().expect("an address");
    drop(listener);
    let draft = Draft::new()
        .engine("E1", first.address())
        .engine("E2", gone)
        .route("m", &[("E1", 0.5), ("E2", 0.5)]);
    let proxy = Proxy::configured(driver, &draft, "[probes]\nafter_ms = 1000");
    let out = [("engine", "E2"), ("reason", "probe_failed")];
    proxy.await_metric("pointsman_proxy_engine_out", &out, 1.0);
    for number in 0..40 {
        assert_eq!(proxy.ask(request(number)).status(), 200);
    }
    let tried = [("engine", "E2")];
    assert_eq!(
        proxy
            .metrics()
            .sum("pointsman_proxy_attempts_total", &tried),
        0.0
    );
    let asked = first.requests();
    let checks = asked.iter().filter(|asked| is_health_check(asked));
    assert!(checks.count() >= 1);
    let out = [("engine", "E1")];
    assert_eq!(proxy.metrics().sum("pointsman_proxy_engine_out", &out), 0.0);
}

fn where_all_engines_are_down_none_is_left_out(driver: Driver) {
    let engine = || {
        Engine::serving(|conn: &mut Conn, asked: &Message| {
            if is_health_check(asked) {
                conn.respond(500, "{}");
            } else {
                token_after(conn, asked, Duration::ZERO);
            }
        })
    };
    let (first, second) = (engine(), engine());
    let proxy = halves(driver, &first, &second, "[probes]\nafter_ms = 1000");
    let failed = [("outcome", "failed")];
    eventually(LONG, "both are asked more than once", || {
        let probes = proxy.metrics().sum("pointsman_proxy_probes_total", &failed);
        (probes >= 6.0).then_some(())
    });
    for number in 0..40 {
        assert_eq!(proxy.ask(request(number)).status(), 200);
    }
    assert_eq!(proxy.metrics().sum("pointsman_proxy_engine_out", &[]), 0.0);
}
