//! A batching engine step by step, in virtual time: what a model server's scheduler does, without
//! the model.
//!
//! Requests of continuous batching share steps. A step takes every running answer one token
//! further and fills what its token budget leaves with pieces of waiting prompts, first come first
//! served; it lasts a constant, plus something for each prompt token, each answer and each token of
//! context read. A request is let in when KV memory has room for all of it. Unlike the mock engine,
//! whose latency is a curve it was given, here latency is what comes of the steps: something for a
//! fit to find. Pure: seeded, no clock.

mod traffic;

use std::collections::VecDeque;

pub use traffic::{Request, Traffic};

/// What an engine's steps cost and hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batching {
    /// A step by itself, milliseconds: launches, reading the weights.
    pub step_ms: f64,
    /// A prompt token in it.
    pub prefill_ms: f64,
    /// An answer's token in it.
    pub decode_ms: f64,
    /// A token of context that an answer's token reads.
    pub context_ms: f64,
    /// Most tokens of a step.
    pub step_tokens: u32,
    /// Most requests that run.
    pub most_running: usize,
    /// Tokens that KV memory holds.
    pub kv_tokens: u64,
}

/// What came of some traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Requests that came in, per second.
    pub load_rps: f64,
    /// Requests answered, per second.
    pub completed_rps: f64,
    /// Mean tokens of a prompt.
    pub prompt_tokens: f64,
    /// Share of prompt tokens found in the cache.
    pub hit_rate: f64,
    /// Mean tokens of an answer.
    pub output_tokens: f64,
    /// Mean time to the first token, milliseconds.
    pub ttft_ms: f64,
    /// Mean time between tokens, milliseconds.
    pub tbot_ms: f64,
    /// Mean share of KV memory in use.
    pub kv_use: f64,
    /// Time covered, seconds.
    pub seconds: f64,
}

impl Default for Batching {
    /// About a model of 8 billion parameters, in 8 bits, on a large GPU.
    fn default() -> Self {
        Self {
            step_ms: 8.0,
            prefill_ms: 0.05,
            decode_ms: 0.1,
            context_ms: 2e-5,
            step_tokens: 2_048,
            most_running: 256,
            kv_tokens: 500_000,
        }
    }
}

/// A request in the engine.
struct Job {
    request: Request,
    /// Prompt tokens still to be worked through.
    prompt_left: u64,
    /// Answer's tokens still to come.
    output_left: u64,
    /// Tokens of context so far.
    context: u64,
    admitted: bool,
}

/// An engine at one moment.
struct State<'a> {
    engine: &'a Batching,
    now_ms: f64,
    waiting: VecDeque<Job>,
    running: Vec<Job>,
    kv_held: u64,
    tally: Tally,
}

#[derive(Default)]
struct Tally {
    /// Counting begins here, milliseconds.
    from_ms: f64,
    firsts: u64,
    ttft_ms: f64,
    gaps: u64,
    gaps_ms: f64,
    completed: u64,
    kv_ms: f64,
}

impl Batching {
    /// Serves traffic until its last request comes in; the first third is not counted.
    ///
    /// Past saturation the times tell how long the overload lasted, as with any engine.
    #[must_use]
    pub fn serve(&self, traffic: &Traffic) -> Outcome {
        let requests = traffic.requests();
        let from_ms = requests.get(requests.len() / 3).map_or(0.0, |r| r.at_ms);
        let mut state = State {
            engine: self,
            now_ms: 0.0,
            waiting: VecDeque::new(),
            running: Vec::new(),
            kv_held: 0,
            tally: Tally {
                from_ms,
                ..Tally::default()
            },
        };
        let mut coming = requests.iter().copied().peekable();
        while let Some(next) = coming.peek() {
            if state.waiting.is_empty() && state.running.is_empty() {
                state.now_ms = state.now_ms.max(next.at_ms);
            }
            while let Some(request) = coming.next_if(|r| r.at_ms <= state.now_ms) {
                state.waiting.push_back(Job::new(request));
            }
            if state.waiting.is_empty() && state.running.is_empty() {
                continue;
            }
            state.step();
        }
        state.outcome(&requests)
    }
}

