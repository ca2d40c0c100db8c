//! The relay that is measured: what comes in on a stream's engine side goes out on its client side,
//! and nothing else.
//!
//! The ring alone, with the product's flags, and no runtime: what an operation costs here is what
//! a runtime cannot do without. Reads and writes follow each other as monoio's tasks do them: an
//! operation's successor is submitted with all others of its turn, and a turn waits for one
//! completion.
#![expect(
    unsafe_code,
    reason = "the ring takes addresses; each block says why it is sound"
)]

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};

use anyhow::{Context, bail};
use io_uring::types::{Fd, Fixed};
use io_uring::{IoUring, cqueue, opcode, squeue};
use pointsman_proxy::driver::RingPlan;

use super::buffers::{BUFFER_BYTES, Buffers, Lent};
use super::way::Way;

/// The one group of lent buffers.
const GROUP: u16 = 0;
/// Buffers lent for each stream: one whose token is on its way out, one for the next.
const LENT_PER_STREAM: usize = 2;

/// One thread's relay; it stays on the thread that made it.
pub(super) struct Relay {
    // Before the memory, which the kernel may use while the ring is there.
    ring: IoUring,
    way: Way,
    streams: Vec<Stream>,
    buffers: Buffers,
    lent: Option<Lent>,
    /// Completions of this turn.
    turn: Vec<Completion>,
    /// Operations that will complete once more.
    in_flight: usize,
    /// Bytes that the kernel took for the clients.
    sent_bytes: usize,
    /// Calls of `io_uring_enter`.
    enters: u64,
}

/// One stream's two sockets.
pub(super) struct Stream {
    engine: TcpStream,
    client: TcpStream,
    /// What was read and is not yet written, the oldest first; a buffer is in it at most once.
    pending: VecDeque<Chunk>,
}

#[derive(Clone, Copy)]
struct Chunk {
    buffer: u16,
    from: usize,
    to: usize,
}

struct Completion {
    operation: Operation,
    stream: usize,
    result: i32,
    flags: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Read,
    Write,
}

impl Stream {
    pub(super) fn new(engine: TcpStream, client: TcpStream) -> Self {
        Self {
            engine,
            client,
            pending: VecDeque::new(),
        }
    }
}

impl Relay {
    /// A relay whose reads of all streams are with the kernel.
    pub(super) fn new(way: Way, streams: Vec<Stream>) -> anyhow::Result<Self> {
        let plan = RingPlan::first();
        let ring = plan
            .builder()
            .build(plan.entries)
            .with_context(|| format!("cannot make a ring with {:?} (Linux 6.1)", plan.flags))?;
        let (buffers, lent) = memory(way, streams.len())?;
        let mut relay = Self {
            ring,
            way,
            streams,
            buffers,
            lent,
            turn: Vec::new(),
            in_flight: 0,
            sent_bytes: 0,
            enters: 0,
        };
        relay.register()?;
        for stream in 0..relay.streams.len() {
            relay.read(stream)?;
        }
        relay.submit()?;
        Ok(relay)
    }

    /// Relays until so many more bytes have gone out, and leaves with all reads at the kernel.
    pub(super) fn relay(&mut self, bytes: usize) -> anyhow::Result<()> {
        let goal = self.sent_bytes + bytes;
        while self.sent_bytes < goal {
            self.turn()?;
        }
        self.submit()
    }

    /// Calls of `io_uring_enter` until now.
    pub(super) fn enters(&self) -> u64 {
        self.enters
    }

    /// Gives the kernel what the way wants it to know: sockets, buffers.
    fn register(&mut self) -> anyhow::Result<()> {
        if self.way.registers_files() {
            let files: Vec<RawFd> = self
                .streams
                .iter()
                .flat_map(|stream| [stream.engine.as_raw_fd(), stream.client.as_raw_fd()])
                .collect();
            let submitter = self.ring.submitter();
            submitter
                .register_files_sparse(u32::try_from(files.len())?)
                .context("cannot make a table of registered files")?;
            let taken = submitter
                .register_files_update(0, &files)
                .context("cannot register the sockets")?;
            if taken != files.len() {
                bail!("{taken} of {} sockets were registered", files.len());
            }
        }
        if let Some(lent) = &mut self.lent {
            let address = lent.address() as u64;
            // SAFETY: the pages stay where they are while `self.lent` does, which is dropped
            // after the ring; they have room for so many entries.
            unsafe {
                let submitter = self.ring.submitter();
                submitter.register_buf_ring(address, lent.entries(), GROUP)
            }
            .context("cannot register a ring of buffers (Linux 5.19)")?;
            for buffer in 0..lent.entries() {
                lent.lend(&self.buffers, buffer);
            }
        }
        Ok(())
    }

