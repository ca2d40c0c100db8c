//! TLS with engines: who is believed, what is shown to it, and how a failure is named.

#![expect(clippy::unwrap_used, reason = "a test may end at any surprise")]

use pointsman_shm::policy::Protocol;
use pointsman_tests::both_drivers;
use pointsman_tests::client::{assert_error, chat};
use pointsman_tests::engine::{Engine, Gate};
use pointsman_tests::folder::Folder;
use pointsman_tests::policy::{Draft, FRONTEND};
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::solver::{Solver, await_policy};
use pointsman_tests::tls::{Authority, Front, FrontRules, replace};
use pointsman_tests::wait::{SOON, eventually};
use pointsman_tests::wire::Ending;
use std::net::SocketAddr;
use std::time::Duration;

both_drivers!(
    an_engine_is_asked_over_tls_with_its_token_and_certificate,
    an_engine_that_cannot_prove_itself_gets_nothing,
    an_engine_that_refuses_our_certificate_is_named,
    a_token_changes_without_a_new_connection,
    certificates_and_authorities_change_and_what_runs_goes_on,
    a_cut_inside_tls_is_no_end,
    an_engine_behind_tls_is_asked_for_its_health_as_for_everything_else,
);

const FAILURES: &str = "pointsman_proxy_tls_failures_total";

fn an_engine_behind_tls_is_asked_for_its_health_as_for_everything_else(driver: Driver) {
    let engine = Engine::named("E1");
    let folder = Folder::new();
    let (servers, clients, front) = asking(engine.address());
    let (cert, key) = clients.leaf(&["proxy.test"]).write(folder.path(), "own");
    let token = folder.write("token", "sk-1\n");
    let more = format!(
        "bearer_file = \"{}\"\ncert = \"{}\"\nkey = \"{}\"\n[probes]\nafter_ms = 1000",
        token.display(),
        cert.display(),
        key.display()
    );
    let draft = secured(front.address(), "engine.test");
    let proxy = Proxy::configured(driver, &draft, &credential(&folder, &servers, &more));
    let probes = "pointsman_proxy_probes_total";
    eventually(SOON, "its health is asked for", || {
        let well = proxy.metrics().sum(probes, &[("outcome", "well")]);
        (well >= 1.0).then_some(())
    });
    let asked = &engine.requests()[0];
    assert_eq!(asked.target(), ("GET", "/health"));
    assert_eq!(asked.header("authorization"), Some("Bearer sk-1"));
    // One that cannot prove itself is not believed.
    let draft = secured(front.address(), "other.test");
    let proxy = Proxy::configured(driver, &draft, &credential(&folder, &servers, &more));
    eventually(SOON, "a check fails", || {
        let failed = proxy.metrics().sum(probes, &[("outcome", "failed")]);
        (failed >= 1.0).then_some(())
    });
    assert_eq!(proxy.metrics().sum(probes, &[("outcome", "well")]), 0.0);
}

/// A draft whose only engine is asked over TLS, as `sni`, with the credential `gpu`.
fn secured(address: SocketAddr, sni: &str) -> Draft {
    Draft::single(address).with(|policy| {
        policy.engines[0].protocol = Protocol::Http1Tls;
        policy.engines[0].sni = sni.to_owned();
        policy.engines[0].credential = "gpu".to_owned();
    })
}

/// The credential `gpu`: whom it trusts, and what more it has.
fn credential(folder: &Folder, authority: &Authority, more: &str) -> String {
    let path = folder.write("engines.pem", &authority.pem());
    format!("[credentials.gpu]\nca = \"{}\"\n{more}\n", path.display())
}

/// An engine behind TLS that asks for certificates: whose is its own, whose it wants, and its front.
fn asking(engine: SocketAddr) -> (Authority, Authority, Front) {
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let rules = FrontRules {
        clients: Some(&clients),
        ..FrontRules::default()
    };
    let front = Front::start(engine, &servers.leaf(&["engine.test"]), &rules);
    (servers, clients, front)
}

