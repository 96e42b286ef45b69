//! The status of a link, which `vsnoop link status --json` prints (docs/reference/json.md).
//!
//! Times are nanoseconds, points in time seconds since the epoch, counters since the link came up.

use std::collections::BTreeMap;
use std::fmt;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::config::{Compress, Mac, PeerSource, Transport, WhenDown};

/// The state of a link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    pub name: String,
    pub network: String,
    /// Inode of the network namespace that it is in.
    pub netns: u64,
    pub pid: u32,
    /// When the link came up.
    pub since: u64,
    /// The file that it was read from.
    pub config: String,
    pub listen: String,
    /// Its own public key.
    pub key: String,
    pub mtu_bytes: u16,
    pub cpu: LinkCpu,
    /// Lines of its log that were lost: what reads it was stuck, or is not there.
    pub log_lines_lost: u64,
    pub membership: MembershipStatus,
    /// Frames that the link itself dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    pub problems: Vec<Problem>,
    pub ports: Vec<LinkPortStatus>,
    pub peers: Vec<PeerStatus>,
    pub compression: Vec<RuleStatus>,
    pub diverts: Vec<DivertStatus>,
    /// Null without diversion.
    pub entry: Option<EntryStatus>,
    /// Number of learned addresses.
    pub learned: u64,
    /// How full the table of addresses is.
    pub table: TableStatus,
    /// The learned addresses, if the request asked for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Vec<Learned>>,
}

/// Where the link knows its peers from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MembershipStatus {
    /// "file", or "etcd" (beside the file): all that follows is of the latter.
    pub source: String,
    /// The name that this host has there.
    pub name: Option<String>,
    /// The key of its entry.
    pub key: Option<String>,
    /// The node that it is connected to, or was last.
    pub endpoint: Option<String>,
    pub connected: bool,
    /// When that began.
    pub since: u64,
    /// Why it is not connected.
    pub reason: Option<String>,
    /// The revision of etcd that the hosts are known of.
    pub revision: i64,
    /// Hosts there that are peers.
    pub hosts: u64,
    /// There are more than are read.
    pub more: bool,
    /// Whether the entry of this host is there.
    pub announced: bool,
    /// Why it is not.
    pub not_announced: Option<String>,
    /// Hosts that are gone from there, and whose session goes on.
    pub leaving: Vec<String>,
    pub refused: Vec<RefusedEntry>,
}

/// An entry that is not taken for a peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RefusedEntry {
    pub name: String,
    pub reason: String,
}

/// CPU time of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkCpu {
    /// Pairs of threads that carry frames.
    pub threads: u64,
    /// CPU time of the threads that carry frames to peers.
    pub egress_ns: u64,
    /// CPU time of the threads that carry frames to ports.
    pub ingress_ns: u64,
    /// CPU time of the whole process.
    pub process_ns: u64,
    /// CPUs in use over the last second.
    pub cores: f64,
}

/// A problem that the operator should solve.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Problem {
    pub what: String,
    /// How to solve it.
    pub remedy: String,
}

/// How full the table of addresses is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TableStatus {
    /// Addresses in it, also those that are too old.
    pub addresses: u64,
    /// Addresses of these that have sent for two seconds, or have answered.
    pub proven: u64,
    /// Addresses that it may have.
    pub limit: u64,
    /// Addresses that gave way to others.
    pub displaced: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FrameCounts {
    /// A super-packet counts once.
    pub frames: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkPortStatus {
    /// Name of the interface.
    pub name: String,
    /// "bridge", "tap" or "interface".
    pub kind: String,
    /// The bridge of a port of that kind.
    pub bridge: Option<String>,
    /// Whether it carries frames.
    pub up: bool,
    /// Why it carries no frames, or how it differs from its configuration.
    pub reason: Option<String>,
    /// Frames from the VMs.
    pub received: FrameCounts,
    /// Frames to the VMs.
    pub sent: FrameCounts,
    /// Frames that were dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerState {
    Up,
    /// The link dials it.
    Dialling,
    /// It has no address: it has to dial.
    #[default]
    Waiting,
    /// The last attempt to dial failed, or the peer fell silent; another attempt follows.
    Down,
    /// It has no session with this host; its hub relays what both send each other.
    Relayed,
}

/// The path of a peer's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerPath {
    /// A session of the two hosts.
    Direct,
    /// The sessions of both with a hub.
    Relayed,
}

