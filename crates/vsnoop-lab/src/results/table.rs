//! Tables of samples, for terminals and for reports.

use comfy_table::{Cell as Field, CellAlignment, Table, presets};

use super::{Group, Results, Summary, size_text, statistics};

/// How the table will be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Terminal,
    Markdown,
}

/// A table with this header; the first `words` columns are words, the others numbers.
pub fn grid(style: Style, header: &[&str], words: usize, rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(match style {
        Style::Terminal => presets::UTF8_FULL_CONDENSED,
        Style::Markdown => presets::ASCII_MARKDOWN,
    });
    table.set_header(header);
    for row in rows {
        table.add_row(row.into_iter().enumerate().map(|(column, text)| {
            let right = column >= words;
            let alignment = if right { CellAlignment::Right } else { CellAlignment::Left };
            Field::new(text).set_alignment(alignment)
        }));
    }
    table.to_string()
}

/// For each size and configuration p10/p50/p90 of each metric, the ratio to `off` at each percentile,
/// and the retransmissions; with several cells a table for each.
pub fn against_off(results: &Results, style: Style) -> String {
    let cells = results.cells();
    let mut text = String::new();
    for cell in &cells {
        if cells.len() > 1 {
            text += &format!("{cell}\n\n");
        }
        let groups: Vec<_> =
            results.groups().into_iter().filter(|group| group.cell == *cell).collect();
        let rows = groups.iter().flat_map(|group| {
            let names = results.configurations();
            names.into_iter().filter_map(|name| row_against_off(results, &name, group))
        });
        text += &grid(style, &AGAINST_OFF, 2, rows.collect());
        text += "\n\n";
    }
    text.trim_end().to_owned()
}

const AGAINST_OFF: [&str; 17] = [
    "size",
    "configuration",
    "n",
    "acked ms p10",
    "p50",
    "p90",
    "off/x p10",
    "p50",
    "p90",
    "delivered ms p10",
    "p50",
    "p90",
    "off/x p10",
    "p50",
    "p90",
    "retrans.",
    "spurious",
];

fn row_against_off(results: &Results, configuration: &str, group: &Group) -> Option<Vec<String>> {
    let metrics = [statistics::ACKED.name, statistics::DELIVERED.name];
    let find = |name: &str, metric: &str| results.summary_of(name, group, metric);
    let n = find(configuration, metrics[0])?.n;
    let mut row = vec![size_text(group.size_bytes), configuration.to_owned(), n.to_string()];
    for metric in metrics {
        let line = find(configuration, metric);
        row.extend(percentiles(line).map(or_dash(milliseconds)));
        let off = percentiles(find("off", metric).filter(|_| configuration != "off"));
        let ratios = off.into_iter().zip(percentiles(line)).map(|pair| match pair {
            (Some(off), Some(on)) => Some(off / on),
            _ => None,
        });
        row.extend(ratios.map(or_dash(ratio)));
    }
    let samples: Vec<_> = results.of(configuration, group).collect();
    row.push(samples.iter().map(|sample| sample.retransmissions).sum::<u32>().to_string());
    row.push(samples.iter().map(|sample| sample.spurious()).sum::<u32>().to_string());
    Some(row)
}

/// `-` where there is no value.
pub fn or_dash(text: fn(f64) -> String) -> impl Fn(Option<f64>) -> String {
    move |value| value.map_or("-".into(), text)
}

fn percentiles(line: Option<&Summary>) -> [Option<f64>; 3] {
    [line.map(|line| line.p10), line.map(|line| line.p50), line.map(|line| line.p90)]
}

/// Three significant digits.
pub fn milliseconds(value: f64) -> String {
    match value {
        v if v < 0.1 => format!("{v:.3}"),
        v if v < 1.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// `0.97`, `3.20`, `41`.
pub fn ratio(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}
