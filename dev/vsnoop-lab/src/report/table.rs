//! Tables: keys that divide the samples into tables and rows, and a template for each column.

use serde::Deserialize;

use super::scope::{Scope, Where};
use super::template::Template;
use crate::results::table::{NOT_MEASURED, Style, grid};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    title: Option<Template>,
    #[serde(default, rename = "where")]
    wanted: Where,
    /// Keys of which each combination has a table of its own.
    #[serde(default)]
    each: Vec<String>,
    /// Keys of which each combination is a row.
    #[serde(default)]
    rows: Vec<String>,
    /// Columns of words, before those of numbers.
    #[serde(default = "one")]
    words: usize,
    /// Header and template.
    columns: Vec<(String, Template)>,
    /// A column for each value of a key.
    across: Option<Across>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Across {
    key: String,
    head: Template,
    text: Template,
    /// Ascending by the key's number, and not in the order of the samples.
    #[serde(default)]
    sorted: bool,
}

fn one() -> usize {
    1
}

impl Table {
    pub fn render(&self, scope: &Scope, style: Style) -> Vec<String> {
        let tables = scope.filter(&self.wanted).split(&self.each);
        tables.iter().filter_map(|one| self.render_one(one, style)).collect()
    }

    /// Without rows and columns of which nothing was measured; `None` if only words are left.
    fn render_one(&self, scope: &Scope, style: Style) -> Option<String> {
        let across = self.across.as_ref().map(|across| across.parts(scope)).unwrap_or_default();
        let mut header: Vec<String> = self.columns.iter().map(|(head, _)| head.clone()).collect();
        header.extend(across.iter().map(|(_, head)| head.clone()));
        let mut measured = vec![false; header.len()];
        let mut rows = Vec::new();
        for row in scope.split(&self.rows) {
            let mut fields = Vec::new();
            let mut is_measured = Vec::new();
            for (_, text) in &self.columns {
                fields.push(text.render(&row));
                is_measured.push(text.is_measured(&row));
            }
            if let Some(Across { key, text, .. }) = &self.across {
                let parts = row.split(&[key]);
                for (value, _) in &across {
                    let part = parts.iter().find(|part| part.word(key).as_ref() == Some(value));
                    let measured = part.filter(|part| text.is_measured(part));
                    fields.push(measured.map_or(NOT_MEASURED.into(), |part| text.render(part)));
                    is_measured.push(measured.is_some());
                }
            }
            let words = self.words.min(is_measured.len());
            if is_measured[words..].contains(&true) {
                measured.iter_mut().zip(&is_measured).for_each(|(all, one)| *all |= one);
                rows.push(fields);
            }
        }
        measured[..self.words].fill(true);
        let kept = |fields: Vec<String>| -> Vec<String> {
            fields.into_iter().zip(&measured).filter_map(|(one, is)| is.then_some(one)).collect()
        };
        let header = kept(header);
        let header: Vec<_> = header.iter().map(String::as_str).collect();
        let rows: Vec<_> = rows.into_iter().map(kept).collect();
        if rows.is_empty() {
            return None;
        }
        let title = self.title.as_ref().map(|title| title.render(scope));
        let title = title.map(|title| match style {
            Style::Terminal => format!("{title}\n\n"),
            Style::Markdown => format!("### {title}\n\n"),
        });
        let table = grid(style, &header, self.words, rows);
        Some(format!("{}{table}", title.unwrap_or_default()))
    }
}

impl Across {
    /// Values of the key, and the heads of their columns.
    fn parts(&self, scope: &Scope) -> Vec<(String, String)> {
        let parts = scope.split(&[&self.key]).into_iter();
        let mut parts: Vec<_> = parts
            .filter_map(|part| Some((part.word(&self.key)?, self.head.render(&part))))
            .collect();
        if self.sorted {
            parts.sort_by_key(|(value, _)| value.parse::<u64>().unwrap_or(u64::MAX));
        }
        parts
    }
}
