//! The requests that a curve was measured with, and what it is for others.
//!
//! A first token takes some times between tokens and a part that grows with the prompt; that part
//! waits for others' prompts, the longer the more of the load these are. So a curve that says which
//! prompts and answers it is of can be brought to those of a route. A cached part of a prompt is
//! not computed and lengthens nothing here, but answers read it: it makes prompts less of the load.

use toml::Spanned;

use crate::model::topology::{Mix, Point, Profile, TopologyError, locate::Source, raw};
use crate::model::units::{NonNegative, Positive, Share};
use crate::model::{context, mix, prefill};

/// Most times between tokens in a first one.
const MOST_STEPS: f64 = 4.0;

/// The prompt that a curve's first tokens are of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prompt {
    /// What it was measured with.
    pub(super) request: Request,
    /// Share of a first token's time, beyond its steps, that grows with the prompt.
    share: f64,
    /// Times between tokens in a first one.
    steps: f64,
    /// What tokens cost the engine, where it says.
    work: Option<Work>,
}

/// What a curve depends on of a mean request; 0 where it does not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Request {
    computed_tokens: f64,
    cached_tokens: f64,
    output_tokens: f64,
}

/// What tokens cost an engine.
#[derive(Clone, Copy, Debug)]
struct Work {
    /// Cost of a prompt token over that of an answer's that reads nothing.
    prefill_ratio: f64,
    /// Context at which an answer's token costs twice that, where one costs anything.
    context_tokens: Option<f64>,
}

impl Request {
    /// To find it by.
    pub(super) fn bits(self) -> [u64; 3] {
        [self.computed_tokens, self.cached_tokens, self.output_tokens].map(f64::to_bits)
    }
}

impl Work {
    /// Part of a request's work that is its prompt.
    fn prefill(self, request: Request) -> f64 {
        let Request {
            computed_tokens,
            cached_tokens,
            output_tokens,
        } = request;
        let prompt = computed_tokens * self.prefill_ratio;
        let read = computed_tokens + cached_tokens;
        let answer = context::answer_tokens(read, output_tokens, self.context_tokens);
        prompt / (prompt + answer).max(f64::MIN_POSITIVE)
    }
}

impl Prompt {
    /// What of a mix the curve depends on: without rates of tokens the answer's length changes
    /// nothing, and what is cached does only where a context costs something.
    pub(super) fn request_of(&self, mix: Mix) -> Request {
        let costs = |work: Work| work.context_tokens.is_some();
        Request {
            computed_tokens: mix.computed_tokens(),
            cached_tokens: match self.work.is_some_and(costs) {
                true => mix.prompt_tokens.value() - mix.computed_tokens(),
                false => 0.0,
            },
            output_tokens: self.work.map_or(0.0, |_| mix.output_tokens.value()),
        }
    }

    /// A curve for other requests: what the first token takes beyond its steps grows with the
    /// prompt, and where prompts are more of the work it waits longer for others'.
    pub(super) fn scaled(&self, profile: &Profile, request: Request) -> Profile {
        let tokens = request.computed_tokens;
        let factor = 1.0 - self.share + self.share * tokens / self.request.computed_tokens;
        let waits = |p: &Point| p.ttft_ms >= self.steps * p.tbot_ms;
        let steps = match profile.points.iter().all(waits) {
            true => self.steps,
            false => 0.0,
        };
        let rest_ms = |p: &Point| p.ttft_ms - steps * p.tbot_ms;
        let idle_ms = rest_ms(&profile.points[0]);
        let longer = |p: &Point| match self.work {
            Some(work) if idle_ms > 0.0 => {
                let (measured, own) = (work.prefill(self.request), work.prefill(request));
                prefill::longer(rest_ms(p) / idle_ms, p.utilisation, measured, own)
            }
            _ => 1.0,
        };
        let (mut least_ms, mut least_all_ms) = (0.0_f64, 0.0_f64);
        let point = |p: &Point| {
            // The rest must not fall with load, or a long prompt would make load a remedy.
            least_ms = least_ms.max(rest_ms(p));
            let ttft_ms = steps * p.tbot_ms + least_ms * factor * longer(p);
            least_all_ms = least_all_ms.max(ttft_ms);
            Point {
                ttft_ms: least_all_ms,
                ..*p
            }
        };
        let points = profile.points.iter().map(point).collect();
        let cached = match request.cached_tokens {
            0.0 => String::new(),
            cached => format!(", {cached} cached"),
        };
        let of = self.work.map_or_else(String::new, |_| {
            format!("{cached} and {} output", request.output_tokens)
        });
        Profile {
            name: format!("{} at {tokens} prompt{of} tokens", profile.name),
            assumed: profile.assumed,
            points,
        }
    }
}

