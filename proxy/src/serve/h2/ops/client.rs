//! The adapter of clients under a program: requests come, our side answers them in pieces.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::ControlFlow;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::server::Connection;
use h2::{Reason, RecvStream};
use http::Response;

use super::super::answer::AnswerOut;
use super::super::body_in::BodyIn;
use super::super::client_conn::round;
use super::super::count::{Allowance, Counts};
use super::super::line::{Line, Pipe, Reading};
use super::super::owed::{Owed, Tails};
use super::peer::Peer;
use super::{LAST_TURNS, Program, pair, turn};
use crate::serve::body::Budget;
use crate::serve::holder::Holder;
use crate::serve::inbound::{End, Filled};

/// Memory for slow clients: little, so that it runs out.
const BUDGET_BYTES: usize = 96 * 1024;
/// Seconds after which the last bytes of an answer are broken off if none is taken.
const TAIL_SECONDS: u64 = 3;

/// What the connection's task and the program share.
struct World {
    line: Rc<Line>,
    tails: Rc<Tails>,
    budget: Rc<Budget>,
    stories: RefCell<Vec<Story>>,
    holders: RefCell<Vec<Weak<Holder>>>,
    /// What our side sent on each stream.
    sent: RefCell<BTreeMap<u32, Sent>>,
    seconds: Cell<u64>,
    is_over: Cell<bool>,
}

/// A request and what is answered.
struct Story {
    stream: u32,
    body: BodyIn,
    answer: Rc<AnswerOut>,
    has_head: bool,
    rest: Option<(Owed, bool)>,
    is_ended: bool,
}

/// What our side sent on one stream.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    data_bytes: usize,
    is_ended: bool,
}

/// Runs a program to its end.
pub(super) async fn run(mut program: Program<'_>) {
    let (socket, mut peer) = pair().await;
    peer.greet();
    let Some((world, connection)) = begin(socket).await else {
        return;
    };
    monoio::spawn(drive(Rc::clone(&world), connection));
    while let Some(step) = program.step() {
        match step % 16 {
            0..10 => peer.step(step % 16, &mut program),
            10 | 11 => peer.ask(program.number() & 1 == 0),
            12 | 13 => world.answer(&mut program),
            14 => world.story(&mut program),
            _ => world.second(),
        }
        turn().await;
        world.audit(&peer);
    }
    peer.read();
    world.audit(&peer);
    peer.leave();
    world.stories.borrow_mut().clear();
    for _ in 0..LAST_TURNS {
        if world.is_over.get() {
            break;
        }
        turn().await;
    }
    assert!(world.is_over.get(), "a connection outlives its peer");
    // A request that came with the last bytes began a story of its own.
    world.stories.borrow_mut().clear();
    // The product's connection takes its tails with it; here they are looked at once more.
    world.tails.look(&Context::from_waker(Waker::noop()));
    assert_eq!(world.budget.used(), 0, "bytes are held for nobody");
    let holders = world.holders.borrow();
    let left = holders.iter().filter(|one| one.strong_count() > 0).count();
    assert_eq!(left, 0, "pieces or tails outlive their connection");
}

async fn begin(socket: crate::serve::sys::Socket) -> Option<(Rc<World>, Connection<Pipe, Owed>)> {
    let counts = Counts::new(Allowance {
        idle_frames: 60,
        resets: 12,
        passes_empty_data: true,
    });
    let line = Line::new(Rc::new(socket), Reading::Patient, counts, 24, &[]);
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(8)
        .max_header_list_size(4_096)
        .max_pending_accept_reset_streams(12)
        .max_local_error_reset_streams(Some(12))
        .max_send_buffer_size(64 * 1024);
    let handshake = builder.handshake::<_, Owed>(Pipe(Rc::clone(&line)));
    let connection = handshake.await.ok()?;
    let world = Rc::new(World {
        line,
        tails: Rc::default(),
        budget: Budget::new(BUDGET_BYTES),
        stories: RefCell::default(),
        holders: RefCell::default(),
        sent: RefCell::default(),
        seconds: Cell::new(0),
        is_over: Cell::new(false),
    });
    Some((world, connection))
}

