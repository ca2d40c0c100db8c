//! The adapter of engines under a program: our side asks on connections of its pool, answers come.

use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, SendStream};
use http::Request;
use pointsman_shm::id::{EngineSlot, Generation};
use pointsman_shm::policy::Protocol;

use super::super::Rules;
use super::super::engine_conn::{Answers, EngineConn2};
use super::super::engine_pool::{EnginePools2, Room, Slot, Wanted};
use super::super::engine_stream::{Gathered, Reply};
use super::peer::Peer;
use super::{LAST_TURNS, Program, pair, turn};
use crate::clock::monotonic_ns;
use crate::metrics::ShardMetrics;
use crate::serve::body::Budget;
use crate::serve::engines::EngineView;
use crate::serve::holder::Holder;

/// Memory for slow clients: little, so that it runs out.
const BUDGET_BYTES: usize = 96 * 1024;
/// Connections of one program.
const CONNECTIONS: usize = 4;
const SECOND_NS: u64 = 1_000_000_000;

struct World {
    pools: EnginePools2,
    metrics: Arc<ShardMetrics>,
    engine: Rc<EngineView>,
    budget: Rc<Budget>,
    holders: Vec<Weak<Holder>>,
    asked: Vec<Asked>,
    /// The engine's sides, the last of which a program talks to.
    peers: Vec<Peer>,
    /// Which of them is the other side of a connection; of one that came where another was, the
    /// last counts.
    sides: Vec<(*const EngineConn2, usize)>,
    now_ns: u64,
}

/// A request and what becomes of it.
enum Asked {
    /// No head yet.
    Waits(Slot, ResponseFuture, Option<SendStream<Bytes>>),
    /// Its answer comes.
    Answered(Box<Reply>),
}

/// Runs a program to its end.
pub(super) async fn run(mut program: Program<'_>) {
    let mut world = World::new();
    while let Some(step) = program.step() {
        match step % 16 {
            0..10 => {
                if let Some(peer) = world.peers.last_mut() {
                    peer.step(step % 16, &mut program);
                }
            }
            10 => world.respond(&mut program),
            11 | 12 => world.ask(&mut program).await,
            13 | 14 => world.go_on(&mut program),
            _ => world.look(&mut program),
        }
        turn().await;
        world.audit();
    }
    world.peers.iter_mut().for_each(Peer::leave);
    world.asked.clear();
    for _ in 0..LAST_TURNS {
        // A pool lets go of what ended when it is looked at.
        world.pools.look(world.now_ns, false);
        if world.open() == 0 {
            break;
        }
        turn().await;
    }
    assert_eq!(world.open(), 0, "a connection outlives its engine");
    assert_eq!(world.budget.used(), 0, "bytes are held for nobody");
}

impl World {
    fn new() -> Self {
        let rules = Rules {
            streams: 12,
            streams_in_all: 40,
            first_streams: 3,
            connections: 2,
            age_ns: 30 * SECOND_NS,
            ping_ns: 5 * SECOND_NS,
            write_ns: 10 * SECOND_NS,
            header_list_bytes: 4_096,
            control_frames: 60,
            resets: 12,
        };
        let metrics = Arc::new(ShardMetrics::default());
        let engine = EngineView {
            slot: EngineSlot(0),
            generation: Generation(1),
            id: "E".to_owned(),
            addresses: Vec::new(),
            protocol: Protocol::Http2,
            authority: "e".to_owned(),
            credential: None,
            tls: None,
            authority2: None,
            idle_ns: 20 * SECOND_NS,
            max_connections: CONNECTIONS,
            max_streams: usize::MAX,
        };
        Self {
            pools: EnginePools2::new(rules, Arc::clone(&metrics)),
            metrics,
            engine: Rc::new(engine),
            budget: Budget::new(BUDGET_BYTES),
            holders: Vec::new(),
            asked: Vec::new(),
            peers: Vec::new(),
            sides: Vec::new(),
            now_ns: monotonic_ns(),
        }
    }

    /// Connections that are not at their end.
    fn open(&self) -> i64 {
        self.metrics.engine(self.engine.slot).connections.value() as i64
    }

