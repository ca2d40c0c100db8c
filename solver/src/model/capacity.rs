//! What an engine can do, from what an operator knows.
//!
//! Internally one request of P prompt and O output tokens takes an engine
//! `P / prefill_tps + O / decode_tps` engine-seconds. Two token rates say it directly. `rps` at a
//! mix is one equation for two rates, so their ratio is assumed (`prefill_decode_ratio`): scaled
//! that way, ten times the tokens is exactly ten times the work. `max_running` needs a latency
//! besides (Little's law), taken from the profile at full load, and is marked assumed.

use toml::Spanned;

use super::topology::{Capacity, Engine, Mix, Profile, TopologyError, locate::Source, raw};
use super::units::{NonNegative, Positive};

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

impl Mix {
    /// Engine-seconds that one request of this mix takes of an engine with all replicas ready.
    #[must_use]
    pub fn engine_seconds(self, capacity: &Capacity) -> f64 {
        // In units of the stated mix, so that the stated mix is exactly 1 / rps.
        let at = |mix: Mix| {
            mix.prompt_tokens.value() * (capacity.decode_tps.value() / capacity.prefill_tps.value())
                + mix.output_tokens.value()
        };
        at(self) / at(capacity.mix) / capacity.rps.value()
    }
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
    let key = |suffix: &str| format!("engines {:?}: capacity.{suffix}", stated.name);
    let tokens = |suffix, value: &raw::Number, default: NonNegative| {
        source.number_or::<NonNegative>(key(suffix), value.as_ref(), default.value())
    };
    let mix = Mix {
        prompt_tokens: tokens(
            "prompt_tokens",
            &raw.prompt_tokens,
            stated.default_mix.prompt_tokens,
        )?,
        output_tokens: tokens(
            "output_tokens",
            &raw.output_tokens,
            stated.default_mix.output_tokens,
        )?,
    };
    if mix.prompt_tokens.value() + mix.output_tokens.value() <= 0.0 {
        let problem = key("prompt_tokens and output_tokens are both 0: one must be above 0");
        return Err(source.refuse(given.span(), problem));
    }
    let kv_tokens: Option<Positive> = match &raw.kv_tokens {
        Some(value) => Some(source.number(key("kv_tokens"), value)?),
        None => None,
    };
    let capacity = match (
        &raw.rps,
        &raw.prefill_tps,
        &raw.decode_tps,
        &raw.max_running,
    ) {
        (Some(rps), None, None, None) => {
            let rps: Positive = source.number(key("rps"), rps)?;
            from_rate(source, stated, given, mix, rps, false)
        }
        (None, Some(prefill), Some(decode), None) => {
            let prefill_tps: Positive = source.number(key("prefill_tps"), prefill)?;
            let decode_tps: Positive = source.number(key("decode_tps"), decode)?;
            let seconds = mix.prompt_tokens.value() / prefill_tps.value()
                + mix.output_tokens.value() / decode_tps.value();
            let rps = in_range(source, stated, given, 1.0 / seconds)?;
            Ok(Capacity {
                rps,
                mix,
                prefill_tps,
                decode_tps,
                kv_tokens: None,
                assumed: false,
            })
        }
        (None, None, None, Some(running)) => {
            let running: Positive = source.number(key("max_running"), running)?;
            let (ttft_ms, tbot_ms) = stated.profile.at(1.0);
            let latency_ms = (ttft_ms + mix.output_tokens.value() * tbot_ms).max(1.0);
            let rps = in_range(source, stated, given, running.value() * 1e3 / latency_ms)?;
            from_rate(source, stated, given, mix, rps, true)
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
    mix: Mix,
    rps: Positive,
    assumed: bool,
) -> Result<Capacity, TopologyError> {
    let tokens = mix.prompt_tokens.value() / stated.ratio + mix.output_tokens.value();
    let decode_tps = in_range(source, stated, given, rps.value() * tokens)?;
    let prefill_tps = in_range(source, stated, given, decode_tps.value() * stated.ratio)?;
    Ok(Capacity {
        rps,
        mix,
        prefill_tps,
        decode_tps,
        kv_tokens: None,
        assumed,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn mix(prompt: f64, output: f64) -> Mix {
        Mix {
            prompt_tokens: NonNegative::new(prompt).unwrap(),
            output_tokens: NonNegative::new(output).unwrap(),
        }
    }

    fn capacity() -> Capacity {
        Capacity {
            rps: Positive::new(100.0).unwrap(),
            mix: mix(500.0, 100.0),
            prefill_tps: Positive::new(150_000.0).unwrap(),
            decode_tps: Positive::new(15_000.0).unwrap(),
            kv_tokens: None,
            assumed: false,
        }
    }

    #[test]
    fn the_stated_mix_takes_exactly_one_over_the_rate() {
        assert_eq!(mix(500.0, 100.0).engine_seconds(&capacity()), 0.01);
    }

    #[test]
    fn ten_times_the_tokens_is_exactly_ten_times_the_work() {
        assert_eq!(mix(5000.0, 1000.0).engine_seconds(&capacity()), 0.1);
    }
}
