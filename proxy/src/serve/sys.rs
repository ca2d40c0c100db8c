//! The socket as the data plane uses it: one value that is read, written and watched at once.
//!
//! The only file of `serve` with unsafe code. monoio's stream wants `&mut self` for every
//! operation, though none of them touches the stream beyond cloning its descriptor; here each takes
//! `&self`, so that a client can be watched for leaving while a token is written to it. The calls
//! beside monoio never block: they look at, or take, only what the kernel already has.

#![expect(
    unsafe_code,
    reason = "peeks, takes and socket options need the raw descriptor, hints an instruction"
)]

use std::cell::UnsafeCell;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use bytes::BytesMut;
use monoio::BufResult;
use monoio::buf::{IoBuf, IoBufMut};
use monoio::io::{AsyncReadRent, AsyncWriteRent};
use monoio::net::TcpStream;

use super::tls::{Alpn, Session};
use super::turn;
use crate::secrets::TlsFailure;

/// A connected TCP socket of one shard, with or without TLS inside: every operation means the same
/// either way.
pub(crate) struct Socket {
    stream: UnsafeCell<TcpStream>,
    tls: Option<Box<Session>>,
}

/// The socket's bytes below TLS, moved without waiting.
pub(crate) struct Wire<'a>(&'a Socket);

/// Flags of a send that neither waits nor raises SIGPIPE.
const WITHOUT_WAITING: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// What a look at a socket's receive queue shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peek {
    /// Nothing has arrived and the peer is still there.
    Quiet,
    /// Bytes wait to be read.
    Data,
    /// The peer closed its sending side, or reset the connection.
    Gone,
}

