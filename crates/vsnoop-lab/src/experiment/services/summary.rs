//! Tables, figures and the plot of the runner `services`.

use std::path::Path;

use anyhow::Result;

use crate::experiment::spent::{self, QUEUED, RAN, THROTTLED};
use crate::results::bars::{self, Bar, Bars};
use crate::results::drawing::{COLOURS, Drawing};
use crate::results::statistics::{Ratio, named, percentile, ratio_of_medians};
use crate::results::table::{Style, grid, milliseconds, or_dash};
use crate::results::{Figure, Group, Results};

/// Names of values of a sample.
pub const RATE: &str = "operations_per_s";
pub const P50: &str = "p50_ms";
pub const P99: &str = "p99_ms";
pub const ERRORS: &str = "errors";
/// How long the load generator ran, with its preparations.
pub const TOOK: &str = "took_ms";

/// Fewer operations in a sample have no 99th percentile.
const FEW: f64 = 20.0;

const OFF: &str = "off";
const VSNOOP: &str = "vsnoop";
const FILE: &str = "faster";
const SPENT: [&str; 5] = [
    "workload",
    "the VM ran, % of the time\noff / vsnoop",
    "its quota was used up, %\noff / vsnoop",
    "others ran, %\noff / vsnoop",
    "CPU ms each\noff / vsnoop",
];

/// A table for each cell.
pub fn tables(results: &Results, style: Style) -> String {
    let header = [
        "workload",
        "n",
        "per s\noff",
        "per s\nvsnoop",
        "times as many\n(95 %)",
        "p50 ms\noff / vsnoop",
        "p99 ms\noff / vsnoop",
        "errors\noff / vsnoop",
    ];
    let table = |cell| {
        let groups = results.groups().into_iter().filter(|group| group.cell == cell);
        let heading = match style {
            Style::Terminal => cell.to_string(),
            Style::Markdown => format!("### {cell}"),
        };
        let groups: Vec<_> = groups.collect();
        let rows = groups.iter().map(|group| row(results, group)).collect();
        let mut text = format!("{heading}\n\n{}", grid(style, &header, 1, rows));
        let spent: Vec<_> = groups.iter().filter_map(|group| spent(results, group)).collect();
        if !spent.is_empty() {
            text += &format!("\n\n{}", grid(style, &SPENT, 1, spent));
        }
        text
    };
    results.cells().into_iter().map(table).collect::<Vec<_>>().join("\n\n")
}

fn row(results: &Results, group: &Group) -> Vec<String> {
    let median = |configuration: &str, value: &str| {
        percentile(&named(results, configuration, group, value), 50.0)
    };
    let rate = |configuration: &str| or_dash(rate_text)(median(configuration, RATE));
    let both = |value: &str| {
        let of = |configuration: &str| or_dash(milliseconds)(median(configuration, value));
        format!("{} / {}", of(OFF), of(VSNOOP))
    };
    let errors = |configuration: &str| {
        named(results, configuration, group, ERRORS).iter().sum::<f64>().to_string()
    };
    vec![
        name(group),
        named(results, OFF, group, RATE).len().to_string(),
        rate(OFF),
        rate(VSNOOP),
        faster(results, group).map_or("-".into(), |ratio| ratio.text()),
        both(P50),
        if has_p99(results, group) { both(P99) } else { "- / -".into() },
        format!("{} / {}", errors(OFF), errors(VSNOOP)),
    ]
}

/// Whether the samples have enough operations for a 99th percentile.
fn has_p99(results: &Results, group: &Group) -> bool {
    let median = |value: &str| spent::median(results, OFF, group, value);
    let operations = median(RATE).zip(median(TOOK)).map(|(rate, ms)| rate * ms / 1000.0);
    operations.is_none_or(|number| number >= FEW)
}

/// What the VM did in the time of a load generator, if that was measured.
fn spent(results: &Results, group: &Group) -> Option<Vec<String>> {
    let share = |configuration: &str, name: &str| {
        let took = spent::median(results, configuration, group, TOOK)?;
        Some(100.0 * spent::median(results, configuration, group, name)? / took)
    };
    share(OFF, RAN)?;
    let both = |name: &str| {
        let percent = |configuration: &str| {
            or_dash(|value| format!("{value:.0}"))(share(configuration, name))
        };
        format!("{} / {}", percent(OFF), percent(VSNOOP))
    };
    let each = |configuration: &str| {
        let rate = spent::median(results, configuration, group, RATE)?;
        Some(share(configuration, RAN)? / 100.0 * 1000.0 / rate)
    };
    let each = [OFF, VSNOOP].map(|name| or_dash(milliseconds)(each(name))).join(" / ");
    Some(vec![name(group), both(RAN), both(THROTTLED), both(QUEUED), each])
}

fn name(group: &Group) -> String {
    group.what.map_or_else(|| "-".into(), |what| what.to_string())
}

