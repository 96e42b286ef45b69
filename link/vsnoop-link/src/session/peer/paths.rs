//! The address of the peer. Datagrams that come from another one make the peer move there, once it
//! has answered a probe.

use std::net::SocketAddr;

use super::session::Phase;
use super::{BILLION, PATHS_BURST, Peer};
use crate::session::address::canonical_address;
use crate::session::probes::ProbePurpose;
use crate::session::types::{Action, Report, SessionId, SessionTraffic};

/// Addresses per second that are probed because datagrams came from them.
const PATHS_PER_S: u64 = 4;

impl Peer {
    pub(super) fn note_traffic(&mut self, id: SessionId, traffic: SessionTraffic, now_ns: u64) {
        let (rekey_records, rekey_bytes) = (self.settings.rekey_records, self.settings.rekey_bytes);
        let Some(session) = self.find_session(id) else { return };
        if traffic.sent_packets.max(traffic.expected_packets) >= rekey_records
            || traffic.sent_bytes.max(traffic.received_bytes) >= rekey_bytes
        {
            session.old_at_ns = session.old_at_ns.min(now_ns);
        }
        let heard = traffic.received_packets > session.traffic.received_packets;
        session.traffic = traffic;
        // Before the session is located, its first datagram comes as an event with its source.
        if heard && session.located {
            self.note_heard(id, now_ns);
        }
        if let Some(used) = self.used_session().filter(|used| used.info.id == id) {
            let counters = used.counters();
            self.meter.note_received(counters);
        }
    }

    /// Takes the peer's address from the first datagram of a session that the peer has dialled.
    pub(super) fn note_address(&mut self, id: SessionId, from: SocketAddr) {
        let Some(session) = self.find_session(id).filter(|session| !session.located) else {
            return;
        };
        session.located = true;
        session.info.address = from;
        self.actions.push(Action::Roam(id, from));
    }

    /// Probes the source of a datagram if it is not the session's address. An attacker may have
    /// sent a copy with a forged source, so the peer has moved only if it answers a probe there.
    pub(super) fn probe_path(&mut self, id: SessionId, from: SocketAddr, now_ns: u64) {
        if self.moves(id, from).is_none() {
            return;
        }
        let (credit, as_of_ns) = self.path_credit;
        let earned = now_ns.saturating_sub(as_of_ns).saturating_mul(PATHS_PER_S);
        let credit = credit.saturating_add(earned).min(PATHS_BURST * BILLION);
        let left = credit.checked_sub(BILLION);
        self.path_credit = (left.unwrap_or(credit), now_ns);
        if left.is_some() {
            self.send_probe(id, ProbePurpose::Path(from), now_ns);
        }
    }

    /// The present address of a session if its peer can move from there to `to`.
    pub(super) fn moves(&self, id: SessionId, to: SocketAddr) -> Option<SocketAddr> {
        let session = self.sessions.iter().find(|session| session.info.id == id)?;
        let datagrams = self.settings.largest_packet_bytes.is_some();
        let retiring = matches!(session.phase, Phase::Retiring { .. });
        let from = session.info.address;
        (datagrams && !retiring && canonical_address(from) != canonical_address(to)).then_some(from)
    }

    pub(super) fn roam_to(&mut self, id: SessionId, to: SocketAddr, now_ns: u64) {
        let Some(from) = self.moves(id, to) else { return };
        let Some(session) = self.find_session(id) else { return };
        session.info.address = to;
        let used = session.phase == Phase::Used;
        self.roams += 1;
        self.actions.push(Action::Roam(id, to));
        if used {
            self.actions.push(Action::Report(Report::Roamed { from, to }));
            self.probe_at_ns = now_ns;
            self.follow_path(to, now_ns);
        }
    }

    /// Begins the measurements of the path anew if the IP address is another. Another port alone is
    /// the same path, with a new binding of a NAT.
    pub(super) fn follow_path(&mut self, address: SocketAddr, now_ns: u64) {
        let old = self.path_address.replace(address);
        if old.is_none_or(|old| canonical_address(old).ip() == canonical_address(address).ip()) {
            return;
        }
        self.meter.forget_path();
        if let Some(mtu) = &mut self.path_mtu {
            mtu.restart(now_ns);
        }
    }
}
