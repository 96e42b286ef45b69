//! The figures of the VNET paper as bars: latency, its deviation, bandwidth; for each path.

use std::path::Path;

use anyhow::Result;

use super::values::{self, carriers, deviation, mean};
use crate::results::bars::{Bar, Bars};
use crate::results::drawing::Drawing;
use crate::results::{Cell, Results};

/// Figs 4, 5 and 6, of every path with offloads.
pub fn vnet(results: &Results, dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for cell in results.cells() {
        let offloads = if values::has_offloads(&cell) { "" } else { "-no-offloads" };
        let loss = if cell.path_loss_percent > 0.0 {
            format!("-loss{}", cell.path_loss_percent)
        } else {
            String::new()
        };
        for (name, title, unit, value) in [
            (
                "latency",
                "Average latency, idle",
                "ms",
                latency as fn(&values::Values) -> Option<f64>,
            ),
            ("latency-deviation", "Standard deviation of latency, idle", "ms", spread),
            ("bandwidth", "Bandwidth, one TCP stream", "Mb/s", bandwidth),
        ] {
            let name = format!("{name}{loss}{offloads}");
            if draw(results, dir, &cell, &name, &format!("{title}; {cell}"), unit, value)? {
                names.push(name);
            }
        }
    }
    Ok(names)
}

/// The goodput of every content, in bars by carrier.
pub fn contents(results: &Results, dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for cell in results.cells() {
        let Some(content) = cell.link.map(|link| link.content.name()) else { continue };
        let name = format!("goodput-{content}");
        let title = format!("Goodput of {content}; {cell}");
        if draw(results, dir, &cell, &name, &title, "Mb/s", bandwidth)? {
            names.push(name);
        }
    }
    Ok(names)
}

fn latency(values: &values::Values) -> Option<f64> {
    mean(&values.idle_pings_ms())
}

fn spread(values: &values::Values) -> Option<f64> {
    deviation(&values.idle_pings_ms())
}

fn bandwidth(values: &values::Values) -> Option<f64> {
    Some(values.median_mbps())
}

/// Whether there was anything to draw.
fn draw(
    results: &Results,
    dir: &Path,
    cell: &Cell,
    name: &str,
    title: &str,
    unit: &'static str,
    value: fn(&values::Values) -> Option<f64>,
) -> Result<bool> {
    let bars: Vec<_> = carriers(results)
        .filter_map(|carrier| {
            let values = values::of(results, carrier.name, |other| other == cell)?;
            Some(Bar { name: carrier.name.to_owned(), value: value(&values)? })
        })
        .collect();
    if bars.is_empty() {
        return Ok(false);
    }
    Bars { title: title.to_owned(), unit, bars }.draw(dir, name)?;
    Ok(true)
}
