//! Clients that leave, one after the other, and how long until the engine behind the subject knows.
//!
//! Not part of the loop: one client at a time, so it may block. When the engine saw it comes from
//! the engine itself, on the clock that both share.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use socket2::SockRef;

use super::link::{Heard, Speaks};
use super::request::{Request, Requests};
use super::{Args, report};
use crate::bare::words::{Ask, Pace};
use crate::h1::body::{Decoder, Piece};
use crate::h1::head::parse_response;
use crate::h2::frame::{code, put_reset};
use crate::protocol::Http;
use crate::stamp::Scanner;
use crate::sys::monotonic_ns;

/// How long an engine may take to notice.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Clients of a kind that were never noticed, after which no more of it are tried.
const MOST_NEVER: u64 = 5;
/// Between two questions to the engine.
const ASK_AGAIN: Duration = Duration::from_micros(500);
/// Most time of one read.
const READ_TIME: Duration = Duration::from_secs(10);
/// Tokens that come before a client leaves.
const TOKENS_SEEN: u32 = 3;
/// The gap between tokens.
const PACE_US: u64 = 20_000;
/// A prefill that is silent for longer than anybody waits.
const SILENCE_MS: u64 = 30_000;

/// When and how a client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// Amid a stream: by closing, over HTTP/2 by RST_STREAM.
    Streaming,
    /// Amid a stream, by a TCP reset.
    Reset,
    /// Before the first token, as amid a stream.
    Prefill,
}

/// What became of the clients of one kind.
struct Noticed {
    after: Histogram<u64>,
    never: u64,
}

/// A connection to the engine's own figures.
struct Figures(TcpStream);

/// Runs all trials and prints the report.
///
/// # Errors
/// A subject or an engine that cannot be reached, or that answers otherwise than with a stream.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let engine = args
        .engine
        .context("--engine: needed to ask when it saw a client leave")?;
    report::print(&json!({
        "event": "ready", "pid": std::process::id(), "now_ns": monotonic_ns(),
    }));
    let mut figures = Figures::connect(engine)?;
    let mut report = json!({
        "event": "report", "label": args.label, "mode": "cancel", "trials": args.trials,
        "http": if args.http == Http::H1 { "h1" } else { "h2" },
    });
    let mut worst: Option<f64> = None;
    for (name, leaving) in [
        ("streaming_us", Leaving::Streaming),
        ("reset_us", Leaving::Reset),
        ("prefill_us", Leaving::Prefill),
    ] {
        if leaving == Leaving::Reset && args.http == Http::H2c {
            continue;
        }
        let noticed = trials(args, leaving, &mut figures)?;
        let mut line = report::percentiles(&noticed.after);
        line["seen"] = noticed.after.len().into();
        line["never"] = noticed.never.into();
        let median = line["p50"].as_f64().filter(|_| noticed.never == 0);
        worst = match (leaving, worst, median) {
            (Leaving::Streaming, _, median) => median,
            (_, Some(worst), Some(median)) => Some(worst.max(median)),
            _ => None,
        };
        report[name] = line;
    }
    // Of a kind that was not always noticed there is no median.
    report["cancel_us_p50"] = worst.into();
    report::print(&report);
    report::print(&json!({"event": "done", "now_ns": monotonic_ns()}));
    Ok(())
}

fn trials(args: &Args, leaving: Leaving, figures: &mut Figures) -> anyhow::Result<Noticed> {
    let mut noticed = Noticed {
        after: Histogram::new_with_bounds(1, 600_000_000_000, 3)?,
        never: 0,
    };
    let prefill_ms = if leaving == Leaving::Prefill {
        SILENCE_MS
    } else {
        0
    };
    let ask = Ask {
        stream: true,
        tokens: 1_000_000,
        pace: Pace {
            prefill_ms,
            pace_us: PACE_US,
        },
    };
    for trial in 0..args.trials as u64 {
        let request = Request::new(args, ask, trial);
        let before = figures.read()?;
        let mut client = Client::send(args, &request)?;
        if leaving == Leaving::Prefill {
            figures.wait(|now| now["requests"].as_u64() > before["requests"].as_u64())?;
        } else {
            client.read_tokens()?;
        }
        let left_ns = monotonic_ns();
        // Until it was noticed the connection of HTTP/2 stays.
        let _kept = client.leave(leaving)?;
        let seen = |now: &Value| seen_after_ns(&before, now, left_ns).is_some();
        let now = figures.wait_until(left_ns + PATIENCE_NS, seen)?;
        match now.and_then(|now| seen_after_ns(&before, &now, left_ns)) {
            Some(after_ns) => noticed.after.saturating_record(after_ns.max(1)),
            None => noticed.never += 1,
        }
        if noticed.never >= MOST_NEVER {
            break;
        }
    }
    Ok(noticed)
}

/// How long after a client left the engine saw one leave, by its figures from before its request
/// and of now; `None`: not yet. An abort from before it left is that of an earlier client, which
/// was given up.
fn seen_after_ns(before: &Value, now: &Value, left_ns: u64) -> Option<u64> {
    let is_new = now["aborted"].as_u64()? > before["aborted"].as_u64()?;
    let after_ns = now["last_abort_ns"].as_u64()?.checked_sub(left_ns)?;
    is_new.then_some(after_ns)
}

/// A client with one request under way.
struct Client {
    stream: TcpStream,
    speaks: Speaks,
    kept: Vec<u8>,
}