/// Three digits, or all before the point.
fn rate_text(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// How many times as many operations there were with vsnoop.
fn faster(results: &Results, group: &Group) -> Option<Ratio> {
    let rates = |configuration: &str| named(results, configuration, group, RATE);
    ratio_of_medians(&rates(VSNOOP), &rates(OFF))
}

pub fn figures(results: &Results) -> Vec<Figure> {
    let figures = |group: &Group| {
        let name = name(group).to_lowercase().replace(' ', "_");
        let suffix = group.cell.suffix();
        let ratio = faster(results, group).map(|ratio| Figure {
            name: format!("rate_vsnoop_over_off_{name}_{suffix}"),
            value: ratio.value,
            unit: "times".into(),
            better: "higher".into(),
        });
        let later = |value: &str| {
            let median = |configuration: &str| {
                percentile(&named(results, configuration, group, value), 50.0)
            };
            has_p99(results, group).then_some(())?;
            Some(Figure {
                name: format!("p99_vsnoop_over_off_{name}_{suffix}"),
                value: median(VSNOOP)? / median(OFF)?,
                unit: "times".into(),
                better: "lower".into(),
            })
        };
        [ratio, later(P99)].into_iter().flatten().collect::<Vec<_>>()
    };
    results.groups().iter().flat_map(figures).collect()
}

/// How many times as many operations there were with vsnoop, near and far.
pub fn plots(results: &Results, dir: &Path) -> Result<Vec<String>> {
    const GROUPS: [bars::Group; 2] = [
        bars::Group { name: "near", colour: COLOURS[0] },
        bars::Group { name: "some milliseconds away", colour: COLOURS[1] },
    ];
    let bar = |group: &Group| {
        let far = group.cell.path_rtt_ms > 0.0;
        let path = if far { format!("{} ms", group.cell.path_rtt_ms) } else { "near".into() };
        Some(Bar {
            name: format!("{}, {path}", name(group)),
            value: faster(results, group)?.value,
            group: usize::from(far),
        })
    };
    let mut groups = results.groups();
    groups.sort_by_key(|group| (group.size_bytes, group.cell.path_rtt_ms > 0.0));
    let bars = groups.iter().filter_map(bar).collect();
    let title = "Operations per second, times those without vsnoop".to_owned();
    Bars { title, unit: "times", groups: &GROUPS, bars }.draw(dir, FILE)?;
    Ok(vec![FILE.to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::testing::results;
    use crate::results::{Label, Sample};

    fn sample(configuration: &str, rate: f64, errors: f64) -> Sample {
        let values = [(RATE, rate), (P50, 12.0), (P99, 80.0), (ERRORS, errors)];
        Sample {
            configuration: configuration.into(),
            what: Some(Label::from("scp 2 MB").unwrap()),
            values: values.map(|(name, value)| (name.to_owned(), value)).into(),
            ..Sample::default()
        }
    }

    #[test]
    fn rates_are_medians_and_errors_are_sums() {
        let rates = [(OFF, 1.0, 0.0), (OFF, 3.0, 1.0), (VSNOOP, 6.0, 2.0), (OFF, 2.0, 2.0)];
        let results = results(rates.map(|(name, rate, errors)| sample(name, rate, errors)).into());
        let table = tables(&results, Style::Markdown);
        assert!(table.contains("scp 2 MB"), "{table}");
        for text in [" 2.00 |", " 6.00 |", " 3.00 |", " 3 / 2 |"] {
            assert!(table.contains(text), "{text:?} in {table}");
        }
        let figures = figures(&results);
        assert_eq!(figures[0].name, "rate_vsnoop_over_off_scp_2_mb_0vms_load0");
        assert_eq!(figures[0].value, 3.0);
        let text = tables(&results, Style::Terminal);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(!text.contains("quota"), "what the VM did was not measured: {text}");
    }

    #[test]
    fn what_the_vm_did_is_a_share_of_the_time_of_the_load_generator() {
        let measured = |configuration: &str, rate: f64, ran: f64, throttled: Option<f64>| {
            let mut sample = sample(configuration, rate, 0.0);
            let spent = [(TOOK, Some(5000.0)), (RAN, Some(ran)), (QUEUED, Some(50.0))];
            let all = spent.into_iter().chain([(THROTTLED, throttled)]);
            let all = all.filter_map(|(name, value)| Some((name.to_owned(), value?)));
            sample.values.extend(all);
            sample
        };
        // 200 ms of CPU time each second for 4 and 5 operations, some 20 in all.
        let results = results(vec![
            measured(OFF, 4.0, 1000.0, Some(3500.0)),
            measured(VSNOOP, 5.0, 1000.0, None),
        ]);
        let table = tables(&results, Style::Markdown);
        let row = table.lines().rfind(|line| line.contains("scp 2 MB")).unwrap();
        let fields: Vec<_> = row.split('|').map(str::trim).collect();
        assert!(table.contains(" 80.0 / 80.0 "), "{table}");
        assert_eq!(fields[2..6], ["20 / 20", "70 / -", "1 / 1", "50.0 / 40.0"], "{table}");
        let few = results_of_few();
        let table = tables(&few, Style::Markdown);
        assert!(table.contains(" - / - ") && !table.contains("80.0"), "{table}");
        assert!(figures(&few).iter().all(|one| !one.name.starts_with("p99")));
    }

    /// One operation a second, five in a sample.
    fn results_of_few() -> Results {
        let mut few = sample(OFF, 1.0, 0.0);
        few.values.insert(TOOK.into(), 5000.0);
        results(vec![few])
    }
}
