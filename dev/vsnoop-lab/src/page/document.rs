//! Results as a part of a document in Markdown (docs/evaluation.md).
//!
//! Each experiment has a section, its report.md without plots and without what stands elsewhere or
//! few readers want: method, environment, figures. What stands before the line [`MARK`] is written
//! by hand and stays, and so does the section of an experiment that was not measured again.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::part::{self, Part};
use crate::experiment::{self, Experiment};
use crate::report::{self, wrap::wrapped};
use crate::results::{CUT_SHORT, ROUNDS_PLANNED, Results};

/// Results begin after this line.
const MARK: &str = "<!-- Results: `vsnoop-lab report --markdown` writes what follows. -->";
/// Sections of a report that are left out.
const LEFT_OUT: [&str; 4] = ["### Plots", "### Method", "### Environment", "### Figures"];
const COLUMNS: usize = 100;
/// In the environment.
const LOAD_BEFORE: &str = "load_average_before";

/// Writes the results into the document, which is begun if there is none. Experiments that are not
/// among them keep what the document has: a full run takes longer than a day may have.
pub fn write(parts: &[Part], file: &Path) -> Result<()> {
    let before = fs::read_to_string(file).unwrap_or_default();
    let (by_hand, results) = before.split_once(MARK).unwrap_or((&before, ""));
    let text = format!("{by_hand}{MARK}\n\n{}", render(parts, results));
    fs::write(file, text).with_context(|| format!("write {}", file.display()))
}

/// An experiment's row and section in the document.
struct Entry {
    /// Its row in the first table.
    row: String,
    section: String,
}

impl Entry {
    fn make(part: &Part) -> Self {
        let Part { experiment, results, report, .. } = part;
        let options = match &*report::options(results) {
            "" => "none: a full run".to_owned(),
            options => format!("`{options}`"),
        };
        let mut count = results.samples.len().to_string();
        if report::partial(results).is_some() {
            count += ", interrupted";
        } else if let Some((measured, planned)) = cut_by_time(results) {
            count += &format!(", cut by its time: {measured} of {planned} rounds");
        }
        let load = of_machine(results, LOAD_BEFORE);
        let (head, started) = (row_head(experiment), &results.started);
        let row = format!("{head} {started} | {options} | {count} | {load} |");
        Self { row, section: section(report, results) }
    }

    /// Finds them as an earlier call has written them.
    fn find(results: &str, experiment: &Experiment) -> Option<Self> {
        let head = row_head(experiment);
        let row = results.lines().find(|line| line.starts_with(&head))?.to_owned();
        let from = results.find(&section_head(experiment))?;
        let section = &results[from..];
        let end = section.find("\n## ").unwrap_or(section.len());
        Some(Self { row, section: format!("{}\n", section[..end].trim_end()) })
    }
}

/// The rounds that were measured, and those that were planned, where the time of a cell was up
/// before.
fn cut_by_time(results: &Results) -> Option<(usize, usize)> {
    if results.environment.contains_key(CUT_SHORT) {
        return None;
    }
    let planned = results.environment.get(ROUNDS_PLANNED)?.as_u64()? as usize;
    let samples = results.samples.iter();
    let turns: BTreeSet<_> =
        samples.filter_map(|sample| Some((sample.cell.suffix(), sample.turn?))).collect();
    // Each sample of `incast` is a round, and a turn of it a block of them.
    let is_round = results.samples.first().is_some_and(|sample| sample.cell.incast.is_some());
    let measured = if is_round { results.samples.len() } else { turns.len() };
    (measured > 0 && measured < planned).then_some((measured, planned))
}

fn row_head(experiment: &Experiment) -> String {
    format!("| `{}`: {} |", experiment.name, experiment.report.title)
}

fn section_head(experiment: &Experiment) -> String {
    format!("## {}\n", experiment.report.title)
}

fn render(parts: &[Part], before: &str) -> String {
    let mut text = String::from(
        "## Results\n\n| experiment | started | options | measurements | load before |\n\
         |---|---|---|---:|---:|\n",
    );
    let (mut sections, mut missing) = (String::new(), Vec::new());
    for experiment in experiment::all() {
        let part = parts.iter().find(|part| part.experiment.name == experiment.name);
        match part.map(Entry::make).or_else(|| Entry::find(before, experiment)) {
            Some(Entry { row, section }) => {
                text += &format!("{row}\n");
                sections += &format!("\n{section}");
            }
            None => missing.push(format!("`{}`", experiment.name)),
        }
    }
    if !missing.is_empty() {
        let words = format!("Not measured: {}.", missing.join(", "));
        text += &format!("\n{}\n`make lab RUN=NAME` measures one.\n", wrapped(&words, COLUMNS));
    }
    text + &sections
}

