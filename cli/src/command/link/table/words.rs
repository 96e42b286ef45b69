//! Values of a status as words.

use std::collections::BTreeMap;

use vsnoop_host::units;
use vsnoop_linkd::config::Transport;
use vsnoop_linkd::control::{Carried, PeerState, PeerStatus};

pub fn peer_state(peer: &PeerStatus) -> &'static str {
    match peer.state {
        // By its own path, not by the hub's relay.
        PeerState::Up if peer.via.is_some() => "direct",
        PeerState::Up => "up",
        PeerState::Relayed => "relayed",
        PeerState::Dialling => "dialling",
        PeerState::Waiting => "waiting",
        PeerState::Down => "down",
    }
}

pub fn transport_text(peer: &PeerStatus) -> String {
    let name = peer.transport.map_or("-", Transport::name);
    if peer.connections > 1 { format!("{name} x{}", peer.connections) } else { name.into() }
}

pub fn ratio_text(carried: &Carried) -> String {
    carried.ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"))
}

pub fn time_text(ns: Option<u64>) -> String {
    ns.map_or("-".into(), units::duration)
}

pub fn count_addresses(count: u64) -> String {
    if count == 1 { "1 address".into() } else { format!("{} addresses", units::count(count)) }
}

pub fn sum_drops(dropped: &BTreeMap<String, u64>) -> u64 {
    dropped.values().fold(0, |sum, count| sum.saturating_add(*count))
}

pub fn period_since(now: u64, then: u64) -> String {
    match now.saturating_sub(then) {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds => units::duration(seconds.saturating_mul(1_000_000_000)),
    }
}
