//! The code that runs declared experiments of a kind.

use std::path::Path;

use anyhow::Result;

use super::parts::Parts;
use crate::results::record::Record;
use crate::results::report::Judge;
use crate::results::table::Style;
use crate::results::{Figure, Results};

/// `R` is the function that measures.
pub struct Runner<R = fn(Task) -> Result<()>> {
    /// As declarations name it.
    pub name: &'static str,
    pub run: R,
    pub tables: fn(&Results, Style) -> String,
    pub figures: fn(&Results) -> Vec<Figure>,
    /// Goals that are more than bounds of figures, in Markdown beside the measured values.
    pub goals: Option<&'static Judge>,
    /// Draws into a directory and returns the names of the plots, without extension.
    pub plots: fn(&Results, &Path) -> Result<Vec<String>>,
    /// One sentence on the difference to the paper, made from the samples.
    pub difference: fn(&Results) -> Option<String>,
}

/// The command that makes the results again, kept as long as the declarations.
pub fn lab_command(name: &str) -> &'static str {
    format!("make lab RUN={name}").leak()
}

/// A run: what is to be measured, and where samples go.
pub struct Task<'a> {
    pub plan: Parts,
    pub record: &'a mut Record,
}
