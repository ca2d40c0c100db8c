//! TLS with clients: who is let in, and what a change of certificates may not disturb.

#![expect(clippy::unwrap_used, reason = "a test may end at any surprise")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pointsman_tests::both_drivers;
use pointsman_tests::client::{Client, End, chat};
use pointsman_tests::engine::{Engine, Gate};
use pointsman_tests::folder::Folder;
use pointsman_tests::policy::Draft;
use pointsman_tests::process::{Finished, run};
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::tls::{Authority, Leaf, SecureClient, greeting, replace};
use pointsman_tests::wait::{LONG, SOON, eventually};
use pointsman_tests::wire::Ending;

both_drivers!(
    curl_and_a_stream_pass_over_tls,
    client_certificates_are_asked_for_as_configured,
    each_name_gets_its_certificate,
    certificates_change_under_load_and_no_request_fails,
    a_slow_or_superfluous_handshake_is_closed,
    a_client_that_leaves_over_tls_frees_the_engine,
);

const FAILURES: &str = "pointsman_proxy_tls_failures_total";

/// Certificates on disk, and what `proxy.toml` says of them.
struct Files {
    folder: Folder,
    authority: Authority,
}

impl Files {
    fn new() -> Self {
        Self {
            folder: Folder::new(),
            authority: Authority::new("servers"),
        }
    }

    fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// TLS with one certificate for `proxy.test`; `more` is what `[tls]` says further.
    fn greeting(&self, more: &str) -> String {
        let _ = self
            .authority
            .leaf(&["proxy.test"])
            .write(self.dir(), "own");
        let dir = self.dir().display();
        format!(
            "listen_tls = [\"127.0.0.1:0\"]\n[tls]\n{more}\n[[tls.certificates]]\n\
             cert = \"{dir}/own.pem\"\nkey = \"{dir}/own.key\"\n"
        )
    }

    fn connect(&self, proxy: &Proxy) -> SecureClient {
        self.try_connect(proxy, None).unwrap()
    }

    fn try_connect(&self, proxy: &Proxy, shown: Option<&Leaf>) -> std::io::Result<SecureClient> {
        let greeting = greeting(&self.authority, shown);
        SecureClient::connect(proxy.secure(), &greeting, "proxy.test")
    }
}

fn curl(proxy: &Proxy, ca: &Path, arguments: &[&str]) -> Finished {
    let mut command = Command::new("curl");
    let port = proxy.secure().port();
    command
        .args([
            "--silent",
            "--show-error",
            "--no-buffer",
            "--max-time",
            "60",
        ])
        .args([
            "--http1.1",
            "--resolve",
            &format!("proxy.test:{port}:127.0.0.1"),
        ])
        .arg("--cacert")
        .arg(ca)
        .args(arguments)
        .arg(format!("https://proxy.test:{port}/v1/chat/completions"));
    run(command, LONG)
}

fn curl_and_a_stream_pass_over_tls(driver: Driver) {
    let engine = Engine::serving(|conn, _| {
        conn.stream_head();
        for _ in 0..50 {
            conn.chunk("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n");
        }
        conn.chunk(format!("data: {}\n\n", "x".repeat(200_000)));
        conn.end_stream();
    });
    let files = Files::new();
    let ca = files.folder.write("ca.pem", &files.authority.pem());
    let proxy = Proxy::configured(
        driver,
        &Draft::single(engine.address()),
        &files.greeting(""),
    );
    let body = format!(
        r#"{{"model":"m","stream":true,"x":"{}"}}"#,
        "y".repeat(100_000)
    );
    let sent = files.folder.write("body", &body);
    let finished = curl(
        &proxy,
        &ca,
        &["--data-binary", &format!("@{}", sent.display())],
    );
    assert_eq!(finished.code, 0, "{finished:?}");
    assert_eq!(finished.stdout.matches("\"content\":\"a\"").count(), 50);
    assert_eq!(finished.stdout.matches('x').count(), 200_050);
    assert_eq!(engine.requests()[0].text(), body);
    // A second connection takes the session up again, by a ticket.
    let greeting = greeting(&files.authority, None);
    for kind in ["full", "resumed"] {
        let mut client = SecureClient::connect(proxy.secure(), &greeting, "proxy.test").unwrap();
        assert_eq!(client.ask(chat(true)).unwrap().status(), 200);
        let handshakes = "pointsman_proxy_tls_handshakes_total";
        let expected = if kind == "full" { 2.0 } else { 1.0 };
        proxy.await_metric(handshakes, &[("side", "client"), ("kind", kind)], expected);
    }
    let other = curl(&proxy, &ca, &["--cacert", "/etc/hostname"]);
    assert_ne!(other.code, 0);
    proxy.await_rest();
}

