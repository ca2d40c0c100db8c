//! One relay on its thread, and the engines and clients around it, which are on the caller's.
//!
//! A lane keeps its connections, ring and memory for all rounds; between them its thread sleeps
//! in a channel and costs nothing. Every token is compared when it arrives.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use pointsman_proxy::driver::sys::pin_to_core;

use super::args::Arrivals;
use super::relay::{Relay, Stream};
use super::token::{TOKEN_BYTES, token};
use super::way::Way;
use crate::sys::thread_cpu_ns;

/// Longest wait for a token or a relay's answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Files of one stream: both ends of both connections.
pub(super) const FILES_PER_STREAM: usize = 4;

/// A way, ready to relay.
pub(super) struct Lane {
    way: Way,
    engines: Vec<TcpStream>,
    clients: Vec<TcpStream>,
    /// Tokens of each stream until now.
    numbers: Vec<u64>,
    next: usize,
    jobs: Sender<Job>,
    done: Receiver<anyhow::Result<Spent>>,
    thread: JoinHandle<()>,
}

/// What a relay spent on some tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spent {
    pub(super) tokens: u64,
    /// CPU time of the relaying thread, its own and the kernel's.
    pub(super) cpu_ns: u64,
    /// Calls of `io_uring_enter`.
    pub(super) enters: u64,
}

/// Tokens to relay before the next answer.
struct Job {
    tokens: usize,
}

impl Spent {
    fn add(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.cpu_ns += other.cpu_ns;
        self.enters += other.enters;
    }
}

impl Lane {
    /// Connects so many streams and starts their relay, on a core if one is named.
    pub(super) fn open(way: Way, streams: usize, core: Option<usize>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen")?;
        let (mut engines, mut clients, mut relayed) = (Vec::new(), Vec::new(), Vec::new());
        for stream in 0..streams {
            let pair =
                || pair(&listener).with_context(|| format!("cannot connect stream {stream}"));
            let ((engine, from), (client, to)) = (pair()?, pair()?);
            engines.push(engine);
            clients.push(client);
            relayed.push(Stream::new(from, to));
        }
        let (jobs, todo) = channel();
        let (report, done) = channel();
        let thread = std::thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || {
                let work = || serve(way, relayed, core, &todo, &report);
                if let Err(error) = work() {
                    // Nobody listens any more where the lane is given up.
                    let _ = report.send(Err(error));
                }
            })
            .context("cannot start the relay's thread")?;
        let lane = Self {
            way,
            numbers: vec![0; streams],
            engines,
            clients,
            next: 0,
            jobs,
            done,
            thread,
        };
        // The first answer says that the relay stands.
        lane.answer()?;
        Ok(lane)
    }

    /// Sends at least so many tokens through, whole bursts of them, and checks each.
    pub(super) fn run(&mut self, arrivals: Arrivals, tokens: usize) -> anyhow::Result<Spent> {
        let spent = match arrivals {
            Arrivals::Alone => self.alone(tokens),
            Arrivals::Burst => self.bursts(tokens),
        };
        // A relay that failed says why, where a client only sees its connection end.
        spent.map_err(|error| match self.done.try_recv() {
            Ok(Err(cause)) => cause,
            _ => error,
        })
    }

    /// Ends the relay, and sees that nothing came that nobody sent.
    pub(super) fn close(self) -> anyhow::Result<()> {
        let Self {
            jobs,
            thread,
            mut clients,
            ..
        } = self;
        drop(jobs);
        if thread.join().is_err() {
            bail!("the relay's thread panicked");
        }
        for (stream, client) in clients.iter_mut().enumerate() {
            let surplus = client.read(&mut [0; TOKEN_BYTES]);
            let surplus = surplus.with_context(|| format!("stream {stream} did not end"))?;
            ensure!(surplus == 0, "{surplus} bytes too many on stream {stream}");
        }
        Ok(())
    }

    /// One token at a time: the next is sent when the last has arrived.
    fn alone(&mut self, tokens: usize) -> anyhow::Result<Spent> {
        self.begin(tokens)?;
        for _ in 0..tokens {
            let stream = self.next;
            self.next = (stream + 1) % self.engines.len();
            self.send(stream)?;
            self.receive(stream)?;
        }
        self.answer()
    }

    /// A token of every stream at a time. The relay begins when all have been written, and clients
    /// read when it is done, so that every way meets the same turns and wakes nobody.
    fn bursts(&mut self, tokens: usize) -> anyhow::Result<Spent> {
        let streams = self.engines.len();
        let mut spent = Spent::default();
        for _ in 0..tokens.div_ceil(streams) {
            for stream in 0..streams {
                self.send(stream)?;
            }
            self.begin(streams)?;
            spent.add(self.answer()?);
            for stream in 0..streams {
                self.receive(stream)?;
            }
        }
        Ok(spent)
    }

    fn begin(&self, tokens: usize) -> anyhow::Result<()> {
        let job = Job { tokens };
        self.jobs.send(job).ok().context("the relay has ended")
    }

    fn answer(&self) -> anyhow::Result<Spent> {
        let way = self.way.name();
        match self.done.recv_timeout(PATIENCE) {
            Ok(answer) => answer.with_context(|| format!("the relay ({way}) failed")),
            Err(RecvTimeoutError::Timeout) => bail!("the relay ({way}) did not answer in time"),
            Err(RecvTimeoutError::Disconnected) => bail!("the relay ({way}) has ended"),
        }
    }

    fn send(&mut self, stream: usize) -> anyhow::Result<()> {
        let bytes = token(stream, self.numbers[stream]);
        let written = self.engines[stream].write_all(&bytes);
        written.with_context(|| format!("cannot send a token of stream {stream}"))
    }

    fn receive(&mut self, stream: usize) -> anyhow::Result<()> {
        let (way, number) = (self.way.name(), self.numbers[stream]);
        let mut bytes = [0; TOKEN_BYTES];
        let read = self.clients[stream].read_exact(&mut bytes);
        read.with_context(|| format!("{way}: token {number} of stream {stream} did not come"))?;
        ensure!(
            bytes == token(stream, number),
            "{way}: token {number} of stream {stream} came with other bytes"
        );
        self.numbers[stream] += 1;
        Ok(())
    }
}

