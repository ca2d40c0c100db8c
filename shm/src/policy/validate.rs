//! What a policy promises, checked where it is written and where it is read.

use super::Policy;
use crate::error::Error;

impl Policy {
    /// Checks every promise of the types' documentation.
    pub fn validate(&self) -> Result<(), Error> {
        unimplemented!()
    }
}
