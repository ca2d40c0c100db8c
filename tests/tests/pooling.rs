//! What proxies count on their pages becomes a penalty of the solver's, and that a smaller share.

#![expect(clippy::unwrap_used, reason = "a test may end at any surprise")]

use std::net::SocketAddr;

use pointsman_shm::policy::Policy;
use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, Client, post};
use pointsman_tests::folder::Folder;
use pointsman_tests::policy::{FRONTEND, published};
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::solver::{Solver, await_policy, mock_engine, weights};
use pointsman_tests::wait::{LONG, eventually};
use pointsman_tests::wire::Ending;

both_drivers!(a_slow_engine_is_found_by_what_real_proxies_count);

/// Engines of one kind, whose first tokens should take 20 ms.
fn topology(engines: &[(&str, SocketAddr)]) -> String {
    let mut text = format!(
        "[solver]\ntick_ms = 200\nengine_state_ms = 100\nscrape_ms = 200\nscrape_timeout_ms = 150\n\
         demand = \"configured\"\n[[frontends]]\nname = \"{FRONTEND}\"\n\
         [[profiles]]\nkind = \"mock\"\npoints = [\n\
         {{ utilisation = 0.0, ttft_ms = 20.0, tbot_ms = 0.0 }},\n\
         {{ utilisation = 0.5, ttft_ms = 22.0, tbot_ms = 0.0 }},\n\
         {{ utilisation = 1.0, ttft_ms = 60.0, tbot_ms = 0.0 }},\n]\n\
         [[routes]]\nname = \"chat\"\nmodel = \"m\"\nprompt_tokens = 50\noutput_tokens = 2\n\
         [[demand]]\nfrontend = \"{FRONTEND}\"\nroute = \"chat\"\nrps = 1500\n"
    );
    for (name, address) in engines {
        text.push_str(&format!(
            "[[engines]]\nname = \"{name}\"\nkind = \"mock\"\nmodels = [\"m\"]\n\
             address = \"{address}\"\n\
             capacity = {{ rps = 1000, prompt_tokens = 50, output_tokens = 2 }}\n\
             [[rtt]]\nfrontend = \"{FRONTEND}\"\nengine = \"{name}\"\nms = 1\n"
        ));
    }
    text
}

fn ask(client: &mut Client, number: usize) {
    let body = format!(
        r#"{{"model":"m","stream":true,"max_tokens":2,"messages":[{{"role":"user","content":"hello {number}"}}]}}"#
    );
    client.send(post(CHAT, body));
    let answer = client.response();
    assert_eq!((answer.status(), answer.ending), (200, Ending::Complete));
}

fn weight(policy: &Policy, name: &str) -> f64 {
    let weights = weights(policy);
    weights.iter().find(|(engine, _)| engine == name).unwrap().1
}

fn a_slow_engine_is_found_by_what_real_proxies_count(driver: Driver) {
    let folder = Folder::new();
    let engine = |name: &str, ttft: &str| {
        let profile = format!("0:{ttft}");
        let arguments = [
            "--listen",
            "127.0.0.1:0",
            "--name",
            name,
            "--model",
            "m",
            "--profile",
            &profile,
            "--cache-gain",
            "0",
        ];
        mock_engine(&folder, name, &arguments)
    };
    let engines = [("E", "20"), ("F", "20"), ("G", "20"), ("slow", "200")];
    let engines = engines.map(|(name, ttft)| (name, engine(name, ttft)));
    let addresses: Vec<(&str, SocketAddr)> = engines
        .iter()
        .map(|(name, (_, address))| (*name, *address))
        .collect();
    let solver = Solver::start(&folder, &topology(&addresses));
    let whole = weight(&await_policy(&folder, FRONTEND), "slow");
    assert!(whole > 0.1, "{whole}");
    let proxy = Proxy::without_policy(folder, driver, "");
    proxy.await_ready();
    let mut client = proxy.connect();
    let mut number = 0;
    let labels = [("engine", "slow")];
    eventually(LONG, "a penalty of the slow engine", || {
        for _ in 0..5 {
            ask(&mut client, number);
            number += 1;
        }
        let taken = solver
            .metrics()
            .sum("pointsman_solver_engine_penalty", &labels);
        (taken >= 0.25).then_some(())
    });
    let policy = eventually(LONG, "a policy that counts it", || {
        let policy = published(&proxy.folder().region_dir(FRONTEND))?;
        let slow = policy.engines.iter().find(|engine| engine.id == "slow")?;
        (slow.planned_factor < 0.9).then_some(policy)
    });
    let slow = policy
        .engines
        .iter()
        .find(|engine| engine.id == "slow")
        .unwrap();
    // The plan goes on meanwhile, by what it measures of the others on a machine that is used: the
    // share follows within a tenth.
    let expected = whole * slow.planned_factor;
    let left = weight(&policy, "slow");
    assert!(
        (left - expected).abs() <= 0.1 * expected,
        "{left}, expected {expected}"
    );
}