/// Moves the connection by the product's own rounds.
async fn drive(world: Rc<World>, mut connection: Connection<Pipe, Owed>) {
    let mut is_ending = false;
    poll_fn(|context| {
        loop {
            let start = |request, respond| world.start(request, respond);
            let end = |connection: &mut Connection<Pipe, Owed>| {
                if !std::mem::replace(&mut is_ending, true) {
                    connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                }
            };
            let parts = (&world.line, &*world.tails);
            if let ControlFlow::Break(done) = round(&mut connection, parts, context, start, end) {
                return done;
            }
        }
    })
    .await;
    drop(connection);
    world.is_over.set(true);
}

impl World {
    fn start(&self, request: http::Request<RecvStream>, respond: h2::server::SendResponse<Owed>) {
        let receive = request.into_body();
        let stream = receive.stream_id().as_u32();
        let holder = self.budget.holder();
        self.holders.borrow_mut().push(Rc::downgrade(&holder));
        self.sent.borrow_mut().insert(stream, Sent::default());
        self.stories.borrow_mut().push(Story {
            stream,
            body: BodyIn::new(receive),
            answer: Rc::new(AnswerOut::new(respond, holder, &self.tails)),
            has_head: false,
            rest: None,
            is_ended: false,
        });
    }

    /// A second passes.
    fn second(&self) {
        self.seconds.set(self.seconds.get() + 1);
        self.line.counts.refill();
        self.tails.expire(self.seconds.get(), TAIL_SECONDS);
    }

    /// Answers one of the requests a little more.
    fn answer(&self, program: &mut Program<'_>) {
        let (which, count, ends) = (program.number(), program.number(), program.number());
        let mut stories = self.stories.borrow_mut();
        if stories.is_empty() {
            return;
        }
        let at = usize::from(which) % stories.len();
        let mut sent = self.sent.borrow_mut();
        let sent = sent.entry(stories[at].stream).or_default();
        if !stories[at].send(usize::from(count) * 300, ends, sent) {
            stories.remove(at);
        }
    }

    /// Does to one of the requests what else may be done.
    fn story(&self, program: &mut Program<'_>) {
        let (which, what) = (program.number(), program.number());
        let mut stories = self.stories.borrow_mut();
        if stories.is_empty() {
            return;
        }
        let at = usize::from(which) % stories.len();
        let mut context = Context::from_waker(Waker::noop());
        match what % 5 {
            0 => stories[at].answer.reset(Reason::INTERNAL_ERROR),
            1 => drop(stories.remove(at)),
            // Behind a head `h2` would write it all the same.
            2 if !stories[at].has_head => stories[at].answer.say_continue(),
            2 => {}
            3 => {
                if stories[at].answer.poll_gone(&mut context).is_ready() {
                    stories[at].answer.reset(Reason::CANCEL);
                    stories.remove(at);
                }
            }
            _ => {
                let body = &mut stories[at].body;
                if body.poll_fill(&mut context) == Poll::Ready(Filled::More) {
                    let count = body.filled().len().min(1 + usize::from(what));
                    body.consume(count);
                } else if body.poll_fill(&mut context) == Poll::Ready(Filled::Ended(End::Finished))
                {
                    assert!(body.filled().is_empty());
                }
            }
        }
    }

    /// What must hold after each step.
    fn audit(&self, peer: &Peer) {
        let holders = self.holders.borrow();
        let held: usize = holders
            .iter()
            .filter_map(Weak::upgrade)
            .map(|one| one.bytes())
            .sum();
        assert_eq!(self.budget.used(), held, "what is counted is what is held");
        for holder in holders.iter().filter_map(Weak::upgrade) {
            // What gave up is on no account.
            let counted = if holder.is_given_up() {
                0
            } else {
                holder.alive.get()
            };
            assert_eq!(holder.owed(), counted, "what is owed is what is there");
        }
        let sent = self.sent.borrow();
        for (stream, got) in &peer.got {
            let sent = sent.get(stream).copied().unwrap_or_default();
            assert!(
                got.data_bytes <= sent.data_bytes,
                "{stream}: bytes of nobody"
            );
            if got.is_ended {
                assert!(sent.is_ended, "{stream}: an end that nobody said");
                assert_eq!(
                    got.data_bytes, sent.data_bytes,
                    "{stream}: an end too early"
                );
            }
        }
    }
}

