//! Three regions with two engines each, two kinds of requests, and what a test wants otherwise.

use std::fmt::Write as _;

use pointsman_solver::model::topology::Topology;

/// Utilisation, milliseconds to the first token, milliseconds between tokens.
pub(crate) const CURVE: [(f64, f64, f64); 6] = [
    (0.0, 120.0, 15.0),
    (0.5, 140.0, 18.0),
    (0.7, 180.0, 22.0),
    (0.85, 260.0, 28.0),
    (0.95, 450.0, 36.0),
    (1.0, 800.0, 42.0),
];
/// The same where load adds next to nothing.
pub(crate) const FLAT: [(f64, f64, f64); 4] = [
    (0.0, 150.0, 15.0),
    (0.5, 151.0, 15.01),
    (0.9, 153.0, 15.03),
    (1.0, 160.0, 15.1),
];
/// What moves a request costs here, milliseconds.
pub(crate) const MOVEMENT_MS: f64 = 5.0;
pub(crate) const REGIONS: [&str; 3] = ["a", "b", "c"];

/// What a test wants otherwise.
#[derive(Clone, Copy)]
pub(crate) struct Fleet {
    pub(crate) movement_ms: f64,
    pub(crate) max_step: f64,
    /// Demand over what the fleet is usually given.
    pub(crate) demand: f64,
    /// Engines' described capacity over what it usually is.
    pub(crate) described: f64,
    /// Of three.
    pub(crate) regions: usize,
    /// Requests of the second kind are as long as those of the first.
    pub(crate) alike: bool,
    /// Load adds next to no latency.
    pub(crate) flat: bool,
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            movement_ms: MOVEMENT_MS,
            max_step: 0.1,
            demand: 1.0,
            described: 1.0,
            regions: 3,
            alike: false,
            flat: false,
        }
    }
}

impl Fleet {
    pub(crate) fn topology(&self) -> Topology {
        Topology::parse("closed-loop.toml", &self.text()).expect("good")
    }

    pub(crate) fn curve(&self) -> &'static [(f64, f64, f64)] {
        if self.flat { &FLAT } else { &CURVE }
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "[solver]\nmethod = \"network\"\ndemand = \"signals\"\nmovement_ms = {:?}\n\
             max_step = {:?}\ntable_bits = 8\n",
            self.movement_ms, self.max_step
        );
        text += "[[profiles]]\nkind = \"k\"\npoints = [\n";
        for (utilisation, ttft, tbot) in self.curve() {
            let _ = writeln!(
                text,
                "{{ utilisation = {utilisation:?}, ttft_ms = {ttft:?}, tbot_ms = {tbot:?} }},"
            );
        }
        text += "]\n";
        for region in &REGIONS[..self.regions] {
            let _ = writeln!(
                text,
                "[[frontends]]\nname = \"{region}\"\nregion = \"{region}\""
            );
        }
        for (r, region) in REGIONS[..self.regions].iter().enumerate() {
            for i in 1..=2 {
                let models = if r == 0 && self.regions > 1 {
                    "[\"m\"]"
                } else {
                    "[\"m\", \"long\"]"
                };
                let _ = writeln!(
                    text,
                    "[[engines]]\nname = \"{region}{i}\"\nregion = \"{region}\"\nkind = \"k\"\n\
                     models = {models}\naddress = \"127.0.0.1:90{r}{i}\"\n\
                     capacity = {{ rps = {:?}, prompt_tokens = 500, output_tokens = 100 }}",
                    60.0 * self.described
                );
            }
        }
        for (f, from) in REGIONS[..self.regions].iter().enumerate() {
            for (t, to) in REGIONS[..self.regions].iter().enumerate() {
                let ms = [[2, 30, 30], [30, 2, 45], [30, 45, 2]][f][t];
                let _ = writeln!(
                    text,
                    "[[rtt]]\nfrontend = \"{from}\"\nregion = \"{to}\"\nms = {ms}"
                );
            }
        }
        text += "[[routes]]\nname = \"chat\"\nmodel = \"m\"\nprompt_tokens = 500\n\
                 output_tokens = 100\n";
        let (prompt, output) = if self.alike { (500, 100) } else { (1_500, 200) };
        let _ = writeln!(
            text,
            "[[routes]]\nname = \"long\"\nmodel = \"long\"\nprompt_tokens = {prompt}\n\
             output_tokens = {output}"
        );
        // As much work either way.
        let more = if self.alike { 7.0 / 3.0 } else { 1.0 };
        let demand = [("a", 95.0, 6.0), ("b", 60.0, 10.0), ("c", 45.0, 8.0)];
        for (frontend, chat, long) in demand.into_iter().take(self.regions) {
            for (route, rps) in [("chat", chat), ("long", more * long)] {
                let _ = writeln!(
                    text,
                    "[[demand]]\nfrontend = \"{frontend}\"\nroute = \"{route}\"\nrps = {:?}",
                    rps * self.demand
                );
            }
        }
        text
    }
}
