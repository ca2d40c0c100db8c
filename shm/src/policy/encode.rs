//! Policy to bytes.

use super::Policy;

impl Policy {
    /// The payload bytes. The policy must be valid ([`Policy::validate`]).
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        unimplemented!()
    }
}
