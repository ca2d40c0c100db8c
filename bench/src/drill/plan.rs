//! A drill's world on paper: frontends, engines, routes, and the files of configuration that say
//! so.
//!
//! Unlike the world of `scripts/run` there is no distance here: every engine is as near as every
//! other, so that what moves a request is load, health and guards alone.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;

use crate::io_driver::IoDriver;

/// Tokens of a prompt as planned; users' streams carry no usage, so the plan's figure stands.
const PROMPT_TOKENS: u64 = 100;
/// Round trip between any two, milliseconds.
const RTT_MS: f64 = 1.0;

/// What takes the solver's guardrails away: pooled penalties, and allowances that anybody reaches.
const UNGUARDED_SOLVER: &str = "pool_penalties = false\nallowance_burst = 1000.0\n";
/// What takes the proxies' away: penalties, own health checks, and the retry budget.
const UNGUARDED_PROXY: &str = "\n[penalties]\nenabled = false\n\n[probes]\nenabled = false\n\n\
                               [retry]\nbudget = false\n";

/// A world before it is started.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Frontends in order.
    pub(super) frontends: Vec<Frontend>,
    /// Engines in order.
    pub(super) engines: Vec<Engine>,
    /// Routes in match order.
    pub(super) routes: Vec<Route>,
    /// How fast engines are.
    pub(super) pace: Pace,
    /// Engines keep prompts and are faster when one comes again, which no profile foresees: else the
    /// pace is what it says it is.
    pub(super) caches: bool,
    /// More lines of the topology's `[solver]`.
    pub(super) solver: String,
    /// Sections after it, such as `[[priorities]]`.
    pub(super) sections: String,
    /// More lines of every `proxy.toml`, before its sections.
    pub(super) proxy: String,
    /// Sections of every `proxy.toml`.
    pub(super) proxy_sections: String,
}

/// A frontend and its proxies, each of which stands for a host.
#[derive(Clone, Debug)]
pub(super) struct Frontend {
    pub(super) name: String,
    pub(super) proxies: usize,
    pub(super) shards: usize,
}

/// An engine, as planned and as it is.
#[derive(Clone, Debug)]
pub(super) struct Engine {
    pub(super) name: String,
    /// Requests a second that it is planned with.
    pub(super) capacity_rps: f64,
    /// Requests that it really runs at once; others wait.
    pub(super) max_running: usize,
    /// Whether routes may use it.
    pub(super) eligible: bool,
}

/// A route: one model.
#[derive(Clone, Debug)]
pub(super) struct Route {
    /// Its name and its model's.
    pub(super) name: String,
    /// What the solver plans with at each frontend, requests a second.
    pub(super) rate_rps: f64,
    /// Fixed weights by engine, which the solver publishes as they are; empty for an optimum.
    pub(super) weights: Vec<(String, f64)>,
}

/// Latency of all engines: the same in plan and in truth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Time to the first token of an idle engine, milliseconds.
    pub(super) idle_ms: f64,
    /// At full load.
    pub(super) full_ms: f64,
    /// Between tokens at any load.
    pub(super) tbot_ms: f64,
    /// Tokens of an answer.
    pub(super) tokens: u64,
}

impl Pace {
    /// How long an answer takes at full load, seconds.
    pub(super) fn full_s(&self) -> f64 {
        (self.full_ms + self.tbot_ms * (self.tokens - 1) as f64) / 1e3
    }
}

impl Engine {
    /// An engine that does what is planned and no more: beyond, requests wait for a place.
    pub(super) fn new(name: &str, capacity_rps: f64, pace: &Pace) -> Self {
        Self {
            name: name.to_owned(),
            capacity_rps,
            max_running: (capacity_rps * pace.full_s()).round().max(1.0) as usize,
            eligible: true,
        }
    }
}

