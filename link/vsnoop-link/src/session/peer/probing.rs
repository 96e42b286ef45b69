//! Probes, their answers, and what these show: is the peer alive, how long is the round trip, how
//! large may a packet be.

use super::session::Phase;
use super::{Peer, TAKEN_DOWN, UNANSWERED};
use crate::session::message::{CloseReason, Message};
use crate::session::path_mtu::PathMtu;
use crate::session::probes::{Probe, ProbePurpose};
use crate::session::types::{Action, End, Report, SessionId};

/// Probes of a pending session, and regular ones while the path is suspected, come so much faster.
const FASTER: u64 = 5;

impl Peer {
    pub(super) fn handle_message(
        &mut self,
        id: SessionId,
        message: Message,
        size: u16,
        at_ns: u64,
        now_ns: u64,
    ) {
        let Some(session) = self.find_session(id) else { return };
        let used = session.phase == Phase::Used;
        let (since_ns, counters) = (session.since_ns, session.counters());
        match message {
            Message::Probe { id: probe, sent_ns, wants_rekey, .. } => {
                let held_ns = now_ns.saturating_sub(at_ns);
                let answer = Message::Answer {
                    id: probe,
                    sent_ns,
                    held_ns,
                    answered_ns: now_ns,
                    size_bytes: size,
                    counters,
                };
                self.actions.push(Action::Send {
                    session: id,
                    message: answer,
                    packet_bytes: None,
                    to: None,
                });
                // Bounds how often a peer can make this end rekey.
                if used && now_ns.saturating_sub(since_ns) >= self.settings.settled_ns {
                    self.rekey_asked |= wants_rekey;
                }
            }
            Message::Answer { id: probe, sent_ns, held_ns, answered_ns, counters, .. } => {
                let Some(probe) = self.probes.take_answered(probe, sent_ns) else { return };
                let trip_ns = at_ns.saturating_sub(sent_ns).saturating_sub(held_ns);
                self.handle_answer(probe, trip_ns, now_ns);
                if used {
                    let queued = self.round_trip.is_queued();
                    self.meter.note_told(counters, answered_ns, queued, now_ns);
                }
            }
            Message::Close(reason) => {
                if used && reason == CloseReason::Down {
                    self.known = Some(TAKEN_DOWN.into());
                    self.left = self.find_session(id).map(|session| session.info.instance);
                }
                if reason == CloseReason::Silence {
                    self.actions.push(Action::Silent(id));
                }
                let reason = match reason {
                    CloseReason::Down => TAKEN_DOWN,
                    CloseReason::Silence => "the peer has heard nothing from here",
                    CloseReason::Expired => {
                        "the peer has ended the session: its keys, or this host's certificate, have \
                         come to their end there"
                    }
                    CloseReason::Other(_) => "the peer has ended the session",
                };
                self.note_failed(id, reason, now_ns);
            }
        }
    }

    /// Information about the path from an answered probe.
    fn handle_answer(&mut self, probe: Probe, trip_ns: u64, now_ns: u64) {
        if let ProbePurpose::Path(to) = probe.purpose {
            self.roam_to(probe.session, to, now_ns);
        }
        self.note_answer(probe.session, now_ns);
        self.round_trip.add(trip_ns, now_ns);
        let Some(mtu) = &mut self.path_mtu else { return };
        match probe.purpose {
            ProbePurpose::Path(_) => {}
            ProbePurpose::Alive => mtu.small_answered(),
            ProbePurpose::Full(size) | ProbePurpose::Search(size) => {
                mtu.note_answered(size, now_ns)
            }
        }
    }

    pub(super) fn count_losses(&mut self, now_ns: u64) {
        let timeout_ns = self.round_trip.timeout_ns();
        while let Some(probe) = self.probes.take_lost(timeout_ns, now_ns) {
            let Some(mtu) = &mut self.path_mtu else { continue };
            match probe.purpose {
                ProbePurpose::Alive | ProbePurpose::Path(_) => {}
                ProbePurpose::Search(size) => mtu.note_lost(size, now_ns),
                ProbePurpose::Full(size) => {
                    mtu.full_lost(size, now_ns);
                }
            }
        }
    }

    pub(super) fn probe_pending(&mut self, now_ns: u64) {
        let next_ns = now_ns.saturating_add(self.settings.probe_ns / FASTER);
        let mut due = Vec::new();
        for session in &mut self.sessions {
            if let Phase::Pending { probe_ns, .. } = &mut session.phase
                && now_ns >= *probe_ns
            {
                *probe_ns = next_ns;
                due.push(session.info.id);
            }
        }
        due.into_iter().for_each(|id| self.send_probe(id, ProbePurpose::Alive, now_ns));
    }

    pub(super) fn probe_used(&mut self, now_ns: u64) {
        let Some(id) = self.used_session().map(|used| used.info.id) else { return };
        if now_ns >= self.probe_at_ns {
            let full = self.path_mtu.as_ref().map(PathMtu::bytes).filter(|_| self.probe_full);
            self.probe_full = !self.probe_full;
            let (since_ns, count) = self.unanswered.unwrap_or((now_ns, 0));
            self.unanswered = Some((since_ns, count.saturating_add(1)));
            self.send_probe(id, full.map_or(ProbePurpose::Alive, ProbePurpose::Full), now_ns);
            let suspects = self.path_mtu.as_ref().is_some_and(PathMtu::suspects);
            let faster = if suspects { FASTER } else { 1 };
            self.probe_at_ns = now_ns.saturating_add(self.settings.probe_ns / faster);
        }
        // While probes are unanswered their loss says nothing about the packet size.
        if self.unanswered.is_none_or(|(_, count)| count < UNANSWERED)
            && let Some(size) = self.path_mtu.as_mut().and_then(|mtu| mtu.next_probe(now_ns))
        {
            self.send_probe(id, ProbePurpose::Search(size), now_ns);
        }
    }

    pub(super) fn search_deadline_ns(&self) -> u64 {
        match (&self.path_mtu, self.unanswered) {
            (_, Some((_, UNANSWERED..))) | (None, _) => u64::MAX,
            (Some(mtu), _) => mtu.deadline_ns(),
        }
    }

    pub(super) fn send_probe(&mut self, session: SessionId, purpose: ProbePurpose, now_ns: u64) {
        let Some(one) = self.sessions.iter().find(|s| s.info.id == session) else { return };
        let wants_rekey = one.info.initiator == End::Peer && now_ns >= one.old_at_ns;
        let counters = one.counters();
        let id = self.probes.note_sent(session, purpose, now_ns);
        let (packet_bytes, to) = match purpose {
            ProbePurpose::Alive => (None, None),
            ProbePurpose::Full(size) | ProbePurpose::Search(size) => (Some(size), None),
            ProbePurpose::Path(to) => (None, Some(to)),
        };
        let message = Message::Probe { id, sent_ns: now_ns, wants_rekey, counters };
        self.actions.push(Action::Send { session, message, packet_bytes, to });
    }

    pub(super) fn tell_mtu(&mut self) {
        let bytes = self.path_mtu.as_ref().map(PathMtu::bytes);
        if let (Some(bytes), Some(_)) = (bytes, self.used_session())
            && self.told_mtu != Some(bytes)
        {
            self.told_mtu = Some(bytes);
            self.actions.push(Action::PathMtu(bytes));
            self.actions.push(Action::Report(Report::PathMtu(bytes)));
        }
    }
}
