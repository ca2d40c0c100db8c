//! What routing needs from a JSON body, found while it arrives.

use pointsman_shm::policy::{Endpoints, Features};

/// A resumable scan of one body.
#[derive(Debug)]
pub struct JsonScan {
    endpoint: Endpoints,
}

/// What a body says that routing needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodyFacts {
    /// `model`; `None` when the body has none.
    pub model: Option<String>,
    /// Features the body asks for (stream, tools, images).
    pub features: Features,
    /// `prompt_cache_key`, its first [`MAX_KEY_BYTES`] bytes.
    pub prompt_cache_key: Option<String>,
    /// `conversation`, or its `id`.
    pub conversation: Option<String>,
    /// `cache_salt`.
    pub cache_salt: Option<String>,
    /// `user`.
    pub user: Option<String>,
    /// Hash of the conversation's opening.
    pub opening: Option<u64>,
}

/// Longest model name accepted, bytes.
pub const MAX_MODEL_BYTES: usize = 512;
/// How much of a key field is kept, bytes.
pub const MAX_KEY_BYTES: usize = 1024;
/// Deepest nesting accepted.
pub const MAX_DEPTH: usize = 512;

/// Why a body was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// No JSON, or not whole, at this byte.
    #[error("invalid JSON at byte {offset}")]
    Invalid {
        /// Byte at fault, from 0.
        offset: u64,
    },
    /// Something follows the value.
    #[error("data after the JSON value at byte {offset}")]
    Trailing {
        /// First byte after the value that is not white space.
        offset: u64,
    },
    /// The value is not an object.
    #[error("the body must be a JSON object")]
    NotAnObject,
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("JSON nested deeper than {MAX_DEPTH} at byte {offset}")]
    TooDeep {
        /// Byte at fault.
        offset: u64,
    },
    /// A key that routing reads stands twice.
    #[error("duplicate key \"{key}\"")]
    DuplicateKey {
        /// The key.
        key: &'static str,
    },
    /// `model` is not a string, or empty.
    #[error("\"model\" must be a non-empty string")]
    Model,
    /// `model` is longer than [`MAX_MODEL_BYTES`].
    #[error("\"model\" is longer than {MAX_MODEL_BYTES} bytes")]
    ModelTooLong,
    /// A field that routing reads is not valid Unicode.
    #[error("\"{key}\" is not valid Unicode")]
    Unicode {
        /// The key.
        key: &'static str,
    },
}

impl JsonError {
    /// `error.code` of the answer (always status 400).
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Model | Self::ModelTooLong => "invalid_model",
            Self::DuplicateKey { .. } => "duplicate_key",
            Self::Invalid { .. }
            | Self::Trailing { .. }
            | Self::NotAnObject
            | Self::TooDeep { .. }
            | Self::Unicode { .. } => "invalid_json",
        }
    }

    /// `error.param` of the answer.
    #[must_use]
    pub fn param(self) -> Option<&'static str> {
        match self {
            Self::Model | Self::ModelTooLong => Some("model"),
            Self::DuplicateKey { key } | Self::Unicode { key } => Some(key),
            _ => None,
        }
    }
}

impl JsonScan {
    /// A scan of a body sent to `endpoint`.
    #[must_use]
    pub fn new(endpoint: Endpoints) -> Self {
        Self { endpoint }
    }

    /// Reads the next bytes of the body.
    pub fn feed(&mut self, input: &[u8]) -> Result<(), JsonError> {
        let _ = (input, self.endpoint);
        unimplemented!("json")
    }

    /// The body has ended.
    pub fn finish(self) -> Result<BodyFacts, JsonError> {
        unimplemented!("json")
    }
}
