//! The optimiser at the wheel: inputs that cannot be believed, orders and restarts, each under load
//! that must not notice.

#![expect(clippy::unwrap_used, reason = "a test may end at any surprise")]
#![expect(
    clippy::print_stdout,
    reason = "what was sent and found stands beside the verdict"
)]

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pointsman_shm::policy::Policy;
use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, Client, post, post_with};
use pointsman_tests::engine::Engine;
use pointsman_tests::folder::Folder;
use pointsman_tests::locate::binary;
use pointsman_tests::policy::{FRONTEND, published};
use pointsman_tests::process::{self, Finished};
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::solver::{Solver, await_policy, weights};
use pointsman_tests::wait::{LONG, SOON, eventually};

const SIGHUP: i32 = 1;
const NAMES: [&str; 4] = ["E1", "E2", "E3", "E4"];

both_drivers!(
    half_the_engines_unscrapable_hold_the_weights_and_fail_no_request,
    an_emptied_or_broken_topology_changes_nothing_under_load,
    zeroed_pages_of_demand_hold_the_weights_and_fail_no_request,
    a_killed_solver_keeps_a_drain_and_every_slot,
    a_hot_key_is_found_from_signal_pages_and_named,
);

/// An engine that can be made deaf to probes and scrapes while it serves.
struct Served {
    engine: Engine,
    deaf: Arc<AtomicBool>,
    requests: Arc<AtomicUsize>,
}

impl Served {
    fn start(name: &str) -> Self {
        let deaf = Arc::new(AtomicBool::new(false));
        let requests = Arc::new(AtomicUsize::new(0));
        let body = format!(r#"{{"engine":"{name}"}}"#);
        let (is_deaf, count) = (deaf.clone(), requests.clone());
        let engine = Engine::serving(move |conn, request| {
            if request.target().0 == "POST" {
                count.fetch_add(1, Ordering::SeqCst);
                conn.respond(200, &body);
            } else if is_deaf.load(Ordering::SeqCst) {
                conn.reset();
            } else {
                conn.respond(200, "vllm:num_requests_running 1\n");
            }
        });
        Self {
            engine,
            deaf,
            requests,
        }
    }

    fn served(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Four engines, a solver that plans for them and a proxy that serves by its policy.
struct World {
    engines: Vec<Served>,
    solver: Option<Solver>,
    proxy: Proxy,
    settings: &'static str,
}

/// One frontend and the engines named, each of which can do a third of the demand.
fn topology(engines: &[Served], names: &[&str], settings: &str) -> String {
    let mut text = format!(
        "[solver]\ntick_ms = 200\nengine_state_ms = 100\nscrape_ms = 200\n\
         scrape_timeout_ms = 150\nheadroom = 1.0\n{settings}\n\
         [[frontends]]\nname = \"{FRONTEND}\"\nregion = \"a\"\nhosts = 1\n\
         [[routes]]\nname = \"chat\"\nmodel = \"m\"\nprompt_tokens = 50\noutput_tokens = 5\n\
         [[demand]]\nfrontend = \"{FRONTEND}\"\nroute = \"chat\"\npriority = \"default\"\n\
         rps = 300\n"
    );
    for (at, (name, served)) in NAMES.iter().zip(engines).enumerate() {
        if !names.contains(name) {
            continue;
        }
        let (address, ms) = (served.engine.address(), 2 + 3 * at);
        text += &format!(
            "[[engines]]\nname = \"{name}\"\nregion = \"a\"\nkind = \"mock\"\nmodels = [\"m\"]\n\
             address = \"{address}\"\nprotocol = \"http1\"\n\
             capacity = {{ rps = 100, prompt_tokens = 50, output_tokens = 5 }}\n\
             [[rtt]]\nfrontend = \"{FRONTEND}\"\nengine = \"{name}\"\nms = {ms}\n"
        );
    }
    text
}

impl World {
    fn start(driver: Driver, settings: &'static str) -> Self {
        let folder = Folder::new();
        let engines: Vec<Served> = NAMES.iter().map(|name| Served::start(name)).collect();
        let solver = Solver::start(&folder, &topology(&engines, &NAMES, settings));
        let _ = await_policy(&folder, FRONTEND);
        let proxy = Proxy::without_policy(folder, driver, "");
        proxy.await_ready();
        let world = Self {
            engines,
            solver: Some(solver),
            proxy,
            settings,
        };
        eventually(SOON, "all engines seen", || {
            let up = world
                .solver()
                .metrics()
                .sum("pointsman_solver_engine_up", &[]);
            (up == 4.0).then_some(())
        });
        world
    }

    fn solver(&self) -> &Solver {
        self.solver.as_ref().unwrap()
    }

    fn policy(&self) -> Policy {
        published(&self.proxy.folder().region_dir(FRONTEND)).unwrap()
    }

    fn weights(&self) -> BTreeMap<String, f64> {
        weights(&self.policy()).into_iter().collect()
    }

    /// Engine names by slot of the table.
    fn table(&self) -> Vec<String> {
        let policy = self.policy();
        let name = |slot| {
            let engine = policy.engines.iter().find(|engine| engine.slot == slot);
            engine.unwrap().id.clone()
        };
        policy.classes[0]
            .table
            .iter()
            .map(|slot| name(*slot))
            .collect()
    }

    fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let name = format!("pointsman_solver_{name}");
        self.solver().metrics().sum(&name, labels)
    }

    /// Waits until the proxy runs by what stands published.
    fn adopted(&self) {
        eventually(SOON, "the proxy runs by the newest policy", || {
            let runs = self
                .proxy
                .metrics()
                .sum("pointsman_proxy_policy_version", &[]);
            (runs >= self.policy().version as f64).then_some(())
        });
    }

    fn command(&self, arguments: &[&str]) -> Finished {
        let mut command = Command::new(binary("pointsman-solver"));
        command.args(arguments);
        command.arg("--run-dir").arg(self.proxy.folder().run_dir());
        process::run(command, SOON)
    }

    fn restart(&mut self) {
        let text = topology(&self.engines, &NAMES, self.settings);
        let before = self.policy().version;
        self.solver = Some(Solver::start(self.proxy.folder(), &text));
        eventually(LONG, "the new solver publishes", || {
            (self.policy().version > before).then_some(())
        });
        self.adopted();
    }

    /// Sends requests, each a conversation of its own, while `during` runs; all of them must be
    /// answered. Returns how many there were.
    fn under_load(&self, during: impl FnOnce()) -> usize {
        let over = AtomicBool::new(false);
        let address = self.proxy.address;
        std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                let mut client = Client::connect(address);
                let mut sent = 0;
                while !over.load(Ordering::SeqCst) {
                    client.send(post(CHAT, conversation(sent)));
                    let answer = client.response();
                    assert_eq!(answer.status(), 200, "request {sent}: {}", answer.text());
                    sent += 1;
                    std::thread::sleep(std::time::Duration::from_millis(3));
                }
                sent
            });
            // A failure here must end the load, too.
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(during));
            over.store(true, Ordering::SeqCst);
            let sent = load.join().unwrap();
            if let Err(panic) = ended {
                std::panic::resume_unwind(panic);
            }
            assert!(sent > 0);
            sent
        })
    }
}

