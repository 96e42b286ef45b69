//! The splitter's counters of a port.

use serde::Serialize;
use vsnoop_bpf::types::{split_port, split_refusal};
use vsnoop_bpf::{Port, split};
use vsnoop_host::error::Result;

/// Split connections of a port with downloads, since these are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SplitState {
    /// Connections that are split now.
    pub connections: u64,
    /// Acknowledged to one end by the host, and not by the other yet.
    pub held_to_peer_bytes: u64,
    pub held_to_vm_bytes: u64,
    /// Connections that were split, and what came of them.
    pub split: u64,
    pub joined: u64,
    pub ended: u64,
    pub reset: u64,
    /// Bytes that peers, and the VM, have acknowledged to the host.
    pub to_peer_bytes: u64,
    pub to_vm_bytes: u64,
    pub retransmitted_bytes: u64,
    pub refused: SplitRefused,
}

/// How often a connection was not split, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SplitRefused {
    pub unfit: u64,
    pub no_copy: u64,
    pub no_room: u64,
    pub busy: u64,
    pub changed: u64,
    pub no_socket: u64,
}

impl SplitState {
    /// `None` of a port without downloads.
    pub fn read_state(port: &Port) -> Result<Option<Self>> {
        Ok(split::counters(port)?.map(|counters| Self::new(&counters)))
    }

    pub fn new(counters: &split_port) -> Self {
        let totals = &counters.totals;
        let refused = |why: split_refusal::Type| totals.refused[why as usize];
        Self {
            connections: counters.splits,
            held_to_peer_bytes: totals.held_to_peer_bytes,
            held_to_vm_bytes: totals.held_to_vm_bytes,
            split: totals.split,
            joined: totals.joined,
            ended: totals.ended,
            reset: totals.reset,
            to_peer_bytes: totals.to_peer_bytes,
            to_vm_bytes: totals.to_vm_bytes,
            retransmitted_bytes: totals.retransmitted_bytes,
            refused: SplitRefused {
                unfit: refused(split_refusal::SPLIT_NO_UNFIT),
                no_copy: refused(split_refusal::SPLIT_NO_COPY),
                no_room: refused(split_refusal::SPLIT_NO_ROOM),
                busy: refused(split_refusal::SPLIT_NO_BUSY),
                changed: refused(split_refusal::SPLIT_NO_CHANGED),
                no_socket: refused(split_refusal::SPLIT_NO_SOCKET),
            },
        }
    }

    pub fn held_bytes(&self) -> u64 {
        self.held_to_peer_bytes + self.held_to_vm_bytes
    }

    /// (name, meaning, value) of what only grows.
    pub fn totals(&self) -> [(&'static str, &'static str, u64); 7] {
        [
            ("split", "connections that were split", self.split),
            ("joined", "of these, joined again: nothing was on its way", self.joined),
            ("ended", "of these, closed by both ends", self.ended),
            ("reset", "of these, reset", self.reset),
            ("to_peer_bytes", "bytes of split connections that peers have", self.to_peer_bytes),
            ("to_vm_bytes", "bytes of split connections that the VM has", self.to_vm_bytes),
            ("retransmitted_bytes", "bytes sent to peers again", self.retransmitted_bytes),
        ]
    }
}

impl SplitRefused {
    /// (name, meaning, value).
    pub fn by_reason(&self) -> [(&'static str, &'static str, u64); 6] {
        [
            ("unfit", "not split: ECN, fast open or a foreign option", self.unfit),
            ("no_copy", "not split: a copy of what was in flight was missing", self.no_copy),
            ("no_room", "not split: no memory was left, or too many are", self.no_room),
            ("busy", "not split: something else was on its way", self.busy),
            ("changed", "not split: an end has sent something meanwhile", self.changed),
            ("no_socket", "not split: the kernel refused a socket", self.no_socket),
        ]
    }
}
