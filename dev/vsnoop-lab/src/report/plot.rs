//! Plots: what is drawn of the samples, and under which names.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde::Deserialize;

use super::expression::Expression;
use super::paper::{Paper, PaperValue};
use super::scope::{Scope, Where};
use super::template::Template;
use super::vary::variations;
use crate::results::Sample;
use crate::results::bars::{Bar, Bars, Group};
use crate::results::drawing::Drawing;
use crate::results::lines::{Line, Lines, staircase};
use crate::results::statistics::ascending;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plot {
    kind: Kind,
    /// The name of the file, without extension.
    name: Template,
    title: Template,
    #[serde(default, rename = "where")]
    wanted: Where,
    /// Keys of which each combination has a plot of its own.
    #[serde(default)]
    each: Vec<String>,
    /// Keys of which each combination is a bar or a line.
    #[serde(default)]
    rows: Vec<String>,
    /// `$NAME` in label, value and group stands for each of these words: more bars of a row.
    #[serde(default)]
    vary: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    label: String,
    /// An expression; of a distribution the name of values, of traces what chooses the sample.
    #[serde(default)]
    value: String,
    #[serde(default)]
    unit: String,
    /// Names the group of a bar.
    #[serde(default)]
    group: String,
    /// Names of groups of bars, each with the number of its colour.
    #[serde(default)]
    groups: Vec<Group>,
    /// Labels of the axes.
    #[serde(default)]
    x_label: String,
    #[serde(default)]
    y_label: String,
    /// The key along the axis; of traces which of a sample's.
    #[serde(default)]
    x: String,
    y_max: Option<f64>,
    /// Factors of the points of traces.
    #[serde(default = "unscaled")]
    scale: [f64; 2],
    /// A factor of a paper's values, so that they stand beside the lines.
    paper_scale: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Bars,
    /// Distributions of values.
    Distribution,
    /// Distributions of the size over a time, in MB/s, logarithmic.
    Throughput,
    /// A value against a key.
    Lines,
    /// Points that samples have, of the sample with the median value.
    Traces,
}

fn unscaled() -> [f64; 2] {
    [1.0, 1.0]
}

