//! The table and the figures.

use super::configuration::{Configuration, SERVICE};
use crate::results::migration::Migrated;
use crate::results::statistics::{ascending, percentile};
use crate::results::table::{Style, grid, milliseconds};
use crate::results::{Figure, Results};

const OFF: &str = "off";

pub fn table(results: &Results, style: Style) -> String {
    let header = [
        "vsnoop",
        "failed",
        "left KB\np50/most",
        "down\nms p50",
        "stall ms\np50/most",
        "upload ms\nusual/across",
        "pause\nms p50",
        "again ms\np50/most",
    ];
    let rows = Configuration::ordered(&results.configurations())
        .into_iter()
        .map(|name| row(name, &of(results, name)))
        .collect();
    let table = grid(style, &header, 1, rows);
    match beyond(results) {
        Some(beyond) => format!("{table}\n\n{beyond}"),
        None => table,
    }
}

/// How much longer than the downtime the stall is, without vsnoop and with it.
fn beyond(results: &Results) -> Option<String> {
    let of = |name: &str| {
        let beyond = of(results, name).into_iter().map(|one| one.stall_ms - one.downtime_ms);
        percentile(&ascending(beyond), 50.0)
    };
    let off = of(OFF)?;
    let others = Configuration::ordered(&results.configurations()).into_iter();
    let others = others.filter(|name| *name != OFF);
    let others = others.filter_map(|name| Some(format!("{name} {}", milliseconds(of(name)?))));
    let others: Vec<_> = others.collect();
    Some(format!(
        "Beyond the downtime connections stall for {} ms without vsnoop (median){}.",
        milliseconds(off),
        if others.is_empty() { String::new() } else { format!(", with it {}", others.join(", ")) }
    ))
}

fn row(name: &str, all: &[&Migrated]) -> Vec<String> {
    let values =
        |value: fn(&Migrated) -> Option<f64>| ascending(all.iter().filter_map(|m| value(m)));
    let p50 = |values: &[f64]| percentile(values, 50.0).map_or("-".into(), milliseconds);
    let both = |values: &[f64]| match values.last() {
        Some(most) => format!("{} / {}", p50(values), milliseconds(*most)),
        None => "-".into(),
    };
    let left = values(|m| Some(m.left_behind_bytes as f64));
    let kilobytes = |percent| percentile(&left, percent).unwrap_or_default() / 1e3;
    let sum = |count: fn(&Migrated) -> u32| all.iter().map(|m| count(m)).sum::<u32>();
    vec![
        name.to_owned(),
        format!("{} of {}", sum(|m| m.failed), sum(|m| m.requests)),
        format!("{:.0} / {:.0}", kilobytes(50.0), kilobytes(100.0)),
        p50(&values(|m| Some(m.downtime_ms))),
        both(&values(|m| Some(m.stall_ms))),
        format!(
            "{} / {}",
            p50(&values(|m| Some(m.usual_request_ms))),
            p50(&values(|m| Some(m.longest_request_ms)))
        ),
        p50(&values(|m| m.pause_ms)),
        both(&values(|m| m.accelerated_ms)),
    ]
}

/// The migrations of a configuration.
pub fn of<'a>(results: &'a Results, configuration: &str) -> Vec<&'a Migrated> {
    let samples = results.samples.iter().filter(|one| one.configuration == configuration);
    samples.filter_map(|one| one.migrated.as_ref()).collect()
}

/// Names end with the configuration.
pub fn figures(results: &Results) -> Vec<Figure> {
    let figure = |name: String, value: f64, unit: &str| Figure {
        name,
        value,
        unit: unit.into(),
        better: "lower".into(),
    };
    let mut figures = Vec::new();
    for name in Configuration::ordered(&results.configurations()) {
        let all = of(results, name);
        let values =
            |value: fn(&Migrated) -> Option<f64>| ascending(all.iter().filter_map(|m| value(m)));
        let suffix = name.replace('-', "_");
        let failed = all.iter().map(|m| f64::from(m.failed)).sum();
        let left = all.iter().map(|m| m.left_behind_bytes).max().unwrap_or_default() as f64;
        figures.push(figure(format!("migration_failed_requests_{suffix}"), failed, "requests"));
        figures.push(figure(format!("migration_left_behind_bytes_max_{suffix}"), left, "bytes"));
        let beyond = values(|m| Some(m.stall_ms - m.downtime_ms));
        let again = values(|m| m.accelerated_ms);
        let times = [
            ("migration_downtime_ms_p50", percentile(&values(|m| Some(m.downtime_ms)), 50.0)),
            ("migration_stall_beyond_downtime_ms_p50", percentile(&beyond, 50.0)),
            ("migration_stall_beyond_downtime_ms_max", percentile(&beyond, 100.0)),
            ("migration_accelerated_again_ms_p50", percentile(&again, 50.0)),
            ("migration_accelerated_again_ms_max", percentile(&again, 100.0)),
        ];
        for (what, value) in times {
            figures.extend(value.map(|value| figure(format!("{what}_{suffix}"), value, "ms")));
        }
        if name == SERVICE {
            let stalls = values(|m| Some(m.stall_ms));
            let p99 = |name: &str, values: &[f64]| {
                percentile(values, 99.0).map(|value| figure(name.to_owned(), value, "ms"))
            };
            figures.push(figure("migrations_failed_requests".to_owned(), failed, "requests"));
            figures.extend(p99("migration_stall_ms_p99", &stalls));
            figures.extend(p99("migration_stall_beyond_downtime_ms_p99", &beyond));
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Sample;
    use crate::results::testing::{results, sample};

    fn migration(configuration: &str, stall_ms: f64, failed: u32) -> Sample {
        // The longer the stall, the later the first early ACK.
        let accelerated_ms = (configuration != OFF).then_some(stall_ms / 10.0);
        let migrated = Migrated {
            downtime_ms: 300.0,
            stall_ms,
            requests: 20,
            failed,
            left_behind_bytes: u64::from(failed) * 100_000,
            accelerated_ms,
            ..Migrated::default()
        };
        Sample { migrated: Some(migrated), ..sample(configuration, 1.0) }
    }

    #[test]
    fn figures_sum_failed_requests_and_have_the_worst_stall() {
        let all = vec![
            migration("both", 9000.0, 4),
            migration("both", 3300.0, 0),
            migration("off", 700.0, 0),
        ];
        let results = results(all);
        let figures = figures(&results);
        let value = |name: &str| figures.iter().find(|one| one.name == name).map(|one| one.value);
        assert_eq!(value("migration_failed_requests_both"), Some(4.0));
        assert_eq!(value("migration_failed_requests_off"), Some(0.0));
        assert_eq!(value("migration_left_behind_bytes_max_both"), Some(400_000.0));
        assert_eq!(value("migration_stall_beyond_downtime_ms_max_both"), Some(8700.0));
        assert_eq!(value("migration_accelerated_again_ms_max_both"), Some(900.0));
        assert_eq!(value("migration_accelerated_again_ms_max_off"), None);
        assert_eq!(value("migration_stall_ms_p99"), None, "only of the service");
        let table = table(&results, Style::Markdown);
        let beyond = "Beyond the downtime connections stall for 400 ms without vsnoop (median), with it \
                      both 5850.";
        assert!(table.ends_with(beyond), "{table}");
        assert!(table.contains("4 of 40") && table.contains("0 of 20"), "{table}");
    }
}
