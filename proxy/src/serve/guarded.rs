//! A panic ends one connection, not the shard.
//!
//! The runtime lets a task's panic take its thread down. Each connection's future is wrapped
//! here: a panic is caught, counted and logged, and the future is dropped, which gives back all it
//! held: its socket, its place in every gauge, its buffers.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::shard::Shard;

/// A connection's future, guarded.
struct Guarded<F> {
    shard: Rc<Shard>,
    connection: Option<Pin<Box<F>>>,
}

/// Wraps a connection's future.
pub(crate) fn guarded<F: Future<Output = ()>>(
    shard: Rc<Shard>,
    connection: F,
) -> impl Future<Output = ()> {
    Guarded {
        shard,
        connection: Some(Box::pin(connection)),
    }
}

impl<F: Future<Output = ()>> Future for Guarded<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(connection) = &mut self.connection else {
            return Poll::Ready(());
        };
        // Unwind safety: after a panic the future is only dropped, and what it shares with others
        // (cells and counters of the shard) is consistent between any two of its statements.
        let polled =
            std::panic::catch_unwind(AssertUnwindSafe(|| connection.as_mut().poll(context)));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(())) => Poll::Ready(()),
            Err(_) => {
                self.connection = None;
                self.shard.metrics.panics.increment();
                tracing::error!("a connection was ended by a panic");
                Poll::Ready(())
            }
        }
    }
}
