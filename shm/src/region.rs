//! The kernel's side of region files: maps of words, the fault guard, and the few calls that the
//! standard library does not have. The only file of this crate with unsafe code.
//!
//! Readers and writers themselves are safe code in `region/`: what they touch is a slice of atomic
//! words, never bytes, because a `&[u8]` over memory that another process writes is a data race.

#![expect(
    unsafe_code,
    reason = "memory maps, a signal handler and bare system calls live here"
)]

pub(crate) mod content;
mod file;
pub(crate) mod header;
mod reader;
mod writer;

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Once, OnceLock};

use memmap2::{MmapOptions, MmapRaw};

pub(crate) use file::{NewFile, Temporary, check_folder, make_folder, open_region, same_file};
pub use reader::{Read, Reader};
pub use writer::{MAX_PAYLOAD_BYTES, PAUSE_NS, Writer};

use crate::atomic::{AtomicU64, Ordering};
use crate::error::Error;

/// Which region file of the two that the control plane writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `policy`: engines, routes, classes, weights, tables.
    Policy,
    /// `engines`: what engines were last seen to do.
    Engines,
}

/// What identifies a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Always rising, never 0.
    pub version: u64,
    /// Never falling.
    pub epoch: u64,
}

impl Kind {
    /// The file's name.
    #[must_use]
    pub const fn file_name(self) -> &'static str {
        match self {
            Kind::Policy => "policy",
            Kind::Engines => "engines",
        }
    }

    /// The header's word for it.
    const fn code(self) -> u64 {
        match self {
            Kind::Policy => header::KIND_POLICY,
            Kind::Engines => header::KIND_ENGINES,
        }
    }
}

/// The two buffers behind the header, equally long.
fn buffers(words: &[AtomicU64]) -> [&[AtomicU64]; 2] {
    let both = &words[header::HEADER_WORDS..];
    let (first, second) = both.split_at(both.len() / 2);
    [first, second]
}

/// Most maps of one process at one time.
const MAX_MAPS: usize = 1024;
/// `f_type` of the file systems that live in memory.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// A mapped region file: atomic words, registered with the fault guard while it lives.
#[derive(Debug)]
pub(crate) struct Map {
    raw: MmapRaw,
    guard: &'static Guarded,
}

impl Map {
    /// Maps exactly `bytes` of a file for reading. Words of such a map are only ever loaded.
    pub(crate) fn read_only(file: &File, path: &Path, bytes: usize) -> Result<Map, Error> {
        let raw = MmapOptions::new().len(bytes).map_raw_read_only(file);
        Map::register(raw.map_err(Error::io("cannot map", path))?, false)
    }

    /// Maps exactly `bytes` of a file for reading and writing.
    pub(crate) fn writable(file: &File, path: &Path, bytes: usize) -> Result<Map, Error> {
        let raw = MmapOptions::new().len(bytes).map_raw(file);
        Map::register(raw.map_err(Error::io("cannot map", path))?, true)
    }

    fn register(raw: MmapRaw, writable: bool) -> Result<Map, Error> {
        install_sigbus_guard();
        let guard = Guarded::claim(raw.as_ptr() as usize, raw.len(), writable)?;
        Ok(Map { raw, guard })
    }

    /// The file's words.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        let words = self.raw.len() / size_of::<AtomicU64>();
        // SAFETY: the map is page-aligned, `words` of it are inside, it lives as long as `self`,
        // and every party, in this process and in others, touches it through atomics only. A
        // file cut short under us gets zero pages from the fault guard, so loads stay possible.
        unsafe { std::slice::from_raw_parts(self.raw.as_ptr().cast::<AtomicU64>(), words) }
    }

    /// Whether a page of this map was lost and stands as zeroes.
    pub(crate) fn is_faulted(&self) -> bool {
        self.guard.faulted.load(Ordering::Acquire)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // Before the memory goes back to the kernel: its address may be somebody else's next.
        self.guard.release();
    }
}

// === impl Guarded ===

/// One map in the fault guard's list. The list is static because a signal handler reads it.
#[derive(Debug)]
struct Guarded {
    taken: AtomicBool,
    /// Start address, stored last and cleared first; 0 while the entry says nothing.
    start: AtomicUsize,
    bytes: AtomicUsize,
    writable: AtomicBool,
    faulted: AtomicBool,
}

static GUARDED: [Guarded; MAX_MAPS] = [const { Guarded::free() }; MAX_MAPS];

impl Guarded {
    const fn free() -> Guarded {
        Guarded {
            taken: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            writable: AtomicBool::new(false),
            faulted: AtomicBool::new(false),
        }
    }

    fn claim(start: usize, bytes: usize, writable: bool) -> Result<&'static Guarded, Error> {
        let free = |entry: &&Guarded| {
            let claim =
                entry
                    .taken
                    .compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed);
            claim.is_ok()
        };
        let entry = GUARDED
            .iter()
            .find(free)
            .ok_or(Error::TooManyRegions { limit: MAX_MAPS })?;
        entry.faulted.store(false, Ordering::Relaxed);
        entry.writable.store(writable, Ordering::Relaxed);
        entry.bytes.store(bytes, Ordering::Relaxed);
        entry.start.store(start, Ordering::Release);
        Ok(entry)
    }

    fn release(&self) {
        self.start.store(0, Ordering::Release);
        self.taken.store(false, Ordering::Release);
    }

    fn holds(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::Acquire);
        let bytes = self.bytes.load(Ordering::Relaxed);
        start != 0 && address.wrapping_sub(start) < bytes
    }
}

