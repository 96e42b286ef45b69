//! Percentiles, and the summary and figures that follow from the samples.

use std::collections::{BTreeMap, BTreeSet};

use super::table::ratio;
use super::{Group, Results, Sample, Summary};

/// The metrics that are summarised.
pub const METRICS: [Metric; 8] = [CONNECT, ACKED, DELIVERED, TOTAL, ROUND, GOODPUT, STREAM, CORES];

pub const CONNECT: Metric = Metric { name: "connect_ms", of: |sample| sample.connect_ms };
pub const ACKED: Metric = Metric { name: "acked_ms", of: |sample| sample.acked_ms };
pub const DELIVERED: Metric = Metric { name: "delivered_ms", of: |sample| sample.delivered_ms };
/// Includes the handshake: a proxy answers it itself, and its own handshake with the machine falls
/// into the time of the transfer.
pub const TOTAL: Metric =
    Metric { name: "total_ms", of: |sample| Some(sample.connect_ms? + sample.delivered_ms?) };

/// Time from the first request to the last byte of all senders.
pub const ROUND: Metric =
    Metric { name: "round_ms", of: |sample| Some(sample.round.as_ref()?.round_ms) };
pub const GOODPUT: Metric =
    Metric { name: "goodput_mbps", of: |sample| Some(sample.round.as_ref()?.goodput_mbps) };

/// Throughput of one stream over a link, and the CPUs that the carrier used for it.
pub const STREAM: Metric =
    Metric { name: "stream_mbps", of: |sample| Some(sample.carried.as_ref()?.goodput_mbps) };
pub const CORES: Metric = Metric { name: "cores", of: |sample| sample.carried.as_ref()?.cores };

/// A number that every completed sample has.
#[derive(Clone, Copy)]
pub struct Metric {
    pub name: &'static str,
    pub of: fn(&Sample) -> Option<f64>,
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

/// Fills in `summary` from `samples`.
pub fn summarise(results: &mut Results) {
    let mut summary = Vec::new();
    for group in results.groups() {
        for configuration in results.configurations() {
            let of_metric = |metric: &Metric| {
                (metric.name.to_owned(), values(results, &configuration, &group, metric))
            };
            let of_name = |name: String| {
                let values = named(results, &configuration, &group, &name);
                (name, values)
            };
            let names = names(results, &configuration, &group);
            let metrics = METRICS.iter().map(of_metric).chain(names.into_iter().map(of_name));
            for (metric, values) in metrics {
                let at = |percent| percentile(&values, percent);
                let (Some(p10), Some(p50), Some(p90)) = (at(10.0), at(50.0), at(90.0)) else {
                    continue;
                };
                summary.push(Summary {
                    configuration: configuration.clone(),
                    group,
                    metric,
                    n: values.len(),
                    p10,
                    p50,
                    p90,
                });
            }
        }
    }
    results.summary = summary;
}

/// The names of values that samples of a group have.
fn names(results: &Results, configuration: &str, group: &Group) -> BTreeSet<String> {
    results.of(configuration, group).flat_map(|sample| sample.values.keys().cloned()).collect()
}

/// All values of a metric, ascending.
pub fn values(results: &Results, configuration: &str, group: &Group, metric: &Metric) -> Vec<f64> {
    ascending(results.of(configuration, group).filter_map(metric.of))
}

/// The median of each turn, ascending: what was measured in one turn (connections of a burst,
/// requests of one attachment) shares its fate, and counts once in an interval.
pub fn by_turn(results: &Results, configuration: &str, group: &Group, metric: &Metric) -> Vec<f64> {
    let mut turns: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    let mut medians = Vec::new();
    for sample in results.of(configuration, group) {
        let Some(value) = (metric.of)(sample) else { continue };
        match sample.turn {
            Some(turn) => turns.entry(turn).or_default().push(value),
            None => medians.push(value),
        }
    }
    let median = |turn: Vec<f64>| percentile(&ascending(turn.into_iter()), 50.0);
    medians.extend(turns.into_values().filter_map(median));
    ascending(medians.into_iter())
}

/// All values that samples have under this name (`Sample::values`), ascending.
pub fn named(results: &Results, configuration: &str, group: &Group, name: &str) -> Vec<f64> {
    let value = |sample: &Sample| sample.values.get(name).copied();
    ascending(results.of(configuration, group).filter_map(value))
}

/// Six values are the fewest whose range holds the true median in 95 of 100 cases: 1 - 2 / 2^6.
const FEWEST: usize = 6;

/// A ratio of medians or means, and the interval that holds it in 95 of 100 repetitions of the
/// experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    pub value: f64,
    pub low: f64,
    pub high: f64,
    /// Number of values on the side that has fewer.
    n: usize,
}

impl Ratio {
    /// Whether the samples do not show a difference: the interval holds 1, or there are too few of
    /// them for an interval.
    pub fn is_noise(&self) -> bool {
        !self.has_interval() || (self.low <= 1.0 && 1.0 <= self.high)
    }

    /// Whether there are enough samples for one.
    pub fn has_interval(&self) -> bool {
        self.n >= FEWEST
    }