fn conversation(number: usize) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hello {number}"}}]}}"#)
}

fn status(solver: &Solver) -> serde_json::Value {
    pointsman_tests::client::get(solver.admin, "/status").json()
}

fn half_the_engines_unscrapable_hold_the_weights_and_fail_no_request(driver: Driver) {
    let world = World::start(driver, "demand = \"configured\"");
    let held = |world: &World| world.metric("gate_holding", &[("reason", "engines_vanished")]);
    let sent = world.under_load(|| {
        // The gate believes proxies only that lately succeeded.
        let seen = || world.engines.iter().all(|one| one.served() > 3);
        eventually(SOON, "requests everywhere", || seen().then_some(()));
        let ticks = world.metric("ticks_total", &[]);
        eventually(SOON, "passes that saw them", || {
            (world.metric("ticks_total", &[]) > ticks + 3.0).then_some(())
        });
        let before = world.weights();
        for served in &world.engines[..2] {
            served.deaf.store(true, Ordering::SeqCst);
        }
        eventually(SOON, "the gate holds", || {
            (held(&world) == 1.0).then_some(())
        });
        let reason = status(world.solver())["held"][0].clone();
        assert_eq!(reason["reason"], "engines_vanished");
        assert!(
            reason["detail"]
                .as_str()
                .unwrap()
                .contains("2 of 4 engines"),
            "{reason}"
        );
        let said = world.command(&["status"]);
        assert!(
            said.stdout.starts_with("HELD engines_vanished"),
            "{}",
            said.stdout
        );
        let ticks = world.metric("ticks_total", &[]);
        eventually(SOON, "ten more passes", || {
            assert_eq!(world.weights(), before);
            (world.metric("ticks_total", &[]) > ticks + 10.0).then_some(())
        });
        for served in &world.engines[..2] {
            served.deaf.store(false, Ordering::SeqCst);
        }
        eventually(SOON, "the end of the hold", || {
            (held(&world) == 0.0).then_some(())
        });
        assert_eq!(world.weights(), before);
    });
    println!("{sent} requests, none failed");
    world
        .proxy
        .await_metric("pointsman_proxy_retries_total", &[], 0.0);
}

