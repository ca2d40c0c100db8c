//! A second attempt beside a late first one: who answers, who is called off, and what it costs. One
//! proxy, scripted engines, both I/O drivers.

use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, STREAMED, chat};
use pointsman_tests::engine::{Conn, Engine, Gate};
use pointsman_tests::engine2::Engine2;
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{LONG, SOON, eventually, eventually_equals};

both_drivers!(
    a_late_first_token_comes_from_the_second_engine,
    a_first_engine_that_is_quicker_after_all_answers,
    a_second_engine_that_fails_changes_nothing,
    a_first_engine_that_fails_meanwhile_leaves_the_second,
    two_engines_that_fail_are_one_failure,
    a_client_that_leaves_both_is_gone_for_both,
    nothing_is_hedged_that_should_not_be,
    streams_of_http2_are_hedged_alike,
    a_second_engine_that_is_late_is_late_like_any_other,
    /// E05: its requests are called off before they are late, and it is found out all the same.
    e05_an_engine_that_hangs_is_found_out_while_another_answers_for_it,
);

const HEDGE: &str = "[hedge]\nenabled = true\ndelay_percent = 100\nleast_ms = 1";
const EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// A whole stream.
fn stream(conn: &mut Conn) {
    conn.stream_head();
    conn.chunk(EVENT);
    conn.chunk(DONE);
    conn.end_stream();
}

fn whole() -> String {
    format!("{EVENT}{DONE}")
}

/// Sends a head at once, as most engines do, and then nothing.
fn stuck() -> Engine {
    Engine::start(|conn| {
        if conn.request().is_some() {
            conn.stream_head();
            conn.await_end();
        }
    })
}

fn streaming() -> Engine {
    Engine::serving(|conn, _| stream(conn))
}

/// Answers by `script` once the gate is open.
fn gated(gate: &Gate, script: impl Fn(&mut Conn) + Send + Sync + 'static) -> Engine {
    let gate = gate.clone();
    Engine::start(move |conn| {
        if conn.request().is_some() && conn.wait_at(&gate) {
            script(conn);
        }
    })
}

/// The first engine has all the weight, the second stands by; a first token is predicted after 100
/// ms.
fn pair(driver: Driver, first: &Engine, second: &Engine, more: &str) -> Proxy {
    let draft = Draft::with_standby(first.address(), second.address());
    Proxy::configured(driver, &draft, more)
}

fn assert_hedges(proxy: &Proxy, outcome: &str, attempts: [(&str, &str); 2]) {
    proxy.await_rest();
    let labels = [("outcome", outcome)];
    proxy.await_metric("pointsman_proxy_hedges_total", &labels, 1.0);
    proxy.await_metric("pointsman_proxy_hedges_total", &[], 1.0);
    for (engine, outcome) in attempts {
        let labels = [("engine", engine), ("outcome", outcome)];
        proxy.await_metric("pointsman_proxy_attempts_total", &labels, 1.0);
    }
    proxy.await_metric("pointsman_proxy_attempts_total", &[], 2.0);
    // Its token is the retry budget's.
    proxy.await_metric("pointsman_proxy_retry_floor_tokens", &[], 2.0);
}

fn a_late_first_token_comes_from_the_second_engine(driver: Driver) {
    let (first, second) = (stuck(), streaming());
    let proxy = pair(driver, &first, &second, HEDGE);
    let answer = proxy.ask(chat(true));
    assert_eq!((answer.status(), answer.text()), (200, &*whole()));
    eventually_equals(SOON, "the first engine is let go", &1, || {
        first.ended_by_peer()
    });
    assert_hedges(&proxy, "won", [("E1", "ours"), ("E2", "success")]);
    // The winner's connection is kept, and serves again.
    assert_eq!(second.connections(), 1);
}

