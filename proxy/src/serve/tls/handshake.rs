//! Making TLS connections: as a server for clients, as a client for engines.
//!
//! A handshake holds no request yet, so all that can happen to it is that it succeeds, fails for a
//! reason that is counted, or takes too long. It never falls back to the clear.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

use super::Alpn;
use super::session::{Session, Step};
use crate::clock::monotonic_ns;
use crate::secrets::TlsFailure;
use crate::serve::alarm::Ring;
use crate::serve::shard::Shard;
use crate::serve::sys::Socket;

/// Greets a client that connected to an address with TLS, as long as its time and place last.
pub(crate) async fn greet_client(shard: &Shard, socket: &mut Socket) -> Result<(), TlsFailure> {
    let most = shard.config.limits.handshakes;
    let _under_way = UnderWay::enter(&shard.handshakes, most).ok_or(TlsFailure::TooMany)?;
    let config = shard.secrets.borrow().current().server.clone();
    let config = config.ok_or(TlsFailure::Closed)?;
    let alarm = shard.alarms.add();
    alarm.set(monotonic_ns() + shard.config.timeouts.handshake_ms * 1_000_000);
    // Nothing is asked yet, so a drain need not wait for it.
    alarm.set_idle(true);
    let mut greeting = pin!(accept(socket, config));
    let greeted = poll_fn(|context| {
        if let Poll::Ready(greeted) = greeting.as_mut().poll(context) {
            return Poll::Ready(greeted);
        }
        alarm.poll(context).map(|ring| match ring {
            Ring::Due => Err(TlsFailure::Timeout),
            Ring::Leave | Ring::Stop => Err(TlsFailure::Closed),
        })
    });
    let resumed = greeted.await?;
    shard.metrics.client_tls.succeeded(resumed);
    Ok(())
}

/// Greets a client as the server; true when it took up an earlier session.
async fn accept(socket: &mut Socket, config: Arc<ServerConfig>) -> Result<bool, TlsFailure> {
    let connection = ServerConnection::new(config).map_err(|error| TlsFailure::of(&error))?;
    shake(socket, Session::new(connection.into())).await
}

/// Greets an engine as a client, which must prove to be `name` and speak `alpn` inside. The caller
/// bounds the time. True when an earlier session was taken up.
pub(crate) async fn greet_engine(
    socket: &mut Socket,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    alpn: Alpn,
) -> Result<bool, TlsFailure> {
    let offered = vec![alpn.name().to_vec()];
    let connection = ClientConnection::new_with_alpn(config, name, offered)
        .map_err(|error| TlsFailure::of(&error))?;
    let resumed = shake(socket, Session::new(connection.into())).await?;
    match (socket.alpn(), alpn) {
        (Some(agreed), wanted) if agreed == wanted => Ok(resumed),
        // HTTP/1.1 is what a server speaks that knows nothing of the extension.
        (None, Alpn::Http1) => Ok(resumed),
        _ => Err(TlsFailure::NoProtocol),
    }
}

async fn shake(socket: &mut Socket, session: Session) -> Result<bool, TlsFailure> {
    loop {
        let waited = match session.advance(&mut socket.wire())? {
            Step::Done => break,
            Step::Read => socket.readable().await,
            Step::Write => socket.writable().await,
        };
        waited.map_err(|_| TlsFailure::Closed)?;
    }
    let resumed = session.is_resumed();
    socket.secure(session);
    Ok(resumed)
}

/// Keeps the count of handshakes under way true.
struct UnderWay<'a>(&'a Cell<usize>);

impl<'a> UnderWay<'a> {
    /// One more; none where there are `most` already.
    fn enter(count: &'a Cell<usize>, most: usize) -> Option<Self> {
        if count.get() >= most {
            return None;
        }
        count.set(count.get() + 1);
        Some(Self(count))
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
