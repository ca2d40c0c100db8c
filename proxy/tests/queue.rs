//! Requests that wait until an engine has room: in order, for a bounded time, and only while their
//! client is there.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, Client, assert_error, post_with};
use pointsman_tests::engine::Engine;
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{SOON, eventually, eventually_equals};
use pointsman_tests::wire::Message;

both_drivers!(
    a01_f06_only_the_living_are_served_and_in_order,
    f06_a_wait_that_is_over_is_refused,
    f06_who_leaves_as_room_comes_back_is_not_sent,
    f07_the_lower_priority_gives_way_in_a_full_line,
    room_that_comes_back_on_another_shard_is_found,
    who_is_overtaken_by_another_shard_waits_on,
);

const QUEUED: &str = "pointsman_proxy_queued";
const ENDS: &str = "pointsman_proxy_queue_total";
const PRIORITY: &str = "[priority]\nheader = \"x-priority\"";

/// Model `m` on one engine that may have one request in flight, for two priorities.
fn draft(engine: &Engine) -> Draft {
    Draft::single(engine.address()).with(|policy| {
        policy.engines[0].allowance = 1;
        policy.priorities = vec!["high".to_owned(), "low".to_owned()];
        policy.classes[0].admitted_rps = vec![f64::INFINITY; 2];
    })
}

/// An engine that holds each request until the test lets one more go.
struct Held {
    engine: Engine,
    go: Arc<Mutex<usize>>,
    gone: Arc<AtomicUsize>,
}

impl Held {
    fn new() -> Self {
        let go = Arc::new(Mutex::new(0_usize));
        let gate = Arc::clone(&go);
        let gone = Arc::new(AtomicUsize::new(0));
        let answered = Arc::clone(&gone);
        let engine = Engine::serving(move |conn, _| {
            eventually(SOON, "one may go", || {
                let mut left = gate.lock().expect("nobody panics with it");
                left.checked_sub(1).map(|less| *left = less)
            });
            conn.respond(200, "{}");
            answered.fetch_add(1, Ordering::Relaxed);
        });
        Self { engine, go, gone }
    }

    /// Lets so many requests go, now or when they come.
    fn let_go(&self, count: usize) {
        *self.go.lock().expect("nobody panics with it") += count;
    }

    /// Names of the requests that came, in order.
    fn names(&self) -> Vec<String> {
        let requests = self.engine.requests();
        let name =
            |request: &Arc<Message>| request.header("x-name").expect("each has one").to_owned();
        requests.iter().map(name).collect()
    }
}

fn ask(proxy: &Proxy, name: &str, priority: &str) -> Client {
    let mut client = proxy.connect();
    let fields = format!("X-Name: {name}\r\nX-Priority: {priority}\r\n");
    let body = r#"{"model":"m","messages":[]}"#;
    client.send(post_with(CHAT, &fields, body));
    client
}

/// Asks once more and waits until it stands in line as the last of so many.
fn join(proxy: &Proxy, name: &str, priority: &str, count: usize) -> Client {
    let client = ask(proxy, name, priority);
    proxy.await_metric(QUEUED, &[], count as f64);
    client
}

fn ended(proxy: &Proxy, end: &str, count: usize) {
    proxy.await_metric(ENDS, &[("end", end)], count as f64);
}

