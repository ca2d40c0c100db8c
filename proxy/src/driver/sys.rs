//! The system calls of the process around the shards: cores, signals, limits.
//!
//! Each function is one call with checked arguments and a result; the unsafety ends here.

#![expect(unsafe_code, reason = "libc's functions are foreign")]

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Signals that end the process in good order.
const END_SIGNALS: [i32; 2] = [libc::SIGTERM, libc::SIGINT];
/// Signals that the kernel raises for what a thread just did. They must never be blocked: a blocked
/// one kills the process, and the region files' fault guard lives in a SIGBUS handler.
const FAULT_SIGNALS: [i32; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Nanoseconds on the clock that never goes back, and stands still while the machine sleeps.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a live local.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) } != 0;
    // Every Linux has this clock, and the pointer is good.
    debug_assert!(!failed, "CLOCK_MONOTONIC is there");
    let (seconds, nanoseconds) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds * 1_000_000_000 + nanoseconds
}

/// Cores that the process may run on, by rising number; empty when the kernel does not say.
#[must_use]
pub fn allowed_cores() -> Vec<usize> {
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: the kernel writes at most the given size into `set`, and all zeroes is a valid set.
    let set = unsafe {
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr()) != 0 {
            return Vec::new();
        }
        set.assume_init()
    };
    let limit = usize::try_from(libc::CPU_SETSIZE).unwrap_or(0);
    // SAFETY: every number below CPU_SETSIZE is inside the set.
    (0..limit)
        .filter(|&core| unsafe { libc::CPU_ISSET(core, &set) })
        .collect()
}

/// Pins the calling thread to one core.
///
/// # Errors
/// When the core is not allowed to the process.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    if core >= usize::try_from(libc::CPU_SETSIZE).unwrap_or(0) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: all zeroes is a valid, empty set; `core` is inside it; the kernel reads the given
    // size and keeps no pointer.
    check(unsafe {
        let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    })
}

/// Blocks every signal on the calling thread but those that a fault raises.
pub fn block_all_signals() {
    // SAFETY: both calls fill or change a set on this stack.
    let set = unsafe {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        libc::sigfillset(set.as_mut_ptr());
        for signal in FAULT_SIGNALS {
            libc::sigdelset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    };
    set_mask(&set);
}

/// Blocks the signals that end the process on the calling thread and on those it starts later, so
/// that only [`wait_for_end_signal`] takes them.
pub fn block_end_signals() {
    set_mask(&end_signals());
}

/// Waits for a signal that ends the process, and returns its number.
#[must_use]
pub fn wait_for_end_signal() -> i32 {
    let set = end_signals();
    let mut signal = 0;
    loop {
        // SAFETY: `set` is initialised and `signal` is writable.
        if unsafe { libc::sigwait(&set, &mut signal) } == 0 {
            return signal;
        }
    }
}

/// Raises the limit of open files to its hard limit; returns the limit now.
///
/// # Errors
/// When the kernel refuses to say or to raise it.
pub fn raise_open_files() -> io::Result<u64> {
    let mut limit = resource_limit(libc::RLIMIT_NOFILE)?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the kernel reads `limit` and keeps no pointer.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })?;
    Ok(limit.rlim_cur)
}

/// Waits until one of `sockets` is ready as its entry asks, or the time is over.
///
/// # Errors
/// When the kernel has no memory for it.
pub fn wait_ready(sockets: &mut [libc::pollfd], timeout: Duration) -> io::Result<()> {
    let count = libc::nfds_t::try_from(sockets.len()).unwrap_or(libc::nfds_t::MAX);
    // Rounded up: a wait that ends a moment before its deadline would be begun again at once.
    let timeout_ms = i32::try_from(timeout.as_millis().saturating_add(1)).unwrap_or(i32::MAX);
    // SAFETY: the kernel writes only into the entries of the slice.
    match unsafe { libc::poll(sockets.as_mut_ptr(), count, timeout_ms) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Bytes of memory that may be locked; `None` for no bound.
#[must_use]
pub fn memlock_limit() -> Option<u64> {
    let limit = resource_limit(libc::RLIMIT_MEMLOCK).ok()?.rlim_cur;
    (limit != libc::RLIM_INFINITY).then_some(limit)
}

fn resource_limit(resource: libc::__rlimit_resource_t) -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes one `rlimit` into `limit`.
    check(unsafe { libc::getrlimit(resource, &mut limit) })?;
    Ok(limit)
}

fn end_signals() -> libc::sigset_t {
    // SAFETY: both calls fill or change a set on this stack.
    unsafe {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        libc::sigemptyset(set.as_mut_ptr());
        for signal in END_SIGNALS {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

fn set_mask(set: &libc::sigset_t) {
    // SAFETY: `set` is initialised; no old mask is asked for. It fails only for an unknown `how`.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set, std::ptr::null_mut()) };
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_be_pinned_to_an_allowed_core_and_to_no_other() {
        let cores = allowed_cores();
        assert!(!cores.is_empty());
        std::thread::spawn(move || {
            pin_to_core(cores[0]).unwrap();
            assert_eq!(allowed_cores(), [cores[0]]);
            assert!(pin_to_core(1_000_000).is_err());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn raising_open_files_reaches_the_hard_limit() {
        let raised = raise_open_files().unwrap();
        assert_eq!(
            resource_limit(libc::RLIMIT_NOFILE).unwrap().rlim_max,
            raised
        );
    }
}