impl Story {
    /// Sends more of the answer, or goes on with what waits; false when nobody takes it any more.
    fn send(&mut self, count: usize, ends: u8, sent: &mut Sent) -> bool {
        if self.is_ended {
            return false;
        }
        if !std::mem::replace(&mut self.has_head, true) {
            self.answer.hold_head(Response::new(()));
        }
        let (mut rest, is_last) = self.rest.take().unwrap_or_else(|| {
            let is_last = ends & 3 == 0;
            sent.data_bytes += count;
            sent.is_ended |= is_last;
            if is_last && ends & 4 == 0 {
                self.answer.hold_trailers(b"x-sum: 1\r\n");
            }
            (self.answer.owe(Bytes::from(vec![b'y'; count])), is_last)
        });
        let mut context = Context::from_waker(Waker::noop());
        match self.answer.poll_send(&mut rest, is_last, &mut context) {
            Poll::Pending => self.rest = Some((rest, is_last)),
            Poll::Ready(Ok(())) => self.is_ended = is_last,
            Poll::Ready(Err(_)) => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::h2::ops::on_a_runtime;

    /// A connection of a client that takes all, with so many requests on it.
    async fn asked(count: usize) -> (Rc<World>, Peer) {
        let (socket, mut peer) = pair().await;
        peer.greet();
        peer.open_windows();
        (0..count).for_each(|_| peer.ask(true));
        peer.flush(usize::MAX);
        let (world, connection) = begin(socket).await.unwrap();
        monoio::spawn(drive(Rc::clone(&world), connection));
        for _ in 0..LAST_TURNS {
            if world.stories.borrow().len() == count {
                break;
            }
            turn().await;
        }
        assert_eq!(world.stories.borrow().len(), count);
        (world, peer)
    }

    impl World {
        /// Answers the oldest request by one write, and its story is over.
        fn answer_whole(&self, count: usize) {
            let mut story = self.stories.borrow_mut().remove(0);
            let mut sent = self.sent.borrow_mut();
            let sent = sent.entry(story.stream).or_default();
            assert!(story.send(count, 4, sent) && story.is_ended);
        }
    }

    /// Turns until `count` streams have come to an end of either kind.
    async fn await_ends(peer: &mut Peer, count: usize) {
        for _ in 0..LAST_TURNS {
            peer.read();
            let ends = |got: &&super::super::peer::Got| got.is_ended || got.is_reset;
            if peer.got.values().filter(ends).count() == count {
                return;
            }
            turn().await;
        }
        panic!("streams without an end: {:?}", peer.got);
    }

    #[test]
    fn what_its_own_last_write_gives_up_is_reset_and_the_rest_is_whole() {
        on_a_runtime(async {
            let (world, mut peer) = asked(2).await;
            // Of equals the last gives up, which is the one that is just being written.
            world.answer_whole(60_000);
            world.answer_whole(60_000);
            assert_eq!(world.budget.take_given_up(), 1);
            await_ends(&mut peer, 2).await;
            let (first, second) = (peer.got[&1], peer.got[&3]);
            assert!(first.is_ended && !first.is_reset);
            assert_eq!(first.data_bytes, 60_000);
            assert!(second.is_reset && !second.is_ended);
            assert_eq!(second.data_bytes, 0);
            assert_eq!(world.budget.used(), 0);
        });
    }

    #[test]
    fn a_tail_of_which_nothing_is_taken_for_its_time_is_reset_and_its_memory_free() {
        on_a_runtime(async {
            let (world, mut peer) = asked(2).await;
            world.answer_whole(60_000);
            world.answer_whole(30_000);
            // No turn of the connection: nothing goes out.
            assert!(!world.tails.is_empty());
            assert_eq!(world.tails.expire(100, 10), 0, "the first look");
            assert_eq!(world.tails.expire(109, 10), 0);
            let holder = world.holders.borrow()[0].upgrade().unwrap();
            holder.paid(1);
            assert_eq!(world.tails.expire(110, 10), 1, "of one a byte was taken");
            assert_eq!(world.budget.used(), 59_999);
            assert_eq!(world.tails.expire(119, 10), 0);
            assert_eq!(world.tails.expire(120, 10), 1);
            assert!(world.tails.is_empty());
            assert_eq!(world.budget.used(), 0);
            await_ends(&mut peer, 2).await;
            for got in peer.got.values() {
                assert!(
                    got.is_reset && !got.is_ended && got.data_bytes == 0,
                    "{got:?}"
                );
            }
        });
    }
}
