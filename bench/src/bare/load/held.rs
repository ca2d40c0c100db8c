//! Tokens that fell due in a window and came in it, by the pace that they fell due in.
//!
//! Not what was read between two instants: of streams that step together a window of 125.5 paces
//! has 125 steps or 126, as its edges lie, and the rate would say so. A stream that keeps up has
//! one token in each pace, wherever the window begins; so whole paces are counted, and the last of
//! them is left out, whose tokens may still be on their way.

/// Paces that are told apart; those of a longer window do not count.
const MOST_PACES: u64 = 1 << 20;

/// Tokens of each pace of a window.
pub(super) struct Held {
    began_ns: u64,
    /// 0: streams have none, and nothing is held.
    pace_ns: u64,
    tokens: Vec<u64>,
}

impl Held {
    /// A window that begins, of streams whose tokens are so far apart.
    pub(super) fn new(began_ns: u64, pace_us: u64) -> Self {
        Self {
            began_ns,
            pace_ns: pace_us.saturating_mul(1_000),
            tokens: Vec::new(),
        }
    }

    /// Counts a token that was due at `due_ns`, by the engine's word, and read at `now_ns`.
    pub(super) fn count(&mut self, due_ns: u64, now_ns: u64) {
        let Some(since_ns) = due_ns.checked_sub(self.began_ns) else {
            return;
        };
        let Some(pace) = since_ns.checked_div(self.pace_ns) else {
            return;
        };
        // One from the future is not an engine's.
        if due_ns > now_ns || pace >= MOST_PACES {
            return;
        }
        let pace = pace as usize;
        if pace >= self.tokens.len() {
            self.tokens.resize(pace + 1, 0);
        }
        self.tokens[pace] += 1;
    }

    /// Tokens a second that fell due and came, over the whole paces until `ended_ns` but the last;
    /// `None` of a window that has no two.
    pub(super) fn per_s(&self, ended_ns: u64) -> Option<f64> {
        let lasted_ns = ended_ns.saturating_sub(self.began_ns);
        let paces = lasted_ns.checked_div(self.pace_ns)?.min(MOST_PACES);
        let counted = paces.checked_sub(1).filter(|&paces| paces > 0)?;
        let tokens: u64 = self.tokens.iter().take(counted as usize).sum();
        Some(tokens as f64 * 1e9 / (counted * self.pace_ns) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE_NS: u64 = 20_000_000;
    const STREAMS: u64 = 1_000;

    /// What a window finds that begins and ends then, of streams that go on for four seconds:
    /// `phase` is when each of them has its tokens within a pace, and each token comes `delay_ns`
    /// after it was due. Beside it what came in the window.
    fn found(from_ns: u64, to_ns: u64, delay_ns: u64, phase: impl Fn(u64) -> u64) -> (f64, u64) {
        let (mut held, mut came) = (Held::new(from_ns, 20_000), 0);
        for stream in 0..STREAMS {
            for step in 0..200 {
                let due_ns = step * PACE_NS + phase(stream);
                let now_ns = due_ns + delay_ns;
                if (from_ns..to_ns).contains(&now_ns) {
                    held.count(due_ns, now_ns);
                    came += 1;
                }
            }
        }
        (held.per_s(to_ns).unwrap(), came)
    }

    #[test]
    fn streams_that_keep_up_are_their_whole_rate_wherever_the_edges_lie() {
        let together = |_| 0;
        let evenly = |stream| stream * PACE_NS / STREAMS;
        let mut steps = std::collections::BTreeSet::new();
        for from_ns in (1_000_000_000..1_020_000_000).step_by(6_700_001) {
            for lasts_ns in [2_500_000_000, 2_501_300_000, 2_519_999_999] {
                for delay_ns in [1, 400_000, 9_000_000] {
                    let to_ns = from_ns + lasts_ns;
                    let (rate, came) = found(from_ns, to_ns, delay_ns, together);
                    assert_eq!(rate, 50_000.0, "{from_ns} {lasts_ns} {delay_ns}");
                    steps.insert(came);
                    let (rate, _) = found(from_ns, to_ns, delay_ns, evenly);
                    assert_eq!(rate, 50_000.0, "{from_ns} {lasts_ns} {delay_ns}");
                }
            }
        }
        // What came differs by a whole step, and would have to be forgiven.
        assert_eq!(steps.into_iter().collect::<Vec<u64>>(), [125_000, 126_000]);
    }

    #[test]
    fn streams_a_hundredth_slower_are_seen_to_be() {
        // Each stream has a token every 20.2 ms.
        let slower_ns = PACE_NS * 101 / 100;
        let mut held = Held::new(1_000_000_000, 20_000);
        for stream in 0..STREAMS {
            for step in 0..250 {
                let due_ns = step * slower_ns + stream * slower_ns / STREAMS;
                if (1_000_000_000..3_500_000_000).contains(&due_ns) {
                    held.count(due_ns, due_ns + 1);
                }
            }
        }
        let rate = held.per_s(3_500_000_000).unwrap();
        assert!((49_490.0..49_520.0).contains(&rate), "{rate}");
    }

    #[test]
    fn tokens_of_before_of_never_and_of_after_the_window_do_not_count() {
        let mut held = Held::new(1_000, 1);
        held.count(999, 1_500);
        held.count(u64::MAX, 1_500);
        held.count(1_000, 1_500);
        held.count(1_999, 2_000);
        held.count(2_000, 2_100);
        assert_eq!(held.per_s(3_000), Some(2e6));
        assert_eq!(held.per_s(2_999), None);
        assert_eq!(Held::new(1_000, 0).per_s(9_000_000), None);
    }
}
