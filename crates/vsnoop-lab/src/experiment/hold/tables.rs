//! For each cell two tables: times of every configuration, and how they relate to those of
//! `vsnoop`.

use crate::results::statistics::{ACKED, DELIVERED, TOTAL};
use crate::results::table::{Style, grid, milliseconds, or_dash, ratio};
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

/// The configurations whose times the columns of the ratios divide, at p50 and at p90. Pairs of
/// which one was not measured have no columns.
const PAIRS: [(&str, &str); 4] =
    [("off", "vsnoop"), ("ahead-0", "vsnoop"), ("proxy", "vsnoop"), ("vsnoop", "host")];

pub fn render(results: &Results, style: Style) -> String {
    let measured = results.configurations();
    let is_measured = |name: &str| measured.iter().any(|one| one == name);
    let pairs: Vec<_> =
        PAIRS.into_iter().filter(|(over, under)| is_measured(over) && is_measured(under)).collect();
    let names: Vec<_> = pairs.iter().map(|(over, under)| format!("{over}/{under}")).collect();
    let mut ratio_header = vec!["size", "metric"];
    ratio_header.extend(names.iter().flat_map(|name| [name.as_str(), "p90"]));
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
        text
    });
    cells.collect::<Vec<_>>().join("\n\n")
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
    let row = |metric: &str| {
        let mut row = vec![size_text(group.size_bytes), metric.trim_end_matches("_ms").to_owned()];
        let mut found = false;
        for &(over, under) in pairs {
            let over = results.summary_of(over, group, metric);
            let under = results.summary_of(under, group, metric);
            let pair = over.zip(under);
            found |= pair.is_some();
            let values = [
                pair.map(|(over, under)| over.p50 / under.p50),
                pair.map(|(over, under)| over.p90 / under.p90),
            ];
            row.extend(values.map(or_dash(ratio)));
        }
        found.then_some(row)
    };
    [ACKED, DELIVERED, TOTAL].iter().filter_map(|metric| row(metric.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
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
        assert_eq!(
            line(["10 KB", "acked"])[3..10],
            ["20", "20", "5.00", "5.00", "0.00", "0.00", ""]
        );
        assert_eq!(line(["10 KB", "delivered"])[3], "1.00");
        let text = render(&results, Style::Terminal);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
}
