//! Where the times and tokens of one answer are counted: as they pass, and at its end.
//!
//! The meter measures and knows nobody; this knows whose numbers they are.

use super::attempt::Attempt;
use super::meter::Meter;
use super::shard::Shard;
use super::target::Target;
use crate::clock::monotonic_ns;

/// The accounts of one answer.
pub(crate) struct Tally<'a> {
    shard: &'a Shard,
    attempt: &'a Attempt,
    target: Option<&'a Target>,
    started_ns: u64,
    /// A refusal is quick: its time would make an engine that fails look fast.
    is_success: bool,
}

impl<'a> Tally<'a> {
    /// The accounts of an answer to a request that began at `started_ns`.
    pub(crate) fn new(
        shard: &'a Shard,
        attempt: &'a Attempt,
        target: Option<&'a Target>,
        started_ns: u64,
        status: u16,
    ) -> Self {
        Self {
            shard,
            attempt,
            target,
            started_ns,
            is_success: (200..300).contains(&status),
        }
    }

    /// Counts the gap between two tokens.
    pub(crate) fn gap(&self, gap_us: u64) {
        self.attempt.measure(|cell| cell.tbot_us(gap_us));
    }

    /// Counts the time to a first token as soon as it went to the client: its stream may run for
    /// long, and by then the time is old news.
    pub(crate) fn first_token(&self, ttft_us: u64, is_json: bool) {
        if !self.is_success {
            return;
        }
        let client_us = monotonic_ns().saturating_sub(self.started_ns) / 1_000;
        self.shard.metrics.ttft.observe_us(client_us);
        self.attempt.measure(|cell| cell.ttft_us(ttft_us));
        // What comes whole takes as long as its tokens, which it tells at its end.
        if !is_json || self.attempt.awaits_stream() == Some(true) {
            self.attempt.compares(ttft_us, 0);
        }
        let signals = self.shard.signals.borrow();
        let segment = signals.segment();
        if let Some(cell) = segment.pair(self.attempt.pair.0, self.attempt.pair.1) {
            cell.ttft_us(ttft_us);
        }
        let class = self
            .target
            .and_then(|target| segment.class(target.class.0, target.class.1));
        if let Some(cell) = class {
            cell.client_ttft_us(client_us);
        }
    }

    /// Counts the tokens of an answer that has ended, and the gaps between them.
    pub(crate) fn tokens(&self, meter: &Meter) {
        if !self.is_success {
            return;
        }
        let tokens = meter.tokens();
        // One that does not say how many tokens it has is compared with nothing.
        if let (true, Some(took_us), Some(tokens)) = (meter.is_json(), meter.ttft_us(), &tokens) {
            self.attempt.compares(took_us, tokens.output);
        }
        let signals = self.shard.signals.borrow();
        let Some(cell) = signals
            .segment()
            .pair(self.attempt.pair.0, self.attempt.pair.1)
        else {
            return;
        };
        let (sum_us, gaps) = meter.gaps_us();
        if gaps > 0 {
            cell.tbot_us(sum_us, gaps);
        }
        if let Some(tokens) = tokens {
            cell.tokens(
                tokens.prompt,
                tokens.cached,
                tokens.output,
                tokens.estimated,
            );
        }
    }
}
