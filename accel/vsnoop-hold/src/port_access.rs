//! The surroundings of the engine's loop: the memory of one port, the way into its VM, clocks.

use vsnoop_flow::hold::Reclaimed;
use vsnoop_flow::types::{hold, seq};

use crate::chain::Slice;
use crate::giving_up::Reason;
use crate::run_time::RunTime;

/// One port's memory, which the engine shares with the hooks (flow/types/hold_record.h, `struct
/// hold_slab`).
///
/// Numbers of holds begin at 1. The hooks may change anything between two calls.
pub trait Memory {
    /// Number of holds in the port's slabs.
    fn hold_count(&mut self) -> u32;
    /// Reads the hold with this number; a free one (`used == 0`) if no slab has it.
    fn read(&mut self, number: u32) -> hold;
    /// SEQ of the chain's first byte, and the number of its first chunk.
    fn front(&mut self, number: u32) -> (seq, u32);
    /// The successor of a chunk; undefined for the last chunk, and for one in no chain.
    fn next(&mut self, chunk: u32) -> u32;

    /// Takes the numbers of holds from the doorbell, since the last call; 0: the hooks want memory.
    fn take_woken(&mut self) -> Vec<u32>;
    /// Tells the hooks whether [`Memory::take_woken`] is called within
    /// [`RETRY_NS`](crate::RETRY_NS): then they do not ring for what may wait as long.
    fn set_looks(&mut self, looks: bool);
    /// Lets the hooks ring for this hold again.
    fn clear_woken(&mut self, number: u32);
    /// Busy bits of the 32 holds from number 32 * `group` + 1.
    fn busy(&mut self, group: u32) -> u32;
    /// Clears a busy bit: the hooks set it when they keep something.
    fn clear_busy(&mut self, number: u32);
    /// Tells the hooks whether to ring for each ACK of the VM.
    fn set_wants_acks(&mut self, number: u32, wants: bool);
    /// Tells the hooks from how much room in the VM's window on they are to ring, in bytes; 0: any.
    fn set_portion(&mut self, number: u32, bytes: u32);
    /// Tells the hooks that a frame is being written since `now_ns`; `None`: it has been.
    fn set_sending(&mut self, number: u32, now_ns: Option<u64>);
    /// Notes whether an ACK that the hooks dropped waits for a frame.
    fn set_ack_waits(&mut self, number: u32, waits: bool);
    /// Sign of life for the hooks.
    fn heartbeat(&mut self, now_ns: u64);
    /// Notes that the VM waits for a CPU, for the hooks.
    fn starves(&mut self, now_ns: u64);

    /// Notes that the VM was handed all bytes below `handed`.
    fn set_handed(&mut self, number: u32, handed: seq);
    /// Notes when data were handed to a VM that had acknowledged everything before.
    fn set_handed_ns(&mut self, number: u32, now_ns: u64);
    /// Notes for the hooks why the connection is to be left to the VM (`LATE_*`).
    fn set_late(&mut self, number: u32, why: u32);
    /// Notes the TSval of the frames that follow.
    fn set_handed_tsval(&mut self, number: u32, tsval: u32);
    /// Counts a frame that the VM was handed for the first time.
    fn count_handover(&mut self, number: u32);
    /// Counts a frame that the VM was handed again.
    fn count_resend(&mut self, number: u32, bytes: u32);
    /// Counts a probe, before it is sent.
    fn count_probe(&mut self, number: u32);

    /// Frees the chunks that the VM has acknowledged, and with `end` the hold itself if its flow is
    /// over.
    fn reclaim(&mut self, number: u32, end: bool) -> Reclaimed;
    /// Adds memory if the hooks want it.
    fn grow(&mut self);
    /// Gives unused memory back.
    fn shrink(&mut self);
}

/// The way into the VM.
pub trait Device {
    /// Its current MTU, bytes.
    fn mtu(&mut self) -> u32;
    /// Does the VM take super-packets of TCP at present?
    fn takes_super_packets(&mut self) -> bool;
    /// Hands a frame over: `virtio_net_hdr` of 10 bytes, headers, and payload out of the chunks'
    /// memory.
    fn send(&mut self, headers: &[u8], payload: &[Slice]) -> Sent;
}

/// Result of sending a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// The ring has it.
    Taken,
    /// The ring is full.
    Refused,
    /// A segment is larger than the MTU.
    TooLarge,
    /// Another error, which may be temporary.
    Failed,
}

/// The two clocks of the engine, ns.
pub trait Clock {
    /// CLOCK_MONOTONIC.
    fn now_ns(&mut self) -> u64;
    /// Time of the VM since the last call or `forget_run_time()`.
    fn run_time(&mut self) -> RunTime;
    /// Discards the run time up to now.
    fn forget_run_time(&mut self);
    /// Time that the VM waited for a CPU since the last call; none if that is not known.
    fn waited(&mut self) -> Option<Waited>;
}

/// Time that the VM waited for a CPU, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// The vCPU that waited longest.
    pub vcpu_ns: u64,
    /// All threads of the process together: more than the VM itself may have waited.
    pub process_ns: u64,
}

/// The surroundings of one port.
pub trait PortAccess: Memory + Device + Clock {
    /// Resets the connection of this hold at both ends, and counts the reason. Returns false, and
    /// does nothing, if the VM has acknowledged something since.
    fn reset_held_flow(&mut self, hold: &hold, reason: Reason) -> bool;
}
