//! report.md: the tables, the goals, what was measured and where, and the plots.

use std::borrow::Cow;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use super::table::Style;
use super::{CUT_SHORT, Figure, OPTIONS, Results, alone};

/// Words of an experiment for its report.
#[derive(Clone, Copy)]
pub struct Words {
    pub title: &'static str,
    pub what_to_see: &'static str,
    pub method: &'static str,
    /// Makes the results again.
    pub command: &'static str,
    /// Renders the samples as tables.
    pub tables: fn(&Results, Style) -> String,
    /// Single numbers that follow from the samples.
    pub figures: fn(&Results) -> Vec<Figure>,
    /// Renders the goals beside the measured values, in Markdown.
    pub goals: Option<&'static Judge>,
    /// What papers have of it.
    pub papers: &'static [Against],
    /// Draws into a directory and returns the names of the plots, without extension.
    pub plots: fn(&Results, &Path) -> Result<Vec<String>>,
}

/// A figure or table of a paper that an experiment reproduces.
#[derive(Clone, Copy)]
pub struct Against {
    pub paper: &'static Paper,
    /// One sentence on the difference, from the samples; `None` if there are too few.
    pub difference: &'static Difference,
    /// The plot that is like the figure, if there is a single one.
    pub plot: Option<&'static str>,
}

/// Goals beside the measured values, in Markdown.
pub type Judge = dyn Fn(&Results) -> Result<String> + Sync;

pub type Difference = dyn Fn(&Results) -> Option<String> + Sync;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// `vSnoop report, Fig. 1(a)`.
    pub figure: Cow<'static, str>,
    /// What it shows.
    pub shape: Cow<'static, str>,
    /// Numbers that it gives, as far as it gives any.
    #[serde(default)]
    pub values: Cow<'static, [PaperValue]>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperValue {
    pub name: Cow<'static, str>,
    /// Where it stands on the figure's x axis.
    pub x: Option<f64>,
    pub value: f64,
    pub unit: Cow<'static, str>,
}

/// Draws the plots, writes report.md into `dir` and returns its text.
pub fn write(results: &Results, words: &Words, dir: &Path) -> Result<String> {
    let plots = (words.plots)(results, dir)?;
    let text = render(results, words, &plots)?;
    let path = dir.join("report.md");
    fs::write(&path, &text).with_context(|| format!("write {}", path.display()))?;
    Ok(text)
}

/// The options of the run, but for the directories of its results.
pub fn options(results: &Results) -> String {
    let all = results.environment.get(OPTIONS).and_then(Value::as_str).unwrap_or_default();
    let mut words = all.split_whitespace();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word {
            "--out" | "--dir" => drop(words.next()),
            other => kept.push(other),
        }
    }
    kept.join(" ")
}

/// The options of the run, with which there may be less to see.
fn with(results: &Results) -> String {
    match &*options(results) {
        "" => String::new(),
        options => format!(" with `{options}`; goals are meant for a run without options"),
    }
}

/// Why a run was cut short, if it was.
pub fn cut_short(results: &Results) -> Option<String> {
    let error = results.environment.get(CUT_SHORT)?;
    Some(error.as_str().map_or_else(|| error.to_string(), str::to_owned))
}

/// Of a run that was cut short: why, and how much there is.
pub fn partial(results: &Results) -> Option<String> {
    let why = cut_short(results)?;
    let count = results.samples.len();
    Some(format!("PARTIAL RESULTS: the run was cut short after {count} measurements ({why})"))
}

fn render(results: &Results, words: &Words, plots: &[String]) -> Result<String> {
    let mut text = String::new();
    writeln!(text, "# {}\n", words.title)?;
    writeln!(text, "Started {}, made by `{}`{}.\n", results.started, words.command, with(results))?;
    if let Some(partial) = partial(results) {
        writeln!(text, "**{partial}**\n")?;
    }
    writeln!(text, "## Results\n")?;
    if let Some(warning) = alone::warning(results) {
        writeln!(text, "{warning}\n")?;
    }
    writeln!(text, "{}\n", (words.tables)(results, Style::Markdown))?;
    writeln!(text, "{}\n", words.what_to_see)?;
    if let Some(goals) = words.goals {
        writeln!(text, "## Goals\n\n{}\n", goals(results)?)?;
    }
    for against in words.papers {
        render_paper(&mut text, results, against, plots)?;
    }
    let beside = |name: &String| words.papers.iter().any(|one| one.plot == Some(name));
    let others: Vec<_> = plots.iter().filter(|name| !beside(name)).collect();
    if !others.is_empty() {
        writeln!(text, "## Plots\n")?;
    }
    for name in others {
        writeln!(text, "![{name}]({name}.svg)\n")?;
    }
    writeln!(text, "## Method\n\n{}\n", words.method)?;
    writeln!(text, "## Environment\n\n| | |\n|---|---|")?;
    for (key, value) in &results.environment {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        writeln!(text, "| {} | {value} |", key.replace('_', " "))?;
    }
    writeln!(text, "\n## Figures\n\n| figure | value | unit | better |\n|---|---|---|---|")?;
    for figure in &results.figures {
        let (name, unit, better) = (&figure.name, &figure.unit, &figure.better);
        writeln!(text, "| `{name}` | {:.2} | {unit} | {better} |", figure.value)?;
    }
    Ok(text)
}

fn render_paper(
    text: &mut String,
    results: &Results,
    against: &Against,
    plots: &[String],
) -> Result<()> {
    let Against { paper, difference, plot } = against;
    writeln!(text, "## {}\n\n{}\n", paper.figure, paper.shape.trim())?;
    if !paper.values.is_empty() {
        writeln!(text, "| value of the paper | at | |\n|---|---|---|")?;
        for value in &*paper.values {
            let at = value.x.map_or(String::new(), |x| x.to_string());
            writeln!(text, "| {} | {at} | {} {} |", value.name, value.value, value.unit)?;
        }
        writeln!(text)?;
    }
    if let Some(difference) = difference(results) {
        writeln!(text, "Here: {difference}\n")?;
    }
    if let Some(name) = plot.filter(|plot| plots.iter().any(|name| name == plot)) {
        writeln!(text, "![{name}]({name}.svg)\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_run_are_named_and_the_lack_of_them_is_not() {
        let mut results = Results::begin("link-lan", Default::default());
        assert_eq!(with(&results), "");
        results.environment.insert(OPTIONS.into(), "".into());
        assert_eq!(with(&results), "");
        results.environment.insert(OPTIONS.into(), "--out here --quick --dir there".into());
        assert!(with(&results).contains("with `--quick`"));
    }

    #[test]
    fn results_of_an_interrupted_run_are_marked_as_partial() {
        let words = Words {
            title: "Test",
            what_to_see: "",
            method: "",
            command: "",
            tables: |_, _| String::new(),
            figures: |_| Vec::new(),
            goals: None,
            papers: &[],
            plots: |_, _| Ok(Vec::new()),
        };
        let mut results = Results::begin("demo", Default::default());
        let report = |results: &Results| render(results, &words, &[]).unwrap();
        assert!(!report(&results).contains("PARTIAL"), "{}", report(&results));
        results.environment.insert(CUT_SHORT.into(), "near: interrupted".into());
        let marked =
            "**PARTIAL RESULTS: the run was cut short after 0 measurements (near: interrupted)**";
        assert!(report(&results).contains(marked), "{}", report(&results));
    }
}
