//! How what a request goes through beside its attempts can end, as metrics name it.

/// How a wait in line ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QueueEnd {
    /// Its turn came.
    Served,
    /// The time was over.
    Expired,
    /// The client left, or the process ended.
    Cancelled,
    /// A higher priority took the place.
    Displaced,
    /// There was no place.
    Full,
}

impl QueueEnd {
    /// How many there are.
    pub const COUNT: usize = 5;
    /// Every end.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Served,
        Self::Expired,
        Self::Cancelled,
        Self::Displaced,
        Self::Full,
    ];

    /// Its name as a label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Displaced => "displaced",
            Self::Full => "full",
        }
    }
}

/// What became of a second attempt beside a late first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hedge {
    /// Its answer was delivered.
    Won,
    /// The first one's was, or the client left both.
    Lost,
    /// It failed.
    Failed,
    /// It was not made: the budget had no token.
    NoToken,
}

impl Hedge {
    /// How many there are.
    pub const COUNT: usize = 4;
    /// All of them, in the order of the counters.
    pub const ALL: [Self; Self::COUNT] = [Self::Won, Self::Lost, Self::Failed, Self::NoToken];

    /// Its name in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Won => "won",
            Self::Lost => "lost",
            Self::Failed => "failed",
            Self::NoToken => "no_token",
        }
    }
}
