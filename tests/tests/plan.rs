//! The built solver's `plan` on every topology of `tests/data` whose optimum is known by
//! arithmetic: rates, loads, shed rates and the objective, each to one part in a million.

#![expect(clippy::unwrap_used, reason = "a test may end at any surprise")]

use pointsman_tests::locate::data;
use pointsman_tests::solver::command;
use serde_json::Value;

#[test]
fn three_regions() {
    let plan = plan("three-regions.toml");
    plan.objective(51160.0);
    plan.rate("A", "chat", "A", 90.0);
    plan.rate("B", "chat", "B", 100.0);
    plan.rate("B", "chat", "C", 20.0);
    plan.rate("C", "chat", "C", 40.0);
    plan.total(250.0);
    plan.weight("B", "chat", "C", 20.0 / 120.0);
    plan.engine("A", 90.0, 100.0);
    plan.engine("B", 100.0, 100.0);
    plan.engine("C", 60.0, 80.0);
    plan.shed("B", "chat", 0.0);
}

#[test]
fn the_nearest_engine_is_left_to_whom_it_serves_better() {
    let plan = plan("opportunity.toml");
    plan.objective(40300.0);
    plan.rate("A", "chat", "Y", 100.0);
    plan.rate("B", "chat", "X", 100.0);
    plan.total(200.0);
}

#[test]
fn marginal_costs_are_equal_not_averages() {
    let plan = plan("marginal.toml");
    plan.objective(7800.0);
    let (near, far) = (plan.rate_at("near"), plan.rate_at("far"));
    assert!(
        close(near, 50.0) && close(far, 20.0),
        "near {near}, far {far}"
    );
}

#[test]
fn the_costly_route_travels() {
    let plan = plan("mix.toml");
    let far: Vec<(String, f64)> = plan.rates("far");
    let long: f64 = far
        .iter()
        .filter(|(route, _)| route == "long")
        .map(|(_, rate)| rate)
        .sum();
    let rest: f64 = far
        .iter()
        .filter(|(route, _)| route != "long")
        .map(|(_, rate)| rate)
        .sum();
    assert!(close(long, 5.0) && close(rest, 0.0), "{far:?}");
    plan.total(60.0);
}

#[test]
fn overload_sheds_the_lowest_priority_first() {
    let plan = plan("overload.toml");
    plan.total(100.0);
    let shed = |priority: &str| -> f64 {
        let of = |entry: &&Value| entry["priority"] == priority;
        list(&plan.0, "shed")
            .iter()
            .filter(of)
            .map(|entry| number(entry, "rate_rps"))
            .sum()
    };
    assert!(
        close(shed("high"), 0.0) && close(shed("low"), 50.0),
        "{}",
        plan.0["shed"]
    );
}

#[test]
fn the_same_file_gives_the_same_plan_to_the_byte() {
    let file = data("three-regions.toml");
    let arguments = ["plan", file.to_str().unwrap(), "--json"];
    assert_eq!(command(&arguments).stdout, command(&arguments).stdout);
    let table = command(&["plan", file.to_str().unwrap()]);
    assert_eq!(table.code, 0, "{table:?}");
    for word in ["A", "B", "C", "20", "100"] {
        assert!(
            table.stdout.contains(word),
            "no {word:?} in:\n{}",
            table.stdout
        );
    }
}

/// What `plan FILE --json` printed.
struct Plan(Value);

impl Plan {
    fn objective(&self, expected: f64) {
        let found = number(&self.0, "objective_ms_per_s");
        assert!(
            close(found, expected),
            "objective {found}, expected {expected}"
        );
    }

    fn total(&self, expected: f64) {
        let weights = list(&self.0, "routes")
            .iter()
            .flat_map(|route| list(route, "weights"));
        let found: f64 = weights.map(|weight| number(weight, "rate_rps")).sum();
        assert!(
            close(found, expected),
            "{found} req/s routed, expected {expected}"
        );
    }

    fn rate(&self, frontend: &str, route: &str, engine: &str, expected: f64) {
        let found = self.find(frontend, route, engine, "rate_rps");
        assert!(
            close(found, expected),
            "{frontend}/{route} -> {engine}: {found}, not {expected}"
        );
    }

    fn weight(&self, frontend: &str, route: &str, engine: &str, expected: f64) {
        let found = self.find(frontend, route, engine, "weight");
        assert!(
            close(found, expected),
            "{frontend}/{route} -> {engine}: {found}, not {expected}"
        );
    }

    fn engine(&self, name: &str, load: f64, capacity: f64) {
        let engines = list(&self.0, "engines");
        let engine = engines
            .iter()
            .find(|engine| engine["engine"] == name)
            .expect(name);
        let found = ["load", "capacity", "utilisation"].map(|key| number(engine, key));
        let expected = [load, capacity, load / capacity];
        let all = found
            .iter()
            .zip(expected)
            .all(|(found, expected)| close(*found, expected));
        assert!(all, "engine {name}: {found:?}, expected {expected:?}");
    }

    fn shed(&self, frontend: &str, route: &str, expected: f64) {
        let of = |entry: &&Value| entry["frontend"] == frontend && entry["route"] == route;
        let entries = list(&self.0, "shed").iter().filter(of);
        let found: f64 = entries.map(|entry| number(entry, "rate_rps")).sum();
        assert!(close(found, expected), "shed {found}, expected {expected}");
    }

    /// Rates to an engine, as route and rate.
    fn rates(&self, engine: &str) -> Vec<(String, f64)> {
        let mut rates = Vec::new();
        for route in list(&self.0, "routes") {
            for weight in list(route, "weights")
                .iter()
                .filter(|w| w["engine"] == engine)
            {
                let name = route["route"].as_str().unwrap().to_owned();
                rates.push((name, number(weight, "rate_rps")));
            }
        }
        rates
    }

    fn rate_at(&self, engine: &str) -> f64 {
        self.rates(engine).iter().map(|(_, rate)| rate).sum()
    }

    fn find(&self, frontend: &str, route: &str, engine: &str, key: &str) -> f64 {
        let routes = list(&self.0, "routes");
        let of = |entry: &&Value| entry["frontend"] == frontend && entry["route"] == route;
        let route = routes
            .iter()
            .find(of)
            .unwrap_or_else(|| panic!("no {frontend}/{route}"));
        let weights = list(route, "weights");
        let weight = weights.iter().find(|weight| weight["engine"] == engine);
        weight.map_or(0.0, |weight| number(weight, key))
    }
}

fn plan(file: &str) -> Plan {
    let path = data(file);
    let finished = command(&["plan", path.to_str().unwrap(), "--json"]);
    assert_eq!(finished.code, 0, "{finished:?}");
    let value = serde_json::from_str(&finished.stdout);
    Plan(value.unwrap_or_else(|error| panic!("no JSON ({error}): {}", finished.stdout)))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key]
        .as_array()
        .unwrap_or_else(|| panic!("no list {key:?} in {value}"))
}

fn number(value: &Value, key: &str) -> f64 {
    value[key]
        .as_f64()
        .unwrap_or_else(|| panic!("no number {key:?} in {value}"))
}

fn close(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 1e-6 * expected.abs().max(1.0)
}
