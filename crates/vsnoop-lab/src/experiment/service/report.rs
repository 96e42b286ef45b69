//! The figures, and the table of them.

use super::connections::CONNECTIONS;
use super::part::Part;
use crate::experiment::migrate;
use crate::results::statistics::{ascending, percentile};
use crate::results::table::{self, Style};
use crate::results::{Figure, Results, Sample, Values};

pub fn tables(results: &Results, style: Style) -> String {
    table::figures(style, &results.figures, |value| {
        let digits = if value.fract() == 0.0 { 0 } else { 2 };
        format!("{value:.digits$}")
    })
}

pub fn figures(results: &Results) -> Vec<Figure> {
    let mut figures = kills(results);
    figures.extend(connections(results));
    figures.extend(taps(results));
    figures.extend(scrape(results));
    figures.extend(migrate::summary::figures(results));
    figures
}

fn figure(name: impl Into<String>, value: f64, unit: &str) -> Figure {
    Figure { name: name.into(), value, unit: unit.into(), better: "lower".into() }
}

/// The samples of a part, in the order of their measurement.
fn samples(results: &Results, part: Part) -> Vec<&Sample> {
    let of_part = results.samples.iter().filter(|sample| sample.configuration == part.name());
    let mut samples: Vec<_> = of_part.collect();
    samples.sort_by_key(|sample| sample.turn);
    samples
}

/// The sums of the values of all of these.
fn sums(samples: &[&Sample]) -> Values {
    let mut sums = Values::new();
    for (name, value) in samples.iter().flat_map(|sample| &sample.values) {
        *sums.entry(name.clone()).or_default() += value;
    }
    sums
}

/// Figures of these values, with their names and units.
fn named(values: &Values, names: &[(&str, &str, &str)]) -> Vec<Figure> {
    let one = |(name, key, unit): &(&str, &str, &str)| {
        values.get(*key).map(|value| figure(*name, *value, unit))
    };
    names.iter().filter_map(one).collect()
}

fn kills(results: &Results) -> Vec<Figure> {
    named(
        &sums(&samples(results, Part::Kills)),
        &[
            ("daemon_kills", "kills", "kills"),
            ("daemon_kills_of_helper_and_engine", "background_kills", "kills"),
            ("daemon_kills_complete", "complete", "connections"),
            ("daemon_kills_broken", "broken", "connections"),
            ("daemon_kills_resets", "resets", "connections"),
            ("daemon_kills_bytes", "bytes", "bytes"),
            ("daemon_kills_early_bytes", "early_bytes", "bytes"),
            ("daemon_kills_held_bytes", "held_bytes", "bytes"),
        ],
    )
}

fn connections(results: &Results) -> Vec<Figure> {
    let mut samples = samples(results, Part::Connections);
    // Files of earlier versions have them in order.
    samples.sort_by_key(|sample| sample.values.get(CONNECTIONS).map(|number| *number as u64));
    let [before, .., after] = &samples[..] else { return Vec::new() };
    let sums = sums(&samples);
    let count = |key| sums.get(key).copied().unwrap_or_default();
    let number = count("complete") + count("broken");
    let mut figures = vec![
        figure("connections_complete", count("complete"), "connections"),
        figure("connections_broken", count("broken"), "connections"),
        figure("connections_without_record", count("flows_refused"), "connections"),
        Figure {
            better: "higher".into(),
            ..figure("connections_per_s", number / count("seconds").max(1e-9), "1/s")
        },
    ];
    let half = samples[samples.len() / 2];
    for (key, unit) in [
        ("rss_mb", "MB"),
        ("maps_mb", "MB"),
        ("maps", "maps"),
        ("descriptors", "descriptors"),
        ("flows", "records"),
        ("hold_flows", "records"),
        ("hold_memory_bytes", "bytes"),
    ] {
        for (when, sample) in [("before".into(), before), (format!("after_{number}"), after)] {
            let value = sample.values.get(key);
            figures.extend(value.map(|value| figure(format!("{key}_{when}"), *value, unit)));
        }
    }
    // What grows without an end grows in the second half, too.
    let rss_mb = |sample: &Sample| sample.values.get("rss_mb").copied().unwrap_or_default();
    let growth = rss_mb(after) - rss_mb(half);
    figures.push(figure("rss_mb_growth_in_second_half", growth, "MB"));
    figures
}

fn taps(results: &Results) -> Vec<Figure> {
    let samples = samples(results, Part::Taps);
    let Some(all) = samples.first() else { return Vec::new() };
    let values = samples.iter().filter_map(|one| one.values.get("attach_after_tap_ms").copied());
    let times = ascending(values);
    let mut figures = Vec::new();
    for (name, percent) in [("attach_after_tap_ms_p50", 50.0), ("attach_after_tap_ms_p99", 99.0)] {
        figures.extend(percentile(&times, percent).map(|value| figure(name, value, "ms")));
    }
    figures.extend(named(
        &all.values,
        &[
            ("taps_come_and_gone", "taps", "taps"),
            ("taps_seconds", "seconds", "s"),
            ("taps_service_cpu_s", "service_cpu_s", "s"),
            ("taps_helper_and_engine_cpu_s", "background_cpu_s", "s"),
            ("taps_pins_left", "pins_left", "pins"),
            ("taps_descriptors_left", "descriptors_left", "descriptors"),
            ("taps_maps_left", "maps_left", "maps"),
        ],
    ));
    figures
}

