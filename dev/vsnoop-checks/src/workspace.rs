//! The crates of the workspace, and the product that each belongs to.

use std::fs;
use std::path::{Path, PathBuf};

/// The directories with crates. `cli` is one itself.
const PARTS: [&str; 6] = ["accel", "link", "shared", "cli", "dev", "dev/sim"];

/// The root of the source tree.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate is in dev/").to_owned()
}

/// The directories of all crates.
pub fn crates() -> Vec<PathBuf> {
    let parts = PARTS.map(|part| root().join(part));
    let children = parts.iter().flat_map(|part| {
        let entries = fs::read_dir(part).unwrap_or_else(|error| panic!("{part:?}: {error}"));
        entries.map(|entry| entry.expect("an entry").path())
    });
    let places = parts.iter().cloned().chain(children);
    let mut crates: Vec<_> = places.filter(|at| at.join("Cargo.toml").exists()).collect();
    crates.sort();
    crates
}

/// The part of the tree that has the crate in `directory`: `accel`, `link`, `shared`, `cli`, `dev`.
pub fn part_of(directory: &Path) -> &'static str {
    let below = directory.strip_prefix(root()).expect("it is below the root");
    let part = PARTS.into_iter().find(|part| below.starts_with(part));
    part.unwrap_or_else(|| panic!("{} is in none of {PARTS:?}", directory.display()))
}
