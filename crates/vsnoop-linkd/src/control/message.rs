//! What command and link say to each other. [`Status`] is also what `vsnoop link status --json`
//! prints for each link (docs/json.md): times are nanoseconds, points in time seconds since the
//! epoch, counters since the link came up.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::config::{Compress, Mac, Method, RuleChange, Selector, Transport, WhenDown};

/// What the command asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    Status {
        /// With the learned addresses one by one.
        addresses: bool,
    },
    Set(Set),
    /// Log from this level on.
    Log {
        level: LogLevel,
    },
    /// End, after the answer.
    Down,
}

/// Changes which traffic is compressed, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Set {
    pub selector: Selector,
    pub method: Method,
    pub dictionary_bytes: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Error, "error"),
        (Self::Warn, "warn"),
        (Self::Info, "info"),
        (Self::Debug, "debug"),
        (Self::Trace, "trace"),
    ];
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::ALL.iter().find(|(level, _)| level == self);
        f.write_str(named.map_or("", |(_, name)| name))
    }
}

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let named = Self::ALL.iter().find(|(_, name)| *name == word);
        named.map(|(level, _)| *level).ok_or("use error, warn, info, debug or trace".to_owned())
    }
}

/// What the link answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "snake_case")]
pub enum Response {
    Status(Box<Status>),
    Done,
    /// To [`Request::Set`].
    Set(RuleChange),
    /// Why not.
    Refused {
        reason: String,
    },
}

/// How a link is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    pub name: String,
    pub network: String,
    /// Inode of the network namespace that it is in.
    pub netns: u64,
    pub pid: u32,
    /// When it came up.
    pub since: u64,
    /// The file that it was read from.
    pub config: String,
    pub listen: String,
    /// Its own public key.
    pub key: String,
    pub mtu_bytes: u16,
    pub cpu: LinkCpu,
    /// What the link itself dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    pub problems: Vec<Problem>,
    pub ports: Vec<PortStatus>,
    pub peers: Vec<PeerStatus>,
    pub compression: Vec<RuleStatus>,
    pub diverts: Vec<DivertStatus>,
    /// Null without diversion.
    pub entry: Option<EntryStatus>,
    /// How many addresses are learned.
    pub learned: u64,
    /// Those, when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Vec<Learned>>,
}

/// CPU time of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkCpu {
    /// Of the thread that carries frames to peers, and of the one that carries theirs to ports.
    pub egress_ns: u64,
    pub ingress_ns: u64,
    /// Of the whole process.
    pub process_ns: u64,
    /// CPUs in use over the last second.
    pub cores: f64,
}

/// What is not as it should be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Problem {
    pub what: String,
    /// What to do about it.
    pub remedy: String,
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
pub struct PortStatus {
    /// Of the interface.
    pub name: String,
    /// "bridge", "tap" or "interface".
    pub kind: String,
    /// The bridge of a port of that kind.
    pub bridge: Option<String>,
    /// It carries frames.
    pub up: bool,
    /// Why it does not, or what else is not as configured.
    pub reason: Option<String>,
    /// From the VMs.
    pub received: FrameCounts,
    /// To the VMs.
    pub sent: FrameCounts,
    /// Frames that were dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerState {
    Up,
    /// It is called.
    Dialling,
    /// It has no address: it calls.
    #[default]
    Waiting,
    /// The last call failed, or it fell silent; the next call comes.
    Down,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerStatus {
    pub name: String,
    pub state: PeerState,
    /// Why it is not up.
    pub reason: Option<String>,
    /// Since when it is in this state.
    pub since: u64,
    pub transport: Option<Transport>,
    pub encrypted: bool,
    /// Connections beside each other now.
    pub connections: u32,
    /// Where it was last, or is called.
    pub address: Option<String>,
    /// Of the session.
    pub epoch: u64,
    /// Of the protocol.
    pub version: u32,
    pub rtt_ns: Option<u64>,
    pub rtt_min_ns: Option<u64>,
    pub jitter_ns: Option<u64>,
    /// Largest IP packet on the way; null on ordered transports.
    pub path_mtu_bytes: Option<u32>,
    /// To the peer.
    pub sent: Carried,
    pub received: Carried,
    pub cpu: Cpu,
    /// Datagrams that did not arrive there.
    pub lost_out: u64,
    /// Datagrams that did not arrive here.
    pub lost_in: u64,
    /// Records that were not genuine, too old, or there already.
    pub rejected: u64,
    /// What waits to be sent.
    pub queue_bytes: u64,
    /// Messages of its sessions, more than these need, that were not looked at.
    pub excess: u64,
    /// Frames, or the parts that a slow path makes of them, dropped before they were sent, by
    /// reason: "down" (no session, or it ended), "queue_full" (no room), "queue_late" (waited too
    /// long); "send" counts datagrams, which the host refused.
    pub dropped: BTreeMap<String, u64>,
    /// Bytes of those.
    pub dropped_bytes: BTreeMap<String, u64>,
    pub reconnects: u64,
    pub rekeys: u64,
    pub roams: u64,
}

/// Frames on their way through the stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Carried {
    pub frames: u64,
    /// Before compression.
    pub bytes: u64,
    /// After it.
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
    /// To peers.
    pub sent: Carried,
    /// Frames of those that were sent as they are, because compression would not have paid.
    pub raw_frames: u64,
    pub compress_ns: u64,
    /// Those by what is done: a method, or "raw_" and why they go as they are.
    pub methods: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DivertStatus {
    /// The VM's tap.
    pub interface: String,
    pub prefix: String,
    pub peer: String,
    /// Traffic goes through the link now.
    pub active: bool,
    pub state: DivertState,
    /// More of why it does not.
    pub reason: Option<String>,
    pub when_down: WhenDown,
    /// The link's tap that the hook sends packets out of.
    pub tap: String,
    /// Diverted; a super-packet counts once.
    pub packets: u64,
    pub bytes: u64,
    /// Came while it was not active.
    pub missed: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DivertState {
    Active,
    PeerDown,
    /// The peer lets nothing in to the prefix.
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
    /// To these, as configured.
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
    /// Where it is: one of both.
    pub port: Option<String>,
    pub peer: Option<String>,
    /// Since it was last heard of.
    pub age_ns: u64,
    /// It is used from another place, too.
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
