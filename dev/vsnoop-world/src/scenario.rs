//! The plan of a simulation: connections, VMs, faults.

use vsnoop_flow::testing::end::EndSettings;
use vsnoop_flow::testing::network::Network;

use crate::guest::{Kind, Link};
use crate::host::Fortune;

/// Actions of the operator, at the port or the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Attach,
    Detach,
    Pause,
    Resume,
    /// The splitter is killed; so are splitter and keeper; so is the keeper alone.
    KillSplitter,
    KillSplitting,
    KillKeeper,
    /// The state of the VM is saved.
    Save,
    /// The VM is rolled back to its saved state.
    RollBack,
    /// The VM's TCP has no memory for what comes, until [`Act::HasMemory`].
    HasNoMemory,
    HasMemory,
    /// The VM is behind another port of the bridge from now on.
    Move,
}

impl Act {
    /// Does it happen to the VM, with vsnoop and without?
    pub fn is_of_vm(self) -> bool {
        use Act::{HasMemory, HasNoMemory, Move, RollBack, Save};
        matches!(self, Save | RollBack | Move | HasNoMemory | HasMemory)
    }
}

/// One connection.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Index of its VM.
    pub vm: usize,
    pub ipv6: bool,
    pub vlan: Option<u16>,
    /// The paths to the VM and from it have different routers.
    pub is_asymmetric: bool,
    pub vm_opens: bool,
    pub sender: EndSettings,
    pub guest: EndSettings,
    pub to_vm: Network,
    pub from_vm: Network,
    pub start_ms: u64,
    /// An abort: by the VM (true) or the sender, and when.
    pub abort: Option<(bool, u64)>,
    /// When another socket of the VM that listens on the same port repeats its SYN-ACK, of another
    /// ISN, because an earlier SYN of the sender has met it (not before the sender is established),
    /// ms.
    pub other_syn_acks: Vec<u64>,
    /// The sender's TCP is lwIP; then that of no other connection of the scenario is another.
    pub sender_is_lwip: bool,
    /// Two sockets of the VM listen for it, and its first SYN-ACK is lost.
    pub has_two_listeners: bool,
}

/// One VM and its port.
#[derive(Clone, Debug)]
pub struct Machine {
    pub kind: Kind,
    /// The VM forwards: its TCP is behind this link.
    pub leg: Option<Link>,
    pub fortune: Fortune,
    pub ring_slots: usize,
    /// The device takes super-packets.
    pub gso: bool,
    /// Connections are split.
    pub downloads: bool,
    /// A fault for the checks to find: the sockets say that all they sent is acknowledged, so that
    /// connections are joined too early.
    pub joins_early: bool,
    /// The probability that the splitter is killed at a call, per 100,000.
    pub splitter_crashes: u32,
    /// Quota of the hold, chunks.
    pub chunks: u32,
    pub ahead: u32,
    /// Incast control of the uplink's rate and queue (bits per second and bytes); none: off.
    pub incast: Option<(u64, u32)>,
    /// Time from the death of an engine to the start of the next, ms; `None`: no next engine.
    pub absence_ms: Option<u64>,
    pub acts: Vec<(u64, Act)>,
    pub attached: bool,
}

/// The last hop before the uplink of all hosts: a link with a queue that drops what does not fit.
#[derive(Clone, Debug)]
pub struct LastHop {
    pub mbps: u64,
    /// Length of its queue, bytes.
    pub queue: u32,
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub machines: Vec<Machine>,
    pub connections: Vec<Connection>,
    /// After this time there are no more faults, ms.
    pub hostile_ms: u64,
    /// Between network and hosts.
    pub last_hop: Option<LastHop>,
    /// A connection that has not ended by then hangs, ms.
    pub patience_ms: u64,
    /// Without vsnoop: the same world with no program on any port.
    pub without: bool,
}
