//! Finds lines that are too long, of Rust and C, shell, TOML and Markdown. rustfmt and clang-format
//! leave comments, macros and many attributes as they are, so neither of them finds all.
//!
//! The text of string literals does not count: a message, or a row of a table that is printed, need
//! not be cut where the source ends. The quotes count, and so does the code beside them. Nor do
//! lines of Markdown count that cannot be wrapped: rows of tables, headings, and a single word (a
//! link, say).

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Columns of a line at most: `max_width` of rustfmt.toml, `ColumnLimit` of .clang-format.
pub const COLUMNS: usize = 100;
/// Columns of a tab, as the kernel writes C.
const TAB: usize = 8;

/// The language of a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    RustOrC,
    /// Shell or TOML.
    Script,
    Markdown,
}

impl Language {
    /// That of a file, by its name.
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "rs" | "c" | "h" => Some(Self::RustOrC),
            "sh" | "toml" => Some(Self::Script),
            "md" => Some(Self::Markdown),
            _ => None,
        }
    }
}

/// Lines with more than [`COLUMNS`] columns: number, from 1, and width.
pub fn long_lines(source: &str, language: Language) -> Vec<(usize, usize)> {
    let chars: Vec<char> = source.chars().collect();
    let uncounted = match language {
        Language::RustOrC => string_text(&chars),
        Language::Script => quoted_text(&chars),
        Language::Markdown => unwrappable_lines(source),
    };
    let mut widths = vec![0];
    for (c, is_text) in chars.iter().zip(uncounted) {
        let line = widths.len() - 1;
        match c {
            '\n' => widths.push(0),
            '\t' => widths[line] += TAB - widths[line] % TAB,
            _ => widths[line] += usize::from(!is_text),
        }
    }
    let lines = widths.into_iter().enumerate().map(|(index, width)| (index + 1, width));
    lines.filter(|(_, width)| *width > COLUMNS).collect()
}

/// The sources below a directory, without those of builds, results of runs and hidden directories.
pub fn sources(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type()?.is_dir() {
            let is_source = directory.ends_with("src");
            let is_built =
                !is_source && ["target", "build", "results"].iter().any(|one| name == *one);
            if !is_built && !name.to_string_lossy().starts_with('.') {
                found.extend(sources(&path)?);
            }
        } else if Language::of(&path).is_some() {
            found.push(path);
        }
    }
    Ok(found)
}

/// Which characters are the text of a string literal, without its quotes?
fn string_text(source: &[char]) -> Vec<bool> {
    let mut is_text = vec![false; source.len()];
    let mut at = 0;
    while at < source.len() {
        let rest = &source[at..];
        let len = match rest {
            ['/', '/', ..] => end_of(rest, 2, &['\n']),
            ['/', '*', ..] => end_of(rest, 2, &['*', '/']),
            ['\'', '\\', ..] => end_of(rest, 3, &['\'']),
            ['\'', _, '\'', ..] => 3,
            ['"', ..] => end_of_string(rest),
            ['r', '"' | '#', ..] => end_of_raw_string(rest),
            _ => 1,
        };
        if len > 1 && matches!(rest[0], '"' | 'r') {
            is_text[at + 1..at + len - 1].fill(true);
        }
        at += len;
    }
    is_text
}

/// The same of shell and TOML, where a comment begins with # after a blank.
fn quoted_text(source: &[char]) -> Vec<bool> {
    let mut is_text = vec![false; source.len()];
    let mut at = 0;
    while at < source.len() {
        let rest = &source[at..];
        let is_comment = rest[0] == '#' && (at == 0 || source[at - 1].is_whitespace());
        let len = match rest[0] {
            '#' if is_comment => end_of(rest, 1, &['\n']),
            '\\' => 2.min(rest.len()),
            '"' => end_of_string(rest),
            '\'' => end_of(rest, 1, &['\'']),
            _ => 1,
        };
        if len > 1 && matches!(rest[0], '"' | '\'') {
            is_text[at + 1..at + len - 1].fill(true);
        }
        at += len;
    }
    is_text
}

/// Which characters of Markdown are of lines that cannot be wrapped?
fn unwrappable_lines(source: &str) -> Vec<bool> {
    let of_line = |line: &str| {
        let words = line.split_whitespace().filter(|word| !matches!(*word, "-" | "*" | ">"));
        let is_alone = line.trim_start().starts_with(['|', '#']) || words.count() <= 1;
        std::iter::repeat_n(is_alone, line.chars().count())
    };
    source.split_inclusive('\n').flat_map(of_line).collect()
}

/// Length up to the end of the first `mark` from index `from` on.
fn end_of(rest: &[char], from: usize, mark: &[char]) -> usize {
    let found = (from..rest.len()).find(|at| rest[*at..].starts_with(mark));
    found.map_or(rest.len(), |at| at + mark.len())
}

fn end_of_string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != '"' {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// 1 for an identifier such as `r#type`.
fn end_of_raw_string(rest: &[char]) -> usize {
    let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return 1;
    }
    let mark: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    end_of(rest, 2 + hashes, &mark)
}
