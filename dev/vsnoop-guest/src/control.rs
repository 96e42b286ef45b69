//! Commands to a guest: one JSON object per line, each answered by one line, in order.

use std::net::{SocketAddr, SocketAddrV4};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::tcp_counts::TcpCounts;

/// The guest's side of the control channel.
pub const DEVICE: &str = "/dev/ttyS1";

/// Where the host puts the guest's addresses on the kernel's command line: `ADDRESS/PREFIX` of
/// eth0, eth1 and so on, with commas between them. A device of another name stands before its
/// address, with a colon.
pub const ADDRESS_PARAMETER: &str = "vsnoop.address";

/// On the kernel's command line of a guest whose root file system is on its disk.
pub const DISK_PARAMETER: &str = "vsnoop.disk";

/// Where the connections of rounds begin to be numbered.
pub const ROUNDS_PORT: u16 = 5600;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// Answered with [`Reply::Done`] as soon as the guest is ready.
    Ping,
    /// Measures how many iterations of the load loop fit into a millisecond of CPU time. The guest
    /// must have the CPU for itself meanwhile.
    Calibrate,
    /// Replaces the load: `share` of each period is burnt as calibrated iterations, the rest is
    /// slept; 1.0 spins, 0.0 stops.
    Load {
        share: f64,
        period_ms: u32,
    },
    /// Drops this share of the TCP segments with payload that come in (0 removes the rule).
    Firewall {
        drop_percent: u32,
    },
    /// Counts of the transfer server.
    Stats,
    /// Counts of all TCP connections.
    TcpCounts,
    /// Sets a sysctl: `net.ipv4.tcp_ecn`.
    Sysctl {
        key: String,
        value: String,
    },
    /// Starts the [web server](crate::web) of the image; answered when it listens.
    Web,
    /// Starts a shell script in the background, as root. Where the name has been given before, that
    /// program ends first.
    Start {
        name: String,
        script: String,
    },
    /// How it ended, if it has; answered with [`Reply::Ended`].
    Ended {
        name: String,
    },
    /// Compares an uploaded file with the [pattern](crate::pattern) of `seed`, and deletes it.
    VerifyFile {
        name: String,
        seed: u64,
        size_bytes: u64,
    },
    /// Sends a stream to a [transfer server](crate::server); answered with [`Reply::Uploaded`].
    Upload {
        server: SocketAddr,
        size_bytes: u64,
        seed: u64,
    },
    /// Opens connections for [rounds](crate::rounds) to all of these, as their receiver.
    OpenRounds {
        to: Vec<SocketAddrV4>,
        /// The kernel's default, if there is none.
        congestion_control: Option<String>,
    },
    /// Listens for connections `first` and those after it, as their sender, each on the port
    /// [`ROUNDS_PORT`] and its number.
    ListenForRounds {
        first: u16,
        count: u16,
        congestion_control: String,
    },
    /// Accepts them all, and answers from now on.
    AcceptRounds,
    /// One round; answered with [`Reply::Round`].
    Round {
        senders: usize,
        bytes: u64,
        limit_ms: u64,
    },
    /// This sender is to send for ever.
    AskEndlessly {
        number: usize,
    },
    /// Reads all connections for this time; answered with [`Reply::TakenIn`].
    TakeIn {
        duration_ms: u64,
    },
    /// Closes all connections for rounds, of either end.
    CloseRounds,
    PowerOff,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    Done,
    Calibrated {
        iterations_per_ms: u64,
    },
    Stats(Stats),
    TcpCounts(TcpCounts),
    Uploaded(Uploaded),
    Round {
        /// `None`: it was not over within the limit.
        took_ns: Option<u64>,
        /// The bytes that are missing then, by sender.
        missing: Vec<(usize, u64)>,
    },
    /// Bytes of each connection.
    TakenIn {
        bytes: Vec<u64>,
    },
    Ended {
        /// `None`: it still runs. A program that a signal ended has the status of a shell.
        status: Option<i32>,
        /// The end of its output so far.
        output: String,
    },
    Failed {
        message: String,
    },
}

/// Times of an upload whose bytes have all arrived, and are right.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Uploaded {
    pub connect: Duration,
    /// From the first write until all was acknowledged, as the sender sees it when it runs.
    pub acked: Duration,
    /// From the first write until the receiver's answer.
    pub delivered: Duration,
    /// Segments that the sender's TCP has repeated meanwhile, of all connections.
    pub retransmissions: u64,
}

/// Counters of the transfer server since boot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Connections whose stream is not finished yet.
    pub open: u64,
    pub exact: u64,
    pub mismatched: u64,
    pub short: u64,
    /// Connections that ended with an error such as a reset.
    pub failed: u64,
    pub received_bytes: u64,
    /// Segments that the firewall rule has dropped.
    pub firewall_drops: u64,
}