/// Whether datagrams to a peer leave many at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UdpGso {
    On,
    /// By the configuration.
    Off,
    /// They leave one by one, to see whether fewer are lost so.
    Trial,
    /// Fewer were lost so.
    Failed,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerStatus {
    pub name: String,
    /// The source of this peer: the file or etcd.
    pub source: PeerSource,
    pub state: PeerState,
    /// `None` while it is not reached.
    pub path: Option<PeerPath>,
    /// The peer that relays for it.
    pub via: Option<String>,
    /// Why it is not up.
    pub reason: Option<String>,
    /// When this state began.
    pub since: u64,
    pub transport: Option<Transport>,
    pub encrypted: bool,
    /// Number of parallel connections now.
    pub connections: u32,
    /// Its last address, or the one that is dialled.
    pub address: Option<String>,
    /// Epoch of the session.
    pub epoch: u64,
    /// Version of the protocol.
    pub version: u32,
    pub rtt_ns: Option<u64>,
    pub rtt_min_ns: Option<u64>,
    pub jitter_ns: Option<u64>,
    /// Largest IP packet that the path takes; null on ordered transports.
    pub path_mtu_bytes: Option<u32>,
    /// Null on ordered transports, and while it is not up.
    pub udp_gso: Option<UdpGso>,
    /// When it is tried again, if it has failed.
    pub udp_gso_again: Option<u64>,
    /// Frames to the peer.
    pub sent: Carried,
    /// Frames from the peer.
    pub received: Carried,
    pub cpu: Cpu,
    /// Datagrams to the peer that were lost.
    pub lost_out: u64,
    /// Datagrams from the peer that were lost.
    pub lost_in: u64,
    /// Records that were forged, too old, or duplicates.
    pub rejected: u64,
    /// Bytes that wait to be sent.
    pub queue_bytes: u64,
    /// Frames from the peer that routers have marked (ECN): their packets are marked, too, or were
    /// dropped where they do not know ECN.
    pub congested: u64,
    /// Messages of its sessions that were ignored because they were more than sessions need.
    pub excess: u64,
    /// Records compressed by what this host does not accept; each ended its session.
    pub not_accepted: u64,
    /// Frames, or the parts that a slow path makes of them, dropped before they were sent, by
    /// reason: "down" (no session, or it ended), "queue_full" (no room), "queue_late" (waited too
    /// long); "send" counts datagrams, which the host refused. Frames from the peer that were not
    /// relayed: "flood" (beyond `flood_rate`), "relay" (too much waited).
    pub dropped: BTreeMap<String, u64>,
    /// Bytes of the dropped frames.
    pub dropped_bytes: BTreeMap<String, u64>,
    pub reconnects: u64,
    pub rekeys: u64,
    pub roams: u64,
    /// New keys are due and do not come.
    pub rekey: Option<RekeyStatus>,
    /// When the certificate that the peer has shown expires, and the session ends.
    pub expires: Option<u64>,
}

/// New keys of a session that is up are due and do not come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RekeyStatus {
    /// When this began.
    pub since: u64,
    pub reason: String,
    /// When the session ends for that.
    pub ends: u64,
}

/// Frames on their way through the stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Carried {
    pub frames: u64,
    /// Bytes before compression.
    pub bytes: u64,
    /// Bytes after compression.
    pub compressed_bytes: u64,
    /// Records of the link with their headers; not those of UDP, TCP, TLS and IP.
    pub wire_bytes: u64,
    /// `bytes` over `compressed_bytes`; null before the first frame.
    pub ratio: Option<f64>,
}

/// CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cpu {
    pub compress_ns: u64,
    pub decompress_ns: u64,
    pub seal_ns: u64,
    pub open_ns: u64,
}

/// The counters of one compression rule; the last one counts frames that no rule matches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleStatus {
    /// Null for frames that no rule matches.
    pub rule: Option<Compress>,
    /// Flows of the last ten seconds whose frames may be compressed; without those of a dictionary.
    pub flows: u64,
    /// Frames to peers.
    pub sent: Carried,
    /// Frames in `sent` that were not compressed because it would not have paid.
    pub raw_frames: u64,
    pub compress_ns: u64,
    /// The flows by method, or by "raw_" and the reason why they are not compressed.
    pub methods: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DivertStatus {
    /// The VM's tap.
    pub interface: String,
    pub prefix: String,
    pub peer: String,
    /// Whether traffic goes through the link now.
    pub active: bool,
    pub state: DivertState,
    /// Details of why it does not.
    pub reason: Option<String>,
    pub when_down: WhenDown,
    /// The link's tap that the hook sends packets out of.
    pub tap: String,
    /// Diverted packets; a super-packet counts once.
    pub packets: u64,
    pub bytes: u64,
    /// Packets that came while the diversion was not active.
    pub missed: u64,
    /// Packets with a source that is not the VM's.
    #[serde(default)]
    pub forged: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DivertState {
    Active,
    PeerDown,
    /// The peer accepts no packets to the prefix.
    NotTaken,
    /// The VM's tap is not there.
    #[default]
    NoInterface,
    /// The hook cannot be attached.
    Failed,
}

/// Diverted packets of peers, on their way to VMs of this host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EntryStatus {
    /// The link's tap that they come out of.
    pub tap: String,
    /// Destinations that are accepted, as configured.
    pub prefixes: Vec<IpNet>,
    pub peers: Vec<EnteredStatus>,
    /// Packets that the host had no room for.
    pub dropped: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EnteredStatus {
    pub peer: String,
    pub frames: u64,
    pub bytes: u64,
    /// Frames that were not let in, by reason.
    pub refused: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Learned {
    pub mac: Mac,
    pub vlan: Option<u16>,
    /// The port behind which it is, if it is not behind a peer.
    pub port: Option<String>,
    pub peer: Option<String>,
    /// Time since the last frame from it.
    pub age_ns: u64,
    /// Whether another location uses it, too.
    pub contested: bool,
}

impl fmt::Display for DivertState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::PeerDown => "peer down",
            Self::NotTaken => "not taken",
            Self::NoInterface => "no interface",
            Self::Failed => "failed",
        })
    }
}

impl Carried {
    pub fn new(frames: u64, bytes: u64, compressed_bytes: u64, wire_bytes: u64) -> Self {
        let ratio = (compressed_bytes > 0).then(|| bytes as f64 / compressed_bytes as f64);
        Self { frames, bytes, compressed_bytes, wire_bytes, ratio }
    }
}