/// A report as a section, with the machine in a line.
fn section(report: &str, results: &Results) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut left_out = false;
    for line in part::lowered(report).lines() {
        if line.starts_with("### ") {
            left_out = LEFT_OUT.contains(&line);
        }
        if left_out || line.starts_with("![") {
            continue;
        }
        let is_whole = line.starts_with(['#', '|']);
        lines.push(if is_whole { line.to_owned() } else { wrapped(line, COLUMNS) });
        if line.starts_with("Started ") {
            lines.push(wrapped(&machine(results), COLUMNS));
        }
    }
    // A part that was left out stood between blank lines.
    lines.dedup_by(|next, line| next.is_empty() && line.is_empty());
    format!("{}\n", lines.join("\n").trim_end())
}

fn machine(results: &Results) -> String {
    let entry = |name: &str| of_machine(results, name);
    format!(
        "Linux {}, {} CPUs ({}), QEMU {}, load average before {}.",
        entry("kernel"),
        entry("cpus"),
        entry("cpu_model"),
        entry("qemu"),
        entry(LOAD_BEFORE)
    )
}

fn of_machine(results: &Results, name: &str) -> String {
    match results.environment.get(name) {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::results::Sample;

    #[test]
    fn a_section_has_tables_and_sentences_and_neither_plots_nor_method() {
        let long = "word ".repeat(40);
        let report = format!(
            "# Title\n\nStarted then.\n\n## Results\n\n| a |\n|---|\n\n{long}\n\n![p](p.svg)\n\n\
             ## Plots\n\n![q](q.svg)\n\n## Method\n\nSomehow.\n\n## Figures\n\nNone.\n"
        );
        let text = section(&report, &Results::begin("ping", Default::default()));
        assert!(text.starts_with("## Title\n\nStarted then.\nLinux unknown"), "{text}");
        assert!(text.contains("### Results\n\n| a |\n|---|\n"), "{text}");
        for gone in ["svg", "Method", "Somehow", "Figures", "\n\n\n"] {
            assert!(!text.contains(gone), "{gone:?} is in {text}");
        }
        assert!(text.lines().all(|line| line.len() <= COLUMNS), "{text}");
    }

    #[test]
    fn what_is_written_by_hand_and_what_is_not_measured_again_stay() {
        let [ping, delays] = ["ping", "delays"].map(|name| Experiment::find(name).unwrap());
        let part = |experiment: &'static Experiment, report: String| Part {
            experiment,
            results: Results::begin(&experiment.name, Default::default()),
            report,
            dir: PathBuf::new(),
        };
        let report = |one: &Experiment, what: &str| {
            format!("# {}\n\n## Results\n\n{what}\n\n## A paper\n\nIts shape.\n", one.report.title)
        };
        let name = format!("vsnoop-lab-document-{}.md", std::process::id());
        let file = std::env::temp_dir().join(name);
        fs::write(&file, format!("# By hand\n\n{MARK}\n\nstale\n")).unwrap();
        let first =
            [part(ping, report(ping, "first ping")), part(delays, report(delays, "delays"))];
        let second = [part(ping, report(ping, "second ping"))];
        let written = write(&first, &file).and_then(|()| {
            write(&second, &file)?;
            Ok(fs::read_to_string(&file)?)
        });
        fs::remove_file(&file).unwrap();
        let text = written.unwrap();
        assert!(text.starts_with("# By hand\n") && !text.contains("stale"), "{text}");
        assert!(text.contains("second ping\n\n### A paper\n\nIts shape.\n\n## "), "{text}");
        assert!(text.ends_with("delays\n\n### A paper\n\nIts shape.\n"), "{text}");
        assert!(!text.contains("first ping"), "{text}");
        assert_eq!(text.matches("| `delays`: ").count(), 1, "{text}");
        assert!(text.contains("`mpi`") && text.contains("`make lab RUN=NAME`"), "{text}");
        assert!(!text.contains("Not measured: `ping`"), "{text}");
    }

    #[test]
    fn the_first_table_says_how_busy_the_machine_was_and_what_time_cut() {
        let row = |rounds: usize, environment| {
            let mut results = Results::begin("ping", environment);
            let sample = |turn| Sample { turn: Some(turn), ..Sample::default() };
            results.samples = (0..rounds).map(sample).collect();
            let experiment = Experiment::find("ping").unwrap();
            let part = Part { experiment, results, report: String::new(), dir: PathBuf::new() };
            Entry::make(&part).row
        };
        let loaded = row(3, [(LOAD_BEFORE.into(), 9.5.into())].into());
        assert!(loaded.ends_with("| 3 | 9.5 |"), "{loaded}");
        let cut = row(2, [(ROUNDS_PLANNED.into(), 3.into())].into());
        assert!(cut.ends_with("| 2, cut by its time: 2 of 3 rounds | unknown |"), "{cut}");
    }
}
