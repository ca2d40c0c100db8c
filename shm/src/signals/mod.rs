//! Signals: what every proxy process measured, for the solver to read.
//!
//! One file a process, one segment a shard, one record a class, engine and pair. A shard is the
//! only writer of its segment, so counting is a plain load and store in a cache line that nobody
//! else writes; counters only rise, and a reader takes differences at its own pace. Nothing here
//! is a message: a reader that misses a hundred passes misses no request.
//!
//! `layout` has the positions, `record` the life of a record as pure operations on words, `writer`
//! and `reader` the two sides, `counters` the numbers as a reader gets them.

mod counters;
pub(crate) mod layout;
pub mod record;

#[cfg(not(loom))]
mod reader;
#[cfg(not(loom))]
mod sheet;
#[cfg(not(loom))]
mod writer;

pub use counters::{
    BlockLoad, ClassCounters, EngineCounters, HISTOGRAM_BUCKETS, Histogram, PairCounters,
    bucket_floor_us, bucket_of_us,
};
#[cfg(not(loom))]
pub use reader::{Flights, Instance, ShardBeat, SignalsReader, Snapshot, list, reap};
#[cfg(not(loom))]
pub use writer::{ClassCell, EngineCell, PairCell, ShardSignals, SignalsWriter};

/// Capacities of a signal file: each one more than the largest slot number served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Shards of the process.
    pub shards: u16,
    /// Class slots.
    pub classes: u16,
    /// Engine slots.
    pub engines: u16,
    /// Pair numbers.
    pub pairs: u16,
}

/// Why a request was refused at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ShedCause {
    /// The policy's admitted rate of its priority is used up.
    AdmittedRate,
    /// Every eligible engine is at its allowance.
    Allowance,
    /// No eligible engine is usable.
    NoEngine,
    /// The proxy holds as many requests as it may.
    RequestLimit,
    /// The proxy holds as many bytes as it may.
    MemoryBudget,
    /// The proxy drains.
    Draining,
}

impl ShedCause {
    /// How many causes there are.
    pub const COUNT: usize = 6;
    /// Every cause, in the order of the counters.
    pub const ALL: [ShedCause; ShedCause::COUNT] = [
        ShedCause::AdmittedRate,
        ShedCause::Allowance,
        ShedCause::NoEngine,
        ShedCause::RequestLimit,
        ShedCause::MemoryBudget,
        ShedCause::Draining,
    ];
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Outcome {
    /// A whole answer.
    Success,
    /// 4xx but for 429: the client's doing.
    ClientError,
    /// 429 or 503: the engine asks for less.
    Backpressure,
    /// Any other 5xx.
    ServerError,
    /// Nobody listens.
    ConnectRefused,
    /// No answer to the handshake in time.
    ConnectTimeout,
    /// The connection broke before the first response byte.
    ResetBeforeByte,
    /// No response byte in time.
    FirstByteTimeout,
    /// The connection broke inside the answer.
    MidStreamReset,
    /// The stream fell silent for too long.
    Stall,
    /// The engine reported an error inside the stream.
    StreamError,
    /// The client went away.
    ClientCancel,
    /// The proxy's own doing.
    Ours,
}

impl Outcome {
    /// How many outcomes there are.
    pub const COUNT: usize = 13;
    /// Every outcome, in the order of the counters.
    pub const ALL: [Outcome; Outcome::COUNT] = [
        Outcome::Success,
        Outcome::ClientError,
        Outcome::Backpressure,
        Outcome::ServerError,
        Outcome::ConnectRefused,
        Outcome::ConnectTimeout,
        Outcome::ResetBeforeByte,
        Outcome::FirstByteTimeout,
        Outcome::MidStreamReset,
        Outcome::Stall,
        Outcome::StreamError,
        Outcome::ClientCancel,
        Outcome::Ours,
    ];
}
