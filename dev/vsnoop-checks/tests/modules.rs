//! The modules of each crate of the workspace depend on each other in one direction only; and the
//! check itself, on made-up sources.

use std::fs;
use std::path::{Path, PathBuf};

use vsnoop_checks::{Circle, circles_of_file, circles_of_source, circles_of_test_program, crates};

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap_or_else(|e| panic!("{directory:?}: {e}"));
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

/// Roots of the test programs with several modules.
fn test_programs() -> Vec<PathBuf> {
    let directories = crates().into_iter().flat_map(|at| [at.join("tests"), at]);
    let directories = directories.filter(|at| at.ends_with("tests") && at.exists());
    let roots = directories.flat_map(|at| entries(&at)).map(|at| at.join("main.rs"));
    roots.filter(|root| root.exists()).collect()
}

fn assert_none(circles: impl Iterator<Item = Circle>) {
    let text: Vec<String> = circles.map(|circle| circle.join("\n")).collect();
    assert!(text.is_empty(), "circles, with an example of each arrow:\n\n{}", text.join("\n\n"));
}

#[test]
fn no_module_depends_on_one_that_depends_on_it() {
    let crates = crates().into_iter();
    let roots = crates.flat_map(|at| ["src/lib.rs", "src/main.rs"].map(|root| at.join(root)));
    let roots: Vec<_> = roots.filter(|root| root.exists()).collect();
    assert!(roots.len() > 15, "these are not all: {roots:?}");
    assert_none(roots.iter().flat_map(|root| circles_of_file(root)));
}

#[test]
fn no_module_of_a_test_program_depends_on_one_that_depends_on_it() {
    let roots = test_programs();
    assert!(roots.len() > 10, "these are not all: {roots:?}");
    assert_none(roots.iter().flat_map(|root| circles_of_test_program(root)));
}

/// The arrows of the only circle, `from -> to`.
fn circle(source: &str) -> Vec<String> {
    let circles = circles_of_source(source);
    assert_eq!(circles.len(), 1, "{circles:?}");
    circles[0].iter().map(|text| text.split(": ").next().unwrap_or(text).to_owned()).collect()
}

const BOTH: [&str; 2] = ["crate::a -> crate::b", "crate::b -> crate::a"];

#[test]
fn modules_that_name_each_other_are_a_circle() {
    for a in [
        "use crate::b::B; pub struct A;",
        "use super::b::{self}; pub struct A(b::B);",
        "use crate::b::*; pub struct A(B);",
        "pub struct A; impl A { fn f() { crate::b::B::new() } }",
        "pub struct A; fn f() { println!(\"{}\", crate::b::B::new()) }",
        "#[arg(value_parser = super::b::B)] pub struct A;",
        "pub use super::b::B; pub struct A;",
    ] {
        let source = format!("mod a {{ {a} }} mod b {{ use super::a::A; pub struct B; }}");
        assert_eq!(circle(&source), BOTH, "{a}");
    }
}

#[test]
fn a_circle_may_be_a_long_one() {
    let source = "mod a { use crate::b::B; pub struct A; } mod b { use crate::c::C; pub struct B; }
        mod c { use crate::a::A; pub struct C; } mod d { use crate::a::A; }";
    let long = ["crate::a -> crate::b", "crate::b -> crate::c", "crate::c -> crate::a"];
    assert_eq!(circle(source), long);
}

#[test]
fn a_reexport_hides_no_arrow() {
    let source = "mod a { use crate::B; pub struct A; } mod b { use crate::a::A; pub struct B; }
        pub use b::B;";
    assert_eq!(circle(source), BOTH);
}

#[test]
fn a_parent_whose_items_its_child_names_must_not_name_the_childs() {
    let source = "mod child { use super::P; pub struct C; } use child::C; pub struct P;";
    assert_eq!(circle(source), ["crate -> crate::child", "crate::child -> crate"]);
}

#[test]
fn what_points_one_way_is_no_circle() {
    for source in [
        "mod a { use crate::b::B; } mod b { pub struct B; }",
        // The parent passes on what its child defines.
        "pub use child::C; pub struct P; mod child { use super::P; pub struct C; }",
        // The one module gets an item of the other from their parent.
        "use b::B; mod a { use super::B; pub struct A; } mod b { pub struct B; } fn f(_: a::A) {}",
        "mod a { use crate::b::B; pub struct A; }
            mod b { pub struct B; #[cfg(test)] mod tests { use crate::a::A; } }",
        // The import names another crate.
        "mod a { use std::b::B; pub struct A; } mod b { use crate::a::A; pub struct B; }",
    ] {
        assert!(circles_of_source(source).is_empty(), "{source}");
    }
}
