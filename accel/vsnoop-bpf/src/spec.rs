//! Parameters of an attachment.

use std::net::IpAddr;

use vsnoop_flow::types;
use vsnoop_hold::initial_policy;

use crate::service_mark::ServiceMark;
use crate::text::c_name;

/// Bounds of one port's tables. Both take memory even if the port is idle: 16 bytes for a flow (its
/// bucket; the record is allocated with the connection), 152 for an embryo.
#[derive(Debug, Clone, Copy)]
pub struct TableLimits {
    /// Flows; further ones are not accelerated.
    pub max_flows: u32,
    /// Handshakes under way; a full table evicts the oldest.
    pub max_embryos: u32,
}

impl TableLimits {
    /// Limit of connections on record over all ports of a host. Each takes 256 bytes: its
    /// record, its key, and the fields of the hash map. With incast control it takes 512: the
    /// kernel's caches for BPF have sizes of 256 and 512 (kernel/bpf/memalloc.c).
    pub const HOST_FLOWS: u32 = 1 << 20;
}

impl Default for TableLimits {
    fn default() -> Self {
        TableLimits { max_flows: 4096, max_embryos: 256 }
    }
}

/// Parameters of an attachment.
#[derive(Debug, Clone)]
pub struct AttachSpec {
    /// Index of the tap in the network namespace that the calling thread is in.
    pub ifindex: u32,
    /// Its name, up to 15 bytes.
    pub ifname: String,
    /// Inode of that network namespace.
    pub netns: u64,
    /// Settings that may change while the port is attached.
    pub policy: types::policy,
    /// Port number (of either end) and whether it is allowed.
    pub port_rules: Vec<(u16, bool)>,
    /// Prefix of the sender's address, its length, and whether it is allowed;
    /// the longest prefix wins.
    pub prefix_rules: Vec<(IpAddr, u8, bool)>,
    /// Bounds of the tables.
    pub limits: TableLimits,
    /// The default qdisc that the caller replaced by noqueue, to be restored.
    pub qdisc_replaced: Option<String>,
    /// The tap's ring and queues, to notice when they change.
    pub tx_queue_len: u32,
    /// See `tx_queue_len`.
    pub tx_queues: u32,
    /// Index of the bridge that the tap is a port of; 0: none.
    pub bridge: u32,
    /// Ethernet address of the tap; zero: unknown.
    pub mac: [u8; 6],
    /// The uplink, to which [`crate::Uplink::attach`] has attached its hook; 0: none.
    pub uplink: u32,
    /// `None`: a command attaches it.
    pub service: Option<ServiceMark>,
}

impl AttachSpec {
    /// A spec with default settings that only observes.
    pub fn new(ifindex: u32, ifname: &str, netns: u64) -> Self {
        AttachSpec {
            ifindex,
            ifname: ifname.to_owned(),
            netns,
            policy: initial_policy::initial(),
            port_rules: Vec::new(),
            prefix_rules: Vec::new(),
            limits: TableLimits::default(),
            qdisc_replaced: None,
            tx_queue_len: 0,
            tx_queues: 0,
            bridge: 0,
            mac: [0; 6],
            uplink: 0,
            service: None,
        }
    }

    /// Constants while the port is attached. With an allow list, everything else is denied.
    pub(crate) fn config(&self) -> types::port_config {
        let mut lists = 0;
        let mut set = |present: bool, allows: bool, flag: u32, allow_flag: u32| {
            lists |= if present { flag } else { 0 } | if allows { allow_flag } else { 0 };
        };
        set(
            !self.port_rules.is_empty(),
            self.port_rules.iter().any(|r| r.1),
            types::LIST_PORTS,
            types::LIST_PORTS_ALLOW,
        );
        set(
            !self.prefix_rules.is_empty(),
            self.prefix_rules.iter().any(|r| r.2),
            types::LIST_PREFIXES,
            types::LIST_PREFIXES_ALLOW,
        );
        types::port_config { hold: u32::from(self.policy.hold_chunks > 0), lists }
    }

    /// Size of the doorbell. A full one only costs time: the engine also looks at all holds
    /// sometimes.
    pub(crate) fn doorbell_bytes(&self) -> u32 {
        types::DOORBELL_BYTES
    }

    pub(crate) fn meta(&self) -> types::port_meta {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let mut mac = [0; 8];
        mac[..6].copy_from_slice(&self.mac);
        let meta = types::port_meta {
            abi: types::VSNOOP_ABI,
            ifindex: self.ifindex,
            netns: self.netns,
            attached_at: now.map(|d| d.as_secs()).unwrap_or(0),
            ifname: c_name(&self.ifname),
            qdisc: c_name(self.qdisc_replaced.as_deref().unwrap_or("")),
            tx_queue_len: self.tx_queue_len,
            tx_queues: self.tx_queues,
            bridge: self.bridge,
            mac,
            uplink: self.uplink,
            lists: self.config().lists,
            ..Default::default()
        };
        match &self.service {
            Some(mark) => mark.write(meta),
            None => meta,
        }
    }
}