impl Job {
    fn new(request: Request) -> Self {
        Self {
            // The last token is worked through even when the cache has all of them.
            prompt_left: (request.prompt_tokens - request.cached_tokens).max(1),
            output_left: request.output_tokens,
            context: request.prompt_tokens,
            admitted: false,
            request,
        }
    }

    fn kv_tokens(&self) -> u64 {
        self.request.prompt_tokens + self.request.output_tokens
    }
}

impl State<'_> {
    /// One step: pieces of prompts, then a token for every running answer.
    fn step(&mut self) {
        let engine = self.engine;
        let decodes = self.running.len();
        let context: u64 = self.running.iter().map(|job| job.context).sum();
        let begun = self.begin();
        let prompt_tokens: u64 = begun.iter().sum();
        let step_ms = engine.step_ms
            + engine.prefill_ms * prompt_tokens as f64
            + engine.decode_ms * decodes as f64
            + engine.context_ms * context as f64;
        self.now_ms += step_ms;
        if self.now_ms >= self.tally.from_ms {
            self.tally.kv_ms += self.kv_held as f64 * step_ms;
            self.tally.gaps += decodes as u64;
            self.tally.gaps_ms += step_ms * decodes as f64;
        }
        for job in &mut self.running {
            job.context += 1;
            job.output_left -= 1;
        }
        for (job, piece) in self.waiting.iter_mut().zip(&begun) {
            job.prompt_left -= piece;
        }
        while self.waiting.front().is_some_and(|job| job.prompt_left == 0) {
            let job = self.waiting.pop_front();
            job.into_iter().for_each(|job| self.first_token(job));
        }
        self.retire();
    }

    /// Prompt tokens of this step for the jobs at the head of the queue, as room allows.
    fn begin(&mut self) -> Vec<u64> {
        let engine = self.engine;
        let mut room = u64::from(engine.step_tokens).saturating_sub(self.running.len() as u64);
        let slots = engine.most_running.saturating_sub(self.running.len());
        let mut begun = Vec::new();
        for job in self.waiting.iter_mut().take(slots) {
            if !job.admitted {
                if self.kv_held + job.kv_tokens() > engine.kv_tokens {
                    break;
                }
                self.kv_held += job.kv_tokens();
                job.admitted = true;
            }
            let piece = job.prompt_left.min(room);
            if piece == 0 {
                break;
            }
            room -= piece;
            begun.push(piece);
        }
        begun
    }

    fn first_token(&mut self, mut job: Job) {
        if job.request.at_ms >= self.tally.from_ms {
            self.tally.firsts += 1;
            self.tally.ttft_ms += self.now_ms - job.request.at_ms;
        }
        job.output_left -= 1;
        job.context += 1;
        self.running.push(job);
    }

    fn retire(&mut self) {
        let (kv_held, tally, now_ms) = (&mut self.kv_held, &mut self.tally, self.now_ms);
        self.running.retain(|job| {
            if job.output_left > 0 {
                return true;
            }
            *kv_held -= job.kv_tokens();
            tally.completed += u64::from(now_ms >= tally.from_ms);
            false
        });
    }

    fn outcome(&self, requests: &[Request]) -> Outcome {
        let tally = &self.tally;
        let seconds = (self.now_ms - tally.from_ms).max(f64::MIN_POSITIVE) / 1e3;
        let counted = requests.iter().filter(|r| r.at_ms >= tally.from_ms);
        let (mut count, mut prompt, mut cached, mut output) = (0.0_f64, 0.0, 0.0, 0.0);
        for request in counted {
            count += 1.0;
            prompt += request.prompt_tokens as f64;
            cached += request.cached_tokens as f64;
            output += request.output_tokens as f64;
        }
        Outcome {
            load_rps: count / seconds,
            completed_rps: tally.completed as f64 / seconds,
            prompt_tokens: prompt / count,
            hit_rate: cached / prompt,
            output_tokens: output / count,
            ttft_ms: tally.ttft_ms / tally.firsts.max(1) as f64,
            tbot_ms: tally.gaps_ms / tally.gaps.max(1) as f64,
            kv_use: tally.kv_ms / (seconds * 1e3) / self.engine.kv_tokens as f64,
            seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Batching = Batching {
        step_ms: 10.0,
        prefill_ms: 0.1,
        decode_ms: 1.0,
        context_ms: 0.0,
        step_tokens: 100,
        most_running: 4,
        kv_tokens: 1_000,
    };

    fn request(at_ms: f64, prompt_tokens: u64, cached_tokens: u64, output_tokens: u64) -> Request {
        Request {
            at_ms,
            prompt_tokens,
            cached_tokens,
            output_tokens,
        }
    }

    fn state(engine: &Batching, requests: &[Request]) -> Vec<f64> {
        let mut state = State {
            engine,
            now_ms: 0.0,
            waiting: requests.iter().map(|r| Job::new(*r)).collect(),
            running: Vec::new(),
            kv_held: 0,
            tally: Tally::default(),
        };
        let mut ends = Vec::new();
        while !(state.waiting.is_empty() && state.running.is_empty()) {
            state.step();
            ends.push(state.now_ms);
            assert!(state.kv_held <= engine.kv_tokens);
            assert!(state.running.len() <= engine.most_running);
        }
        assert_eq!(
            (state.kv_held, state.tally.completed),
            (0, requests.len() as u64)
        );
        ends
    }

    #[test]
    fn a_prompt_goes_in_pieces_and_an_answer_token_by_token() {
        // 150 tokens, 100 a step: 20 and 15 ms; then two steps of one answer's token.
        let ends = state(&PLAIN, &[request(0.0, 150, 0, 3)]);
        assert_eq!(ends, [20.0, 35.0, 46.0, 57.0]);
        // A cached prompt works through one token.
        let cached = state(&PLAIN, &[request(0.0, 150, 150, 1)]);
        assert_eq!(cached, [10.1]);
    }

    #[test]
    fn answers_go_on_while_a_prompt_is_worked_through() {
        let ends = state(&PLAIN, &[request(0.0, 50, 0, 3), request(0.0, 149, 0, 1)]);
        // 50 and 50 of the second; 99 of it beside one answer; the last answer's token.
        assert_eq!(ends[0], 20.0);
        assert!((ends[1] - 40.9).abs() < 1e-9);
        assert!((ends[2] - 51.9).abs() < 1e-9);
    }

    #[test]
    fn kv_memory_and_places_bound_what_runs() {
        let six = [request(0.0, 10, 0, 20); 6];
        let free = state(&PLAIN, &six);
        // Two waves of 20 tokens each.
        assert_eq!(free.len(), 40);
        let tight = Batching {
            kv_tokens: 60,
            ..PLAIN
        };
        assert_eq!(state(&tight, &six).len(), 60);
    }

    #[test]
    fn the_same_seed_is_the_same_outcome_and_load_lengthens_everything() {
        let traffic = |load_rps| Traffic {
            load_rps,
            requests: 600,
            ..Traffic::default()
        };
        let engine = Batching::default();
        let (calm, busy) = (engine.serve(&traffic(1.0)), engine.serve(&traffic(9.0)));
        assert_eq!(calm, engine.serve(&traffic(1.0)));
        assert!(busy.ttft_ms > 1.3 * calm.ttft_ms && busy.tbot_ms > 2.0 * calm.tbot_ms);
        let full = engine.serve(&traffic(30.0));
        assert!(full.completed_rps < 0.6 * full.load_rps, "{full:?}");
    }
}
