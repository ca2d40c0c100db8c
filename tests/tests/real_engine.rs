//! A real engine behind the proxy: llama.cpp's server on a tiny model, asked by the openai package
//! and by curl, read by the solver. And what those clients see of a stream that breaks.

#![expect(clippy::unwrap_used, reason = "a test may end at any surprise")]

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use pointsman_shm::engine_state::Health;
use pointsman_shm::policy::Protocol;
use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, Client, ask, post};
use pointsman_tests::engine::Engine;
use pointsman_tests::folder::Folder;
use pointsman_tests::locate::{python, python_program};
use pointsman_tests::policy::{Draft, FRONTEND};
use pointsman_tests::process::{Daemon, Finished, run};
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::solver::{Solver, await_policy, engine_states, llama};
use pointsman_tests::tls::{Authority, Front, FrontRules};
use pointsman_tests::wait::{LONG, SOON, eventually};

both_drivers!(
    the_openai_package_reads_the_same_text_as_straight_from_the_engine,
    the_openai_package_reads_the_same_text_over_tls_from_the_first_hop_to_the_last,
    the_openai_package_reads_the_same_text_from_an_http2_engine,
    curl_reads_the_same_text_as_straight_from_the_engine,
    b09_streams_back_to_back_all_succeed,
    a02_curl_and_the_openai_package_see_a_broken_stream_break,
    an_engine_killed_in_mid_stream_breaks_the_stream,
);

/// llama.cpp's server, and a proxy on it.
fn served(driver: Driver) -> (Daemon, SocketAddr, Proxy) {
    let folder = Folder::new();
    let (daemon, engine) = llama(&folder);
    let draft = Draft::new()
        .engine("L", engine)
        .route("tiny", &[("L", 1.0)]);
    let proxy = Proxy::start(driver, &draft);
    (daemon, engine, proxy)
}

fn the_openai_package_reads_the_same_text_as_straight_from_the_engine(driver: Driver) {
    let (_daemon, engine, proxy) = served(driver);
    let urls = [
        format!("http://{engine}"),
        format!("http://{}", proxy.address),
    ];
    let finished = python_run("compare.py", &urls);
    let said: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
    let expected = r#"{"compared":36,"models":["tiny"],"unknown":"model_not_found"}"#;
    assert_eq!(
        said,
        serde_json::from_str::<serde_json::Value>(expected).unwrap()
    );
    // The package closes a stream at `[DONE]`, so that the last chunk may miss it by a moment.
    let attempts = "pointsman_proxy_attempts_total";
    proxy.await_metric(attempts, &[], 36.0);
    let page = proxy.metrics();
    let of = |outcome| page.sum(attempts, &[("outcome", outcome)]);
    assert_eq!(of("success") + of("client_cancel"), 36.0, "{page:?}");
    proxy.await_rest();
}

fn the_openai_package_reads_the_same_text_over_tls_from_the_first_hop_to_the_last(driver: Driver) {
    let folder = Folder::new();
    let (_daemon, engine) = llama(&folder);
    let authority = Authority::new("servers");
    let ca = folder.write("ca.pem", &authority.pem());
    let front = Front::start(
        engine,
        &authority.leaf(&["engine.test"]),
        &FrontRules::default(),
    );
    let draft = Draft::new()
        .engine("L", front.address())
        .route("tiny", &[("L", 1.0)])
        .with(|policy| {
            policy.engines[0].protocol = Protocol::Http1Tls;
            policy.engines[0].sni = "engine.test".to_owned();
            policy.engines[0].credential = "gpu".to_owned();
        });
    let (cert, key) = authority.leaf(&["127.0.0.1"]).write(folder.path(), "own");
    let more = format!(
        "listen_tls = [\"127.0.0.1:0\"]\n[[tls.certificates]]\ncert = \"{}\"\nkey = \"{}\"\n\
         [credentials.gpu]\nca = \"{}\"\n",
        cert.display(),
        key.display(),
        ca.display()
    );
    let proxy = Proxy::configured(driver, &draft, &more);
    let urls = [
        format!("http://{engine}"),
        format!("https://{}", proxy.secure()),
    ];
    let mut command = Command::new(python());
    command
        .arg(python_program("compare.py"))
        .args(urls)
        .env("SSL_CERT_FILE", &ca);
    let finished = run(command, LONG);
    assert_eq!(finished.code, 0, "{finished:?}");
    let expected = r#"{"compared":36,"models":["tiny"],"unknown":"model_not_found"}"#;
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&finished.stdout).unwrap(),
        serde_json::from_str::<serde_json::Value>(expected).unwrap()
    );
    proxy.await_rest();
}