impl Socket {
    /// Takes a stream over and turns Nagle's algorithm off: tokens are small and must not wait.
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: UnsafeCell::new(stream),
            tls: None,
        })
    }

    /// Connects to `address`. Dropping the future abandons the try and closes its descriptor.
    pub(crate) async fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::new(TcpStream::connect_addr(address).await?)
    }

    /// From here on all bytes go through `session`, whose handshake is done.
    pub(crate) fn secure(&mut self, session: Session) {
        self.tls = Some(Box::new(session));
    }

    /// The bytes below TLS.
    pub(crate) fn wire(&self) -> Wire<'_> {
        Wire(self)
    }

    /// What the two sides of a TLS connection agreed to speak.
    pub(crate) fn alpn(&self) -> Option<Alpn> {
        self.tls.as_ref()?.alpn()
    }

    /// Why TLS broke, where it did.
    pub(crate) fn tls_failure(&self) -> Option<TlsFailure> {
        self.tls.as_ref()?.failure()
    }

    /// Reads into `buffer`; 0 bytes mean the peer's end.
    pub(crate) async fn read<T: IoBufMut>(&self, mut buffer: T) -> BufResult<usize, T> {
        let Some(session) = &self.tls else {
            return self.stream_mut().read(buffer).await;
        };
        loop {
            let taken = session.take_chunk(&mut self.wire(), |chunk| fill(&mut buffer, chunk));
            match taken {
                Err(error) if is_transient(&error) => {}
                taken => return (taken, buffer),
            }
            if let Err(error) = self.readable().await {
                return (Err(error), buffer);
            }
        }
    }

    /// Writes some of `buffer`; of a TLS connection's, the kernel has all that counts as written. The
    /// first write of a turn is sent at once where the kernel takes it.
    pub(crate) async fn write<T: IoBuf>(&self, buffer: T) -> BufResult<usize, T> {
        if self.tls.is_none() {
            if turn::is_first_write() {
                match self.wire().write(bytes_of(&buffer)) {
                    Err(error) if is_transient(&error) => {}
                    written => return (written, buffer),
                }
            }
            return self.stream_mut().write(buffer).await;
        }
        let written = self.give_and_flush(bytes_of(&buffer)).await;
        (written, buffer)
    }

    /// Writes all of `buffer`, however many writes that takes, and gives it back.
    pub(crate) async fn write_all<T: IoBuf>(&self, buffer: T) -> BufResult<(), T> {
        let length = buffer.bytes_init();
        let mut written = 0;
        // Most writes are small and end here.
        if length > 0 && self.tls.is_none() && turn::is_first_write() {
            match self.wire().write(bytes_of(&buffer)) {
                Ok(count) if count == length => return (Ok(()), buffer),
                Ok(count) => written = count,
                Err(error) if is_transient(&error) => {}
                Err(error) => return (Err(error), buffer),
            }
        }
        let mut slice = buffer.slice(written..);
        while written < length {
            let (result, back) = self.write(slice).await;
            let buffer = back.into_inner();
            match result {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buffer),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (Err(error), buffer),
            }
            slice = buffer.slice(written..);
        }
        (Ok(()), slice.into_inner())
    }

    /// Resolves when a read would not wait: bytes, the end or an error are there. Safe to drop.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        if self
            .tls
            .as_ref()
            .is_some_and(|session| session.has_waiting())
        {
            return Ok(());
        }
        self.stream().readable(false).await
    }

    /// Resolves when a write would not wait. Safe to drop.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        self.stream().writable(false).await
    }

    /// Looks at what has arrived without taking it.
    pub(crate) fn peek(&self) -> Peek {
        let looked = match &self.tls {
            None => self.receive(&mut [0], libc::MSG_PEEK),
            Some(session) => {
                let mut seen = 0;
                let looked = session.take_chunk(&mut self.wire(), |chunk| {
                    seen = chunk.len();
                    0
                });
                looked.map(|_| seen)
            }
        };
        match looked {
            Ok(0) => Peek::Gone,
            Ok(_) => Peek::Data,
            Err(error) if is_transient(&error) => Peek::Quiet,
            Err(_) => Peek::Gone,
        }
    }

    /// Takes what has arrived, at most `into.len()` bytes, without waiting.
    pub(crate) fn take(&self, into: &mut [u8]) -> io::Result<usize> {
        debug_assert!(!into.is_empty(), "a take of nothing looks like the end");
        match &self.tls {
            None => self.receive(into, 0),
            Some(session) => session.take_chunk(&mut self.wire(), |chunk| {
                let count = chunk.len().min(into.len());
                into[..count].copy_from_slice(&chunk[..count]);
                count
            }),
        }
    }

    /// Takes what has arrived, at most `most` bytes, without waiting, into the room behind what `into`
    /// holds: nothing is cleared first.
    pub(crate) fn take_behind(&self, into: &mut BytesMut, most: usize) -> io::Result<usize> {
        let most = most.min(into.capacity() - into.len());
        debug_assert!(most > 0, "a take of nothing looks like the end");
        match &self.tls {
            None => {
                let room = into.spare_capacity_mut().as_mut_ptr().cast();
                // SAFETY: the room is valid for writes of `most` bytes, which are no more than it
                // has.
                let count = unsafe { self.receive_at(room, most, 0) }?;
                // SAFETY: the kernel has written that many bytes there.
                unsafe { into.set_len(into.len() + count) };
                Ok(count)
            }
            Some(session) => session.take_chunk(&mut self.wire(), |chunk| {
                let count = chunk.len().min(most);
                into.extend_from_slice(&chunk[..count]);
                count
            }),
        }
    }

    /// Whether TLS is spoken.
    pub(crate) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Gives away as many bytes of `parts`, one behind the other, as there is room for, without
    /// waiting; of a socket without TLS.
    pub(crate) fn give_parts(&self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        debug_assert!(!self.is_secure(), "the parts would go out in the clear");
        self.wire().write_vectored(parts)
    }

    /// Gives away as many of `bytes` as there is room for, without waiting. With TLS some may still
    /// wait in the session then: see [`Self::push`].
    pub(crate) fn give(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.tls {
            None => self.wire().write(bytes),
            Some(session) => session.give(&mut self.wire(), bytes),
        }
    }

    /// Hands the kernel what a session keeps back, without waiting; true when nothing is left.
    pub(crate) fn push(&self) -> io::Result<bool> {
        match &self.tls {
            None => Ok(true),
            Some(session) => session.push(&mut self.wire()),
        }
    }

    /// Whether the kernel has all that was given.
    pub(crate) fn is_flushed(&self) -> bool {
        self.tls.as_ref().is_none_or(|session| session.is_flushed())
    }

    async fn give_and_flush(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut given = 0;
        loop {
            if given < bytes.len() {
                match self.give(&bytes[given..]) {
                    Ok(count) => {
                        given += count;
                        continue;
                    }
                    Err(error) if is_transient(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            if self.push()? && given == bytes.len() {
                return Ok(given);
            }
            if !self.is_flushed() {
                self.writable().await?;
            }
        }
    }

    /// Whether the peer left, whatever waits to be read before its end. With `half_close` an end of
    /// its sending side alone is not leaving.
    pub(crate) fn has_left(&self, half_close: bool) -> bool {
        let mut entry = libc::pollfd {
            fd: self.stream().as_raw_fd(),
            events: if half_close { 0 } else { libc::POLLRDHUP },
            revents: 0,
        };
        // SAFETY: one valid entry for the whole call, which does not wait and keeps no pointer.
        let ready = unsafe { libc::poll(&raw mut entry, 1, 0) };
        ready > 0 && entry.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
    }

    /// The kernel's smoothed round-trip time to the peer, microseconds: right after a connect, that
    /// of the handshake. Only the network's part, unlike the time that the connect took.
    pub(crate) fn rtt_us(&self) -> Option<u64> {
        // SAFETY: plain integers, for which all zeroes is a value.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: both pointers are to live locals of the lengths told, and none is kept.
        let failed = unsafe {
            libc::getsockopt(
                self.stream().as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut length,
            )
        };
        (failed == 0 && info.tcpi_rtt > 0).then_some(u64::from(info.tcpi_rtt))
    }

    /// Makes the close that follows a reset, so that the peer cannot take it for a clean end.
    pub(crate) fn reset_on_close(&self) {
        // A socket that refuses the option is already closed or reset.
        let _ = socket2::SockRef::from(&self.borrowed()).set_linger(Some(Duration::ZERO));
    }

    /// Ends both directions now, whatever operations are still in flight on the socket.
    pub(crate) fn shutdown(&self) {
        // Fails only where there is no connection any more.
        let _ = socket2::SockRef::from(&self.borrowed()).shutdown(std::net::Shutdown::Both);
    }

    /// Ends the sending side only: the peer sees the end after all that was written.
    pub(crate) fn shutdown_write(&self) {
        self.say_end();
        // Fails only where there is no connection any more.
        let _ = socket2::SockRef::from(&self.borrowed()).shutdown(std::net::Shutdown::Write);
    }

    /// Tells a TLS peer that the end is meant: without this it must take it for an attack.
    pub(crate) fn say_end(&self) {
        if let Some(session) = &self.tls {
            session.say_end(&mut self.wire());
        }
    }

    fn receive(&self, into: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
        // SAFETY: `into` is valid for writes of its length.
        unsafe { self.receive_at(into.as_mut_ptr(), into.len(), flags) }
    }

    /// # Safety
    ///
    /// `into` must be valid for writes of `most` bytes.
    unsafe fn receive_at(
        &self,
        into: *mut u8,
        most: usize,
        flags: libc::c_int,
    ) -> io::Result<usize> {
        let fd = self.stream().as_raw_fd();
        // SAFETY: the caller's promise holds for the whole call, which does not block and keeps no
        // pointer; the descriptor is open as long as the stream.
        let got = unsafe { libc::recv(fd, into.cast(), most, flags | libc::MSG_DONTWAIT) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }

    fn borrowed(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the stream, which `self` owns.
        unsafe { BorrowedFd::borrow_raw(self.stream().as_raw_fd()) }
    }

    fn stream(&self) -> &TcpStream {
        // SAFETY: the type is not `Sync`, and every `&mut` made by `stream_mut` is used only to
        // clone the descriptor into an operation before the call returns.
        unsafe { &*self.stream.get() }
    }

    #[expect(
        clippy::mut_from_ref,
        reason = "monoio marks the stream `Split`: its reads and writes may run side by side"
    )]
    fn stream_mut(&self) -> &mut TcpStream {
        // SAFETY: as in `stream`; monoio's own split halves do the same with the same promise.
        unsafe { &mut *self.stream.get() }
    }
}

impl Read for Wire<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.receive(into, 0)
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        socket2::SockRef::from(&self.0.borrowed()).send_with_flags(bytes, WITHOUT_WAITING)
    }

    fn write_vectored(&mut self, pieces: &[io::IoSlice<'_>]) -> io::Result<usize> {
        socket2::SockRef::from(&self.0.borrowed()).send_vectored_with_flags(pieces, WITHOUT_WAITING)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Copies the start of `chunk` into `buffer`, as much as there is room for.
fn fill<T: IoBufMut>(buffer: &mut T, chunk: &[u8]) -> usize {
    let count = chunk.len().min(buffer.bytes_total());
    // SAFETY: the buffer is valid for writes of `bytes_total` bytes from its pointer, it and the
    // chunk are apart, and `count` bytes are initialised when that is said.
    unsafe {
        std::ptr::copy_nonoverlapping(chunk.as_ptr(), buffer.write_ptr(), count);
        buffer.set_init(count);
    }
    count
}

/// The initialised bytes of `buffer`.
fn bytes_of<T: IoBuf>(buffer: &T) -> &[u8] {
    // SAFETY: the trait promises that `bytes_init` bytes from its pointer are initialised and stay
    // as long as the buffer is not moved, which the borrow forbids.
    unsafe { std::slice::from_raw_parts(buffer.read_ptr(), buffer.bytes_init()) }
}

/// Whether a receive failed only because nothing is there yet.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Asks the processor for the line of memory at `address`, which need not be anybody's.
#[inline]
pub(crate) fn fetch_ahead(address: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint. It reads nothing that the program sees, and an address without memory
        // behind it is passed over.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::serve::testing::{on_both_drivers, pair, sockets};

    /// I05: a write may take only a part; the rest follows, in order.
    #[test]
    fn i05_short_writes_are_completed() {
        on_both_drivers(|| async {
            let (socket, mut peer) = pair().await;
            socket2::SockRef::from(&socket.borrowed())
                .set_send_buffer_size(4_096)
                .unwrap();
            let sent: Vec<u8> = (0..1_048_576_u32).map(|n| (n % 251) as u8).collect();
            let reader = std::thread::spawn(move || {
                let (mut got, mut piece) = (Vec::new(), [0; 1_000]);
                while let Ok(count @ 1..) = peer.read(&mut piece) {
                    got.extend_from_slice(&piece[..count]);
                }
                got
            });
            let (result, sent) = socket.write_all(sent).await;
            result.unwrap();
            drop(socket);
            // The close is an operation too, and runs when the task waits.
            while !reader.is_finished() {
                monoio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(reader.join().unwrap() == sent, "the peer got other bytes");
        });
    }

    /// I07: the kernel may still own the buffer of a read that was dropped.
    #[test]
    fn i07_a_dropped_read_keeps_its_buffer_until_the_kernel_is_done() {
        use std::io::Write as _;
        on_both_drivers(|| async {
            let base = sockets();
            for round in 0..500_u32 {
                let (socket, mut peer) = pair().await;
                let read = socket.read(vec![0_u8; 4_096]);
                let _ = monoio::time::timeout(Duration::ZERO, read).await;
                // A canary where the dropped buffer may have been: a late write would change it.
                let canary = vec![0xA5_u8; 4_096];
                peer.write_all(&round.to_le_bytes()).unwrap();
                monoio::time::sleep(Duration::ZERO).await;
                assert!(canary.iter().all(|&byte| byte == 0xA5), "round {round}");
                drop((socket, peer));
            }
            for _ in 0..1_000 {
                if sockets() <= base {
                    return;
                }
                monoio::time::sleep(Duration::from_millis(1)).await;
            }
            panic!("{} sockets are left of {base}", sockets());
        });
    }

    #[test]
    fn a_look_tells_quiet_data_and_gone_apart() {
        use std::io::Write as _;
        on_both_drivers(|| async {
            let (socket, mut peer) = pair().await;
            assert_eq!(socket.peek(), Peek::Quiet);
            peer.write_all(b"x").unwrap();
            socket.readable().await.unwrap();
            assert_eq!(socket.peek(), Peek::Data);
            assert_eq!(socket.take(&mut [0; 8]).unwrap(), 1);
            drop(peer);
            socket.readable().await.unwrap();
            assert_eq!(socket.peek(), Peek::Gone);
        });
    }
}
