//! Bytes to policy.

use super::Policy;
use crate::error::Error;

impl Policy {
    /// Checked types from payload bytes.
    pub fn decode(_bytes: &[u8]) -> Result<Policy, Error> {
        unimplemented!()
    }
}
