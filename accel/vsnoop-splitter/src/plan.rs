//! Whether a connection can be split now, and with which numbers.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use vsnoop_flow::split::{Candidate, State};
use vsnoop_flow::types::{flow, flow_key, split_flow, split_refusal};
use vsnoop_split::{Connection, End};

use crate::flights::InFlight;

/// The kernel repeats nothing before this time, its first timeout, unless ACKs report a loss.
const FIRST_ACK_NS: u64 = 2_500_000_000;

/// How much more than the VM's window the peer may have been shown: by the host, or by a socket
/// when the connection was split before.
const MOST_SHOWN: u32 = 4 << 20;

/// Why a connection is not split.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("it has an option or a flag by which only its ends can go on")]
    Unfit,
    #[error("the copies of what is in flight are not complete")]
    NoCopy,
    #[error("no memory is left, or too many are split")]
    NoRoom,
    #[error("something else is under way that will be over soon")]
    Busy,
    #[error("an end has sent something meanwhile")]
    Changed,
    /// The kernel has refused a socket, or something else that was not planned.
    #[error(transparent)]
    Failed(#[from] anyhow::Error),
}

impl Refusal {
    /// Is it not to be tried again while the VM is late as it is now?
    pub fn is_lasting(&self) -> bool {
        matches!(self, Self::Unfit | Self::Failed(_))
    }

    /// Where it is counted.
    pub fn counter(&self) -> split_refusal::Type {
        match self {
            Self::Unfit => split_refusal::SPLIT_NO_UNFIT,
            Self::NoCopy => split_refusal::SPLIT_NO_COPY,
            Self::NoRoom => split_refusal::SPLIT_NO_ROOM,
            Self::Busy => split_refusal::SPLIT_NO_BUSY,
            Self::Changed => split_refusal::SPLIT_NO_CHANGED,
            Self::Failed(_) => split_refusal::SPLIT_NO_SOCKET,
        }
    }
}

/// The sockets' connection, and the record that the hooks begin with.
pub struct Plan<'a> {
    pub connection: Connection<'a>,
    pub flow: split_flow,
    /// SEQ behind the last byte of the VM, and of the peer.
    pub sent: u32,
    pub peer_nxt: u32,
    /// How long ago the first byte in flight was sent, in milliseconds.
    ago_ms: u32,
}

impl Plan<'_> {
    /// `tsval`: what the socket that faces the peer would send now. ACKs of what is in flight get
    /// the one that it would have sent with it.
    pub fn flow_with_clock(&self, tsval: u32) -> split_flow {
        split_flow { first_tsecr: tsval.wrapping_sub(self.ago_ms).max(1), ..self.flow }
    }
}

/// Plans the split of a connection by its record, and by the segments that the hooks have seen and
/// copied. `now_ns`: CLOCK_MONOTONIC.
pub fn plan<'a>(
    key: &flow_key,
    candidate: &Candidate,
    record: &flow,
    flight: &'a InFlight,
    now_ns: u64,
) -> Result<Plan<'a>, Refusal> {
    let numbers = candidate.numbers();
    if candidate.is_unfit() {
        return Err(Refusal::Unfit);
    }
    let vm_window = u32::from(numbers.vm_window) << scale_of(candidate, numbers.vm_scale);
    let peer_window = u32::from(numbers.peer_window) << scale_of(candidate, numbers.peer_scale);
    let shown = record.adv_edge.v.wrapping_sub(numbers.vm_ack.v) as i32;
    if candidate.state() != State::Wanted
        || !vsnoop_flow::may_be_split(record)
        || numbers.vm_ack != numbers.peer_nxt
        || shown > (vm_window + MOST_SHOWN) as i32
    {
        return Err(Refusal::Busy);
    }
    let (vm, peer) = addresses(key);
    let connection = Connection {
        vm: End {
            address: vm,
            ack: numbers.vm_ack.v,
            window_bytes: vm_window,
            shown_bytes: vm_window.max(shown.max(0) as u32),
            in_flight: &flight.bytes,
            mss: numbers.vm_mss,
            scale: numbers.vm_scale,
            tsval: numbers.vm_tsval,
        },
        peer: End {
            address: peer,
            ack: numbers.peer_ack.v,
            window_bytes: peer_window,
            shown_bytes: peer_window,
            in_flight: &[],
            mss: numbers.peer_mss,
            scale: numbers.peer_scale,
            tsval: numbers.peer_tsval,
        },
        sack: candidate.has_sack(),
        scales: candidate.has_scales(),
        timestamps: candidate.has_timestamps(),
    };
    let ago_ms = (now_ns.saturating_sub(flight.began_ns) / 1_000_000) as u32;
    let flow = split_flow {
        peer_tsval: numbers.peer_tsval,
        vm_tsval: numbers.vm_tsval,
        peer_traffic: numbers.peer_traffic,
        vm_traffic: numbers.vm_traffic,
        first_ack: numbers.peer_ack,
        first_end: vsnoop_flow::seq::new(candidate.sent()),
        sent_end: vsnoop_flow::seq::new(candidate.sent()),
        first_until_ns: now_ns + FIRST_ACK_NS,
        last_ns: now_ns,
        peer_ttl: numbers.peer_ttl,
        vm_ttl: numbers.vm_ttl,
        next_hop: numbers.next_hop,
        vm_mac: key.vm_mac,
        mac_by_vm: key.vm_mac,
        mac_to_vm: key.vm_mac,
        timestamps: candidate.has_timestamps().into(),
        ..Default::default()
    };
    Ok(Plan { connection, flow, sent: candidate.sent(), peer_nxt: numbers.peer_nxt.v, ago_ms })
}

/// Without window scaling a scale in one SYN means nothing.
fn scale_of(candidate: &Candidate, scale: u8) -> u8 {
    if candidate.has_scales() { scale } else { 0 }
}

/// Addresses and ports of the VM and of its peer.
fn addresses(key: &flow_key) -> (SocketAddr, SocketAddr) {
    let address = |octets: [u8; 16]| match Ipv6Addr::from(octets).to_ipv4_mapped() {
        Some(v4) => IpAddr::V4(v4),
        None => IpAddr::V6(octets.into()),
    };
    (
        SocketAddr::new(address(key.vm_addr), u16::from_be(key.vm_port)),
        SocketAddr::new(address(key.sender_addr), u16::from_be(key.sender_port)),
    )
}
