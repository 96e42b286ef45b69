//! The documents have what the definitions have: commands, options, keys of configurations.

mod command;
#[cfg(feature = "link")]
mod link;
mod service;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("docs/{name}: {error}"))
}

/// The first words between backticks: of `` `bridge = "br0"` `` the key.
fn quoted(text: &str) -> BTreeSet<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter_map(|text| text.split_whitespace().next()).map(str::to_owned).collect()
}

/// The keys that a table has, of the error about one that it has not.
fn allowed(error: &str) -> BTreeSet<String> {
    let (_, expected) = error.split_once("expected").unwrap_or_else(|| panic!("{error}"));
    // After the list stands the line, in backticks as well.
    quoted(expected.split(", in `").next().unwrap_or_default())
}

/// The rows of the tables whose first lines begin like this.
fn rows<'a>(text: &'a str, header: &str) -> Vec<Vec<&'a str>> {
    let header = format!("\n\n{header}");
    let tables = text.split(header.as_str()).skip(1);
    // Behind the header stands a line of dashes.
    let lines = tables.flat_map(|table| table.lines().skip(2).take_while(|l| l.starts_with('|')));
    lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}
