//! A fit as a piece of a topology, as JSON, and in words.
//!
//! The TOML is made for people: its comments say what was measured, what was assumed and how far
//! off it may be, and every number may be edited. It stands at the end of a topology as it is.

use std::fmt::Write;

use serde::Serialize;

use super::context::Told;
use super::work::Split;
use super::{Fit, MixResidual, Residual, Tokens};
use crate::model::topology::Point;

#[derive(Serialize)]
struct Report<'a> {
    kind: &'a str,
    model: &'a str,
    samples: usize,
    saturated_samples: usize,
    reference: Tokens,
    capacity: CapacityReport,
    prompt_share: f64,
    prompt_steps: f64,
    points: Vec<PointReport>,
    error: Residual,
    separability_error: Option<f64>,
    mixes: &'a [MixResidual],
}

#[derive(Serialize)]
struct CapacityReport {
    prefill_tps: f64,
    decode_tps: f64,
    reference_rps: f64,
    /// "measured" or "lower_bound".
    bound: &'static str,
    split: Split,
    /// Context at which an answer's token costs twice what it does with none.
    context_tokens: Option<f64>,
    context: Told,
    kv_tokens: Option<f64>,
}

#[derive(Serialize)]
struct PointReport {
    utilisation: f64,
    ttft_ms: f64,
    tbot_ms: f64,
}

/// Fits as a JSON document.
#[must_use]
pub fn json(fits: &[Fit]) -> String {
    let reports: Vec<Report<'_>> = fits.iter().map(report).collect();
    let value = serde_json::json!({ "fits": reports });
    format!("{value}\n")
}

fn report(fit: &Fit) -> Report<'_> {
    let point = |p: &Point| PointReport {
        utilisation: p.utilisation,
        ttft_ms: p.ttft_ms,
        tbot_ms: p.tbot_ms,
    };
    Report {
        kind: &fit.kind,
        model: &fit.model,
        samples: fit.samples.0,
        saturated_samples: fit.samples.1,
        reference: fit.reference,
        capacity: CapacityReport {
            prefill_tps: fit.prefill_tps(),
            decode_tps: fit.decode_tps(),
            reference_rps: fit.capacity_rps(fit.reference),
            bound: bound(fit),
            split: fit.work.split,
            context_tokens: fit.work.context.tokens,
            context: fit.work.context.told,
            kv_tokens: fit.kv_tokens,
        },
        prompt_share: fit.work.prompt_share,
        prompt_steps: fit.steps,
        points: fit.points.iter().map(point).collect(),
        error: fit.error,
        separability_error: fit.work.separability_error,
        mixes: &fit.residuals,
    }
}

fn bound(fit: &Fit) -> &'static str {
    match fit.work.seen_full {
        true => "measured",
        false => "lower_bound",
    }
}

/// Fits as `[[profiles]]` of a topology.
#[must_use]
pub fn toml(fits: &[Fit]) -> String {
    let mut text = String::from(
        "# Latency and capacity by engine kind, as `pointsman-solver fit` found them. Put this at the\n\
         # end of a topology, or below its engines; every number may be edited. An engine of the kind\n\
         # that gives no `capacity` of its own uses the one here, for each of its replicas. With\n\
         # `context_tokens`, `decode_tps` is that of answers that read nothing.\n",
    );
    for fit in fits {
        text.push('\n');
        for line in words(fit).lines() {
            let _ = writeln!(text, "# {line}");
        }
        let _ = writeln!(text, "[[profiles]]");
        let _ = writeln!(text, "kind = {}", quoted(kind(fit)));
        if !fit.model.is_empty() {
            let _ = writeln!(text, "model = {}", quoted(&fit.model));
        }
        let prompt = figures(fit.reference.prompt_tokens());
        let _ = writeln!(text, "prompt_tokens = {prompt}");
        if fit.reference.cached_tokens > 0.0 {
            let cached = figures(fit.reference.cached_tokens);
            let _ = writeln!(text, "cached_tokens = {cached}");
        }
        let _ = writeln!(text, "prompt_share = {:.3}", fit.work.prompt_share);
        let _ = writeln!(text, "prompt_steps = {:.1}", fit.steps);
        if fit.work.split != Split::Assumed {
            let output = figures(fit.reference.output_tokens);
            let _ = writeln!(text, "output_tokens = {output}");
        }
        let _ = writeln!(text, "{}", capacity(fit));
        text.push_str("points = [\n");
        for p in &fit.points {
            let _ = writeln!(
                text,
                "    {{ utilisation = {:.4}, ttft_ms = {:.3}, tbot_ms = {:.3} }},",
                p.utilisation, p.ttft_ms, p.tbot_ms
            );
        }
        text.push_str("]\n");
    }
    text
}

