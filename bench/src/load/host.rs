//! CPU time and memory of processes and of the host, from /proc.

use std::fs;

/// The kernel's unit of /proc/stat: a hundredth of a second on every Linux.
const TICK_NS: u64 = 10_000_000;

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
        let sum = |pids: &[u32]| pids.iter().map(|&pid| process_ns(pid)).sum();
        Self {
            subject_ns: sum(subject),
            engine_ns: sum(engines),
            own_ns: process_ns(std::process::id()),
            host_ns: host_busy_ns(&fs::read_to_string("/proc/stat").unwrap_or_default()),
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

/// Resident memory of a process in KiB; 0 when there is no such process.
pub(crate) fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .find_map(|line| {
            line.strip_prefix("VmRSS:")?
                .trim()
                .strip_suffix(" kB")?
                .parse()
                .ok()
        })
        .unwrap_or(0)
}

/// CPU time of a process, summed over its threads.
fn process_ns(pid: u32) -> u64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok())
        .filter_map(|text| text.split_ascii_whitespace().next()?.parse::<u64>().ok())
        .sum()
}

/// Busy time out of /proc/stat: user, nice, system, irq, softirq.
fn host_busy_ns(stat: &str) -> u64 {
    let Some(line) = stat.lines().next() else {
        return 0;
    };
    let ticks: Vec<u64> = line
        .split_ascii_whitespace()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    [0, 1, 2, 5, 6]
        .iter()
        .filter_map(|&field| ticks.get(field))
        .sum::<u64>()
        * TICK_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_leaves_out_idle_and_iowait() {
        assert_eq!(
            host_busy_ns("cpu  1 2 3 400 500 6 7 8 0 0\ncpu0 9\n"),
            19 * TICK_NS
        );
        assert_eq!(host_busy_ns(""), 0);
    }

    #[test]
    fn this_process_has_memory_and_time() {
        assert!(resident_kib(std::process::id()) > 0);
        assert!(process_ns(std::process::id()) > 0);
    }
}
