//! What the connections of simulated VMs go through.

use vsnoop_flow::testing::end::End;
use vsnoop_flow::testing::network::Link;

use crate::guest::Kind;
use crate::host::Fortune;

/// What the operator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Attach,
    Detach,
    Pause,
    Resume,
}

/// One connection.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Of which VM.
    pub vm: usize,
    pub ipv6: bool,
    pub vlan: Option<u16>,
    /// The ways to the VM and from it lead over different routers.
    pub is_asymmetric: bool,
    pub vm_opens: bool,
    pub sender: End,
    pub guest: End,
    pub to_vm: Link,
    pub from_vm: Link,
    pub start_ms: u64,
    /// Who aborts, and when; true: the VM.
    pub abort: Option<(bool, u64)>,
}

/// One VM and its port.
#[derive(Clone, Debug)]
pub struct Machine {
    pub kind: Kind,
    pub fortune: Fortune,
    pub ring_slots: usize,
    /// The device takes super-packets.
    pub gso: bool,
    /// Chunks of memory for what is held.
    pub chunks: u32,
    pub ahead: u32,
    /// Another engine comes so long after one was killed, ms; none: never.
    pub absence_ms: Option<u64>,
    pub acts: Vec<(u64, Act)>,
    pub attached: bool,
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub machines: Vec<Machine>,
    pub connections: Vec<Connection>,
    /// After this the network and the VMs behave.
    pub hostile_ms: u64,
    /// What is not over by then hangs.
    pub patience_ms: u64,
    /// Without vsnoop: the same world with no program on any port.
    pub without: bool,
}
