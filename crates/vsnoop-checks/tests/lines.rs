//! No line of the sources has more than 100 columns; and the check itself, on made-up sources.

use std::fs;
use std::path::Path;

use vsnoop_checks::{COLUMNS, Language, long_lines, sources};

#[test]
fn no_line_is_too_long() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let sources = sources(&root).expect("the sources can be listed");
    assert!(sources.len() > 300, "these are not all: {sources:?}");
    let mut found = Vec::new();
    for path in &sources {
        let source = fs::read_to_string(path).expect("a source is UTF-8");
        let language = Language::of(path).expect("a source has a language");
        let path = path.strip_prefix(&root).expect("it is below the root").display();
        let lines = long_lines(&source, language).into_iter();
        found.extend(lines.map(|(line, width)| format!("{path}:{line}: {width} columns")));
    }
    assert!(found.is_empty(), "lines with more than {COLUMNS} columns:\n{}", found.join("\n"));
}

fn in_rust(source: &str) -> Vec<(usize, usize)> {
    long_lines(source, Language::RustOrC)
}

#[test]
fn code_and_comments_count() {
    let long = "x".repeat(COLUMNS + 1);
    assert_eq!(in_rust(&format!("a\n{long}\n")), [(2, COLUMNS + 1)]);
    assert_eq!(in_rust(&format!("// \"{long}\"\n")), [(1, COLUMNS + 6)]);
    assert_eq!(in_rust(&format!("/* it's\n * \"{long} */")), [(2, COLUMNS + 8)]);
    assert_eq!(in_rust(&long[1..]), []);
}

#[test]
fn a_tab_has_eight_columns() {
    let rest = "x".repeat(COLUMNS - 8);
    assert_eq!(in_rust(&format!("\t{rest}\n  \t{rest}x\n")), [(2, COLUMNS + 1)]);
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
        assert_eq!(in_rust(&code), [], "{code}");
    }
}

#[test]
fn code_beside_string_literals_counts() {
    let code = "x".repeat(COLUMNS);
    for start in ["\"a\"; ", "'\"'; ", "&'a str; ", "r#type; ", "r#\"\"a\"#; "] {
        let line = format!("{start}{code}");
        assert_eq!(in_rust(&line).len(), 1, "{line}");
    }
}

#[test]
fn comments_of_scripts_count_and_quoted_text_does_not() {
    let (text, in_script) = ("x".repeat(COLUMNS), |source: &str| {
        long_lines(source, Language::Script).into_iter().map(|(line, _)| line).collect::<Vec<_>>()
    });
    assert_eq!(in_script(&format!("# it's {text}\n a = \"{text}\" # {text}\n")), [1, 2]);
    assert_eq!(in_script(&format!("a=${{b#\"{text}\"}}; c='\"{text}'; d=\"\\\" {text}\"\n")), []);
    assert_eq!(in_script(&format!("echo \"a\nb {text}\"\ncommand \"a\" {text}\n")), [3]);
}

#[test]
fn rows_headings_and_single_words_of_markdown_do_not_count() {
    let long = "x".repeat(COLUMNS);
    let in_markdown = |source: &str| long_lines(source, Language::Markdown);
    assert_eq!(in_markdown(&format!("| a | {long} |\n## a {long}\n  - [{long}](b)\n")), []);
    assert_eq!(in_markdown(&format!("a\n- b [{long}](b)\n")), [(2, COLUMNS + 9)]);
}