    /// Submits what this turn asked for, waits for a completion, and works off all that are there.
    fn turn(&mut self) -> anyhow::Result<()> {
        self.enters += 1;
        match self.ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error).context("io_uring_enter failed"),
        }
        let mut turn = std::mem::take(&mut self.turn);
        turn.extend(self.ring.completion().map(|entry| Completion::of(&entry)));
        self.in_flight -= turn.iter().filter(|done| !done.goes_on()).count();
        for completion in turn.drain(..) {
            self.complete(&completion)?;
        }
        self.turn = turn;
        Ok(())
    }

    fn complete(&mut self, done: &Completion) -> anyhow::Result<()> {
        let stream = done.stream;
        let length = match usize::try_from(done.result) {
            Ok(length) => length,
            // A moment without a free buffer ends a read; the stream asks once more.
            Err(_) if done.result == -libc::ENOBUFS => return self.read(stream),
            Err(_) => {
                let error = io::Error::from_raw_os_error(-done.result);
                let what = done.operation;
                return Err(error).with_context(|| format!("{what:?} on stream {stream} failed"));
            }
        };
        match done.operation {
            Operation::Read if length == 0 => bail!("the engine closed stream {stream}"),
            Operation::Read => {
                let buffer = if self.way.is_multishot() {
                    if !done.goes_on() {
                        self.read(stream)?;
                    }
                    cqueue::buffer_select(done.flags).context("a read without a buffer")?
                } else {
                    own_buffer(stream)
                };
                let to = length;
                let pending = &mut self.streams[stream].pending;
                pending.push_back(Chunk {
                    buffer,
                    from: 0,
                    to,
                });
                if pending.len() == 1 {
                    self.write(stream)?;
                }
                Ok(())
            }
            Operation::Write => self.written(stream, length),
        }
    }

    /// The kernel took `length` bytes of a stream's oldest chunk.
    fn written(&mut self, stream: usize, length: usize) -> anyhow::Result<()> {
        self.sent_bytes += length;
        let pending = &mut self.streams[stream].pending;
        let chunk = pending
            .front_mut()
            .context("a write that nobody asked for")?;
        chunk.from += length;
        if chunk.from < chunk.to {
            return self.write(stream);
        }
        let buffer = chunk.buffer;
        pending.pop_front();
        let more = !pending.is_empty();
        match &mut self.lent {
            Some(lent) => lent.lend(&self.buffers, buffer),
            None => self.read(stream)?,
        }
        if more {
            self.write(stream)?;
        }
        Ok(())
    }

    /// Asks for what comes from a stream's engine.
    fn read(&mut self, stream: usize) -> anyhow::Result<()> {
        let number = Fd(self.streams[stream].engine.as_raw_fd());
        let slot = Fixed(2 * stream as u32);
        let entry = if self.way.is_multishot() {
            match self.way.registers_files() {
                false => opcode::RecvMulti::new(number, GROUP).build(),
                true => opcode::RecvMulti::new(slot, GROUP).build(),
            }
        } else {
            let (into, length) = (
                self.buffers.address(own_buffer(stream)),
                BUFFER_BYTES as u32,
            );
            match self.way.registers_files() {
                false => opcode::Recv::new(number, into, length).build(),
                true => opcode::Recv::new(slot, into, length).build(),
            }
        };
        self.push(entry.user_data(user_data(Operation::Read, stream)))
    }

    /// Asks for a stream's oldest chunk to be written to its client.
    fn write(&mut self, stream: usize) -> anyhow::Result<()> {
        let Stream {
            client, pending, ..
        } = &self.streams[stream];
        let chunk = pending.front().context("nothing to write")?;
        let number = Fd(client.as_raw_fd());
        let slot = Fixed(2 * stream as u32 + 1);
        let from = self.buffers.address(chunk.buffer).wrapping_add(chunk.from);
        let length = (chunk.to - chunk.from) as u32;
        let entry = match self.way.registers_files() {
            false => opcode::Send::new(number, from, length)
                .flags(libc::MSG_NOSIGNAL)
                .build(),
            true => opcode::Send::new(slot, from, length)
                .flags(libc::MSG_NOSIGNAL)
                .build(),
        };
        self.push(entry.user_data(user_data(Operation::Write, stream)))
    }

    fn push(&mut self, entry: squeue::Entry) -> anyhow::Result<()> {
        // SAFETY: what an entry points at are this relay's buffers, which do not move and outlive
        // every operation (see `drop`); a buffer is with one operation at a time.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.submit()?;
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Gives the kernel what was asked for, and waits for nothing.
    fn submit(&mut self) -> anyhow::Result<()> {
        self.enters += 1;
        self.ring.submit().context("io_uring_enter failed")?;
        Ok(())
    }

    /// Waits until the kernel is done with every operation, which closed sockets end.
    fn quiesce(&mut self) -> io::Result<()> {
        for stream in &self.streams {
            // A socket that is not connected any more has no operation that would wait.
            let _ = stream.engine.shutdown(Shutdown::Both);
            let _ = stream.client.shutdown(Shutdown::Both);
        }
        while self.in_flight > 0 {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            let done = self.ring.completion();
            self.in_flight -= done.filter(|entry| !cqueue::more(entry.flags())).count();
        }
        Ok(())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if self.quiesce().is_err() {
            // The kernel may still write into them.
            std::mem::forget(std::mem::replace(&mut self.buffers, Buffers::new(0)));
            std::mem::forget(self.lent.take());
        }
    }
}

impl Completion {
    fn of(entry: &cqueue::Entry) -> Self {
        let data = entry.user_data();
        Self {
            operation: match data & 1 {
                0 => Operation::Read,
                _ => Operation::Write,
            },
            stream: (data >> 1) as usize,
            result: entry.result(),
            flags: entry.flags(),
        }
    }

    /// Whether the operation will complete once more.
    fn goes_on(&self) -> bool {
        cqueue::more(self.flags)
    }
}

/// Buffers for so many streams: each its own, or more than all can hold and a ring to lend them.
fn memory(way: Way, streams: usize) -> anyhow::Result<(Buffers, Option<Lent>)> {
    if !way.is_multishot() {
        return Ok((Buffers::new(streams), None));
    }
    let entries = (streams * LENT_PER_STREAM).next_power_of_two();
    let buffers = Buffers::new(entries);
    Ok((buffers, Some(Lent::new(u16::try_from(entries)?))))
}

/// The buffer of a stream that has one of its own.
fn own_buffer(stream: usize) -> u16 {
    stream as u16
}

fn user_data(operation: Operation, stream: usize) -> u64 {
    (stream as u64) << 1 | u64::from(operation == Operation::Write)
}
