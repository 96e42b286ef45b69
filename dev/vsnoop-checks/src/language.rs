//! Measures how hard the prose of a document is to read: long sentences, asides and numbers.
//!
//! Prose is what remains of Markdown without tables, code blocks, headings and HTML comments. A
//! blank line or the mark of a list ends a paragraph, and a paragraph ends a sentence. Code in
//! backticks is one word, and of a link the text counts.

use std::fmt;

/// Mean length of a sentence in words.
const MEAN_WORDS: f64 = 16.0;
/// Nine of ten sentences have at most as many words.
const P90_WORDS: usize = 28;
/// Commas, semicolons and opening brackets of a sentence, on average.
const ASIDES: f64 = 1.3;
/// Numbers in 100 words.
const NUMBERS: f64 = 5.0;
/// Sentences that a report shows for each figure.
const SHOWN: usize = 5;
/// A full stop behind these ends no sentence.
const ABBREVIATIONS: [&str; 4] = ["e.g.", "i.e.", "etc.", "vs."];

/// A sentence, and the line of the document that its paragraph begins at, from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentence {
    pub line: usize,
    pub text: String,
}

impl Sentence {
    fn words(&self) -> usize {
        self.text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
    }

    fn asides(&self) -> usize {
        let ends_word = |word: &str| word.ends_with([',', ';']) || word.ends_with("),");
        let words = self.text.split_whitespace();
        words.map(|word| usize::from(ends_word(word)) + word.matches('(').count()).sum()
    }

    fn numbers(&self) -> usize {
        let is_number = |word: &&str| {
            word.contains(|c: char| c.is_ascii_digit()) && !word.contains(char::is_alphabetic)
        };
        self.text.split_whitespace().filter(is_number).count()
    }
}

/// Counts something in a sentence.
type Measure = fn(&Sentence) -> usize;

/// Figures of a document's prose.
pub struct Figures {
    sentences: Vec<Sentence>,
    mean_words: f64,
    p90_words: usize,
    asides: f64,
    numbers: f64,
}

impl Figures {
    /// A document without prose exceeds no limit.
    pub fn from_markdown(markdown: &str) -> Self {
        let sentences = sentences(markdown);
        let mut words: Vec<_> = sentences.iter().map(Sentence::words).collect();
        words.sort_unstable();
        let count = words.len().max(1) as f64;
        let all: usize = words.iter().sum();
        let asides: usize = sentences.iter().map(Sentence::asides).sum();
        let numbers: usize = sentences.iter().map(Sentence::numbers).sum();
        Self {
            mean_words: all as f64 / count,
            p90_words: words
                .get((words.len() * 9).div_ceil(10).saturating_sub(1))
                .map_or(0, |w| *w),
            asides: asides as f64 / count,
            numbers: 100.0 * numbers as f64 / all.max(1) as f64,
            sentences,
        }
    }

    /// Lists the figures that exceed a limit, each with the sentences that add most to it.
    pub fn faults(&self) -> Vec<String> {
        let mean_or_p90 = self.mean_words > MEAN_WORDS || self.p90_words > P90_WORDS;
        let parts: [(bool, &str, Measure); 3] = [
            (mean_or_p90, "words", Sentence::words),
            (self.asides > ASIDES, "commas, semicolons and brackets", Sentence::asides),
            (self.numbers > NUMBERS, "numbers", Sentence::numbers),
        ];
        let missed = parts.into_iter().filter(|(is_missed, ..)| *is_missed);
        missed.flat_map(|(_, what, measure)| self.worst(what, measure)).collect()
    }

    fn worst(&self, what: &str, measure: Measure) -> Vec<String> {
        let mut sentences: Vec<_> = self.sentences.iter().collect();
        sentences.sort_by_key(|sentence| std::cmp::Reverse(measure(sentence)));
        let shown = sentences.into_iter().take(SHOWN);
        shown
            .map(|sentence| {
                format!("line {}: {} {what}: {}", sentence.line, measure(sentence), sentence.text)
            })
            .collect()
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "{:.1} words in a sentence (at most {MEAN_WORDS}), nine of ten at most {} ({P90_WORDS}), \
             {:.2} commas, semicolons and brackets ({ASIDES}), {:.1} numbers in 100 words ({NUMBERS})",
            self.mean_words, self.p90_words, self.asides, self.numbers
        )
    }
}

/// The sentences of a document in Markdown, without its marks.
pub fn sentences(markdown: &str) -> Vec<Sentence> {
    let mut sentences = Vec::new();
    for (line, paragraph) in paragraphs(markdown) {
        let mut text = String::new();
        for word in plain(&paragraph).split_whitespace() {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(word);
            let ends = word.trim_end_matches([')', '"', '*', '_']).ends_with(['.', '!', '?']);
            if ends && !ABBREVIATIONS.contains(&word) {
                sentences.push(Sentence { line, text: std::mem::take(&mut text) });
            }
        }
        if !text.is_empty() {
            sentences.push(Sentence { line, text });
        }
    }
    sentences.retain(|sentence| sentence.words() > 0);
    sentences
}

/// Paragraphs and items of lists, with the number of their first line.
fn paragraphs(markdown: &str) -> Vec<(usize, String)> {
    let mut paragraphs: Vec<(usize, String)> = Vec::new();
    let (mut is_code, mut is_comment, mut goes_on) = (false, false, false);
    for (index, line) in markdown.lines().enumerate() {
        let text = line.trim();
        if text.starts_with("```") {
            is_code = !is_code;
        }
        is_comment |= text.starts_with("<!--");
        let is_prose = !is_code
            && !is_comment
            && !text.is_empty()
            && !["#", "|", "```", "["]
                .iter()
                .any(|mark| text.starts_with(mark) && (*mark != "[" || text.contains("]: ")));
        if text.ends_with("-->") {
            is_comment = false;
        }
        let item = item(text);
        match paragraphs.last_mut() {
            Some((_, paragraph)) if is_prose && goes_on && item.is_none() => {
                paragraph.push(' ');
                paragraph.push_str(text);
            }
            _ if is_prose => paragraphs.push((index + 1, item.unwrap_or(text).to_owned())),
            _ => {}
        }
        goes_on = is_prose;
    }
    paragraphs
}

/// The text behind the mark of a list.
fn item(line: &str) -> Option<&str> {
    let unordered = ["- ", "* "].iter().find_map(|mark| line.strip_prefix(mark));
    let behind_digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
    unordered.or_else(|| behind_digits.strip_prefix(". ").filter(|_| behind_digits != line))
}

/// Text with `code` as one word, links as their text, and no emphasis.
fn plain(paragraph: &str) -> String {
    let mut text = String::new();
    for (index, part) in paragraph.split('`').enumerate() {
        text.push_str(if index % 2 == 1 { "code" } else { part });
    }
    let mut plain = String::new();
    let mut parts = text.split("](");
    plain.push_str(parts.next().unwrap_or_default());
    for part in parts {
        plain.push_str(part.split_once(')').map_or(part, |(_, behind)| behind));
    }
    plain.replace(['[', ']', '*'], "")
}
