//! experiments/incast.toml: words, series of rounds, and figures of the paper.

use std::sync::LazyLock;

use anyhow::Result;
use serde::Deserialize;

use super::paper::PaperFigure;
use super::plan::Series;
use super::{NAME, figures, goals, plots, tables};
use crate::experiment::definition::{Experiment, Options, Takes};
use crate::results::record::Record;
use crate::results::report::{Against, Words};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declaration {
    about: String,
    title: String,
    what_to_see: String,
    method: String,
    takes: Takes,
    pub series: Vec<Series>,
    /// Instead of `series`, with `--quick`.
    pub quick: Vec<Series>,
    #[serde(rename = "figure")]
    pub figures: Vec<PaperFigure>,
}

static DECLARATION: LazyLock<Declaration> = LazyLock::new(|| {
    let text = include_str!("../../../experiments/incast.toml");
    // Tests read it.
    toml::from_str(text).unwrap_or_else(|error| panic!("{error}"))
});

pub fn read() -> &'static Declaration {
    &DECLARATION
}

pub fn experiment(run: fn(&Options, &mut Record) -> Result<()>) -> Experiment {
    let declared = read();
    let words = Words {
        title: &declared.title,
        what_to_see: &declared.what_to_see,
        method: &declared.method,
        command: "make lab RUN=incast",
        tables: tables::render,
        figures: figures::figures,
        goals: Some(goals::render),
        // Kept as long as the declaration.
        papers: declared.figures.iter().map(against).collect::<Vec<_>>().leak(),
        plots: plots::draw,
    };
    Experiment { name: NAME, about: &declared.about, words, takes: declared.takes, run }
}

fn against(figure: &'static PaperFigure) -> Against {
    let difference = move |results: &_| figure.difference(results);
    Against {
        paper: &figure.paper,
        difference: Box::leak(Box::new(difference)),
        plot: Some(&figure.plot),
    }
}
