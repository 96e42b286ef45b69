//! Results as a part of a document in Markdown (docs/evaluation.md).
//!
//! Each experiment has a section, its report.md without plots and without what stands elsewhere or
//! few readers want: method, environment, figures. What stands before the line [`MARK`] is written
//! by hand and stays.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::part::{Part, measured};
use crate::experiment;
use crate::results::wrap::wrapped;
use crate::results::{Results, report};

/// Results begin after this line.
const MARK: &str = "<!-- Results: `vsnoop-lab report --markdown` writes what follows. -->";
/// Sections of a report that are left out.
const LEFT_OUT: [&str; 4] = ["## Plots", "## Method", "## Environment", "## Figures"];
const COLUMNS: usize = 100;

/// Replaces the results in the document, which is begun if there is none.
pub fn write(parts: &[Part], file: &Path) -> Result<()> {
    let before = fs::read_to_string(file).unwrap_or_default();
    let by_hand = before.split(MARK).next().unwrap_or_default();
    let text = format!("{by_hand}{MARK}\n\n{}", render(parts)?);
    fs::write(file, text).with_context(|| format!("write {}", file.display()))
}

fn render(parts: &[Part]) -> Result<String> {
    let mut text =
        String::from("## Results\n\n| experiment | started | options | measurements |\n");
    writeln!(text, "|---|---|---|---|")?;
    for Part { experiment, results, .. } in parts {
        let (name, title) = (experiment.name, experiment.words.title);
        let options = match &*report::options(results) {
            "" => "none: a full run".to_owned(),
            options => format!("`{options}`"),
        };
        let count = results.samples.len();
        writeln!(text, "| `{name}`: {title} | {} | {options} | {count} |", results.started)?;
    }
    let missing = experiment::all().iter().filter(|one| !measured(parts, one));
    let missing: Vec<_> = missing.map(|one| format!("`{}`", one.name)).collect();
    if !missing.is_empty() {
        let words = format!("Not measured: {}.", missing.join(", "));
        writeln!(text, "\n{}\n`make lab RUN=NAME` measures one.", wrapped(&words, COLUMNS))?;
    }
    for part in parts {
        write!(text, "\n{}", section(&part.report, &part.results))?;
    }
    Ok(text)
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
    let of = |name: &str| match results.environment.get(name) {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => "unknown".to_owned(),
    };
    format!(
        "Linux {}, {} CPUs ({}), QEMU {}, load average before {}.",
        of("kernel"),
        of("cpus"),
        of("cpu_model"),
        of("qemu"),
        of("load_average_before")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_is_written_by_hand_stays() {
        let name = format!("vsnoop-lab-document-{}.md", std::process::id());
        let file = std::env::temp_dir().join(name);
        fs::write(&file, format!("# By hand\n\n{MARK}\n\nstale\n")).unwrap();
        let written = write(&[], &file).and_then(|()| Ok(fs::read_to_string(&file)?));
        fs::remove_file(&file).unwrap();
        let text = written.unwrap();
        assert!(text.starts_with("# By hand\n") && !text.contains("stale"), "{text}");
        assert!(text.contains("`ping`") && text.contains("`make lab RUN=NAME`"), "{text}");
    }
}
