//! What is spoken on one side of a subject: the one list for relay, load client and benchmark.
//!
//! Not what an engine listens for: that may be both at once.

use clap::ValueEnum;

/// A version of HTTP without TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Http {
    /// HTTP/1.1.
    H1,
    /// Cleartext HTTP/2 by prior knowledge.
    #[value(alias = "h2")]
    H2c,
}

impl Http {
    /// As in the names of systems, and as the instruments' flags want it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::H1 => "h1",
            Self::H2c => "h2c",
        }
    }
}
