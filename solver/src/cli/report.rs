//! A topology and a plan as text: tables for people, JSON for programs.

use std::fmt::Write;
use std::path::Path;

use pointsman_shm::policy::Mode;
use serde::Serialize;

use super::mode_name;
use super::verify::Verified;
use crate::model::plan::{Plan, SourcePlan};
use crate::model::problem::EngineNow;
use crate::model::topology::{DemandSource, FrontendId, RouteId, Topology};

/// What one (frontend, route) does.
struct RoutePlan<'a> {
    frontend: FrontendId,
    route: RouteId,
    source: &'a SourcePlan,
    /// Requests per second that are routed.
    routed_rps: f64,
    /// Refused by priority.
    shed_rps: Vec<f64>,
}

#[derive(Serialize)]
struct Report<'a> {
    status: &'static str,
    objective_ms_per_s: f64,
    /// The same by the pieces that it was solved with.
    model_ms_per_s: f64,
    terms_ms_per_s: Terms,
    mode: &'static str,
    method: &'static str,
    rounds: usize,
    separability_error: f64,
    gap: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<Verified>,
    routes: Vec<RouteReport<'a>>,
    engines: Vec<EngineReport<'a>>,
    shed: Vec<ShedReport<'a>>,
    assumed: Vec<String>,
    warnings: &'a [String],
}

#[derive(Serialize)]
struct Terms {
    network: f64,
    service: f64,
    congestion: f64,
    movement: f64,
    money: f64,
    shed: f64,
}

#[derive(Serialize)]
struct RouteReport<'a> {
    frontend: &'a str,
    route: &'a str,
    class: &'a str,
    mode: &'static str,
    demand_rps: f64,
    weights: Vec<WeightReport<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    published: Option<Vec<Published<'a>>>,
}

#[derive(Serialize)]
struct WeightReport<'a> {
    engine: &'a str,
    rate_rps: f64,
    weight: f64,
    network_ms: f64,
    service_ms: f64,
    congestion_ms: f64,
    money_ms: f64,
    planned_ttft_ms: f64,
}

/// A weight that the operator set and that is published in place of the plan's.
#[derive(Serialize)]
struct Published<'a> {
    engine: &'a str,
    weight: f64,
}

#[derive(Serialize)]
struct EngineReport<'a> {
    engine: &'a str,
    load: f64,
    capacity: f64,
    utilisation: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_utilisation: Option<f64>,
    ready_replicas: u32,
    capacity_assumed: bool,
    profile_assumed: bool,
}

#[derive(Serialize)]
struct ShedReport<'a> {
    frontend: &'a str,
    route: &'a str,
    priority: &'a str,
    rate_rps: f64,
}

pub(super) fn json(
    topology: &Topology,
    plan: &Plan,
    engines: &[EngineNow],
    (model_ms, verified): (f64, Option<Verified>),
) -> String {
    let routes = routes(topology, plan);
    let terms = &plan.terms;
    let report = Report {
        status: "optimal",
        objective_ms_per_s: terms.total(),
        model_ms_per_s: model_ms,
        terms_ms_per_s: Terms {
            network: terms.network,
            service: terms.service,
            congestion: terms.congestion,
            movement: terms.movement,
            money: terms.money,
            shed: terms.shed,
        },
        mode: mode_name(topology.settings.mode),
        method: plan.method.name(),
        rounds: plan.rounds,
        separability_error: plan.separability_error,
        gap: plan.gap,
        verified,
        routes: routes.iter().map(|r| route_report(topology, r)).collect(),
        engines: engine_reports(topology, plan, engines),
        shed: routes
            .iter()
            .flat_map(|r| shed_reports(topology, r))
            .collect(),
        assumed: assumed(topology),
        warnings: &topology.warnings,
    };
    let mut text = serde_json::to_string_pretty(&report).expect("the report has only text keys");
    text.push('\n');
    text
}

