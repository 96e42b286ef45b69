//! The papers' figures as bar charts: of VNET latency, its deviation and bandwidth, for each path,
//! with a colour for carriers that encrypt and one for the others; of the packet compression
//! service its tests, and the bytes that it saved.

use std::path::Path;

use anyhow::Result;
use plotters::style::RGBColor;

use super::values::{self, carriers, deviation, mean};
use crate::peers::link::{Carrier, Kind};
use crate::results::bars::{Bar, Bars, Group};
use crate::results::drawing::Drawing;
use crate::results::link::Content;
use crate::results::{Cell, Results};

/// In the order that a reader expects: no tunnel, other tunnels, vsnoop.
const GROUPS: [Group; 5] = [
    Group { name: "no tunnel, or the kernel's", colour: RGBColor(0x8c, 0x8c, 0x8c) },
    Group { name: "others, plain", colour: RGBColor(0xfd, 0xae, 0x61) },
    Group { name: "others, encrypted", colour: RGBColor(0xd9, 0x5f, 0x02) },
    Group { name: "vsnoop, plain", colour: RGBColor(0x92, 0xc5, 0xde) },
    Group { name: "vsnoop, encrypted", colour: RGBColor(0x1b, 0x6c, 0xa8) },
];

fn group(carrier: &Carrier) -> usize {
    match carrier.kind {
        Kind::Kernel | Kind::Between => 0,
        Kind::Plain => 1,
        Kind::Sealed => 2,
        Kind::Own if carrier.name.ends_with("-plain") => 3,
        Kind::Own => 4,
    }
}

/// Figs 4, 5 and 6, of every path with offloads.
pub fn vnet(results: &Results, dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let mut cells = results.cells();
    // Samples are in random order, plots in that of the paper.
    cells.sort_by_key(|cell| (!values::has_offloads(cell), cell.path_loss_percent > 0.0));
    for cell in cells {
        let offloads = if values::has_offloads(&cell) { "" } else { "-no-offloads" };
        let loss = if cell.path_loss_percent > 0.0 {
            format!("-loss{}", cell.path_loss_percent)
        } else {
            String::new()
        };
        for (name, title, unit, value) in [
            (
                "latency",
                "Average latency, idle (VNET, Fig. 4)",
                "ms",
                latency as fn(&values::Values) -> Option<f64>,
            ),
            (
                "latency-deviation",
                "Standard deviation of latency, idle (VNET, Fig. 5)",
                "ms",
                spread,
            ),
            ("bandwidth", "Bandwidth, one TCP stream (VNET, Fig. 6)", "Mb/s", bandwidth),
        ] {
            let name = format!("{name}{loss}{offloads}");
            if draw(results, dir, &cell, &name, &format!("{title}; {cell}"), unit, value)? {
                names.push(name);
            }
        }
    }
    Ok(names)
}

/// The goodput of every content, in bars by carrier; of the paper's tests also the bytes that were
/// saved.
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
    names.sort();
    let name = "saved-iperf";
    let bars: Vec<_> = [Content::Iperf10s, Content::Iperf30s, Content::Iperf200mb]
        .into_iter()
        .flat_map(|test| {
            carriers(results).filter_map(move |carrier| {
                let values = values::of(results, carrier.name, values::has_content(test))?;
                Some(Bar {
                    name: format!("{}, {}", test.name(), carrier.name),
                    value: values.saved_bytes() / 1e6,
                    group: group(carrier),
                })
            })
        })
        .collect();
    if !bars.is_empty() {
        let title = "Bytes saved in the tests of the packet compression service (its Table 1)";
        Bars { title: title.into(), unit: "MB", groups: &GROUPS, bars }.draw(dir, name)?;
        names.push(name.to_owned());
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

/// Draws a plot; `false` if there are no values to draw.
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
            Some(Bar {
                name: carrier.name.to_owned(),
                value: value(&values)?,
                group: group(carrier),
            })
        })
        .collect();
    if bars.is_empty() {
        return Ok(false);
    }
    Bars { title: title.to_owned(), unit, groups: &GROUPS, bars }.draw(dir, name)?;
    Ok(true)
}
