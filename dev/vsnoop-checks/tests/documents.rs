//! Each document says for whom it is, links lead somewhere, and a figure stands once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use vsnoop_checks::{Language, root, sources};

/// Two screens.
const README_LINES: usize = 100;
/// Five tables.
const PERFORMANCE_LINES: usize = 150;
/// Lines at the top of a document, in which it names its readers.
const TOP_LINES: usize = 6;

struct Document {
    /// Below the root.
    path: PathBuf,
    text: String,
}

/// All documents, those of decisions as well.
fn documents() -> Vec<Document> {
    let root = root();
    let paths = sources(&root).expect("the sources can be listed").into_iter();
    let paths = paths.filter(|path| Language::from_path(path) == Some(Language::Markdown));
    let documents: Vec<_> = paths
        .map(|path| Document {
            text: fs::read_to_string(&path).expect("a document is UTF-8"),
            path: path.strip_prefix(&root).expect("it is below the root").to_owned(),
        })
        .collect();
    assert!(documents.len() > 40, "{} documents are not all", documents.len());
    documents
}

fn is_decision(document: &Document) -> bool {
    document.path.starts_with("docs/decisions") && !document.path.ends_with("README.md")
}

#[test]
fn each_document_says_for_whom_it_is() {
    let is_for = |line: &str| line.contains("For ") || line.starts_with("operators");
    let silent: Vec<_> = documents()
        .into_iter()
        .filter(|document| !is_decision(document))
        .filter(|document| !document.text.lines().take(TOP_LINES).any(is_for))
        .map(|document| document.path)
        .collect();
    assert!(silent.is_empty(), "their first {TOP_LINES} lines name no readers: {silent:?}");
}

#[test]
fn readme_and_performance_are_short() {
    for (name, most) in [("README.md", README_LINES), ("docs/performance.md", PERFORMANCE_LINES)] {
        let text = fs::read_to_string(root().join(name)).expect("a document");
        let lines = text.lines().count();
        assert!(lines <= most, "{name} has {lines} lines");
    }
}

/// Targets of `[text](target)`.
fn links(text: &str) -> Vec<&str> {
    let parts = text.split("](").skip(1);
    parts.filter_map(|part| part.split_once(')').map(|(target, _)| target)).collect()
}

/// The anchor that a forge makes of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut broken = Vec::new();
    for Document { path, text } in documents() {
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let here = root().join(&path);
            let target =
                if file.is_empty() { here } else { here.parent().expect("a file").join(file) };
            let is_there = match heading {
                "" => target.exists(),
                wanted => fs::read_to_string(&target).is_ok_and(|text| {
                    let mut headings = text.lines().filter(|line| line.starts_with('#'));
                    headings.any(|line| anchor(line.trim_start_matches('#').trim()) == wanted)
                }),
            };
            if !is_there {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links to nothing:\n{}", broken.join("\n"));
}

/// Numbers such as 286,717, which only a measurement gives.
fn figures(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_digit() && c != ',');
    let words = words.map(|word| word.trim_matches(','));
    let is_figure = |word: &&str| word.len() >= 6 && word.contains(',') && !word.ends_with("000");
    words.filter(is_figure).map(str::to_owned).collect()
}

#[test]
fn a_figure_stands_in_one_document() {
    let mut places = BTreeMap::<_, Vec<_>>::new();
    for document in documents() {
        // Decisions, the changelog and the notes of the lab have the figures of their day.
        let is_history = document.path.starts_with("dev/vsnoop-lab/notes")
            || document.path.ends_with("CHANGELOG.md");
        if is_decision(&document) || is_history {
            continue;
        }
        for figure in figures(&document.text) {
            let found_in = places.entry(figure).or_default();
            if !found_in.contains(&document.path) {
                found_in.push(document.path.clone());
            }
        }
    }
    places.retain(|_, documents| documents.len() > 1);
    // A size, not a measurement.
    places.remove("1,048,576");
    assert!(places.is_empty(), "these stand more than once: {places:#?}");
}

/// Rows of requests of the demo in a part of a document, with one space between words.
fn rows_of_requests(text: &str) -> Vec<String> {
    let rows = text.lines().filter(|line| line.starts_with("| PUT ") || line.starts_with("| GET "));
    let words = |row: &str| row.split_whitespace().collect::<Vec<_>>().join(" ");
    rows.map(|row| words(row).replace(" / ", "/")).collect()
}

#[test]
fn the_readme_has_the_table_that_the_demo_has_made() {
    const DEMO: &str = "\n## Uploads to a VM that is short of CPU\n";
    let text = |name: &str| fs::read_to_string(root().join(name)).expect("a document");
    let evaluation = text("docs/evaluation.md");
    let demo = evaluation.split(DEMO).nth(1).expect("a section of the demo");
    let demo = rows_of_requests(demo.split("\n## ").next().unwrap_or_default());
    assert!(!demo.is_empty(), "docs/evaluation.md has no table of the demo");
    assert_eq!(rows_of_requests(&text("README.md")), demo, "README.md and docs/evaluation.md");
}

#[test]
fn the_picture_of_crates_has_all_of_them() {
    let text = |name: &str| fs::read_to_string(root().join(name)).expect("a document");
    let table = text("docs/decisions/0023-crates.md");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.filter_map(|row| row.split_once('`')).map(|(name, _)| name.to_owned());
    // The others are directories.
    let crates: BTreeSet<_> = names.filter(|name| name.starts_with("vsnoop")).collect();
    let picture = text("docs/design/crates.svg");
    let drawn = picture.split(">vsnoop").skip(1).filter_map(|rest| rest.split_once('<'));
    let drawn: BTreeSet<_> = drawn.map(|(rest, _)| format!("vsnoop{rest}")).collect();
    assert_eq!(drawn, crates, "CRATES of scripts/pictures.py draws docs/design/crates.svg");
}