/// A fit's capacity as a key of a profile, and how much of it is known.
fn capacity(fit: &Fit) -> String {
    let key = |name: &str, tokens: Option<f64>| {
        tokens.map_or_else(String::new, |t| format!(", {name} = {}", figures(t)))
    };
    let bound = match fit.work.seen_full {
        true => "measured",
        false => "a lower bound: no sample saw the engine full",
    };
    let assumed = match fit.work.context.told {
        Told::Assumed => "; context_tokens is assumed",
        Told::Mixes | Told::Given | Told::Level => "",
    };
    format!(
        "capacity = {{ prefill_tps = {}, decode_tps = {}{}{} }} # {bound}{assumed}",
        figures(fit.prefill_tps()),
        figures(fit.decode_tps()),
        key("context_tokens", fit.work.context.tokens),
        key("kv_tokens", fit.kv_tokens),
    )
}

/// What an answer's token costs by what it reads, and how that was told, in words.
fn context(fit: &Fit) -> String {
    let how = match fit.work.context.told {
        Told::Mixes => "by what filled the engine at unlike mixes",
        Told::Given => "as given",
        Told::Level => "for tokens come as fast under load",
        Told::Assumed => {
            "ASSUMED: fill the engine with three mixes of unlike prompts and answers to know, or give \
             --context-tokens"
        }
    };
    match fit.work.context.tokens {
        Some(tokens) => format!(
            "a token of an answer costs twice as much where it reads {tokens:.0} tokens, {how}"
        ),
        None => format!("a token of an answer costs the same whatever it reads, {how}"),
    }
}

/// A fit in words, several lines.
#[must_use]
pub fn words(fit: &Fit) -> String {
    let mut text = String::new();
    let percent = |part: f64| format!("{:.1} %", part * 100.0);
    let _ = writeln!(
        text,
        "{}: {} samples, {} of them of a full engine",
        fit.name(),
        fit.samples.0,
        fit.samples.1
    );
    let Tokens {
        uncached_tokens,
        output_tokens,
        ..
    } = fit.reference;
    let _ = writeln!(
        text,
        "capacity: {}{} requests/s of {uncached_tokens:.0} uncached prompt and {output_tokens:.0} \
         output tokens{}",
        if fit.work.seen_full { "" } else { "at least " },
        figures(fit.capacity_rps(fit.reference)),
        match fit.work.seen_full {
            true => "",
            false => "; no sample saw the engine full, sweep higher for more",
        }
    );
    let split = match fit.work.split {
        Split::Mixes => "by what filled the engine at unlike mixes",
        Split::Steps => "by the first token at rest and how the time between tokens rises",
        Split::Rest => "by the first token at rest and what filled the engine",
        Split::Assumed => "ASSUMED: sweep a second, unlike mix to know",
    };
    let _ = writeln!(text, "prefill told from decode {split}");
    let _ = writeln!(text, "{}", context(fit));
    let _ = writeln!(
        text,
        "error: TTFT {} (worst {}), TBOT {} (worst {})",
        percent(fit.error.ttft_mean),
        percent(fit.error.ttft_worst),
        percent(fit.error.tbot_mean),
        percent(fit.error.tbot_worst)
    );
    if let Some(off) = fit.work.separability_error {
        let _ = writeln!(
            text,
            "mixes filled the engine up to {} off one work",
            percent(off)
        );
    }
    for mix in fit.residuals.iter().filter(|_| fit.residuals.len() > 1) {
        let seen = mix.saturation_rps.map_or_else(String::new, |rps| {
            format!(
                ", full at {} requests/s (fitted {})",
                figures(rps),
                figures(mix.fitted_rps)
            )
        });
        let _ = writeln!(
            text,
            "mix {:.0}:{:.0}: {} samples, TTFT {}, TBOT {}{seen}",
            mix.tokens.uncached_tokens,
            mix.tokens.output_tokens,
            mix.samples,
            percent(mix.residual.ttft_mean),
            percent(mix.residual.tbot_mean)
        );
    }
    text
}

/// The kind as a topology needs it: never empty.
fn kind(fit: &Fit) -> &str {
    match fit.kind.as_str() {
        "" => "engine",
        kind => kind,
    }
}

/// A number with four figures or all of its whole ones; with a point, as floats are written.
fn figures(value: f64) -> String {
    let places = match value.abs().max(1e-9).log10().floor() as i32 {
        magnitude if magnitude >= 3 => 1,
        magnitude => (3 - magnitude).clamp(1, 9) as usize,
    };
    format!("{value:.places$}")
}

/// A text as TOML has it: quoted, what must not stand in it escaped.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_figures_and_texts_are_quoted() {
        assert_eq!(figures(12_345.678), "12345.7");
        assert_eq!(figures(12.345_67), "12.35");
        assert_eq!(figures(0.012_345_6), "0.01235");
        assert_eq!(figures(0.0), "0.000000000");
        let back = |text: &str| {
            let line = format!("a = {}", quoted(text));
            line.parse::<toml::Table>().unwrap()["a"]
                .as_str()
                .map(str::to_owned)
        };
        for text in ["plain", "a \"quoted\" one", "back\\slash", "two\nlines"] {
            assert_eq!(back(text).as_deref(), Some(text));
        }
    }
}
