//! For each cell three tables: times of every configuration, how they relate to those of `vsnoop`,
//! and what the VM did meanwhile; at the end one of the gains in all cells.

use super::gains;
use crate::experiment::spent::{self, RAN};
use crate::experiment::transfers::{HELD, HOLD_FULL};
use crate::results::statistics::{ACKED, DELIVERED, Metric, TOTAL, ratio_of_medians, values};
use crate::results::table::{Style, grid, milliseconds, or_dash};
use crate::results::{Group, Results, size_text};

const TIMES: [&str; 10] = [
    "size",
    "configuration",
    "n",
    "acked\nms p50",
    "p90",
    "delivered\nms p50",
    "p90",
    "total\nms p50",
    "p90",
    "retrans.",
];

const SPENT: [&str; 7] = [
    "size",
    "configuration",
    "total\nms p50",
    "the VM ran\nms p50",
    "it waited for its CPU\nms p50",
    "held\nKB p50",
    "hold full,\nsegments p50",
];

/// The configurations whose medians the columns of the ratios divide. Pairs of which one was not
/// measured have no column.
const PAIRS: [(&str, &str); 4] =
    [("off", "vsnoop"), ("ahead-0", "vsnoop"), ("proxy", "vsnoop"), ("vsnoop", "host")];

pub fn render(results: &Results, style: Style) -> String {
    let measured = results.configurations();
    let is_measured = |name: &str| measured.iter().any(|one| one == name);
    let pairs: Vec<_> =
        PAIRS.into_iter().filter(|(over, under)| is_measured(over) && is_measured(under)).collect();
    let names: Vec<_> = pairs.iter().map(|(over, under)| format!("{over}/{under}")).collect();
    let mut ratio_header = vec!["size", "metric"];
    ratio_header.extend(names.iter().map(String::as_str));
    let cells = results.cells().into_iter().map(|cell| {
        let groups: Vec<_> =
            results.groups().into_iter().filter(|group| group.cell == cell).collect();
        let heading = match style {
            Style::Terminal => cell.to_string(),
            Style::Markdown => format!("### {cell}"),
        };
        let times = groups.iter().flat_map(|group| times(results, group)).collect();
        let mut text = format!("{heading}\n\n{}", grid(style, &TIMES, 2, times));
        let ratios: Vec<_> =
            groups.iter().flat_map(|group| ratios(results, &pairs, group)).collect();
        if !ratios.is_empty() {
            text += &format!("\n\n{}", grid(style, &ratio_header, 2, ratios));
        }
        let spent: Vec<_> = groups.iter().flat_map(|group| spent(results, group)).collect();
        if !spent.is_empty() {
            text += &format!("\n\n{}", grid(style, &SPENT, 2, spent));
        }
        text
    });
    cells.chain(gains::table(results, style)).collect::<Vec<_>>().join("\n\n")
}

fn times(results: &Results, group: &Group) -> Vec<Vec<String>> {
    let row = |name: String| {
        let n = results.summary_of(&name, group, ACKED.name)?.n;
        let mut row = vec![size_text(group.size_bytes), name.clone(), n.to_string()];
        for metric in [ACKED, DELIVERED, TOTAL] {
            let line = results.summary_of(&name, group, metric.name);
            let values = [line.map(|line| line.p50), line.map(|line| line.p90)];
            row.extend(values.map(or_dash(milliseconds)));
        }
        let samples = results.of(&name, group);
        row.push(samples.map(|sample| sample.retransmissions).sum::<u32>().to_string());
        Some(row)
    };
    results.configurations().into_iter().filter_map(row).collect()
}

