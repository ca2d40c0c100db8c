//! The ways of asking the ring that are compared.

/// How a relay asks the ring for its reads, and how it names its sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Each read is an operation with a buffer of its own, sockets are named by descriptor: what
    /// monoio does, and what the other ways are divided by.
    OneShot,
    /// The same once more: how far a figure is off by chance.
    Again,
    /// As the first, but sockets are in the ring's own table.
    Registered,
    /// One read for a stream's life; the kernel picks the buffer of each completion.
    Multishot,
    /// Both.
    Both,
}

impl Way {
    pub(super) const ALL: [Self; 5] = [
        Self::OneShot,
        Self::Again,
        Self::Registered,
        Self::Multishot,
        Self::Both,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::OneShot => "one-shot",
            Self::Again => "one-shot again",
            Self::Registered => "registered files",
            Self::Multishot => "multishot",
            Self::Both => "multishot, registered files",
        }
    }

    pub(super) fn registers_files(self) -> bool {
        matches!(self, Self::Registered | Self::Both)
    }

    pub(super) fn is_multishot(self) -> bool {
        matches!(self, Self::Multishot | Self::Both)
    }
}