impl Plan {
    /// One frontend with one proxy, and so many engines alike that serve one model.
    pub(super) fn simple(engines: usize, capacity_rps: f64, rate_rps: f64, pace: Pace) -> Self {
        let name = |number: usize| char::from(b'a' + number as u8).to_string();
        Self {
            frontends: vec![Frontend {
                name: "front".to_owned(),
                proxies: 1,
                shards: 2,
            }],
            engines: (0..engines)
                .map(|number| Engine::new(&name(number), capacity_rps, &pace))
                .collect(),
            routes: vec![Route {
                name: "chat".to_owned(),
                rate_rps,
                weights: Vec::new(),
            }],
            pace,
            caches: false,
            solver: String::new(),
            sections: String::new(),
            proxy: String::new(),
            proxy_sections: String::new(),
        }
    }

    /// One more engine with the same models that no route may use.
    pub(super) fn with_outsider(mut self) -> Self {
        let mut outsider = Engine::new("outside", self.engines[0].capacity_rps, &self.pace);
        outsider.eligible = false;
        self.engines.push(outsider);
        self
    }

    /// The same world without guardrails, as far as its files can take them away: what a drill is
    /// compared with, so that it shows nothing where they make no difference.
    pub(super) fn unguarded(self) -> Self {
        self.unguarded_with(3)
    }

    /// The same where a request is tried so often at most.
    pub(super) fn unguarded_with(mut self, attempts: u32) -> Self {
        self.solver.push_str(UNGUARDED_SOLVER);
        self.proxy_sections.push_str(UNGUARDED_PROXY);
        let _ = writeln!(self.proxy_sections, "attempts = {attempts}");
        self
    }

    /// Engines that are batches and no queues: they take what comes, each as fast as their profile
    /// says at their load. Else their places are so few that chance makes requests wait where no
    /// profile foresees it.
    pub(super) fn batching(mut self) -> Self {
        for engine in &mut self.engines {
            engine.max_running *= 20;
        }
        self
    }

    /// Command line of an engine, after `engine`.
    pub(super) fn engine_line(&self, engine: &Engine, listen: SocketAddr) -> Vec<String> {
        let Pace {
            idle_ms,
            full_ms,
            tbot_ms,
            tokens,
        } = self.pace;
        let models: Vec<&str> = self.routes.iter().map(|route| &*route.name).collect();
        let words = [
            ("--listen", listen.to_string()),
            ("--name", engine.name.clone()),
            ("--model", models.join(",")),
            ("--capacity-rps", engine.capacity_rps.to_string()),
            ("--profile", format!("0:{idle_ms},1:{full_ms}")),
            ("--tbot", format!("0:{tbot_ms}")),
            ("--events", tokens.to_string()),
            ("--max-running", engine.max_running.to_string()),
            // A quarter of a second's work, then 503: what an engine that is full says.
            ("--queue", (engine.max_running * 4).to_string()),
        ];
        let mut line = vec!["engine".to_owned()];
        for (flag, value) in words {
            line.extend([flag.to_owned(), value]);
        }
        if !self.caches {
            line.extend(["--cache-blocks".to_owned(), "0".to_owned()]);
        }
        line
    }

    /// The solver's file; `addresses` are those of the engines, in order.
    pub(super) fn topology(&self, addresses: &[SocketAddr]) -> String {
        let mut text = format!(
            "[solver]\ntick_ms = 1000\ndemand_average_s = 5\npublish_benefit = 0.0001\n{}\n{}",
            self.solver, self.sections
        );
        for frontend in &self.frontends {
            let _ = write!(
                text,
                "\n[[frontends]]\nname = \"{}\"\nregion = \"here\"\nhosts = {}\n",
                frontend.name, frontend.proxies
            );
        }
        let Pace {
            idle_ms,
            full_ms,
            tbot_ms,
            ..
        } = self.pace;
        let _ = write!(
            text,
            "\n[[profiles]]\nname = \"mock\"\nkind = \"mock\"\npoints = [\
             {{ utilisation = 0.0, ttft_ms = {idle_ms:?}, tbot_ms = {tbot_ms:?} }}, \
             {{ utilisation = 1.0, ttft_ms = {full_ms:?}, tbot_ms = {tbot_ms:?} }}]\n"
        );
        for (engine, address) in self.engines.iter().zip(addresses) {
            self.write_engine(engine, *address, &mut text);
        }
        self.write_routes(&mut text);
        text
    }