/// A line for each metric, if there is a ratio in it.
fn ratios(results: &Results, pairs: &[(&str, &str)], group: &Group) -> Vec<Vec<String>> {
    let row = |metric: &Metric| {
        let name = metric.name.trim_end_matches("_ms").to_owned();
        let of = |configuration: &str| values(results, configuration, group, metric);
        let ratios = pairs.iter().map(|(over, under)| ratio_of_medians(&of(over), &of(under)));
        let ratios: Vec<_> = ratios.collect();
        let texts = ratios.iter().map(|ratio| ratio.map_or("-".into(), |ratio| ratio.text()));
        let row = [size_text(group.size_bytes), name].into_iter().chain(texts).collect();
        ratios.iter().any(Option::is_some).then_some(row)
    };
    [ACKED, DELIVERED, TOTAL].iter().filter_map(row).collect()
}

/// What the VM did from the handshake to the answer; of configurations with a VM that receives.
fn spent(results: &Results, group: &Group) -> Vec<Vec<String>> {
    let row = |name: String| {
        let ran = spent::median(results, &name, group, RAN)?;
        let total = results.summary_of(&name, group, TOTAL.name).map(|line| line.p50);
        let waited = spent::waited(results, &name, group);
        let times = [total, Some(ran), waited].map(or_dash(milliseconds));
        let whole = or_dash(|value| format!("{value:.0}"));
        let median = |value: &str| spent::median(results, &name, group, value);
        let held = whole(median(HELD).map(|bytes| bytes / 1000.0));
        let full = whole(median(HOLD_FULL));
        let row = [size_text(group.size_bytes), name].into_iter().chain(times);
        Some(row.chain([held, full]).collect())
    };
    results.configurations().into_iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::spent::QUEUED;
    use crate::results::statistics::summarise;
    use crate::results::testing::{results, sample};

    #[test]
    fn every_configuration_has_a_line_and_every_ratio_its_column() {
        let samples = [("off", 40.0), ("ahead-0", 10.0), ("vsnoop", 2.0), ("host", 123_456.0)];
        let mut results = results(samples.map(|(name, ms)| sample(name, ms)).into());
        summarise(&mut results);
        let text = render(&results, Style::Markdown);
        assert!(text.starts_with("### 3 VMs at load 0.6, path RTT 0 ms\n"), "{text}");
        let line = |words: [&str; 2]| {
            let fields = |line: &str| -> Vec<String> {
                line.split('|').map(|field| field.trim().to_owned()).collect()
            };
            let lines = text.lines().map(fields);
            let mut found =
                lines.filter(|fields| fields.get(1..3) == Some(&words.map(String::from)));
            found.next().unwrap_or_default()
        };
        assert_eq!(line(["10 KB", "ahead-0"])[3..5], ["1", "10.0"]);
        assert_eq!(line(["10 KB", "acked"])[3..7], ["20", "5.00", "0.00", ""]);
        assert_eq!(line(["10 KB", "delivered"])[3], "1.00");
        let text = render(&results, Style::Terminal);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
    #[test]
    fn a_ratio_within_the_noise_is_called_so_and_the_time_of_the_vm_is_shown() {
        let mut samples = Vec::new();
        for turn in 0..8 {
            for (name, ms) in [("off", 40.0), ("vsnoop", 41.0)] {
                let mut one = sample(name, ms + f64::from(turn) * 5.0);
                one.values = [(RAN.into(), 18.0), (QUEUED.into(), 30.0)].into();
                if name == "vsnoop" {
                    one.values.extend([(HELD.into(), 8000.0), (HOLD_FULL.into(), 3.0)]);
                }
                samples.push(one);
            }
        }
        samples.push(sample("host", 1.0));
        let mut results = results(samples);
        summarise(&mut results);
        let text = render(&results, Style::Markdown);
        let row = |start: &str| {
            let found = text.lines().rfind(|line| line.starts_with(start));
            found.unwrap_or_default().to_owned()
        };
        assert!(row("| 10 KB | acked ").contains("noise ("), "{text}");
        let spent = row("| 10 KB | vsnoop ");
        let fields: Vec<_> = spent.split('|').map(str::trim).collect();
        assert_eq!(fields[3..8], ["51.0", "18.0", "30.0", "8", "3"], "{text}");
        assert!(!row("| 10 KB | host ").contains("18.0"), "no VM receives: {text}");
    }
}
