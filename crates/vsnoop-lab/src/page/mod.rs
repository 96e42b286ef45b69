//! One page of all results, for a browser: HTML without anything outside it.
//!
//! Each experiment's part is its report.md ([`report`]), as HTML: so the page says nothing else
//! than that. Plots are put in as SVG, and what few readers want (method, environment, figures)
//! can be unfolded. [`document`] puts them into a document in Markdown.

mod document;
mod escape;
mod markdown;
mod part;

use std::fmt::Write;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use self::escape::escaped;
use self::part::{Part, measured};
use crate::experiment::{self, Experiment};
use crate::results::{Results, report};

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
    let mut page = String::new();
    writeln!(page, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">")?;
    writeln!(page, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")?;
    writeln!(page, "<meta name=\"color-scheme\" content=\"light dark\">")?;
    writeln!(page, "<title>{TITLE}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>")?;
    writeln!(page, "<h1>{TITLE}</h1>")?;
    render_contents(&mut page, parts)?;
    render_papers(&mut page, parts)?;
    for part in parts {
        writeln!(page, "<section id=\"{}\">\n{}</section>", part.experiment.name, part.body)?;
    }
    writeln!(page, "</body>\n</html>")?;
    Ok(page)
}

fn render_contents(page: &mut String, parts: &[Part]) -> Result<()> {
    writeln!(page, "<nav class=\"wide\">\n<table>")?;
    writeln!(page, "<tr><th>experiment</th><th>shows</th></tr>")?;
    for part in parts {
        let (experiment, results) = (part.experiment, &part.results);
        let (name, title) = (experiment.name, escaped(experiment.words.title));
        let partial = if report::partial(results).is_some() { ", partial" } else { "" };
        let (started, options) = (&results.started, escaped(&report::options(results)));
        let link = format!("<a href=\"#{name}\">{name}</a>{partial}");
        writeln!(
            page,
            "<tr><td>{link}</td><td>{title}<br><small><time>{started}</time> <code>{options}</code></small></td></tr>"
        )?;
    }
    writeln!(page, "</table>\n</nav>")?;
    let missing: Vec<_> = experiment::all().iter().filter(|one| !measured(parts, one)).collect();
    if !missing.is_empty() {
        let names: Vec<_> = missing.iter().map(|one| one.name).collect();
        writeln!(
            page,
            "<p>Without results here: {}. <code>make lab RUN=NAME</code> measures one.</p>",
            names.join(", ")
        )?;
    }
    Ok(())
}

/// The figures of papers that the experiments repeat, and what was found, or the command that
/// finds it.
fn render_papers(page: &mut String, parts: &[Part]) -> Result<()> {
    writeln!(page, "<h2 id=\"papers\">Figures of the papers</h2>\n<dl>")?;
    for experiment in experiment::all() {
        let part = parts.iter().find(|part| part.experiment.name == experiment.name);
        let name = experiment.name;
        for against in experiment.words.papers {
            let (figure, shape) =
                (escaped(&against.paper.figure), escaped(against.paper.shape.trim()));
            let here = match part {
                Some(part) => (against.difference)(&part.results)
                    .map_or_else(|| "too few samples".to_owned(), |text| escaped(&text)),
                None => {
                    format!("not measured: <code>{}</code>", escaped(experiment.words.command))
                }
            };
            let title = match part {
                Some(_) => format!("<a href=\"#{name}\">{figure}</a>"),
                None => figure,
            };
            writeln!(
                page,
                "<dt>{title}</dt>\n<dd><p>Paper: {shape}</p>\n<p>Here: {here}</p></dd>"
            )?;
        }
    }
    writeln!(page, "</dl>")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_elsewhere_need_no_directory_of_results() {
        let root = std::env::temp_dir().join(format!("page-{}", std::process::id()));
        let (dir, missing) = (root.join("elsewhere"), root.join("results"));
        Results::begin("link-scale", Default::default()).write(&dir).unwrap();
        assert_eq!(directories(&missing).unwrap(), Vec::<PathBuf>::new());
        let page = missing.join("report.html");
        let written = write(&[dir], &page, None);
        let text = fs::read_to_string(page).unwrap_or_default();
        fs::remove_dir_all(&root).unwrap();
        assert!(written.is_ok() && text.contains("id=\"link-scale\""), "{written:?}");
    }
}
