//! report.md: the tables, the goals, what was measured and where, and the plots.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::paper::Paper;
use super::{Report, goals};
use crate::results::table::Style;
use crate::results::{CUT_SHORT, Figure, OPTIONS, Results, alone};

/// Draws the plots, writes report.md into `dir` and returns its text.
impl Report {
    /// `command` makes the results again.
    pub fn write(&self, results: &Results, command: &str, dir: &Path) -> Result<String> {
        let plots = self.draw(results, dir)?;
        let text = render(self, results, command, &plots)?;
        let path = dir.join("report.md");
        fs::write(&path, &text).with_context(|| format!("write {}", path.display()))?;
        Ok(text)
    }
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

/// Says of a run that was cut short why, and how much there is.
pub fn partial(results: &Results) -> Option<String> {
    let why = cut_short(results)?;
    let count = results.samples.len();
    Some(format!("PARTIAL RESULTS: the run was cut short after {count} measurements ({why})"))
}

fn render(report: &Report, results: &Results, command: &str, plots: &[String]) -> Result<String> {
    let mut text = String::new();
    writeln!(text, "# {}\n", report.title)?;
    writeln!(text, "Started {}, made by `{}`{}.\n", results.started, command, with(results))?;
    if let Some(partial) = partial(results) {
        writeln!(text, "**{partial}**\n")?;
    }
    writeln!(text, "## Results\n")?;
    if let Some(warning) = alone::warning(results) {
        writeln!(text, "{warning}\n")?;
    }
    writeln!(text, "{}\n", report.tables(results, Style::Markdown))?;
    writeln!(text, "{}\n", report.what_to_see.trim())?;
    if !report.goals.is_empty() {
        writeln!(text, "## Goals\n\n{}\n", goals::render(&report.goals, results)?)?;
    }
    for paper in &report.papers {
        render_paper(&mut text, results, paper, plots)?;
    }
    let beside = |name: &String| report.papers.iter().any(|one| one.plot.as_ref() == Some(name));
    let others: Vec<_> = plots.iter().filter(|name| !beside(name)).collect();
    if !others.is_empty() {
        writeln!(text, "## Plots\n")?;
    }
    for name in others {
        writeln!(text, "![{name}]({name}.svg)\n")?;
    }
    writeln!(text, "## Method\n\n{}\n", report.method)?;
    writeln!(text, "## Environment\n\n| | |\n|---|---|")?;
    for (key, value) in &results.environment {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        writeln!(text, "| {} | {value} |", key.replace('_', " "))?;
    }
    writeln!(text, "\n## Figures\n\n| figure | value | unit | better |\n|---|---:|---|---|")?;
    for Figure { name, value, unit, better } in &results.figures {
        writeln!(text, "| `{name}` | {value:.2} | {unit} | {better} |")?;
    }
    Ok(text)
}

fn render_paper(
    text: &mut String,
    results: &Results,
    paper: &Paper,
    plots: &[String],
) -> Result<()> {
    writeln!(text, "## {}\n\n{}\n", paper.figure, paper.shape.trim())?;
    if !paper.values.is_empty() {
        writeln!(text, "| value of the paper | at | |\n|---|---:|---:|")?;
        for value in &paper.values {
            let at = value.x.map_or(String::new(), |x| x.to_string());
            writeln!(text, "| {} | {at} | {} {} |", value.name, value.value, value.unit)?;
        }
        writeln!(text)?;
    }
    if let Some(difference) = paper.difference(results) {
        writeln!(text, "Here: {difference}\n")?;
    }
    if let Some(name) = paper.plot.as_ref().filter(|plot| plots.contains(plot)) {
        writeln!(text, "![{name}]({name}.svg)\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_options_and_marks_what_was_cut_short() {
        let words = "title = \"Test\"\nwhat_to_see = \"\"\nmethod = \"\"";
        let report: Report = toml::from_str(words).unwrap();
        let mut results = Results::begin("demo", Default::default());
        let text = |results: &Results| render(&report, results, "make demo", &[]).unwrap();
        assert!(!text(&results).contains("PARTIAL") && !text(&results).contains(" with `"));
        results.environment.insert(OPTIONS.into(), "--out here --quick --dir there".into());
        assert!(text(&results).contains("with `--quick`"), "{}", text(&results));
        results.environment.insert(CUT_SHORT.into(), "near: interrupted".into());
        let marked =
            "**PARTIAL RESULTS: the run was cut short after 0 measurements (near: interrupted)**";
        assert!(text(&results).contains(marked), "{}", text(&results));
    }
}
