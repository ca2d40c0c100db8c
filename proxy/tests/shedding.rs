//! Who is refused when not all can be served: no more than must be, the lower priority first, the
//! greedy tenant before the modest one, and each told so at once and in full.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, Client, UNARY, assert_error, post_head, post_with};
use pointsman_tests::client2::post2;
use pointsman_tests::engine::Engine;
use pointsman_tests::folder::Folder;
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{LONG, SOON, eventually, eventually_equals};
use pointsman_tests::wire::Message;

both_drivers!(
    f07_the_lower_priority_is_refused_and_the_higher_served,
    a_key_says_the_priority_whatever_the_header_says,
    only_the_excess_over_a_rate_is_refused,
    f05_a_refusal_does_not_wait_for_the_body,
    f05_a_stream_is_refused_in_the_same_words,
    a_greedy_tenant_is_refused_before_a_modest_one,
);

const EXCEEDED: &str = "pointsman_proxy_rate_exceeded_total";

/// Model `m` on one engine, with a high and a low priority of which the second admits this rate.
fn draft(engine: &Engine, low_rps: f64) -> Draft {
    let draft = Draft::single(engine.address());
    draft.with(|policy| {
        policy.priorities = vec!["high".to_owned(), "low".to_owned()];
        policy.classes[0].admitted_rps = vec![f64::INFINITY, low_rps];
    })
}

fn chat_with(fields: &str) -> Vec<u8> {
    post_with(CHAT, fields, UNARY)
}

/// Asserts that it is what a request over its priority's rate gets.
fn assert_exceeded(answer: &Message) {
    assert_error(answer, 429, "rate_exceeded");
    let seconds = answer
        .header("retry-after")
        .expect("it says when to return");
    let seconds: u32 = seconds.parse().expect("in seconds");
    assert!((1..=4).contains(&seconds), "{seconds}");
}

fn f07_the_lower_priority_is_refused_and_the_higher_served(driver: Driver) {
    let engine = Engine::named("only");
    let more = "shards = 2\n[priority]\nheader = \"x-priority\"";
    let proxy = Proxy::configured(driver, &draft(&engine, 0.0), more);
    let mut waits = Vec::new();
    for _ in 0..20 {
        for served in ["X-Priority: high\r\n", "", "X-Priority: nobody\r\n"] {
            assert_eq!(proxy.ask(chat_with(served)).status(), 200, "{served}");
        }
        let refused = proxy.ask(chat_with("X-Priority: low\r\n"));
        assert_exceeded(&refused);
        waits.push(refused.header("retry-after").map(str::to_owned));
    }
    assert!(
        waits.iter().any(|wait| *wait != waits[0]),
        "all are told the same: {waits:?}"
    );
    assert_eq!(engine.requests().len(), 60);
    proxy.await_metric(EXCEEDED, &[("priority", "low")], 20.0);
    proxy.await_metric(EXCEEDED, &[("priority", "high")], 0.0);
    let cause = [("cause", "admitted_rate")];
    proxy.await_metric("pointsman_proxy_shed_total", &cause, 20.0);
}

fn a_key_says_the_priority_whatever_the_header_says(driver: Driver) {
    let engine = Engine::named("only");
    let folder = Folder::new();
    let file = folder.write("key", "sk-batch\n");
    let more = format!(
        "[priority]\nheader = \"x-priority\"\n[[keys]]\nfile = \"{}\"\ntenant = \"batch\"\n\
         priority = \"low\"",
        file.display()
    );
    let proxy = Proxy::configured(driver, &draft(&engine, 0.0), &more);
    let known = "Authorization: Bearer sk-batch\r\nX-Priority: high\r\n";
    assert_exceeded(&proxy.ask(chat_with(known)));
    let unknown = "Authorization: Bearer sk-other\r\nX-Priority: high\r\n";
    assert_eq!(proxy.ask(chat_with(unknown)).status(), 200);
    assert_eq!(
        proxy
            .ask(chat_with("Authorization: Bearer sk-other\r\n"))
            .status(),
        200
    );
}

fn only_the_excess_over_a_rate_is_refused(driver: Driver) {
    const RATE: f64 = 20.0;
    let engine = Engine::named("only");
    let more = "shards = 4\n[priority]\nheader = \"x-priority\"";
    let proxy = Proxy::configured(driver, &draft(&engine, RATE), more);
    let begun = Instant::now();
    // One connection, so one shard: the whole rate is its to take.
    let mut client = proxy.connect();
    let mut served = 0;
    for _ in 0..60 {
        client.send(chat_with("X-Priority: low\r\n"));
        let answer = client.response();
        match answer.status() {
            200 => served += 1,
            _ => assert_exceeded(&answer),
        }
    }
    let earned = RATE * begun.elapsed().as_secs_f64();
    assert!(served >= 20, "a second's worth passes: {served}");
    assert!(
        f64::from(served) <= RATE + earned + 1.0,
        "{served} served, {earned} earned"
    );
    proxy.await_metric(EXCEEDED, &[], f64::from(60 - served));
}

