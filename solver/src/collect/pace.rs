//! When to ask an engine for its metrics again, and what to say about failures.
//!
//! A page that is not there will not be there in a second either: a wrong port, path or credential
//! is asked again after five seconds, then ever more rarely up to a minute. A slow or broken page
//! may be well at the next turn. Each state is logged when it begins, not at every scrape.

use std::time::Duration;

/// Why a scrape gave nothing usable; the label `reason` of the error counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Nothing listens there.
    Refused,
    /// No connection for another reason, or the name has no address.
    Unreachable,
    /// Not done by the deadline.
    Timeout,
    /// The connection ended before an answer.
    Reset,
    /// The answer is not HTTP/1.1; a TLS port, for one.
    Protocol,
    /// The engine could not be verified, or refused our certificate.
    Tls,
    /// The topology names a credential that this host's solver does not have.
    UnknownCredential,
    /// 401 or 403.
    Unauthorized,
    /// 404 or 410.
    NotFound,
    /// 3xx; never followed, since it may lead to another host.
    Redirect,
    /// Any other status than 200.
    Status,
    /// 200, but no exposition: a login page, JSON.
    NotExposition,
    /// The page broke off; its full lines were used.
    Truncated,
    /// Its protocol is not one that the solver speaks.
    ProtocolUnsupported,
}

impl Reason {
    /// The label's value.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::Reset => "reset",
            Self::Protocol => "protocol",
            Self::Tls => "tls",
            Self::UnknownCredential => "unknown_credential",
            Self::Unauthorized => "unauthorized",
            Self::NotFound => "not_found",
            Self::Redirect => "redirect",
            Self::Status => "status",
            Self::NotExposition => "not_exposition",
            Self::Truncated => "truncated",
            Self::ProtocolUnsupported => "protocol_unsupported",
        }
    }

    /// Whether asking again soon can only give the same.
    fn is_setup(self) -> bool {
        matches!(
            self,
            Self::Protocol
                | Self::Tls
                | Self::UnknownCredential
                | Self::Unauthorized
                | Self::NotFound
                | Self::Redirect
                | Self::NotExposition
                | Self::ProtocolUnsupported
        )
    }
}

/// First and longest pause after a failure of set-up.
const PAUSE: Duration = Duration::from_secs(5);
const PAUSE_LONGEST: Duration = Duration::from_secs(60);

/// The pace of one engine's scrapes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    standing: Option<Reason>,
    setup_failures: u32,
}

impl Pace {
    /// Takes in a scrape's outcome; `true` when it begins another state, which is worth a line.
    pub fn absorb(&mut self, outcome: Option<Reason>) -> bool {
        let changed = self.standing != outcome;
        self.standing = outcome;
        let setup = outcome.is_some_and(Reason::is_setup);
        self.setup_failures = if setup {
            self.setup_failures.saturating_add(1)
        } else {
            0
        };
        changed
    }

    /// How long no metrics are asked for; zero for the usual period.
    #[must_use]
    pub fn pause(&self) -> Duration {
        match self.setup_failures {
            0 => Duration::ZERO,
            failures => (PAUSE * 2u32.pow((failures - 1).min(4))).min(PAUSE_LONGEST),
        }
    }

    /// The state that stands.
    #[must_use]
    pub fn standing(&self) -> Option<Reason> {
        self.standing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(outcomes: &[Option<Reason>]) -> Vec<u64> {
        let mut pace = Pace::default();
        let pause = |outcome: &Option<Reason>| {
            pace.absorb(*outcome);
            pace.pause().as_secs()
        };
        outcomes.iter().map(pause).collect()
    }

    #[test]
    fn g08_a_failure_of_set_up_is_asked_ever_more_rarely() {
        let missing = Some(Reason::NotFound);
        assert_eq!(pauses(&[missing; 7]), [5, 10, 20, 40, 60, 60, 60]);
        assert_eq!(pauses(&[missing, missing, None, missing]), [5, 10, 0, 5]);
        for reason in [
            Reason::Unauthorized,
            Reason::NotExposition,
            Reason::Redirect,
        ] {
            assert_eq!(pauses(&[Some(reason)]), [5]);
        }
        assert_eq!(pauses(&[Some(Reason::Protocol)]), [5]);
    }

    #[test]
    fn g06_a_slow_page_is_asked_for_at_the_usual_pace() {
        assert_eq!(pauses(&[Some(Reason::Timeout); 3]), [0, 0, 0]);
        assert_eq!(
            pauses(&[Some(Reason::Truncated), Some(Reason::Reset)]),
            [0, 0]
        );
    }

    #[test]
    fn g08_each_state_is_worth_one_line() {
        let mut pace = Pace::default();
        assert!(!pace.absorb(None));
        assert!(pace.absorb(Some(Reason::NotFound)));
        assert!(!pace.absorb(Some(Reason::NotFound)));
        assert!(pace.absorb(Some(Reason::Timeout)));
        assert!(pace.absorb(None));
    }
}
