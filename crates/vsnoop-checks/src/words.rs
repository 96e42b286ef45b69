//! Finds words that the project does not use: terms of its own where the field has one, and phrases
//! of comments that hide who acts.

use crate::lines::Language;

/// A term that is not used, and the field's term.
const TERMS: [(&str, &str); 18] = [
    ("bye", "close"),
    ("debt", "outstanding credit"),
    ("debts", "outstanding credit"),
    ("dialer", "initiator"),
    ("dialers", "initiators"),
    ("dialler", "initiator"),
    ("diallers", "initiators"),
    ("door", "divert tap"),
    ("farewell", "close"),
    ("lane", "connection"),
    ("lanes", "connections"),
    ("outlet", "peer sender"),
    ("owed", "offload state"),
    ("stranger", "unknown source"),
    ("strangers", "unknown sources"),
    ("tend", "keep-alive probe"),
    ("treatment", "compression policy"),
    ("watchman", "monitor"),
];

/// Phrases that comments avoid: name the subject, or the parameter.
const PHRASES: [&str; 6] = ["by turns", "nobody", "somebody", "so long", "so many", "whoever"];

/// An unwanted word: number of its line, from 1; the word; advice.
pub type Unwanted = (usize, &'static str, &'static str);

/// The unwanted words of a source.
pub fn unwanted_words(source: &str, language: Language) -> Vec<Unwanted> {
    let mut found = Vec::new();
    for (index, line) in source.lines().enumerate() {
        let words = words(line);
        let terms = TERMS.iter().filter(|(term, _)| words.iter().any(|word| word == term));
        found.extend(terms.map(|(term, instead)| (index + 1, *term, *instead)));
        let comment = match language {
            Language::RustOrC => comment(line),
            Language::Script | Language::Markdown => None,
        };
        let comment = comment.map(|text| format!(" {} ", self::words(text).join(" ")));
        let said = |phrase: &&&str| {
            comment.as_ref().is_some_and(|text| text.contains(&format!(" {phrase} ")))
        };
        found
            .extend(PHRASES.iter().filter(said).map(|said| (index + 1, *said, "name the subject")));
    }
    found
}

/// The words of a line, in lower case; of identifiers in snake or camel case, too.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in line.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        was_lower = c.is_lowercase();
        if c.is_alphanumeric() {
            words.last_mut().expect("there is one").extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The comment in a line of Rust or C: the whole line, or what follows `//` behind code.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start();
    if ["//", "/*", "* "].iter().any(|begin| text.starts_with(begin)) {
        return Some(text);
    }
    line.split_once(" // ").or_else(|| line.split_once(" /* ")).map(|(_, comment)| comment)
}