fn a_first_engine_that_is_quicker_after_all_answers(driver: Driver) {
    let gate = Gate::new();
    let first = gated(&gate, stream);
    let second = {
        let gate = gate.clone();
        Engine::start(move |conn| {
            if conn.request().is_some() {
                conn.stream_head();
                gate.open();
                conn.await_end();
            }
        })
    };
    let proxy = pair(driver, &first, &second, HEDGE);
    let answer = proxy.ask(chat(true));
    assert_eq!((answer.status(), answer.text()), (200, &*whole()));
    eventually_equals(SOON, "the second engine is let go", &1, || {
        second.ended_by_peer()
    });
    assert_hedges(&proxy, "lost", [("E1", "success"), ("E2", "ours")]);
}

fn a_second_engine_that_fails_changes_nothing(driver: Driver) {
    type Script = fn(&mut Conn);
    let scripts: [(Script, &str); 3] = [
        (|conn| conn.reset(), "reset_before_byte"),
        (|conn| _ = conn.respond(500, "{}"), "server_error"),
        (
            |conn| {
                conn.stream_head();
                conn.reset();
            },
            "reset_before_byte",
        ),
    ];
    for (script, outcome) in scripts {
        let gate = Gate::new();
        let first = gated(&gate, stream);
        let second = {
            Engine::start(move |conn| {
                if conn.request().is_some() {
                    script(conn);
                }
            })
        };
        let proxy = pair(driver, &first, &second, HEDGE);
        let mut client = proxy.connect();
        client.send(chat(true));
        let failed = [("engine", "E2"), ("outcome", outcome)];
        proxy.await_metric("pointsman_proxy_attempts_total", &failed, 1.0);
        gate.open();
        let answer = client.response();
        assert_eq!((answer.status(), answer.text()), (200, &*whole()));
        client.close();
        assert_hedges(&proxy, "failed", [("E1", "success"), ("E2", outcome)]);
    }
}

fn a_first_engine_that_fails_meanwhile_leaves_the_second(driver: Driver) {
    let (break_first, go_on) = (Gate::new(), Gate::new());
    let first = gated(&break_first, Conn::reset);
    let second = {
        let (break_first, go_on) = (break_first.clone(), go_on.clone());
        Engine::start(move |conn| {
            if conn.request().is_some() {
                break_first.open();
                if conn.wait_at(&go_on) {
                    stream(conn);
                }
            }
        })
    };
    let proxy = pair(driver, &first, &second, HEDGE);
    let mut client = proxy.connect();
    client.send(chat(true));
    eventually_equals(SOON, "the second engine is asked", &1, || {
        second.requests().len()
    });
    go_on.open();
    let answer = client.response();
    assert_eq!((answer.status(), answer.text()), (200, &*whole()));
    client.close();
    proxy.await_rest();
    assert_eq!((first.requests().len(), second.requests().len()), (1, 1));
    let labels = [("outcome", "won")];
    proxy.await_metric("pointsman_proxy_hedges_total", &labels, 1.0);
}

fn two_engines_that_fail_are_one_failure(driver: Driver) {
    let gate = Gate::new();
    let first = gated(&gate, Conn::reset);
    let second = gated(&gate, Conn::reset);
    let proxy = pair(driver, &first, &second, HEDGE);
    let mut client = proxy.connect();
    client.send(chat(true));
    eventually_equals(SOON, "the second engine is asked", &1, || {
        second.requests().len()
    });
    gate.open();
    assert_eq!(client.response().status(), 502);
    client.close();
    let broken = "reset_before_byte";
    assert_hedges(&proxy, "failed", [("E1", broken), ("E2", broken)]);
}

fn a_client_that_leaves_both_is_gone_for_both(driver: Driver) {
    let (first, second) = (stuck(), stuck());
    let proxy = pair(driver, &first, &second, HEDGE);
    let mut client = proxy.connect();
    client.send(chat(true));
    proxy.await_metric("pointsman_proxy_engine_in_flight", &[], 2.0);
    client.close();
    eventually_equals(SOON, "both engines are let go", &(1, 1), || {
        (first.ended_by_peer(), second.ended_by_peer())
    });
    let left = "client_cancel";
    assert_hedges(&proxy, "lost", [("E1", left), ("E2", left)]);
}

