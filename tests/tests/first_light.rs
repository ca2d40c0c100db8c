//! One weight's whole path and one request's: a topology becomes a policy, the policy becomes
//! shares of real requests, and what dies on the way takes nothing else with it.

#![expect(clippy::unwrap_used, reason = "a test may end at any surprise")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use pointsman_shm::policy::{Mode, Policy};
use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, Client, post, post_with};
use pointsman_tests::engine::{Engine, Refusing, What};
use pointsman_tests::folder::Folder;
use pointsman_tests::policy::{Draft, FRONTEND, published};
use pointsman_tests::process::Daemon;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::solver::{Solver, await_policy, command, mock_engine, weights};
use pointsman_tests::wait::{LONG, SOON, eventually};
use pointsman_tests::wire::Ending;

both_drivers!(
    requests_follow_the_weights_that_the_solver_computed,
    a_refused_connect_moves_to_the_standby_engine,
    requests_go_on_without_the_solver,
    a_rebooted_host_serves_by_the_copy_on_disk,
    policies_change_under_load_without_a_failed_request,
    no_request_leaves_its_eligible_set,
    b09_a_reused_connection_that_died_is_replaced,
);

/// Two engines, one near and too small: of 120 req/s planned, 100 stay and 20 travel.
fn topology(near: SocketAddr, far: SocketAddr, solver: &str) -> String {
    format!(
        r#"
[solver]
tick_ms = 200
engine_state_ms = 100
scrape_ms = 200
scrape_timeout_ms = 150
headroom = 1.0
demand = "configured"
{solver}

[[frontends]]
name = "{FRONTEND}"
region = "a"
hosts = 1

[[profiles]]
name = "flat"
kind = "mock"
points = [
    {{ utilisation = 0.0, ttft_ms = 200.0, tbot_ms = 0.0 }},
    {{ utilisation = 1.0, ttft_ms = 200.0, tbot_ms = 0.0 }},
]

[[engines]]
name = "near"
region = "a"
kind = "mock"
models = ["m"]
address = "{near}"
protocol = "http1"
capacity = {{ rps = 100, prompt_tokens = 50, output_tokens = 5 }}

[[engines]]
name = "far"
region = "b"
kind = "mock"
models = ["m"]
address = "{far}"
protocol = "http1"
capacity = {{ rps = 80, prompt_tokens = 50, output_tokens = 5 }}

[[rtt]]
frontend = "{FRONTEND}"
engine = "near"
ms = 2

[[rtt]]
frontend = "{FRONTEND}"
engine = "far"
ms = 35

[[routes]]
name = "chat"
model = "m"
prompt_tokens = 50
output_tokens = 5

[[demand]]
frontend = "{FRONTEND}"
route = "chat"
priority = "default"
rps = 120
"#
    )
}

/// Two mock engines, a solver that plans for them and a proxy that serves by its policy.
struct World {
    near: Daemon,
    _far: Daemon,
    solver: Solver,
    topology: String,
    proxy: Proxy,
}

fn world(driver: Driver) -> World {
    let folder = Folder::new();
    let engine = |name: &str| {
        let arguments = ["--listen", "127.0.0.1:0", "--name", name, "--model", "m"];
        mock_engine(&folder, name, &arguments)
    };
    let ((near, near_address), (far, far_address)) = (engine("near"), engine("far"));
    let topology = topology(near_address, far_address, "");
    let solver = Solver::start(&folder, &topology);
    let _ = await_policy(&folder, FRONTEND);
    let proxy = Proxy::without_policy(folder, driver, "");
    proxy.await_ready();
    World {
        near,
        _far: far,
        solver,
        topology,
        proxy,
    }
}

