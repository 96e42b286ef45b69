//! No line of Rust or C has more than 100 columns; and the check itself, on made-up sources.

use std::fs;
use std::path::Path;

use vsnoop_checks::{COLUMNS, long_lines, sources};

#[test]
fn no_line_is_too_long() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let sources = sources(&root).expect("the sources can be listed");
    assert!(sources.len() > 300, "these are not all: {sources:?}");
    let mut found = Vec::new();
    for path in &sources {
        let source = fs::read_to_string(path).expect("a source is UTF-8");
        let path = path.strip_prefix(&root).expect("it is below the root").display();
        let lines = long_lines(&source).into_iter();
        found.extend(lines.map(|(line, width)| format!("{path}:{line}: {width} columns")));
    }
    assert!(found.is_empty(), "lines with more than {COLUMNS} columns:\n{}", found.join("\n"));
}

#[test]
fn code_and_comments_count() {
    let long = "x".repeat(COLUMNS + 1);
    assert_eq!(long_lines(&format!("a\n{long}\n")), [(2, COLUMNS + 1)]);
    assert_eq!(long_lines(&format!("// \"{long}\"\n")), [(1, COLUMNS + 6)]);
    assert_eq!(long_lines(&format!("/* it's\n * \"{long} */")), [(2, COLUMNS + 8)]);
    assert_eq!(long_lines(&long[1..]), []);
}

#[test]
fn a_tab_has_eight_columns() {
    let rest = "x".repeat(COLUMNS - 8);
    assert_eq!(long_lines(&format!("\t{rest}\n  \t{rest}x\n")), [(2, COLUMNS + 1)]);
}

#[test]
fn the_text_of_string_literals_does_not_count() {
    let text = "x".repeat(COLUMNS);
    for literal in [
        format!("\"{text}\""),
        format!("\"a \\\" {text}\""),
        format!("\"a\n{text}\n\""),
        format!("r\"{text}\""),
        format!("br#\"a \" {text}\"#"),
    ] {
        let code = format!("let a = ('\"', 'b', '\\'', {literal});");
        assert_eq!(long_lines(&code), [], "{code}");
    }
}

#[test]
fn code_beside_string_literals_counts() {
    let code = "x".repeat(COLUMNS);
    for start in ["\"a\"; ", "'\"'; ", "&'a str; ", "r#type; ", "r#\"\"a\"#; "] {
        let line = format!("{start}{code}");
        assert_eq!(long_lines(&line).len(), 1, "{line}");
    }
}
