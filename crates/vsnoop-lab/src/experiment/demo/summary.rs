//! The table, the plot and the figures.

use std::path::Path;

use anyhow::Result;
use vsnoop_guest::web;

use crate::experiment::declared::Declaration;
use crate::experiment::nginx::GET;
use crate::experiment::nginx::exchange::request_text;
use crate::results::bars::{self, Bar, Bars};
use crate::results::drawing::{COLOURS, Drawing};
use crate::results::statistics::{self, Metric, TOTAL, by_turn, percentile};
use crate::results::table::{Style, grid, milliseconds};
use crate::results::wrap::wrapped;
use crate::results::{Cell, Figure, Group, Results, size_text};

pub const NAME: &str = "demo";

/// Time from the SYN to the acknowledgement of the whole request.
const REQUEST: Metric =
    Metric { name: "request_ms", of: |sample| Some(sample.connect_ms? + sample.acked_ms?) };

/// The name of the plot's file, without extension.
const FILE: &str = "confirmed";
const OFF: &str = "off";
const VSNOOP: &str = "vsnoop";

/// At most 80 columns wide on a terminal.
pub fn table(results: &Results, style: Style) -> String {
    let header = [
        "request",
        "path",
        "confirmed\noff, ms\np50/p90",
        "confirmed\nvsnoop\np50/p90",
        "times sooner\n(95 %)",
        "acked ms\noff/vsnoop",
    ];
    let rows = results.groups().into_iter().map(|group| row(results, &group)).collect();
    let meaning = match style {
        // The report has it in its text.
        Style::Markdown => String::new(),
        Style::Terminal => format!("\n{}", wrapped(meaning(), COLUMNS)),
    };
    format!("{}{meaning}", grid(style, &header, 2, rows))
}

/// What the table shows.
fn meaning() -> &'static str {
    Declaration::find(NAME).map_or("", |demo| &demo.what_to_see)
}

fn row(results: &Results, group: &Group) -> Vec<String> {
    let values = |name: &str, metric: &Metric| statistics::values(results, name, group, metric);
    let text = |value: Option<f64>| value.map_or("-".into(), milliseconds);
    let confirmed = |name: &str| {
        let values = values(name, &TOTAL);
        format!("{}/{}", text(percentile(&values, 50.0)), text(percentile(&values, 90.0)))
    };
    let acked = |name: &str| text(percentile(&values(name, &REQUEST), 50.0));
    // Small requests are made in batches.
    let [off, vsnoop] = [OFF, VSNOOP].map(|name| by_turn(results, name, group, &TOTAL));
    let sooner = statistics::ratio_of_medians(&off, &vsnoop);
    let sooner = sooner.map_or("-".into(), |ratio| ratio.text());
    vec![
        request(group),
        path_text(group),
        confirmed(OFF),
        confirmed(VSNOOP),
        sooner,
        format!("{}/{}", acked(OFF), acked(VSNOOP)),
    ]
}

/// `PUT 1 MB`, `GET 1 MB`.
fn request(group: &Group) -> String {
    match is_download(group) {
        true => format!("GET {}", size_text(group.size_bytes)),
        false => request_text(group.size_bytes),
    }
}

fn is_download(group: &Group) -> bool {
    group.what.is_some_and(|what| &*what == GET)
}

fn path_text(group: &Group) -> String {
    match group.cell.path_rtt_ms {
        0.0 => "near".into(),
        rtt => format!("{rtt} ms"),
    }
}

/// Of a terminal.
const COLUMNS: usize = 80;

/// The medians of what the client waits for.
pub fn plot(results: &Results, dir: &Path) -> Result<Vec<String>> {
    const NAMES: [&str; 2] = [OFF, VSNOOP];
    const GROUPS: [bars::Group; 2] = [
        bars::Group { name: OFF, colour: COLOURS[0] },
        bars::Group { name: VSNOOP, colour: COLOURS[1] },
    ];
    let bar = |group: &Group, number: usize| {
        let values = statistics::values(results, NAMES[number], group, &TOTAL);
        Some(Bar {
            name: format!("{}, {}", request(group), path_text(group)),
            value: percentile(&values, 50.0)?,
            group: number,
        })
    };
    let groups = results.groups();
    let bars = groups.iter().flat_map(|group| [bar(group, 0), bar(group, 1)]).flatten().collect();
    let title = "Time until the server has confirmed, median".to_owned();
    Bars { title, unit: "ms", groups: &GROUPS, bars }.draw(dir, FILE)?;
    Ok(vec![FILE.to_owned()])
}

/// Names without a path are those of the far one. Where a run has several cells of a kind, each
/// name ends with its cell.
pub fn figures(results: &Results) -> Vec<Figure> {
    let cells = results.cells();
    let kind = |cell: &Cell| cell.path_rtt_ms > 0.0;
    let figures = |group: &Group| {
        let like = cells.iter().filter(|cell| kind(cell) == kind(&group.cell)).count();
        let mut figures = figures_of(results, group);
        if like > 1 {
            let suffix = group.cell.suffix();
            figures.iter_mut().for_each(|figure| figure.name += &format!("_{suffix}"));
        }
        figures
    };
    results.groups().iter().flat_map(figures).collect()
}

