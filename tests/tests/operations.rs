//! What an operator does to a proxy and sees of it: starting without a policy, ending, being asked
//! how it is, and what wrong files and wrong requests are told.
//!
//! Entries J01, J02 and J06 of the list of known failures, each by name (`tests/README.md`).

#![expect(clippy::unwrap_used, reason = "a test may end at any surprise")]

use std::time::Duration;

use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, Client, End, UNARY, assert_error, chat, get, post, post_head};
use pointsman_tests::engine::{Engine, Gate};
use pointsman_tests::folder::Folder;
use pointsman_tests::locate::binary;
use pointsman_tests::policy::{Draft, FRONTEND, Publisher};
use pointsman_tests::process::{Finished, run};
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{LONG, SOON, eventually, eventually_equals};
use pointsman_tests::wire::Ending;

both_drivers!(
    e17_a_proxy_without_policy_serves_once_one_comes,
    j01_sigterm_lets_streams_finish,
    j01_predrain_keeps_serving_while_balancers_notice,
    j01_streams_beyond_the_drain_limit_end_as_errors,
    j01_a_second_signal_ends_at_once,
    j02_idle_and_silent_connections_hold_nothing_up,
    j06_two_thousand_streams_and_still_healthy,
    a_malformed_request_is_told_what_is_wrong,
    models_come_from_the_policy,
);

fn e17_a_proxy_without_policy_serves_once_one_comes(driver: Driver) {
    let engine = Engine::named("E");
    let proxy = Proxy::without_policy(Folder::new(), driver, "");
    assert_eq!(get(proxy.admin, "/healthz").status(), 200);
    assert_eq!(get(proxy.admin, "/readyz").status(), 503);
    let refused = proxy.ask(chat(false));
    assert_error(&refused, 503, "no_policy");
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!(wait >= 1, "retry after {wait} s");
    let mut publisher = Publisher::open(&proxy.folder().region_dir(FRONTEND));
    publisher.publish(&Draft::single(engine.address()));
    proxy.await_ready();
    assert_eq!(proxy.ask(chat(false)).status(), 200);
}

