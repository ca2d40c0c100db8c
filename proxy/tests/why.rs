//! What a client that may ask is told about a request's way, in both protocols, and that nobody
//! else is told, nor any engine the secret. One proxy, scripted engines, both I/O drivers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

use pointsman_shm::policy::PlannedState;
use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, STREAMED, UNARY, assert_error, post_head, post_with};
use pointsman_tests::client2::{Message2, post2};
use pointsman_tests::engine::{Engine, Refusing};
use pointsman_tests::engine2::Engine2;
use pointsman_tests::folder::Folder;
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wire::Message;

both_drivers!(
    who_may_ask_is_told_the_way_and_nobody_else_is,
    a_refusal_tells_who_refused,
    a_refusal_by_the_head_tells_as_much,
    a_budget_that_is_empty_is_told,
    streams_are_told_the_same_and_keep_the_secret_from_engines,
);

const SECRET: &str = "0123456789abcdef-of-the-operators";
const WHY: &str = "x-pointsman-why";

/// A proxy that tells who knows the secret, and the folder with its file.
fn telling(driver: Driver, draft: &Draft, more: &str) -> (Proxy, Folder) {
    let folder = Folder::new();
    let file = folder.write("secret", &format!("{SECRET}\n"));
    let more = format!(
        "{more}\n[why]\nheader = \"X-Ops-Key\"\nsecret_file = \"{}\"",
        file.display()
    );
    (Proxy::configured(driver, draft, &more), folder)
}

fn ask(proxy: &Proxy, secret: &str, body: &str) -> Message {
    let fields = format!("x-ops-key: {secret}\r\nX-Own: 1\r\nx-session-id: a\r\n");
    proxy.ask(post_with(CHAT, &fields, body))
}

fn ask2(proxy: &Proxy, secret: &str) -> Message2 {
    let fields = [("x-ops-key", secret), ("x-own", "1"), ("x-session-id", "a")];
    post2(proxy.address, CHAT, &fields, UNARY.as_bytes(), None)
}

/// The line without the slot, which is the key's.
fn without_slot(line: &str) -> String {
    let is_slot = |part: &&str| part.starts_with("slot=");
    let slot = line.split("; ").find(is_slot).unwrap_or("slot=0/64");
    let (at, length) = slot["slot=".len()..].split_once('/').unwrap();
    assert!(at.parse::<u32>().unwrap() < 64 && length == "64", "{line}");
    let rest = line.split("; ").filter(|part| !is_slot(part));
    rest.collect::<Vec<_>>().join("; ")
}

fn told(answer: &Message) -> String {
    without_slot(answer.header(WHY).expect("the answer tells its way"))
}

const KEY: &str = "policy=1; route=m; class=m; key=header";

fn who_may_ask_is_told_the_way_and_nobody_else_is(driver: Driver) {
    let first = Engine::start(|conn| {
        conn.request();
        conn.reset();
    });
    let second = Engine::named("second");
    let draft = Draft::with_standby(first.address(), second.address());
    let (proxy, _folder) = telling(driver, &draft, "");
    for body in [UNARY, STREAMED] {
        let answer = ask(&proxy, SECRET, body);
        assert_eq!(answer.status(), 200);
        let way = "engine=E2; via=standby; attempt=2; tried=E1:reset_before_byte";
        assert_eq!(told(&answer), format!("{KEY}; {way}"));
        assert_eq!(answer.header("x-ops-key"), None);
    }
    let longer = format!("{SECRET}x");
    for secret in ["", &SECRET[1..], &SECRET.to_uppercase(), &longer] {
        assert_eq!(ask(&proxy, secret, UNARY).header(WHY), None, "{secret}");
    }
    let anonymous = proxy.ask(post_with(CHAT, "", UNARY));
    assert_eq!(anonymous.header(WHY), None);
    for request in first.requests().iter().chain(&second.requests()) {
        assert_eq!(request.header("x-ops-key"), None, "no engine sees the key");
    }
    assert_eq!(second.requests()[0].header("x-own"), Some("1"));
}

fn a_refusal_tells_who_refused(driver: Driver) {
    let refusing = Refusing::new();
    let draft = Draft::single(refusing.address());
    let (proxy, _folder) = telling(driver, &draft, "");
    let answer = ask(&proxy, SECRET, UNARY);
    assert_error(&answer, 503, "engine_unreachable");
    let way = "engine=E1; via=table; attempt=1; tried=E1:connect_refused";
    assert_eq!(told(&answer), format!("{KEY}; {way}"));

    let engine = Engine::named("only");
    let draft = Draft::with_standby(engine.address(), refusing.address());
    let draft = draft.with(|policy| {
        policy.engines[0].state = PlannedState::Draining;
        policy.engines[1].state = PlannedState::Out;
    });
    let (proxy, _folder) = telling(driver, &draft, "");
    let answer = ask(&proxy, SECRET, UNARY);
    assert_error(&answer, 503, "no_eligible_engine");
    assert_eq!(told(&answer), format!("{KEY}; refused=E1:draining,E2:out"));
    let answer = ask(&proxy, SECRET, "{\"model\":\"unknown\"}");
    assert_error(&answer, 404, "model_not_found");
    assert_eq!(told(&answer), "policy=1");
    assert_eq!(ask(&proxy, "no secret", UNARY).header(WHY), None);
}

