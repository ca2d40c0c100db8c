//! One socket's bytes: what was read and not used, what is to be written and not yet taken.

use std::io::{self, Read, Write};
use std::net::TcpStream;

/// Bytes read at once.
pub(super) const READ_BYTES: usize = 256 * 1024;
/// Memory that an empty buffer keeps.
const KEPT_BYTES: usize = 4 * 1024;

/// A connection's bytes in both directions.
pub(super) struct Wire {
    /// The socket; it never blocks.
    pub(super) socket: TcpStream,
    kept: Vec<u8>,
    /// Bytes to be written.
    pub(super) out: Vec<u8>,
    sent: usize,
}

/// What a loop counts of all its sockets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    /// Reads that brought something.
    pub(super) reads: u64,
    /// Writes that took something.
    pub(super) writes: u64,
    /// Bytes read.
    pub(super) bytes_in: u64,
    /// Bytes written.
    pub(super) bytes_out: u64,
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// So many bytes are at the start of the scratch memory, those kept before included; whether
    /// the kernel may have more.
    Bytes(usize, bool),
    /// Nothing now.
    Empty,
    /// The peer sends no more.
    End,
}

impl Moved {
    /// What was moved since an earlier moment.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            bytes_in: self.bytes_in - earlier.bytes_in,
            bytes_out: self.bytes_out - earlier.bytes_out,
        }
    }
}

impl Wire {
    /// Takes a connected or connecting socket over.
    pub(super) fn new(socket: TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(Self {
            socket,
            kept: Vec::new(),
            out: Vec::new(),
            sent: 0,
        })
    }

    /// Reads once, behind what was kept.
    pub(super) fn fill(&mut self, scratch: &mut Vec<u8>, moved: &mut Moved) -> io::Result<Fill> {
        let kept = self.kept.len();
        scratch.resize(READ_BYTES.max(kept + READ_BYTES / 2), 0);
        scratch[..kept].copy_from_slice(&self.kept);
        let room = scratch.len() - kept;
        match self.socket.read(&mut scratch[kept..]) {
            Ok(0) => Ok(Fill::End),
            Ok(count) => {
                moved.reads += 1;
                moved.bytes_in += count as u64;
                self.kept.clear();
                Ok(Fill::Bytes(kept + count, count == room))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Fill::Empty),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Fill::Bytes(0, true)),
            Err(error) => Err(error),
        }
    }

    /// Keeps what was not used of the bytes that a fill brought.
    pub(super) fn keep(&mut self, unused: &[u8]) {
        self.kept.clear();
        self.kept.extend_from_slice(unused);
        self.kept.shrink_to(KEPT_BYTES.max(unused.len()));
    }

    /// Takes what was kept.
    pub(super) fn take_kept(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.kept)
    }

    /// Bytes that the kernel has not taken yet.
    pub(super) fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Writes until all is written or the kernel takes no more; whether all is.
    pub(super) fn flush(&mut self, moved: &mut Moved) -> io::Result<bool> {
        while self.sent < self.out.len() {
            match self.socket.write(&self.out[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    moved.writes += 1;
                    moved.bytes_out += count as u64;
                    self.sent += count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(true)
    }
}
