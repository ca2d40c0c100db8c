//! How many requests a host has in flight at an engine: never more than the policy says, and none
//! refused while there are fewer, however many shards and processes share them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pointsman_tests::both_drivers;
use pointsman_tests::client::{Client, assert_error, chat};
use pointsman_tests::engine::Engine;
use pointsman_tests::folder::Folder;
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{SOON, eventually, eventually_equals};

both_drivers!(
    sixteen_shards_keep_to_an_allowance_of_eight,
    sixteen_shards_keep_to_an_allowance_of_three,
    an_engine_at_its_allowance_passes_requests_on,
    a_process_takes_over_inside_one_allowance,
);

const SHED: &str = "pointsman_proxy_shed_total";
const IN_FLIGHT: &str = "pointsman_proxy_engine_in_flight";
const ALLOWANCE: &str = "pointsman_proxy_engine_allowance";

/// An engine that holds every request until it is let go, and knows how many it held at most.
struct Holding {
    engine: Engine,
    held: Arc<AtomicUsize>,
    peak: Arc<AtomicUsize>,
    gate: Arc<AtomicBool>,
}

impl Holding {
    fn new() -> Self {
        let (held, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let gate = Arc::new(AtomicBool::new(false));
        let (count, most, open) = (Arc::clone(&held), Arc::clone(&peak), Arc::clone(&gate));
        let engine = Engine::serving(move |conn, _| {
            let now = count.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            eventually(SOON, "requests are let go", || {
                open.load(Ordering::SeqCst).then_some(())
            });
            count.fetch_sub(1, Ordering::SeqCst);
            conn.respond(200, "{}");
        });
        Self {
            engine,
            held,
            peak,
            gate,
        }
    }

    fn await_held(&self, count: usize) {
        eventually_equals(SOON, "requests held by the engine", &count, || {
            self.held.load(Ordering::SeqCst)
        });
    }

    fn peak(&self) -> usize {
        self.peak.load(Ordering::SeqCst)
    }

    /// Answers what it holds, and what comes from now on.
    fn let_go(&self) {
        self.gate.store(true, Ordering::SeqCst);
    }

    fn draft(&self, allowance: u32) -> Draft {
        let draft = Draft::single(self.engine.address());
        draft.with(|policy| policy.engines[0].allowance = allowance)
    }
}

/// Clients that have each sent a request, over connections that the kernel spreads over the shards.
fn ask_at_once(proxy: &Proxy, count: usize) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..count).map(|_| proxy.connect()).collect();
    clients
        .iter_mut()
        .for_each(|client| client.send(chat(false)));
    clients
}

/// The answers by status: how many 200 and 429, each 429 with all that belongs to it.
fn answers(clients: Vec<Client>) -> (usize, usize) {
    let (mut served, mut refused) = (0, 0);
    for mut client in clients {
        let answer = client.response();
        if answer.status() == 200 {
            served += 1;
            continue;
        }
        assert_error(&answer, 429, "engines_busy");
        assert!(answer.header("retry-after").is_some());
        refused += 1;
    }
    (served, refused)
}

/// A burst of requests over 16 shards, one after another until the allowance is used up and at once
/// beyond, at an engine that holds them.
fn keeps_to(allowance: usize, driver: Driver) {
    let holding = Holding::new();
    let draft = holding.draft(u32::try_from(allowance).expect("it is small"));
    let proxy = Proxy::configured(driver, &draft, "shards = 16");
    let first = ask_at_once(&proxy, allowance);
    holding.await_held(allowance);
    let cause = [("cause", "allowance")];
    let shed = proxy.metrics().sum(SHED, &cause);
    assert_eq!(shed, 0.0, "a request was refused while there was room");
    let (served, refused) = answers(ask_at_once(&proxy, 64));
    assert_eq!((served, refused), (0, 64));
    proxy.await_metric(SHED, &cause, 64.0);
    assert_eq!(holding.peak(), allowance, "nobody raced for the last one");
    holding.let_go();
    assert_eq!(answers(first), (allowance, 0));
    proxy.await_metric(IN_FLIGHT, &[], 0.0);
    // What came back is there for others: as many at once as before, at whatever shards.
    for _ in 0..8 {
        assert_eq!(answers(ask_at_once(&proxy, allowance)), (allowance, 0));
        proxy.await_metric(IN_FLIGHT, &[], 0.0);
    }
    // All at once: who comes first is served, and no more are with the engine than stated.
    let (served, refused) = answers(ask_at_once(&proxy, 64));
    assert_eq!(served + refused, 64);
    assert!(served >= allowance);
    assert!(holding.peak() <= allowance + 15, "peak {}", holding.peak());
    proxy.await_rest();
}

fn sixteen_shards_keep_to_an_allowance_of_eight(driver: Driver) {
    keeps_to(8, driver);
}

fn sixteen_shards_keep_to_an_allowance_of_three(driver: Driver) {
    keeps_to(3, driver);
}

fn an_engine_at_its_allowance_passes_requests_on(driver: Driver) {
    let holding = Holding::new();
    let other = Engine::named("E2");
    let draft = Draft::with_standby(holding.engine.address(), other.address());
    let draft = draft.with(|policy| policy.engines[0].allowance = 2);
    let proxy = Proxy::start(driver, &draft);
    let first = ask_at_once(&proxy, 2);
    holding.await_held(2);
    for _ in 0..5 {
        let answer = proxy.ask(chat(false));
        assert_eq!(
            (answer.status(), answer.json()["engine"].as_str()),
            (200, Some("E2"))
        );
    }
    assert_eq!(other.requests().len(), 5);
    assert_eq!(holding.peak(), 2);
    holding.let_go();
    assert_eq!(answers(first), (2, 0));
}

fn a_process_takes_over_inside_one_allowance(driver: Driver) {
    let holding = Holding::new();
    let first = Proxy::start(driver, &holding.draft(6));
    let of_first = ask_at_once(&first, 4);
    holding.await_held(4);
    // The next process of the same host, on the same regions.
    let more = format!(
        "run_dir = \"{}\"\nshards = 2",
        first.folder().run_dir().display()
    );
    let second = Proxy::without_policy(Folder::new(), driver, &more);
    second.await_ready();
    // The first begins nothing more, so the second has all that is left, which is two.
    second.await_metric(ALLOWANCE, &[], 2.0);
    let of_second = ask_at_once(&second, 2);
    holding.await_held(6);
    assert_eq!(answers(ask_at_once(&second, 5)), (0, 5));
    assert_eq!(holding.peak(), 6);
    // When the first is gone, its clients with it, the second has the whole.
    drop(of_first);
    drop(first);
    second.await_metric(ALLOWANCE, &[], 6.0);
    holding.let_go();
    assert_eq!(answers(of_second), (2, 0));
    assert_eq!(answers(ask_at_once(&second, 6)), (6, 0));
    second.await_rest();
}
