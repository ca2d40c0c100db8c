//! How often requests move: the retry budget, its switches, and what an engine asks for. One proxy,
//! scripted engines, both I/O drivers.

use std::time::Duration;

use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, assert_error, chat, post};
use pointsman_tests::engine::{Engine, Refusing};
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};

both_drivers!(
    /// F03: as many retries as the budget has tokens for, and then the failure itself.
    f03_a_proxy_retries_what_its_budget_allows,
    /// The same without a budget.
    without_a_budget_every_failure_moves,
    /// As many engines as configured, and no more.
    a_request_goes_to_as_many_engines_as_it_may,
    /// E13: who looks whether a dead engine is back is a request that is sent there.
    e13_a_retry_without_a_token_is_nobodys_trial,
    an_engine_that_asks_for_quiet_gets_it,
    an_engine_that_asks_for_quiet_is_asked_where_nobody_else_is,
);

fn retries(proxy: &Proxy) -> f64 {
    proxy.metrics().sum("pointsman_proxy_retries_total", &[])
}

/// Two engines, of which the first does not serve; planned so full, and this configured.
fn failing(driver: Driver, first: Engine, utilisation: f64, more: &str) -> (Engine, Engine, Proxy) {
    let second = Engine::named("second");
    let draft = Draft::with_standby(first.address(), second.address()).with(|policy| {
        for engine in &mut policy.engines {
            engine.planned_utilisation = utilisation;
        }
    });
    let proxy = Proxy::configured(driver, &draft, more);
    (first, second, proxy)
}

/// An engine that is full, which says nothing against it.
fn full() -> Engine {
    Engine::serving(|conn, _| _ = conn.respond(503, "{}"))
}

fn breaking() -> Engine {
    Engine::start(|conn| {
        conn.request();
        conn.reset();
    })
}

fn answered(proxy: &Proxy, requests: usize) -> usize {
    let asked = (0..requests).map(|_| proxy.ask(chat(false)).status());
    asked.filter(|&status| status == 200).count()
}

fn f03_a_proxy_retries_what_its_budget_allows(driver: Driver) {
    // Planned load, what 40 requests earn by it, and the floor.
    for (utilisation, expected) in [(0.5, 8 + 3), (0.9, 1 + 3), (0.92, 1), (0.96, 0)] {
        let (_first, second, proxy) = failing(driver, full(), utilisation, "");
        let label = [("class", "m")];
        proxy.await_metric("pointsman_proxy_class_utilisation", &label, utilisation);
        assert_eq!(answered(&proxy, 40), expected, "{utilisation}");
        assert_eq!(second.requests().len(), expected);
        assert_eq!(retries(&proxy), expected as f64);
        let refused = "pointsman_proxy_retries_refused_total";
        proxy.await_metric(refused, &[], (40 - expected) as f64);
        let floor = if utilisation <= 0.9 { 0.0 } else { 3.0 };
        proxy.await_metric("pointsman_proxy_retry_floor_tokens", &[], floor);
        proxy.await_rest();
    }
}

fn without_a_budget_every_failure_moves(driver: Driver) {
    let (_first, second, proxy) = failing(driver, full(), 0.99, "[retry]\nbudget = false");
    assert_eq!(answered(&proxy, 40), 40);
    assert_eq!((second.requests().len(), retries(&proxy)), (40, 40.0));
}