    /// Asks for something, over a new connection where there is no room.
    async fn ask(&mut self, program: &mut Program<'_>) {
        let context = Context::from_waker(Waker::noop());
        let number = program.number();
        let wanted = Wanted {
            answers: match number & 1 {
                0 => Answers::Streams,
                _ => Answers::Whole,
            },
            is_replay: number & 6 == 6,
        };
        let slot = match self.pools.poll_room(&self.engine, wanted, &context) {
            Poll::Pending => return,
            Poll::Ready(Room::Slot(slot)) => slot,
            Poll::Ready(Room::Connect(ticket)) => {
                if self.peers.len() == CONNECTIONS {
                    return;
                }
                let (socket, mut peer) = pair().await;
                if program.number() & 3 > 0 {
                    peer.settle();
                }
                self.peers.push(peer);
                let Ok((slot, driver)) = self.pools.begin(ticket, socket).await else {
                    return;
                };
                monoio::spawn(driver);
                self.sides.push((slot.conn(), self.peers.len() - 1));
                slot
            }
        };
        let request = Request::post("http://e/v1/chat/completions").body(());
        let request = request.expect("a fit head");
        let has_body = program.number() & 1 == 0;
        let Some(mut sender) = slot.conn().sender() else {
            return;
        };
        let Ok((response, mut upload)) = sender.send_request(request, !has_body) else {
            slot.conn().retire();
            return;
        };
        if has_body {
            let body = vec![b'z'; usize::from(program.number()) * 40];
            let _ = upload.send_data(Bytes::from(body), program.number() & 1 == 0);
        }
        self.asked.push(Asked::Waits(slot, response, Some(upload)));
    }

    /// The engine answers one of its streams' heads.
    fn respond(&mut self, program: &mut Program<'_>) {
        let stream = u32::from(program.number() & 15) * 2 + 1;
        let ends = program.number() & 3 == 0;
        let fields = [
            (":status", "200"),
            ("content-length", "700"),
            ("x-sum", "1"),
        ];
        let count = 1 + usize::from(program.number() & 1) * 2;
        if let Some(peer) = self.peers.last_mut() {
            let fields = if program.number() & 7 == 0 {
                &fields[2..]
            } else {
                &fields[..count]
            };
            peer.head(stream, fields, ends);
        }
    }

    /// Our side goes on with one of its requests.
    fn go_on(&mut self, program: &mut Program<'_>) {
        let (which, what) = (program.number(), program.number());
        if self.asked.is_empty() {
            return;
        }
        let at = usize::from(which) % self.asked.len();
        let asked = self.asked.swap_remove(at);
        if let Some(asked) = self.stepped(asked, what) {
            self.asked.push(asked);
        }
    }

    /// One step of a request; none when it is over.
    fn stepped(&mut self, asked: Asked, what: u8) -> Option<Asked> {
        let mut context = Context::from_waker(Waker::noop());
        match asked {
            _ if what & 31 == 0 => None,
            Asked::Waits(slot, mut response, upload) => {
                let mut upload = upload;
                if what & 31 == 1
                    && let Some(upload) = &mut upload
                {
                    upload.send_reset(Reason::CANCEL);
                }
                match std::pin::Pin::new(&mut response).poll(&mut context) {
                    Poll::Pending => Some(Asked::Waits(slot, response, upload)),
                    Poll::Ready(Err(_)) => None,
                    Poll::Ready(Ok(response)) => {
                        let holder = self.budget.holder();
                        self.holders.push(Rc::downgrade(&holder));
                        let reply = Reply::new(response.into_body(), holder, slot);
                        Some(Asked::Answered(Box::new(reply)))
                    }
                }
            }
            Asked::Answered(mut reply) => {
                if what & 31 == 2 {
                    reply.give_back();
                    return Some(Asked::Answered(reply));
                }
                match reply.poll_gather(&mut context) {
                    Poll::Pending => Some(Asked::Answered(reply)),
                    Poll::Ready(Gathered::More) if what & 3 == 0 => {
                        let mut into = Vec::new();
                        reply.take(&mut into);
                        assert!(!into.is_empty(), "something came");
                        Some(Asked::Answered(reply))
                    }
                    // The client is slow: what came stays where it is.
                    Poll::Ready(Gathered::More) => Some(Asked::Answered(reply)),
                    Poll::Ready(Gathered::Whole) => {
                        let peer = self.peer_of(reply.conn());
                        let stream = reply.stream();
                        assert!(
                            peer.ended.contains(&stream),
                            "{stream}: an end that nobody said"
                        );
                        None
                    }
                    Poll::Ready(Gathered::Failed(_)) => None,
                }
            }
        }
    }

    /// The engine's side of a connection.
    fn peer_of(&self, conn: &EngineConn2) -> &Peer {
        let mut sides = self.sides.iter().rev();
        let side = sides.find(|(other, _)| std::ptr::eq(*other, conn));
        &self.peers[side.expect("each connection was begun here").1]
    }

    /// Time passes, and the shard looks after its connections.
    fn look(&mut self, program: &mut Program<'_>) {
        self.now_ns += u64::from(program.number() & 7) * SECOND_NS;
        self.pools.look(self.now_ns, program.number() & 1 == 0);
    }

