//! One TLS connection's state over a socket that never blocks.
//!
//! rustls does the protocol; this decides only when bytes move. Nothing here waits, and nothing is
//! lost when a wait around it is dropped: ciphertext that the kernel does not take stays in the
//! session, plaintext that nobody asked for yet does too. Both are bounded. Reader and writer may
//! take turns in any order, because all ciphertext leaves through the one queue of the session.

use std::cell::{Cell, RefCell};
use std::io::{self, BufRead as _, Read, Write};

use rustls::Connection;

use super::Alpn;
use crate::secrets::TlsFailure;
use crate::serve::sys::is_transient;

/// Plaintext taken into ciphertext that waits for the kernel, at most.
const OUT_BYTES: usize = 64 * 1024;
/// Reads of ciphertext in one go that may bring no plaintext: a peer that sends empty records must
/// not keep its shard from others.
const EMPTY_READS: usize = 16;

/// A TLS connection, of either side.
pub(crate) struct Session {
    connection: RefCell<Connection>,
    /// Why it failed, once it has.
    failure: Cell<Option<TlsFailure>>,
}

/// What a step of a handshake came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Both sides agreed.
    Done,
    /// The peer's next bytes are needed.
    Read,
    /// The kernel must first take what waits to be sent.
    Write,
}

impl Session {
    /// A session that has not exchanged a byte yet.
    pub(super) fn new(mut connection: Connection) -> Self {
        connection.set_buffer_limit(Some(OUT_BYTES));
        Self {
            connection: RefCell::new(connection),
            failure: Cell::new(None),
        }
    }

    /// What both sides agreed to speak inside.
    pub(crate) fn alpn(&self) -> Option<Alpn> {
        self.connection.borrow().alpn_protocol().and_then(Alpn::of)
    }

    /// Whether the handshake took up an earlier session instead of proving everything anew.
    pub(super) fn is_resumed(&self) -> bool {
        let kind = self.connection.borrow().handshake_kind();
        kind == Some(rustls::HandshakeKind::Resumed)
    }

    /// Why the session failed; none for one that works or merely ended.
    pub(crate) fn failure(&self) -> Option<TlsFailure> {
        self.failure.get()
    }

    /// Takes the handshake as far as it goes now.
    pub(super) fn advance(&self, wire: &mut (impl Read + Write)) -> Result<Step, TlsFailure> {
        loop {
            let flushed = self.push(wire).map_err(|_| TlsFailure::Closed)?;
            if !self.connection.borrow().is_handshaking() {
                return Ok(if flushed { Step::Done } else { Step::Write });
            }
            if !flushed {
                return Ok(Step::Write);
            }
            match self.pull(wire) {
                Ok(0) => return Err(TlsFailure::Closed),
                Ok(_) => {}
                Err(error) if is_transient(&error) => return Ok(Step::Read),
                Err(_) => return Err(self.failure.get().unwrap_or(TlsFailure::Closed)),
            }
        }
    }

    /// Hands plaintext that has arrived to `use_chunk`, which says how much of it it used; 0 bytes
    /// mean the peer's end in good order. An end that the peer did not announce inside TLS is an
    /// error: whoever sits between could have made it.
    pub(crate) fn take_chunk(
        &self,
        wire: &mut (impl Read + Write),
        use_chunk: impl FnOnce(&[u8]) -> usize,
    ) -> io::Result<usize> {
        for _ in 0..EMPTY_READS {
            let mut connection = self.connection.borrow_mut();
            let mut reader = connection.reader();
            match reader.fill_buf() {
                Ok(chunk) => {
                    let used = use_chunk(chunk);
                    reader.consume(used);
                    return Ok(used);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            drop(connection);
            self.pull(wire)?;
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Whether plaintext, or the end, waits to be taken.
    pub(crate) fn has_waiting(&self) -> bool {
        let mut connection = self.connection.borrow_mut();
        let mut reader = connection.reader();
        let waits = reader.fill_buf();
        !waits.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Encrypts some of `bytes` and hands what it can to the kernel. Fails with `WouldBlock` where
    /// too much waits already.
    pub(crate) fn give(&self, wire: &mut (impl Read + Write), bytes: &[u8]) -> io::Result<usize> {
        self.push(wire)?;
        let taken = self.connection.borrow_mut().writer().write(bytes)?;
        if taken == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.push(wire)?;
        Ok(taken)
    }

    /// Whether no ciphertext waits for the kernel.
    pub(crate) fn is_flushed(&self) -> bool {
        !self.connection.borrow().wants_write()
    }

    /// Hands waiting ciphertext to the kernel; true when none is left.
    pub(crate) fn push(&self, wire: &mut (impl Read + Write)) -> io::Result<bool> {
        let mut connection = self.connection.borrow_mut();
        while connection.wants_write() {
            match connection.write_tls(wire) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_transient(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Says inside TLS that nothing more will be sent.
    pub(crate) fn say_end(&self, wire: &mut (impl Read + Write)) {
        if self.failure.get().is_none() {
            self.connection.borrow_mut().send_close_notify();
            // A peer that no longer listens needs no word.
            let _ = self.push(wire);
        }
    }

    /// Reads ciphertext and works through it; 0 bytes mean that the socket has ended.
    fn pull(&self, wire: &mut (impl Read + Write)) -> io::Result<usize> {
        let mut connection = self.connection.borrow_mut();
        let count = connection.read_tls(wire)?;
        if let Err(error) = connection.process_new_packets() {
            let failure = TlsFailure::of(&error);
            self.failure.set(Some(failure));
            // The alert that tells the peer why, as far as the kernel takes it.
            let _ = connection.write_tls(wire);
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        let answers = connection.wants_write() && !connection.is_handshaking();
        drop(connection);
        if answers {
            // An answer to a key update; what does not fit leaves with the next write.
            let _ = self.push(wire);
        }
        Ok(count)
    }
}
