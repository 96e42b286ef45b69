//! The counters of a port under the names of `struct port_stats`, with a description of each.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use vsnoop_bpf::types::{port_meta, port_stats};

use crate::output::histogram::Histogram;

/// Counters that stay 0 on a port without a hold.
pub const OF_THE_HOLD: [&str; 8] = [
    "kept_bytes",
    "held_segments",
    "held_bytes",
    "kept_out_of_order",
    "without_hold",
    "hold_full",
    "hold_dropped",
    "abandoned",
];

macro_rules! counters {
    ($($name:ident: $meaning:literal,)*) => {
        /// (name, meaning, value) in the order of the struct.
        pub fn list(stats: &port_stats) -> Vec<(&'static str, &'static str, u64)> {
            vec![$((stringify!($name), $meaning, stats.$name)),*]
        }
    };
}

counters! {
    to_vm_packets: "packets to the VM",
    to_vm_bytes: "their bytes",
    from_vm_packets: "packets of the VM",
    from_vm_bytes: "their bytes",
    early_acks: "early acknowledgements",
    early_bytes: "bytes acknowledged early",
    reacked: "retransmissions answered here",
    suppressed: "superfluous ACKs of the VM, dropped",
    rewritten: "packets of the VM with a raised ACK",
    flows_created: "connections put on record",
    flows_mid_flow: "... without their handshake",
    flows_closed: "connections that ended",
    flows_refused: "connections refused: table full",
    offline_unexpected_seq: "offline: a hole, FIN or URG",
    offline_no_buf: "offline: no memory for a copy",
    offline_ce: "offline: congestion experienced",
    passive: "segments left to a prompt VM",
    bypassed: "connections never accelerated",
    bad_checksum: "segments with a wrong checksum",
    not_exact: "inexact hand-overs (qdisc, splitting)",
    left_alone: "connections of VM ports that failed lately",
    vm_refused: "resets by the VM, of what only the host asked it or held",
    resets_sent: "RST segments sent",
    malformed: "unparsable packets, passed untouched",
    kept_bytes: "bytes copied into the hold",
    held_segments: "segments acknowledged that had to wait",
    held_bytes: "their bytes",
    kept_out_of_order: "segments kept beyond a hole",
    stretch_acked: "segments acknowledged with a later one (stretch ACKs)",
    without_hold: "segments of connections for which no hold was left",
    hold_full: "segments for which the hold had no memory",
    hold_dropped: "segments dropped unacknowledged by the hold",
    abandoned: "resets: their engine was gone",
}

/// Connections that vsnoop has reset, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Resets {
    /// The VM had room, answered, and refused the same bytes repeatedly.
    pub refused: u64,
    /// The VM ran, and sent nothing for long.
    pub silent: u64,
    /// No engine could hand over the held bytes; reset by user space or by the hooks.
    pub engine_gone: u64,
    /// The port was detached with bytes in the hold.
    pub detached: u64,
    /// The process that read the tap was gone.
    pub no_reader: u64,
    /// The VM sent a RST that only the host's actions can explain.
    pub by_vm: u64,
    /// Bytes that the VM had not acknowledged, of connections that user space reset.
    pub bytes: u64,
}

impl Resets {
    pub fn of(meta: &port_meta, stats: &port_stats) -> Self {
        let [refused, silent, engine_gone, detached, no_reader] = meta.resets;
        Self {
            refused,
            silent,
            engine_gone: engine_gone + stats.abandoned,
            detached,
            no_reader,
            by_vm: stats.vm_refused,
            bytes: meta.reset_bytes,
        }
    }

    pub fn total(&self) -> u64 {
        self.list().iter().map(|(_, count, _)| count).sum()
    }

    /// (name, value, meaning)
    pub fn list(&self) -> [(&'static str, u64, &'static str); 6] {
        [
            ("resets.refused", self.refused, "the VM refused the same bytes again and again"),
            ("resets.silent", self.silent, "the VM ran and answered nothing"),
            ("resets.engine_gone", self.engine_gone, "nobody was left to hand over what was held"),
            ("resets.detached", self.detached, "detached with bytes in the hold"),
            ("resets.no_reader", self.no_reader, "nobody read the tap any more"),
            ("resets.by_vm", self.by_vm, "the VM's RST to what only the host sent"),
        ]
    }
}

/// All of `struct port_stats` for `--json`: counters as numbers, histograms with their percentiles.
pub struct Counters<'a>(pub &'a port_stats);

impl Serialize for Counters<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, _, value) in list(self.0) {
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
    fn no_counter_of_the_struct_is_missing() {
        let histograms = 3 * vsnoop_bpf::types::HISTOGRAM_BUCKETS as usize;
        assert_eq!(list(&port_stats::default()).len() + histograms, size_of::<port_stats>() / 8);
    }

    #[test]
    fn those_of_the_hold_exist() {
        let names: Vec<_> = list(&port_stats::default()).iter().map(|(name, ..)| *name).collect();
        assert!(OF_THE_HOLD.iter().all(|name| names.contains(name)));
    }

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