fn j01_sigterm_lets_streams_finish(driver: Driver) {
    let (gate, engine) = gated_engine();
    let mut proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut streams: Vec<_> = (0..20).map(|_| begin_stream(&proxy)).collect();
    let mut idle = proxy.connect();
    idle.send("GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(idle.response().status(), 200);
    proxy.daemon.signal(libc::SIGTERM);
    eventually(SOON, "new connections are refused", || {
        std::net::TcpStream::connect(proxy.address)
            .is_err()
            .then_some(())
    });
    assert_eq!(
        idle.end(),
        End::Fin,
        "an idle connection is closed in order"
    );
    assert_eq!(get(proxy.admin, "/readyz").status(), 503);
    assert_eq!(get(proxy.admin, "/healthz").status(), 200);
    assert!(proxy.daemon.alive(), "it waits for its streams");
    gate.open();
    for (client, answer) in &mut streams {
        client.body(answer);
        assert_eq!(
            (answer.ending, answer.text()),
            (Ending::Complete, "data: 1\n\ndata: 2\n\n")
        );
    }
    let status = proxy.daemon.exit(SOON);
    assert_eq!(status.code(), Some(0), "{status}");
}

fn j01_predrain_keeps_serving_while_balancers_notice(driver: Driver) {
    let engine = Engine::named("E");
    let draft = Draft::single(engine.address());
    let mut proxy = Proxy::configured(driver, &draft, "predrain_s = 6\n");
    let mut kept = proxy.connect();
    kept.send(chat(false));
    assert_eq!(kept.response().header("connection"), None);
    proxy.daemon.signal(libc::SIGTERM);
    eventually_equals(SOON, "/readyz", &503, || {
        get(proxy.admin, "/readyz").status()
    });
    // A shard learns of it within its housekeeping tick; until then it answers as before.
    eventually(SOON, "answers say that the connection ends", || {
        let answer = proxy.ask(chat(false));
        assert_eq!(answer.status(), 200);
        (answer.header("connection") == Some("close")).then_some(())
    });
    kept.send(chat(false));
    let answer = kept.response();
    assert_eq!(
        (answer.status(), answer.header("connection")),
        (200, Some("close"))
    );
    assert_eq!(kept.end(), End::Fin);
    assert_eq!(proxy.daemon.exit(SOON).code(), Some(0));
}

fn j01_streams_beyond_the_drain_limit_end_as_errors(driver: Driver) {
    let (_gate, engine) = gated_engine();
    let draft = Draft::single(engine.address());
    let mut proxy = Proxy::configured(driver, &draft, "drain_timeout_s = 1\n");
    let mut streams: Vec<_> = (0..5).map(|_| begin_stream(&proxy)).collect();
    proxy.daemon.signal(libc::SIGTERM);
    for (client, answer) in &mut streams {
        client.body(answer);
        assert_eq!(
            (answer.ending, answer.text()),
            (Ending::Broken, "data: 1\n\n")
        );
    }
    assert_eq!(proxy.daemon.exit(SOON).code(), Some(FORCED));
    eventually_equals(SOON, "engine requests released", &5, || {
        engine.ended_by_peer()
    });
}

fn j01_a_second_signal_ends_at_once(driver: Driver) {
    for second in [libc::SIGTERM, libc::SIGINT] {
        let (_gate, engine) = gated_engine();
        let mut proxy = Proxy::start(driver, &Draft::single(engine.address()));
        let (mut client, mut answer) = begin_stream(&proxy);
        proxy.daemon.signal(libc::SIGTERM);
        eventually_equals(SOON, "/readyz", &503, || {
            get(proxy.admin, "/readyz").status()
        });
        proxy.daemon.signal(second);
        client.body(&mut answer);
        assert_eq!(answer.ending, Ending::Broken);
        assert_eq!(proxy.daemon.exit(SOON).code(), Some(HURRIED));
    }
}

fn j02_idle_and_silent_connections_hold_nothing_up(driver: Driver) {
    let engine = Engine::serving(|conn, request| {
        if request.text() == UNARY {
            conn.respond(200, "{}");
            return;
        }
        // Without end, to a client that does not read.
        conn.stream_head();
        while conn.chunk("x".repeat(64 << 10)) {}
    });
    let draft = Draft::single(engine.address());
    let mut proxy = Proxy::configured(driver, &draft, "drain_timeout_s = 2\n");
    let mut idle = proxy.connect();
    idle.send(chat(false));
    assert_eq!(idle.response().status(), 200);
    let mut silent = proxy.connect();
    let mut unfinished = proxy.connect();
    unfinished.send("POST /v1/chat/completions HTTP/1.1\r\nHost");
    let mut endless = proxy.connect();
    endless.send(chat(true));
    assert_eq!(endless.head().status(), 200);
    proxy.await_metric("pointsman_proxy_client_connections", &[], 4.0);
    proxy.daemon.signal(libc::SIGTERM);
    // At once, long before the limit: the endless stream still runs when these are gone.
    assert_eq!(idle.end(), End::Fin);
    silent.end();
    unfinished.end();
    assert!(proxy.daemon.alive());
    assert_eq!(proxy.daemon.exit(SOON).code(), Some(FORCED));
}

fn j06_two_thousand_streams_and_still_healthy(driver: Driver) {
    const STREAMS: usize = 2_000;
    let (gate, engine) = gated_engine();
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut streams = Vec::with_capacity(STREAMS);
    for _ in 0..STREAMS {
        let mut client = proxy.connect();
        client.send(chat(true));
        streams.push(client);
    }
    proxy.await_in_flight(STREAMS);
    // A supervisor's probe: answered within its second, ten times in a row. The watchdog leaves
    // a loaded machine time to come to rest first.
    let mut in_time = 0;
    eventually(
        LONG,
        "ten probes in a row are answered within a second",
        || {
            let asked = std::time::Instant::now();
            assert_eq!(get(proxy.admin, "/healthz").status(), 200);
            in_time = if asked.elapsed() < Duration::from_secs(1) {
                in_time + 1
            } else {
                0
            };
            (in_time == 10).then_some(())
        },
    );
    gate.open();
    for client in &mut streams {
        let answer = client.response();
        assert_eq!(
            (answer.ending, answer.text()),
            (Ending::Complete, "data: 1\n\ndata: 2\n\n")
        );
    }
    drop(streams);
    proxy.await_rest();
}

fn a_malformed_request_is_told_what_is_wrong(driver: Driver) {
    let engine = Engine::named("E");
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let told = |request: Vec<u8>, status, code: &str, words: &[&str]| {
        let message = assert_error(&proxy.ask(request), status, code);
        for word in words {
            assert!(message.contains(word), "{message:?} does not say {word:?}");
        }
    };
    told(
        post(CHAT, r#"{"model":"m","messages":[}"#),
        400,
        "invalid_json",
        &["byte 25"],
    );
    told(
        post(CHAT, r#"{"messages":[]}"#),
        400,
        "missing_model",
        &["model"],
    );
    told(
        post(CHAT, r#"{"model":"gpt-x"}"#),
        404,
        "model_not_found",
        &["gpt-x"],
    );
    told(
        post("/v1/nothing", UNARY),
        404,
        "not_found",
        &["/v1/nothing"],
    );
    let get = b"GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n".to_vec();
    told(get, 405, "method_not_allowed", &["POST"]);
    let twice = post_head(CHAT, "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n");
    told(twice, 400, "bad_request", &[]);
    let large = post_head(CHAT, &format!("X-Large: {}\r\n", "a".repeat(70 << 10)));
    told(large, 431, "headers_too_large", &[]);
    assert_eq!(engine.connections(), 0);
}

fn models_come_from_the_policy(driver: Driver) {
    let engine = Engine::named("E");
    let one = Draft::new()
        .engine("E", engine.address())
        .route("m", &[("E", 1.0)]);
    let mut proxy = Proxy::start(driver, &one);
    let listed = |proxy: &Proxy| -> Vec<String> {
        let answer = get(proxy.address, "/v1/models");
        assert_eq!(
            (answer.status(), &answer.json()["object"]),
            (200, &"list".into())
        );
        let models = answer.json()["data"].as_array().unwrap().clone();
        models
            .iter()
            .map(|model| model["id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(listed(&proxy), ["m"]);
    proxy.adopt(&one.route("n", &[("E", 1.0)]));
    assert_eq!(listed(&proxy), ["m", "n"]);
    assert_eq!(proxy.ask(post(CHAT, r#"{"model":"n"}"#)).status(), 200);
    assert_eq!(engine.connections(), 1);
}

#[test]
fn a_malformed_topology_is_told_file_line_key_and_what_is_allowed() {
    let good =
        std::fs::read_to_string(pointsman_tests::locate::data("three-regions.toml")).unwrap();
    let folder = Folder::new();
    let check = |text: &str| {
        let file = folder.write("topology.toml", text);
        pointsman_tests::solver::command(&["check", file.to_str().unwrap()])
    };
    let accepted = check(&good);
    assert_eq!(accepted.code, 0, "{accepted:?}");
    let wrong_key = format!("[solver]\nhedroom = 0.9\n{}", good.replace("[solver]", ""));
    rejected(
        &check(&wrong_key),
        &["topology.toml", "2", "hedroom", "headroom"],
    );
    let line = 1 + good.lines().count() + 1;
    for (addition, words) in [
        ("[[engines]]\nname = \"X\"\n", ["kind"].as_slice()),
        (
            "[[frontends]]\nname = \"A\"\nregion = \"a\"\n",
            &["frontends", "A"],
        ),
        (
            "[[rtt]]\nfrontend = \"nowhere\"\nengine = \"A\"\nms = 1\n",
            &["frontend", "nowhere"],
        ),
        (
            "[[rtt]]\nfrontend = \"A\"\nengine = \"A\"\nms = -1\n",
            &["ms", "-1"],
        ),
        ("[[routes]]\nname = \"r\"\nmodel = 7\n", &["model"]),
    ] {
        let finished = check(&format!("{good}\n{addition}"));
        rejected(&finished, &["topology.toml"]);
        rejected(&finished, words);
        let lines = line..=line + addition.lines().count();
        let named = lines
            .clone()
            .any(|line| finished.stderr.contains(&format!("topology.toml:{line}:")));
        assert!(
            named,
            "names none of the lines {lines:?}: {}",
            finished.stderr
        );
    }
}

#[test]
fn the_readmes_own_files_are_right() {
    let page = std::fs::read_to_string(pointsman_tests::locate::root().join("README.md")).unwrap();
    let folder = Folder::new();
    for (name, program, arguments) in [
        ("topology.toml", "pointsman-solver", ["check"].as_slice()),
        ("topology.toml", "pointsman-solver", &["plan"]),
        ("proxy.toml", "pointsman-proxy", &["check", "--config"]),
    ] {
        let after = page.split(&format!("    # {name}\n")).nth(1).unwrap();
        let inside = |line: &&str| line.is_empty() || line.starts_with("    ");
        let text: String = after
            .lines()
            .take_while(inside)
            .flat_map(|l| [l, "\n"])
            .collect();
        let file = folder.write(name, &text);
        let mut command = std::process::Command::new(binary(program));
        command.args(arguments).arg(file);
        let finished = run(command, SOON);
        assert_eq!(
            finished.code, 0,
            "{program} {arguments:?}: {}",
            finished.stderr
        );
    }
}

#[test]
fn a_malformed_proxy_configuration_is_told_file_line_key_and_what_is_allowed() {
    let folder = Folder::new();
    let check = |text: &str| {
        let file = folder.write("proxy.toml", text);
        let mut command = std::process::Command::new(binary("pointsman-proxy"));
        command.arg("check").arg("--config").arg(file);
        run(command, SOON)
    };
    let good = "frontend = \"A\"\nlisten = [\"127.0.0.1:0\"]\n";
    let accepted = check(good);
    assert_eq!(accepted.code, 0, "{accepted:?}");
    let cases: [(&str, &[&str]); 4] = [
        (
            "io_driver = \"kqueue\"\n",
            &["proxy.toml", "3", "io_driver", "kqueue", "epoll"],
        ),
        ("shard = 2\n", &["proxy.toml", "3", "shard", "shards"]),
        (
            "[limits]\nbody_bytes = -5\n",
            &["proxy.toml", "4", "body_bytes", "-5"],
        ),
        (
            "[timeouts]\n\nidle_ms = \"1s\"\n",
            &["proxy.toml", "5", "idle_ms"],
        ),
    ];
    for (addition, words) in cases {
        rejected(&check(&format!("{good}{addition}")), words);
    }
}

fn rejected(finished: &Finished, words: &[&str]) {
    assert_ne!(finished.code, 0, "accepted: {finished:?}");
    for word in words {
        assert!(
            finished.stderr.contains(word),
            "does not say {word:?}: {}",
            finished.stderr
        );
    }
}

/// The exit code of a proxy that cut streams because its drain took too long.
const FORCED: i32 = 3;
/// The exit code of a proxy that cut streams because a second signal told it to.
const HURRIED: i32 = 4;

/// An engine that sends one event, waits at the gate, and sends another and the end.
fn gated_engine() -> (Gate, Engine) {
    let gate = Gate::new();
    let waiting = gate.clone();
    let engine = Engine::serving(move |conn, _| {
        conn.stream_head();
        conn.chunk("data: 1\n\n");
        if conn.wait_at(&waiting) {
            conn.chunk("data: 2\n\n");
            conn.end_stream();
        }
    });
    (gate, engine)
}

/// Sends a streaming request and reads as far as the first event.
fn begin_stream(proxy: &Proxy) -> (Client, pointsman_tests::wire::Message) {
    let mut client = proxy.connect();
    client.send(chat(true));
    let answer = client.head();
    client.read_ahead("9\r\ndata: 1\n\n".len());
    (client, answer)
}
