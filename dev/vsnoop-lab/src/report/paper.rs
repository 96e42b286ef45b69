//! Figures of papers, and sentences about the samples.

use anyhow::Result;
use serde::Deserialize;

use super::scope::{Scope, Where};
use super::template::Template;
use crate::results::Results;

/// A figure or table of a paper that an experiment repeats.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// `vSnoop report, Fig. 1(a)`.
    pub figure: String,
    pub shape: String,
    /// Numbers that it gives, as far as it gives any.
    #[serde(default)]
    pub values: Vec<PaperValue>,
    /// The plot that is like the figure, if there is a single one.
    pub plot: Option<String>,
    /// How the samples differ.
    pub difference: Option<Sentence>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperValue {
    pub name: String,
    /// Where it stands on the figure's x axis.
    pub x: Option<f64>,
    pub value: f64,
    pub unit: String,
}

impl Paper {
    /// `None` if there are too few samples.
    pub fn difference(&self, results: &Results) -> Option<String> {
        self.difference.as_ref()?.render(results)
    }
}

/// A text about all samples, with `$items` for what it says of each group of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sentence {
    text: String,
    #[serde(default, rename = "where")]
    wanted: Where,
    /// Keys of the items.
    #[serde(default)]
    each: Vec<String>,
    item: Option<Template>,
    #[serde(default = "comma")]
    between: String,
}

fn comma() -> String {
    ", ".to_owned()
}

impl Sentence {
    pub fn render(&self, results: &Results) -> Option<String> {
        let scope = Scope::new(results).filter(&self.wanted);
        let mut text = self.text.clone();
        if let Some(item) = &self.item {
            let parts = scope.split(&self.each);
            let items: Vec<_> = parts.iter().filter_map(|part| item.render_all(part)).collect();
            if items.is_empty() {
                return None;
            }
            text = text.replace("$items", &items.join(&self.between));
        }
        // A test parses each of them.
        Template::parse(text.trim()).ok()?.render_all(&scope)
    }

    pub fn check(&self) -> Result<()> {
        Template::parse(&self.text).map(drop)
    }
}
