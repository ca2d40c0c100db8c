//! The story of one request, phase by phase.
//!
//! ```text
//! admit -> read body -> classify -> key -> (choose -> attempt)* -> deliver -> account
//! ```
//!
//! Every phase ends in the next one or in an [`Error`], and every error becomes one answer (see
//! `refuse`). Whatever happens, the request leaves one line in every account: in flight, by class
//! and code, offered, and admitted or shed. `forward` holds the phases that deal with engines.

use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use pointsman_shm::policy::{Endpoints, Features};
use pointsman_shm::signals::ClassCell;
use rand::Rng as _;

use super::body::Body;
use super::client::{Client, Interrupt};
use super::endpoint::{Page, page_of};
use super::flow::{Flow, WINDOW};
use super::models;
use super::shard::Shard;
use super::target::{self, Asked, Target};
use super::upload::{Scan, Upload};
use super::why::Telling;
use crate::clock::monotonic_ns;
use crate::error::{Error, Result};
use crate::wire::answer::{AnswerContext, write_page};
use crate::wire::framing::RequestFraming;
use crate::wire::http1_write::RequestId;
use crate::wire::json::{BodyFacts, JsonError, MAX_MODEL_BYTES};
use crate::wire::request_head::{Method, RequestHead};

/// One request.
pub(crate) struct Story<'a> {
    pub(super) shard: &'a Rc<Shard>,
    pub(super) client: &'a mut Client,
    pub(super) head: &'a RequestHead,
    /// What the head was parsed from.
    pub(super) bytes: &'a [u8],
    pub(super) id: RequestId,
    pub(super) started_ns: u64,
    pub(super) upload: Upload,
    /// The body, where it goes on while it arrives.
    pub(super) flow: Option<Rc<Flow>>,
    pub(super) target: Option<Target>,
    /// What its body asks for.
    pub(super) features: Features,
    /// What its client is told about its way.
    pub(super) telling: Telling,
    /// It was admitted, so it is not counted as shed whatever happens to it.
    pub(super) admitted: bool,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivered {
    /// Status that the client saw.
    pub(crate) status: u16,
    /// What becomes of its connection.
    pub(crate) after: After,
}

/// What becomes of the client's connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// It takes the next request.
    Keep,
    /// It is closed; bytes of this request may still be on their way and must not cut the answer.
    Close,
    /// It is broken off: the client is gone, or must see that its answer is not whole.
    Break,
}

/// Keeps the count of requests in flight true.
struct InFlight<'a>(&'a Shard);

/// Takes a request, whose head was parsed from `bytes`, through its phases.
pub(crate) async fn run(
    shard: &Rc<Shard>,
    client: &mut Client,
    head: &RequestHead,
    bytes: &[u8],
) -> After {
    let started_ns = monotonic_ns();
    let _in_flight = InFlight::enter(shard);
    client.total_due_ns = match shard.config.timeouts.total_ms {
        Some(total_ms) => started_ns + total_ms * 1_000_000,
        None => u64::MAX,
    };
    let random = shard.random.borrow_mut().random();
    let mut story = Story {
        shard,
        head,
        bytes,
        id: RequestId::choose(head, bytes, random),
        started_ns,
        upload: Upload::new(head, bytes, client.is_stream()),
        flow: None,
        target: None,
        features: Features::default(),
        telling: Telling::of(shard, head, bytes),
        admitted: false,
        client,
    };
    let answered = story.answer().await;
    let delivered = match answered {
        Ok(delivered) => delivered,
        Err(error) => Box::pin(story.refuse(&error)).await,
    };
    story.account(delivered.status);
    client.total_due_ns = u64::MAX;
    client.flow = None;
    client.alarm.clear();
    delivered.after
}

