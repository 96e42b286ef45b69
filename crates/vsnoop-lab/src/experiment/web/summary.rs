//! The table of operations with the paper's beside it, figures and the plot.

use std::path::Path;

use anyhow::Result;

use super::operation::{OPERATIONS, Operation};
use crate::results::bars::{self, Bar, Bars};
use crate::results::drawing::{COLOURS, Drawing};
use crate::results::statistics::{Ratio, named, percentile, ratio_of_means, ratio_of_medians};
use crate::results::table::{Style, grid, milliseconds, or_dash};
use crate::results::{Figure, Group, Results, Sample};

/// Names of values of a sample.
pub const RATE: &str = "requests_per_s";
pub const P50: &str = "p50_ms";
pub const P99: &str = "p99_ms";
pub const ERRORS: &str = "errors";

const OFF: &str = "off";
const VSNOOP: &str = "vsnoop";
const FILE: &str = "gain";

/// The name of an operation's count.
pub fn count(operation: &str) -> String {
    format!("{operation}_count")
}

/// Shares of the core that the site, the database, and the other machines together used.
const RAN: [&str; 3] = ["site_ran_percent", "database_ran_percent", "others_ran_percent"];

/// The name of the one that a machine counts for.
pub fn ran(machine: usize) -> String {
    RAN[machine.min(RAN.len() - 1)].to_owned()
}

pub fn tables(results: &Results, style: Style) -> String {
    let header =
        ["operation", "off", "vsnoop", "more %", "paper\nwithout", "paper\nwith", "paper\nmore %"];
    let summary = [
        "",
        "rounds",
        "per s\np50",
        "ms\np50",
        "ms\np99",
        "errors",
        "of the core, %\nsite / database / others",
    ];
    let table = |group: Group| {
        let heading = match style {
            Style::Terminal => group.cell.to_string(),
            Style::Markdown => format!("### {}", group.cell),
        };
        let mut rows: Vec<_> =
            OPERATIONS.iter().map(|operation| row(results, &group, operation)).collect();
        rows.push(total(results, &group));
        let counts = grid(style, &header, 1, rows);
        let lines = [OFF, VSNOOP].map(|name| line(results, &group, name)).into();
        let rates = grid(style, &summary, 1, lines);
        let faster = faster(results, &group).map_or("-".into(), |ratio| ratio.text());
        format!(
            "{heading}\n\n{counts}\n\n{rates}\n\nRequests per second, vsnoop over off: {faster}"
        )
    };
    results.groups().into_iter().map(table).collect::<Vec<_>>().join("\n\n")
}

fn row(results: &Results, group: &Group, operation: &Operation) -> Vec<String> {
    cells(results, group, operation.name, std::slice::from_ref(operation))
}

fn total(results: &Results, group: &Group) -> Vec<String> {
    cells(results, group, "Total", &OPERATIONS)
}

/// The counts of some operations together. Where the rounds show no difference, there is no number
/// for it.
fn cells(results: &Results, group: &Group, name: &str, operations: &[Operation]) -> Vec<String> {
    let counts = |configuration: &str| -> f64 {
        operations.iter().map(|one| counted(results, group, configuration, one)).sum()
    };
    let of_rounds = |configuration: &str| -> Vec<f64> {
        let of_round = |sample: &Sample| {
            operations.iter().filter_map(|one| sample.values.get(&count(one.name))).sum()
        };
        results.of(configuration, group).map(of_round).collect()
    };
    let paper =
        |of: fn(&Operation) -> u32| -> f64 { f64::from(operations.iter().map(of).sum::<u32>()) };
    let percent = |times: f64| format!("{:+.1}", (times - 1.0) * 100.0);
    let more = match ratio_of_means(&of_rounds(VSNOOP), &of_rounds(OFF)) {
        Some(ratio) if ratio.has_interval() && ratio.is_noise() => "noise".into(),
        Some(ratio) => percent(ratio.value),
        None => "-".into(),
    };
    let (paper_off, paper_vsnoop) = (paper(|one| one.paper_off), paper(|one| one.paper_vsnoop));
    vec![
        name.to_owned(),
        counts(OFF).to_string(),
        counts(VSNOOP).to_string(),
        more,
        paper_off.to_string(),
        paper_vsnoop.to_string(),
        percent(paper_vsnoop / paper_off),
    ]
}

/// How often an operation was done, in all rounds.
fn counted(results: &Results, group: &Group, configuration: &str, operation: &Operation) -> f64 {
    named(results, configuration, group, &count(operation.name)).iter().sum()
}

fn line(results: &Results, group: &Group, configuration: &str) -> Vec<String> {
    let values = |value: &str| named(results, configuration, group, value);
    let median = |value: &str| or_dash(milliseconds)(percentile(&values(value), 50.0));
    let mut row = vec![
        configuration.to_owned(),
        values(RATE).len().to_string(),
        median(RATE),
        median(P50),
        median(P99),
        values(ERRORS).iter().sum::<f64>().to_string(),
    ];
    let share =
        |name: &str| or_dash(|value| format!("{value:.0}"))(percentile(&values(name), 50.0));
    row.push(RAN.map(share).join(" / "));
    row
}