/// The prompt of a profile, where it says.
pub(super) fn read(
    source: &Source<'_>,
    label: &str,
    given: &raw::Profile,
) -> Result<Option<Prompt>, TopologyError> {
    let key = &|suffix: &str| format!("profiles {label:?}: {suffix}");
    let share: Share = source.number_or(key("prompt_share"), given.prompt_share.as_ref(), 1.0)?;
    let steps: NonNegative =
        source.number_or(key("prompt_steps"), given.prompt_steps.as_ref(), 1.0)?;
    if steps.value() > MOST_STEPS {
        let value = given.prompt_steps.as_ref().expect("the default is below");
        let allowed = format!("at most {MOST_STEPS}");
        return Err(source.refuse_value(key("prompt_steps"), value, allowed));
    }
    let Some(tokens) = &given.prompt_tokens else {
        let needs = [
            ("cached_tokens", &given.cached_tokens),
            ("prompt_share", &given.prompt_share),
            ("prompt_steps", &given.prompt_steps),
            ("output_tokens", &given.output_tokens),
        ];
        let given = needs
            .into_iter()
            .find_map(|(name, v)| Some((name, v.as_ref()?)));
        return match given {
            Some((name, value)) => {
                let why = "needs prompt_tokens: the prompt that ttft_ms is of";
                Err(source.refuse(value.span(), key(&format!("{name} {why}"))))
            }
            None => Ok(None),
        };
    };
    let tokens: Positive = source.number(key("prompt_tokens"), tokens)?;
    let prompt_tokens = NonNegative::new(tokens.value()).expect("above 0");
    let none = NonNegative::default();
    let output_tokens = given.output_tokens.as_ref();
    let measured = Mix {
        prompt_tokens,
        cached_tokens: mix::cached(source, key, &given.cached_tokens, (prompt_tokens, none))?,
        output_tokens: source.number_or(key("output_tokens"), output_tokens, 0.0)?,
    };
    let prompt = Prompt {
        request: Request {
            computed_tokens: 0.0,
            cached_tokens: 0.0,
            output_tokens: 0.0,
        },
        share: share.value(),
        steps: steps.value(),
        work: work(source, key, given)?,
    };
    Ok(Some(Prompt {
        request: prompt.request_of(measured),
        ..prompt
    }))
}

