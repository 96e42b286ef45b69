//! Reports as experiments/*.toml declare them: tables, figures, plots and sentences, made of the
//! samples of a result.
//!
//! A [`Template`] is a text with expressions over the samples of a [`Scope`]. Keys divide the
//! samples into a table each, a row each, a figure each or a curve each. A figure's name, a plot's
//! title and a column are templates, too.

mod expression;
mod goals;
mod markdown;
mod paper;
mod plot;
mod scope;
mod table;
mod template;
mod vary;
pub mod wrap;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde::Deserialize;

use crate::results::table::Style;
use crate::results::{Figure, Results, table as grids};
use expression::Expression;
use goals::Goal;
pub use markdown::{cut_short, options, partial};
use paper::{Paper, Sentence};
use plot::Plot;
use scope::Scope;
use scope::Where;
use table::Table;
use template::Template;
use vary::variations;

const TERMINAL_COLUMNS: usize = 80;

/// The report in an experiment's file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    pub title: String,
    /// Explains the tables and plots.
    pub what_to_see: String,
    /// On a terminal that stands below the tables, too.
    #[serde(default)]
    is_explained: bool,
    pub method: String,
    #[serde(default)]
    pub papers: Vec<Paper>,
    /// Bounds of figures.
    #[serde(default)]
    goals: Vec<Goal>,
    /// Without one, the figures are the table.
    #[serde(default)]
    tables: Vec<Table>,
    /// Below the tables; those that were not measured are left out.
    #[serde(default)]
    sentences: Vec<Sentence>,
    #[serde(default)]
    figures: Vec<FigureRule>,
    #[serde(default)]
    plots: Vec<Plot>,
}

/// Single numbers of the samples, with one name or with a name for each group.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FigureRule {
    name: String,
    value: String,
    unit: String,
    #[serde(default = "lower")]
    better: String,
    #[serde(default, rename = "where")]
    wanted: Where,
    #[serde(default)]
    each: Vec<String>,
    /// `$NAME` stands for each of these words, in name and value; `value=name` differs there.
    #[serde(default)]
    vary: BTreeMap<String, Vec<String>>,
}

fn lower() -> String {
    "lower".to_owned()
}

impl FigureRule {
    fn make(&self, results: &Results) -> Result<Vec<Figure>> {
        let scopes = Scope::new(results).filter(&self.wanted).split(&self.each);
        let mut rules = Vec::new();
        for words in variations(&self.vary) {
            let name = words.iter().fold(self.name.clone(), |all, word| word.name(&all));
            let value = words.iter().fold(self.value.clone(), |all, word| word.value(&all));
            rules.push((Template::parse(&name)?, Expression::parse(&value)?));
        }
        let mut figures = Vec::new();
        for scope in &scopes {
            for (name, value) in &rules {
                let value = value.evaluate(scope).and_then(|value| value.number());
                let (Some(name), Some(value)) = (name.render_all(scope), value) else { continue };
                let (unit, better) = (self.unit.clone(), self.better.clone());
                figures.push(Figure { name, value, unit, better });
            }
        }
        Ok(figures)
    }
}

impl Report {
    pub fn tables(&self, results: &Results, style: Style) -> String {
        let scope = Scope::new(results);
        let mut parts: Vec<_> = match &self.tables[..] {
            [] => vec![grids::figures(style, &results.figures)],
            tables => tables.iter().flat_map(|table| table.render(&scope, style)).collect(),
        };
        parts.extend(self.sentences.iter().filter_map(|sentence| sentence.render(results)));
        if self.is_explained && style == Style::Terminal {
            parts.push(wrap::wrapped(self.what_to_see.trim(), TERMINAL_COLUMNS));
        }
        parts.join("\n\n")
    }

    pub fn figures(&self, results: &Results) -> Result<Vec<Figure>> {
        let all = self.figures.iter().map(|rule| rule.make(results));
        Ok(all.collect::<Result<Vec<_>>>()?.concat())
    }

    /// Draws into a directory; the names of the plots, without extension.
    pub fn draw(&self, results: &Results, dir: &Path) -> Result<Vec<String>> {
        let scope = Scope::new(results);
        let mut names = Vec::new();
        for plot in &self.plots {
            names.extend(plot.draw(&scope, &self.papers, dir)?);
        }
        Ok(names)
    }

    /// Fails if an expression cannot be read; the results need no samples.
    #[cfg(test)]
    pub fn check(&self, results: &Results) -> Result<()> {
        self.figures(results)?;
        let differences = self.papers.iter().filter_map(|paper| paper.difference.as_ref());
        self.sentences.iter().chain(differences).try_for_each(Sentence::check)?;
        self.plots.iter().try_for_each(Plot::check)
    }
}
