//! The process from outside: its ready line, its admin pages, its exit codes and its complaints.
//!
//! Entries G11, J01 and J06 of the list of known failures, as far as the process itself goes.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use pointsman_tests::client::{Client, chat, get, post};
use pointsman_tests::engine::Engine;
use pointsman_tests::folder::Folder;
use pointsman_tests::policy::{Draft, FRONTEND};
use pointsman_tests::process::{Daemon, Finished, run};
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{SOON, eventually_equals};

fn command(folder: &Folder, words: &[&str], listen: &str, more: &str) -> Command {
    let text = format!(
        "frontend = \"{FRONTEND}\"\nlisten = [{listen}]\nrun_dir = \"{}\"\n\
         state_dir = \"{}\"\n{more}",
        folder.run_dir().display(),
        folder.state_dir().display(),
    );
    let config = folder.write("proxy.toml", &text);
    let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman-proxy"));
    command.args(words).arg("--config").arg(config);
    command
}

fn ends(words: &[&str], listen: &str, more: &str) -> Finished {
    let folder = Folder::new();
    run(command(&folder, words, listen, more), SOON)
}

#[test]
fn the_ready_line_has_the_real_addresses() {
    let folder = Folder::new();
    let more = "admin = \"127.0.0.1:0\"\nshards = 3\nio_driver = \"epoll\"\n";
    let listen = "\"127.0.0.1:0\", \"[::1]:0\"";
    let command = command(&folder, &["run"], listen, more);
    let mut daemon = Daemon::start("pointsman-proxy", command, folder.path().join("proxy.log"));
    let ready = daemon.ready().clone();
    let keys: Vec<&String> = ready.as_object().unwrap().keys().collect();
    let expected = [
        "admin",
        "io_driver",
        "listen",
        "listen_tls",
        "pid",
        "ready",
        "shards",
    ];
    let mut sorted = keys.clone();
    sorted.sort();
    assert_eq!(sorted, expected);
    assert_eq!(
        (&ready["shards"], &ready["io_driver"]),
        (&3.into(), &"epoll".into())
    );
    let address =
        |value: &serde_json::Value| value.as_str().unwrap().parse::<SocketAddr>().unwrap();
    let admin = address(&ready["admin"]);
    let listens: Vec<SocketAddr> = ready["listen"]
        .as_array()
        .unwrap()
        .iter()
        .map(address)
        .collect();
    assert_eq!(listens.len(), 2);
    for address in listens {
        assert_ne!(address.port(), 0);
        let mut client = Client::connect(address);
        client.send(chat(false));
        assert_eq!(client.response().status(), 503, "{address}");
    }
    assert_eq!(get(admin, "/healthz").status(), 200);
    assert_eq!(daemon.terminate(SOON).code(), Some(0));
}

#[test]
fn every_shard_listens_on_every_address() {
    let engine = Engine::named("only");
    let draft = Draft::single(engine.address());
    let proxy = Proxy::configured(Driver::Epoll, &draft, "shards = 4\npin = true\n");
    let mut clients: Vec<Client> = (0..64).map(|_| proxy.connect()).collect();
    for client in &mut clients {
        client.send(chat(false));
        assert_eq!(client.response().status(), 200);
    }
    proxy.await_metric("pointsman_proxy_client_connections", &[], 64.0);
    proxy.await_metric("pointsman_proxy_shards", &[], 4.0);
    // All shards run the policy; the oldest version that one runs is the newest.
    proxy.await_metric("pointsman_proxy_policy_running_version", &[], 1.0);
    drop(clients);
    proxy.await_rest();
}

#[test]
fn what_keeps_it_from_starting_is_said() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let finished = ends(
        &["run"],
        &format!("\"{address}\""),
        "admin = \"127.0.0.1:0\"\n",
    );
    assert_eq!((finished.code, finished.stdout.as_str()), (1, ""));
    let expected = format!("cannot listen on {address}: Address already in use");
    assert!(finished.stderr.contains(&expected), "{}", finished.stderr);
    let finished = ends(
        &["run"],
        "\"127.0.0.1:0\"",
        &format!("admin = \"{address}\"\n"),
    );
    let expected = format!("cannot listen on the admin address {address}: Address already in use");
    assert!(finished.stderr.contains(&expected), "{}", finished.stderr);
    let finished = ends(&["run"], "\"127.0.0.1:0\"", "io_drivers = \"epoll\"\n");
    assert_eq!(finished.code, 1);
    assert!(
        finished
            .stderr
            .contains("proxy.toml:5: unknown field `io_drivers`"),
        "{finished:?}"
    );
}

#[test]
fn check_tells_good_from_bad_and_runs_nothing() {
    let good = ends(&["check"], "\"127.0.0.1:0\"", "shards = 2\n");
    assert_eq!(good.code, 0, "{good:?}");
    let text = "good: frontend `A`, 2 shards, listening on 127.0.0.1:0\n";
    assert!(good.stdout.ends_with(text), "{}", good.stdout);
    let bad = ends(&["check"], "\"127.0.0.1:0\"", "[limits]\nheaders = 7\n");
    assert_eq!((bad.code, bad.stdout.as_str()), (1, ""));
    let text = "proxy.toml:6: `limits.headers` is `7`; allowed: 8 to 256\n";
    assert!(bad.stderr.ends_with(text), "{}", bad.stderr);
}

#[test]
fn a_second_signal_in_the_predrain_ends_at_once() {
    let engine = Engine::named("only");
    let draft = Draft::single(engine.address());
    let mut proxy = Proxy::configured(Driver::Epoll, &draft, "predrain_s = 3600\n");
    proxy.daemon.signal(libc::SIGINT);
    eventually_equals(SOON, "/readyz", &503, || {
        get(proxy.admin, "/readyz").status()
    });
    assert_eq!(
        proxy.ask(chat(false)).status(),
        200,
        "the predrain still serves"
    );
    proxy.daemon.signal(libc::SIGTERM);
    assert_eq!(proxy.daemon.exit(SOON).code(), Some(4));
}

#[test]
fn j06_silent_peers_do_not_keep_a_probe_waiting_for_ever() {
    let engine = Engine::named("only");
    let proxy = Proxy::start(Driver::Epoll, &Draft::single(engine.address()));
    let silent: Vec<TcpStream> = (0..40)
        .map(|_| TcpStream::connect(proxy.admin).unwrap())
        .collect();
    for _ in 0..20 {
        assert_eq!(get(proxy.admin, "/healthz").status(), 200);
    }
    drop(silent);
    assert_eq!(get(proxy.admin, "/nothing").status(), 404);
}

#[test]
fn g11_unknown_models_share_one_series() {
    let engine = Engine::named("only");
    let proxy = Proxy::start(Driver::Epoll, &Draft::single(engine.address()));
    let mut client = proxy.connect();
    let mut ask = |model: &str| {
        let body = serde_json::json!({ "model": model, "messages": [] }).to_string();
        client.send(post("/v1/chat/completions", &body));
        assert_eq!(client.response().status(), 404, "{model}");
    };
    ask("first");
    let requests = "pointsman_proxy_requests_total";
    let unmatched = [("class", ""), ("code", "404")];
    proxy.await_metric(requests, &unmatched, 1.0);
    let before = proxy.metrics().samples().len();
    for n in 0..2_000 {
        ask(&format!("a\"b\\c\nmodel {n}"));
    }
    proxy.await_metric(requests, &unmatched, 2_001.0);
    assert_eq!(proxy.metrics().samples().len(), before);
}