fn faster(results: &Results, group: &Group) -> Option<Ratio> {
    let rates = |configuration: &str| named(results, configuration, group, RATE);
    ratio_of_medians(&rates(VSNOOP), &rates(OFF))
}

pub fn figures(results: &Results) -> Vec<Figure> {
    let figures = |group: &Group| {
        let suffix = group.cell.suffix();
        let rate = |name: &str| {
            Some(Figure {
                name: format!("web_requests_per_s_{name}_{suffix}"),
                value: percentile(&named(results, name, group, RATE), 50.0)?,
                unit: "1/s".into(),
                better: "higher".into(),
            })
        };
        let ratio = faster(results, group).map(|ratio| Figure {
            name: format!("web_requests_vsnoop_over_off_{suffix}"),
            value: ratio.value,
            unit: "times".into(),
            better: "higher".into(),
        });
        [ratio, rate(OFF), rate(VSNOOP)].into_iter().flatten().collect::<Vec<_>>()
    };
    results.groups().iter().flat_map(figures).collect()
}

/// How many times as often each operation was done with vsnoop, here and in the paper; of the first
/// group.
pub fn plots(results: &Results, dir: &Path) -> Result<Vec<String>> {
    const GROUPS: [bars::Group; 2] = [
        bars::Group { name: "here", colour: COLOURS[1] },
        bars::Group { name: "paper", colour: COLOURS[0] },
    ];
    let Some(&group) = results.groups().first() else { return Ok(Vec::new()) };
    let bars_of = |operation: &Operation| {
        let [off, vsnoop] = [OFF, VSNOOP].map(|name| counted(results, &group, name, operation));
        let paper = f64::from(operation.paper_vsnoop) / f64::from(operation.paper_off);
        let bar = |name: &str, value: f64, group: usize| Bar { name: name.into(), value, group };
        let here = (off > 0.0).then(|| bar(operation.name, vsnoop / off, 0));
        here.into_iter().chain([bar("", paper, 1)]).collect::<Vec<_>>()
    };
    let bars = OPERATIONS.iter().flat_map(bars_of).collect();
    let title = "Operations with vsnoop, times those without".to_owned();
    Bars { title, unit: "times", groups: &GROUPS, bars }.draw(dir, FILE)?;
    Ok(vec![FILE.to_owned()])
}

pub fn difference(results: &Results) -> Option<String> {
    let group = *results.groups().first()?;
    let ratio = faster(results, &group)?;
    let noise = if ratio.is_noise() { ", within the noise" } else { "" };
    let used: f64 = RAN
        .into_iter()
        .filter_map(|name| percentile(&named(results, OFF, &group, name), 50.0))
        .sum();
    Some(format!(
        "vsnoop serves {:.2} times as many requests per second{noise}; in the paper 1.27 times. \
         The machines, which share one core here and were on two hosts in the paper, use {used:.0} % \
         of it without vsnoop: near 100 % it is the bound, whatever the transport does.",
        ratio.value
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::testing::results;

    #[test]
    fn counts_of_rounds_are_added_and_stand_beside_those_of_the_paper() {
        let sample = |configuration: &str, homes: f64| Sample {
            configuration: configuration.into(),
            values: [(count("Home"), homes), (RATE.into(), homes)].into(),
            ..Sample::default()
        };
        let results = results(vec![sample(OFF, 10.0), sample(OFF, 30.0), sample(VSNOOP, 50.0)]);
        let table = tables(&results, Style::Markdown);
        let home = table.lines().find(|line| line.starts_with("| Home ")).unwrap();
        let fields: Vec<_> = home.split('|').map(str::trim).collect();
        // Two rounds and one: of their means.
        assert_eq!(fields[2..8], ["40", "50", "+150.0", "359", "396", "+10.3"], "{table}");
        let total = table.lines().find(|line| line.starts_with("| Total ")).unwrap();
        assert!(total.contains("12237") && total.contains("+27.4"), "{total}");
        assert!(table.contains("over off: 2.50"), "{table}");
        let text = tables(&results, Style::Terminal);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn an_operation_whose_rounds_show_no_difference_has_no_number_for_it() {
        let mut samples = Vec::new();
        for round in 0..8 {
            for (configuration, homes, pages) in [(OFF, 2.0, 100.0), (VSNOOP, 3.0, 150.0)] {
                let odd = f64::from(round % 2);
                let values = [("Home", homes * 4.0 * odd), ("Browse", pages + odd)];
                samples.push(Sample {
                    configuration: configuration.into(),
                    values: values.map(|(name, value)| (count(name), value)).into(),
                    ..Sample::default()
                });
            }
        }
        let results = results(samples);
        let more =
            |operation: &Operation| row(&results, &results.groups()[0], operation)[3].clone();
        assert_eq!((more(&OPERATIONS[0]), more(&OPERATIONS[1])), ("noise".into(), "+49.8".into()));
    }
}
