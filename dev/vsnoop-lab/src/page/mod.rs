//! One page of all results, for a browser: HTML without anything outside it.
//!
//! Each experiment's part is its report.md ([`report`]), as HTML: so the page says nothing else
//! than that. [`document`] puts them into a document in Markdown.

mod document;
mod html;
mod part;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use self::part::Part;
use crate::experiment::{self, Experiment};
use crate::report;
use crate::results::Results;

const STYLE: &str = include_str!("style.css");
const TITLE: &str = "vsnoop: results of the experiments";

/// Directories below `dir`, if there is one, that hold results.
pub fn directories(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("list {}", dir.display()))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("list {}", dir.display()))?.path();
        // Results of `make bench` have another form.
        let is_results =
            Results::read(&path).is_ok_and(|one| Experiment::find(&one.experiment).is_ok());
        found.extend(is_results.then_some(path));
    }
    found.sort();
    Ok(found)
}

/// Makes report.md and the plots in each of `dirs` again, writes the page to `file`, and the same
/// into the document `markdown`.
pub fn write(dirs: &[PathBuf], file: &Path, markdown: Option<&Path>) -> Result<()> {
    ensure!(!dirs.is_empty(), "there are no results: `vsnoop-lab run NAME` makes some");
    let mut parts = dirs.iter().map(|dir| Part::read(dir)).collect::<Result<Vec<_>>>()?;
    let place =
        |part: &Part| experiment::all().iter().position(|one| one.name == part.experiment.name);
    parts.sort_by_key(place);
    if let Some(markdown) = markdown {
        document::write(&parts, markdown)?;
    }
    let text = render(&parts)?;
    if let Some(dir) = file.parent() {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    }
    fs::write(file, text).with_context(|| format!("write {}", file.display()))
}

fn render(parts: &[Part]) -> Result<String> {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{TITLE}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
    );
    let head = format!("# {TITLE}\n\n{}\n{}", contents(parts), papers(parts));
    page += &html::render(&head, Path::new(""))?;
    for part in parts {
        let (name, text) = (&part.experiment.name, part::lowered(&part.report));
        let body = html::render(&text, &part.dir)?;
        page += &format!("<section id=\"{name}\">\n{body}</section>\n");
    }
    Ok(page + "</body>\n</html>\n")
}

/// In Markdown.
fn contents(parts: &[Part]) -> String {
    let mut text = String::from("| experiment | shows | started | options |\n|---|---|---|---|\n");
    for Part { experiment, results, .. } in parts {
        let (name, title) = (&experiment.name, &experiment.report.title);
        let partial = if report::partial(results).is_some() { ", partial" } else { "" };
        let (started, options) = (&results.started, report::options(results));
        text += &format!("| [{name}](#{name}){partial} | {title} | {started} | {options} |\n");
    }
    text
}

/// The figures of papers that the experiments repeat, and what was found, or the command that
/// finds it; in Markdown.
fn papers(parts: &[Part]) -> String {
    let mut text = String::from("## Figures of the papers\n\n");
    for experiment in experiment::all() {
        let part = parts.iter().find(|part| part.experiment.name == experiment.name);
        for paper in &experiment.report.papers {
            let (figure, shape, name) = (&paper.figure, paper.shape.trim(), &experiment.name);
            let (title, found) = match part {
                Some(part) => (format!("[{figure}](#{name})"), paper.difference(&part.results)),
                None => {
                    let command = format!("not measured: `{}`", experiment.command());
                    (figure.clone(), Some(command))
                }
            };
            let found = found.unwrap_or_else(|| "too few samples".to_owned());
            text += &format!("**{title}**\n\nPaper: {shape}\n\nHere: {found}\n\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_elsewhere_need_no_directory_of_results() {
        let root = std::env::temp_dir().join(format!("page-{}", std::process::id()));
        let (dir, missing) = (root.join("elsewhere"), root.join("results"));
        Results::begin("ping", Default::default()).write(&dir).unwrap();
        assert_eq!(directories(&missing).unwrap(), Vec::<PathBuf>::new());
        let page = missing.join("report.html");
        let written = write(&[dir], &page, None);
        let text = fs::read_to_string(page).unwrap_or_default();
        fs::remove_dir_all(&root).unwrap();
        assert!(written.is_ok() && text.contains("id=\"ping\""), "{written:?}");
    }
}
