//! Why a request was not answered by an engine: one closed list.
//!
//! Every error answers three questions by exhaustive match: whose fault it is, whether the request
//! may be tried again, and what the client sees. Endings of a stream that already began are not
//! here: nothing can be said to the client any more, they are outcomes of an attempt.

use pointsman_shm::signals::ShedCause;
use thiserror::Error;

use crate::wire::chunked::ChunkedError;
use crate::wire::head::HeadError;
use crate::wire::json::JsonError;
use crate::wire::multipart::MultipartError;

/// Result of the request path.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a request was not answered by an engine.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The request's head breaks HTTP/1.1 or a bound.
    #[error("the request head is refused: {0}")]
    Head(HeadError),
    /// The request's chunked body breaks HTTP/1.1 or a bound.
    #[error("the request's chunked body is refused: {0}")]
    Chunked(ChunkedError),
    /// The head did not arrive in time.
    #[error("the request head did not arrive within {limit_ms} ms")]
    HeadTimeout {
        /// Time a head may take.
        limit_ms: u64,
    },
    /// The body stopped arriving.
    #[error("no byte of the request body arrived for {limit_ms} ms")]
    BodyTimeout {
        /// Time between two reads of a body.
        limit_ms: u64,
    },
    /// The body ended before its announced end.
    #[error("the connection ended inside the request body")]
    BodyCut,
    /// The body is larger than allowed.
    #[error("the request body is larger than {limit_bytes} bytes")]
    BodyTooLarge {
        /// Bytes a body may have.
        limit_bytes: usize,
    },
    /// No such path here.
    #[error("no such path: {path}")]
    NotFound {
        /// The path asked for.
        path: String,
    },
    /// The path exists, the method does not.
    #[error("{path} answers {allow} only")]
    Method {
        /// The path asked for.
        path: String,
        /// The method it answers.
        allow: &'static str,
    },
    /// The body is not the JSON object that the endpoint takes.
    #[error("the request body is refused: {0}")]
    Json(JsonError),
    /// The body is not the form that the endpoint takes.
    #[error("the request's form is refused: {0}")]
    Form(MultipartError),
    /// The body names no model.
    #[error("the request names no model: a string field \"model\" is required")]
    MissingModel,
    /// No route serves the model.
    #[error("the model {model:?} does not exist or does not serve this kind of request")]
    ModelNotFound {
        /// The model asked for.
        model: String,
    },
    /// The client left; nobody sees this answer.
    #[error("the client closed the connection before its answer began")]
    ClientGone,
    /// No connection to any engine that may serve this.
    #[error("no engine that may serve this request can be reached")]
    EngineUnreachable,
    /// No engine that may serve this could be greeted with TLS.
    #[error("the engine could not be verified, or refused us: the TLS handshake failed")]
    EngineTls,
    /// The engine closed the connection before its answer began.
    #[error("the engine closed the connection before its answer began")]
    EngineReset,
    /// The engine's answer is not valid HTTP/1.1.
    #[error("the engine's answer is not valid HTTP/1.1: {what}")]
    EngineProtocol {
        /// What is wrong.
        what: &'static str,
    },
    /// The engine did not begin its answer in time.
    #[error("the engine did not begin its answer within {limit_ms} ms")]
    EngineTimeout {
        /// Time to the first byte.
        limit_ms: u64,
    },
    /// The request took longer than allowed in all.
    #[error("the request was not answered within {limit_ms} ms")]
    TotalTimeout {
        /// Time for the whole request.
        limit_ms: u64,
    },
    /// No policy has arrived yet.
    #[error("no routing policy has arrived yet")]
    NoPolicy,
    /// Every engine that may serve this is out of service.
    #[error("no engine that may serve this request is in service")]
    NoEligibleEngine,
    /// Every engine that may serve this has all it may have in flight.
    #[error("every engine that may serve this request is fully used")]
    EnginesBusy,
    /// More requests of this priority than planned capacity admits.
    #[error("more requests of this priority arrive than capacity admits")]
    RateExceeded,
    /// The proxy's own limit of requests in flight.
    #[error("this server has all the requests it can hold in flight")]
    RequestLimit,
    /// The proxy's own limit of buffered bodies.
    #[error("this server has no buffer left for a request body")]
    OutOfBuffers,
    /// The proxy is shutting down.
    #[error("this server is shutting down")]
    Draining,
    /// A defect in the proxy.
    #[error("internal error")]
    Internal,
}

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The client's.
    Client,
    /// An engine's.
    Engine,
    /// The proxy's, or its operator's.
    Ours,
}