fn client_certificates_are_asked_for_as_configured(driver: Driver) {
    let engine = Engine::named("E1");
    let clients = Authority::new("clients");
    let (right, wrong) = (
        clients.leaf(&["client.test"]),
        Authority::new("clients").leaf(&["client.test"]),
    );
    for (word, none_status) in [("required", None), ("optional", Some(200))] {
        let files = Files::new();
        let ca = files.folder.write("clients.pem", &clients.pem());
        let more = format!("client_auth = \"{word}\"\nclient_ca = \"{}\"", ca.display());
        let draft = Draft::single(engine.address());
        let proxy = Proxy::configured(driver, &draft, &files.greeting(&more));
        // With TLS 1.3 a client learns of a refusal only when it reads.
        let status = |shown: Option<&Leaf>| {
            let mut client = files.try_connect(&proxy, shown).ok()?;
            client.ask(chat(false)).ok().map(|answer| answer.status())
        };
        assert_eq!(status(Some(&right)), Some(200), "{word}");
        assert_eq!(status(None), none_status, "{word}");
        assert_eq!(status(Some(&wrong)), None, "{word}");
        let count = |reason: &str, expected| {
            proxy.await_metric(
                FAILURES,
                &[("side", "client"), ("reason", reason)],
                expected,
            );
        };
        count("unknown_authority", 1.0);
        count(
            "no_certificate",
            if none_status.is_none() { 1.0 } else { 0.0 },
        );
        proxy.await_rest();
    }
}

fn each_name_gets_its_certificate(driver: Driver) {
    let engine = Engine::named("E1");
    let files = Files::new();
    let other = files.authority.leaf(&["other.test", "*.wild.test"]);
    let (cert, key) = other.write(files.dir(), "other");
    let more = format!(
        "{}[[tls.certificates]]\ncert = \"{}\"\nkey = \"{}\"\n",
        files.greeting(""),
        cert.display(),
        key.display()
    );
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), &more);
    let greeting = greeting(&files.authority, None);
    let shown = |name: &str| {
        let client = SecureClient::connect(proxy.secure(), &greeting, name);
        client.map(|client| client.certificate())
    };
    assert_eq!(shown("other.test").unwrap(), other.der());
    assert_eq!(shown("a.wild.test").unwrap(), other.der());
    assert_ne!(shown("proxy.test").unwrap(), other.der());
    // The first of all is shown for an unknown name, and is not made for it.
    assert!(shown("unknown.test").is_err());
}

