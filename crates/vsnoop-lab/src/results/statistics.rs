//! Percentiles, and the summary and figures that follow from the samples.

use super::{Figure, Group, Results, Sample, Summary};

/// The metrics that are summarised.
pub const METRICS: [Metric; 3] = [
    Metric { name: "connect_ms", of: |sample| sample.connect_ms },
    Metric { name: "acked_ms", of: |sample| sample.acked_ms },
    Metric { name: "delivered_ms", of: |sample| sample.delivered_ms },
];

/// A number that every sample has.
pub struct Metric {
    pub name: &'static str,
    pub of: fn(&Sample) -> f64,
}

/// The `percent` percentile of ascending values, interpolated between the two nearest ranks.
pub fn percentile(ascending: &[f64], percent: f64) -> Option<f64> {
    let last = ascending.len().checked_sub(1)?;
    let rank = percent / 100.0 * last as f64;
    let below = ascending[rank.floor() as usize];
    let above = ascending[rank.ceil() as usize];
    Some(below + (above - below) * rank.fract())
}

pub fn ascending(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Fills in `summary` and `figures` from `samples`.
pub fn summarise(results: &mut Results) {
    let mut summary = Vec::new();
    for size_bytes in results.sizes() {
        for configuration in results.configurations() {
            for metric in &METRICS {
                let values = ascending(results.of(&configuration, size_bytes).map(metric.of));
                let at = |percent| percentile(&values, percent);
                let (Some(p10), Some(p50), Some(p90)) = (at(10.0), at(50.0), at(90.0)) else {
                    continue;
                };
                summary.push(Summary {
                    configuration: configuration.clone(),
                    group: Group { size_bytes },
                    metric: metric.name.to_owned(),
                    n: values.len(),
                    p10,
                    p50,
                    p90,
                });
            }
        }
    }
    results.summary = summary;
    results.figures = figures(results);
}

/// The figures of a comparison with `off`: for each size and percentile, how many times sooner.
fn figures(results: &Results) -> Vec<Figure> {
    let mut figures = Vec::new();
    for size_bytes in results.sizes() {
        let size = super::size_text(size_bytes).replace(' ', "").to_lowercase();
        for configuration in results.configurations().iter().filter(|name| *name != "off") {
            for metric in ["acked_ms", "delivered_ms"] {
                let find = |name: &str| {
                    results.summary.iter().find(|line| {
                        line.configuration == name
                            && line.group == Group { size_bytes }
                            && line.metric == metric
                    })
                };
                let (Some(off), Some(on)) = (find("off"), find(configuration)) else { continue };
                let metric = metric.trim_end_matches("_ms");
                for (name, value) in [
                    ("p10", off.p10 / on.p10),
                    ("p50", off.p50 / on.p50),
                    ("p90", off.p90 / on.p90),
                ] {
                    figures.push(Figure {
                        name: format!("{metric}_{size}_{name}_off_over_{configuration}"),
                        value,
                        unit: "times".into(),
                        better: "higher".into(),
                    });
                }
            }
            let retransmissions: u32 =
                results.of(configuration, size_bytes).map(|sample| sample.retransmissions).sum();
            figures.push(Figure {
                name: format!("retransmissions_{size}_{configuration}"),
                value: f64::from(retransmissions),
                unit: "segments".into(),
                better: "lower".into(),
            });
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_the_nearest_ranks() {
        let values = [10.0, 20.0, 30.0, 40.0, 50.0];
        assert_eq!(percentile(&values, 50.0), Some(30.0));
        assert_eq!(percentile(&values, 0.0), Some(10.0));
        assert_eq!(percentile(&values, 100.0), Some(50.0));
        assert_eq!(percentile(&values, 90.0), Some(46.0));
        assert_eq!(percentile(&[7.0], 90.0), Some(7.0));
        assert_eq!(percentile(&[], 50.0), None);
    }

    fn sample(configuration: &str, acked_ms: f64) -> Sample {
        Sample {
            configuration: configuration.into(),
            size_bytes: 10_000,
            connect_ms: 1.0,
            acked_ms,
            delivered_ms: 50.0,
            retransmissions: 1,
            dsack_duplicates: 0,
            tap_drops: 0,
            vm: 0,
            at_ms: 0.0,
        }
    }

    #[test]
    fn figures_say_how_many_times_sooner_than_off() {
        let mut results = Results {
            experiment: "test".into(),
            started: String::new(),
            environment: Default::default(),
            samples: vec![sample("off", 40.0), sample("strict", 2.0), sample("off", 40.0)],
            summary: Vec::new(),
            figures: Vec::new(),
        };
        summarise(&mut results);
        let value = |name: &str| {
            results.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
        };
        assert_eq!(value("acked_10kb_p50_off_over_strict"), Some(20.0));
        assert_eq!(value("delivered_10kb_p50_off_over_strict"), Some(1.0));
        assert_eq!(value("retransmissions_10kb_strict"), Some(1.0));
        let off = results.summary.iter().find(|line| line.metric == "acked_ms").map(|line| line.n);
        assert_eq!(off, Some(2));
    }
}
