//! Tables for each path: a line for each carrier, and what did not run.

use serde_json::Value;

use super::rig::MISSING;
use super::values::{self, Values, carriers, deviation, mean};
use crate::results::statistics::percentile;
use crate::results::table::{NOT_MEASURED, Style, grid, milliseconds, or_dash};
use crate::results::{Cell, Results};

const GOODPUT: [&str; 6] = ["carrier", "n", "Mb/s p50", "mean", "cores", "retrans."];

/// Round trips while the carrier has nothing else to carry, and during a stream.
const ECHOES: [&str; 9] =
    ["carrier", "idle ms avg", "mdev", "p99", "loaded ms avg", "p50", "p95", "p99", "lost"];

/// Throughput and echoes, cell by cell.
pub fn paths(results: &Results, style: Style) -> String {
    let tables = results.cells().into_iter().map(|cell| {
        let measured: Vec<_> = carriers(results)
            .filter_map(|carrier| {
                let values = values::of(results, carrier.name, |other| *other == cell)?;
                Some((carrier.name, values))
            })
            .collect();
        let of = |header: &[&str], fields: fn(&Values) -> Vec<String>| {
            let rows = measured.iter().map(|(name, values)| {
                [(*name).to_owned()].into_iter().chain(fields(values)).collect()
            });
            table_of_measured(style, header, rows.collect())
        };
        let tables = [Some(heading(&cell, style)), of(&GOODPUT, goodput), of(&ECHOES, echoes)];
        tables.into_iter().flatten().collect::<Vec<_>>().join("\n\n")
    });
    let mut text = tables.collect::<Vec<_>>().join("\n\n");
    text += &missing(results);
    text
}

/// A table without the columns that no row has; none if only the first column is left.
fn table_of_measured(style: Style, header: &[&str], rows: Vec<Vec<String>>) -> Option<String> {
    let is_measured = |&column: &usize| rows.iter().any(|row| row[column] != NOT_MEASURED);
    let columns: Vec<_> = (0..header.len()).filter(is_measured).collect();
    let header: Vec<_> = columns.iter().map(|&column| header[column]).collect();
    let fields = |row: Vec<String>| columns.iter().map(|&column| row[column].clone()).collect();
    (columns.len() > 1).then(|| grid(style, &header, 1, rows.into_iter().map(fields).collect()))
}

fn goodput(values: &Values) -> Vec<String> {
    vec![
        values.n().to_string(),
        rate(values.median_mbps()),
        rate(values.mean_mbps()),
        values.cores().map_or(NOT_MEASURED.into(), |cores| format!("{cores:.2}")),
        values.retransmissions.to_string(),
    ]
}

fn echoes(values: &Values) -> Vec<String> {
    let idle = values.idle_pings_ms();
    let loaded = values.loaded_pings_ms();
    let ms = or_dash(milliseconds);
    vec![
        ms(mean(&idle)),
        ms(deviation(&idle)),
        ms(percentile(&idle, 99.0)),
        ms(mean(&loaded)),
        ms(percentile(&loaded, 50.0)),
        ms(percentile(&loaded, 95.0)),
        ms(percentile(&loaded, 99.0)),
        match loaded.is_empty() {
            true => NOT_MEASURED.into(),
            false => values.loaded_pings_lost().to_string(),
        },
    ]
}

/// Goodput of each content over each carrier, and the bytes that compression saved on the path.
pub fn contents(results: &Results, style: Style) -> String {
    let mut cells = results.cells();
    cells.sort_by_key(|cell| cell.link.map(|link| link.content));
    let header: Vec<_> = ["carrier"]
        .into_iter()
        .chain(cells.iter().filter_map(|cell| Some(cell.link?.content.name())))
        .collect();
    let table = |text: fn(&Values) -> String| {
        let rows = carriers(results).map(|carrier| {
            let fields = cells.iter().map(|cell| {
                let values = values::of(results, carrier.name, |other| other == cell);
                values.map_or(NOT_MEASURED.into(), |values| text(&values))
            });
            [carrier.name.to_owned()].into_iter().chain(fields).collect()
        });
        grid(style, &header, 1, rows.collect())
    };
    let title = |text: &str| match style {
        Style::Terminal => text.to_owned(),
        Style::Markdown => format!("### {text}"),
    };
    format!(
        "{}\n\n{}\n\n{}\n\n{}{}",
        title("Goodput, Mb/s (median)"),
        table(|values| rate(values.median_mbps())),
        title("Bytes that the path was spared, % of what arrived"),
        table(|values| format!("{:.1}", values.saved() * 100.0)),
        missing(results)
    )
}

fn heading(cell: &Cell, style: Style) -> String {
    match style {
        Style::Terminal => cell.to_string(),
        Style::Markdown => format!("### {cell}"),
    }
}

fn missing(results: &Results) -> String {
    let missing = results.environment.get(MISSING).and_then(Value::as_object);
    let lines = missing.into_iter().flatten().map(|(name, reason)| {
        format!("\n\n{name} did not run: {}", reason.as_str().unwrap_or_default())
    });
    lines.collect()
}

fn rate(mbps: f64) -> String {
    if mbps < 100.0 { format!("{mbps:.1}") } else { format!("{mbps:.0}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::values::testing::sample;
    use super::*;
    use crate::results::testing::results;

    #[test]
    fn every_carrier_has_a_line_and_what_is_missing_is_said() {
        let mut results = results(vec![sample("vtun", 1200.0), sample("bare", 50_000.0)]);
        results.environment.insert(MISSING.into(), json!({"tinc": "no tincd"}));
        let text = paths(&results, Style::Markdown);
        let place = |word| text.find(word).unwrap_or_else(|| panic!("no {word} in {text}"));
        assert!(place("| bare") < place("| vtun"));
        assert!(text.contains("tinc did not run: no tincd"), "{text}");
        assert!(!text.contains("idle ms avg"), "no echo was measured: {text}");
    }

    #[test]
    fn each_content_has_its_column() {
        use crate::results::link::Content;
        let mut other = sample("vtun", 290.0);
        if let Some(link) = &mut other.cell.link {
            link.content = Content::Json;
        }
        let text = contents(&results(vec![sample("vtun", 700.0), other]), Style::Markdown);
        let line = text.lines().find(|line| line.starts_with("| vtun")).unwrap();
        let fields: Vec<_> = line.split('|').map(str::trim).collect();
        assert_eq!(fields[2..4], ["700", "290"]);
    }
}