fn certificates_change_under_load_and_no_request_fails(driver: Driver) {
    let gate = Gate::new();
    let held = gate.clone();
    let engine = Engine::serving(move |conn, request| {
        if request.text().contains("true") {
            conn.stream_head();
            conn.chunk("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n");
            conn.wait_at(&held);
            conn.end_stream();
        } else {
            conn.respond(200, "{}");
        }
    });
    let files = Arc::new(Files::new());
    let draft = Draft::single(engine.address());
    let proxy = Proxy::configured(driver, &draft, &files.greeting(""));
    let mut stream = files.connect(&proxy);
    stream.send(chat(true)).unwrap();
    let mut streamed = stream.head().unwrap();
    let (stop, asked) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let address = proxy.secure();
    let load = (0..4).map(|_| {
        let (files, stop) = (Arc::clone(&files), Arc::clone(&stop));
        let asked = Arc::clone(&asked);
        std::thread::spawn(move || {
            let greeting = greeting(&files.authority, None);
            while !stop.load(Ordering::SeqCst) {
                let mut client = SecureClient::connect(address, &greeting, "proxy.test").unwrap();
                for _ in 0..3 {
                    assert_eq!(client.ask(chat(false)).unwrap().status(), 200);
                    asked.fetch_add(1, Ordering::SeqCst);
                }
            }
        })
    });
    let load: Vec<_> = load.collect();
    let reloads = "pointsman_proxy_secret_reloads_total";
    for year in 2031..2034 {
        let leaf = files.authority.leaf_until(&["proxy.test"], year, 3, 1);
        let _ = leaf.write(files.dir(), "own");
        eventually(SOON, "the new certificate is shown", || {
            (files.connect(&proxy).certificate() == leaf.der()).then_some(())
        });
    }
    proxy.await_metric(
        "pointsman_proxy_certificate_expiry_seconds",
        &[],
        1_993_248_000.0,
    );
    let before = files.connect(&proxy).certificate();
    replace(&files.dir().join("own.pem"), "no certificate");
    eventually(SOON, "the bad file is counted", || {
        let failed = proxy.metrics().sum(reloads, &[("outcome", "failed")]);
        (failed >= 1.0).then_some(())
    });
    assert_eq!(
        files.connect(&proxy).certificate(),
        before,
        "the last good one stays"
    );
    stop.store(true, Ordering::SeqCst);
    for thread in load {
        thread.join().unwrap();
    }
    gate.open();
    stream.body(&mut streamed);
    assert_eq!(
        streamed.ending,
        Ending::Complete,
        "the stream outlived all changes"
    );
    let asked = asked.load(Ordering::SeqCst) as f64;
    assert!(asked > 0.0);
    let answered = [("class", "m"), ("code", "200")];
    proxy.await_metric("pointsman_proxy_requests_total", &answered, asked + 1.0);
}

fn a_slow_or_superfluous_handshake_is_closed(driver: Driver) {
    let engine = Engine::named("E1");
    let files = Files::new();
    let more = format!(
        "{}[limits]\nhandshakes = 1\n[timeouts]\nhandshake_ms = 1500\n",
        files.greeting("")
    );
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), &more);
    let failures = |reason: &str| {
        let side = ("side", "client");
        proxy.metrics().sum(FAILURES, &[side, ("reason", reason)])
    };
    let mut silent = Client::connect(proxy.secure());
    silent.send([0x16, 0x03]);
    proxy.await_metric("pointsman_proxy_client_connections", &[], 1.0);
    assert_eq!(Client::connect(proxy.secure()).end(), End::Fin);
    assert_eq!(failures("too_many"), 1.0);
    assert!(matches!(silent.end(), End::Fin | End::Reset));
    assert_eq!(failures("timeout"), 1.0);
    // A request in the clear, as a mistaken client sends it.
    let mut clear = Client::connect(proxy.secure());
    clear.send(chat(false));
    eventually(SOON, "noise is named", || {
        (failures("not_tls") == 1.0).then_some(())
    });
    assert_eq!(
        files.connect(&proxy).ask(chat(false)).unwrap().status(),
        200
    );
    drop(clear);
    proxy.await_rest();
}

fn a_client_that_leaves_over_tls_frees_the_engine(driver: Driver) {
    let engine = Engine::silent();
    let files = Files::new();
    let draft = Draft::single(engine.address());
    let proxy = Proxy::configured(driver, &draft, &files.greeting(""));
    let mut client = files.connect(&proxy);
    client.send(chat(true)).unwrap();
    eventually(SOON, "the engine has it", || {
        (engine.requests().len() == 1).then_some(())
    });
    drop(client);
    eventually(SOON, "the engine is left", || {
        (engine.ended_by_peer() == 1).then_some(())
    });
    let cancelled = [("outcome", "client_cancel")];
    proxy.await_metric("pointsman_proxy_attempts_total", &cancelled, 1.0);
    proxy.await_rest();
}
