//! The sessions of a peer: installed, used, retired, forgotten (the phases of [`super::super`]).

use super::session::{Phase, Session};
use super::{Peer, TAKEN_DOWN, UNANSWERED, cut_reason};
use crate::session::message::{CloseReason, Message};
use crate::session::order::Rank;
use crate::session::types::{
    Action, End, PeerSettings, Report, SessionId, SessionInfo, SessionTraffic,
};

/// Sessions at the same time, whatever a peer does.
const SESSIONS: usize = 8;
/// How long both ends of an introduced session send probes before they give it up: one of them has
/// it later, by what the hub loses of its handshake.
const PUNCH_NS: u64 = 5_000_000_000;

impl Peer {
    pub(super) fn used_session(&self) -> Option<&Session> {
        self.sessions.iter().find(|session| session.phase == Phase::Used)
    }

    pub(super) fn find_session(&mut self, id: SessionId) -> Option<&mut Session> {
        self.sessions.iter_mut().find(|session| session.info.id == id)
    }

    pub(super) fn rank_session(&self, info: &SessionInfo) -> Rank {
        Rank::new(info, self.settings.favoured)
    }

    /// Whether the session in use stays when a packet arrives under this one.
    pub(super) fn is_outranked(&self, info: &SessionInfo) -> bool {
        self.used_session().is_some_and(|used| {
            !used.void && self.rank_session(&used.info) > self.rank_session(info)
        })
    }

    /// Whether the other end of a session has taken the link down.
    fn has_left(&self, info: &SessionInfo) -> bool {
        self.left == Some(info.instance)
    }

    pub(super) fn install_session(&mut self, info: SessionInfo, now_ns: u64) {
        if self.find_session(info.id).is_some() {
            return;
        }
        if !self.has_left(&info) {
            self.known.take_if(|known| known == TAKEN_DOWN);
        }
        if self.epochs.note_seen(&info) {
            for session in &mut self.sessions {
                session.void = session.info.instance != info.instance;
            }
        }
        self.make_room(&info);
        let phase = if self.is_outranked(&info) {
            Phase::Retiring { until_ns: now_ns.saturating_add(self.settings.retire_ns) }
        } else {
            // Only the initiator knows that the other end has the session too.
            let probes = info.initiator == End::Us || info.introduced;
            let probe_ns = if probes { now_ns } else { u64::MAX };
            let least_ns = if info.introduced { PUNCH_NS } else { 0 };
            let until_ns = now_ns.saturating_add(self.settings.dead_ns.max(least_ns));
            Phase::Pending { until_ns, probe_ns }
        };
        // Up to a tenth earlier, so that links that began together do not rekey together.
        let spread_ns = self.random.u64(0..=self.settings.rekey_ns / 10);
        let old_at_ns = now_ns.saturating_add(self.settings.rekey_ns - spread_ns);
        self.actions.push(Action::Install(info.id));
        let is_ordered = self.settings.largest_packet_bytes.is_none();
        let located = info.initiator == End::Us || is_ordered || info.introduced;
        self.sessions.push(Session {
            info,
            phase,
            traffic: SessionTraffic::default(),
            since_ns: now_ns,
            old_at_ns,
            ends_at_ns: now_ns.saturating_add(self.settings.keys_end_ns),
            void: false,
            located,
        });
    }

    /// Bounds the number of sessions: forgets the peer's oldest retiring ones, then pending ones.
    /// An introduced one takes the place of the one before that is pending and was begun by the
    /// same end: each sends probes to an address of the hub's choice.
    fn make_room(&mut self, new: &SessionInfo) {
        let is_replaced = |session: &&Session| {
            let info = &session.info;
            new.introduced
                && info.introduced
                && info.initiator == new.initiator
                && matches!(session.phase, Phase::Pending { .. })
        };
        let replaced = self.sessions.iter().find(is_replaced).map(|session| session.info.id);
        if let Some(id) = replaced {
            self.forget_session(id);
        }
        while self.sessions.len() >= SESSIONS {
            let worst = self.sessions.iter().min_by_key(|session| match session.phase {
                Phase::Retiring { until_ns } => (0, until_ns),
                Phase::Pending { until_ns, .. } => (1, until_ns),
                Phase::Used => (2, 0),
            });
            let Some(id) = worst.map(|session| session.info.id) else { return };
            self.forget_session(id);
        }
    }

