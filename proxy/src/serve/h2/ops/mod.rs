//! Both HTTP/2 adapters under any sequence of operations: theirs by frames, ours by calls.
//!
//! A fuzzer's bytes are read as a program. The other side of a connection is a plain socket that
//! writes frames, right ones and wrong ones, whole and in halves, and may leave off reading; our side is
//! the real adapter with the `h2` crate inside, on a real runtime, and does what a shard's requests do.
//! After each step the books must balance: what is counted is what is there. Not part of the
//! product: it is built for tests and fuzzers only.

mod client;
mod engine;
mod peer;

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::pin::Pin;
use std::task::{Context, Poll};

use monoio::{LegacyDriver, Runtime, RuntimeBuilder};

use self::peer::Peer;
use crate::serve::sys::Socket;

/// Steps of one program: a longer one is cut.
const STEPS: usize = 200;
/// Turns of the runtime that a connection gets to come to its end.
const LAST_TURNS: usize = 10_000;

/// A program, read byte by byte.
struct Program<'a> {
    bytes: &'a [u8],
    steps: usize,
}

impl Program<'_> {
    /// The next step; none at the end.
    fn step(&mut self) -> Option<u8> {
        self.steps += 1;
        if self.steps > STEPS || self.bytes.is_empty() {
            return None;
        }
        Some(self.number())
    }

    /// A number, 0 where nothing is left.
    fn number(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else {
            return 0;
        };
        self.bytes = rest;
        *first
    }

    /// Some bytes, at most 63.
    fn some(&mut self) -> Vec<u8> {
        let count = usize::from(self.number() & 63).min(self.bytes.len());
        let (some, rest) = self.bytes.split_at(count);
        self.bytes = rest;
        some.to_vec()
    }
}

/// Runs a program against the adapter of clients: our side answers requests.
///
/// # Panics
/// When the adapter breaks a rule.
pub fn operate_as_server(bytes: &[u8]) {
    on_a_runtime(client::run(Program { bytes, steps: 0 }));
}

/// Runs a program against the adapter of engines: our side sends requests.
///
/// # Panics
/// When the adapter breaks a rule.
pub fn operate_as_client(bytes: &[u8]) {
    on_a_runtime(engine::run(Program { bytes, steps: 0 }));
}

thread_local! {
    static RUNTIME: RefCell<Runtime<LegacyDriver>> = RefCell::new(
        RuntimeBuilder::<LegacyDriver>::new().build().expect("epoll is there"),
    );
    static LISTENER: TcpListener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
}

/// Runs `program` as a task: a runtime's main future would leave the others no turn.
fn on_a_runtime(program: impl Future<Output = ()>) {
    // What it borrows has to outlive a task, so it is polled from the main future, once a turn.
    RUNTIME.with(|runtime| {
        let mut program = std::pin::pin!(program);
        runtime.borrow_mut().block_on(Turns(program.as_mut()));
    });
}

/// Polls a program, and lets the runtime have a whole turn before it is polled again.
struct Turns<'a, F>(Pin<&'a mut F>);

impl<F: Future<Output = ()>> Future for Turns<'_, F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let poll = self.0.as_mut().poll(context);
        if poll.is_pending() {
            // A task that does nothing but call back keeps the runtime from sleeping, and has its
            // place behind those that have something to do.
            let waker = context.waker().clone();
            monoio::spawn(async move { waker.wake() });
        }
        poll
    }
}

/// Lets the runtime have a turn.
async fn turn() {
    let mut is_over = false;
    std::future::poll_fn(|_| match std::mem::replace(&mut is_over, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

/// A socket of ours and its other side.
async fn pair() -> (Socket, Peer) {
    let address: SocketAddr = LISTENER.with(|one| one.local_addr().expect("it listens"));
    let connecting = std::net::TcpStream::connect(address).expect("it accepts");
    connecting.set_nonblocking(true).expect("a socket");
    let ours = monoio::net::TcpStream::from_std(connecting).expect("a socket");
    let (theirs, _) = LISTENER.with(|one| one.accept().expect("one waits"));
    (Socket::new(ours).expect("a socket"), Peer::new(theirs))
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngCore as _, SeedableRng as _};

    use super::*;

    /// Programs of random bytes; the seed stands in the message of what fails.
    fn programs(run: fn(&[u8])) {
        for seed in 0..200 {
            let mut random = SmallRng::seed_from_u64(seed);
            let mut bytes = vec![0; 40 + (seed as usize * 7) % 600];
            random.fill_bytes(&mut bytes);
            eprintln!("seed {seed}");
            run(&bytes);
        }
    }

    /// What fuzzers once found, and what they began with.
    #[test]
    fn programs_that_are_kept_break_no_rule() {
        let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
        for (folder, run) in [
            ("adapter_server", operate_as_server as fn(&[u8])),
            ("adapter_client", operate_as_client),
        ] {
            let entries = std::fs::read_dir(corpus.join(folder)).unwrap();
            let paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
            assert!(paths.len() > 3, "{folder}: {} programs", paths.len());
            for path in paths {
                eprintln!("{}", path.display());
                run(&std::fs::read(path).unwrap());
            }
        }
    }

    #[test]
    fn random_programs_break_no_rule_towards_clients() {
        programs(operate_as_server);
    }

    #[test]
    fn random_programs_break_no_rule_towards_engines() {
        programs(operate_as_client);
    }
}
