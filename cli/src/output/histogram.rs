//! Log2 histograms of the hooks: bucket b counts values from 2^b up to 2^(b+1) ns.

use serde::Serialize;

/// A histogram with its percentiles; what `--json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Histogram {
    pub count: u64,
    /// Nanoseconds, interpolated within the bucket; null without values.
    pub p50: Option<u64>,
    pub p90: Option<u64>,
    pub p99: Option<u64>,
    /// Index b: number of values from 2^b up to 2^(b+1) ns.
    pub buckets: Vec<u64>,
}

impl Histogram {
    pub fn new(buckets: &[u64]) -> Self {
        Self {
            count: buckets.iter().sum(),
            p50: percentile(buckets, 0.5),
            p90: percentile(buckets, 0.9),
            p99: percentile(buckets, 0.99),
            buckets: buckets.to_vec(),
        }
    }
}

/// The value, ns, below which `share` (0 to 1) of all values lie; assumes evenly filled buckets.
/// `None` without values.
pub fn percentile(buckets: &[u64], share: f64) -> Option<u64> {
    let total: u64 = buckets.iter().sum();
    if total == 0 {
        return None;
    }
    let wanted = share * total as f64;
    let mut below = 0.0;
    for (exponent, &inside) in buckets.iter().enumerate() {
        let upto = below + inside as f64;
        if inside > 0 && upto >= wanted {
            let low = (1u64 << exponent) as f64;
            return Some((low + low * (wanted - below) / inside as f64) as u64);
        }
        below = upto;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_in_their_bucket() {
        let mut buckets = [0; 40];
        buckets[10] = 50;
        buckets[20] = 50;
        let histogram = Histogram::new(&buckets);
        assert_eq!(histogram.count, 100);
        assert_eq!(histogram.p50, Some(2048));
        let p90 = histogram.p90.unwrap();
        assert!((1 << 20..1 << 21).contains(&p90), "{p90}");
        assert!(histogram.p99.unwrap() > p90);
    }

    #[test]
    fn an_empty_histogram_has_no_percentiles() {
        assert_eq!(Histogram::new(&[0; 40]).p50, None);
    }
}