fn a01_f06_only_the_living_are_served_and_in_order(driver: Driver) {
    let held = Held::new();
    let more = format!("{PRIORITY}\n[queue]\nlength = 10\nwait_ms = 60000");
    let proxy = Proxy::configured(driver, &draft(&held.engine), &more);
    let mut first = ask(&proxy, "first", "low");
    proxy.await_metric("pointsman_proxy_engine_in_flight", &[], 1.0);
    let mut waiting: Vec<Option<Client>> = (0..10)
        .map(|place| Some(join(&proxy, &place.to_string(), "low", place + 1)))
        .collect();
    // The line is full.
    let mut refused = ask(&proxy, "eleventh", "low");
    assert_error(&refused.response(), 429, "engines_busy");
    ended(&proxy, "full", 1);
    // Half of them leave.
    for place in [0, 2, 3, 7, 9] {
        waiting[place] = None;
    }
    proxy.await_metric(QUEUED, &[], 5.0);
    ended(&proxy, "cancelled", 5);
    // One of a high priority comes last and goes first.
    let mut high = join(&proxy, "high", "high", 6);
    held.let_go(7);
    assert_eq!(first.response().status(), 200);
    assert_eq!(high.response().status(), 200);
    for client in waiting.iter_mut().flatten() {
        assert_eq!(client.response().status(), 200);
    }
    assert_eq!(held.names(), ["first", "high", "1", "4", "5", "6", "8"]);
    ended(&proxy, "served", 6);
    proxy.await_metric(QUEUED, &[], 0.0);
    let shed = [("cause", "allowance")];
    proxy.await_metric("pointsman_proxy_shed_total", &shed, 1.0);
    proxy.await_metric("pointsman_proxy_client_cancels_total", &[], 5.0);
    drop((first, high, waiting, refused));
    proxy.await_rest();
}

