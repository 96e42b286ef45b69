//! The table of an experiment: a block for each size, a line for each configuration.

use comfy_table::{Cell, CellAlignment, Table, presets};

use super::{Group, Results, Summary, size_text};

const METRICS: [&str; 2] = ["acked_ms", "delivered_ms"];

/// How the table will be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Terminal,
    Markdown,
}

/// p10/p50/p90 of each metric, the ratio to `off` at each percentile, and the retransmissions.
pub fn render(results: &Results, style: Style) -> String {
    let mut table = Table::new();
    table.load_preset(match style {
        Style::Terminal => presets::UTF8_FULL_CONDENSED,
        Style::Markdown => presets::ASCII_MARKDOWN,
    });
    table.set_header([
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
    ]);
    for size_bytes in results.sizes() {
        for configuration in results.configurations() {
            let find = |name: &str, metric: &str| {
                results.summary.iter().find(|line| {
                    line.configuration == name
                        && line.group == Group { size_bytes }
                        && line.metric == metric
                })
            };
            let Some(first) = find(&configuration, METRICS[0]) else { continue };
            let mut row = vec![size_text(size_bytes), configuration.clone(), first.n.to_string()];
            for metric in METRICS {
                let line = find(&configuration, metric);
                row.extend(percentiles(line).map(|value| value.map_or("-".into(), milliseconds)));
                let off = percentiles(find("off", metric).filter(|_| configuration != "off"));
                let ratios = off.into_iter().zip(percentiles(line)).map(|pair| match pair {
                    (Some(off), Some(on)) => ratio(off / on),
                    _ => "-".into(),
                });
                row.extend(ratios);
            }
            let samples: Vec<_> = results.of(&configuration, size_bytes).collect();
            row.push(samples.iter().map(|sample| sample.retransmissions).sum::<u32>().to_string());
            row.push(samples.iter().map(|sample| sample.spurious()).sum::<u32>().to_string());
            table.add_row(row.into_iter().enumerate().map(|(column, text)| {
                let right = column >= 2;
                Cell::new(text).set_alignment(if right {
                    CellAlignment::Right
                } else {
                    CellAlignment::Left
                })
            }));
        }
    }
    table.to_string()
}

fn percentiles(line: Option<&Summary>) -> [Option<f64>; 3] {
    [line.map(|line| line.p10), line.map(|line| line.p50), line.map(|line| line.p90)]
}

/// Three significant digits.
fn milliseconds(value: f64) -> String {
    match value {
        v if v < 0.1 => format!("{v:.3}"),
        v if v < 1.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

fn ratio(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}
