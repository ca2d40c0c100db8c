//! A panic ends one connection, not the shard.
//!
//! The runtime lets a task's panic take its thread down. Each connection's future is wrapped
//! here: a panic is caught, counted and logged, and the future is dropped, which gives back all it
//! held: its socket, its place in every gauge, its buffers.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::ahead::{Ahead, Step};
use super::shard::Shard;

/// A connection's future, guarded.
struct Guarded<F> {
    shard: Rc<Shard>,
    connection: Option<Pin<Box<F>>>,
    /// Its place among others, once it said where its memory is.
    step: Option<Rc<Step>>,
}

/// Wraps a connection's future.
pub(crate) fn guarded<F: Future<Output = ()>>(
    shard: Rc<Shard>,
    connection: F,
) -> impl Future<Output = ()> {
    Guarded {
        shard,
        connection: Some(Box::pin(connection)),
        step: None,
    }
}

impl<F: Future<Output = ()>> Future for Guarded<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(step) = &self.step {
            step.run();
        }
        let Some(connection) = &mut self.connection else {
            return Poll::Ready(());
        };
        // Unwind safety: after a panic the future is only dropped, and what it shares with others
        // (cells and counters of the shard) is consistent between any two of its statements.
        let polled =
            std::panic::catch_unwind(AssertUnwindSafe(|| connection.as_mut().poll(context)));
        if let Some(mut said) = Ahead::said() {
            let has_any = said != Ahead::default();
            said.add(&**connection);
            self.step = has_any.then(|| Step::new(said));
        }
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
