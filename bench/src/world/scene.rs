//! The world on paper: frontends, engines, distances, and the configuration files that say so.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;

use crate::io_driver::IoDriver;

/// Tokens of an answer.
pub(super) const OUTPUT_TOKENS: u64 = 16;
/// Tokens of a prompt as planned; users' streams carry no usage, so the plan's figure stands.
const PROMPT_TOKENS: u64 = 100;
/// Time to the first token up to capacity.
pub(super) const TTFT_MS: f64 = 200.0;
/// Time between tokens up to capacity.
pub(super) const TBOT_MS: f64 = 2.0;
/// What the engines can do over what is planned with.
pub(super) const TRUE_CAPACITY: f64 = 1.25;
/// Time constant of the solver's averages: short, so that `--once` ends soon.
pub(super) const DEMAND_AVERAGE_S: u32 = 10;

/// Where the solver takes demand from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// The topology's figures.
    Configured,
    /// The proxies' signal pages.
    Signals,
}

/// A frontend.
#[derive(Clone, Debug)]
pub(super) struct Frontend {
    pub(super) name: String,
    pub(super) region: String,
    pub(super) rate_rps: f64,
}

/// An engine.
#[derive(Clone, Debug)]
pub(super) struct Engine {
    pub(super) name: String,
    pub(super) region: String,
    /// The planned capacity, as the topology has it.
    pub(super) capacity: String,
    pub(super) protocol: &'static str,
    /// Where the solver and near frontends reach it.
    pub(super) address: String,
    /// Where far frontends reach it.
    pub(super) far: Vec<(String, SocketAddr)>,
    /// Whether the route may use it.
    pub(super) eligible: bool,
}

/// All of it.
#[derive(Clone, Debug)]
pub(super) struct Scene {
    pub(super) model: String,
    pub(super) frontends: Vec<Frontend>,
    pub(super) engines: Vec<Engine>,
    /// Simulated engines have a known profile and distance; real ones the solver's assumed profile.
    pub(super) simulated: bool,
}

/// The regions: name, demand, planned capacity.
pub(super) const REGIONS: [(&str, f64, f64); 3] =
    [("A", 90.0, 100.0), ("B", 120.0, 100.0), ("C", 40.0, 80.0)];

/// An engine with the same model that the route must not use: what is not eligible gets nothing,
/// whatever happens to the others.
pub(super) const OUTSIDE: (&str, f64) = ("D", 80.0);

/// Round trip between a frontend and an engine.
pub(super) fn rtt_ms(frontend: &str, engine: &str) -> u64 {
    match (frontend, engine) {
        (near, also) if near == also => 2,
        ("B", "C") | ("C", "B") => 35,
        _ => 60,
    }
}

impl Scene {
    /// The solver's file.
    pub(super) fn topology(&self, demand: Demand) -> String {
        let mut text = format!(
            "[solver]\ntick_ms = 1000\nheadroom = 1.0\ndemand = \"{}\"\n\
             demand_average_s = {DEMAND_AVERAGE_S}\npublish_benefit = 0.0001\n\
             token_mix = \"configured\"\nallowance_burst = 4.0\n",
            match demand {
                Demand::Configured => "configured",
                Demand::Signals => "signals",
            },
        );
        for frontend in &self.frontends {
            let (name, region) = (&frontend.name, &frontend.region);
            let _ = write!(
                text,
                "\n[[frontends]]\nname = \"{name}\"\nregion = \"{region}\"\nhosts = 1\n"
            );
        }
        if self.simulated {
            let latency = format!("ttft_ms = {TTFT_MS:?}, tbot_ms = {TBOT_MS:?}");
            let point =
                |utilisation: f64| format!("{{ utilisation = {utilisation:?}, {latency} }}");
            let (idle, full) = (point(0.0), point(1.0));
            let _ = write!(
                text,
                "\n[[profiles]]\nname = \"flat\"\nkind = \"simulated\"\npoints = [{idle}, {full}]\n"
            );
        }
        for engine in &self.engines {
            self.write_engine(engine, &mut text);
        }
        self.write_route(&mut text);
        text
    }

    fn write_engine(&self, engine: &Engine, text: &mut String) {
        let kind = if self.simulated { "simulated" } else { "real" };
        let _ = write!(
            text,
            "\n[[engines]]\nname = \"{}\"\nregion = \"{}\"\nkind = \"{kind}\"\n\
             models = [\"{}\"]\nprotocol = \"{}\"\ncapacity = {}\n",
            engine.name, engine.region, self.model, engine.protocol, engine.capacity
        );
        if engine.far.is_empty() {
            let _ = writeln!(text, "address = \"{}\"", engine.address);
        } else {
            let far: String = engine
                .far
                .iter()
                .map(|(frontend, relay)| format!("{frontend} = \"{relay}\", "))
                .collect();
            let _ = writeln!(
                text,
                "addresses = {{ {far}default = \"{}\" }}",
                engine.address
            );
        }
        for frontend in &self.frontends {
            // Nobody has measured the way to a real engine here; the same to all moves no weight.
            let ms = if self.simulated {
                rtt_ms(&frontend.name, &engine.name)
            } else {
                1
            };
            let _ = write!(
                text,
                "\n[[rtt]]\nfrontend = \"{}\"\nengine = \"{}\"\nms = {ms}\n",
                frontend.name, engine.name
            );
        }
    }

    fn write_route(&self, text: &mut String) {
        let eligible: Vec<String> = self
            .engines
            .iter()
            .filter(|engine| engine.eligible)
            .map(|engine| format!("\"{}\"", engine.name))
            .collect();
        let _ = write!(
            text,
            "\n[[routes]]\nname = \"chat\"\nmodel = \"{}\"\nengines = [{}]\n\
             prompt_tokens = {PROMPT_TOKENS}\noutput_tokens = {OUTPUT_TOKENS}\n",
            self.model,
            eligible.join(", ")
        );
        for frontend in &self.frontends {
            let _ = write!(
                text,
                "\n[[demand]]\nfrontend = \"{}\"\nroute = \"chat\"\nrps = {:?}\n",
                frontend.name, frontend.rate_rps
            );
        }
    }
}

/// A planned capacity in requests per second.
pub(super) fn rps_capacity(rps: f64) -> String {
    format!("{{ rps = {rps:?}, prompt_tokens = {PROMPT_TOKENS}, output_tokens = {OUTPUT_TOKENS} }}")
}

/// A proxy's file.
pub(super) fn proxy(frontend: &str, folder: &Path, io_driver: IoDriver) -> String {
    let io_driver = io_driver.name();
    format!(
        "frontend = \"{frontend}\"\nlisten = [\"127.0.0.1:0\"]\nadmin = \"127.0.0.1:0\"\n\
         shards = 1\npin = false\nio_driver = \"{io_driver}\"\nrun_dir = {:?}\nstate_dir = {:?}\n",
        folder.join("run"),
        folder.join("state"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_the_same_both_ways() {
        for (frontend, ..) in REGIONS {
            for (engine, ..) in REGIONS {
                assert_eq!(rtt_ms(frontend, engine), rtt_ms(engine, frontend));
            }
        }
        assert_eq!(
            (rtt_ms("A", "A"), rtt_ms("B", "C"), rtt_ms("A", "C")),
            (2, 35, 60)
        );
    }
}