/// Every (frontend, route), its class's plan split by what the route asks for.
fn routes<'a>(topology: &Topology, plan: &'a Plan) -> Vec<RoutePlan<'a>> {
    let classes = topology.classes.len();
    let mut list = Vec::new();
    for frontend in topology.frontend_ids() {
        for (r, route) in topology.routes.iter().enumerate() {
            let source = &plan.sources[frontend.0 * classes + route.class.0];
            let mut shed_rps = vec![0.0; topology.priorities.len()];
            let mut routed_rps = 0.0;
            let own = topology
                .demand
                .iter()
                .filter(|d| d.frontend == frontend && d.route.0 == r);
            for demand in own {
                let p = usize::from(demand.priority);
                let all = source.demand_rps[p];
                let share = if all > 0.0 {
                    source.shed_rps[p] / all
                } else {
                    0.0
                };
                shed_rps[p] += demand.rps.value() * share;
                routed_rps += demand.rps.value() * (1.0 - share);
            }
            list.push(RoutePlan {
                frontend,
                route: RouteId(r),
                source,
                routed_rps,
                shed_rps,
            });
        }
    }
    list
}

fn route_report<'a>(topology: &'a Topology, plan: &RoutePlan<'_>) -> RouteReport<'a> {
    let route = &topology.routes[plan.route.0];
    let class = &topology.classes[route.class.0];
    let name = |engine: usize| topology.engines[engine].name.as_str();
    let weights = plan.source.arcs.iter().map(|arc| WeightReport {
        engine: name(arc.engine.0),
        rate_rps: arc.weight * plan.routed_rps,
        weight: arc.weight,
        network_ms: arc.network_ms,
        service_ms: arc.service_ms,
        congestion_ms: arc.congestion_ms,
        money_ms: arc.money_ms,
        planned_ttft_ms: arc.planned_ttft_ms,
    });
    let fixed = class.static_weights[plan.frontend.0].as_ref();
    let published = fixed
        .filter(|_| class.mode == Mode::Observe)
        .map(|weights| {
            let one = |(pair, weight): (&crate::model::topology::ClassEngine, &f64)| Published {
                engine: name(pair.engine.0),
                weight: *weight,
            };
            class.eligible.iter().zip(weights).map(one).collect()
        });
    RouteReport {
        frontend: &topology.frontends[plan.frontend.0].name,
        route: &route.name,
        class: &class.name,
        mode: mode_name(class.mode),
        demand_rps: plan.routed_rps + plan.shed_rps.iter().sum::<f64>(),
        weights: weights.collect(),
        published,
    }
}

fn shed_reports<'a>(topology: &'a Topology, plan: &RoutePlan<'_>) -> Vec<ShedReport<'a>> {
    let some = plan
        .shed_rps
        .iter()
        .enumerate()
        .filter(|(_, rps)| **rps > 0.0);
    some.map(|(p, rps)| ShedReport {
        frontend: &topology.frontends[plan.frontend.0].name,
        route: &topology.routes[plan.route.0].name,
        priority: &topology.priorities[p].name,
        rate_rps: *rps,
    })
    .collect()
}

fn engine_reports<'a>(
    topology: &'a Topology,
    plan: &Plan,
    engines: &[EngineNow],
) -> Vec<EngineReport<'a>> {
    let one = |engine: &crate::model::plan::EnginePlan| {
        let described = &topology.engines[engine.engine.0];
        let mut pairs = topology.classes.iter().flat_map(|c| &c.eligible);
        EngineReport {
            engine: &described.name,
            load: engine.load_rps,
            capacity: engine.capacity_rps,
            utilisation: engine.utilisation,
            kv_utilisation: engine.kv_utilisation,
            ready_replicas: engines[engine.engine.0].ready_replicas,
            capacity_assumed: described.capacity.assumed,
            profile_assumed: pairs
                .any(|p| p.engine == engine.engine && topology.profiles[p.profile.0].assumed),
        }
    };
    plan.engines.iter().map(one).collect()
}

/// Everything that was assumed rather than given.
fn assumed(topology: &Topology) -> Vec<String> {
    let capacities = topology.engines.iter().filter(|e| e.capacity.assumed);
    let capacities = capacities.map(|e| format!("capacity of engine {:?}", e.name));
    let profiles = topology.profiles.iter().filter(|p| p.assumed);
    let profiles = profiles.map(|p| format!("latency curve {:?}", p.name));
    capacities.chain(profiles).collect()
}