/// The relay's thread: a job, an answer, until nobody has jobs any more.
fn serve(
    way: Way,
    streams: Vec<Stream>,
    core: Option<usize>,
    jobs: &Receiver<Job>,
    done: &Sender<anyhow::Result<Spent>>,
) -> anyhow::Result<()> {
    if let Some(core) = core {
        pin_to_core(core).with_context(|| format!("cannot run on core {core}"))?;
    }
    let mut relay = Relay::new(way, streams)?;
    let _ = done.send(Ok(Spent::default()));
    while let Ok(job) = jobs.recv() {
        let (cpu_ns, enters) = (thread_cpu_ns(), relay.enters());
        relay.relay(job.tokens * TOKEN_BYTES)?;
        let spent = Spent {
            tokens: job.tokens as u64,
            cpu_ns: thread_cpu_ns() - cpu_ns,
            enters: relay.enters() - enters,
        };
        let _ = done.send(Ok(spent));
    }
    Ok(())
}

/// A connection's two ends: the caller's, and the relay's.
fn pair(listener: &TcpListener) -> anyhow::Result<(TcpStream, TcpStream)> {
    let ours = TcpStream::connect(listener.local_addr()?)?;
    let (relays, from) = listener.accept()?;
    ensure!(from == ours.local_addr()?, "{from} connected in between");
    for end in [&ours, &relays] {
        end.set_nodelay(true)?;
    }
    ours.set_read_timeout(Some(PATIENCE))?;
    ours.set_write_timeout(Some(PATIENCE))?;
    Ok((ours, relays))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_brings_every_token_once_and_unchanged() {
        for way in Way::ALL {
            let mut lane = Lane::open(way, 5, None).unwrap();
            let alone = lane.run(Arrivals::Alone, 23).unwrap();
            assert_eq!(alone.tokens, 23, "{way:?}");
            // Three whole bursts.
            let bursts = lane.run(Arrivals::Burst, 11).unwrap();
            assert_eq!(bursts.tokens, 15, "{way:?}");
            assert!(alone.cpu_ns > 0 && bursts.cpu_ns > 0, "{way:?}");
            assert!(
                bursts.enters < alone.enters,
                "{way:?}: {bursts:?}, {alone:?}"
            );
            assert_eq!(lane.numbers, [8, 8, 8, 7, 7], "{way:?}");
            lane.close().unwrap();
        }
    }

    #[test]
    fn more_bytes_than_one_buffer_holds_come_in_order() {
        for way in Way::ALL {
            let mut lane = Lane::open(way, 2, None).unwrap();
            // Sixty tokens of one stream at once: several reads, one after the other or all at once.
            let sent: Vec<u8> = (0..60).flat_map(|number| token(1, number)).collect();
            lane.engines[1].write_all(&sent).unwrap();
            lane.begin(60).unwrap();
            lane.answer().unwrap();
            let mut came = vec![0; sent.len()];
            lane.clients[1].read_exact(&mut came).unwrap();
            assert!(came == sent, "{way:?}");
            lane.close().unwrap();
        }
    }

    #[test]
    fn a_relay_whose_engine_leaves_says_so_and_ends() {
        for way in Way::ALL {
            let mut lane = Lane::open(way, 2, None).unwrap();
            lane.begin(1).unwrap();
            lane.engines.remove(0);
            let error = format!("{:#}", lane.answer().unwrap_err());
            let expected = format!(
                "the relay ({}) failed: the engine closed stream 0",
                way.name()
            );
            assert_eq!(error, expected);
            lane.close().unwrap();
        }
    }

    #[test]
    fn bytes_that_nobody_sent_are_an_error() {
        let mut lane = Lane::open(Way::OneShot, 1, None).unwrap();
        let twice = [token(0, 0), token(0, 0)].concat();
        lane.engines[0].write_all(&twice).unwrap();
        lane.begin(2).unwrap();
        lane.answer().unwrap();
        lane.receive(0).unwrap();
        let error = lane.close().unwrap_err().to_string();
        assert_eq!(error, "212 bytes too many on stream 0");

        let mut lane = Lane::open(Way::OneShot, 1, None).unwrap();
        lane.engines[0].write_all(&token(0, 7)).unwrap();
        let error = lane.run(Arrivals::Alone, 1).unwrap_err().to_string();
        let expected = "one-shot: token 0 of stream 0 came with other bytes";
        assert_eq!(error, expected);
    }
}
