//! What tests of several instruments need.

use std::ffi::OsString;

use clap::{Args, Parser};

#[derive(Parser)]
struct Line<A: Args> {
    #[command(flatten)]
    args: A,
}

/// One instrument's arguments from a line, as the program reads them; the first word is its name.
pub(crate) fn parsed<A: Args>(line: impl IntoIterator<Item: Into<OsString> + Clone>) -> A {
    Line::parse_from(line).args
}