fn f05_a_refusal_does_not_wait_for_the_body(driver: Driver) {
    let engine = Engine::silent();
    let more = "[priority]\nheader = \"x-priority\"\n[model]\nheader = \"x-model\"";
    let draft = draft(&engine, 0.0).with(|policy| policy.engines[0].allowance = 1);
    let proxy = Proxy::configured(driver, &draft, more);
    // A body of 30 MiB is announced, of which nothing is ever sent.
    let head = |fields: &str| {
        let length = 30 * 1024 * 1024;
        post_head(
            CHAT,
            &format!("X-Model: m\r\nContent-Length: {length}\r\n{fields}"),
        )
    };
    let ask = |fields: &str| {
        let mut client = proxy.connect();
        client.send(head(fields));
        client.response()
    };
    assert_exceeded(&ask("X-Priority: low\r\n"));
    // The same where the engine has all that it may have.
    let mut held = proxy.connect();
    held.send(chat_with(""));
    proxy.await_metric("pointsman_proxy_engine_in_flight", &[], 1.0);
    let refused = ask("");
    assert_error(&refused, 429, "engines_busy");
    assert!(refused.header("retry-after").is_some());
    eventually_equals(SOON, "the one that is held", &1, || engine.connections());
}

fn f05_a_stream_is_refused_in_the_same_words(driver: Driver) {
    let engine = Engine::named("only");
    let more = "[priority]\nheader = \"x-priority\"\n[model]\nheader = \"x-model\"";
    let proxy = Proxy::configured(driver, &draft(&engine, 0.0), more);
    // One is refused when its body is read, the other by its head, with most of its body unsent.
    let large = vec![b'x'; 4 * 1024 * 1024];
    let low = ("x-priority", "low");
    let by_body = post2(proxy.address, CHAT, &[low], UNARY.as_bytes(), None);
    let by_head = post2(proxy.address, CHAT, &[low, ("x-model", "m")], &large, None);
    for answer in [by_body, by_head] {
        assert_eq!(answer.status, 429);
        let error: serde_json::Value = serde_json::from_slice(&answer.body).expect("it is JSON");
        assert_eq!(error["error"]["code"], "rate_exceeded", "{error}");
        let wait = answer.headers.get("retry-after").expect("when to return");
        let wait: u32 = wait.to_str().expect("text").parse().expect("seconds");
        assert!((1..=4).contains(&wait), "{wait}");
    }
    assert_eq!(engine.connections(), 0);
    let high = post2(proxy.address, CHAT, &[], UNARY.as_bytes(), None);
    assert_eq!(high.status, 200);
    proxy.await_rest();
}

/// One tenant asks without a pause, over several connections, until told to stop.
fn greedy(proxy: &Proxy, stop: &AtomicBool) {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = proxy.connect();
                while !stop.load(Ordering::Relaxed) {
                    client.send(chat_with("X-Priority: low\r\nX-Tenant: greedy\r\n"));
                    let status = client.response().status();
                    assert!(matches!(status, 200 | 429), "{status}");
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
        }
    });
}

fn a_greedy_tenant_is_refused_before_a_modest_one(driver: Driver) {
    let engine = Engine::named("only");
    let more = "shards = 2\n[priority]\nheader = \"x-priority\"\n[tenant]\nheader = \"x-tenant\"";
    let proxy = Proxy::configured(driver, &draft(&engine, 40.0), more);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| greedy(&proxy, &stop));
        // Every tenth request of the greedy one is served at most. Were both treated alike, ten of
        // the modest one's in a row would be a chance in a million.
        let mut modest: Client = proxy.connect();
        let mut in_a_row = 0;
        eventually(
            LONG,
            "the modest tenant is served ten times in a row",
            || {
                std::thread::sleep(Duration::from_millis(50));
                modest.send(chat_with("X-Priority: low\r\nX-Tenant: modest\r\n"));
                let is_served = modest.response().status() == 200;
                let refused = proxy.metrics().sum("pointsman_proxy_over_share_total", &[]);
                in_a_row = if is_served && refused > 100.0 {
                    in_a_row + 1
                } else {
                    0
                };
                (in_a_row == 10).then_some(())
            },
        );
        stop.store(true, Ordering::Relaxed);
    });
    proxy.await_in_flight(0);
}