impl Story<'_> {
    async fn answer(&mut self) -> Result<Delivered> {
        self.shard.refresh_policy();
        self.telling.begins(self.shard);
        let page = page_of(&self.shard.config, self.head, self.bytes)?;
        self.admit()?;
        match page {
            Page::Models => Box::pin(self.models()).await,
            Page::Inference(endpoint) => {
                // What is done before the answer is boxed here and there: a stream held for long
                // does not keep the room of what is over.
                let (target, body) = match self.upload.is_here(self.client) {
                    true => self.prepare_at_once(endpoint)?,
                    false => Box::pin(self.prepare(endpoint)).await?,
                };
                let first = match self.choose_at_once(&target) {
                    Some(chosen) => chosen?,
                    None => Box::pin(self.wait_in_line(&target)).await?,
                };
                self.attempts(&target, &body, first).await
            }
        }
    }

    /// What can be refused from the head alone, before a body is read.
    fn admit(&self) -> Result<()> {
        if self.shard.is_draining() {
            return Err(Error::Draining);
        }
        if self.shard.policy.borrow().current().is_none() {
            return Err(Error::NoPolicy);
        }
        if self.shard.in_flight.get() > self.shard.config.limits.in_flight {
            return Err(Error::RequestLimit);
        }
        Ok(())
    }

    async fn models(&mut self) -> Result<Delivered> {
        let page = match self.shard.policy.borrow().current() {
            Some(adopted) => models::page(&adopted.policy),
            None => return Err(Error::NoPolicy),
        };
        let keeps = self.upload.skip_arrived(self.client) && self.may_keep();
        let mut out = self.shard.buffers.take();
        write_page(
            &mut out,
            200,
            "application/json",
            &page,
            &self.context(!keeps),
        );
        self.client.set_deadline(self.write_due_ns());
        let written = self.client.write_page(out).await;
        self.shard
            .buffers
            .put(written.map_err(|_| Error::ClientGone)?);
        Ok(Delivered {
            status: 200,
            after: if keeps { After::Keep } else { After::Close },
        })
    }

    /// As [`Self::prepare`], of a request that is here whole, as most small ones are: nothing is
    /// waited for, so it needs no memory that outlives the call.
    fn prepare_at_once(&mut self, endpoint: Endpoints) -> Result<(Target, Body)> {
        let preparing = pin!(self.prepare(endpoint));
        match preparing.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(prepared) => prepared,
            Poll::Pending => {
                debug_assert!(false, "what is here is not waited for");
                Err(Error::Internal)
            }
        }
    }

    /// Reads what is to be read, and finds out where the request should go.
    async fn prepare(&mut self, endpoint: Endpoints) -> Result<(Target, Body)> {
        let expects = self.head.expects_continue;
        if let Some(facts) = self.facts_of_head()? {
            return Box::pin(self.routed_by_head(endpoint, &facts)).await;
        }
        let scan = Scan::of(endpoint, self.head, self.bytes)?;
        let read = self.upload.read(self.shard, self.client, scan, expects);
        let (body, facts) = read.await?;
        self.features = facts.features;
        let asked = Asked {
            head: self.head,
            bytes: self.bytes,
            endpoint,
            facts: &facts,
            body_bytes: body.len(),
            random: self.shard.random.borrow_mut().random(),
        };
        let target = target::classify(self.shard, &asked)?;
        self.offer(target)?;
        Ok((target, body))
    }

    /// Counts a request whose class is known as demand, and admits it or not.
    fn offer(&mut self, target: Target) -> Result<()> {
        self.target = Some(target);
        self.telling.classified(self.shard, &target);
        self.shard.metrics.offered(target.class);
        self.count(|cell| cell.offered(target.priority));
        target::admit(self.shard, &target)
    }

    /// What a request says whose model stands in a header.
    fn facts_of_head(&self) -> Result<Option<BodyFacts>> {
        let name = self.shard.config.model_header.as_deref();
        let Some(model) = name.and_then(|name| self.head.header(self.bytes, name)) else {
            return Ok(None);
        };
        if model.len() > MAX_MODEL_BYTES {
            return Err(Error::Json(JsonError::ModelTooLong));
        }
        Ok(Some(BodyFacts {
            model: Some(String::from_utf8_lossy(model).into_owned()),
            ..BodyFacts::default()
        }))
    }

    /// A request that is routed before its body is read: a large one goes on while it arrives, and
    /// nobody looks into it.
    async fn routed_by_head(
        &mut self,
        endpoint: Endpoints,
        facts: &BodyFacts,
    ) -> Result<(Target, Body)> {
        let claimed = match self.head.framing {
            RequestFraming::Sized(length) => usize::try_from(length).unwrap_or(usize::MAX),
            RequestFraming::None | RequestFraming::Chunked => 0,
        };
        let asked = Asked {
            head: self.head,
            bytes: self.bytes,
            endpoint,
            facts,
            body_bytes: claimed,
            random: self.shard.random.borrow_mut().random(),
        };
        let target = target::classify(self.shard, &asked)?;
        self.offer(target)?;
        self.refuse_early(&target)?;
        let expects = self.head.expects_continue;
        if claimed <= WINDOW && self.head.framing != RequestFraming::Chunked {
            let read = self
                .upload
                .read(self.shard, self.client, Scan::Nothing, expects);
            let (body, _) = read.await?;
            return Ok((target, body));
        }
        let timeouts = &self.shard.config.timeouts;
        let flow = Flow::new(
            &self.shard.budget,
            self.head.framing,
            Upload::new(self.head, self.bytes, self.client.is_stream()),
            (
                self.shard.config.limits.flow_bytes,
                timeouts.body_ms * 1_000_000,
            ),
        )?;
        if expects {
            Box::pin(self.upload.ask_for(self.shard, self.client)).await?;
        }
        self.client.body_ms = timeouts.body_ms;
        self.client.flow = Some(Rc::clone(&flow));
        self.flow = Some(Rc::clone(&flow));
        let body = Body::flowing(&self.shard.budget, flow);
        Ok((target, body))
    }

    /// Writes into the class's record of signals, once the class is known.
    pub(super) fn count(&self, write: impl FnOnce(&ClassCell<'_>)) {
        let Some(Target {
            class: (slot, generation),
            ..
        }) = self.target
        else {
            return;
        };
        if let Some(cell) = self
            .shard
            .signals
            .borrow()
            .segment()
            .class(slot, generation)
        {
            write(&cell);
        }
    }

    /// Whether the client's connection may take another request after this one.
    pub(super) fn may_keep(&self) -> bool {
        let ended = match &self.flow {
            Some(flow) => flow.has_ended(),
            None => self.upload.ended(),
        };
        self.head.keep_alive && ended && !self.shard.is_leaving()
    }

    /// How an answer of ours stands on its connection.
    pub(super) fn context(&self, close: bool) -> AnswerContext<'_> {
        AnswerContext {
            version: self.head.version,
            close,
            head_only: self.head.method == Method::Head,
            request_id: self.id.as_bytes(),
            why: None,
        }
    }

    /// When a client that does not take what is written to it is given up.
    pub(super) fn write_due_ns(&self) -> u64 {
        monotonic_ns().saturating_add(self.shard.patience.idle_ns)
    }

    /// The error of work that was interrupted before the client saw anything.
    pub(super) fn interrupted(&self, interrupt: Interrupt) -> Error {
        match interrupt {
            Interrupt::Gone => Error::ClientGone,
            Interrupt::Stop => Error::Draining,
            Interrupt::BadBody => {
                let flow = self.flow.as_ref();
                flow.and_then(|flow| flow.error())
                    .unwrap_or(Error::Internal)
            }
            Interrupt::Due => Error::EngineTimeout {
                limit_ms: self.shard.config.timeouts.first_byte_ms,
            },
        }
    }

    /// The last phase: one line in the counters, and in the access log where it is on.
    fn account(&self, status: u16) {
        let class = self.target.map(|target| target.class);
        self.shard.metrics.request_ended(class, status);
        if status == Error::ClientGone.status() {
            self.shard.metrics.client_cancels.increment();
        }
        if self.shard.config.log.access {
            tracing::info!(
                target: "access",
                id = ?self.id,
                path = %String::from_utf8_lossy(self.head.path.of(self.bytes)),
                status,
                class = class.map(|(slot, _)| slot.0),
                took_ms = (monotonic_ns() - self.started_ns) / 1_000_000,
            );
        }
    }
}

impl<'a> InFlight<'a> {
    fn enter(shard: &'a Shard) -> Self {
        shard.in_flight.set(shard.in_flight.get() + 1);
        shard.metrics.in_flight.increment();
        Self(shard)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        self.0.metrics.in_flight.decrement();
    }
}
