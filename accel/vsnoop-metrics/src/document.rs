//! The parts of docs/reference/metrics.md, the dashboard and the rules of alerts that follow from
//! the definitions; tests compare them (`tests/documents.rs`).

use std::fmt::Write;

use crate::definition::Definition;
use crate::{of_port, of_service, of_uplink};

const END: &str = "<!-- end -->";

/// The document with each part between `<!-- metrics of GROUP -->` and [`END`] made anew.
pub fn with_tables(text: &str) -> String {
    let groups = [
        ("port", table(&of_port::metrics())),
        ("uplink", table(&of_uplink::metrics())),
        ("service", table(&of_service::metrics())),
    ];
    groups.iter().fold(text.to_owned(), |text, (group, table)| {
        let begin = format!("<!-- metrics of {group} -->");
        let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("no {begin}"));
        let (_, after) = rest.split_once(END).unwrap_or_else(|| panic!("{begin} has no {END}"));
        format!("{before}{begin}\n{table}{END}{after}")
    })
}

/// The names of all series.
pub fn names() -> Vec<String> {
    let mut all = names_of(&of_port::metrics());
    all.extend(names_of(&of_uplink::metrics()));
    all.extend(names_of(&of_service::metrics()));
    all
}

fn names_of<T>(metrics: &[Definition<T>]) -> Vec<String> {
    let row_of = |metric: &Definition<T>| match metric.kind() {
        "histogram" => {
            ["bucket", "count", "sum"].map(|part| format!("{}_{part}", metric.name)).to_vec()
        }
        _ => vec![metric.series()],
    };
    metrics.iter().flat_map(row_of).collect()
}

fn table<T>(metrics: &[Definition<T>]) -> String {
    let mut text =
        "| metric | type | field of `--json` | meaning |\n|---|---|---|---|\n".to_owned();
    for metric in metrics {
        let label = metric.label().map_or_else(String::new, |label| format!("{{{label}}}"));
        let field = match metric.json.as_str() {
            "" => String::new(),
            field => format!("`{field}`"),
        };
        let (series, kind, help) = (metric.series(), metric.kind(), &metric.help);
        let _ = writeln!(text, "| `{series}{label}` | {kind} | {field} | {help} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules of Prometheus's page "Metric and label naming".
    #[test]
    fn names_follow_the_rules_of_prometheus() {
        fn check<T>(metrics: &[Definition<T>]) {
            for metric in metrics {
                let (name, kind) = (&metric.name, metric.kind());
                let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
                assert!(name.starts_with("vsnoop_") && name.chars().all(is_plain), "{name}");
                for suffix in
                    ["_total", "_count", "_sum", "_bucket", "_info", "_ns", "_ms", "_bits"]
                {
                    assert!(!name.ends_with(suffix), "{name} ends with {suffix}");
                }
                assert!(kind != "histogram" || name.ends_with("_seconds"), "{name} has no unit");
                assert!(
                    !metric.help.is_empty() && !metric.help.contains(['\n', '\\', '|']),
                    "{name}"
                );
            }
        }
        check(&of_port::metrics());
        check(&of_uplink::metrics());
        check(&of_service::metrics());
        let mut all = names();
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count, "a name stands twice");
    }
}
