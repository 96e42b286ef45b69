//! Problems of a link, and what to do.

use vsnoop_linkd::config::WhenDown;
use vsnoop_linkd::control::{
    DivertState, DivertStatus, LinkPortStatus, MembershipStatus, PeerState, PeerStatus,
    RefusedEntry, UdpGso,
};

use super::words::period_since;

pub fn member_problems(membership: &MembershipStatus) -> Vec<String> {
    let MembershipStatus { not_announced, leaving, refused, more, .. } = membership;
    let mut all: Vec<_> =
        not_announced.iter().map(|why| format!("this host is not announced: {why}")).collect();
    all.extend(leaving.iter().map(|name| {
        format!("host {name} is gone from etcd; it stays a peer while its session is up")
    }));
    let entry = |entry: &RefusedEntry| {
        format!("the entry {} in etcd is not taken: {}", entry.name, entry.reason)
    };
    all.extend(refused.iter().map(entry));
    all.extend(more.then(|| "etcd has more entries than a link takes".to_owned()));
    all
}

pub fn unencrypted_problem(peer: &PeerStatus) -> Option<String> {
    let name = &peer.name;
    (!peer.encrypted).then(|| format!("peer {name}: NOT ENCRYPTED, as its transport was chosen"))
}

pub fn gso_problem(peer: &PeerStatus, now: u64) -> Option<String> {
    let name = &peer.name;
    match peer.udp_gso? {
        UdpGso::On | UdpGso::Off => None,
        UdpGso::Trial => Some(format!(
            "peer {name}: the path loses many datagrams: for a trial they leave one by one, without \
             UDP GSO"
        )),
        UdpGso::Failed => {
            let left =
                peer.udp_gso_again.map_or("some time".into(), |again| period_since(again, now));
            Some(format!(
                "peer {name}: datagrams that leave together (UDP GSO) fail on the way, single ones do \
                 not: they leave one by one for {left} more; gso = false is for good"
            ))
        }
    }
}

pub fn peer_problem(peer: &PeerStatus, ports: bool, now: u64) -> Option<String> {
    let (name, period) = (&peer.name, period_since(now, peer.since));
    let address = peer.address.as_deref().unwrap_or("its address");
    let reason = peer.reason.as_deref();
    match peer.state {
        PeerState::Up => peer.rekey.as_ref().map(|rekey| {
            let (period, left) = (period_since(now, rekey.since), period_since(rekey.ends, now));
            format!(
                "peer {name} gets no new keys since {period} ({}); its session ends in {left}",
                rekey.reason
            )
        }),
        PeerState::Waiting => Some(format!(
            "peer {name} has not called for {period}{}: is its link up, and does it have this host's address?",
            reason.map_or(String::new(), |reason| format!(" ({reason})"))
        )),
        PeerState::Relayed => reason.map(|reason| {
            let hub = peer.via.as_deref().unwrap_or("its hub");
            format!("peer {name} is relayed by {hub} since {period}: {reason}")
        }),
        // The first call is under way.
        PeerState::Dialling if reason.is_none() => None,
        PeerState::Dialling | PeerState::Down => Some(format!(
            "peer {name} is not reached since {period} ({}){}; {address} is called again and again",
            reason.unwrap_or("no answer"),
            if ports { ", and frames for it are dropped" } else { "" }
        )),
    }
}

pub fn port_problem(port: &LinkPortStatus) -> Option<String> {
    let name = &port.name;
    let down = format!("it is down: `ip link set {name} up`");
    match (port.up, &port.reason) {
        (true, None) => None,
        (true, Some(reason)) => Some(format!("port {name}: {reason}")),
        (false, reason) => {
            Some(format!("port {name} carries no frames: {}", reason.as_ref().unwrap_or(&down)))
        }
    }
}

pub fn divert_problem(divert: &DivertStatus) -> Option<String> {
    let DivertStatus { interface, prefix, peer, .. } = divert;
    let reason = divert.reason.as_deref().unwrap_or("no reason given");
    let why = match divert.state {
        DivertState::Active => return None,
        DivertState::PeerDown => match &divert.reason {
            Some(reason) => format!("there is no peer {peer} now ({reason})"),
            // The peer's own line says why.
            None => format!("peer {peer} is not reached"),
        },
        DivertState::NotTaken => format!("peer {peer} refuses it ({reason})"),
        // Then there is no traffic.
        DivertState::NoInterface => {
            return Some(format!("interface {interface} does not exist, and is waited for"));
        }
        DivertState::Failed => {
            return Some(format!(
                "traffic from {interface} to {prefix} goes its ordinary way: {reason}"
            ));
        }
    };
    let what = match divert.when_down {
        WhenDown::Pass => "goes its ordinary way",
        WhenDown::Drop => "is dropped",
    };
    Some(format!("traffic from {interface} to {prefix} {what}: {why}"))
}