// === the fault guard ===

/// What the process did on SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);

/// Makes a region file that was cut short read as zeroes instead of killing the process.
///
/// The handler acts on faults inside maps of this crate only; every other SIGBUS goes to the
/// action that stood before. Opening a region file installs it too; call it early when another
/// library installs a handler of its own, since the last one installed is asked first.
pub fn install_sigbus_guard() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: sysconf has no preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        PAGE_BYTES.store(usize::try_from(page).unwrap_or(4096), Ordering::Relaxed);
        // SAFETY: both structures are plain data for which all zeroes is a value, and the pointers
        // are to live locals. The handler is async-signal-safe: see its own comment.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) != 0 {
                return;
            }
            // Known before the handler can run.
            let _ = BEFORE.set(before);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
        }
    });
}

/// Async-signal-safe: it loads static atomics and makes system calls, nothing else; it neither
/// allocates nor locks, and restores `errno`.
extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel hands a SA_SIGINFO handler valid pointers; errno's address is always
    // valid in a thread.
    unsafe {
        let errno = *libc::__errno_location();
        // A code above 0 is the kernel's own report of a fault; else a process sent the signal
        // and there is no address.
        let fault = (*info).si_code > 0;
        if !(fault && cover((*info).si_addr() as usize)) {
            hand_on(signal, info, context, fault);
        }
        *libc::__errno_location() = errno;
    }
}

/// Puts a page of zeroes where the fault was, if that is inside one of our maps.
fn cover(address: usize) -> bool {
    let Some(entry) = GUARDED.iter().find(|entry| entry.holds(address)) else {
        return false;
    };
    let page = PAGE_BYTES.load(Ordering::Relaxed);
    let write = if entry.writable.load(Ordering::Relaxed) {
        libc::PROT_WRITE
    } else {
        0
    };
    entry.faulted.store(true, Ordering::Release);
    // SAFETY: the page is inside a live map of ours: a thread that unmaps one releases its entry
    // first, and the faulting thread holds a borrow of the map while it touches it. Replacing a
    // file page by an anonymous one keeps the range mapped, and unmapping it later takes both.
    let mapped = unsafe {
        libc::mmap(
            (address & !(page - 1)) as *mut libc::c_void,
            page,
            libc::PROT_READ | write,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    mapped != libc::MAP_FAILED
}

/// Does what would have happened without us.
///
/// # Safety
/// The arguments are those of the handler that calls it.
unsafe fn hand_on(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    fault: bool,
) {
    let before = BEFORE.get();
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    let with_info = before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0);
    if handler == libc::SIG_IGN && !fault {
        return;
    }
    // SAFETY: a handler that is neither default nor ignore is a function of the type that its
    // flags say; the default action is set with a zeroed structure, as at installation.
    unsafe {
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
            if !fault {
                libc::raise(signal);
            }
            // A fault comes again when we return, and takes the default action.
        } else if with_info {
            type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            std::mem::transmute::<usize, Handler>(handler)(signal, info, context);
        } else {
            type Handler = extern "C" fn(libc::c_int);
            std::mem::transmute::<usize, Handler>(handler)(signal);
        }
    }
}

// === bare system calls ===

/// Nanoseconds since boot, suspended time included.
pub(crate) fn clock_boottime_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a live local.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) } != 0;
    // The call cannot fail: the clock is in every Linux that has io_uring, the pointer is good.
    assert!(!failed, "CLOCK_BOOTTIME is there");
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// The user this process acts as.
pub(crate) fn effective_uid() -> u32 {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() }
}

/// Gives every block of a new file to it, so that no later store can meet a full file system.
pub(crate) fn allocate_blocks(file: &File, path: &Path, bytes: u64) -> Result<(), Error> {
    let too_large = || Error::NoSpace {
        path: path.to_path_buf(),
        needed_bytes: bytes,
    };
    let len = libc::off_t::try_from(bytes).map_err(|_| too_large())?;
    // SAFETY: the descriptor is open for as long as `file` is borrowed.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) } {
        0 => Ok(()),
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Err(too_large()),
        code => {
            let source = std::io::Error::from_raw_os_error(code);
            Err(Error::io("cannot allocate", path)(source))
        }
    }
}

/// Whether a folder, or its nearest parent that exists, is on a file system in memory.
///
/// Region files elsewhere work, but every page that is written goes to a disk in time.
#[must_use]
pub fn is_tmpfs(dir: &Path) -> bool {
    let Some(there) = dir.ancestors().find(|parent| parent.exists()) else {
        return false;
    };
    let Ok(name) = CString::new(there.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: the structure is plain data for which all zeroes is a value; the name is terminated
    // and both pointers are to live locals.
    let kind = unsafe {
        let mut stats: libc::statfs = std::mem::zeroed();
        (libc::statfs(name.as_ptr(), &raw mut stats) == 0).then_some(stats.f_type)
    };
    kind.is_some_and(|kind| IN_MEMORY.contains(&(kind as u64)))
}

/// The run folder: the configured one; else `/run/pointsman`, where `/run` is in memory and the
/// folder is there or may be made; else `/dev/shm/pointsman-<uid>`.
#[must_use]
pub fn run_dir(configured: Option<&Path>) -> PathBuf {
    let system = Path::new("/run/pointsman");
    match configured {
        Some(dir) => dir.to_path_buf(),
        None if is_tmpfs(system) && (system.exists() || effective_uid() == 0) => {
            system.to_path_buf()
        }
        None => PathBuf::from(format!("/dev/shm/pointsman-{}", effective_uid())),
    }
}