fn a_request_goes_to_as_many_engines_as_it_may(driver: Driver) {
    for attempts in [1, 2] {
        let more = format!("[retry]\nattempts = {attempts}");
        let engines: Vec<Engine> = (0..3).map(|_| breaking()).collect();
        let mut draft = Draft::new();
        for (name, engine) in ["E1", "E2", "E3"].iter().zip(&engines) {
            draft = draft.engine(name, engine.address());
        }
        let draft = draft.route("m", &[("E1", 1.0), ("E2", 0.0), ("E3", 0.0)]);
        let proxy = Proxy::configured(driver, &draft, &more);
        assert_error(&proxy.ask(chat(false)), 502, "engine_reset");
        let asked: usize = engines.iter().map(|engine| engine.requests().len()).sum();
        assert_eq!(asked, attempts);
        proxy.await_rest();
    }
    // One that answers what is retried only where that is configured.
    let first = Engine::serving(|conn, _| _ = conn.respond(500, "{}"));
    let (first, second, proxy) = failing(driver, first, 0.5, "[retry]\non_error = true");
    assert_eq!(proxy.ask(chat(false)).text(), r#"{"engine":"second"}"#);
    assert_eq!((first.requests().len(), second.requests().len()), (1, 1));
    let (first, second, proxy) = failing(driver, breaking(), 0.5, "[retry]\nafter_send = false");
    assert_error(&proxy.ask(chat(false)), 502, "engine_reset");
    assert_eq!((first.requests().len(), second.requests().len()), (1, 0));
}

fn e13_a_retry_without_a_token_is_nobodys_trial(driver: Driver) {
    let (full, dead) = (full(), Refusing::new());
    let draft = Draft::new()
        .engine("E1", full.address())
        .engine("E2", dead.address())
        .route("m", &[("E1", 1.0), ("E2", 0.0)])
        .route("n", &[("E1", 0.0), ("E2", 1.0)])
        .with(|policy| {
            for engine in &mut policy.engines {
                engine.planned_utilisation = 0.99;
            }
        });
    let proxy = Proxy::start(driver, &draft);
    let asks = |model: &str| proxy.ask(post(CHAT, format!("{{\"model\":\"{model}\"}}")));
    let refused = [("engine", "E2"), ("outcome", "connect_refused")];
    assert_error(&asks("n"), 503, "engine_unreachable");
    proxy.await_metric("pointsman_proxy_attempts_total", &refused, 1.0);
    // After a second the next request finds out whether it is back.
    std::thread::sleep(Duration::from_millis(1_100));
    assert_eq!(asks("m").text(), "{}", "refused by the other, and no token");
    assert_error(&asks("n"), 503, "engine_unreachable");
    proxy.await_metric("pointsman_proxy_attempts_total", &refused, 2.0);
}

/// Refuses, and says for how long it wants to be left alone.
fn quiet_for(seconds: u32) -> Engine {
    Engine::serving(move |conn, _| {
        conn.send(format!(
            "HTTP/1.1 429 Too Many Requests\r\nRetry-After: {seconds}\r\n\
             Content-Length: 2\r\n\r\n{{}}"
        ));
    })
}

fn an_engine_that_asks_for_quiet_gets_it(driver: Driver) {
    // The wish of an engine, how many of five requests it gets, and how many are served: each of
    // those that it refuses costs a token, and of these there are three and one that is earned at
    // the last.
    for (seconds, asked, served) in [(3_600, 1, 5), (0, 5, 4)] {
        let (first, second) = (quiet_for(seconds), Engine::named("second"));
        let draft = Draft::with_standby(first.address(), second.address());
        let proxy = Proxy::start(driver, &draft);
        assert_eq!(answered(&proxy, 5), served, "{seconds}");
        assert_eq!(first.requests().len(), asked, "{seconds}");
        let labels = [("engine", "E1"), ("blame", "back_pressure")];
        proxy.await_metric("pointsman_proxy_attempts_total", &labels, asked as f64);
        proxy.await_metric(
            "pointsman_proxy_attempts_total",
            &[("blame", "engine")],
            0.0,
        );
    }
}

fn an_engine_that_asks_for_quiet_is_asked_where_nobody_else_is(driver: Driver) {
    let only = quiet_for(10);
    let proxy = Proxy::start(driver, &Draft::single(only.address()));
    for _ in 0..3 {
        let answer = proxy.ask(chat(false));
        // Its own answer, with its own wish.
        assert_eq!((answer.status(), answer.text()), (429, "{}"));
        assert_eq!(answer.header("retry-after"), Some("10"));
    }
    assert_eq!(only.requests().len(), 3);
}
