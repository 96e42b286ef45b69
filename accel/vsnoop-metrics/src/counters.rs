//! The counters of a port: those of `struct port_stats`, and why connections were reset.

use serde::Serialize;
use vsnoop_bpf::types::{port_meta, port_stats};

/// A counter of the hooks.
pub struct Counter {
    /// The field's name in `struct port_stats`, and in `vsnoop stats --json`.
    pub name: &'static str,
    /// The unit, if the name does not say it: the metric's name has it as well.
    pub unit: &'static str,
    /// For a table.
    pub meaning: &'static str,
    /// A remark for readers of the document; may be empty.
    pub detail: &'static str,
    pub read: fn(&port_stats) -> u64,
}

impl Counter {
    /// Name of the metric without prefix and `_total`.
    pub fn metric(&self) -> String {
        if self.unit.is_empty() {
            self.name.to_owned()
        } else {
            format!("{}_{}", self.name, self.unit)
        }
    }

    /// Meaning and detail.
    pub fn help(&self) -> String {
        match self.detail {
            "" => self.meaning.to_owned(),
            detail => format!("{}; {detail}", self.meaning),
        }
    }
}

/// Counters that stay 0 on a port without a hold.
pub const OF_THE_HOLD: [&str; 12] = [
    "kept_bytes",
    "held_segments",
    "held_bytes",
    "kept_out_of_order",
    "without_hold",
    "hold_full",
    "hold_busy",
    "not_copied",
    "hold_dropped",
    "reset_without_engine",
    "replaced",
    "too_big",
];

macro_rules! counters {
    ($($name:ident $unit:literal: $meaning:literal, $detail:literal;)*) => {
        /// In the order of the struct.
        pub const COUNTERS: &[Counter] = &[$(Counter {
            name: stringify!($name),
            unit: $unit,
            meaning: $meaning,
            detail: $detail,
            read: |stats| stats.$name,
        }),*];
    };
}

counters! {
    to_vm_packets "": "packets to the VM", "a super-packet is one";
    to_vm_bytes "": "bytes of packets to the VM", "frames with their headers";
    from_vm_packets "": "packets of the VM", "a super-packet is one";
    from_vm_bytes "": "bytes of packets of the VM", "frames with their headers";
    early_acks "": "early acknowledgements", "";
    early_bytes "": "bytes acknowledged early", "";
    reacked "segments": "retransmissions answered here", "of data that were acknowledged already";
    suppressed "acks": "superfluous ACKs of the VM, dropped", "";
    rewritten "packets": "packets of the VM with a raised ACK", "";
    flows_created "": "connections put on record", "";
    flows_mid_flow "": "connections on record without their handshake", "part of flows_created";
    flows_closed "": "connections that ended", "";
    flows_refused "": "connections refused: table full", "beyond max_flows";
    offline_unexpected_seq "": "offline: a hole, FIN or URG", "";
    offline_no_buf "": "offline: a segment was not kept",
        "hold_full, without_hold, hold_busy, not_copied, or no engine where one is needed";
    offline_ce "": "offline: congestion experienced", "";
    passive "segments": "segments left to a prompt VM", "it answers at once by itself";
    bypassed "flows": "connections never accelerated",
        "options not understood, denied, or open at attach";
    bad_checksum "segments": "segments with a wrong checksum", "passed on";
    not_exact "segments": "inexact hand-overs (qdisc, splitting)",
        "a qdisc other than noqueue, or a super-packet that the VM's device does not take";
    bypassed_after_failures "flows": "connections of VM ports that failed lately", "not accelerated";
    vm_refused "resets": "resets by the VM, of what only the host asked it or held",
        "as `by_vm` of the resets";
    resets_sent "": "RST segments sent", "";
    malformed "packets": "unparsable packets, passed untouched", "";
    kept_bytes "": "bytes copied into the hold", "";
    held_segments "": "segments acknowledged that had to wait",
        "for the engine: beyond the VM's window, behind others, or the ring was full";
    held_bytes "": "bytes of segments that had to wait", "";
    kept_out_of_order "segments": "segments kept beyond a hole", "reported to senders by SACK";
    stretch_acked "segments": "segments acknowledged with a later one (stretch ACKs)", "";
    without_hold "segments": "segments of connections for which no hold was left", "";
    hold_full "segments": "segments for which the hold had no memory", "a larger hold helps";
    hold_busy "segments": "segments not kept: another CPU had the hold",
        "a larger hold does not help";
    not_copied "segments": "segments not copied, but not for memory",
        "too far beyond a hole, no longer needed, or unreadable; a larger hold does not help";
    hold_dropped "segments": "segments dropped unacknowledged by the hold",
        "their senders send them again";
    reset_without_engine "flows": "connections reset: their engine was gone",
        "by the hooks, with bytes that nothing could hand over";
    replaced "flows": "connections replaced by a new one with bytes held",
        "of the same addresses and ports, confirmed by the sender; the old one's bytes are lost";
    forwarded "flows": "connections that the VM forwards, left to it",
        "their far end is behind the VM";
    too_big "reports": "reports of a smaller path MTU, honoured",
        "ICMP of the VM about connections on record";
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
    /// The VM took back what it had acknowledged.
    pub rolled_back: u64,
    /// The VM, or its address, was behind another port or host.
    pub moved: u64,
    /// The VM sent a RST that only the host's actions can explain.
    pub by_vm: u64,
    /// Bytes that the VM had not acknowledged, of connections that user space reset.
    pub bytes: u64,
    /// Connections that user space reset without a RST to their sender.
    pub unsent: u64,
}

impl Resets {
    pub fn count_resets(meta: &port_meta, stats: &port_stats) -> Self {
        let [refused, silent, engine_gone, detached, no_reader, rolled_back, moved] = meta.resets;
        Self {
            refused,
            silent,
            engine_gone: engine_gone + stats.reset_without_engine,
            detached,
            no_reader,
            rolled_back,
            moved,
            by_vm: stats.vm_refused,
            bytes: meta.reset_bytes,
            unsent: meta.resets_unsent,
        }
    }

    pub fn total(&self) -> u64 {
        self.by_reason().iter().map(|reset| reset.count).sum()
    }

    pub fn by_reason(&self) -> [Reset; 8] {
        let reset = |reason, count, meaning| Reset { reason, count, meaning };
        [
            reset("refused", self.refused, "the VM refused the same bytes again and again"),
            reset("silent", self.silent, "the VM ran and answered nothing"),
            reset("engine_gone", self.engine_gone, "nobody was left to hand over what was held"),
            reset("detached", self.detached, "detached with bytes in the hold"),
            reset("no_reader", self.no_reader, "nobody read the tap any more"),
            reset("rolled_back", self.rolled_back, "the VM took back what it had acknowledged"),
            reset("moved", self.moved, "the VM, or its address, was behind another port"),
            reset("by_vm", self.by_vm, "the VM's RST to what only the host sent"),
        ]
    }
}

/// Connections that were reset for one reason.
pub struct Reset {
    pub reason: &'static str,
    pub count: u64,
    pub meaning: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_counter_of_the_struct_is_missing() {
        let histograms = 3 * vsnoop_bpf::types::HISTOGRAM_BUCKETS as usize;
        // `lease_jiffy` counts nothing.
        assert_eq!(COUNTERS.len() + histograms + 1, size_of::<port_stats>() / 8);
    }

    #[test]
    fn those_of_the_hold_exist() {
        let is_there = |name: &&str| COUNTERS.iter().any(|counter| counter.name == *name);
        assert!(OF_THE_HOLD.iter().all(is_there));
    }
}