fn requests_follow_the_weights_that_the_solver_computed(driver: Driver) {
    const REQUESTS: usize = 1_200;
    let world = world(driver);
    let policy = published(&world.proxy.folder().region_dir(FRONTEND)).unwrap();
    let planned: BTreeMap<String, f64> = weights(&policy).into_iter().collect();
    assert_eq!(planned.len(), 2);
    assert!((planned["far"] - 20.0 / 120.0).abs() < 1e-6, "{planned:?}");
    let mut client = world.proxy.connect();
    let mut far = 0;
    for number in 0..REQUESTS {
        far += usize::from(answered_by(&mut client, number) == "far");
    }
    // Keys fall like dice: five standard deviations of the binomial either way.
    let deviation = (REQUESTS as f64 * (1.0 / 6.0) * (5.0 / 6.0)).sqrt();
    let off = (far as f64 - REQUESTS as f64 / 6.0).abs();
    assert!(
        off < 5.0 * deviation,
        "{far} of {REQUESTS} requests went far, planned a sixth"
    );
    // The same conversation stays where it is.
    let homes: Vec<String> = (0..20).map(|_| answered_by(&mut client, 7)).collect();
    assert!(homes.iter().all(|home| *home == homes[0]), "{homes:?}");
    world.proxy.await_metric(
        "pointsman_proxy_requests_total",
        &[],
        (REQUESTS + 20) as f64,
    );
    // And its signals reach the solver.
    eventually(SOON, "the solver's scrapes show both engines up", || {
        let up = world
            .solver
            .metrics()
            .sum("pointsman_solver_engine_up", &[]);
        (up == 2.0).then_some(())
    });
}

/// Streams one answer, and returns the name of the engine that gave it. Each number is a
/// conversation of its own.
fn answered_by(client: &mut Client, number: usize) -> String {
    let body = format!(
        r#"{{"model":"m","stream":true,"max_tokens":2,"messages":[{{"role":"user","content":"hello {number}"}}]}}"#
    );
    client.send(post(CHAT, body));
    let answer = client.response();
    assert_eq!((answer.status(), answer.ending), (200, Ending::Complete));
    assert!(
        answer.text().ends_with("data: [DONE]\n\n"),
        "{}",
        answer.text()
    );
    answer
        .header("x-mock-engine")
        .expect("a mock engine says its name")
        .to_owned()
}

