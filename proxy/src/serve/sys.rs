//! The socket as the data plane uses it: one value that is read, written and watched at once.
//!
//! The only file of `serve` with unsafe code. monoio's stream wants `&mut self` for every
//! operation, though none of them touches the stream beyond cloning its descriptor; here each takes
//! `&self`, so that a client can be watched for leaving while a token is written to it. The calls
//! beside monoio never block: they look at, or take, only what the kernel already has.

#![expect(
    unsafe_code,
    reason = "peeks, takes and socket options need the raw descriptor"
)]

use std::cell::UnsafeCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use monoio::BufResult;
use monoio::buf::{IoBuf, IoBufMut};
use monoio::io::{AsyncReadRent, AsyncWriteRent};
use monoio::net::TcpStream;

/// A connected TCP socket of one shard.
pub(crate) struct Socket(UnsafeCell<TcpStream>);

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
        Ok(Self(UnsafeCell::new(stream)))
    }

    /// Connects to `address`. Dropping the future abandons the try and closes its descriptor.
    pub(crate) async fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::new(TcpStream::connect_addr(address).await?)
    }

    /// Reads into `buffer`; 0 bytes mean the peer's end.
    pub(crate) fn read<T: IoBufMut>(
        &self,
        buffer: T,
    ) -> impl Future<Output = BufResult<usize, T>> + use<'_, T> {
        self.stream_mut().read(buffer)
    }

    /// Writes some of `buffer`.
    pub(crate) fn write<T: IoBuf>(
        &self,
        buffer: T,
    ) -> impl Future<Output = BufResult<usize, T>> + use<'_, T> {
        self.stream_mut().write(buffer)
    }

    /// Writes all of `buffer`, however many writes that takes, and gives it back.
    pub(crate) async fn write_all<T: IoBuf>(&self, buffer: T) -> BufResult<(), T> {
        let length = buffer.bytes_init();
        let mut slice = buffer.slice(..);
        let mut written = 0;
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
        self.stream().readable(false).await
    }

    /// Looks at what has arrived without taking it.
    pub(crate) fn peek(&self) -> Peek {
        match self.receive(&mut [0], libc::MSG_PEEK) {
            Ok(0) => Peek::Gone,
            Ok(_) => Peek::Data,
            Err(error) if is_transient(&error) => Peek::Quiet,
            Err(_) => Peek::Gone,
        }
    }

    /// Takes what has arrived, at most `into.len()` bytes, without waiting.
    pub(crate) fn take(&self, into: &mut [u8]) -> io::Result<usize> {
        debug_assert!(!into.is_empty(), "a take of nothing looks like the end");
        self.receive(into, 0)
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
        // Fails only where there is no connection any more.
        let _ = socket2::SockRef::from(&self.borrowed()).shutdown(std::net::Shutdown::Write);
    }

    fn receive(&self, into: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
        let fd = self.stream().as_raw_fd();
        // SAFETY: `into` is valid for writes of its length for the whole call, which does not
        // block and keeps no pointer; the descriptor is open as long as the stream.
        let got = unsafe {
            libc::recv(
                fd,
                into.as_mut_ptr().cast(),
                into.len(),
                flags | libc::MSG_DONTWAIT,
            )
        };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }

    fn borrowed(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the stream, which `self` owns.
        unsafe { BorrowedFd::borrow_raw(self.stream().as_raw_fd()) }
    }

    fn stream(&self) -> &TcpStream {
        // SAFETY: the type is not `Sync`, and every `&mut` made by `stream_mut` is used only to
        // clone the descriptor into an operation before the call returns.
        unsafe { &*self.0.get() }
    }

    #[expect(
        clippy::mut_from_ref,
        reason = "monoio marks the stream `Split`: its reads and writes may run side by side"
    )]
    fn stream_mut(&self) -> &mut TcpStream {
        // SAFETY: as in `stream`; monoio's own split halves do the same with the same promise.
        unsafe { &mut *self.0.get() }
    }
}

/// Whether a receive failed only because nothing is there yet.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
