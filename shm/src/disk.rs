//! The copy of the last policy on disk, from which a rebooted host serves before the control plane
//! is back.

use std::path::Path;

use crate::error::Error;
use crate::region::Stamp;

/// Writes `<dir>/policy`: a temporary file, synced, renamed over the old one.
pub fn save(_dir: &Path, _stamp: &Stamp, _payload: &[u8]) -> Result<(), Error> {
    unimplemented!()
}

/// Reads `<dir>/policy`; [`Error::Absent`] when there is none.
pub fn load(_dir: &Path) -> Result<(Stamp, Vec<u8>), Error> {
    unimplemented!()
}