fn nothing_is_hedged_that_should_not_be(driver: Driver) {
    let full = |draft: Draft| {
        draft.with(|policy| {
            for engine in &mut policy.engines {
                engine.planned_utilisation = 0.99;
            }
        })
    };
    // Off, not streamed, and without a token.
    let cases = [
        ("", true, false),
        (HEDGE, false, false),
        (HEDGE, true, true),
    ];
    for (more, is_streamed, is_full) in cases {
        let gate = Gate::new();
        let first = gated(&gate, |conn| {
            conn.respond(200, "{}");
        });
        let second = Engine::named("second");
        let draft = Draft::with_standby(first.address(), second.address());
        let draft = if is_full { full(draft) } else { draft };
        let proxy = Proxy::configured(driver, &draft, more);
        let mut client = proxy.connect();
        client.send(chat(is_streamed));
        if is_full {
            let labels = [("outcome", "no_token")];
            proxy.await_metric("pointsman_proxy_hedges_total", &labels, 1.0);
        } else {
            // Long past the prediction.
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        gate.open();
        assert_eq!(client.response().text(), "{}");
        assert_eq!(second.connections(), 0);
        client.close();
        proxy.await_rest();
    }
}

fn streams_of_http2_are_hedged_alike(driver: Driver) {
    let first = Engine2::start(h2::server::Builder::new(), |_, mut answer| async move {
        answer.event_stream();
        answer.await_reset().await;
    });
    let second = Engine2::start(h2::server::Builder::new(), |_, mut answer| async move {
        answer.event_stream();
        answer.send(whole().as_bytes(), true).await;
    });
    let draft = Draft::with_standby(first.address(), second.address()).http2();
    let proxy = Proxy::configured(driver, &draft, HEDGE);
    let answer = proxy.ask(chat(true));
    assert_eq!((answer.status(), answer.text()), (200, &*whole()));
    eventually_equals(
        SOON,
        "the first engine is told to stop",
        &vec![h2::Reason::CANCEL],
        || first.resets(),
    );
    assert_hedges(&proxy, "won", [("E1", "ours"), ("E2", "success")]);
    // And where the client's stream is one as well.
    let answer =
        pointsman_tests::client2::post2(proxy.address, CHAT, &[], STREAMED.as_bytes(), None);
    assert_eq!((answer.status, answer.body), (200, whole().into_bytes()));
    assert_eq!(answer.broken, None);
    proxy.await_rest();
}

fn a_second_engine_that_is_late_is_late_like_any_other(driver: Driver) {
    let gate = Gate::new();
    let (first, second) = (gated(&gate, stream), stuck());
    let proxy = pair(driver, &first, &second, HEDGE);
    let mut client = proxy.connect();
    client.send(chat(true));
    // Neither answers, and each was expected to within 100 ms.
    for engine in ["E1", "E2"] {
        let late = "pointsman_proxy_engine_late_total";
        proxy.await_metric(late, &[("engine", engine)], 1.0);
    }
    gate.open();
    assert_eq!(client.response().text(), whole());
    client.close();
    assert_hedges(&proxy, "lost", [("E1", "success"), ("E2", "ours")]);
}

fn e05_an_engine_that_hangs_is_found_out_while_another_answers_for_it(driver: Driver) {
    let (first, second) = (stuck(), streaming());
    let more = "[hedge]\nenabled = true\ndelay_percent = 200\nleast_ms = 1\n\
                [retry]\nbudget = false\n[penalties]\nenabled = true";
    // Where profiles are measured nothing is late before three times the predicted 100 ms.
    let draft = Draft::with_standby(first.address(), second.address()).with(|policy| {
        for engine in &mut policy.engines {
            engine.profile_assumed = false;
        }
    });
    let proxy = Proxy::configured(driver, &draft, more);
    eventually(LONG, "the engine that hangs is penalised", || {
        assert_eq!(proxy.ask(chat(true)).text(), whole());
        let penalty = "pointsman_proxy_engine_penalty";
        let penalty = proxy.metrics().sum(penalty, &[("engine", "E1")]);
        (penalty > 0.0).then_some(())
    });
    proxy.await_rest();
}