fn a_refused_connect_moves_to_the_standby_engine(driver: Driver) {
    let refusing = Refusing::new();
    let standby = Engine::named("E2");
    let draft = Draft::with_standby(refusing.address(), standby.address());
    let proxy = Proxy::start(driver, &draft);
    let mut client = proxy.connect();
    for _ in 0..20 {
        client.send(post(CHAT, r#"{"model":"m"}"#));
        assert_eq!(client.response().text(), r#"{"engine":"E2"}"#);
    }
    let refused = [("engine", "E1"), ("outcome", "connect_refused")];
    assert!(
        proxy
            .metrics()
            .sum("pointsman_proxy_attempts_total", &refused)
            >= 1.0
    );
    // With nobody standing by the client is told at once, and why.
    let alone = Proxy::start(driver, &Draft::single(refusing.address()));
    let answer = alone.ask(post(CHAT, r#"{"model":"m"}"#));
    let code = answer.json()["error"]["code"].as_str().unwrap().to_owned();
    assert_eq!(
        (answer.status(), code.as_str()),
        (503, "engine_unreachable")
    );
    assert!(answer.header("retry-after").is_some());
}

fn requests_go_on_without_the_solver(driver: Driver) {
    let mut world = world(driver);
    let dir = world.proxy.folder().region_dir(FRONTEND);
    let mut client = world.proxy.connect();
    let homes: Vec<String> = (0..50)
        .map(|number| answered_by(&mut client, number))
        .collect();
    let before = published(&dir).unwrap();

    world.solver.daemon.kill();
    for (number, home) in homes.iter().enumerate() {
        assert_eq!(
            answered_by(&mut client, number),
            *home,
            "conversation {number} moved"
        );
    }

    world.solver = Solver::start(world.proxy.folder(), &world.topology);
    let after = eventually(LONG, "the new solver publishes", || {
        published(&dir).filter(|policy| policy.version > before.version)
    });
    assert!(after.epoch >= before.epoch);
    assert_eq!(
        tables(&after),
        tables(&before),
        "a restart moved conversations"
    );
    let version = after.version as f64;
    eventually(SOON, "the proxy runs by it", || {
        let runs = world
            .proxy
            .metrics()
            .sum("pointsman_proxy_policy_version", &[]);
        (runs >= version).then_some(())
    });
    for (number, home) in homes.iter().enumerate() {
        assert_eq!(
            answered_by(&mut client, number),
            *home,
            "conversation {number} moved"
        );
    }

    // Without solver and without the near engine: whatever was there goes to the other.
    assert_eq!(world.solver.daemon.terminate(SOON).code(), Some(0));
    world.near.kill();
    for number in 0..homes.len() {
        assert_eq!(answered_by(&mut client, number), "far");
    }
}

/// Everything about a policy's engines and classes that a request's way depends on.
fn tables(policy: &Policy) -> Vec<(u16, u32, Vec<u16>)> {
    let table = |class: &pointsman_shm::policy::Class| class.table.iter().map(|s| s.0).collect();
    policy
        .classes
        .iter()
        .map(|c| (c.slot.0, c.generation.0, table(c)))
        .collect()
}

fn a_rebooted_host_serves_by_the_copy_on_disk(driver: Driver) {
    let (near, far) = (Engine::named("near"), Engine::named("far"));
    let folder = Folder::new();
    let text = topology(near.address(), far.address(), "");
    let mut solver = Solver::start(&folder, &text);
    let before = await_policy(&folder, FRONTEND);
    assert_eq!(solver.daemon.terminate(SOON).code(), Some(0));
    // A reboot empties what is on tmpfs, and the control plane is not back yet.
    std::fs::remove_dir_all(folder.region_dir(FRONTEND)).unwrap();
    let proxy = Proxy::without_policy(folder, driver, "");
    proxy.await_ready();
    proxy.await_metric("pointsman_proxy_policy_rung", &[("rung", "disk")], 1.0);
    assert_eq!(proxy.ask(post(CHAT, r#"{"model":"m"}"#)).status(), 200);
    // It comes back with a higher version, which the proxy takes.
    let _solver = Solver::start(proxy.folder(), &text);
    eventually(LONG, "the proxy runs by a newer policy", || {
        let runs = proxy.metrics().sum("pointsman_proxy_policy_version", &[]);
        (runs > before.version as f64).then_some(())
    });
    proxy.await_metric("pointsman_proxy_policy_rung", &[("rung", "fresh")], 1.0);
    let after = published(&proxy.folder().region_dir(FRONTEND)).unwrap();
    assert_eq!(
        tables(&after),
        tables(&before),
        "a reboot moved conversations"
    );
}

fn policies_change_under_load_without_a_failed_request(driver: Driver) {
    let (one, other) = (Engine::named("E1"), Engine::named("E2"));
    let both = Draft::new()
        .engine("E1", one.address())
        .engine("E2", other.address());
    let drafts = [
        both.clone().route("m", &[("E1", 1.0), ("E2", 0.0)]),
        both.clone().route("m", &[("E1", 0.5), ("E2", 0.5)]),
        // An engine that is no longer there at all, while requests to it are under way.
        Draft::new()
            .engine("E1", one.address())
            .route("m", &[("E1", 1.0)]),
        both.route("m", &[("E1", 0.0), ("E2", 1.0)]),
    ];
    let mut proxy = Proxy::configured(driver, &drafts[0], "shards = 2\n");
    let address = proxy.address;
    let over = std::sync::atomic::AtomicBool::new(false);
    let served: usize = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let over = &over;
                scope.spawn(move || {
                    let mut client = Client::connect(address);
                    let mut served = 0;
                    while !over.load(std::sync::atomic::Ordering::Relaxed) {
                        let opening = format!("{worker} {served}");
                        let body = format!(r#"{{"model":"m","prompt_cache_key":"{opening}"}}"#);
                        client.send(post(CHAT, body));
                        assert_eq!(client.response().status(), 200);
                        served += 1;
                    }
                    served
                })
            })
            .collect();
        for _ in 0..50 {
            for draft in &drafts {
                proxy.publisher.as_mut().unwrap().publish(draft);
            }
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .sum()
    });
    assert!(served > 0);
    proxy.await_metric("pointsman_proxy_policy_version", &[], 201.0);
    proxy.await_metric("pointsman_proxy_policy_running_version", &[], 201.0);
    let before = other.requests().len();
    for _ in 0..20 {
        assert_eq!(
            proxy.ask(post(CHAT, r#"{"model":"m"}"#)).text(),
            r#"{"engine":"E2"}"#
        );
    }
    assert_eq!(other.requests().len(), before + 20);
    proxy.await_metric("pointsman_proxy_policy_rejected_total", &[], 0.0);
    proxy.await_rest();
}

fn no_request_leaves_its_eligible_set(driver: Driver) {
    let refusing = Refusing::new();
    let forbidden = Engine::named("forbidden");
    let draft = Draft::new()
        .engine("E1", refusing.address())
        .engine("E2", forbidden.address())
        .route("m", &[("E1", 1.0)])
        .route("n", &[("E2", 1.0)]);
    let proxy = Proxy::start(driver, &draft);
    for _ in 0..10 {
        assert_eq!(proxy.ask(post(CHAT, r#"{"model":"m"}"#)).status(), 503);
    }
    assert_eq!(forbidden.connections(), 0);
    assert_eq!(proxy.ask(post(CHAT, r#"{"model":"n"}"#)).status(), 200);
}

fn b09_a_reused_connection_that_died_is_replaced(driver: Driver) {
    // Each connection answers once, and is then ended in a way of its own turn.
    let engine = Engine::start(|conn| {
        let Some(_) = conn.request() else { return };
        conn.respond(200, "{}");
        match conn.number % 4 {
            // FIN is there before the connection is wanted again.
            0 => conn.close(),
            // FIN or RST comes when the next request is already on its way.
            1 => {
                conn.request();
                conn.close();
            }
            2 => {
                conn.request();
                conn.reset();
            }
            _ => conn.reset(),
        }
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut client = proxy.connect();
    for number in 0..40 {
        client.send(post_with(
            CHAT,
            &format!("X-Number: {number}\r\n"),
            r#"{"model":"m"}"#,
        ));
        assert_eq!(client.response().status(), 200, "request {number}");
        // Lets the engine's end arrive first where it comes by itself; right either way.
        std::thread::sleep(Duration::from_millis(5));
    }
    let outcome = |outcome| [("outcome", outcome)];
    proxy.await_metric("pointsman_proxy_attempts_total", &outcome("success"), 40.0);
    proxy.await_metric("pointsman_proxy_attempts_total", &[], 40.0);
    proxy.await_metric("pointsman_proxy_retries_total", &[], 0.0);
    let replays = proxy
        .metrics()
        .sum("pointsman_proxy_connection_replays_total", &[]);
    assert!(replays >= 10.0, "{replays} replays");
    // A fresh connection that breaks is a failure, and is told.
    let broken = Engine::start(|conn| {
        conn.request();
        conn.reset();
    });
    let proxy = Proxy::start(driver, &Draft::single(broken.address()));
    assert_eq!(proxy.ask(post(CHAT, r#"{"model":"m"}"#)).status(), 502);
    assert_eq!(broken.count(|what| matches!(what, What::Request(_))), 1);
}

#[test]
fn in_observe_mode_the_operators_weights_are_published_to_the_bit() {
    let (near, far) = (Engine::named("near"), Engine::named("far"));
    let own = [("far", 0.7), ("near", 0.3)];
    let text = format!(
        "{}\n[[weights]]\nfrontend = \"{FRONTEND}\"\nroute = \"chat\"\n\
         weights = {{ near = {}, far = {} }}\n",
        topology(near.address(), far.address(), "mode = \"observe\""),
        own[1].1,
        own[0].1,
    );
    let folder = Folder::new();
    let _solver = Solver::start(&folder, &text);
    let policy = await_policy(&folder, FRONTEND);
    assert_eq!(policy.classes[0].mode, Mode::Observe);
    let mut weights = weights(&policy);
    weights.sort_by(|one, other| one.0.cmp(&other.0));
    let bits: Vec<(&str, u64)> = weights
        .iter()
        .map(|(id, w)| (id.as_str(), w.to_bits()))
        .collect();
    assert_eq!(
        bits,
        own.map(|(id, weight): (&str, f64)| (id, weight.to_bits()))
    );
    // The table follows them to within one slot.
    let near_slot = policy
        .engines
        .iter()
        .find(|engine| engine.id == "near")
        .unwrap()
        .slot;
    let table = &policy.classes[0].table;
    let share = table.iter().filter(|slot| **slot == near_slot).count() as f64;
    assert!(
        (share - 0.3 * table.len() as f64).abs() <= 1.0,
        "{share} of {}",
        table.len()
    );
    // And `plan` says what the solver would do instead.
    let file = folder.path().join("topology.toml");
    let plan = command(&["plan", file.to_str().unwrap(), "--json"]);
    let plan: serde_json::Value = serde_json::from_str(&plan.stdout).unwrap();
    let would = plan["routes"][0]["weights"].as_array().unwrap();
    let near = would
        .iter()
        .find(|weight| weight["engine"] == "near")
        .unwrap();
    let rate = near["rate_rps"].as_f64().unwrap();
    assert!((rate - 100.0).abs() < 1e-4, "{plan}");
}
