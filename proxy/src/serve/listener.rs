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
use super::client_conn;
use super::guarded::guarded;
use super::shard::Shard;

/// Pause after a failed accept: for want of descriptors, another try at once would only spin.
const AFTER_FAILURE: Duration = Duration::from_millis(20);

/// Accepts on `listener` until the shard drains.
pub(crate) async fn run(shard: Rc<Shard>, listener: StdListener) {
    let listener = match adopt(listener) {
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
            Ok(stream) => start(&shard, stream),
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

fn start(shard: &Rc<Shard>, stream: TcpStream) {
    if shard.connections.get() >= shard.config.limits.connections {
        tracing::debug!("a connection over the limit was closed");
        return;
    }
    let serve = client_conn::serve(Rc::clone(shard), stream);
    monoio::spawn(guarded(Rc::clone(shard), serve));
}
