//! Who may ask why, and what the policy knows to tell: see [`crate::decide::why`].

use std::cell::RefCell;

use super::shard::Shard;
use super::target::{self, Target};
use crate::decide::select::Tried;
use crate::decide::why::Why;
use crate::wire::request_head::RequestHead;

/// What a request's client is told; nothing unless it may ask.
#[derive(Default)]
pub(crate) struct Telling(Option<Box<RefCell<Why>>>);

impl Telling {
    /// Of a request whose head was parsed from `bytes`.
    pub(crate) fn of(shard: &Shard, head: &RequestHead, bytes: &[u8]) -> Self {
        let asks = shard.config.why.as_ref().is_some_and(|why| {
            let said = head.header(bytes, &why.header);
            said.is_some_and(|said| why.secret.is(said))
        });
        Self(asks.then(Box::default))
    }

    /// Notes something, where somebody asks.
    pub(crate) fn note(&self, note: impl FnOnce(&mut Why)) {
        if let Some(why) = &self.0 {
            note(&mut why.borrow_mut());
        }
    }

    /// A request begins, under the policy of now.
    pub(crate) fn begins(&self, shard: &Shard) {
        self.note(|why| why.began(shard.policy.borrow().version()));
    }

    /// The engines that would not take an attempt now.
    pub(crate) fn refused(&self, shard: &Shard, target: &Target, tried: &Tried) {
        self.note(|why| {
            let (version, refusals) = target::refusals(shard, target, tried);
            why.refused(version, refusals);
        });
    }

    /// What the policy makes of a request.
    pub(crate) fn classified(&self, shard: &Shard, target: &Target) {
        self.note(|why| {
            if let Some((route, class)) = target::names(shard, target) {
                why.classified(&route, &class, target.key.kind);
            }
        });
    }

    /// The line for the answer's head.
    pub(crate) fn text(&self) -> Option<String> {
        self.0.as_ref().map(|why| why.borrow().text())
    }
}