    /// An authenticated packet has arrived under a session.
    pub(super) fn note_heard(&mut self, id: SessionId, now_ns: u64) {
        let Some(session) = self.sessions.iter().find(|session| session.info.id == id) else {
            return;
        };
        match session.phase {
            Phase::Used => self.unanswered = None,
            Phase::Retiring { .. } => {}
            // A path may take datagrams one way only: a probe has to come back.
            Phase::Pending { .. } if session.info.introduced => {}
            Phase::Pending { .. } => self.use_session(id, now_ns),
        }
    }

    /// A probe of a session was answered.
    pub(super) fn note_answer(&mut self, id: SessionId, now_ns: u64) {
        if let Some(session) = self.find_session(id)
            && matches!(session.phase, Phase::Pending { .. })
        {
            self.use_session(id, now_ns);
        }
    }

    pub(super) fn retire_session(&mut self, id: SessionId, now_ns: u64) {
        let until_ns = now_ns.saturating_add(self.settings.retire_ns);
        if let Some(session) = self.find_session(id) {
            session.phase = Phase::Retiring { until_ns };
        }
    }

    pub(super) fn use_session(&mut self, id: SessionId, now_ns: u64) {
        let Some(info) = self.find_session(id).map(|session| session.info.clone()) else { return };
        let was_up = self.used_session().is_some();
        self.actions.push(Action::Use(id));
        let others: Vec<_> = self.sessions.iter().filter(|s| s.info.id != id).collect();
        let (void, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|s| s.void);
        let void: Vec<_> = void.iter().map(|s| s.info.id).collect();
        // One of higher rank that is still pending may replace this one later.
        let retiring: Vec<_> = others
            .iter()
            .filter(|s| {
                s.phase == Phase::Used || self.rank_session(&s.info) < self.rank_session(&info)
            })
            .filter(|s| !matches!(s.phase, Phase::Retiring { .. }))
            .map(|s| s.info.id)
            .collect();
        void.into_iter().for_each(|other| self.forget_session(other));
        retiring.into_iter().for_each(|other| self.retire_session(other, now_ns));
        if let Some(session) = self.find_session(id) {
            session.phase = Phase::Used;
        }
        self.meter.begin();
        self.unanswered = None;
        (self.rekeying, self.rekey_asked) = (false, false);
        self.rekey_failed = None;
        self.dial_at_ns = None;
        self.probe_at_ns = now_ns;
        if was_up {
            self.rekeys += 1;
            self.actions.push(Action::Report(Report::Replaced));
        } else {
            self.ups += 1;
            self.since_ns = now_ns;
            self.reported = None;
            (self.known, self.left) = (None, None);
            self.actions.push(Action::Report(Report::Up { address: info.address }));
        }
        self.follow_path(info.address, now_ns);
    }

    pub(super) fn forget_session(&mut self, id: SessionId) {
        self.sessions.retain(|session| session.info.id != id);
        self.probes.forget_session(id);
        self.actions.push(Action::Forget(id));
    }

    /// A session is lost; if it is the one in use, the peer is.
    pub(super) fn note_failed(&mut self, id: SessionId, reason: &str, now_ns: u64) {
        let Some(session) = self.find_session(id) else { return };
        let (phase, info) = (session.phase, session.info.clone());
        let answered = !self.has_left(&info);
        self.forget_session(id);
        match phase {
            Phase::Used => {
                let settled = now_ns.saturating_sub(self.since_ns) >= self.settings.settled_ns;
                if settled {
                    self.back_off.reset();
                }
                self.since_ns = now_ns;
                self.unanswered = None;
                self.probe_at_ns = u64::MAX;
                (self.rekeying, self.rekey_asked) = (false, false);
                self.rekey_failed = None;
                self.actions.push(Action::Down);
                let reason = cut_reason(reason);
                self.actions.push(Action::Report(Report::Down { reason: reason.clone() }));
                self.reason = Some(reason);
                self.dial_later(now_ns);
            }
            Phase::Pending { .. } if info.initiator == End::Us => {
                self.dial_failed(reason, answered, now_ns);
            }
            Phase::Pending { .. } => self.reason = Some(cut_reason(reason)),
            Phase::Retiring { .. } => {}
        }
    }