/// Whether a request that met an error may be tried again by the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retryable {
    /// Never.
    Never,
    /// The engine has not seen the request: another engine may.
    BeforeSend,
    /// The engine may have seen it, the client has seen nothing of an answer.
    BeforeFirstByte,
    /// As `BeforeFirstByte`, and on a reused connection it means nothing about the engine.
    OnReusedConnection,
}

impl Error {
    /// Whose fault it is.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Head(_)
            | Self::Chunked(_)
            | Self::HeadTimeout { .. }
            | Self::BodyTimeout { .. }
            | Self::BodyCut
            | Self::BodyTooLarge { .. }
            | Self::NotFound { .. }
            | Self::Method { .. }
            | Self::Json(_)
            | Self::Form(_)
            | Self::MissingModel
            | Self::ModelNotFound { .. }
            | Self::ClientGone => Fault::Client,
            Self::EngineUnreachable
            | Self::EngineTls
            | Self::EngineReset
            | Self::EngineProtocol { .. }
            | Self::EngineTimeout { .. } => Fault::Engine,
            Self::TotalTimeout { .. }
            | Self::NoPolicy
            | Self::NoEligibleEngine
            | Self::EnginesBusy
            | Self::RateExceeded
            | Self::RequestLimit
            | Self::OutOfBuffers
            | Self::Draining
            | Self::Internal => Fault::Ours,
        }
    }

    /// Whether the proxy may try the request again.
    #[must_use]
    pub fn retryable(&self) -> Retryable {
        match self {
            Self::EngineUnreachable | Self::EngineTls => Retryable::BeforeSend,
            Self::EngineReset => Retryable::OnReusedConnection,
            Self::Head(_)
            | Self::Chunked(_)
            | Self::HeadTimeout { .. }
            | Self::BodyTimeout { .. }
            | Self::BodyCut
            | Self::BodyTooLarge { .. }
            | Self::NotFound { .. }
            | Self::Method { .. }
            | Self::Json(_)
            | Self::Form(_)
            | Self::MissingModel
            | Self::ModelNotFound { .. }
            | Self::ClientGone
            | Self::EngineProtocol { .. }
            | Self::EngineTimeout { .. }
            | Self::TotalTimeout { .. }
            | Self::NoPolicy
            | Self::NoEligibleEngine
            | Self::EnginesBusy
            | Self::RateExceeded
            | Self::RequestLimit
            | Self::OutOfBuffers
            | Self::Draining
            | Self::Internal => Retryable::Never,
        }
    }

    /// Status of the answer.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            // Told by no answer at all: see `is_silent`.
            Self::Head(error) => error.status().unwrap_or(400),
            Self::Chunked(_)
            | Self::BodyCut
            | Self::Json(_)
            | Self::Form(_)
            | Self::MissingModel => 400,
            Self::NotFound { .. } | Self::ModelNotFound { .. } => 404,
            Self::Method { .. } => 405,
            Self::HeadTimeout { .. } | Self::BodyTimeout { .. } => 408,
            Self::BodyTooLarge { .. } => 413,
            Self::EnginesBusy | Self::RateExceeded => 429,
            Self::ClientGone => 499,
            Self::Internal => 500,
            Self::EngineTls | Self::EngineReset | Self::EngineProtocol { .. } => 502,
            Self::EngineUnreachable
            | Self::NoPolicy
            | Self::NoEligibleEngine
            | Self::RequestLimit
            | Self::OutOfBuffers
            | Self::Draining => 503,
            Self::EngineTimeout { .. } | Self::TotalTimeout { .. } => 504,
        }
    }

    /// Name of the error for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Head(error) => error.code(),
            Self::Chunked(_) => "bad_request",
            Self::HeadTimeout { .. } => "head_timeout",
            Self::BodyTimeout { .. } => "body_timeout",
            Self::BodyCut => "request_body_cut",
            Self::BodyTooLarge { .. } => "request_body_too_large",
            Self::NotFound { .. } => "not_found",
            Self::Method { .. } => "method_not_allowed",
            Self::Json(error) => error.code(),
            Self::Form(error) => error.code(),
            Self::MissingModel => "missing_model",
            Self::ModelNotFound { .. } => "model_not_found",
            Self::ClientGone => "client_gone",
            Self::EngineUnreachable => "engine_unreachable",
            Self::EngineTls => "engine_tls",
            Self::EngineReset => "engine_reset",
            Self::EngineProtocol { .. } => "engine_protocol",
            Self::EngineTimeout { .. } => "engine_timeout",
            Self::TotalTimeout { .. } => "total_timeout",
            Self::NoPolicy => "no_policy",
            Self::NoEligibleEngine => "no_eligible_engine",
            Self::EnginesBusy => "engines_busy",
            Self::RateExceeded => "rate_exceeded",
            Self::RequestLimit => "request_limit",
            Self::OutOfBuffers => "out_of_buffers",
            Self::Draining => "draining",
            Self::Internal => "internal_error",
        }
    }

    /// Whether the client connection cannot take another request after this answer: its framing is
    /// in doubt, or bytes of this request may still come.
    #[must_use]
    pub fn closes_client(&self) -> bool {
        match self {
            Self::Head(_)
            | Self::Chunked(_)
            | Self::HeadTimeout { .. }
            | Self::BodyTimeout { .. }
            | Self::BodyCut
            | Self::BodyTooLarge { .. }
            | Self::ClientGone
            | Self::OutOfBuffers
            | Self::Draining
            | Self::Internal => true,
            Self::NotFound { .. }
            | Self::Method { .. }
            | Self::Json(_)
            | Self::Form(_)
            | Self::MissingModel
            | Self::ModelNotFound { .. }
            | Self::EngineUnreachable
            | Self::EngineTls
            | Self::EngineReset
            | Self::EngineProtocol { .. }
            | Self::EngineTimeout { .. }
            | Self::TotalTimeout { .. }
            | Self::NoPolicy
            | Self::NoEligibleEngine
            | Self::EnginesBusy
            | Self::RateExceeded
            | Self::RequestLimit => false,
        }
    }

    /// The methods that a path answers, where another was used.
    #[must_use]
    pub fn allow(&self) -> Option<&'static str> {
        match self {
            Self::Method { allow, .. } => Some(allow),
            _ => None,
        }
    }

    /// The request field at fault.
    #[must_use]
    pub fn parameter(&self) -> Option<&'static str> {
        match self {
            Self::MissingModel | Self::ModelNotFound { .. } => Some("model"),
            Self::Json(error) => error.param(),
            Self::Form(error) => error.param(),
            _ => None,
        }
    }

    /// The error's type, in OpenAI's words.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match (self.status(), self.fault()) {
            (429, _) => "rate_limit_error",
            (_, Fault::Client) => "invalid_request_error",
            (_, Fault::Engine | Fault::Ours) => "server_error",
        }
    }

    /// Whether the connection is closed without a word: there is nobody to read an answer, or
    /// what arrived was no HTTP.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        match self {
            Self::ClientGone => true,
            Self::Head(error) => error.status().is_none(),
            _ => false,
        }
    }

    /// Whether the request was refused to protect capacity, and for which cause.
    #[must_use]
    pub fn shed_cause(&self) -> Option<ShedCause> {
        match self {
            Self::RateExceeded => Some(ShedCause::AdmittedRate),
            Self::EnginesBusy => Some(ShedCause::Allowance),
            Self::NoEligibleEngine => Some(ShedCause::NoEngine),
            Self::RequestLimit => Some(ShedCause::RequestLimit),
            Self::OutOfBuffers => Some(ShedCause::MemoryBudget),
            Self::Draining => Some(ShedCause::Draining),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_model_is_the_clients_fault_and_names_the_field() {
        let error = Error::ModelNotFound {
            model: "a\"b".to_owned(),
        };
        assert_eq!((error.status(), error.code()), (404, "model_not_found"));
        assert_eq!(error.parameter(), Some("model"));
        assert_eq!(error.kind(), "invalid_request_error");
        assert!(error.to_string().contains(r#""a\"b""#), "{error}");
    }

    #[test]
    fn only_errors_before_an_answer_may_be_tried_again() {
        assert_eq!(Error::EngineUnreachable.retryable(), Retryable::BeforeSend);
        assert_eq!(
            Error::EngineReset.retryable(),
            Retryable::OnReusedConnection
        );
        assert_eq!(
            Error::EngineTimeout { limit_ms: 1 }.retryable(),
            Retryable::Never
        );
    }

    /// Never with a status that proxies retry at once, and each cause by a name of its own.
    #[test]
    fn f05_refusals_say_when_and_why() {
        let taken = [Error::EnginesBusy, Error::RateExceeded];
        let none = [
            Error::NoEligibleEngine,
            Error::RequestLimit,
            Error::OutOfBuffers,
            Error::Draining,
        ];
        let (mut codes, mut causes) = (Vec::new(), Vec::new());
        for (errors, status) in [(&taken[..], 429), (&none[..], 503)] {
            for error in errors {
                assert_eq!(error.status(), status, "{error:?}");
                codes.push(error.code());
                causes.extend(error.shed_cause());
            }
        }
        assert_eq!(causes, {
            use ShedCause::*;
            [
                Allowance,
                AdmittedRate,
                NoEngine,
                RequestLimit,
                MemoryBudget,
                Draining,
            ]
        });
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), causes.len());
    }
}
