//! The optimum of a problem, or a named reason why there is none.

/// How a solve ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Status {
    /// Solved, and verified against the true constraints.
    Optimal,
    /// Refused before solving.
    Refused {
        /// What is wrong with the numbers.
        reason: String,
    },
    /// The method panicked; the panic was caught.
    Panicked {
        /// Its message.
        message: String,
    },
    /// The method gave up.
    Failed {
        /// Its message.
        message: String,
    },
    /// The answer holds a number that is not finite.
    NonFinite {
        /// Where.
        what: String,
    },
    /// The answer breaks a constraint.
    ConstraintBroken {
        /// Which, and by how much.
        what: String,
    },
}

impl Status {
    /// Name for metrics: the cause of a failure.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Optimal => "optimal",
            Self::Refused { .. } => "refused",
            Self::Panicked { .. } => "panicked",
            Self::Failed { .. } => "failed",
            Self::NonFinite { .. } => "non_finite",
            Self::ConstraintBroken { .. } => "constraint_broken",
        }
    }
}