fn figures_of(results: &Results, group: &Group) -> Vec<Figure> {
    let at = |name: &str, metric: &Metric, percent| {
        percentile(&statistics::values(results, name, group, metric), percent)
    };
    let ratio = |over: Option<f64>, under: Option<f64>| Some(over? / under?);
    let times = |name: String, value: Option<f64>, better: &str| {
        let (unit, better) = ("times".to_owned(), better.to_owned());
        value.map(|value| Figure { name, value, unit, better })
    };
    let size = group.size_bytes;
    let near = if group.cell.path_rtt_ms > 0.0 { "" } else { "near_" };
    let sooner = |metric: &Metric| ratio(at(OFF, metric, 50.0), at(VSNOOP, metric, 50.0));
    if size == web::PAGE_BYTES {
        let later = |percent| ratio(at(VSNOOP, &TOTAL, percent), at(OFF, &TOTAL, percent));
        let figures = [
            times("get_p50_vsnoop_over_off".into(), later(50.0), "lower"),
            times("get_p99_vsnoop_over_off".into(), later(99.0), "lower"),
        ];
        return figures.into_iter().flatten().collect();
    }
    if is_download(group) {
        let name = format!("get_p50_off_over_vsnoop_{near}{size}");
        return times(name, sooner(&TOTAL), "higher").into_iter().collect();
    }
    let put = times(format!("put_p50_off_over_vsnoop_{near}{size}"), sooner(&TOTAL), "higher");
    let acked =
        times(format!("acked_p50_off_over_vsnoop_{near}{size}"), sooner(&REQUEST), "higher");
    let retransmissions = [OFF, VSNOOP].map(|name| {
        let of_all: u32 = results.of(name, group).map(|sample| sample.retransmissions).sum();
        Some(Figure {
            name: format!("retransmissions_{name}_{near}{size}"),
            value: f64::from(of_all),
            unit: "segments".into(),
            better: "lower".into(),
        })
    });
    [put, acked].into_iter().chain(retransmissions).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::definition::Options;
    use crate::experiment::goals;
    use crate::results::testing::{results, sample};
    use crate::results::{Label, Sample};

    fn upload(configuration: &str, confirmed_ms: f64) -> Sample {
        let mut sample = sample(configuration, confirmed_ms / 2.0);
        sample.size_bytes = 1_000_000;
        sample.connect_ms = Some(20.0);
        sample.delivered_ms = Some(confirmed_ms - 20.0);
        sample.cell.path_rtt_ms = 20.0;
        sample
    }

    #[test]
    fn figures_say_how_many_times_sooner_and_the_table_fits_a_terminal() {
        let results =
            results(vec![upload(OFF, 1300.0), upload(OFF, 1330.0), upload(VSNOOP, 526.0)]);
        let figures = figures(&results);
        let value = |name: &str| figures.iter().find(|one| one.name == name).map(|one| one.value);
        assert_eq!(value("put_p50_off_over_vsnoop_1000000"), Some(2.5));
        assert_eq!(value("retransmissions_off_1000000"), Some(2.0));
        let table = table(&results, Style::Terminal);
        assert!(table.contains("PUT 1 MB") && table.contains("2.50"), "{table}");
        assert!(table.contains("what the client waits for"), "{table}");
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    }

    /// Names that documents and others who measure quote.
    const FIGURES: [&str; 10] = [
        "put_p50_off_over_vsnoop_100000",
        "put_p50_off_over_vsnoop_1000000",
        "put_p50_off_over_vsnoop_4000000",
        "put_p50_off_over_vsnoop_near_1000000",
        "get_p99_vsnoop_over_off",
        "acked_p50_off_over_vsnoop_100000",
        "get_p50_off_over_vsnoop_100000",
        "get_p50_off_over_vsnoop_1000000",
        "get_p50_off_over_vsnoop_4000000",
        "get_p50_off_over_vsnoop_near_1000000",
    ];

    #[test]
    fn a_run_without_options_has_the_figures_that_are_quoted_and_judges_its_goals() {
        let declared = Declaration::find(NAME).unwrap();
        let plan = declared.plan(&Options::default()).unwrap();
        let mut samples = Vec::new();
        for (cell, part) in plan.machines().iter().flat_map(|machines| &machines.cells) {
            for size in &part.sizes {
                let small = size.bytes == web::PAGE_BYTES;
                for what in [None, Label::from(GET).ok().filter(|_| !small)] {
                    samples.extend([(OFF, 900.0), (VSNOOP, 300.0)].map(|(name, ms)| Sample {
                        size_bytes: size.bytes,
                        cell: *cell,
                        what,
                        ..upload(name, ms)
                    }));
                }
            }
        }
        let mut results = results(samples);
        results.figures = figures(&results);
        let missing = FIGURES.iter().filter(|name| goals::found(&results, name).is_none());
        assert_eq!(missing.collect::<Vec<_>>(), [&""; 0]);
        let text = goals::judge(&declared.goals).unwrap()(&results).unwrap();
        assert_eq!(text.matches("| reached |").count(), declared.goals.len(), "{text}");
    }

    #[test]
    fn the_table_fits_a_terminal_with_seconds_and_with_an_interval_in_the_noise() {
        let mut samples = Vec::new();
        for turn in 0..8 {
            for (name, ms) in [(OFF, 2000.0), (VSNOOP, 2010.0)] {
                let one = upload(name, ms + 100.0 * f64::from(turn));
                samples.push(Sample { size_bytes: 100_000, turn: Some(turn as usize), ..one });
            }
        }
        let table = table(&results(samples), Style::Terminal);
        assert!(table.contains("PUT 100 KB") && table.contains("noise ("), "{table}");
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    }
}
