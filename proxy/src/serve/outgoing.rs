//! A request as it goes to an engine, made anew for each connection tried.

use http::Request;
use http::uri::Scheme;
use pointsman_shm::policy::{Features, Protocol};

use super::body::Body;
use super::buffers::Buffers;
use super::engines::EngineView;
use super::exchange::Outgoing;
use super::h2::Answers;
use crate::wire::framing::RequestFraming;
use crate::wire::head::HeadError;
use crate::wire::http1_write::{EngineRequest, RequestId, write_request};
use crate::wire::http2_head::{EngineRequest2, engine_request};
use crate::wire::request_head::RequestHead;

/// Bodies up to this size leave in the same write as their head.
const BESIDE_HEAD: usize = 16 * 1024;

/// What a request is made of, whichever engine it goes to.
#[derive(Clone, Copy)]
pub(crate) struct Sending<'a> {
    /// Its head.
    pub(crate) head: &'a RequestHead,
    /// What the head was parsed from.
    pub(crate) bytes: &'a [u8],
    /// Its id.
    pub(crate) id: &'a RequestId,
    /// Bearer token of the engine's credential.
    pub(crate) bearer: Option<&'a [u8]>,
    /// A header of it that is for us alone.
    pub(crate) withheld: Option<&'a str>,
    /// Its body.
    pub(crate) body: &'a Body,
    /// What its body asks for.
    pub(crate) features: Features,
}

impl<'a> Sending<'a> {
    /// The request in HTTP/1.1, in memory of `buffers`; none when its body was let go.
    pub(crate) fn http1(&self, engine: &EngineView, buffers: &Buffers) -> Option<Outgoing<'a>> {
        let body = self.body;
        if !body.is_whole() {
            return None;
        }
        let is_apart = body.flow().is_some() || body.len() > BESIDE_HEAD;
        let beside = if is_apart { 0 } else { body.len() };
        let mut out = buffers.take();
        // Exactly, or a buffer that is used for reads after this would have twice their size.
        out.reserve_exact(self.head.len + engine.authority.len() + 256 + beside);
        let request = EngineRequest {
            authority: &engine.authority,
            framing: body.framing(),
            bearer: self.bearer,
            request_id: self.id,
            withheld: self.withheld,
        };
        write_request(&mut out, self.head, self.bytes, &request);
        if is_apart {
            return Some(Outgoing {
                head: out,
                body: Some(body),
            });
        }
        body.look(|pieces| pieces.iter().for_each(|piece| out.extend_from_slice(piece)));
        Some(Outgoing {
            head: out,
            body: None,
        })
    }

    /// The request's head in HTTP/2; none when its body was let go.
    pub(crate) fn http2(&self, engine: &EngineView) -> Option<Result<Request<()>, HeadError>> {
        if !self.body.is_whole() {
            return None;
        }
        let Some(authority) = &engine.authority2 else {
            return Some(Err(HeadError::Host));
        };
        let request = EngineRequest2 {
            authority,
            scheme: match engine.protocol {
                Protocol::Http1Tls | Protocol::Http2Tls => &Scheme::HTTPS,
                Protocol::Http1 | Protocol::Http2 => &Scheme::HTTP,
            },
            length: match self.body.framing() {
                RequestFraming::Sized(length) => Some(length),
                RequestFraming::None | RequestFraming::Chunked => None,
            },
            bearer: self.bearer,
            request_id: self.id,
            withheld: self.withheld,
        };
        Some(engine_request(self.head, self.bytes, &request))
    }

    /// What kind of answer it asks for.
    pub(crate) fn answers(&self) -> Answers {
        match self.features.contains(Features::STREAM) {
            true => Answers::Streams,
            false => Answers::Whole,
        }
    }
}
