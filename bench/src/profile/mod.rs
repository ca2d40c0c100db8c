//! `pointsman-bench profile`: how a real engine's latency rises with load, as samples for a fit.
//!
//! An open loop, because a closed one never shows an engine that falls behind: requests come at a
//! set rate whatever the answers do, rate after rate, until the first token takes too long or the
//! engine has been full twice. The engine must be alone (`watch`), each step is in the file as soon
//! as it is over (`sheet`), and everything has an end: steps, requests at once, the whole. What the
//! samples mean is not known here; `pointsman-solver fit` reads them.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use pointsman_solver::fit::sample::FAILS;
use serde_json::{Map, Value};

mod args;
mod ask;
mod prompt;
mod sheet;
mod step;
mod watch;

pub use args::{Args, Arrivals, Mix, Url};
pub use sheet::{Row, Sheet};

use crate::alarm::Alarm;
use crate::world::fetch;
use ask::Answer;
use prompt::{Form, Measure};
use step::Plan;
use watch::Watch;

/// Words of the two prompts that are asked to learn what a word is.
const LEARNT_FROM: (usize, usize) = (40, 240);
/// Longest that a step settles, seconds.
const MOST_SETTLE_S: f64 = 60.0;
/// Below this part of what came in, what was answered shows an engine that is full beyond doubt.
const FULL: f64 = 0.9;
/// First load: this part of what one request after another gives.
const ALONE: f64 = 0.15;
/// Steps of a full engine after which a mix is over.
const FULL_STEPS: usize = 2;
/// Loads after that, parts of what the engine got done.
const NEAR_FULL: [f64; 2] = [0.8, 0.9];

/// Sweeps the engine.
pub async fn run(args: Args) -> anyhow::Result<()> {
    args.check()?;
    let began = Instant::now();
    let alarm = Alarm::start().context("cannot make a timer")?;
    let mut sheet = Sheet::create(&args.out)?;
    let total = Duration::from_secs_f64(args.total_s.min(1e7));
    let outcome = tokio::select! {
        outcome = sweep(&args, &alarm, &mut sheet) => outcome,
        asked = asked_to_end() => asked.map(|()| "interrupted"),
        () = tokio::time::sleep(total) => Ok("--total-s is over"),
    };
    let (rows, file) = (sheet.rows(), args.out.display());
    let seconds = began.elapsed().as_secs();
    match outcome {
        Ok(why) => {
            print(&format!(
                "{why}: {rows} samples in {file} after {seconds} s"
            ));
            Ok(())
        }
        Err(error) => Err(error.context(format!("{rows} samples in {file}"))),
    }
}

/// One engine under sweep.
struct Sweep<'a> {
    args: &'a Args,
    address: SocketAddr,
    authority: String,
    path: String,
    model: String,
    extra: Map<String, Value>,
    alarm: &'a Rc<Alarm>,
    watch: Rc<Watch>,
}

async fn sweep(args: &Args, alarm: &Rc<Alarm>, sheet: &mut Sheet) -> anyhow::Result<&'static str> {
    let url = args.url()?;
    let address = watch::resolve(&url.authority).await?;
    let metrics = format!("{}{}", url.prefix, args.metrics);
    let watch = Rc::new(Watch::new(address, metrics, args.force));
    watch.idle().await?;
    let model = match &args.model {
        Some(model) => model.clone(),
        None => first_model(address, &url.prefix).await?,
    };
    let sweep = Sweep {
        args,
        address,
        path: format!("{}{}", url.prefix, args.path),
        authority: url.authority,
        model,
        extra: args.extra()?,
        alarm,
        watch,
    };
    print(&format!("model {:?}, seed {}", sweep.model, args.seed));
    let measure = sweep.learn().await?;
    for (number, mix) in args.mix.iter().enumerate() {
        sweep.mix(*mix, number as u64, measure, sheet).await?;
    }
    Ok("done")
}