impl Client {
    fn send(args: &Args, request: &Request) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(args.addr)
            .with_context(|| format!("--addr: cannot connect to {}", args.addr))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_TIME))?;
        let mut client = Self {
            stream,
            speaks: Speaks::new(args.http),
            kept: Vec::new(),
        };
        if args.http == Http::H1 {
            client.stream.write_all(&request.http1)?;
            return Ok(client);
        }
        client.push()?;
        while !client.is_settled() {
            client.hear(|_| {})?;
            client.push()?;
        }
        let requests = Requests::new(args);
        if let Speaks::Http2(http2) = &mut client.speaks {
            let block = requests.block(request, &mut http2.memory);
            http2.session.put_head(1, &block, false);
            let body = request.body();
            ensure!(
                body.len() <= crate::h2::frame::MOST_PAYLOAD,
                "--body-bytes: at most one frame's in mode cancel"
            );
            http2.session.put_data_head(1, body.len(), true);
            http2.session.out.extend_from_slice(body);
        }
        client.push()?;
        Ok(client)
    }

    fn is_settled(&self) -> bool {
        match &self.speaks {
            Speaks::Http1(_) => true,
            Speaks::Http2(http2) => http2.session.peer.heard,
        }
    }

    /// Reads until so many tokens came that the stream is under way.
    fn read_tokens(&mut self) -> anyhow::Result<()> {
        let (mut scanner, mut tokens) = (Scanner::default(), 0);
        while tokens < TOKENS_SEEN {
            let mut status = 200;
            self.hear(|heard| match heard {
                Heard::Head { status: came, .. } => status = came,
                Heard::Data { payload, .. } => scanner.feed(payload, |_| tokens += 1),
                _ => {}
            })?;
            ensure!(status == 200, "the subject answered {status}");
            self.push()?;
        }
        Ok(())
    }

    fn hear(&mut self, mut each: impl FnMut(Heard<'_>)) -> anyhow::Result<()> {
        let mut bytes = [0; 16 * 1024];
        let count = self
            .stream
            .read(&mut bytes)
            .context("the subject sent nothing")?;
        ensure!(count > 0, "the subject closed the connection");
        self.kept.extend_from_slice(&bytes[..count]);
        let mut input = &self.kept[..];
        loop {
            match self.speaks.hear(&mut input) {
                Ok(Some(heard)) => each(heard),
                Ok(None) => break,
                Err(_) => bail!("the subject's answer is malformed"),
            }
        }
        let used = self.kept.len() - input.len();
        self.kept.drain(..used);
        Ok(())
    }

    fn push(&mut self) -> anyhow::Result<()> {
        if let Speaks::Http2(http2) = &mut self.speaks {
            self.stream.write_all(&http2.session.out)?;
            http2.session.out.clear();
        }
        Ok(())
    }

    /// Leaves; what comes back is to be kept until it was noticed.
    fn leave(mut self, leaving: Leaving) -> anyhow::Result<Option<Self>> {
        if let Speaks::Http2(http2) = &mut self.speaks {
            put_reset(&mut http2.session.out, 1, code::CANCEL);
            self.push()?;
            return Ok(Some(self));
        }
        if leaving == Leaving::Reset {
            SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))?;
        }
        Ok(None)
    }
}

impl Figures {
    fn connect(engine: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(engine)
            .with_context(|| format!("--engine: cannot connect to {engine}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_TIME))?;
        Ok(Self(stream))
    }

    fn read(&mut self) -> anyhow::Result<Value> {
        self.0
            .write_all(b"GET /mock/stats HTTP/1.1\r\nhost: engine\r\n\r\n")?;
        let (mut text, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            if let Some(head) = parse_response(&text)? {
                let mut input = &text[head.bytes..];
                let mut decoder = Decoder::new(head.framing);
                let mut body = Vec::new();
                while let Piece::Data(data) = decoder.next(&mut input)? {
                    body.extend_from_slice(data);
                }
                if decoder.next(&mut input)? == Piece::End {
                    return serde_json::from_slice(&body).context("the engine's figures");
                }
            }
            let count = self.0.read(&mut piece).context("--engine: no figures")?;
            ensure!(count > 0, "--engine: it closed the connection");
            text.extend_from_slice(&piece[..count]);
        }
    }

    fn wait(&mut self, is_so: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        let until_ns = monotonic_ns() + READ_TIME.as_nanos() as u64;
        self.wait_until(until_ns, is_so)?
            .context("the request did not reach the engine")
    }

    fn wait_until(
        &mut self,
        until_ns: u64,
        is_so: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<Option<Value>> {
        loop {
            let now = self.read()?;
            if is_so(&now) {
                return Ok(Some(now));
            }
            if monotonic_ns() > until_ns {
                return Ok(None);
            }
            std::thread::sleep(ASK_AGAIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(aborted: u64, last_abort_ns: u64) -> Value {
        json!({"aborted": aborted, "last_abort_ns": last_abort_ns})
    }

    #[test]
    fn a_late_abort_of_one_client_is_not_the_next_ones() {
        let before = figures(4, 900);
        // The client before was given up, and the engine saw it leave while this one still read.
        assert_eq!(seen_after_ns(&before, &figures(5, 1_999), 2_000), None);
        assert_eq!(seen_after_ns(&before, &figures(6, 2_750), 2_000), Some(750));
        assert_eq!(seen_after_ns(&before, &figures(5, 2_000), 2_000), Some(0));
    }

    #[test]
    fn an_engine_that_saw_nobody_leave_saw_nothing() {
        let before = figures(0, 0);
        assert_eq!(seen_after_ns(&before, &before, 2_000), None);
        assert_eq!(seen_after_ns(&before, &json!({}), 2_000), None);
    }
}
