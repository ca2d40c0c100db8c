//! The one clock of region files: nanoseconds since boot, suspended time included, with the boot
//! it belongs to.
//!
//! Wall-clock time jumps and differs between hosts, and CLOCK_MONOTONIC stands still while a
//! machine sleeps, so neither can tell how old a heartbeat is. A time of another boot has no
//! relation to ours: it is infinitely old.

use std::fmt;
use std::fs;

use crate::error::Error;

/// Which boot of the kernel a time belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BootId(pub [u8; 16]);

/// Nanoseconds since boot (CLOCK_BOOTTIME).
#[must_use]
pub fn boottime_ns() -> u64 {
    crate::region::clock_boottime_ns()
}

impl BootId {
    /// The boot that runs now.
    pub fn current() -> Result<BootId, Error> {
        let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_err(|e| Error::BootId { why: e.to_string() })?;
        BootId::parse(text.trim())
    }

    /// Reads the kernel's form: 32 hex digits with hyphens anywhere between them.
    pub fn parse(text: &str) -> Result<BootId, Error> {
        let bad = || Error::BootId {
            why: format!("{text:?} is not a UUID"),
        };
        let digits: Vec<u8> = text
            .chars()
            .filter(|c| *c != '-')
            .map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok()))
            .collect::<Option<_>>()
            .ok_or_else(bad)?;
        if digits.len() != 32 {
            return Err(bad());
        }
        let mut id = [0u8; 16];
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Ok(BootId(id))
    }

    /// The id as the two words that a header holds.
    pub(crate) fn words(self) -> [u64; 2] {
        let (low, high) = self.0.split_at(8);
        let word = |half: &[u8]| {
            half.iter()
                .rev()
                .fold(0u64, |acc, byte| acc << 8 | u64::from(*byte))
        };
        [word(low), word(high)]
    }

    /// The id from a header's two words.
    pub(crate) fn from_words(words: [u64; 2]) -> BootId {
        let mut id = [0u8; 16];
        id[..8].copy_from_slice(&words[0].to_le_bytes());
        id[8..].copy_from_slice(&words[1].to_le_bytes());
        BootId(id)
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BootId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_id_survives_its_words_and_its_text() {
        let id = BootId::parse("e97fdc2e-221c-4cbb-b2d4-c1be5770a86f").unwrap();
        assert_eq!(id.0[0], 0xe9);
        assert_eq!(id.0[15], 0x6f);
        assert_eq!(BootId::from_words(id.words()), id);
        assert_eq!(id.to_string(), "e97fdc2e221c4cbbb2d4c1be5770a86f");
        assert_eq!(BootId::parse(&id.to_string()).unwrap(), id);
        assert!(BootId::parse("e97f").is_err());
        assert!(BootId::parse("zz7fdc2e-221c-4cbb-b2d4-c1be5770a86f").is_err());
    }

    #[test]
    fn the_clock_rises_and_the_boot_stays() {
        let first = boottime_ns();
        assert!(first > 0);
        assert!(boottime_ns() >= first);
        assert_eq!(BootId::current().unwrap(), BootId::current().unwrap());
    }
}