    /// `1.75 (1.50-2.15)`, or `noise (0.92-1.21)`; too few values have no interval.
    pub fn text(&self) -> String {
        let [value, low, high] = [self.value, self.low, self.high].map(ratio);
        match (self.has_interval(), self.is_noise()) {
            (false, _) => value,
            (true, true) => format!("noise ({low}-{high})"),
            (true, false) => format!("{value} ({low}-{high})"),
        }
    }
}

/// `over` / `under`, each ascending; the interval by the bootstrap (both drawn anew with
/// replacement).
pub fn ratio_of_medians(over: &[f64], under: &[f64]) -> Option<Ratio> {
    let median = |values: Vec<f64>| percentile(&ascending(values.into_iter()), 50.0);
    ratio_of(over, under, median)
}

/// The same of means: for counts, and where a paper has means.
pub fn ratio_of_means(over: &[f64], under: &[f64]) -> Option<Ratio> {
    let mean = |values: Vec<f64>| {
        let n = Some(values.len()).filter(|n| *n > 0)?;
        Some(values.into_iter().sum::<f64>() / n as f64)
    };
    ratio_of(over, under, mean)
}

/// `None` where it has no value: without samples, or with nothing to divide by.
fn ratio_of(over: &[f64], under: &[f64], of: impl Fn(Vec<f64>) -> Option<f64>) -> Option<Ratio> {
    const DRAWS: usize = 1000;
    let finite = |value: &f64| value.is_finite();
    let value = Some(of(over.to_vec())? / of(under.to_vec())?).filter(finite)?;
    // The draws are always the same, so that a report made again has the same values.
    let mut random = fastrand::Rng::with_seed(1);
    let mut again =
        |values: &[f64]| of(values.iter().map(|_| values[random.usize(..values.len())]).collect());
    let draws = (0..DRAWS).filter_map(|_| Some(again(over)? / again(under)?)).filter(finite);
    let draws = ascending(draws);
    let (low, high) = (percentile(&draws, 2.5)?, percentile(&draws, 97.5)?);
    Some(Ratio { value, low, high, n: over.len().min(under.len()) })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{results, sample};
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

    #[test]
    fn a_transfer_without_an_end_has_no_time_and_is_not_summarised() {
        let hung = Sample { delivered_ms: None, ..sample("off", 40.0) };
        let mut results = results(vec![hung, sample("off", 30.0)]);
        summarise(&mut results);
        let group = results.groups()[0];
        let n = |metric| results.summary_of("off", &group, metric).map(|line| line.n);
        assert_eq!((n("acked_ms"), n("delivered_ms"), n("total_ms")), (Some(2), Some(1), Some(1)));
    }

    #[test]
    fn a_burst_counts_once_and_its_members_do_not_narrow_an_interval() {
        let burst = |name: &str, turn: usize, ms: f64| {
            [0.9, 1.0, 1.1].map(|part| Sample { turn: Some(turn), ..sample(name, ms * part) })
        };
        let bursts = [("off", 0, 100.0), ("off", 1, 300.0), ("vsnoop", 0, 50.0)];
        let samples = bursts.into_iter().flat_map(|(name, turn, ms)| burst(name, turn, ms));
        let results = results(samples.collect());
        let group = results.groups()[0];
        let [off, vsnoop] = ["off", "vsnoop"].map(|name| by_turn(&results, name, &group, &ACKED));
        assert_eq!((&off[..], &vsnoop[..]), (&[100.0, 300.0][..], &[50.0][..]));
        let ratio = ratio_of_medians(&off, &vsnoop).unwrap();
        assert_eq!((ratio.text(), ratio.is_noise()), ("4.00".into(), true));
    }

    #[test]
    fn the_interval_of_a_ratio_is_narrow_for_equal_values_and_holds_one_for_the_same_values() {
        let exact = ratio_of_medians(&[6.0; 9], &[2.0; 9]);
        assert_eq!(exact, Some(Ratio { value: 3.0, low: 3.0, high: 3.0, n: 9 }));
        assert_eq!(exact.unwrap().text(), "3.00 (3.00-3.00)");
        for few in 1..FEWEST {
            assert_eq!(ratio_of_medians(&[6.0; 9], &vec![2.0; few]).unwrap().text(), "3.00");
        }
        let spread: Vec<_> = (1..=20).map(f64::from).collect();
        let same = ratio_of_medians(&spread, &spread).unwrap();
        assert!(same.low < 1.0 && 1.0 < same.high && same.is_noise(), "{same:?}");
        assert!(same.text().starts_with("noise ("), "{same:?}");
        let far: Vec<_> = spread.iter().map(|value| value + 100.0).collect();
        assert!(ratio_of_medians(&far, &spread).is_some_and(|ratio| ratio.low > 2.0));
        assert_eq!(ratio_of_medians(&[], &[1.0]), None);
    }

    #[test]
    fn a_ratio_of_means_has_an_interval_and_nothing_to_divide_by_is_no_ratio() {
        let ratio = ratio_of_means(&[0.0, 0.0, 3.0, 0.0, 0.0, 3.0], &[1.0; 6]).unwrap();
        assert_eq!(ratio.value, 1.0);
        assert!(ratio.low < 1.0 && 1.0 < ratio.high, "{ratio:?}");
        assert_eq!(ratio_of_means(&[1.0; 6], &[0.0; 6]), None);
        assert_eq!(ratio_of_means(&[], &[]), None);
    }
}