fn an_emptied_or_broken_topology_changes_nothing_under_load(driver: Driver) {
    let world = World::start(driver, "demand = \"configured\"");
    let folder = world.proxy.folder();
    let full = topology(&world.engines, &NAMES, world.settings);
    let refused = || world.metric("topology_reloads_total", &[("outcome", "refused")]);
    let sent = world.under_load(|| {
        let seen = || world.engines.iter().all(|one| one.served() > 3);
        eventually(SOON, "requests everywhere", || seen().then_some(()));
        let ticks = world.metric("ticks_total", &[]);
        eventually(SOON, "passes that saw them", || {
            (world.metric("ticks_total", &[]) > ticks + 3.0).then_some(())
        });
        let (before, table) = (world.weights(), world.table());
        let last = topology(&world.engines, &NAMES[..1], world.settings);
        let none = topology(&world.engines, &[], world.settings);
        let broken = full.replace("headroom = 1.0", "headroom = 7.5");
        let cases = [
            ("", "topology.toml"),
            (broken.as_str(), "headroom"),
            (none.as_str(), "engine"),
            (last.as_str(), "topology_shrunk"),
        ];
        for (count, (text, reason)) in cases.into_iter().enumerate() {
            let _ = folder.write("topology.toml", text);
            world.solver().daemon.signal(SIGHUP);
            eventually(SOON, "a refusal", || {
                (refused() > count as f64).then_some(())
            });
            let reload = status(world.solver())["reload"].clone();
            assert_eq!(reload["taken"], false, "{reload}");
            assert!(reload["lines"].to_string().contains(reason), "{reload}");
            assert_eq!(world.weights(), before, "{reason}");
            assert_eq!(world.table(), table, "{reason}");
        }
        assert!(world.metric("gate_holds_total", &[("reason", "topology_shrunk")]) >= 1.0);
        let said = world.command(&["reload"]);
        assert!(said.stderr.contains("topology_shrunk"), "{}", said.stderr);
        // The good file again is no change at all.
        let _ = folder.write("topology.toml", &full);
        let said = world.command(&["reload"]);
        assert!(said.stdout.contains("nothing changed"), "{}", said.stdout);
    });
    println!("{sent} requests, none failed");
}

fn zeroed_pages_of_demand_hold_the_weights_and_fail_no_request(driver: Driver) {
    let world = World::start(driver, "demand = \"signals\"\ndemand_average_s = 2");
    let folder = world.proxy.folder().region_dir(FRONTEND).join("signals");
    let page = std::fs::read_dir(folder)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let file = std::fs::OpenOptions::new().write(true).open(page).unwrap();
    let length = file.metadata().unwrap().len() as usize;
    let reason = [("reason", "demand_unreadable")];
    let sent = world.under_load(|| {
        let demand = || {
            status(world.solver())["frontends"][0]["demand_rps"]
                .as_f64()
                .unwrap()
        };
        eventually(SOON, "measured demand", || {
            let frontend = status(world.solver())["frontends"][0].clone();
            (frontend["demand_age_s"].is_number() && demand() > 20.0).then_some(())
        });
        let ticks = world.metric("ticks_total", &[]);
        eventually(SOON, "passes that saw it", || {
            (world.metric("ticks_total", &[]) > ticks + 3.0).then_some(())
        });
        eventually(SOON, "the gate", || {
            // The header stays; every counter is nothing.
            file.write_all_at(&vec![0; length - 4_096], 4_096).unwrap();
            assert!(demand() > 10.0, "nothing is not what was measured");
            (world.metric("gate_holds_total", &reason) >= 1.0).then_some(())
        });
        assert!(world.solver().daemon.log().contains("weights are held"));
        eventually(SOON, "the end of the hold", || {
            (world.metric("gate_holding", &reason) == 0.0).then_some(())
        });
    });
    println!("{sent} requests, none failed");
}

