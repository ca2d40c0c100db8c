//! Under which names engines export the signals the solver uses.
//!
//! Model servers rename their series between releases; a scraper that knows one name reads nothing
//! after an upgrade. Each signal has a list of names, newest first: the first one on a page decides.
//! A colon and an underscore are the same here, because relabelling turns one into the other.

/// A fact that engines export about themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Signal {
    /// Requests being worked on.
    Running,
    /// Requests queued in the engine.
    Waiting,
    /// Share of the KV cache in use, 0 to 1.
    KvUse,
    /// Prompt tokens processed since the engine started.
    PromptTokens,
    /// Tokens generated since the engine started.
    OutputTokens,
    /// Tokens looked up in the prefix cache since the engine started.
    PrefixQueries,
    /// Of those, tokens found.
    PrefixHits,
}

/// Every signal, in the order of its number.
pub const SIGNALS: [Signal; Signal::COUNT] = [
    Signal::Running,
    Signal::Waiting,
    Signal::KvUse,
    Signal::PromptTokens,
    Signal::OutputTokens,
    Signal::PrefixQueries,
    Signal::PrefixHits,
];

/// How samples of one name with different labels become one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fold {
    /// Parts of a whole: data-parallel ranks, models.
    Sum,
    /// Shares of separate stores: the fullest is the one that stalls first.
    LargestShare,
}

impl Signal {
    /// How many signals there are.
    pub const COUNT: usize = 7;

    /// Name in our own metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::KvUse => "kv_use",
            Self::PromptTokens => "prompt_tokens",
            Self::OutputTokens => "output_tokens",
            Self::PrefixQueries => "prefix_queries",
            Self::PrefixHits => "prefix_hits",
        }
    }

    /// Names it is exported under, newest first within a family.
    #[must_use]
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Self::Running => &[
                "vllm:num_requests_running",
                "sglang:num_running_reqs",
                "tgi_batch_current_size",
                "llamacpp:requests_processing",
            ],
            Self::Waiting => &[
                "vllm:num_requests_waiting",
                "sglang:num_queue_reqs",
                "tgi_queue_size",
                "llamacpp:requests_deferred",
            ],
            Self::KvUse => &[
                "vllm:kv_cache_usage_perc",
                "vllm:gpu_cache_usage_perc",
                "sglang:token_usage",
                "llamacpp:kv_cache_usage_ratio",
            ],
            Self::PromptTokens => &[
                "vllm:prompt_tokens_total",
                "sglang:prompt_tokens_total",
                "tgi_request_input_length_sum",
                "llamacpp:prompt_tokens_total",
            ],
            Self::OutputTokens => &[
                "vllm:generation_tokens_total",
                "sglang:generation_tokens_total",
                "tgi_request_generated_tokens_sum",
                "llamacpp:tokens_predicted_total",
            ],
            Self::PrefixQueries => &[
                "vllm:prefix_cache_queries_total",
                "vllm:prefix_cache_queries",
                "vllm:gpu_prefix_cache_queries_total",
                "vllm:gpu_prefix_cache_queries",
            ],
            Self::PrefixHits => &[
                "vllm:prefix_cache_hits_total",
                "vllm:prefix_cache_hits",
                "vllm:gpu_prefix_cache_hits_total",
                "vllm:gpu_prefix_cache_hits",
            ],
        }
    }

    pub(crate) fn fold(self) -> Fold {
        match self {
            Self::KvUse => Fold::LargestShare,
            _ => Fold::Sum,
        }
    }
}

/// The signal that `name` exports and the name's place in the signal's list.
pub(crate) fn find(name: &[u8]) -> Option<(Signal, usize)> {
    SIGNALS.into_iter().find_map(|signal| {
        let rank = signal
            .names()
            .iter()
            .position(|known| same_name(known.as_bytes(), name))?;
        Some((signal, rank))
    })
}

fn same_name(known: &[u8], name: &[u8]) -> bool {
    let plain = |byte: u8| if byte == b':' { b'_' } else { byte };
    known.len() == name.len() && known.iter().zip(name).all(|(&a, &b)| plain(a) == plain(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g01_no_name_belongs_to_two_signals() {
        for signal in SIGNALS {
            for (rank, name) in signal.names().iter().enumerate() {
                assert_eq!(find(name.as_bytes()), Some((signal, rank)), "{name}");
            }
        }
        assert_eq!(find(b"vllm:num_requests"), None);
        assert_eq!(find(b""), None);
    }

    #[test]
    fn signals_stand_at_their_own_number() {
        for (number, signal) in SIGNALS.into_iter().enumerate() {
            assert_eq!(signal as usize, number);
        }
    }
}