    /// What must hold after each step.
    fn audit(&self) {
        let holders = self.holders.iter().filter_map(Weak::upgrade);
        let held: usize = holders.map(|one| one.bytes()).sum();
        assert_eq!(self.budget.used(), held, "what is counted is what is held");
        let slots = || {
            self.asked.iter().map(|asked| match asked {
                Asked::Waits(slot, ..) => slot.conn(),
                Asked::Answered(reply) => reply.conn(),
            })
        };
        for conn in slots() {
            let here = slots().filter(|other| std::ptr::eq(*other, conn)).count();
            assert_eq!(conn.in_use(), here, "room is counted as it is taken");
            assert!(
                !(conn.is_retired() && conn.has_room()),
                "room on what takes nothing"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::{Read as _, Write as _};
    use std::pin::pin;
    use std::time::Duration;

    use super::*;
    use crate::decide::retry::AttemptEnd;
    use crate::serve::testing::{on_both_drivers, pair};
    use crate::serve::turn;

    /// Empty SETTINGS, then a head of stream 1 that says 200 and ends it.
    const ANSWER: [u8; 19] = [
        0, 0, 0, 4, 0, 0, 0, 0, 0, //
        0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88,
    ];

    /// A reply that waits asks `h2` only after a turn of its connection, and learns of its end however
    /// that comes: here its driver is dropped, as a panic would drop it.
    #[test]
    fn a_reply_hears_what_a_turn_brought_and_the_end_of_its_connection() {
        on_both_drivers(|| async {
            let world = World::new();
            let wanted = Wanted {
                answers: Answers::Streams,
                is_replay: false,
            };
            let mut context = Context::from_waker(Waker::noop());
            let room = world.pools.poll_room(&world.engine, wanted, &context);
            let Poll::Ready(Room::Connect(ticket)) = room else {
                panic!("a connection may be made");
            };
            let (socket, mut peer) = pair().await;
            let (slot, driver) = world.pools.begin(ticket, socket).await.unwrap();
            let mut driver = Box::pin(driver);
            let request = Request::post("http://e/").body(()).unwrap();
            let mut sender = slot.conn().sender().unwrap();
            let (mut response, _upload) = sender.send_request(request, true).unwrap();
            peer.write_all(&ANSWER[..13]).unwrap();
            peer.write_all(&[4, 0, 0, 0, 1, 0x88]).unwrap();
            let response = poll_fn(|context| {
                assert!(driver.as_mut().poll(context).is_pending());
                std::pin::Pin::new(&mut response).poll(context)
            });
            let body = response.await.unwrap().into_body();
            let mut reply = Reply::new(body, world.budget.holder(), slot);
            assert_eq!(reply.poll_gather(&mut context), Poll::Pending);
            peer.write_all(&[0, 0, 2, 0, 0, 0, 0, 0, 1, b'h', b'i'])
                .unwrap();
            let came = poll_fn(|context| {
                assert!(driver.as_mut().poll(context).is_pending());
                reply.poll_gather(&mut Context::from_waker(Waker::noop()))
            });
            assert_eq!(came.await, Gathered::More);
            let mut into = Vec::new();
            reply.take(&mut into);
            assert_eq!(into, b"hi");
            assert_eq!(reply.poll_gather(&mut context), Poll::Pending);
            drop(driver);
            let end = reply.poll_gather(&mut context);
            assert_eq!(end, Poll::Ready(Gathered::Failed(AttemptEnd::MidBody)));
        });
    }

    /// An engine that answers and closes before it has read all: our next write fails, and what it
    /// said is still to be read.
    #[test]
    fn an_answer_is_heard_though_its_engine_takes_nothing_more() {
        on_both_drivers(|| async {
            let marking = monoio::spawn(turn::mark());
            let world = World::new();
            let wanted = Wanted {
                answers: Answers::Whole,
                is_replay: false,
            };
            let context = Context::from_waker(Waker::noop());
            let room = world.pools.poll_room(&world.engine, wanted, &context);
            let Poll::Ready(Room::Connect(ticket)) = room else {
                panic!("a connection may be made");
            };
            let (socket, mut peer) = pair().await;
            let (slot, driver) = world.pools.begin(ticket, socket).await.unwrap();
            let mut driver = pin!(driver);
            let ask = || {
                let request = Request::post("http://e/").body(()).unwrap();
                let mut sender = slot.conn().sender().unwrap();
                sender.send_request(request, true).unwrap().0
            };
            let first = ask();
            poll_fn(|context| Poll::Ready(driver.as_mut().poll(context).is_ready())).await;
            monoio::time::sleep(Duration::from_millis(5)).await;
            peer.read_exact(&mut [0]).unwrap();
            peer.write_all(&ANSWER).unwrap();
            drop(peer);
            // The runtime has not looked at the socket since: the write comes before the read.
            let second = ask();
            let ended = poll_fn(|context| Poll::Ready(driver.as_mut().poll(context).is_ready()));
            assert!(!ended.await, "what the engine said was not heard");
            assert!(slot.conn().is_retired(), "the write did not fail");
            driver.await;
            assert_eq!(first.await.unwrap().status(), 200);
            assert!(second.await.unwrap_err().is_io());
            drop(marking);
        });
    }
}
