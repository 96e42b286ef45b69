//! Values that figures, goals and tables compute from the samples.

use crate::peers::link::{ALL, Carrier, Kind};
use crate::results::link::{Carried, Content};
use crate::results::statistics::{ascending, percentile};
use crate::results::{Cell, Figure, Results};

/// Some samples of one carrier.
#[derive(Clone, Debug)]
pub struct Values<'a> {
    pub carried: Vec<&'a Carried>,
    pub retransmissions: u32,
}

/// The samples of a carrier in cells that `wanted` accepts; `None` if there are none.
pub fn of<'a>(
    results: &'a Results,
    carrier: &str,
    wanted: impl Fn(&Cell) -> bool,
) -> Option<Values<'a>> {
    let samples: Vec<_> = results
        .samples
        .iter()
        .filter(|sample| sample.configuration == carrier && wanted(&sample.cell))
        .collect();
    let carried: Vec<_> = samples.iter().filter_map(|sample| sample.carried.as_ref()).collect();
    let retransmissions = samples.iter().map(|sample| sample.retransmissions).sum();
    (!carried.is_empty()).then_some(Values { carried, retransmissions })
}

impl Values<'_> {
    pub fn n(&self) -> usize {
        self.carried.len()
    }

    pub fn median_mbps(&self) -> f64 {
        let rates = ascending(self.carried.iter().map(|carried| carried.goodput_mbps));
        percentile(&rates, 50.0).unwrap_or_default()
    }

    pub fn mean_mbps(&self) -> f64 {
        mean(&self.carried.iter().map(|carried| carried.goodput_mbps).collect::<Vec<_>>())
            .unwrap_or_default()
    }

    pub fn cores(&self) -> Option<f64> {
        mean(&self.carried.iter().filter_map(|carried| carried.cores).collect::<Vec<_>>())
    }

    /// Round trips of all rounds without load, in milliseconds, ascending.
    pub fn idle_pings_ms(&self) -> Vec<f64> {
        ascending(self.carried.iter().flat_map(|carried| carried.idle_pings_ms.iter().copied()))
    }

    pub fn loaded_pings_ms(&self) -> Vec<f64> {
        ascending(self.carried.iter().flat_map(|carried| carried.loaded_pings_ms.iter().copied()))
    }

    pub fn loaded_pings_lost(&self) -> u32 {
        self.carried.iter().map(|carried| carried.loaded_pings_lost).sum()
    }

    /// The share of the received bytes that did not have to pass the path; negative if headers
    /// added more than compression saved.
    pub fn saved(&self) -> f64 {
        self.saved_bytes() / self.sum(|carried| carried.bytes).max(1.0)
    }

    /// Bytes of the streams minus bytes on the path, summed over all rounds.
    pub fn saved_bytes(&self) -> f64 {
        self.sum(|carried| carried.bytes) - self.sum(|carried| carried.wire_bytes)
    }

    fn sum(&self, value: fn(&Carried) -> u64) -> f64 {
        self.carried.iter().map(|carried| value(carried)).sum::<u64>() as f64
    }
}

pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The standard deviation, which ping calls mdev.
pub fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?;
    let squares = values.iter().map(|value| (value - mean) * (value - mean));
    Some((squares.sum::<f64>() / values.len() as f64).sqrt())
}

/// Carriers with samples, as tables list them.
pub fn carriers(results: &Results) -> impl Iterator<Item = &'static Carrier> {
    ALL.into_iter()
        .filter(|carrier| results.samples.iter().any(|sample| sample.configuration == carrier.name))
}

/// The best median of those peers, in Mb/s.
pub fn best_peer(
    results: &Results,
    kinds: &[Kind],
    wanted: impl Fn(&Cell) -> bool + Copy,
) -> Option<(&'static str, f64)> {
    carriers(results)
        .filter(|carrier| kinds.contains(&carrier.kind))
        .filter_map(|carrier| {
            Some((carrier.name, of(results, carrier.name, wanted)?.median_mbps()))
        })
        .max_by(|one, other| one.1.total_cmp(&other.1))
}

pub fn has_offloads(cell: &Cell) -> bool {
    cell.link.is_some_and(|link| link.offloads)
}

pub fn has_content(content: Content) -> impl Fn(&Cell) -> bool + Copy {
    move |cell| cell.link.is_some_and(|link| link.content == content)
}

pub fn figure(name: &str, value: f64, unit: &str, better: &str) -> Figure {
    Figure { name: name.into(), value, unit: unit.into(), better: better.into() }
}

#[cfg(test)]
pub(super) mod testing {
    use crate::results::link::{Carried, Content, LinkCell};
    use crate::results::{Cell, Sample};

    /// The sample of a stream of digits over a veth.
    pub fn sample(carrier: &str, goodput_mbps: f64) -> Sample {
        let link = LinkCell { rate_mbit: None, offloads: true, content: Content::Digits };
        Sample {
            configuration: carrier.into(),
            cell: Cell { link: Some(link), ..Cell::default() },
            carried: Some(Carried { goodput_mbps, ..Carried::default() }),
            ..Sample::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::sample;
    use super::*;
    use crate::results::testing::results;

    #[test]
    fn the_best_peer_is_the_one_of_the_best_median_and_no_kernel() {
        let results = results(vec![
            sample("vxlan", 30_000.0),
            sample("vtun", 1200.0),
            sample("vtun", 1300.0),
            sample("vtun", 9000.0),
            sample("tinc-plain", 1400.0),
            sample("vpncloud", 7000.0),
            sample("vsnoop-udp", 8000.0),
        ]);
        assert_eq!(best_peer(&results, &[Kind::Plain], |_| true), Some(("tinc-plain", 1400.0)));
        assert_eq!(best_peer(&results, &[Kind::Plain], |_| false), None);
    }

    #[test]
    fn the_deviation_of_equal_values_is_none_and_of_two_half_their_distance() {
        assert_eq!(deviation(&[3.0; 4]), Some(0.0));
        assert_eq!(deviation(&[1.0, 3.0]), Some(1.0));
        assert_eq!(deviation(&[]), None);
    }
}
