//! Sources and documents use the field's terms; and the check itself, on made-up sources.

use std::fs;
use std::path::Path;

use vsnoop_checks::{Language, sources, unwanted_words};

/// Places that name the unwanted words: the list, its test, and the history.
const EXEMPT: [&str; 4] = [
    "CHANGELOG.md",
    "crates/vsnoop-checks/src/words.rs",
    "crates/vsnoop-checks/tests/words.rs",
    "docs/decisions",
];

#[test]
fn no_source_has_an_unwanted_word() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    for path in sources(&root).expect("the sources can be listed") {
        let source = fs::read_to_string(&path).expect("a source is UTF-8");
        let language = Language::of(&path).expect("a source has a language");
        let path = path.strip_prefix(&root).expect("it is below the root");
        if EXEMPT.iter().any(|exempt| path.starts_with(exempt)) {
            continue;
        }
        let words = unwanted_words(&source, language).into_iter();
        found.extend(words.map(|(line, word, instead)| {
            format!("{}:{line}: \"{word}\": {instead}", path.display())
        }));
    }
    assert!(found.is_empty(), "unwanted words:\n{}", found.join("\n"));
}

fn in_rust(source: &str) -> Vec<&'static str> {
    unwanted_words(source, Language::RustOrC).into_iter().map(|(_, word, _)| word).collect()
}

#[test]
fn terms_count_in_identifiers_and_text() {
    assert_eq!(
        in_rust("struct LaneState;\nlet of_strangers = 1; // a farewell"),
        ["lane", "farewell", "strangers"]
    );
    assert_eq!(in_rust("let planes = doorbell;"), [""; 0]);
}

#[test]
fn phrases_count_in_comments_only() {
    assert_eq!(in_rust("/// At most so many bytes.\nlet nobody = \"whoever\";"), ["so many"]);
    assert_eq!(in_rust(" * Nobody reads it.\nf(); /* by turns */"), ["nobody", "by turns"]);
    assert_eq!(unwanted_words("nobody", Language::Markdown), []);
}