fn an_engine_is_asked_over_tls_with_its_token_and_certificate(driver: Driver) {
    let engine = Engine::named("E1");
    let folder = Folder::new();
    let (servers, clients, front) = asking(engine.address());
    let (cert, key) = clients.leaf(&["proxy.test"]).write(folder.path(), "own");
    let token = folder.write("token", "sk-1\n");
    let more = format!(
        "bearer_file = \"{}\"\ncert = \"{}\"\nkey = \"{}\"",
        token.display(),
        cert.display(),
        key.display()
    );
    let draft = secured(front.address(), "engine.test");
    let proxy = Proxy::configured(driver, &draft, &credential(&folder, &servers, &more));
    let mut client = proxy.connect();
    for _ in 0..3 {
        client.send(chat(false));
        let answer = client.response();
        assert_eq!(
            (answer.status(), answer.text()),
            (200, r#"{"engine":"E1"}"#)
        );
    }
    for request in engine.requests() {
        assert_eq!(request.header("authorization"), Some("Bearer sk-1"));
    }
    assert_eq!(front.greeted(), 1, "the connection was kept");
    proxy.await_metric(
        "pointsman_proxy_tls_handshakes_total",
        &[("side", "engine")],
        1.0,
    );
}

fn an_engine_that_cannot_prove_itself_gets_nothing(driver: Driver) {
    let engine = Engine::named("E1");
    let (servers, folder) = (Authority::new("servers"), Folder::new());
    let cases = [
        (servers.leaf(&["other.test"]), "wrong_name"),
        (
            servers.leaf_until(&["engine.test"], 2001, 1, 1),
            "certificate_expired",
        ),
        (
            Authority::new("servers").leaf(&["engine.test"]),
            "unknown_authority",
        ),
    ];
    for (leaf, reason) in cases {
        let front = Front::start(engine.address(), &leaf, &FrontRules::default());
        let draft = secured(front.address(), "engine.test");
        let proxy = Proxy::configured(driver, &draft, &credential(&folder, &servers, ""));
        assert_error(&proxy.ask(chat(false)), 502, "engine_tls");
        let failed = [("side", "engine"), ("reason", reason)];
        proxy.await_metric(FAILURES, &failed, 1.0);
        let outcome = [("outcome", "connect_refused")];
        proxy.await_metric("pointsman_proxy_attempts_total", &outcome, 1.0);
        eventually(SOON, "the front saw it fail", || {
            (front.failures().len() == 1).then_some(())
        });
        assert_eq!(front.greeted(), 0);
        proxy.await_rest();
    }
    // One in the clear is greeted with TLS all the same, and another engine answers.
    let clear = Engine::start(|conn| {
        conn.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        conn.await_end();
    });
    let draft = secured(clear.address(), "engine.test")
        .engine("E2", engine.address())
        .route("n", &[("E1", 1.0), ("E2", 0.0)]);
    let proxy = Proxy::configured(driver, &draft, &credential(&folder, &servers, ""));
    let mut client = proxy.connect();
    client.send(pointsman_tests::client::post(
        "/v1/chat/completions",
        r#"{"model":"n"}"#,
    ));
    assert_eq!(client.response().text(), r#"{"engine":"E1"}"#);
    assert!(clear.requests().is_empty(), "no request in the clear");
    proxy.await_metric(FAILURES, &[("side", "engine"), ("reason", "not_tls")], 1.0);
    assert_eq!(engine.requests().len(), 1);
}

fn an_engine_that_refuses_our_certificate_is_named(driver: Driver) {
    let engine = Engine::named("E1");
    let folder = Folder::new();
    let (servers, _clients, front) = asking(engine.address());
    let (cert, key) = Authority::new("clients")
        .leaf(&["proxy.test"])
        .write(folder.path(), "own");
    let more = format!("cert = \"{}\"\nkey = \"{}\"", cert.display(), key.display());
    for more in ["", &more] {
        let draft = secured(front.address(), "engine.test");
        let proxy = Proxy::configured(driver, &draft, &credential(&folder, &servers, more));
        assert_error(&proxy.ask(chat(false)), 502, "engine_tls");
        let refused = [("side", "engine"), ("reason", "certificate_refused")];
        proxy.await_metric(FAILURES, &refused, 1.0);
    }
    assert_eq!(engine.connections(), 0);
}

fn a_token_changes_without_a_new_connection(driver: Driver) {
    let engine = Engine::named("E1");
    let folder = Folder::new();
    let token = folder.write("token", "sk-1\n");
    let draft = Draft::single(engine.address())
        .with(|policy| policy.engines[0].credential = "gpu".to_owned());
    let more = format!("[credentials.gpu]\nbearer_file = \"{}\"\n", token.display());
    let proxy = Proxy::configured(driver, &draft, &more);
    let mut client = proxy.connect();
    let mut asked = || {
        client.send(chat(false));
        assert_eq!(client.response().status(), 200);
        let requests = engine.requests();
        requests
            .last()
            .unwrap()
            .header("authorization")
            .unwrap()
            .to_owned()
    };
    assert_eq!(asked(), "Bearer sk-1");
    replace(&token, "sk-2\n");
    eventually(SOON, "the new token goes out", || {
        std::thread::sleep(Duration::from_millis(20));
        (asked() == "Bearer sk-2").then_some(())
    });
    assert_eq!(engine.connections(), 1);
}

fn certificates_and_authorities_change_and_what_runs_goes_on(driver: Driver) {
    let gate = Gate::new();
    let held = gate.clone();
    let engine = Engine::serving(move |conn, request| {
        if request.text().contains("\"stream\"") {
            conn.stream_head();
            conn.chunk("data: first\n\n");
            if conn.wait_at(&held) {
                conn.chunk("data: last\n\n");
                conn.end_stream();
            }
        } else {
            conn.respond(200, "{}");
        }
    });
    let folder = Folder::new();
    let (servers, clients, front) = asking(engine.address());
    // At first we show a certificate of an authority that the engine does not know.
    let wrong = Authority::new("clients").leaf(&["proxy.test"]);
    let (cert, key) = wrong.write(folder.path(), "own");
    let own = format!("cert = \"{}\"\nkey = \"{}\"", cert.display(), key.display());
    // A connection that nothing runs on ends soon, so that the next request greets anew.
    let more = format!(
        "{}[timeouts]\nengine_idle_ms = 100\n",
        credential(&folder, &servers, &own)
    );
    let draft = secured(front.address(), "engine.test");
    let proxy = Proxy::configured(driver, &draft, &more);
    assert_error(&proxy.ask(chat(false)), 502, "engine_tls");
    let _ = clients.leaf(&["proxy.test"]).write(folder.path(), "own");
    let answered = |wanted: u16| {
        eventually(SOON, "what was changed counts", || {
            std::thread::sleep(Duration::from_millis(150));
            (proxy.ask(chat(false)).status() == wanted).then_some(())
        });
    };
    answered(200);
    let mut client = proxy.connect();
    client.send(chat(true));
    let mut streamed = client.head();
    client.read_ahead(10);
    let ca = folder.path().join("engines.pem");
    replace(&ca, &Authority::new("servers").pem());
    answered(502);
    replace(&ca, &servers.pem());
    answered(200);
    gate.open();
    client.body(&mut streamed);
    assert_eq!(
        (streamed.text(), streamed.ending),
        ("data: first\n\ndata: last\n\n", Ending::Complete),
        "the stream outlived all changes"
    );
    drop(client);
    proxy.await_rest();
}

fn a_cut_inside_tls_is_no_end(driver: Driver) {
    let engine = Engine::serving(|conn, _| {
        conn.send("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nhello");
        conn.close();
    });
    let (servers, folder) = (Authority::new("servers"), Folder::new());
    for (cuts_ends, ending) in [(false, Ending::Complete), (true, Ending::Broken)] {
        let rules = FrontRules {
            cuts_ends,
            ..FrontRules::default()
        };
        let front = Front::start(engine.address(), &servers.leaf(&["engine.test"]), &rules);
        let draft = secured(front.address(), "engine.test");
        let proxy = Proxy::configured(driver, &draft, &credential(&folder, &servers, ""));
        let answer = proxy.ask(chat(false));
        assert_eq!((answer.text(), answer.ending), ("hello", ending));
        proxy.await_rest();
    }
}

/// A topology of one engine with TLS.
fn topology(engine: SocketAddr, server_name: &str) -> String {
    format!(
        r#"
[solver]
tick_ms = 200
scrape_ms = 100
scrape_timeout_ms = 90
demand = "configured"

[[frontends]]
name = "{FRONTEND}"
region = "a"

[[engines]]
name = "E1"
region = "a"
kind = "test"
models = ["m"]
address = "{engine}"
protocol = "http1-tls"
server_name = "{server_name}"
credential = "gpu"
capacity = {{ max_running = 8 }}

[[rtt]]
frontend = "{FRONTEND}"
engine = "E1"
ms = 1

[[routes]]
name = "chat"
model = "m"
prompt_tokens = 50
output_tokens = 50

[[demand]]
frontend = "{FRONTEND}"
route = "chat"
priority = "default"
rps = 1
"#
    )
}

#[test]
fn the_solver_asks_an_engine_over_tls_and_believes_only_the_right_one() {
    let engine = Engine::serving(|conn, request| match request.target().1 {
        "/metrics" => {
            let page = "vllm:num_requests_running 3\n";
            conn.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{page}",
                page.len()
            ));
        }
        _ => {
            conn.respond(200, "{}");
        }
    });
    let (servers, clients, front) = asking(engine.address());
    for (server_name, is_right) in [("engine.test", true), ("other.test", false)] {
        let folder = Folder::new();
        let ca = folder.write("ca.pem", &servers.pem());
        let token = folder.write("token", "sk-1");
        let (cert, key) = clients.leaf(&["solver.test"]).write(folder.path(), "own");
        let text = format!(
            "[credentials.gpu]\nca = '{}'\ncert = '{}'\nkey = '{}'\nbearer_file = '{}'\n",
            ca.display(),
            cert.display(),
            key.display(),
            token.display()
        );
        let file = folder
            .write("credentials.toml", &text)
            .display()
            .to_string();
        let topology = topology(front.address(), server_name);
        let solver = Solver::with(&folder, &topology, &["--credentials", &file]);
        let _ = await_policy(&folder, FRONTEND);
        let of = |name: &str, labels: &[(&str, &str)]| solver.metrics().sum(name, labels);
        if is_right {
            eventually(SOON, "the engine is seen up", || {
                (of("pointsman_solver_engine_up", &[("engine", "E1")]) == 1.0
                    && of("pointsman_solver_scrapes_total", &[("engine", "E1")]) >= 1.0)
                    .then_some(())
            });
            let requests = engine.requests();
            assert!(requests.len() >= 2);
            for request in requests {
                assert_eq!(request.header("authorization"), Some("Bearer sk-1"));
            }
        } else {
            let asked = engine.requests().len();
            let reason = [("engine", "E1"), ("reason", "tls")];
            eventually(SOON, "the error is counted", || {
                (of("pointsman_solver_scrape_errors_total", &reason) >= 1.0).then_some(())
            });
            assert!(
                !solver.metrics().has("pointsman_solver_engine_up"),
                "not judged"
            );
            assert_eq!(engine.requests().len(), asked, "it was asked nothing");
        }
    }
}