impl Sweep<'_> {
    fn form(&self) -> Form<'_> {
        Form {
            path: &self.path,
            authority: &self.authority,
            model: &self.model,
            headers: &self.args.headers,
            extra: &self.extra,
        }
    }

    async fn one(&self, prompt: &str, output_tokens: u64) -> anyhow::Result<Answer> {
        let _present = self.watch.enter();
        let request = self.form().request(prompt, output_tokens);
        let timeout = Duration::from_millis(self.args.timeout_ms);
        let answer = ask::ask(self.address, &request, timeout).await;
        answer.with_context(|| format!("http://{}{}", self.authority, self.path))
    }

    /// Learns how words become tokens.
    async fn learn(&self) -> anyhow::Result<Measure> {
        let mut seen = Vec::new();
        for words in [LEARNT_FROM.0, LEARNT_FROM.1] {
            let text = prompt::text(words, self.args.seed ^ words as u64);
            let answer = self.one(&text, 2).await?;
            let tokens = answer.prompt_tokens.context(
                "the engine does not say how many tokens a prompt has (`usage` in its stream)",
            )?;
            seen.push((words, tokens));
        }
        Measure::of(seen[0], seen[1]).with_context(|| {
            format!("the engine's count of prompt tokens does not rise with words: {seen:?}")
        })
    }

    /// Sweeps one mix: loads that rise until the engine was full twice, then those near it.
    async fn mix(
        &self,
        mix: Mix,
        number: u64,
        measure: Measure,
        sheet: &mut Sheet,
    ) -> anyhow::Result<()> {
        let mut course = Course::new(self.args, mix, number, measure);
        // Alone, twice: the second has met the common part before.
        self.one(&course.prompt(), mix.output_tokens).await?;
        let alone = self.one(&course.prompt(), mix.output_tokens).await?;
        course.answer_s = (alone.ttft_ns + alone.gaps_ns) as f64 / 1e9;
        course.network_ms = alone.connect_ns as f64 / 1e6;
        let (mut full, mut most_done_rps) = (0, 0.0_f64);
        for load_rps in self.args.steps(ALONE / course.answer_s.max(1e-4)) {
            let Some(row) = self.step(&mut course, load_rps).await? else {
                continue;
            };
            sheet.write(&row)?;
            if row.completed_rps < FULL * row.load_rps || row.failed_share > FAILS {
                full += 1;
                most_done_rps = most_done_rps.max(row.completed_rps);
            }
            if row.ttft_ms.1 > self.args.max_ttft_ms {
                return Ok(());
            }
            if full >= FULL_STEPS {
                break;
            }
        }
        if full < FULL_STEPS || !self.args.loads.is_empty() {
            return Ok(());
        }
        // Between the last load that kept up and the first that did not curves bend most, and one
        // that happens to stand just under full is of an engine that is not yet done filling.
        for part in NEAR_FULL {
            if let Some(row) = self.step(&mut course, part * most_done_rps).await? {
                sheet.write(&row)?;
            }
        }
        Ok(())
    }

    /// One load; `None` where too few requests came to meet one in the time that counts.
    async fn step(&self, course: &mut Course<'_>, load_rps: f64) -> anyhow::Result<Option<Row>> {
        let args = self.args;
        self.watch.idle().await?;
        self.watch.take_kv_use();
        let settle_s = args.settle_s.max(1.5 * course.answer_s).min(MOST_SETTLE_S);
        let plan = Plan {
            load_rps,
            arrivals: args.arrivals,
            settle: Duration::from_secs_f64(settle_s),
            measured: Duration::from_secs_f64(args.seconds),
            timeout: Duration::from_millis(args.timeout_ms),
            max_in_flight: args.max_in_flight,
            seed: args.seed ^ (course.number << 32) ^ course.steps,
        };
        course.steps += 1;
        let output_tokens = course.mix.output_tokens;
        let request = || self.form().request(&course.prompt(), output_tokens);
        let seen = tokio::select! {
            seen = step::run(&plan, self.address, &self.watch, self.alarm, request) => seen,
            foreign = self.watch.foreign() => return Err(foreign),
        };
        if let Some(failure) = seen.only_failures() {
            bail!("at {load_rps} requests/s every request failed, the first: {failure}");
        }
        let Some(row) = seen.row(course.mix.prompt_tokens) else {
            return Ok(None);
        };
        let network_ms = seen.connect_ms().unwrap_or(course.network_ms);
        course.network_ms = network_ms.min(course.network_ms);
        course.answer_s = seen.answer_s();
        let row = Row {
            kind: args.kind.clone(),
            model: self.model.clone(),
            network_ms: course.network_ms,
            kv_use: self.watch.take_kv_use(),
            ..row
        };
        print(&line(&row));
        Ok(Some(row))
    }
}

/// One mix while it is swept.
struct Course<'a> {
    args: &'a Args,
    mix: Mix,
    number: u64,
    /// Words of a prompt that are its own, and the text that all have in common.
    own_words: usize,
    common: String,
    /// Prompts and steps made.
    prompts: u64,
    steps: u64,
    /// How long an answer takes, as last seen.
    answer_s: f64,
    /// The least that connecting took.
    network_ms: f64,
}

impl<'a> Course<'a> {
    fn new(args: &'a Args, mix: Mix, number: u64, measure: Measure) -> Self {
        let words = measure.words(mix.prompt_tokens);
        let common = (words as f64 * args.shared).round() as usize;
        Self {
            args,
            mix,
            number,
            own_words: (words - common).max(1),
            common: match common {
                0 => String::new(),
                words => prompt::text(words, args.seed ^ 0x5eed) + " ",
            },
            prompts: 0,
            steps: 0,
            answer_s: 0.0,
            network_ms: f64::INFINITY,
        }
    }

    /// A prompt that no other is.
    fn prompt(&mut self) -> String {
        self.prompts += 1;
        let seed = self.args.seed.wrapping_mul(1_000_003) ^ (self.number << 40) ^ self.prompts;
        format!("{}{}", self.common, prompt::text(self.own_words, seed))
    }
}

/// A step for people.
fn line(row: &Row) -> String {
    format!(
        "{:.0}:{:.0} hit {:.2}  load {:8.2}/s  done {:8.2}/s  failed {:.3}  TTFT {:8.1} ms (median \
         {:.1})  TBOT {:7.2} ms",
        row.prompt_tokens,
        row.output_tokens,
        row.hit_rate,
        row.load_rps,
        row.completed_rps,
        row.failed_share,
        row.ttft_ms.0,
        row.ttft_ms.1,
        row.tbot_ms.0
    )
}

/// The first model that the engine serves.
async fn first_model(address: SocketAddr, prefix: &str) -> anyhow::Result<String> {
    let path = format!("{prefix}/v1/models");
    let (status, body) = fetch::get(address, &path).await?;
    ensure!(
        status == 200,
        "http://{address}{path}: status {status} (give --model)"
    );
    let models: Value = serde_json::from_slice(&body)
        .with_context(|| format!("http://{address}{path}: no JSON (give --model)"))?;
    let model = models["data"][0]["id"].as_str();
    let model =
        model.with_context(|| format!("http://{address}{path}: no model (give --model)"))?;
    Ok(model.to_owned())
}

/// Resolves when the process is asked to end.
async fn asked_to_end() -> anyhow::Result<()> {
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        ended = tokio::signal::ctrl_c() => ended.context("cannot wait for signals"),
        _ = terminated.recv() => Ok(()),
    }
}

#[expect(clippy::print_stdout, reason = "progress is this program's output")]
fn print(line: &str) {
    println!("{line}");
}
