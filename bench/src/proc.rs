//! What the kernel says of processes and of the host, from /proc.
//!
//! Whoever measures asks here, at the moments that its window has: the load clients for CPU times,
//! the benchmark of streams for what they cannot see (which processes a subject has, their memory)
//! and for what everybody else did meanwhile.

use std::collections::BTreeMap;
use std::fs;

use tokio::signal::unix::SignalKind;

/// The kernel's unit in /proc/stat: a hundredth of a second on every Linux.
const TICK_NS: u64 = 10_000_000;

/// CPU time of the host up to one moment, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostTimes {
    /// Used by anybody on this host.
    pub(crate) busy_ns: u64,
    /// Wanted here and given to other guests of the machine.
    pub(crate) stolen_ns: u64,
}

impl HostTimes {
    /// As it stands.
    pub(crate) fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// Out of /proc/stat: user, nice, system, irq, softirq; and steal.
    fn parse(stat: &str) -> Self {
        let words = stat.lines().next().unwrap_or_default();
        let ticks: Vec<u64> = words
            .split_ascii_whitespace()
            .skip(1)
            .filter_map(|word| word.parse().ok())
            .collect();
        let sum = |fields: &[usize]| {
            let ticks = fields.iter().filter_map(|&field| ticks.get(field));
            ticks.sum::<u64>() * TICK_NS
        };
        Self {
            busy_ns: sum(&[0, 1, 2, 5, 6]),
            stolen_ns: sum(&[7]),
        }
    }
}

/// What others used between two moments, in cores; `ours_ns` is what the run's own processes used.
/// The host counts in ticks and the processes exactly, so a small difference is none.
pub(crate) fn others_cores(from: HostTimes, to: HostTimes, ours_ns: u64, seconds: f64) -> f64 {
    let busy_ns = to.busy_ns.saturating_sub(from.busy_ns);
    let stolen_ns = to.stolen_ns.saturating_sub(from.stolen_ns);
    (busy_ns.saturating_sub(ours_ns) + stolen_ns) as f64 / 1e9 / seconds.max(1e-9)
}

/// CPU time of processes, summed over their threads, in ns. One that has ended counts as 0.
pub(crate) fn cpu_ns(pids: &[u32]) -> u64 {
    let of_process = |&pid: &u32| {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter();
        let texts = threads
            .flatten()
            .flatten()
            .filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok());
        texts.map(|text| run_ns(&text)).sum::<u64>()
    };
    pids.iter().map(of_process).sum()
}

/// Time on a core, out of a thread's schedstat.
fn run_ns(schedstat: &str) -> u64 {
    let first = schedstat.split_ascii_whitespace().next();
    first.and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// User memory of processes in KiB: the proportional set size, so that pages which several share
/// count once; where the kernel does not say, the resident set. What the kernel holds for sockets
/// is in neither.
pub(crate) fn memory_kib(pids: &[u32]) -> u64 {
    let of_process = |&pid: &u32| {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
        let shared = rollup.ok().and_then(|text| field_kib(&text, "Pss:"));
        shared.unwrap_or_else(|| resident_kib(pid))
    };
    pids.iter().map(of_process).sum()
}

/// Resident memory of a process in KiB, what it shares included; 0 when there is no such process.
pub(crate) fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    let resident = status.ok().and_then(|text| field_kib(&text, "VmRSS:"));
    resident.unwrap_or(0)
}

/// A field in kB, by its name at a line's start.
fn field_kib(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.trim().strip_suffix(" kB")?.trim().parse().ok()
}

/// Whether this process was started to ignore a signal, as nohup starts it.
pub(crate) fn ignores(signal: SignalKind) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_in_mask(&status, "SigIgn:", signal)
}

/// Whether a signal's bit is set in a mask, by the mask's name at a line's start.
fn is_in_mask(status: &str, name: &str, signal: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix(name));
    let mask = mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    let bit = u32::try_from(signal.as_raw_value() - 1).ok();
    let is_set = |mask: u64| bit.and_then(|bit| mask.checked_shr(bit)).unwrap_or(0) & 1 == 1;
    mask.is_some_and(is_set)
}

/// A process and all that descend from it, as they are now.
pub(crate) fn tree(root: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: BTreeMap<u32, u32> = pids
        .filter_map(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, parent(&stat)?))
        })
        .collect();
    descendants(root, &parents)
}

