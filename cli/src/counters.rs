//! The counters of a port for `stats`: in its table and in its JSON.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use vsnoop_bpf::types::port_stats;
use vsnoop_metrics::counters::COUNTERS;

use crate::output::histogram::Histogram;

pub use vsnoop_metrics::counters::{OF_THE_HOLD, Resets};

/// (name, meaning, value) in the order of the struct.
pub fn list_counters(stats: &port_stats) -> Vec<(&'static str, &'static str, u64)> {
    COUNTERS.iter().map(|counter| (counter.name, counter.meaning, (counter.read)(stats))).collect()
}

/// All of `struct port_stats` for `--json`: counters as numbers, histograms with their percentiles.
pub struct Counters<'a>(pub &'a port_stats);

impl Serialize for Counters<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, _, value) in list_counters(self.0) {
            map.serialize_entry(name, &value)?;
        }
        map.serialize_entry("masked_ns", &Histogram::new(&self.0.masked_ns))?;
        map.serialize_entry("ack_delay_ns", &Histogram::new(&self.0.ack_delay_ns))?;
        map.serialize_entry("round_trip_ns", &Histogram::new(&self.0.round_trip_ns))?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_counters_and_histograms_by_name() {
        let mut stats = port_stats { early_acks: 7, ..Default::default() };
        stats.masked_ns[20] = 3;
        let json = serde_json::to_value(Counters(&stats)).unwrap();
        assert_eq!(json["early_acks"], 7);
        assert_eq!(json["masked_ns"]["count"], 3);
        assert_eq!(json["masked_ns"]["buckets"][20], 3);
        assert!(json["ack_delay_ns"]["p50"].is_null());
    }
}
