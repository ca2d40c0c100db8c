//! System calls that the standard library does not offer; the crate's only unsafe code.

#![expect(
    unsafe_code,
    reason = "prctl, kill, tgkill and setrlimit have no safe form in std"
)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Lets the kernel kill the child when the thread that spawned it ends, however it ends: a test
/// that panics or is killed leaves no daemon behind.
pub fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: the closure calls only async-signal-safe functions and touches no shared memory.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have ended between fork and prctl.
            if u32::try_from(libc::getppid()) != Ok(parent) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
}

/// Sends `signal` to the process.
///
/// # Panics
/// When the kernel refuses: the process is gone, or not ours.
pub fn kill(pid: u32, signal: i32) {
    let pid = i32::try_from(pid).expect("a process id is positive");
    // SAFETY: plain system call on integers.
    let code = unsafe { libc::kill(pid, signal) };
    assert_eq!(
        code,
        0,
        "kill({pid}, {signal}): {}",
        io::Error::last_os_error()
    );
}

/// Sends `signal` to one thread of the process; `false` when the thread is gone.
#[must_use]
pub fn kill_thread(pid: u32, thread: u32, signal: i32) -> bool {
    // SAFETY: plain system call on integers.
    let code = unsafe {
        libc::syscall(
            libc::SYS_tgkill,
            libc::c_long::from(pid),
            libc::c_long::from(thread),
            signal,
        )
    };
    code == 0
}

/// Raises this process's limit of open files to the most it may have; children inherit it.
pub fn raise_file_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to a live, initialised struct.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the pointer is to a live, initialised struct.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}