    fn write_engine(&self, engine: &Engine, address: SocketAddr, text: &mut String) {
        let models: Vec<String> = self
            .routes
            .iter()
            .map(|route| format!("\"{}\"", route.name))
            .collect();
        let _ = write!(
            text,
            "\n[[engines]]\nname = \"{}\"\nregion = \"here\"\nkind = \"mock\"\nmodels = [{}]\n\
             address = \"{address}\"\ncapacity = {{ rps = {:?}, prompt_tokens = {PROMPT_TOKENS}, \
             output_tokens = {} }}\n",
            engine.name,
            models.join(", "),
            engine.capacity_rps,
            self.pace.tokens
        );
        for frontend in &self.frontends {
            let _ = write!(
                text,
                "\n[[rtt]]\nfrontend = \"{}\"\nengine = \"{}\"\nms = {RTT_MS:?}\n",
                frontend.name, engine.name
            );
        }
    }

    fn write_routes(&self, text: &mut String) {
        let eligible: Vec<String> = self
            .engines
            .iter()
            .filter(|engine| engine.eligible)
            .map(|engine| format!("\"{}\"", engine.name))
            .collect();
        for route in &self.routes {
            let mode = if route.weights.is_empty() {
                "control"
            } else {
                "observe"
            };
            let _ = write!(
                text,
                "\n[[routes]]\nname = \"{0}\"\nmodel = \"{0}\"\nengines = [{1}]\n\
                 mode = \"{mode}\"\nprompt_tokens = {PROMPT_TOKENS}\noutput_tokens = {2}\n",
                route.name,
                eligible.join(", "),
                self.pace.tokens
            );
            for frontend in &self.frontends {
                let _ = write!(
                    text,
                    "\n[[demand]]\nfrontend = \"{}\"\nroute = \"{}\"\nrps = {:?}\n",
                    frontend.name, route.name, route.rate_rps
                );
                write_weights(frontend, route, text);
            }
        }
    }

    /// A proxy's file.
    pub(super) fn proxy(&self, frontend: &Frontend, folder: &Path, io_driver: IoDriver) -> String {
        format!(
            "frontend = \"{}\"\nlisten = [\"127.0.0.1:0\"]\nadmin = \"127.0.0.1:0\"\n\
             shards = {}\npin = false\nio_driver = \"{}\"\n\
             run_dir = {:?}\nstate_dir = {:?}\n{}\n{}",
            frontend.name,
            frontend.shards,
            io_driver.name(),
            folder.join("run"),
            folder.join("state"),
            self.proxy,
            self.proxy_sections
        )
    }
}

/// The fixed weights of a route at a frontend, where it has some.
fn write_weights(frontend: &Frontend, route: &Route, text: &mut String) {
    if route.weights.is_empty() {
        return;
    }
    let weights = route.weights.iter();
    let weights: Vec<String> = weights
        .map(|(engine, share)| format!("{engine} = {share:?}"))
        .collect();
    let _ = write!(
        text,
        "\n[[weights]]\nfrontend = \"{}\"\nroute = \"{}\"\nweights = {{ {} }}\n",
        frontend.name,
        route.name,
        weights.join(", ")
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace {
        idle_ms: 50.0,
        full_ms: 90.0,
        tbot_ms: 2.0,
        tokens: 6,
    };

    #[test]
    fn an_engine_runs_what_its_capacity_needs() {
        // 90 + 5 x 2 ms at 60 a second are 6 at once.
        assert_eq!(Engine::new("a", 60.0, &PACE).max_running, 6);
        assert_eq!(Engine::new("a", 1.0, &PACE).max_running, 1);
    }

    #[test]
    fn the_topology_is_one_that_the_solver_reads() {
        let mut plan = Plan::simple(3, 60.0, 90.0, PACE).with_outsider();
        plan.routes.push(Route {
            name: "solo".to_owned(),
            rate_rps: 5.0,
            weights: vec![("a".to_owned(), 1.0)],
        });
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let text = plan.topology(&[address(1), address(2), address(3), address(4)]);
        let topology = pointsman_solver::model::topology::Topology::parse("drill.toml", &text);
        let topology = topology.unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(topology.engines.len(), 4);
        assert_eq!(topology.routes.len(), 2);
    }
}
