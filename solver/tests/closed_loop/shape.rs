//! A history's format against what it holds. States and inputs are packed without their names, so that
//! a reader of another shape takes one number for another: whoever changes a field changes the format.

use std::collections::BTreeSet;
use std::fmt::Debug;

use pointsman_solver::history::segment::FORMAT;
use xxhash_rust::xxh3::xxh3_64;

use crate::fleet::Fleet;
use crate::scenarios::stage;

/// The format, and the hash of all names that a state and inputs of it have.
const KNOWN: (u32, u64) = (5, 10_117_065_365_003_372_631);

/// Fields by their ways from the outermost, in which places in lists and keys of maps are not told
/// apart.
fn fields(value: &impl Debug) -> BTreeSet<String> {
    let text = format!("{value:#?}");
    let mut way: Vec<&str> = Vec::new();
    let mut fields = BTreeSet::new();
    for line in text.lines() {
        let inner = line.trim_start();
        way.truncate((line.len() - inner.len()) / 4);
        let end = inner.find(|c: char| c != '_' && !c.is_ascii_alphanumeric());
        let (name, rest) = inner.split_at(end.unwrap_or(inner.len()));
        let is_field = rest.starts_with(": ") && name.starts_with(|c: char| c.is_ascii_lowercase());
        way.push(if is_field { name } else { "" });
        if is_field {
            fields.insert(way.join("/"));
        }
    }
    fields
}

#[test]
fn what_a_history_packs_has_the_shape_of_its_format() {
    let mut stage = stage(Fleet::default(), 1.0, 1);
    stage.keep = true;
    stage.run(60.0);
    let (inputs, _) = stage.kept.last().expect("passes");
    let (state, inputs) = (fields(&stage.state), fields(inputs));
    assert!(
        state.len() > 50 && inputs.len() > 30,
        "{state:?} {inputs:?}"
    );
    let all: Vec<String> = state.into_iter().chain(inputs).collect();
    let found = (FORMAT, xxh3_64(all.join("\n").as_bytes()));
    assert_eq!(
        found,
        KNOWN,
        "fields came, went or have another name: give the history another format, and say both here. \
         They are now\n{}",
        all.join("\n")
    );
}