/// llama.cpp speaks no HTTP/2: a second proxy before it does, and is the engine of the first.
fn the_openai_package_reads_the_same_text_from_an_http2_engine(driver: Driver) {
    let (_daemon, engine, behind) = served(driver);
    let draft = Draft::new()
        .engine("P", behind.address)
        .route("tiny", &[("P", 1.0)])
        .http2();
    let proxy = Proxy::start(driver, &draft);
    let urls = [
        format!("http://{engine}"),
        format!("http://{}", proxy.address),
    ];
    let finished = python_run("compare.py", &urls);
    let expected = r#"{"compared":36,"models":["tiny"],"unknown":"model_not_found"}"#;
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&finished.stdout).unwrap(),
        serde_json::from_str::<serde_json::Value>(expected).unwrap()
    );
    behind.await_metric("pointsman_proxy_attempts_total", &[], 36.0);
    assert_eq!(
        behind
            .metrics()
            .sum("pointsman_proxy_client_connections", &[]),
        2.0
    );
    proxy.await_rest();
    behind.await_rest();
}

fn curl_reads_the_same_text_as_straight_from_the_engine(driver: Driver) {
    let (_daemon, engine, proxy) = served(driver);
    let body = r#"{"model":"tiny","stream":true,"max_tokens":40,"temperature":0,"seed":1,
        "messages":[{"role":"user","content":"the train takes its track"}]}"#;
    let texts: Vec<String> = [engine, proxy.address]
        .into_iter()
        .map(|address| {
            let finished = curl(address, &["-d", body]);
            assert_eq!(finished.code, 0, "{finished:?}");
            assert!(
                finished.stdout.ends_with("data: [DONE]\n\n"),
                "{}",
                finished.stdout
            );
            contents(&finished.stdout)
        })
        .collect();
    assert!(texts[0].len() > 40, "{texts:?}");
    assert_eq!(texts[0], texts[1]);
}