fn scrape(results: &Results) -> Vec<Figure> {
    let samples = samples(results, Part::Scrape);
    let median = |what: &str, key: &str| {
        let of_what = samples.iter().filter(|one| one.what.is_some_and(|is| is.as_str() == what));
        percentile(&ascending(of_what.filter_map(|one| one.values.get(key).copied())), 50.0)
    };
    let Some(ports) = median("scrape", "ports") else { return Vec::new() };
    [
        ("scrape_cpu_ms_p50", "scrape", "cpu_ms", "ms"),
        ("scrape_wall_ms_p50", "scrape", "wall_ms", "ms"),
        ("scrape_bytes", "scrape", "bytes", "bytes"),
        ("scrape_series", "scrape", "series", "series"),
        ("top_refresh_cpu_ms_p50", "top", "cpu_ms", "ms"),
        ("top_refresh_bytes_p50", "top", "bytes", "bytes"),
    ]
    .into_iter()
    .filter_map(|(name, what, key, unit)| {
        Some(figure(format!("{name}_{ports}_ports"), median(what, key)?, unit))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Label;
    use crate::results::testing::results;

    fn sample(part: Part, turn: usize, what: &str, values: &[(&str, f64)]) -> Sample {
        Sample {
            configuration: part.name().into(),
            turn: Some(turn),
            what: Some(Label::from(what).unwrap()),
            values: values.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect(),
            ..Sample::default()
        }
    }

    #[test]
    fn figures_are_those_of_the_first_and_the_last_reading_in_any_order() {
        let last = [("rss_mb", 31.0), ("complete", 999.0), ("broken", 1.0), ("seconds", 10.0)];
        let all = vec![
            sample(Part::Connections, 2, "after 1000", &last),
            sample(Part::Connections, 1, "after 500", &[("rss_mb", 30.0)]),
            sample(Part::Connections, 0, "after 0", &[("rss_mb", 20.0)]),
            sample(Part::Kills, 0, "all", &[("broken", 0.0), ("kills", 50.0)]),
        ];
        let figures = figures(&results(all));
        let value = |name: &str| figures.iter().find(|one| one.name == name).map(|one| one.value);
        assert_eq!(value("rss_mb_before"), Some(20.0));
        assert_eq!(value("rss_mb_after_1000"), Some(31.0));
        assert_eq!(value("rss_mb_growth_in_second_half"), Some(1.0));
        assert_eq!(value("connections_per_s"), Some(100.0));
        assert_eq!(value("daemon_kills_broken"), Some(0.0));
        assert_eq!(value("attach_after_tap_ms_p50"), None, "the part was not run");
    }

    #[test]
    fn figures_of_parts_that_went_on_are_sums_and_the_last_reading_is_that_of_most_connections() {
        let reading = |turn: usize, over: f64, rss_mb: f64| {
            let complete = if over > 0.0 { 500.0 } else { 0.0 };
            let values = [(CONNECTIONS, over), ("rss_mb", rss_mb), ("complete", complete)];
            sample(Part::Connections, turn, "reading", &values)
        };
        let all = vec![
            reading(1, 0.0, 20.0),
            reading(2, 500.0, 30.0),
            // The first turn is pushed at the end.
            reading(0, 1000.0, 31.0),
            sample(Part::Kills, 1, "kill", &[("kills", 1.0), ("complete", 7.0)]),
            sample(Part::Kills, 2, "kill", &[("kills", 1.0), ("complete", 8.0)]),
            sample(Part::Kills, 0, "all", &[("complete", 1.0)]),
        ];
        let figures = figures(&results(all));
        let value = |name: &str| figures.iter().find(|one| one.name == name).map(|one| one.value);
        assert_eq!((value("rss_mb_before"), value("rss_mb_after_1000")), (Some(20.0), Some(31.0)));
        assert_eq!(value("rss_mb_growth_in_second_half"), Some(1.0));
        assert_eq!(value("connections_complete"), Some(1000.0));
        assert_eq!(
            (value("daemon_kills"), value("daemon_kills_complete")),
            (Some(2.0), Some(16.0))
        );
    }

    #[test]
    fn times_of_taps_and_costs_are_percentiles() {
        let mut all = vec![sample(Part::Taps, 0, "all", &[("taps", 3.0)])];
        for (turn, ms) in [10.0, 20.0, 60.0].into_iter().enumerate() {
            all.push(sample(Part::Taps, turn + 1, "each", &[("attach_after_tap_ms", ms)]));
            let values = [("cpu_ms", ms), ("ports", 200.0)];
            all.push(sample(Part::Scrape, turn, "scrape", &values));
        }
        let figures = figures(&results(all));
        let value = |name: &str| figures.iter().find(|one| one.name == name).map(|one| one.value);
        assert_eq!(value("attach_after_tap_ms_p50"), Some(20.0));
        assert_eq!(value("scrape_cpu_ms_p50_200_ports"), Some(20.0));
        assert_eq!(value("top_refresh_cpu_ms_p50_200_ports"), None);
    }
}