pub(super) fn table(topology: &Topology, plan: &Plan, model_ms: f64) -> String {
    let mut text = String::new();
    let terms = &plan.terms;
    line(
        &mut text,
        format_args!(
            "objective {:.3} ms/s (by the pieces it was solved with {model_ms:.3})",
            terms.total()
        ),
    );
    line(
        &mut text,
        format_args!(
            "  network {:.3}, service {:.3}, congestion {:.3}, movement {:.3}, money {:.3}, \
             shed {:.3}\n",
            terms.network, terms.service, terms.congestion, terms.movement, terms.money, terms.shed
        ),
    );
    line(
        &mut text,
        format_args!(
            "{:<16} {:<16} {:<16} {:>10} {:>8} {:>9} {:>9} {:>9}",
            "frontend", "route", "engine", "req/s", "weight", "net ms", "serve ms", "load ms"
        ),
    );
    let routes = routes(topology, plan);
    for route in &routes {
        let frontend = &topology.frontends[route.frontend.0].name;
        let name = &topology.routes[route.route.0].name;
        for arc in route.source.arcs.iter().filter(|a| a.weight > 0.0) {
            let engine = &topology.engines[arc.engine.0].name;
            let rate = arc.weight * route.routed_rps;
            line(
                &mut text,
                format_args!(
                    "{frontend:<16} {name:<16} {engine:<16} {rate:>10.3} {:>8.4} {:>9.2} {:>9.2} \
                     {:>9.2}",
                    arc.weight, arc.network_ms, arc.service_ms, arc.congestion_ms
                ),
            );
        }
        if route.source.arcs.is_empty() {
            line(
                &mut text,
                format_args!("{frontend:<16} {name:<16} no engine is eligible"),
            );
        }
    }
    engine_table(&mut text, topology, plan);
    for shed in routes.iter().flat_map(|r| shed_reports(topology, r)) {
        line(
            &mut text,
            format_args!(
                "shed: frontend {}, route {}, priority {}: {:.3} req/s",
                shed.frontend, shed.route, shed.priority, shed.rate_rps
            ),
        );
    }
    notes(&mut text, topology);
    text
}

fn engine_table(text: &mut String, topology: &Topology, plan: &Plan) {
    line(
        text,
        format_args!(
            "\n{:<16} {:>12} {:>12} {:>12}",
            "engine", "load req/s", "of req/s", "utilisation"
        ),
    );
    for engine in &plan.engines {
        let described = &topology.engines[engine.engine.0];
        let mark = if described.capacity.assumed {
            " (assumed)"
        } else {
            ""
        };
        line(
            text,
            format_args!(
                "{:<16} {:>12.3} {:>12.3} {:>12.4}{mark}",
                described.name, engine.load_rps, engine.capacity_rps, engine.utilisation
            ),
        );
    }
}

pub(super) fn summary(file: &Path, topology: &Topology) -> String {
    let mut text = String::new();
    let pairs: usize = topology.classes.iter().map(|c| c.eligible.len()).sum();
    line(&mut text, format_args!("{}: good", file.display()));
    line(
        &mut text,
        format_args!(
            "{} frontends, {} engines, {} routes in {} classes with {pairs} eligible pairs, {} \
             priorities",
            topology.frontends.len(),
            topology.engines.len(),
            topology.routes.len(),
            topology.classes.len(),
            topology.priorities.len()
        ),
    );
    let demand = match topology.settings.demand {
        DemandSource::Signals => "signal pages",
        DemandSource::Configured => "this file",
    };
    let mode = mode_name(topology.settings.mode);
    line(&mut text, format_args!("mode {mode}; demand from {demand}"));
    notes(&mut text, topology);
    text
}

fn notes(text: &mut String, topology: &Topology) {
    for assumed in assumed(topology) {
        line(text, format_args!("assumed: {assumed}"));
    }
    for warning in &topology.warnings {
        line(text, format_args!("warning: {warning}"));
    }
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments)
        .and_then(|()| text.write_char('\n'))
        .expect("a string takes all");
}