/// The parent's number, out of a process's stat: the second word after the name, which stands in
/// parentheses and may hold any.
fn parent(stat: &str) -> Option<u32> {
    let (_, after) = stat.rsplit_once(')')?;
    after.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The root first, then generation by generation.
fn descendants(root: u32, parents: &BTreeMap<u32, u32>) -> Vec<u32> {
    let mut found = vec![root];
    let mut at = 0;
    while at < found.len() {
        let children = parents
            .iter()
            .filter(|&(child, parent)| *parent == found[at] && !found.contains(child));
        let children: Vec<u32> = children.map(|(&child, _)| child).collect();
        found.extend(children);
        at += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_time_is_what_is_used_and_what_is_stolen() {
        let stat = "cpu  1 2 4 800 900 8 16 32 64 128\ncpu0 9 9 9\n";
        let times = HostTimes::parse(stat);
        assert_eq!(times.busy_ns, 31 * TICK_NS);
        assert_eq!(times.stolen_ns, 32 * TICK_NS);
        assert_eq!(HostTimes::parse(""), HostTimes::default());
        assert_eq!(HostTimes::parse("cpu  5 0 0\n").busy_ns, 5 * TICK_NS);
    }

    #[test]
    fn others_are_all_but_ours_and_the_hypervisor_is_one_of_them() {
        let times = |busy_ns, stolen_ns| HostTimes { busy_ns, stolen_ns };
        let (from, to) = (times(1_000_000_000, 0), times(5_000_000_000, 500_000_000));
        assert_eq!(others_cores(from, to, 3_500_000_000, 2.0), 0.5);
        // The tick of a moment ago is not yet in the host's count.
        assert_eq!(others_cores(from, to, 4_100_000_000, 2.0), 0.25);
        assert_eq!(others_cores(from, from, 0, 0.0), 0.0);
    }

    #[test]
    fn a_parent_is_found_behind_any_name() {
        assert_eq!(parent("7 (a) b) (c) S 42 7 7 0"), Some(42));
        assert_eq!(parent("7 (nginx: worker) S 6 5 5 0"), Some(6));
        assert_eq!(parent("7 nonsense"), None);
    }

    #[test]
    fn a_tree_is_a_process_and_its_childrens_children() {
        let parents = [(1, 0), (20, 1), (30, 20), (31, 20), (40, 31), (50, 1)];
        let parents = BTreeMap::from(parents);
        assert_eq!(descendants(20, &parents), [20, 30, 31, 40]);
        assert_eq!(descendants(50, &parents), [50]);
        // A number that came round again makes no circle.
        let circle = BTreeMap::from([(2, 3), (3, 2)]);
        assert_eq!(descendants(2, &circle), [2, 3]);
    }

    #[test]
    fn an_ignored_signal_is_a_bit_of_the_mask() {
        let status = "SigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\n";
        let ignored = |signal| is_in_mask(status, "SigIgn:", signal);
        assert!(ignored(SignalKind::hangup()) && ignored(SignalKind::pipe()));
        assert!(!ignored(SignalKind::interrupt()) && !ignored(SignalKind::terminate()));
        assert!(!is_in_mask("", "SigIgn:", SignalKind::hangup()));
    }

    #[test]
    fn memory_is_read_in_kilobytes() {
        let rollup = "00400000-7fff ---p 00000000 00:00 0   [rollup]\nRss:     1708 kB\nPss:      \
                      289 kB\nPss_Dirty:   116 kB\n";
        assert_eq!(field_kib(rollup, "Pss:"), Some(289));
        assert_eq!(field_kib("VmRSS:\t  12 kB\n", "VmRSS:"), Some(12));
        assert_eq!(field_kib("VmRSS:\t12 MB\n", "VmRSS:"), None);
        assert_eq!(run_ns("123456 789 10\n"), 123_456);
        assert_eq!(run_ns(""), 0);
    }

    #[test]
    fn this_process_has_time_memory_and_a_child_of_its_own() {
        let own = std::process::id();
        assert!(cpu_ns(&[own]) > 0);
        assert!(memory_kib(&[own]) > 0);
        // The whole of shared pages counts here, a part of them there.
        assert!(resident_kib(own) > 0);
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let found = tree(own);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found[0], own);
        assert!(found.contains(&child.id()), "{found:?}");
        assert_eq!(cpu_ns(&[child.id()]), 0);
        assert!(HostTimes::now().busy_ns > 0);
    }
}
