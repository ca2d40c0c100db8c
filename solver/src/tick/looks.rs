//! What proxies were offered since the last pass, as counts and the time they cover.
//!
//! Not averages: how much of the past a decision should remember is decided in a pass
//! ([`super::forecast`]), so that a replay decides the same. What was not measured has no entry; an
//! entry of 0 says that nothing came.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::topology::{ClassId, FrontendId};

/// What proxies were offered since the last pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Looks {
    /// First attempts offered; shed ones count, retries do not.
    pub offered: BTreeMap<(FrontendId, ClassId), Offered>,
}

/// First attempts that one frontend offered of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Offered {
    /// Time that the count covers, seconds.
    pub length_s: f64,
    /// Requests.
    pub count: u64,
}
