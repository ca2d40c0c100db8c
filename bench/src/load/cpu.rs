//! The CPU time of a load run, told apart by who used it.
//!
//! How the kernel is asked is the business of `proc`.

use crate::proc::{HostTimes, cpu_ns};

/// CPU time used up to one moment, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuTimes {
    /// The subject's processes.
    pub(crate) subject_ns: u64,
    /// The engines' processes.
    pub(crate) engine_ns: u64,
    /// This process.
    pub(crate) own_ns: u64,
    /// The whole host.
    pub(crate) host_ns: u64,
}

impl CpuTimes {
    /// The times as they stand.
    pub(crate) fn now(subject: &[u32], engines: &[u32]) -> Self {
        Self {
            subject_ns: cpu_ns(subject),
            engine_ns: cpu_ns(engines),
            own_ns: cpu_ns(&[std::process::id()]),
            host_ns: HostTimes::now().busy_ns,
        }
    }

    /// What was used since an earlier moment.
    pub(crate) fn since(self, earlier: &Self) -> Self {
        Self {
            subject_ns: self.subject_ns.saturating_sub(earlier.subject_ns),
            engine_ns: self.engine_ns.saturating_sub(earlier.engine_ns),
            own_ns: self.own_ns.saturating_sub(earlier.own_ns),
            host_ns: self.host_ns.saturating_sub(earlier.host_ns),
        }
    }

    /// What everybody else used: a measurement with much of it is worth little.
    pub(crate) fn other_ns(self) -> u64 {
        self.host_ns
            .saturating_sub(self.subject_ns + self.engine_ns + self.own_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_of_the_run_used_is_others() {
        let earlier = CpuTimes {
            subject_ns: 10,
            engine_ns: 20,
            own_ns: 30,
            host_ns: 1_000,
        };
        let later = CpuTimes {
            subject_ns: 110,
            engine_ns: 50,
            own_ns: 40,
            host_ns: 1_500,
        };
        let used = later.since(&earlier);
        assert_eq!(
            (used.subject_ns, used.engine_ns, used.own_ns),
            (100, 30, 10)
        );
        assert_eq!(used.other_ns(), 500 - 140);
        // The host counts in ticks: it may not have seen yet what the processes did.
        let host_ns = used.host_ns.min(100);
        assert_eq!(CpuTimes { host_ns, ..used }.other_ns(), 0);
    }

    #[test]
    fn this_process_is_the_client() {
        let now = CpuTimes::now(&[], &[]);
        assert_eq!((now.subject_ns, now.engine_ns), (0, 0));
        assert!(now.own_ns > 0 && now.host_ns > 0);
    }
}
