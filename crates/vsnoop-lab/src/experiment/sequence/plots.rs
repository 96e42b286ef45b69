//! Bytes over time, of the transfer whose time is the median of its configuration.

use std::path::Path;

use anyhow::Result;

use crate::results::chart::Chart;
use crate::results::drawing::{Drawing, Line};
use crate::results::{Group, Results, Sample, Trace, size_text};

type Points = fn(&Trace) -> &Vec<(f64, f64)>;

const VIEWS: [(&str, &str, Points); 2] =
    [("sent", "sent", |trace| &trace.sent), ("acked", "acknowledged", |trace| &trace.acked)];

/// A plot of each view in each cell.
pub fn draw(results: &Results, dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let groups = results.groups();
    for group in &groups {
        for (file, word, points) in VIEWS {
            let name = match groups.len() {
                1 => file.to_owned(),
                _ => format!("{file}-{}-{}", group.size_bytes, group.cell.suffix()),
            };
            let title = format!("{} {word}: {}", size_text(group.size_bytes), group.cell);
            let lines: Vec<_> = results
                .configurations()
                .into_iter()
                .filter_map(|configuration| {
                    let points = points(median(results, &configuration, group)?.trace.as_ref()?);
                    let points = points.iter().map(|(ms, bytes)| (*ms, bytes / 1000.0)).collect();
                    Some(Line { name: configuration, points })
                })
                .collect();
            let most = lines.iter().flat_map(|line| &line.points).map(|point| point.1);
            let y_max = most.fold(1.0, f64::max) * 1.05;
            let (x_label, y_label) = ("time since the SYN [ms]", "sequence number [KB]");
            Chart { title, x_label, y_label, y_max, lines, paper: Vec::new() }.draw(dir, &name)?;
            names.push(name);
        }
    }
    Ok(names)
}

/// The transfer with the median time until all was acknowledged.
fn median<'a>(results: &'a Results, configuration: &str, group: &Group) -> Option<&'a Sample> {
    let of = |sample: &&Sample| {
        sample.configuration == configuration && sample.group() == *group && sample.trace.is_some()
    };
    let mut samples: Vec<_> = results.samples.iter().filter(of).collect();
    let acked = |sample: &Sample| sample.acked_ms.unwrap_or(f64::INFINITY);
    samples.sort_by(|a, b| acked(a).total_cmp(&acked(b)));
    samples.get(samples.len() / 2).copied()
}
