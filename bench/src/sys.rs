//! The few kernel calls that the standard library has no safe name for.
//!
//! A clock that other processes share, a precise timer, the limit of open files, signals to
//! children. Beside it `select/cpu.rs` is unsafe, and so are `ring/relay.rs` and
//! `ring/buffers.rs`.
#![expect(
    unsafe_code,
    reason = "direct calls to libc; each block says why it is sound"
)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Nanoseconds of CLOCK_MONOTONIC: one time line for all processes of this host, which
/// `std::time::Instant` is too but does not show as a number.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid timespec that outlives the call.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    assert_eq!(done, 0, "CLOCK_MONOTONIC exists on every Linux");
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds of CPU that the calling thread has used, in its own code and the kernel's.
pub fn thread_cpu_ns() -> u64 {
    let mut used = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `used` is a valid timespec that outlives the call.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut used) };
    assert_eq!(done, 0, "CLOCK_THREAD_CPUTIME_ID exists on every Linux");
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

/// Gives the heap's free pages back to the kernel, where the C library can.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer and moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Raises the soft limit of open files to the hard one; a refusal leaves it as it was.
pub fn raise_open_files() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid rlimit that outlives both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// A timer descriptor on CLOCK_MONOTONIC, disarmed.
pub fn timer_file() -> io::Result<File> {
    let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
    // SAFETY: no pointers are passed; the result is checked before use.
    let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just made by the kernel and nobody else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// A timer descriptor on CLOCK_MONOTONIC, disarmed and registered with the current runtime.
pub fn timer() -> io::Result<AsyncFd<File>> {
    let timer = timer_file()?;
    // SAFETY: the descriptor of a `File` stays open and the same while the `File` lives, and the
    // `AsyncFd` owns it.
    Ok(unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) }?)
}

/// Sets `timer` to fire once at `due_ns` of CLOCK_MONOTONIC (at once if that has passed).
pub fn arm_timer(timer: &File, due_ns: u64) -> io::Result<()> {
    // All zeros would disarm the timer.
    let due_ns = due_ns.max(1);
    let spec = libc::itimerspec {
        it_interval: libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        },
        it_value: libc::timespec {
            tv_sec: (due_ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (due_ns % 1_000_000_000) as libc::c_long,
        },
    };
    // SAFETY: the descriptor is open while `timer` lives; `spec` is valid; no old value is asked.
    let done = unsafe {
        libc::timerfd_settime(
            timer.as_raw_fd(),
            libc::TFD_TIMER_ABSTIME,
            &raw const spec,
            std::ptr::null_mut(),
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Makes the child that `command` will start get `signal` when the calling thread ends, however
/// that comes about.
pub fn end_with_parent(command: &mut std::process::Command, signal: libc::c_int) {
    let parent = std::process::id();
    // SAFETY: between fork and exec the closure only calls prctl and getppid, which are
    // async-signal-safe, and an error of this kind takes no memory.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, signal) != 0 {
                return Err(io::Error::last_os_error());
            }
            // A parent that ended before has nothing more to signal.
            if u32::try_from(libc::getppid()) != Ok(parent) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
}

/// Ends a process at once (SIGKILL). The caller knows that the number is still its own.
pub fn kill(pid: u32) {
    // Number 0 would be the caller's own group.
    if let Some(pid) = libc::pid_t::try_from(pid).ok().filter(|&pid| pid > 0) {
        // SAFETY: no pointers are passed; a process that is gone gives an error that is harmless.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

/// Ends a process group at once (SIGKILL), named by its leader: everybody in it, also who was
/// started by a process that has ended. None of them can start another meanwhile.
pub fn kill_group(leader: u32) {
    // Numbers 0 and 1 would be the caller's own group and everybody.
    if let Some(leader) = libc::pid_t::try_from(leader).ok().filter(|&pid| pid > 1) {
        // SAFETY: no pointers are passed; a group that is gone gives an error that is harmless.
        unsafe { libc::killpg(leader, libc::SIGKILL) };
    }
}

/// Asks a child to end (SIGTERM). The caller must not have waited for it yet, so that the number
/// is still its own.
pub fn terminate(pid: u32) {
    if let Ok(pid) = libc::pid_t::try_from(pid) {
        // SAFETY: no pointers are passed; a process that is gone gives an error that is harmless.
        unsafe { libc::kill(pid, libc::SIGTERM) };
    }
}

/// Stops a child where it stands (SIGSTOP), until it is resumed. The caller has not waited for it.
pub fn pause(pid: u32) {
    if let Ok(pid) = libc::pid_t::try_from(pid) {
        // SAFETY: no pointers are passed; a process that is gone gives an error that is harmless.
        unsafe { libc::kill(pid, libc::SIGSTOP) };
    }
}

/// Lets a paused child go on (SIGCONT).
pub fn resume(pid: u32) {
    if let Ok(pid) = libc::pid_t::try_from(pid) {
        // SAFETY: no pointers are passed; a process that is gone gives an error that is harmless.
        unsafe { libc::kill(pid, libc::SIGCONT) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_never_goes_back() {
        let first = monotonic_ns();
        assert!(monotonic_ns() >= first);
    }

    #[test]
    fn a_threads_own_time_grows_as_it_works() {
        let first = thread_cpu_ns();
        let mut sum = 0_u64;
        while thread_cpu_ns() < first + 1_000_000 {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(sum > 0);
    }
}
