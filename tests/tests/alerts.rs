//! The alerts that operators are woken by: promtool reads them, each fires when it should, and what
//! they ask for is on the page of a real solver or proxy.

#![expect(clippy::unwrap_used, reason = "a test may end at any surprise")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use pointsman_tests::client::{CHAT, post};
use pointsman_tests::folder::Folder;
use pointsman_tests::locate::{data, promtool, root};
use pointsman_tests::policy::FRONTEND;
use pointsman_tests::process::run;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::solver::{Solver, await_policy, mock_engine};
use pointsman_tests::wait::{LONG, SOON, eventually};
use pointsman_tests::wire::Ending;

/// Requests after which shares are told: 200 at the least.
const REQUESTS: usize = 260;

fn promtool_says(arguments: &[&str], file: &Path) {
    let mut command = Command::new(promtool());
    command.args(arguments).arg(file);
    let finished = run(command, SOON);
    assert_eq!(finished.code, 0, "{finished:?}");
}

fn rules() -> String {
    std::fs::read_to_string(root().join("solver/alerts.yml")).unwrap()
}

/// Names of our metrics in the rules.
fn metrics(rules: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = rules.split(|c| !is_name(c));
    let ours =
        words.filter(|w| w.starts_with("pointsman_solver_") || w.starts_with("pointsman_proxy_"));
    ours.map(str::to_owned).collect()
}

/// Values of a key, one a line.
fn values<'a>(text: &'a str, key: &'a str) -> BTreeSet<&'a str> {
    let lines = text
        .lines()
        .map(|line| line.trim().trim_start_matches("- "));
    lines
        .filter_map(|line| line.strip_prefix(key))
        .map(str::trim)
        .collect()
}

#[test]
fn promtool_reads_the_rules_and_each_alert_fires_on_its_series() {
    promtool_says(&["check", "rules"], &root().join("solver/alerts.yml"));
    promtool_says(&["test", "rules"], &data("alerts.test.yml"));
    // None is without a test.
    let rules = rules();
    let series = std::fs::read_to_string(data("alerts.test.yml")).unwrap();
    let alerts = values(&rules, "alert:");
    assert!(alerts.len() >= 16, "{alerts:?}");
    assert_eq!(alerts, values(&series, "alertname:"));
    // Nor without a word on what to do.
    let page = std::fs::read_to_string(root().join("solver/OPERATING.md")).unwrap();
    let untold: Vec<_> = alerts
        .iter()
        .filter(|name| !page.contains(**name))
        .collect();
    assert!(
        untold.is_empty(),
        "OPERATING.md does not tell of {untold:?}"
    );
}

fn topology(engines: [SocketAddr; 2]) -> String {
    let mut text = format!(
        "[solver]\ntick_ms = 200\nengine_state_ms = 100\nscrape_ms = 200\nscrape_timeout_ms = 150\n\
         demand = \"configured\"\n[[frontends]]\nname = \"{FRONTEND}\"\n\
         [[routes]]\nname = \"chat\"\nmodel = \"m\"\nprompt_tokens = 50\noutput_tokens = 5\n\
         [[demand]]\nfrontend = \"{FRONTEND}\"\nroute = \"chat\"\nrps = 120\n\
         [[profiles]]\nkind = \"mock\"\npoints = [\
         {{ utilisation = 0, ttft_ms = 20, tbot_ms = 5 }}, \
         {{ utilisation = 1, ttft_ms = 60, tbot_ms = 9 }}]\n"
    );
    for (name, address) in ["E", "F"].into_iter().zip(engines) {
        text.push_str(&format!(
            "[[engines]]\nname = \"{name}\"\nkind = \"mock\"\nmodels = [\"m\"]\n\
             address = \"{address}\"\n\
             capacity = {{ rps = 400, prompt_tokens = 50, output_tokens = 5 }}\n\
             [[rtt]]\nfrontend = \"{FRONTEND}\"\nengine = \"{name}\"\nms = 2\n"
        ));
    }
    text
}

#[test]
fn every_metric_in_the_rules_is_emitted_by_a_running_solver_or_proxy() {
    let folder = Folder::new();
    let engine = |name: &str| {
        let arguments = ["--listen", "127.0.0.1:0", "--name", name, "--model", "m"];
        mock_engine(&folder, name, &arguments)
    };
    let ((_e, e), (_f, f)) = (engine("E"), engine("F"));
    let solver = Solver::start(&folder, &topology([e, f]));
    let _ = await_policy(&folder, FRONTEND);
    let proxy = Proxy::without_policy(folder, Driver::Epoll, "");
    proxy.await_ready();
    let mut client = proxy.connect();
    for number in 0..REQUESTS {
        let body = format!(
            r#"{{"model":"m","stream":true,"max_tokens":2,"messages":[{{"role":"user","content":"hello {number}"}}]}}"#
        );
        client.send(post(CHAT, body));
        let answer = client.response();
        assert_eq!((answer.status(), answer.ending), (200, Ending::Complete));
    }
    let asked = metrics(&rules());
    assert!(asked.len() >= 14, "{asked:?}");
    let missing = || -> BTreeSet<String> {
        let pages = [solver.metrics(), proxy.metrics()];
        let emitted = |name: &&String| pages.iter().any(|page| page.has(name));
        asked
            .iter()
            .filter(|name| !emitted(name))
            .cloned()
            .collect()
    };
    let what = format!("all of {asked:?} on a page");
    eventually(LONG, &what, || missing().is_empty().then_some(()));
}
