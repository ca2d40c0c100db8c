//! io_uring's ring: which flags to ask for, whether it works here, what to try when it does not.

#![expect(
    unsafe_code,
    reason = "pushing an entry is unsafe for entries with pointers"
)]

use std::io;

use io_uring::{IoUring, opcode};

/// The shape of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlan {
    /// Submission entries.
    pub entries: u32,
    /// Flags.
    pub flags: Flags,
}

/// How much a ring may assume, from the newest kernel to the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flags {
    /// One thread submits, and completions are worked off when it waits for them and at no other
    /// time (Linux 6.1). So no task may go on for ever without waiting for the ring.
    DeferTaskrun,
    /// One thread submits (Linux 6.0), and completions do not interrupt it.
    SingleIssuer,
    /// Completions do not interrupt the thread (Linux 5.19).
    CoopTaskrun,
    /// None.
    None,
}

/// Entries of a ring at first; halved where the kernel lacks memory for it.
const ENTRIES: u32 = 1_024;
/// Smallest ring, monoio's own minimum.
const ENTRIES_FLOOR: u32 = 256;
const _: () = assert!(ENTRIES >= ENTRIES_FLOOR);
/// Entries of the ring that a probe makes and drops.
const PROBE_ENTRIES: u32 = 4;

impl RingPlan {
    /// What to try before anything else.
    #[must_use]
    pub fn first() -> Self {
        Self {
            entries: ENTRIES,
            flags: Flags::DeferTaskrun,
        }
    }

    /// The builder that monoio takes.
    #[must_use]
    pub fn builder(self) -> io_uring::Builder {
        let mut builder = IoUring::builder();
        match self.flags {
            Flags::DeferTaskrun => builder.setup_single_issuer().setup_defer_taskrun(),
            Flags::SingleIssuer => builder.setup_single_issuer().setup_coop_taskrun(),
            Flags::CoopTaskrun => builder.setup_coop_taskrun(),
            Flags::None => &mut builder,
        };
        builder
    }

    /// Proves on this thread that a ring with these flags completes an operation: some sandboxes
    /// let a ring be made and refuse to run it.
    ///
    /// # Errors
    /// What the kernel answered.
    pub fn probe(self) -> io::Result<()> {
        let mut ring = self.builder().build(PROBE_ENTRIES)?;
        let entry = opcode::Nop::new().build();
        // SAFETY: a no-op refers to no memory, so nothing must outlive its submission.
        let pushed = unsafe { ring.submission().push(&entry) };
        pushed.map_err(|_| io::Error::other("a fresh ring has no room for one entry"))?;
        ring.submit_and_wait(1)?;
        match ring.completion().next() {
            Some(completion) if completion.result() < 0 => {
                Err(io::Error::from_raw_os_error(-completion.result()))
            }
            Some(_) => Ok(()),
            None => Err(io::Error::other("a no-op did not complete")),
        }
    }

    /// What to try after the kernel answered `error`; `None` when no ring will do.
    #[must_use]
    pub fn next_after(self, error: &io::Error) -> Option<Self> {
        match (error.raw_os_error(), self.flags) {
            (Some(libc::EINVAL), Flags::DeferTaskrun) => Some(Self {
                flags: Flags::SingleIssuer,
                ..self
            }),
            (Some(libc::EINVAL), Flags::SingleIssuer) => Some(Self {
                flags: Flags::CoopTaskrun,
                ..self
            }),
            (Some(libc::EINVAL), Flags::CoopTaskrun) => Some(Self {
                flags: Flags::None,
                ..self
            }),
            (Some(libc::ENOMEM), _) if self.entries / 2 >= ENTRIES_FLOOR => Some(Self {
                entries: self.entries / 2,
                ..self
            }),
            _ => None,
        }
    }
}
