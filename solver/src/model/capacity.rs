//! What an engine can do, from what an operator knows.
//!
//! Internally one request of P prompt and O output tokens takes an engine
//! `P / prefill_tps + O / decode_tps` engine-seconds. Two token rates say it directly. `rps` at a
//! mix is one equation for two rates, so their ratio is assumed (`prefill_decode_ratio`): scaled
//! that way, ten times the tokens is exactly ten times the work. `max_running` needs a latency
//! besides (Little's law), taken from the profile at full load, and is marked assumed.
//!
//! With `context_tokens` an answer's token costs more the more it reads (`model::context`), and
//! `decode_tps` is the rate of tokens that read nothing. What a mix costs is in `model::mix`.

use toml::Spanned;

use super::mix;
use super::topology::{Capacity, Engine, Mix, Profile, TopologyError, locate::Source, raw};
use super::units::Positive;

/// Most that ready replicas beyond the described number can raise a capacity.
const MOST_GROWTH: f64 = 8.0;

/// What the readers of one engine's capacity need beside it.
pub(super) struct Stated<'a> {
    /// The engine.
    pub(super) name: &'a str,
    /// Mix of the first route it serves.
    pub(super) default_mix: Mix,
    /// Assumed rate of prefill over rate of decode.
    pub(super) ratio: f64,
    /// Its latency curve for that route.
    pub(super) profile: &'a Profile,
}

impl Capacity {
    /// That of so many servers of one kind, at least one.
    #[must_use]
    pub(super) fn times(self, servers: f64) -> Self {
        let many = |one: Positive| Positive::new(one.value() * servers).unwrap_or(one);
        Self {
            rps: many(self.rps),
            prefill_tps: many(self.prefill_tps),
            decode_tps: many(self.decode_tps),
            kv_tokens: self.kv_tokens.map(many),
            ..self
        }
    }
}

/// Share of the described capacity that ready replicas leave.
#[must_use]
pub(crate) fn ready_share(engine: &Engine, ready: Option<u32>) -> f64 {
    ready.map_or(1.0, |n| {
        (f64::from(n) / f64::from(engine.replicas)).min(MOST_GROWTH)
    })
}

pub(super) fn read(
    source: &Source<'_>,
    stated: &Stated<'_>,
    given: &Spanned<raw::Capacity>,
) -> Result<Capacity, TopologyError> {
    let raw = given.get_ref();
    let key = &|suffix: &str| format!("engines {:?}: capacity.{suffix}", stated.name);
    let tokens = mix::Given {
        prompt: &raw.prompt_tokens,
        cached: &raw.cached_tokens,
        output: &raw.output_tokens,
    };
    let mix = mix::read(source, key, tokens, stated.default_mix, given.span())?;
    let optional = |suffix, value: &raw::Number| -> Result<Option<Positive>, TopologyError> {
        let read = |value| source.number(key(suffix), value);
        value.as_ref().map(read).transpose()
    };
    let kv_tokens = optional("kv_tokens", &raw.kv_tokens)?;
    let context_tokens = optional("context_tokens", &raw.context_tokens)?;
    let from_rate = |rps| from_rate(source, stated, given, (mix, context_tokens), rps);
    let capacity = match (
        &raw.rps,
        &raw.prefill_tps,
        &raw.decode_tps,
        &raw.max_running,
    ) {
        (Some(rps), None, None, None) => {
            let rps: Positive = source.number(key("rps"), rps)?;
            from_rate(rps)
        }
        (None, Some(prefill), Some(decode), None) => {
            let prefill_tps: Positive = source.number(key("prefill_tps"), prefill)?;
            let decode_tps: Positive = source.number(key("decode_tps"), decode)?;
            let seconds = mix.computed_tokens() / prefill_tps.value()
                + mix.answer_tokens(context_tokens) / decode_tps.value();
            let rps = in_range(source, stated, given, 1.0 / seconds)?;
            Ok(Capacity {
                rps,
                mix,
                prefill_tps,
                decode_tps,
                context_tokens,
                kv_tokens: None,
                assumed: false,
            })
        }
        (None, None, None, Some(running)) => {
            let running: Positive = source.number(key("max_running"), running)?;
            let (ttft_ms, tbot_ms) = stated.profile.at(1.0);
            let latency_ms = (ttft_ms + mix.output_tokens.value() * tbot_ms).max(1.0);
            let rps = in_range(source, stated, given, running.value() * 1e3 / latency_ms)?;
            Ok(Capacity {
                assumed: true,
                ..from_rate(rps)?
            })
        }
        _ => {
            let allowed = "one of rps, or prefill_tps with decode_tps, or max_running";
            Err(source.refuse_value(
                format!("engines {:?}: capacity", stated.name),
                given,
                allowed,
            ))
        }
    }?;
    Ok(Capacity {
        kv_tokens,
        ..capacity
    })
}

fn from_rate(
    source: &Source<'_>,
    stated: &Stated<'_>,
    given: &Spanned<raw::Capacity>,
    (mix, context_tokens): (Mix, Option<Positive>),
    rps: Positive,
) -> Result<Capacity, TopologyError> {
    let tokens = mix.computed_tokens() / stated.ratio + mix.answer_tokens(context_tokens);
    let decode_tps = in_range(source, stated, given, rps.value() * tokens)?;
    let prefill_tps = in_range(source, stated, given, decode_tps.value() * stated.ratio)?;
    Ok(Capacity {
        rps,
        mix,
        prefill_tps,
        decode_tps,
        context_tokens,
        kv_tokens: None,
        assumed: false,
    })
}

fn in_range(
    source: &Source<'_>,
    stated: &Stated<'_>,
    given: &Spanned<raw::Capacity>,
    rate: f64,
) -> Result<Positive, TopologyError> {
    Positive::new(rate)
        .filter(|r| (1e-9..1e15).contains(&r.value()))
        .ok_or_else(|| {
            let allowed = "rates from 1e-9 to 1e15 per second";
            source.refuse_value(
                format!("engines {:?}: capacity", stated.name),
                given,
                allowed,
            )
        })
}