fn a_refusal_by_the_head_tells_as_much(driver: Driver) {
    let engine = Engine::silent();
    let draft = Draft::single(engine.address()).with(|policy| policy.engines[0].allowance = 1);
    let by_head = "[model]\nheader = \"x-model\"";
    let (proxy, _folder) = telling(driver, &draft, by_head);
    let mut held = proxy.connect();
    held.send(post_with(CHAT, "", UNARY));
    proxy.await_metric("pointsman_proxy_engine_in_flight", &[], 1.0);
    // A body is announced of which nothing is ever sent.
    let ask = |proxy: &Proxy| {
        let fields = format!(
            "x-ops-key: {SECRET}\r\nx-session-id: a\r\nX-Model: m\r\nContent-Length: 900000\r\n"
        );
        let mut client = proxy.connect();
        client.send(post_head(CHAT, &fields));
        client.response()
    };
    let answer = ask(&proxy);
    assert_error(&answer, 429, "engines_busy");
    assert_eq!(told(&answer), format!("{KEY}; refused=E1:over_allowance"));
    // The same of a request that may wait, and for which there is no time.
    let more = format!("{by_head}\n[queue]\nlength = 1\nwait_ms = 50");
    let (waiting, _folder) = telling(driver, &draft, &more);
    let mut held = waiting.connect();
    held.send(post_with(CHAT, "", UNARY));
    waiting.await_metric("pointsman_proxy_engine_in_flight", &[], 1.0);
    let answer = self::ask(&waiting, SECRET, UNARY);
    assert_error(&answer, 429, "engines_busy");
    assert_eq!(told(&answer), format!("{KEY}; refused=E1:over_allowance"));
    // Over the plan's rate no engine was asked.
    let none = draft.with(|policy| policy.classes[0].admitted_rps = vec![0.0]);
    let (proxy, _folder) = telling(driver, &none, by_head);
    let answer = ask(&proxy);
    assert_error(&answer, 429, "rate_exceeded");
    assert_eq!(told(&answer), KEY);
}

fn a_budget_that_is_empty_is_told(driver: Driver) {
    let first = Engine::serving(|conn, _| _ = conn.respond(503, "{}"));
    let second = Engine::named("second");
    let draft = Draft::with_standby(first.address(), second.address());
    let draft = draft.with(|policy| {
        for engine in &mut policy.engines {
            engine.planned_utilisation = 0.99;
        }
    });
    let (proxy, _folder) = telling(driver, &draft, "");
    let answer = ask(&proxy, SECRET, UNARY);
    assert_eq!((answer.status(), second.requests().len()), (503, 0));
    let way = "engine=E1; via=table; attempt=1; budget=empty";
    assert_eq!(told(&answer), format!("{KEY}; {way}"));
}

fn streams_are_told_the_same_and_keep_the_secret_from_engines(driver: Driver) {
    let engine = Engine2::named("only");
    let (proxy, _folder) = telling(driver, &Draft::single(engine.address()).http2(), "");
    let way = |answer: &Message2| {
        let line = answer.headers.get(WHY).map(|line| line.to_str().unwrap());
        line.map(without_slot)
    };
    let answer = ask2(&proxy, SECRET);
    assert_eq!(answer.status, 200);
    let expected = format!("{KEY}; engine=E1; via=table; attempt=1");
    assert_eq!(way(&answer), Some(expected.clone()));
    assert_eq!(way(&ask2(&proxy, "no secret")), None);
    assert_eq!(told(&ask(&proxy, SECRET, UNARY)), expected);
    for request in engine.requests() {
        assert_eq!(request.head.headers().get("x-ops-key"), None);
        assert_eq!(request.head.headers()["x-own"], "1");
    }
    // A refusal is a page of ours, which a stream gets as its head and its data.
    let refusing = Refusing::new();
    let (proxy, _folder) = telling(driver, &Draft::single(refusing.address()).http2(), "");
    let answer = ask2(&proxy, SECRET);
    assert_eq!(answer.status, 503);
    let expected = format!("{KEY}; engine=E1; via=table; attempt=1; tried=E1:connect_refused");
    assert_eq!(way(&answer), Some(expected));
}