impl Plot {
    /// Returns the names of what was drawn.
    pub fn draw(&self, scope: &Scope, papers: &[Paper], dir: &Path) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for part in scope.filter(&self.wanted).split(&self.each) {
            let Some(name) = self.name.render_all(&part) else { continue };
            let values = papers.iter().filter(|paper| paper.plot.as_ref() == Some(&name));
            let values: Vec<_> = values.flat_map(|paper| &paper.values).collect();
            if self.draw_one(&part, &name, &values, dir)? {
                names.push(name);
            }
        }
        Ok(names)
    }

    #[cfg(test)]
    pub fn check(&self) -> Result<()> {
        for word in [&self.label, &self.group] {
            Template::parse(word)?;
        }
        for words in variations(&self.vary) {
            let value = words.iter().fold(self.value.clone(), |all, word| word.value(&all));
            Expression::parse(&value)?;
        }
        Ok(())
    }

    /// Whether there was something to draw.
    fn draw_one(
        &self,
        scope: &Scope,
        name: &str,
        paper: &[&PaperValue],
        dir: &Path,
    ) -> Result<bool> {
        let title = self.title.render(scope);
        match self.kind {
            Kind::Bars => {
                let bars = self.bars(scope)?;
                let (unit, groups) = (self.unit.clone(), self.groups.clone());
                if bars.is_empty() {
                    return Ok(false);
                }
                Bars { title, unit, groups, bars }.draw(dir, name)?;
            }
            _ => {
                let lines = self.lines(scope)?;
                // A single point is in the tables.
                if lines.iter().all(|line| line.points.len() < 2) {
                    return Ok(false);
                }
                let is_distribution = matches!(self.kind, Kind::Distribution | Kind::Throughput);
                let drawing = Lines {
                    title,
                    x_label: self.x_label.clone(),
                    y_label: self.y_label.clone(),
                    y_max: if is_distribution { Some(1.0) } else { self.y_max },
                    is_logarithmic: self.kind == Kind::Throughput,
                    has_points: self.kind == Kind::Lines,
                    paper: self.paper(paper, &lines),
                    lines,
                };
                drawing.draw(dir, name)?;
            }
        }
        Ok(true)
    }

    fn bars(&self, scope: &Scope) -> Result<Vec<Bar>> {
        let mut rules = Vec::new();
        for words in variations(&self.vary) {
            let [label, group] = [&self.label, &self.group].map(|text| {
                Template::parse(&words.iter().fold(text.clone(), |all, word| word.name(&all)))
            });
            let value = words.iter().fold(self.value.clone(), |all, word| word.value(&all));
            rules.push((label?, Expression::parse(&value)?, group?));
        }
        let mut bars = Vec::new();
        for row in scope.split(&self.rows) {
            for (label, value, group) in &rules {
                let value = value.evaluate(&row).and_then(|value| value.number());
                let Some(value) = value else { continue };
                let group = group.render(&row);
                let group = self.groups.iter().position(|one| one.name == group);
                bars.push(Bar {
                    name: label.render(&row),
                    value,
                    group: group.unwrap_or_default(),
                });
            }
        }
        Ok(bars)
    }

    fn lines(&self, scope: &Scope) -> Result<Vec<Line>> {
        let mut lines = Vec::new();
        let rows = scope.split(&self.rows);
        for (words, row) in
            variations(&self.vary).iter().flat_map(|one| rows.iter().map(move |row| (one, row)))
        {
            let label = words.iter().fold(self.label.clone(), |all, word| word.name(&all));
            let value = words.iter().fold(self.value.clone(), |all, word| word.value(&all));
            let mut name = Template::parse(&label)?.render(row);
            let points = match self.kind {
                Kind::Lines => self.points(row, &value)?,
                Kind::Traces => self.trace(row),
                _ => {
                    let values = self.values(row, &value);
                    name += &format!(" (n = {})", values.len());
                    staircase(&values)
                }
            };
            if !points.is_empty() {
                lines.push(Line { name, points });
            }
        }
        Ok(lines)
    }

    fn values(&self, row: &Scope, name: &str) -> Vec<f64> {
        if self.kind == Kind::Distribution {
            return row.values(name, None);
        }
        // Bytes per millisecond are kilobytes per second.
        let rate = |sample: &&Sample| {
            let ms = sample.value(name)?;
            Some(sample.size_bytes as f64 / ms / 1000.0)
        };
        ascending(row.samples.iter().filter_map(rate))
    }

    fn points(&self, row: &Scope, value: &str) -> Result<Vec<(f64, f64)>> {
        let value = Expression::parse(value)?;
        let point = |part: &Scope| {
            let x = part.word(&self.x)?.parse().ok()?;
            Some((x, value.evaluate(part)?.number()?))
        };
        let mut points: Vec<_> = row.split(&[&self.x]).iter().filter_map(point).collect();
        points.sort_by(|a: &(f64, f64), b| a.0.total_cmp(&b.0));
        Ok(points)
    }

    fn trace(&self, row: &Scope) -> Vec<(f64, f64)> {
        let has_points = |sample: &&&Sample| !sample.trace(&self.x).is_empty();
        let mut samples: Vec<_> = row.samples.iter().filter(has_points).collect();
        let value = |sample: &Sample| sample.value(&self.value).unwrap_or(f64::INFINITY);
        samples.sort_by(|a, b| value(a).total_cmp(&value(b)));
        let [x, y] = self.scale;
        let shown = samples.get(samples.len() / 2);
        let points = shown.into_iter().flat_map(|one| one.trace(&self.x));
        points.map(|(a, b)| (a * x, b * y)).collect()
    }

    /// The paper's values beside these lines; one without a place is a line across.
    fn paper(&self, values: &[&PaperValue], lines: &[Line]) -> Vec<Line> {
        let Some(scale) = self.paper_scale else { return Vec::new() };
        let most = lines.iter().flat_map(|line| &line.points).map(|(x, _)| *x).fold(0.0, f64::max);
        let line = |value: &&PaperValue| Line {
            name: format!("paper: {}", value.name),
            points: match value.x {
                Some(x) => vec![(x, value.value * scale)],
                None => [0.0, most].map(|x| (x, value.value * scale)).into(),
            },
        };
        values.iter().map(line).collect()
    }
}
