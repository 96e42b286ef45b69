//! Percentiles, means and ratios of samples.

use std::collections::BTreeMap;

use super::Sample;
use super::table::ratio;

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

pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The median of each turn, ascending: what was measured in one turn (connections of a burst,
/// requests of one attachment) shares its fate, and counts once in an interval.
pub fn medians_by_turn<'a>(samples: impl Iterator<Item = &'a Sample>, name: &str) -> Vec<f64> {
    let mut turns: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    let mut medians = Vec::new();
    for sample in samples {
        match sample.turn {
            Some(turn) => turns.entry(turn).or_default().extend(sample.all(name)),
            None => medians.extend(sample.all(name)),
        }
    }
    let median = |turn: Vec<f64>| percentile(&ascending(turn.into_iter()), 50.0);
    medians.extend(turns.into_values().filter_map(median));
    ascending(medians.into_iter())
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
    pub fn to_text(self) -> String {
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

/// Divides means instead of medians: for counts, and where a paper has means.
pub fn ratio_of_means(over: &[f64], under: &[f64]) -> Option<Ratio> {
    ratio_of(over, under, |values| mean(&values))
}

/// `None` where it has no value: without samples, or with nothing to divide by.
fn ratio_of(
    over: &[f64],
    under: &[f64],
    reduce: impl Fn(Vec<f64>) -> Option<f64>,
) -> Option<Ratio> {
    const DRAWS: usize = 1000;
    let finite = |value: &f64| value.is_finite();
    let value = Some(reduce(over.to_vec())? / reduce(under.to_vec())?).filter(finite)?;
    // The draws are always the same, so that a report made again has the same values.
    let mut random = fastrand::Rng::with_seed(1);
    let mut again = |values: &[f64]| {
        reduce(values.iter().map(|_| values[random.usize(..values.len())]).collect())
    };
    let draws = (0..DRAWS).filter_map(|_| Some(again(over)? / again(under)?)).filter(finite);
    let draws = ascending(draws);
    let (low, high) = (percentile(&draws, 2.5)?, percentile(&draws, 97.5)?);
    Some(Ratio { value, low, high, n: over.len().min(under.len()) })
}

#[cfg(test)]
mod tests {
    use super::super::testing::sample;
    use super::*;
    use crate::results::ACKED;

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
    fn a_burst_counts_once_and_its_members_do_not_narrow_an_interval() {
        let burst = |name: &str, turn: usize, ms: f64| {
            [0.9, 1.0, 1.1].map(|part| Sample { turn: Some(turn), ..sample(name, ms * part) })
        };
        let bursts = [("off", 0, 100.0), ("off", 1, 300.0), ("vsnoop", 0, 50.0)];
        let samples = bursts.into_iter().flat_map(|(name, turn, ms)| burst(name, turn, ms));
        let samples: Vec<_> = samples.collect();
        let of_name = |name| samples.iter().filter(move |sample| sample.configuration == name);
        let [off, vsnoop] = ["off", "vsnoop"].map(|name| medians_by_turn(of_name(name), ACKED));
        assert_eq!((&off[..], &vsnoop[..]), (&[100.0, 300.0][..], &[50.0][..]));
        let ratio = ratio_of_medians(&off, &vsnoop).unwrap();
        assert_eq!((ratio.to_text(), ratio.is_noise()), ("4.00".into(), true));
    }

    #[test]
    fn the_interval_of_a_ratio_is_narrow_for_equal_values_and_holds_one_for_the_same_values() {
        let exact = ratio_of_medians(&[6.0; 9], &[2.0; 9]);
        assert_eq!(exact, Some(Ratio { value: 3.0, low: 3.0, high: 3.0, n: 9 }));
        assert_eq!(exact.unwrap().to_text(), "3.00 (3.00-3.00)");
        for few in 1..FEWEST {
            assert_eq!(ratio_of_medians(&[6.0; 9], &vec![2.0; few]).unwrap().to_text(), "3.00");
        }
        let spread: Vec<_> = (1..=20).map(f64::from).collect();
        let same = ratio_of_medians(&spread, &spread).unwrap();
        assert!(same.low < 1.0 && 1.0 < same.high && same.is_noise(), "{same:?}");
        assert!(same.to_text().starts_with("noise ("), "{same:?}");
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
