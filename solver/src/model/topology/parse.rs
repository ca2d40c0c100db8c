//! From text to checked types.

use super::{Topology, TopologyError};

pub(super) fn parse(file: &str, _text: &str) -> Result<Topology, TopologyError> {
    Err(TopologyError { file: file.to_owned(), line: 1, problem: "not yet".to_owned() })
}