fn b09_streams_back_to_back_all_succeed(driver: Driver) {
    let (_daemon, _engine, proxy) = served(driver);
    let arguments = [proxy.address.to_string(), "8".to_owned(), "60".to_owned()];
    let finished = python_run("back_to_back.py", &arguments);
    assert_eq!(finished.stdout.trim(), r#"{"whole": 480}"#);
    proxy.await_rest();
}

fn a02_curl_and_the_openai_package_see_a_broken_stream_break(driver: Driver) {
    let event = r#"data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}"#;
    let engine = Engine::serving(move |conn, _| {
        conn.stream_head();
        for _ in 0..3 {
            conn.chunk(format!("{event}\n\n"));
        }
        // The connection ends, the chunked body does not.
        conn.close();
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let finished = curl(proxy.address, &["-d", r#"{"model":"m","stream":true}"#]);
    assert_eq!(finished.code, CURLE_PARTIAL_FILE, "{finished:?}");
    assert_eq!(contents(&finished.stdout), "aaa");
    let finished = python_run("broken.py", &[format!("http://{}", proxy.address)]);
    let said: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(said["pieces"], serde_json::json!(["a", "a", "a"]));
    assert_eq!(
        said["error"].as_array().unwrap().last().unwrap(),
        "object",
        "{said}"
    );
}

fn an_engine_killed_in_mid_stream_breaks_the_stream(driver: Driver) {
    let (mut daemon, _engine, proxy) = served(driver);
    let mut client = Client::connect(proxy.address);
    client.send(post(CHAT, LONG_ANSWER));
    let mut answer = client.head();
    client.read_ahead(400);
    daemon.kill();
    client.body(&mut answer);
    assert_eq!(answer.ending, pointsman_tests::wire::Ending::Broken);
    assert!(!answer.text().contains("[DONE]"));
    let broken = [("outcome", "mid_stream_reset")];
    proxy.await_metric("pointsman_proxy_attempts_total", &broken, 1.0);
    proxy.await_rest();
}

/// Some three thousand tokens, which take the engine about half a second.
const LONG_ANSWER: &str = r#"{"model":"tiny","stream":true,"max_tokens":3000,"messages":
    [{"role":"user","content":"tell me all"}]}"#;

#[test]
fn the_solver_reads_a_real_engines_health_and_load() {
    let folder = Folder::new();
    let (mut daemon, engine) = llama(&folder);
    let topology = format!(
        r#"
[solver]
tick_ms = 200
engine_state_ms = 100
scrape_ms = 100
scrape_timeout_ms = 90
demand = "configured"

[[frontends]]
name = "{FRONTEND}"
region = "a"

[[engines]]
name = "L"
region = "a"
kind = "llama"
models = ["tiny"]
address = "{engine}"
protocol = "http1"
capacity = {{ max_running = 8 }}

[[rtt]]
frontend = "{FRONTEND}"
engine = "L"
ms = 1

[[routes]]
name = "chat"
model = "tiny"
prompt_tokens = 50
output_tokens = 50

[[demand]]
frontend = "{FRONTEND}"
route = "chat"
priority = "default"
rps = 1
"#
    );
    let solver = Solver::start(&folder, &topology);
    let _ = await_policy(&folder, FRONTEND);
    let dir = folder.region_dir(FRONTEND);
    let state = || engine_states(&dir).and_then(|states| states.engines.first().copied());
    let idle = eventually(SOON, "the engine is seen idle", || {
        state().filter(|one| one.running == Some(0) && one.waiting == Some(0))
    });
    assert_eq!(idle.health, Health::Up);
    assert_eq!(
        solver
            .metrics()
            .sum("pointsman_solver_engine_up", &[("engine", "L")]),
        1.0
    );

    let over = AtomicBool::new(false);
    let busy = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(ask(engine, post(CHAT, LONG_ANSWER)).status(), 200);
                }
            });
        }
        let until = std::time::Instant::now() + LONG;
        let mut busy = None;
        while busy.is_none() && std::time::Instant::now() < until {
            busy = state().filter(|one| one.running.is_some_and(|running| running > 0));
        }
        over.store(true, Ordering::Relaxed);
        busy
    });
    assert!(
        busy.is_some(),
        "the engine served two streams and was never seen to"
    );

    daemon.kill();
    eventually(SOON, "the engine is seen down", || {
        let down = solver
            .metrics()
            .sum("pointsman_solver_engine_up", &[("engine", "L")])
            == 0.0;
        (down && state().is_some_and(|one| one.health == Health::Down)).then_some(())
    });
}

/// What curl calls a transfer that ended before its time.
const CURLE_PARTIAL_FILE: i32 = 18;

fn curl(address: SocketAddr, arguments: &[&str]) -> Finished {
    let mut command = Command::new("curl");
    command.args([
        "--silent",
        "--show-error",
        "--no-buffer",
        "--max-time",
        "60",
    ]);
    command
        .args(["--header", "Content-Type: application/json"])
        .args(arguments);
    command.arg(format!("http://{address}{CHAT}"));
    run(command, LONG)
}

/// Runs a program of `tests/llama` to a good end.
fn python_run(program: &str, arguments: &[String]) -> Finished {
    let mut command = Command::new(python());
    command.arg(python_program(program)).args(arguments);
    let finished = run(command, LONG);
    assert_eq!(finished.code, 0, "{program}: {finished:?}");
    finished
}

/// The text of a stream's deltas.
fn contents(stream: &str) -> String {
    let events = stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: {"));
    let text = |event: &str| {
        let event: serde_json::Value = serde_json::from_str(&format!("{{{event}")).unwrap();
        event["choices"][0]["delta"]["content"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    events.map(text).collect()
}
