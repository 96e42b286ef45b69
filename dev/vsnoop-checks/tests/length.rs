//! Files of what ships are short.

use std::fs;
use std::path::Path;
use std::process::Command;

use vsnoop_checks::root;

const MOST_LINES: usize = 500;
/// What ships, and what is no product of its own: tests, and the ends and networks of simulations.
const SHIPS: [&str; 4] = ["accel", "link", "shared", "cli"];
const TESTS: [&str; 3] = ["/tests", "/testing/", "/simulation.rs"];

/// Lines before the unit tests of the file.
fn lines(text: &str) -> usize {
    let product =
        text.split_once("\n#[cfg(test)]\nmod tests {").map_or(text, |(product, _)| product);
    product.lines().count()
}

#[test]
fn no_product_file_has_more_than_500_lines() {
    let output = Command::new("git").arg("ls-files").args(SHIPS).current_dir(root()).output();
    let listed = String::from_utf8(output.expect("git lists files").stdout).expect("names");
    let is_source = |name: &&str| {
        Path::new(name).extension().is_some_and(|it| it == "rs" || it == "c" || it == "h")
    };
    let files: Vec<_> = listed
        .lines()
        .filter(is_source)
        .filter(|name| !TESTS.iter().any(|part| name.contains(part)))
        .map(|name| (lines(&fs::read_to_string(root().join(name)).unwrap_or_default()), name))
        .collect();
    assert!(files.len() > 300, "these are not all: {}", files.len());
    let long: Vec<_> = files.iter().filter(|(count, _)| *count > MOST_LINES).collect();
    assert!(long.is_empty(), "{long:?}");
}

#[test]
fn unit_tests_do_not_count() {
    assert_eq!(lines("a\nb\n#[cfg(test)]\nmod tests {\n}\n"), 2);
    assert_eq!(lines("a\n#[cfg(test)]\nmod tests;\n"), 3);
}
