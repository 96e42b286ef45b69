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

use super::part::Part;
use crate::experiment::declared::Declaration;
use crate::experiment::{self, Experiment, Options, incast};
use crate::results::wrap::wrapped;
use crate::results::{CUT_SHORT, ROUNDS_PLANNED, Results, report};

/// Results begin after this line.
const MARK: &str = "<!-- Results: `vsnoop-lab report --markdown` writes what follows. -->";
/// Sections of a report that are left out.
const LEFT_OUT: [&str; 4] = ["## Plots", "## Method", "## Environment", "## Figures"];
const COLUMNS: usize = 100;
/// Of the first table.
const ROW_CELLS: usize = 5;
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

/// What the document has of an experiment.
struct Entry {
    /// Its row in the first table.
    row: String,
    section: String,
}

impl Entry {
    fn of(part: &Part) -> Self {
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

    /// What an earlier call has written.
    fn find(results: &str, experiment: &Experiment) -> Option<Self> {
        let head = row_head(experiment);
        let mut row = results.lines().find(|line| line.starts_with(&head))?.to_owned();
        // Earlier calls wrote no load.
        if row.matches(" |").count() < ROW_CELLS {
            row += " - |";
        }
        let from = results.find(&section_head(experiment))?;
        let section = &results[from..];
        let end = section.find("\n## ").unwrap_or(section.len());
        Some(Self { row, section: format!("{}\n", section[..end].trim_end()) })
    }
}

/// The rounds that were measured, and those that were planned, where the time of a cell was up
/// before. Older results do not say what was planned.
fn cut_by_time(results: &Results) -> Option<(usize, usize)> {
    if results.environment.contains_key(CUT_SHORT) {
        return None;
    }
    let Some(planned) = results.environment.get(ROUNDS_PLANNED) else {
        return cut_of_present_plan(results);
    };
    let samples = results.samples.iter();
    let turns: BTreeSet<_> =
        samples.filter_map(|sample| Some((sample.cell.suffix(), sample.turn?))).collect();
    // Each sample of `incast` is a round, and a turn of it a block of them.
    let measured =
        if results.experiment == incast::NAME { results.samples.len() } else { turns.len() };
    let planned = planned.as_u64()? as usize;
    (measured > 0 && measured < planned).then_some((measured, planned))
}

/// The same against the plan that the experiment has now.
fn cut_of_present_plan(results: &Results) -> Option<(usize, usize)> {
    let quick = match &*report::options(results) {
        "" => false,
        "--quick" => true,
        // Others change the plan.
        _ => return None,
    };
    let options = Options { quick, ..Options::default() };
    if results.experiment == incast::NAME {
        let (measured, planned) = (results.samples.len(), incast::planned_rounds(&options).ok()?);
        return (measured < planned).then_some((measured, planned));
    }
    let (mut measured, mut planned) = (0, 0);
    let plan = Declaration::find(&results.experiment)?.plan(&options).ok()?;
    for (cell, part) in plan.machines().into_iter().flat_map(|machines| machines.cells) {
        let samples = results.samples.iter().filter(|sample| sample.cell == cell);
        let turns: BTreeSet<_> = samples.filter_map(|sample| sample.turn).collect();
        let rounds = part.sizes.iter().map(|size| size.rounds).sum();
        if !turns.is_empty() {
            measured += turns.len().min(rounds);
            planned += rounds;
        }
    }
    (measured < planned).then_some((measured, planned))
}

fn row_head(experiment: &Experiment) -> String {
    format!("| `{}`: {} |", experiment.name, experiment.words.title)
}

fn section_head(experiment: &Experiment) -> String {
    format!("## {}\n", experiment.words.title)
}

fn render(parts: &[Part], before: &str) -> String {
    let mut text = String::from(
        "## Results\n\n| experiment | started | options | measurements | load before |\n\
         |---|---|---|---|---|\n",
    );
    let (mut sections, mut missing) = (String::new(), Vec::new());
    for experiment in experiment::all() {
        let part = parts.iter().find(|part| part.experiment.name == experiment.name);
        match part.map(Entry::of).or_else(|| Entry::find(before, experiment)) {
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
    for line in report.lines() {
        if line.starts_with("## ") {
            left_out = LEFT_OUT.contains(&line);
        }
        if left_out || line.starts_with("![") {
            continue;
        }
        if line.starts_with('#') {
            lines.push(format!("#{line}"));
        } else if line.starts_with('|') {
            lines.push(line.to_owned());
        } else {
            lines.push(wrapped(line, COLUMNS));
        }
        if line.starts_with("Started ") {
            lines.push(wrapped(&machine(results), COLUMNS));
        }
    }
    // What was left out was between blank lines.
    lines.dedup_by(|next, line| next.is_empty() && line.is_empty());
    format!("{}\n", lines.join("\n").trim_end())
}

fn machine(results: &Results) -> String {
    let of = |name: &str| of_machine(results, name);
    format!(
        "Linux {}, {} CPUs ({}), QEMU {}, load average before {}.",
        of("kernel"),
        of("cpus"),
        of("cpu_model"),
        of("qemu"),
        of(LOAD_BEFORE)
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
            results: Results::begin(experiment.name, Default::default()),
            report,
            body: String::new(),
        };
        let report = |one: &Experiment, what: &str| {
            format!("# {}\n\n## Results\n\n{what}\n\n## A paper\n\nIts shape.\n", one.words.title)
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
    fn a_row_of_an_earlier_call_without_a_load_gets_an_empty_one() {
        let ping = Experiment::find("ping").unwrap();
        let (row, section) = (row_head(ping), section_head(ping));
        let text = |row: &str| format!("{row}\n\n{section}Text.\n");
        let full = format!("{row} then | none: a full run | 20 | 9.5 |");
        assert_eq!(Entry::find(&text(&full), ping).unwrap().row, full);
        let old = format!("{row} then | `--rounds 4` | 20 |");
        assert_eq!(Entry::find(&text(&old), ping).unwrap().row, format!("{old} - |"));
    }

    #[test]
    fn the_first_table_says_how_busy_the_machine_was_and_what_time_cut() {
        let plan = Declaration::find("ping").unwrap().plan(&Options::default()).unwrap();
        let machines = plan.machines();
        let (cell, part) = machines[0].cells[0];
        let row_of = |rounds: usize, environment| {
            let mut results = Results::begin("ping", environment);
            results.samples = (0..rounds)
                .map(|turn| Sample { cell, turn: Some(turn), ..Sample::default() })
                .collect();
            let experiment = Experiment::find("ping").unwrap();
            let part = Part { experiment, results, report: String::new(), body: String::new() };
            Entry::of(&part).row
        };
        let row = |rounds| row_of(rounds, [(LOAD_BEFORE.into(), 9.5.into())].into());
        let said = row_of(2, [(ROUNDS_PLANNED.into(), 3.into())].into());
        assert!(said.ends_with("| 2, cut by its time: 2 of 3 rounds | unknown |"), "{said}");
        let planned = part.sizes[0].rounds;
        assert!(row(planned).ends_with(&format!("| {planned} | 9.5 |")), "{}", row(planned));
        let cut = format!("| 2, cut by its time: 2 of {planned} rounds | 9.5 |");
        assert!(row(2).ends_with(&cut), "{}", row(2));
    }
}
