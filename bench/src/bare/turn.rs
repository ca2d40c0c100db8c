//! How a bare loop waits: for sockets that are ready, and for an instant, with the kernel's
//! precision.
//!
//! Edge triggered: a socket is registered once, and whoever is told reads or writes until the
//! kernel has no more. The instant is a timer descriptor, because epoll's own timeout counts
//! milliseconds.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use crate::sys;

/// A descriptor that is ready.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    /// The number given to [`Turn::watch`].
    pub(super) number: usize,
    /// A read brings something, if only the end.
    pub(super) is_readable: bool,
    /// A write takes something.
    pub(super) is_writable: bool,
    /// The peer sends no more, or the connection is broken.
    pub(super) is_ended: bool,
}

/// Descriptors told of in one wait.
const EVENTS: usize = 1024;
/// The timer among the registered.
const TIMER: Token = Token(usize::MAX);

/// One loop's waiting.
pub(super) struct Turn {
    poll: Poll,
    events: Events,
    timer: File,
    armed_ns: Option<u64>,
}

impl Turn {
    /// Makes it.
    pub(super) fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        let timer = sys::timer_file()?;
        let source = timer.as_raw_fd();
        poll.registry()
            .register(&mut SourceFd(&source), TIMER, Interest::READABLE)?;
        Ok(Self {
            poll,
            events: Events::with_capacity(EVENTS),
            timer,
            armed_ns: None,
        })
    }

    /// Watches a descriptor, in both directions, until it is closed.
    pub(super) fn watch(&self, descriptor: RawFd, number: usize) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(&mut SourceFd(&descriptor), Token(number), both)
    }

    /// Watches a descriptor that is only read.
    pub(super) fn watch_input(&self, descriptor: RawFd, number: usize) -> io::Result<()> {
        self.poll.registry().register(
            &mut SourceFd(&descriptor),
            Token(number),
            Interest::READABLE,
        )
    }

    /// Waits until a descriptor is ready or CLOCK_MONOTONIC has reached `due_ns`; not at all when
    /// it has.
    pub(super) fn wait(&mut self, due_ns: Option<u64>) -> io::Result<()> {
        let mut timeout = None;
        if let Some(due_ns) = due_ns {
            if due_ns <= sys::monotonic_ns() {
                timeout = Some(std::time::Duration::ZERO);
            } else if self.armed_ns != Some(due_ns) {
                sys::arm_timer(&self.timer, due_ns)?;
                self.armed_ns = Some(due_ns);
            }
        }
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            result => result,
        }
    }

    /// What the last wait brought.
    pub(super) fn ready(&self) -> impl Iterator<Item = Ready> {
        let events = self.events.iter().filter(|event| event.token() != TIMER);
        events.map(|event| {
            let is_ended = event.is_read_closed() || event.is_error();
            Ready {
                number: event.token().0,
                is_readable: event.is_readable() || is_ended,
                is_writable: event.is_writable(),
                is_ended,
            }
        })
    }
}
