//! Distance: a TCP relay that delivers every byte, and every end, half a round trip later.
//!
//! A refused engine must look refused, not reset: the relay holds one connection of its own to the
//! engine and closes its listener as soon as that ends, until the engine can be reached again.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;

use crate::alarm::Alarm;
use crate::sys::monotonic_ns;

/// Reads under way in one direction; a sender that is faster is held back, as by a window.
const PIECES_UNDER_WAY: usize = 256;
const READ_BYTES: usize = 16 * 1024;
/// Connections the kernel holds until they are accepted.
const BACKLOG: u32 = 1024;
const RETRY_EVERY: Duration = Duration::from_millis(50);

/// Something on its way through the relay.
enum Piece {
    Bytes(Vec<u8>),
    End,
    Broken,
}

/// Starts a relay to `engine`; returns its address. It lives as long as the local task set.
pub(super) async fn start(
    alarm: &Rc<Alarm>,
    engine: SocketAddr,
    rtt: Duration,
) -> anyhow::Result<SocketAddr> {
    let listener = bind("127.0.0.1:0".parse()?).context("cannot bind a relay")?;
    let address = listener
        .local_addr()
        .context("a relay without an address")?;
    let relay = Rc::new(Relay {
        alarm: Rc::clone(alarm),
        engine,
        delay_ns: (rtt / 2).as_nanos() as u64,
    });
    tokio::task::spawn_local(async move { relay.listen(listener, address).await });
    Ok(address)
}

struct Relay {
    alarm: Rc<Alarm>,
    engine: SocketAddr,
    delay_ns: u64,
}

impl Relay {
    /// Listens while the engine can be reached.
    async fn listen(self: Rc<Self>, listener: TcpListener, address: SocketAddr) {
        let mut first = Some(listener);
        loop {
            let Ok(probe) = TcpStream::connect(self.engine).await else {
                first = None;
                tokio::time::sleep(RETRY_EVERY).await;
                continue;
            };
            let listener = match first.take().map_or_else(|| bind(address), Ok) {
                Ok(listener) => listener,
                Err(error) => {
                    tracing::warn!(%address, %error, "the relay cannot listen again; trying on");
                    tokio::time::sleep(RETRY_EVERY).await;
                    continue;
                }
            };
            tokio::select! {
                () = self.accept(&listener) => {}
                () = ended(probe) => {}
            }
        }
    }

    async fn accept(self: &Rc<Self>, listener: &TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let relay = Rc::clone(self);
                    tokio::task::spawn_local(async move { relay.join(stream).await });
                }
                Err(error) => {
                    tracing::warn!(%error, "the relay cannot accept");
                    tokio::time::sleep(RETRY_EVERY).await;
                }
            }
        }
    }

    /// Carries one connection both ways until both ends have ended.
    async fn join(&self, near: TcpStream) {
        let Ok(far) = TcpStream::connect(self.engine).await else {
            reset(&near);
            return;
        };
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        let (near_read, near_write) = near.into_split();
        let (far_read, far_write) = far.into_split();
        tokio::join!(
            self.carry(near_read, far_write),
            self.carry(far_read, near_write)
        );
    }

    /// Carries one direction.
    async fn carry(&self, from: OwnedReadHalf, to: OwnedWriteHalf) {
        let (under_way, mut arriving) = mpsc::channel(PIECES_UNDER_WAY);
        let reading = self.read(from, under_way);
        let writing = async move {
            let mut to = to;
            while let Some((due_ns, piece)) = arriving.recv().await {
                self.alarm.until(due_ns).await;
                match piece {
                    Piece::Bytes(bytes) => {
                        if to.write_all(&bytes).await.is_err() {
                            return;
                        }
                    }
                    Piece::End => {
                        let _ = to.shutdown().await;
                        return;
                    }
                    Piece::Broken => {
                        reset(to.as_ref());
                        return;
                    }
                }
            }
        };
        tokio::join!(reading, writing);
    }

    async fn read(&self, mut from: OwnedReadHalf, under_way: mpsc::Sender<(u64, Piece)>) {
        loop {
            let mut bytes = Vec::with_capacity(READ_BYTES);
            let piece = tokio::select! {
                read = from.read_buf(&mut bytes) => match read {
                    Ok(0) => Piece::End,
                    Ok(_) => Piece::Bytes(bytes),
                    Err(_) => Piece::Broken,
                },
                // Nobody takes what is read any more.
                () = under_way.closed() => return,
            };
            let last = !matches!(piece, Piece::Bytes(_));
            let due_ns = monotonic_ns() + self.delay_ns;
            if under_way.send((due_ns, piece)).await.is_err() || last {
                return;
            }
        }
    }
}

/// Makes the close of a stream a reset.
fn reset(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Resolves when the peer of an idle connection has gone.
async fn ended(mut probe: TcpStream) {
    let mut byte = [0];
    while matches!(probe.read(&mut byte).await, Ok(1..)) {}
}

fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_ends_arrive_half_a_round_trip_later_each_way() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let alarm = Alarm::start().unwrap();
            let echo = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let engine = echo.local_addr().unwrap();
            tokio::task::spawn_local(async move {
                loop {
                    let (mut stream, _) = echo.accept().await.unwrap();
                    tokio::task::spawn_local(async move {
                        let mut byte = [0];
                        while let Ok(1) = stream.read(&mut byte).await {
                            stream.write_all(&byte).await.unwrap();
                        }
                    });
                }
            });
            let address = start(&alarm, engine, Duration::from_millis(40))
                .await
                .unwrap();
            let mut stream = TcpStream::connect(address).await.unwrap();
            let mut byte = [7];
            for _ in 0..3 {
                let sent_ns = monotonic_ns();
                stream.write_all(&byte).await.unwrap();
                stream.read_exact(&mut byte).await.unwrap();
                assert!(monotonic_ns() - sent_ns >= 40_000_000);
            }
            let left_ns = monotonic_ns();
            stream.shutdown().await.unwrap();
            assert_eq!(stream.read(&mut byte).await.unwrap(), 0);
            assert!(monotonic_ns() - left_ns >= 40_000_000);
        });
    }

    #[test]
    fn a_dead_engine_is_refused_until_it_is_back() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let alarm = Alarm::start().unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let engine = listener.local_addr().unwrap();
            let address = start(&alarm, engine, Duration::from_millis(2))
                .await
                .unwrap();
            let (probe, _) = listener.accept().await.unwrap();
            drop((probe, listener));
            let until = async |up: bool| {
                while TcpStream::connect(address).await.is_ok() != up {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let watchdog = Duration::from_secs(30);
            tokio::time::timeout(watchdog, until(false))
                .await
                .expect("refused");
            let _back = bind(engine).unwrap();
            tokio::time::timeout(watchdog, until(true))
                .await
                .expect("accepted again");
        });
    }
}
