//! Accepting: one task for each listening socket, until the shard drains.
//!
//! Sockets come bound and listening, made from addresses or inherited: where they come from is
//! decided before the shard starts. An accept is never dropped half-way: it is cancelled and then
//! awaited, so that a connection the kernel handed over in that moment is served or closed, not
//! leaked.

use std::future::poll_fn;
use std::io;
use std::net::TcpListener as StdListener;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use monoio::io::Canceller;
use monoio::net::{TcpListener, TcpStream};

use super::alarm::Alarm;
use super::client_conn::{self, Connected};
use super::guarded::guarded;
use super::shard::Shard;
use super::sys::Socket;
use super::tls::handshake;
use crate::driver::listen::{Greeting, Listener};

/// Pause after a failed accept: for want of descriptors, another try at once would only spin.
const AFTER_FAILURE: Duration = Duration::from_millis(20);

/// Accepts on `listener` until the shard drains.
pub(crate) async fn run(shard: Rc<Shard>, listener: Listener) {
    let greeting = listener.greeting;
    let listener = match adopt(listener.socket) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "a listening socket cannot be used");
            return;
        }
    };
    let alarm = shard.alarms.add();
    // To the drain an accept is an idle connection: nothing is lost by ending it.
    alarm.set_idle(true);
    while let Some(accepted) = accept(&listener, &alarm).await {
        match accepted {
            Ok(stream) => start(&shard, stream, greeting),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                monoio::time::sleep(AFTER_FAILURE).await;
            }
        }
    }
}

/// io_uring waits on blocking sockets only, epoll on non-blocking ones only.
fn adopt(listener: StdListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(monoio::utils::is_legacy())?;
    TcpListener::from_std(listener)
}

/// The next connection; none when the shard drains.
async fn accept(listener: &TcpListener, alarm: &Alarm) -> Option<io::Result<TcpStream>> {
    let mut canceller = Some(Canceller::new());
    let handle = canceller.as_ref()?.handle();
    let mut accept = pin!(listener.cancelable_accept(handle));
    poll_fn(|context| {
        if let Poll::Ready(accepted) = accept.as_mut().poll(context) {
            let stream = accepted.map(|(stream, _)| stream);
            return Poll::Ready(match (canceller.is_some(), stream) {
                (false, Err(_)) => None,
                (_, stream) => Some(stream),
            });
        }
        if canceller.is_some()
            && alarm.poll(context).is_ready()
            && let Some(cancelling) = canceller.take()
        {
            let _ = cancelling.cancel();
            return accept
                .as_mut()
                .poll(context)
                .map(|result| result.ok().map(|it| Ok(it.0)));
        }
        Poll::Pending
    })
    .await
}

fn start(shard: &Rc<Shard>, stream: TcpStream, greeting: Greeting) {
    if shard.connections.get() >= shard.config.limits.connections {
        tracing::debug!("a connection over the limit was closed");
        return;
    }
    // Counted here and not when its task first runs: many may be accepted before that.
    let connected = Connected::enter(shard);
    let Ok(socket) = Socket::new(stream) else {
        return;
    };
    let served = greet(Rc::clone(shard), Rc::new(socket), greeting, connected);
    monoio::spawn(guarded(Rc::clone(shard), served));
}

/// Serves a connection to its end, after the handshake where its address asks for one.
async fn greet(shard: Rc<Shard>, mut socket: Rc<Socket>, greeting: Greeting, connected: Connected) {
    // Boxed, and nobody else has the socket yet.
    if greeting == Greeting::Tls
        && let Some(fresh) = Rc::get_mut(&mut socket)
        && let Err(failure) = Box::pin(handshake::greet_client(&shard, fresh)).await
    {
        shard.metrics.client_tls.failed(failure);
        tracing::debug!(
            reason = failure.label(),
            "a TLS handshake with a client failed"
        );
        return;
    }
    client_conn::serve(shard, socket, connected).await;
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::super::alarm::Alarms;
    use super::*;
    use crate::serve::testing::{on_both_drivers, result_bytes, sockets};

    /// A held stream of an HTTP/1.1 client keeps its connection's future, whatever its engine speaks.
    #[test]
    fn the_future_of_a_held_stream_is_at_most_two_kib() {
        let bytes = result_bytes(|(shard, socket, greeting, connected)| {
            greet(shard, socket, greeting, connected)
        });
        println!("a connection's future: {bytes} bytes");
        assert!(bytes <= 2_048, "{bytes} bytes");
    }

    /// I01: whatever the kernel accepted in the moment of the cancel is handed out, and no
    /// descriptor stays behind.
    #[test]
    fn i01_a_cancelled_accept_leaks_nothing() {
        on_both_drivers(|| async {
            let base = sockets();
            let mut served = 0;
            for round in 0..200 {
                let std_listener = StdListener::bind("127.0.0.1:0").unwrap();
                let address = std_listener.local_addr().unwrap();
                let listener = adopt(std_listener).unwrap();
                let alarms = Rc::new(Alarms::default());
                let alarm = alarms.add();
                alarm.set_idle(true);
                let client = (round % 2 == 0).then(|| std::net::TcpStream::connect(address));
                alarms.dismiss_idle();
                while let Some(accepted) = accept(&listener, &alarm).await {
                    drop(accepted.unwrap());
                    served += 1;
                }
                drop(listener);
                if let Some(client) = client {
                    monoio::time::sleep(Duration::ZERO).await;
                    // Served or reset, never left waiting.
                    let mut client = client.unwrap();
                    client
                        .set_read_timeout(Some(Duration::from_millis(1)))
                        .unwrap();
                    while client
                        .read(&mut [0])
                        .is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
                    {
                        monoio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
            }
            assert!(served <= 100, "{served} of 100 connections");
            for _ in 0..1_000 {
                if sockets() <= base {
                    return;
                }
                monoio::time::sleep(Duration::from_millis(1)).await;
            }
            panic!("{} sockets are left of {base}", sockets());
        });
    }
}
