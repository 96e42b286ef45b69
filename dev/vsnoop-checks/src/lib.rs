//! Checks of sources: the modules of a crate depend on each other in one direction only, and
//! documents are plain English (`language`). For tests only.
//!
//! `modules` parses a crate and knows where a path leads, `arrows` finds which module names
//! something of which other one, and here circles of these are found. There is an arrow from module
//! A to module B if A names an item that B defines: in a `use`, in code, or among the tokens of a
//! macro. The path is followed through every `use` to the module that defines the item. So a
//! re-export hides nothing, and a parent that only passes on what its child defines is not meant
//! itself. No arrows are:
//! - a `pub use` of what A's own child defines: a signpost for others, and no use of A's;
//! - `mod`, and a path that leads to a module alone;
//! - what stands under `#[cfg(test)]`.

mod arrows;
mod language;
mod modules;
mod sources;
mod workspace;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use arrows::{Arrow, arrows};
use modules::Tree;

pub use language::{Figures, sentences};
pub use sources::{Language, sources};
pub use workspace::{crates, part_of, root};

/// An example of each arrow of a circle: the naming module, the named item and the line.
pub type Circle = Vec<String>;

/// The circles in the crate with this root (`lib.rs`, `main.rs`).
pub fn circles_of_file(root: &Path) -> Vec<Circle> {
    let tree = Tree::read(root);
    circles(&tree, &arrows(&tree))
}

/// Finds the circles of a test program (`main.rs`). Arrows from a module to its children do not
/// count: it lists their tests, and they use what it defines for all.
pub fn circles_of_test_program(root: &Path) -> Vec<Circle> {
    let tree = Tree::read(root);
    let is_parent = |arrow: &Arrow| tree.modules[arrow.to].parent == arrow.from;
    let arrows: Vec<_> = arrows(&tree).into_iter().filter(|arrow| !is_parent(arrow)).collect();
    circles(&tree, &arrows)
}

/// Finds the circles of a crate that is one string: a module in braces is like one with a file.
pub fn circles_of_source(source: &str) -> Vec<Circle> {
    let tree = Tree::parse(source);
    circles(&tree, &arrows(&tree))
}

/// Two modules are in one circle if each can be reached from the other (the strongly connected
/// components of the graph).
fn circles(tree: &Tree, arrows: &[Arrow]) -> Vec<Circle> {
    let reached: Vec<_> = (0..tree.modules.len()).map(|from| reached(from, arrows)).collect();
    let is_one = |a: usize, b: usize| reached[a].contains(&b) && reached[b].contains(&a);
    // By the first module of a circle, then by the two that an arrow joins.
    let mut circles: BTreeMap<_, BTreeMap<_, String>> = BTreeMap::new();
    for Arrow { from, to, text } in arrows.iter().filter(|arrow| is_one(arrow.from, arrow.to)) {
        let first = (0..*from).find(|other| is_one(*other, *from)).unwrap_or(*from);
        circles.entry(first).or_default().entry((from, to)).or_insert_with(|| text.clone());
    }
    circles.into_values().map(|circle| circle.into_values().collect()).collect()
}

fn reached(from: usize, arrows: &[Arrow]) -> BTreeSet<usize> {
    let (mut reached, mut rest) = (BTreeSet::new(), vec![from]);
    while let Some(from) = rest.pop() {
        let next = arrows.iter().filter(|arrow| arrow.from == from).map(|arrow| arrow.to);
        rest.extend(next.filter(|to| reached.insert(*to)));
    }
    reached
}