    pub(super) fn expire_sessions(&mut self, now_ns: u64) {
        let over = |session: &&Session| match session.phase {
            Phase::Pending { until_ns, .. } | Phase::Retiring { until_ns } => now_ns >= until_ns,
            Phase::Used => false,
        };
        while let Some(session) = self.sessions.iter().find(over) {
            let SessionInfo { id, address, introduced, .. } = session.info;
            let theirs = session.info.initiator == End::Peer
                && matches!(session.phase, Phase::Pending { .. })
                && !self.has_left(&session.info);
            let medium = match self.settings.largest_packet_bytes {
                Some(_) if introduced => "no datagram came back: a NAT or firewall is in the way",
                Some(_) => "no datagram came through: does a firewall let UDP pass both ways?",
                None => "its data connections carried nothing: does a firewall cut them?",
            };
            let reason = format!("the handshake with {address} went well, but {medium}");
            self.note_failed(id, &reason, now_ns);
            if theirs {
                self.known = Some(cut_reason(&reason));
            }
        }
    }

    /// Ends sessions whose keys are too old, or were used for too many records or bytes.
    pub(super) fn end_keys(&mut self, now_ns: u64) {
        let PeerSettings { most_records, most_bytes, .. } = self.settings;
        let is_over = |session: &&Session| {
            let traffic = &session.traffic;
            now_ns >= session.ends_at_ns
                || traffic.sent_packets.max(traffic.expected_packets) >= most_records
                || traffic.sent_bytes.max(traffic.received_bytes) >= most_bytes
        };
        while let Some(id) = self.sessions.iter().find(is_over).map(|session| session.info.id) {
            let why = match &self.rekey_failed {
                Some((_, reason)) => format!(": {reason}"),
                None => String::new(),
            };
            self.end_session(
                id,
                &format!("its keys have come to their end without new ones{why}"),
                now_ns,
            );
        }
    }

    /// Ends a session, and sends the peer a close message.
    pub(super) fn end_session(&mut self, session: SessionId, reason: &str, now_ns: u64) {
        if self.find_session(session).is_some() {
            let message = Message::Close(CloseReason::Expired);
            self.actions.push(Action::Send { session, message, packet_bytes: None, to: None });
            self.note_failed(session, reason, now_ns);
        }
    }

    pub(super) fn look_for_death(&mut self, now_ns: u64) {
        let (Some(used), Some((since_ns, UNANSWERED..))) = (self.used_session(), self.unanswered)
        else {
            return;
        };
        if now_ns.saturating_sub(since_ns) < self.settings.dead_ns {
            return;
        }
        let session = used.info.id;
        let message = Message::Close(CloseReason::Silence);
        // The path may have failed in one direction only.
        self.actions.push(Action::Send { session, message, packet_bytes: None, to: None });
        self.actions.push(Action::Silent(session));
        let seconds = self.settings.dead_ns as f64 / 1e9;
        self.note_failed(session, &format!("nothing was heard for {seconds:.0} s"), now_ns);
    }

    pub(super) fn close_sessions(&mut self) {
        if let Some(session) = self.used_session().map(|used| used.info.id) {
            let message = Message::Close(CloseReason::Down);
            self.actions.push(Action::Send { session, message, packet_bytes: None, to: None });
            self.actions.push(Action::Down);
        }
        let ids: Vec<_> = self.sessions.iter().map(|session| session.info.id).collect();
        ids.into_iter().for_each(|id| self.forget_session(id));
        self.closed = true;
    }
}
