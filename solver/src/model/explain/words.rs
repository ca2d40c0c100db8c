//! An explanation in sentences, made of nothing but its numbers.

use super::{Choice, Full, Limit, LimitKind, SourceWhy, short};

/// A rate below this is nothing to talk of, requests per second.
const NO_RATE: f64 = 5e-4;

/// The sentences of one source.
pub(super) fn words(why: &SourceWhy, engines: &[Limit]) -> Vec<String> {
    let mut words = Vec::new();
    if why.choices.is_empty() {
        words.push("no engine can take it: all of it is refused".to_owned());
        return words;
    }
    if let Some(by) = why.fixed_by {
        words.push(format!("its weights are {}, not chosen", by.words()));
    }
    let used: Vec<&Choice> = why
        .choices
        .iter()
        .filter(|c| c.rate_rps > NO_RATE)
        .collect();
    if used.is_empty() {
        words.push(idle(why));
    } else if why.fixed_by.is_none() {
        let last = used.len() - 1;
        let parts = used
            .iter()
            .enumerate()
            .map(|(i, choice)| part(choice, i, last));
        words.push(parts.collect::<Vec<_>>().join("; "));
    }
    if why.shed_rps > NO_RATE {
        let refused = short(why.shed_rps);
        words.push(format!(
            "{refused} req/s are refused: nothing that may serve them has room"
        ));
    }
    let unused = why.choices.iter().filter(|c| c.rate_rps <= NO_RATE);
    let best = unused
        .filter_map(|c| Some((c.beyond_ms?, c)))
        .min_by_key(|(beyond, _)| *beyond);
    if let (Some((beyond, choice)), true) = (best, why.fixed_by.is_none() && !used.is_empty()) {
        let engine = &choice.engine;
        words.push(match beyond.0 {
            0 => format!("{engine} would cost as much"),
            _ => format!("{engine} would cost {} ms more", beyond.short()),
        });
    }
    let mine = |limit: &&Limit| used.iter().any(|c| Some(&c.engine) == limit.of.as_ref());
    words.extend(engines.iter().filter(mine).filter_map(limit));
    words.extend(why.limits.iter().filter_map(limit));
    words
}

/// A source that sends nothing worth telling.
fn idle(why: &SourceWhy) -> String {
    if why.demand_rps > NO_RATE {
        return "nothing of it is routed".to_owned();
    }
    let first = &why.choices[0];
    let engine = &first.engine;
    format!("no demand: its first request would go to {engine}")
}

/// What one engine that is used does for the source.
fn part(choice: &Choice, at: usize, last: usize) -> String {
    let engine = &choice.engine;
    let rate = short(choice.rate_rps);
    let squeeze = |what: &str| match choice.total_ms {
        Some(total) => format!(
            "{engine} {what}: {} ms to squeeze one more in",
            total.short()
        ),
        None => format!("{engine} {what}: no room for one more"),
    };
    let full = choice.full.map(|full| match full {
        Full::Capacity => squeeze("is full"),
        Full::Kv => squeeze("has no KV memory left"),
    });
    let distance = format!(
        "{engine} costs {} ms of distance",
        choice.network_ms.short()
    );
    match (full, at, last) {
        (Some(full), 0, _) => full,
        (Some(full), _, _) => format!("{full}, and it serves {rate} req/s"),
        (None, 0, 0) => format!(
            "{engine} has room for all: {distance}",
            distance = near(choice)
        ),
        (None, 0, _) => format!("{engine} serves {rate} req/s: {}", near(choice)),
        (None, at, last) if at == last => format!("{distance} and wins the last {rate} req/s"),
        (None, _, _) => format!("{distance} and wins {rate} req/s"),
    }
}

/// What a request costs at an engine that is not full.
fn near(choice: &Choice) -> String {
    match choice.total_ms {
        Some(total) => format!("{} ms a request", total.short()),
        None => "no price".to_owned(),
    }
}

/// What one more unit would save; nothing where that is nothing.
fn limit(limit: &Limit) -> Option<String> {
    let of = limit.of.as_deref().unwrap_or_default();
    if limit.saves_ms.0 <= 0 {
        return None;
    }
    let saves = limit.saves_ms.short();
    Some(match limit.kind {
        LimitKind::Capacity => {
            format!("capacity at {of} is worth {saves} ms/s a request")
        }
        LimitKind::Kv => format!("KV memory at {of} is worth {saves} ms/s a 1000 tokens"),
        LimitKind::MaxStep => {
            format!("it moves as much as max_step allows: one more would save {saves} ms")
        }
        LimitKind::MaxShare => {
            format!("{of} has its max_share: one more there would save {saves} ms")
        }
        LimitKind::Misfit => format!(
            "{of} answers unlike its profile and gains no share: one more there would save {saves} ms"
        ),
        LimitKind::Penalty => {
            format!("{of} is penalised and gains no share: one more there would save {saves} ms")
        }
        LimitKind::RegionShare => {
            format!("region {of} has its max_share: one more there would save {saves} ms")
        }
        LimitKind::Fixed => format!("a request that could choose would save {saves} ms"),
    })
}