fn f06_a_wait_that_is_over_is_refused(driver: Driver) {
    let held = Held::new();
    let more = format!("{PRIORITY}\n[queue]\nlength = 10\nwait_ms = 300");
    let proxy = Proxy::configured(driver, &draft(&held.engine), &more);
    let mut first = ask(&proxy, "first", "low");
    proxy.await_metric("pointsman_proxy_engine_in_flight", &[], 1.0);
    let mut late: Vec<Client> = (0..3).map(|_| ask(&proxy, "late", "low")).collect();
    for client in &mut late {
        let answer = client.response();
        assert_error(&answer, 429, "engines_busy");
        assert!(answer.header("retry-after").is_some());
    }
    ended(&proxy, "expired", 3);
    proxy.await_metric(QUEUED, &[], 0.0);
    held.let_go(1);
    assert_eq!(first.response().status(), 200);
    assert_eq!(held.names(), ["first"], "none of the late ones was sent");
    // Their connections are as good as new.
    held.let_go(1);
    late[0].send(post_with(CHAT, "X-Name: again\r\n", r#"{"model":"m"}"#));
    assert_eq!(late[0].response().status(), 200);
}

/// Stops a proxy, and waits until each of its threads has.
fn stop(proxy: &Proxy) {
    proxy.daemon.signal(libc::SIGSTOP);
    let tasks = format!("/proc/{}/task", proxy.daemon.pid());
    eventually(SOON, "every thread has stopped", || {
        let mut tasks = std::fs::read_dir(&tasks).expect("it lives");
        let has_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = task.expect("it is listed").path().join("stat");
            let stat = std::fs::read_to_string(stat).unwrap_or_default();
            stat.rsplit(')')
                .next()
                .is_some_and(|rest| rest.starts_with(" T"))
        };
        tasks.all(has_stopped).then_some(())
    });
}

/// Waits until a client's end has arrived at a proxy that is stopped: in the kernel's table a
/// connection to it waits to be closed.
fn await_end_at(proxy: &Proxy) {
    let local = format!(":{:04X}", proxy.address.port());
    eventually(SOON, "the client's end has arrived", || {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel tells");
        let is_closing = |line: &str| {
            let mut fields = line.split_whitespace().skip(1);
            let is_local = fields.next().is_some_and(|at| at.ends_with(&local));
            is_local && fields.nth(1) == Some("08")
        };
        table.lines().any(is_closing).then_some(())
    });
}

fn f06_who_leaves_as_room_comes_back_is_not_sent(driver: Driver) {
    for _ in 0..5 {
        let held = Held::new();
        let more = format!("{PRIORITY}\n[queue]\nlength = 10\nwait_ms = 60000");
        let proxy = Proxy::configured(driver, &draft(&held.engine), &more);
        let mut first = ask(&proxy, "first", "low");
        proxy.await_metric("pointsman_proxy_engine_in_flight", &[], 1.0);
        let leaving = join(&proxy, "leaving", "low", 1);
        let mut next = join(&proxy, "next", "low", 2);
        // Both happen before the proxy sees either.
        stop(&proxy);
        held.let_go(1);
        eventually_equals(SOON, "the engine answers", &1, || {
            held.gone.load(Ordering::Relaxed)
        });
        drop(leaving);
        await_end_at(&proxy);
        proxy.daemon.signal(libc::SIGCONT);
        assert_eq!(first.response().status(), 200);
        held.let_go(1);
        assert_eq!(next.response().status(), 200);
        assert_eq!(held.names(), ["first", "next"]);
        ended(&proxy, "cancelled", 1);
        ended(&proxy, "served", 1);
    }
}

fn f07_the_lower_priority_gives_way_in_a_full_line(driver: Driver) {
    let held = Held::new();
    let more = format!("{PRIORITY}\n[queue]\nlength = 2\nwait_ms = 60000");
    let proxy = Proxy::configured(driver, &draft(&held.engine), &more);
    let mut first = ask(&proxy, "first", "low");
    proxy.await_metric("pointsman_proxy_engine_in_flight", &[], 1.0);
    let mut before = join(&proxy, "before", "low", 1);
    let mut displaced = join(&proxy, "displaced", "low", 2);
    let mut high = ask(&proxy, "high", "high");
    assert_error(&displaced.response(), 429, "engines_busy");
    ended(&proxy, "displaced", 1);
    proxy.await_metric(QUEUED, &[], 2.0);
    held.let_go(3);
    for client in [&mut first, &mut before, &mut high] {
        assert_eq!(client.response().status(), 200);
    }
    assert_eq!(held.names(), ["first", "high", "before"]);
}

fn room_that_comes_back_on_another_shard_is_found(driver: Driver) {
    let held = Held::new();
    let more = format!("shards = 4\n{PRIORITY}\n[queue]\nlength = 10\nwait_ms = 60000");
    let proxy = Proxy::configured(driver, &draft(&held.engine), &more);
    let mut clients = vec![ask(&proxy, "first", "low")];
    proxy.await_metric("pointsman_proxy_engine_in_flight", &[], 1.0);
    // They are spread over four shards, each with a line of its own.
    for place in 0..12 {
        clients.push(join(&proxy, "waiting", "low", place + 1));
    }
    held.let_go(13);
    for client in &mut clients {
        assert_eq!(client.response().status(), 200);
    }
    eventually_equals(SOON, "requests at the engine", &13, || held.names().len());
    ended(&proxy, "served", 12);
    proxy.await_metric(QUEUED, &[], 0.0);
}

/// Shards look for the same single place at the same time, again and again: whoever is too late
/// stays in line. Many rounds, since it takes two shards within microseconds.
fn who_is_overtaken_by_another_shard_waits_on(driver: Driver) {
    const CLIENTS: usize = 24;
    const ROUNDS: usize = 100;
    let engine = Engine::serving(|conn, _| {
        conn.respond(200, "{}");
    });
    let more = format!("shards = 4\n{PRIORITY}\n[queue]\nlength = 100\nwait_ms = 60000");
    let proxy = Proxy::configured(driver, &draft(&engine), &more);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = proxy.connect();
                for round in 0..ROUNDS {
                    client.send(post_with(CHAT, "", r#"{"model":"m","messages":[]}"#));
                    assert_eq!(client.response().status(), 200, "round {round}");
                }
            });
        }
    });
    assert_eq!(engine.requests().len(), CLIENTS * ROUNDS);
    for end in ["expired", "cancelled", "displaced", "full"] {
        ended(&proxy, end, 0);
    }
    proxy.await_metric(QUEUED, &[], 0.0);
}
