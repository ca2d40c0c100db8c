//! How tests get at explanations: by the program and by its parts, and that terms add up.

use std::process::Command;

use pointsman_solver::model::explain::{Explanation, Micros, SourceWhy, Wanted, explain};
use pointsman_solver::model::topology::Topology;
use pointsman_solver::model::what_if::set::{Setting, apply};
use pointsman_solver::model::what_if::{described, solve};
use rand::Rng as _;
use rand::rngs::StdRng;

/// What the program prints, and whether it went well.
pub(crate) fn said(arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman-solver"));
    let output = command.args(arguments).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

/// A topology with settings of the command line.
pub(crate) fn set(text: &str, settings: &[&str]) -> Topology {
    let settings: Vec<Setting> = settings.iter().map(|s| s.parse().unwrap()).collect();
    apply("t.toml", text, &settings).unwrap()
}

/// Why its weights are what they are.
pub(crate) fn why(topology: &Topology) -> Explanation {
    let ground = solve(topology, &described(topology)).unwrap();
    explain(topology, &ground, &Wanted::default()).unwrap()
}

/// One source of an explanation.
pub(crate) fn of<'a>(why: &'a Explanation, frontend: &str, class: &str) -> &'a SourceWhy {
    let found = |s: &&SourceWhy| s.frontend == frontend && s.class == class;
    why.sources.iter().find(found).unwrap()
}

/// Totals are the sums of what is shown, and nothing is below the best.
pub(crate) fn adds_up(why: &Explanation) -> usize {
    let mut choices = 0;
    for source in &why.sources {
        let least = source.choices.iter().filter_map(|c| c.total_ms);
        let least = least.chain(source.refuse_ms).min();
        assert_eq!(source.one_more_ms, least);
        for c in &source.choices {
            let Some(total) = c.total_ms else {
                assert_eq!((c.capacity_ms, c.beyond_ms), (None, None));
                continue;
            };
            let terms = [
                c.network_ms,
                c.service_ms,
                c.congestion_ms,
                c.capacity_ms.unwrap(),
            ];
            let more = [c.movement_ms, c.share_ms, c.cost_ms];
            // As text, since that is what people add.
            let shown = |ms: &Micros| ms.to_string().replace('.', "").parse::<i64>().unwrap();
            let sum: i64 = terms.iter().chain(&more).map(shown).sum();
            assert_eq!(sum, shown(&total), "{} at {}", c.engine, source.frontend);
            assert_eq!(c.beyond_ms.unwrap(), total - least.unwrap());
            assert!(c.beyond_ms.unwrap() >= Micros(0));
            assert!(c.capacity_ms.unwrap() >= Micros(0), "{c:?}");
            choices += 1;
        }
    }
    choices
}

/// A fleet with flat latency and one class, so that costs are linear and differences exact.
pub(crate) fn random_fleet(rng: &mut StdRng, method: &str, headroom: f64) -> String {
    let mut text = format!(
        "[solver]\ndemand = \"configured\"\nheadroom = {headroom}\nmethod = \"{method}\"\n\
         [[profiles]]\nkind = \"flat\"\npoints = [{{ utilisation = 0.0, ttft_ms = 200.0, tbot_ms \
         = 0.0 }}, {{ utilisation = 1.0, ttft_ms = 200.0, tbot_ms = 0.0 }}]\n\
         [[routes]]\nname = \"chat\"\nmodel = \"m\"\nprompt_tokens = 500\noutput_tokens = 100\n"
    );
    let (frontends, engines) = (rng.random_range(2..5), rng.random_range(2..5));
    for f in 0..frontends {
        let rps = rng.random_range(10..120);
        text += &format!(
            "[[frontends]]\nname = \"f{f}\"\n[[demand]]\nfrontend = \"f{f}\"\nroute = \
             \"chat\"\nrps = {rps}\n"
        );
        for e in 0..engines {
            let ms = rng.random_range(1..90);
            text += &format!("[[rtt]]\nfrontend = \"f{f}\"\nengine = \"e{e}\"\nms = {ms}\n");
        }
    }
    for e in 0..engines {
        let rps = rng.random_range(40..140);
        text += &format!(
            "[[engines]]\nname = \"e{e}\"\nkind = \"flat\"\nmodels = [\"m\"]\naddress = \
             \"127.0.0.1:1\"\ncapacity = {{ rps = {rps}, prompt_tokens = 500, output_tokens = 100 \
             }}\n"
        );
    }
    text
}