/// What tells how much of a request's work is its prompt, where it is given.
fn work(
    source: &Source<'_>,
    key: &dyn Fn(&str) -> String,
    given: &raw::Profile,
) -> Result<Option<Work>, TopologyError> {
    let Some(output) = &given.output_tokens else {
        return Ok(None);
    };
    let capacity = given.capacity.as_ref().map(Spanned::get_ref);
    let rates = capacity.and_then(|c| {
        let (prefill, decode) = (c.prefill_tps.as_ref()?, c.decode_tps.as_ref()?);
        Some((prefill, decode, c.context_tokens.as_ref()))
    });
    let Some((prefill, decode, context)) = rates else {
        let why = key("output_tokens needs a capacity of prefill_tps and decode_tps");
        return Err(source.refuse(output.span(), why));
    };
    let prefill: Positive = source.number(key("prefill_tps"), prefill)?;
    let decode: Positive = source.number(key("decode_tps"), decode)?;
    let context: Option<Positive> = context
        .map(|value| source.number(key("context_tokens"), value))
        .transpose()?;
    Ok(Some(Work {
        prefill_ratio: decode.value() / prefill.value(),
        context_tokens: context.map(Positive::value),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(computed_tokens: f64, cached_tokens: f64, output_tokens: f64) -> Request {
        Request {
            computed_tokens,
            cached_tokens,
            output_tokens,
        }
    }

    fn point(utilisation: f64, ttft_ms: f64, tbot_ms: f64) -> Point {
        Point {
            utilisation,
            ttft_ms,
            tbot_ms,
        }
    }

    fn curve(points: &[Point]) -> Profile {
        Profile {
            name: "k".to_owned(),
            assumed: false,
            points: points.to_vec(),
        }
    }

    #[test]
    fn a_longer_prompt_lengthens_what_is_not_a_step() {
        let scaled = |profile: &Profile, share, tokens| {
            let prompt = Prompt {
                request: request(100.0, 0.0, 0.0),
                share,
                steps: 1.0,
                work: None,
            };
            prompt.scaled(profile, request(tokens, 0.0, 0.0))
        };
        let measured = curve(&[point(0.0, 60.0, 10.0), point(1.0, 120.0, 40.0)]);
        let long = scaled(&measured, 1.0, 400.0);
        assert_eq!(
            long.points,
            [point(0.0, 210.0, 10.0), point(1.0, 360.0, 40.0)]
        );
        assert_eq!(long.name, "k at 400 prompt tokens");
        let half = scaled(&measured, 0.5, 400.0);
        assert_eq!(
            half.points,
            [point(0.0, 135.0, 10.0), point(1.0, 240.0, 40.0)]
        );
        let none = scaled(&measured, 1.0, 0.0);
        assert_eq!(
            none.points,
            [point(0.0, 10.0, 10.0), point(1.0, 40.0, 40.0)]
        );
        // What would fall with load does not.
        let falling = curve(&[point(0.0, 100.0, 10.0), point(1.0, 100.0, 60.0)]);
        let long = scaled(&falling, 1.0, 200.0);
        assert_eq!(
            long.points,
            [point(0.0, 190.0, 10.0), point(1.0, 240.0, 60.0)]
        );
    }

    #[test]
    fn where_prompts_are_more_of_the_work_a_first_token_waits_longer() {
        // 100 ms at rest and 300 ms when full, beside one and a half steps.
        let measured = curve(&[point(0.0, 115.0, 10.0), point(1.0, 360.0, 40.0)]);
        let prompt = Prompt {
            request: request(1_000.0, 0.0, 200.0),
            share: 1.0,
            steps: 1.5,
            work: Some(Work {
                prefill_ratio: 0.2,
                context_tokens: None,
            }),
        };
        let scaled = |tokens, output| prompt.scaled(&measured, request(tokens, 0.0, output));
        assert_eq!(scaled(1_000.0, 200.0).points, measured.points);
        // Four times the prompt: nine tenths of the work, a half before.
        let long = scaled(4_000.0, 200.0);
        assert_eq!(long.points[0].ttft_ms, 415.0);
        let factor = prefill::longer(3.0, 1.0, 0.5, 0.8);
        assert!(factor > 1.3, "{factor}");
        assert!((long.points[1].ttft_ms - (60.0 + 1_200.0 * factor)).abs() < 1e-9);
        // Long answers: less of it, but never below what it takes at rest.
        let answers = scaled(1_000.0, 2_000.0).points;
        assert!(
            answers[1].ttft_ms < 360.0 && answers[1].ttft_ms > 115.0,
            "{answers:?}"
        );
        assert_eq!(long.name, "k at 4000 prompt and 200 output tokens");
    }

    #[test]
    fn what_an_answer_reads_is_no_prompt_to_wait_for() {
        let work = |context_tokens| Work {
            prefill_ratio: 0.2,
            context_tokens,
        };
        assert_eq!(work(None).prefill(request(1_000.0, 0.0, 200.0)), 0.5);
        // Twice at 1,100: 200 of the prompt, 400 of the answer; with 2,200 cached tokens 800.
        let reading = work(Some(1_100.0));
        assert_eq!(reading.prefill(request(1_000.0, 0.0, 200.0)), 200.0 / 600.0);
        assert_eq!(reading.prefill(request(1_000.0, 2_200.0, 200.0)), 0.2);
        assert_eq!(reading.prefill(request(0.0, 0.0, 0.0)), 0.0);
    }

    #[test]
    fn a_curve_depends_on_what_its_profile_says_only() {
        let mix = Mix {
            prompt_tokens: NonNegative::new(3_200.0).unwrap(),
            cached_tokens: NonNegative::new(2_200.0).unwrap(),
            output_tokens: NonNegative::new(200.0).unwrap(),
        };
        let of = |work| {
            let prompt = Prompt {
                request: request(1.0, 0.0, 0.0),
                share: 1.0,
                steps: 1.0,
                work,
            };
            prompt.request_of(mix)
        };
        let work = |context_tokens| Work {
            prefill_ratio: 0.2,
            context_tokens,
        };
        assert_eq!(of(None), request(1_000.0, 0.0, 0.0));
        assert_eq!(of(Some(work(None))), request(1_000.0, 0.0, 200.0));
        let reading = of(Some(work(Some(5_000.0))));
        assert_eq!(reading, request(1_000.0, 2_200.0, 200.0));
    }
}
