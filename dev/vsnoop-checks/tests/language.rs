//! Documents are plain English: short sentences, few asides and few numbers outside of tables.

use std::fs;

use vsnoop_checks::{Figures, Language, root, sentences, sources};

/// Places that are read: files and directories below the root.
const READ: [&str; 3] = ["README.md", "CONTRIBUTING.md", "docs"];
/// A decision has the words of its day; the lab writes the evaluation.
const EXEMPT: [&str; 2] = ["docs/decisions", "docs/evaluation.md"];

/// Figures of each document that is read, with its path below the root.
fn read() -> Vec<(String, Figures)> {
    let root = root();
    let mut read = Vec::new();
    for path in sources(&root).expect("the sources can be listed") {
        let place = path.strip_prefix(&root).expect("it is below the root");
        let is_below = |names: &[&str]| names.iter().any(|name| place.starts_with(name));
        let is_document = Language::from_path(&path) == Some(Language::Markdown);
        if is_document && is_below(&READ) && !is_below(&EXEMPT) {
            let text = fs::read_to_string(&path).expect("a document is UTF-8");
            read.push((place.display().to_string(), Figures::from_markdown(&text)));
        }
    }
    read
}

#[test]
fn documents_are_plain_english() {
    let mut faults = Vec::new();
    for (place, figures) in read() {
        println!("{place}: {figures}");
        let found = figures.faults();
        if !found.is_empty() {
            faults.push(format!("{place}: {figures}\n  {}", found.join("\n  ")));
        }
    }
    assert!(faults.is_empty(), "to write again, the worst sentences first:\n{}", faults.join("\n"));
}

fn texts(markdown: &str) -> Vec<String> {
    sentences(markdown).into_iter().map(|sentence| sentence.text).collect()
}

#[test]
fn a_list_and_a_paragraph_end_a_sentence_and_a_line_does_not() {
    let markdown =
        "One\nline. And (so.) Another\n\nparagraph:\n- an item,\n  its rest\n1. a number";
    assert_eq!(
        texts(markdown),
        ["One line.", "And (so.)", "Another", "paragraph:", "an item, its rest", "a number"]
    );
}

#[test]
fn tables_code_headings_and_comments_do_not_count() {
    let markdown = "# A title.\n| a | b |\n```sh\nmake\n```\n<!-- one\ntwo -->\n[x]: y.md\nA text.";
    let found = sentences(markdown);
    assert_eq!(texts(markdown), ["A text."]);
    assert_eq!(found[0].line, 9);
}

#[test]
fn code_is_a_word_and_a_link_its_text() {
    assert_eq!(
        texts("Call `f(a, b); g. h` *or* [read, e.g. this](a.md#b)."),
        ["Call code or read, e.g. this."]
    );
}

#[test]
fn each_figure_that_is_too_large_is_named_with_its_sentences() {
    let faults = |text: &str| Figures::from_markdown(text).faults().join("\n");
    let long = "word ".repeat(17);
    assert_eq!(
        faults(
            "A short sentence. Another one, with IPv4 and an x86-64 CPU that takes 20 ms of the time that was left to it."
        ),
        ""
    );
    assert!(faults(&long).contains("line 1: 17 words: word word"));
    assert!(faults("One, two (three), and four; five.").contains("4 commas"));
    assert!(faults("It took 20 ms.").contains("1 numbers: It took 20 ms."));
    // Nine short sentences and one long one have a good mean; with two, one of ten is too long.
    let mixed = |long: usize| "A b c. ".repeat(10 - long) + &("w ".repeat(29) + ". ").repeat(long);
    assert_eq!(faults(&mixed(1)), "");
    assert!(faults(&mixed(2)).contains("29 words"));
}