fn a_killed_solver_keeps_a_drain_and_every_slot(driver: Driver) {
    let mut world = World::start(driver, "demand = \"configured\"\npublish_max_age_s = 0.5");
    let said = world.command(&["drain", "E1", "--reason", "a bad disk"]);
    assert!(said.code == 0, "{}", said.stderr);
    world.adopted();
    assert_eq!(world.weights()["E1"], 0.0);
    let table = world.table();
    assert!(!table.contains(&"E1".to_owned()));
    // What was under way has ended: the load begins now.
    let drained = world.engines[0].served();
    world.solver.as_mut().unwrap().daemon.kill();
    world.solver = None;
    let alone = world.under_load(|| {
        eventually(SOON, "requests without a solver", || {
            (world.engines[1].served() > 50).then_some(())
        });
    });
    world.restart();
    assert_eq!(world.table(), table, "the restart moved slots");
    let begun = world.engines[1].served();
    let version = world.policy().version;
    let with = world.under_load(|| {
        eventually(SOON, "requests and newer policies", || {
            let newer = world.policy().version > version + 2;
            (newer && world.engines[1].served() > begun + 50).then_some(())
        });
    });
    assert_eq!(world.table(), table, "slots moved after the restart");
    assert_eq!(
        world.engines[0].served(),
        drained,
        "{alone} + {with} requests"
    );
    let said = world.command(&["undrain", "E1"]);
    assert!(said.code == 0, "{}", said.stderr);
    world.under_load(|| {
        eventually(SOON, "requests at the engine again", || {
            (world.engines[0].served() > drained + 10).then_some(())
        });
    });
}

#[test]
fn a_restart_without_orders_moves_no_slot() {
    // The solver alone is at work here: the driver does not matter.
    let mut world = World::start(
        Driver::Epoll,
        "demand = \"configured\"\npublish_max_age_s = 0.5",
    );
    // Steps bring the weights to rest first.
    let mut last = (world.table(), world.policy().version);
    eventually(SOON, "a table at rest", || {
        let now = (world.table(), world.policy().version);
        if now.0 != last.0 {
            last = now;
            return None;
        }
        (now.1 >= last.1 + 3).then_some(())
    });
    for _ in 0..2 {
        let table = world.table();
        world.solver.as_mut().unwrap().daemon.kill();
        world.solver = None;
        world.restart();
        assert_eq!(world.table(), table);
    }
}

fn a_hot_key_is_found_from_signal_pages_and_named(driver: Driver) {
    let world = World::start(driver, "demand = \"configured\"");
    let address = world.proxy.address;
    let ask = |client: &mut Client, fields: &str, number: usize| {
        client.send(post_with(CHAT, fields, conversation(number)));
        let answer = client.response();
        assert_eq!(answer.status(), 200, "{}", answer.text());
    };
    // Half of all requests are one session's.
    std::thread::scope(|scope| {
        for worker in 0..2 {
            scope.spawn(move || {
                let mut client = Client::connect(address);
                for number in 0..3_500 {
                    let hot = if number % 2 == 0 {
                        "X-Session-Id: hot\r\n"
                    } else {
                        ""
                    };
                    ask(&mut client, hot, 10_000 * worker + number);
                }
            });
        }
    });
    let note = eventually(SOON, "the hot block's note", || {
        let notes = status(world.solver())["notes"].clone();
        let notes = notes.as_array().unwrap().clone();
        let named = |note: &&serde_json::Value| note.to_string().contains("cannot be spread");
        notes.iter().find(named).map(ToString::to_string)
    });
    println!("{note}");
    let frontend = ("frontend", FRONTEND);
    let share = world.metric("hot_block_share", &[frontend]);
    assert!((0.45..0.55).contains(&share), "{share}");
    assert_eq!(world.metric("hot_blocks", &[frontend]), 1.0);
    let log = world.solver().daemon.log();
    assert!(log.contains("cannot be spread"), "said in the log");
    // Where requests ended up is shown beside what was planned.
    let page = world.solver().metrics();
    let ratios: Vec<f64> = page
        .matching("pointsman_solver_realised_over_planned_ratio", &[frontend])
        .map(|sample| sample.value)
        .collect();
    assert!(ratios.len() >= 3, "{ratios:?}");
    assert!(ratios.iter().any(|ratio| *ratio > 1.2), "{ratios:?}");
    assert!(ratios.iter().any(|ratio| *ratio < 0.9), "{ratios:?}");
}
