//! One peer: events in, actions out.
//!
//! A session begins *pending*: its handshake is done, but no packet has come under it yet. The
//! dialler probes at once, so the first packet shows each end that the other one has the session.
//! Then it is *in use*, and the one before it *retires*: its packets are received for a while,
//! because some are still in flight. [`super::order`] decides which of several sessions stays. The
//! old session is never given up before the new one is known to work.
//!
//! A peer is alive while packets come under the session in use. Probes make the peer send some;
//! after several probes and some seconds without a packet it is dead, and is dialled again.

use std::net::SocketAddr;

use super::back_off::BackOff;
use super::delivery::Meter;
use super::message::{CloseReason, Counters, Message};
use super::order::{Epochs, Rank};
use super::path_mtu::PathMtu;
use super::probes::{ProbePurpose, Probes};
use super::round_trip::RoundTrip;
use super::types::{
    Action, DialError, End, Overdue, PeerEvent, PeerSettings, PeerSnapshot, Report, SessionId,
    SessionInfo, SessionState, SessionTraffic,
};

/// Sessions at the same time, whatever a peer does.
const SESSIONS: usize = 8;
/// Unanswered probes before a peer is dead: one that was sent before we were suspended proves
/// nothing.
const UNANSWERED: u32 = 3;
/// Probes of a pending session, and regular ones while the path is suspected, come so much faster.
const FASTER: u64 = 5;
/// Addresses per second that are probed because datagrams came from them.
const PATHS_PER_S: u64 = 4;
/// Probes of addresses at once, after seconds without any.
const PATHS_BURST: u64 = 4;
const BILLION: u64 = 1_000_000_000;
/// Longer error texts are cut.
const REASON_CHARS: usize = 400;
/// Why there are no new keys where only the peer can dial.
const NOT_RENEWED: &str = "the peer, which alone can call, does not make them";
/// The reason when the peer has sent a close message.
const TAKEN_DOWN: &str = "the peer has taken the link down";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing has come under it yet. It is given up at a time, and probed if we dialled it.
    Pending {
        until_ns: u64,
        probe_ns: u64,
    },
    Used,
    Retiring {
        until_ns: u64,
    },
}

#[derive(Debug)]
struct Session {
    info: SessionInfo,
    phase: Phase,
    traffic: SessionTraffic,
    since_ns: u64,
    /// When its keys are old.
    old_at_ns: u64,
    /// When it ends, even if there is no other.
    ends_at_ns: u64,
    /// Of an instance of the peer that is gone: any other session outranks it.
    void: bool,
    /// Where its datagrams come from is known: not of one that the peer has dialled, until the
    /// first of them. The handshake came from another port.
    located: bool,
}

impl Session {
    fn counters(&self) -> Counters {
        Counters {
            received_packets: self.traffic.received_packets,
            received_bytes: self.traffic.received_bytes,
            expected_packets: self.traffic.expected_packets,
        }
    }
}

/// The state machine of a peer.
#[derive(Debug)]
pub struct Peer {
    settings: PeerSettings,
    sessions: Vec<Session>,
    epochs: Epochs,
    back_off: BackOff,
    random: fastrand::Rng,
    /// An attempt is under way.
    dialling: bool,
    dial_at_ns: Option<u64>,
    /// The session in use is to be replaced.
    rekeying: bool,
    /// The peer asked for it.
    rekey_asked: bool,
    closed: bool,
    since_ns: u64,
    reason: Option<String>,
    /// Why there is no session, as far as the peer itself has shown it; the status prefers this to
    /// the error of a failed dial. It is the reason in the peer's close message, kept until the
    /// next handshake, or that nothing arrives under a session that the peer dialled, kept until
    /// something does.
    known: Option<String>,
    reported: Option<String>,
    /// Since when the session in use is to be replaced in vain, and why.
    rekey_failed: Option<(u64, String)>,
    probes: Probes,
    probe_at_ns: u64,
    probe_full: bool,
    /// Since when, and how many.
    unanswered: Option<(u64, u32)>,
    round_trip: RoundTrip,
    meter: Meter,
    path_mtu: Option<PathMtu>,
    told_mtu: Option<u16>,
    /// Address of the path that is measured.
    path_address: Option<SocketAddr>,
    /// Probes of addresses that are allowed, in billionths, and as of when.
    path_credit: (u64, u64),
    ups: u64,
    rekeys: u64,
    roams: u64,
    actions: Vec<Action>,
}

impl Peer {
    /// A peer that was just configured. `seed`: any number that differs between hosts.
    pub fn new(settings: PeerSettings, seed: u64, now_ns: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let back_off = BackOff::new(settings.back_off_ns, random.fork());
        let probes = Probes::new(random.u32(..));
        let mut peer = Self {
            path_mtu: settings.largest_packet_bytes.map(PathMtu::new),
            settings,
            sessions: Vec::new(),
            epochs: Epochs::default(),
            back_off,
            random,
            dialling: false,
            dial_at_ns: None,
            rekeying: false,
            rekey_asked: false,
            closed: false,
            since_ns: now_ns,
            reason: None,
            known: None,
            reported: None,
            rekey_failed: None,
            probes,
            probe_at_ns: u64::MAX,
            probe_full: false,
            unanswered: None,
            round_trip: RoundTrip::default(),
            meter: Meter::default(),
            told_mtu: None,
            path_address: None,
            path_credit: (PATHS_BURST * BILLION, now_ns),
            ups: 0,
            rekeys: 0,
            roams: 0,
            actions: Vec::new(),
        };
        peer.dial_later(now_ns);
        peer
    }

    /// Something has happened. Times never go back; if they do, nothing worse than a wrong
    /// measurement follows.
    ///
    /// A session of `Dialled` or `Accepted` for which no `Install` is among the actions is to be
    /// dropped.
    pub fn handle(&mut self, event: PeerEvent, now_ns: u64) -> Vec<Action> {
        if !self.closed {
            self.event(event, now_ns);
        }
        if !self.closed {
            self.tick(now_ns);
        }
        std::mem::take(&mut self.actions)
    }

    /// When to send [`PeerEvent::Tick`] at the latest.
    pub fn deadline_ns(&self) -> u64 {
        if self.closed {
            return u64::MAX;
        }
        let mut deadline_ns = self.probes.deadline_ns(self.round_trip.timeout_ns());
        if !self.dialling {
            deadline_ns = deadline_ns.min(self.dial_at_ns.unwrap_or(u64::MAX));
        }
        for session in &self.sessions {
            deadline_ns = deadline_ns.min(match session.phase {
                Phase::Pending { until_ns, probe_ns } => until_ns.min(probe_ns),
                Phase::Retiring { until_ns } => until_ns,
                Phase::Used => self.probe_at_ns.min(self.search_deadline_ns()),
            });
            deadline_ns = deadline_ns.min(session.ends_at_ns);
        }
        if let (Some(_), Some((since_ns, UNANSWERED..))) = (self.used(), self.unanswered) {
            deadline_ns = deadline_ns.min(since_ns.saturating_add(self.settings.dead_ns));
        }
        // The age of keys is looked at whenever there is a tick: probes make them often enough.
        deadline_ns
    }

    /// The peer's state for the status.
    pub fn status(&self) -> PeerSnapshot {
        let used = self.used();
        let state = match (self.closed, used, &self.settings.address) {
            (true, ..) => SessionState::Closed,
            (_, Some(session), _) => SessionState::Up(session.info.id),
            (_, _, Some(_)) => SessionState::Dialling { attempt: self.back_off.attempts().max(1) },
            (_, _, None) => SessionState::Waiting,
        };
        PeerSnapshot {
            state,
            since_ns: self.since_ns,
            reason: if used.is_some() { None } else { self.reason.clone() },
            address: used.map(|session| session.info.address),
            epoch: used.map(|session| session.info.epoch),
            path_mtu_bytes: used.and(self.path_mtu.as_ref()).map(PathMtu::bytes),
            round_trip: self.round_trip,
            delivery: self.meter.delivery(),
            reconnects: self.ups.saturating_sub(1),
            rekeys: self.rekeys,
            roams: self.roams,
            overdue: used.and_then(|used| self.overdue(used)),
        }
    }

    fn overdue(&self, used: &Session) -> Option<Overdue> {
        let (since_ns, reason) = self.rekey_failed.clone()?;
        Some(Overdue { since_ns, reason, ends_ns: used.ends_at_ns })
    }

    fn event(&mut self, event: PeerEvent, now_ns: u64) {
        match event {
            PeerEvent::Configured(settings) => self.configure(settings, now_ns),
            PeerEvent::Dialled(Ok(info)) => {
                self.dialling = false;
                self.install(info, now_ns);
            }
            PeerEvent::Dialled(Err(DialError { reason, answered })) => {
                self.dialling = false;
                self.dial_failed(&reason, answered, now_ns);
            }
            PeerEvent::Accepted(info) => self.install(info, now_ns),
            PeerEvent::Traffic(id, traffic) => self.traffic(id, traffic, now_ns),
            PeerEvent::Received { session, from, newest } => {
                if newest {
                    self.locate(session, from);
                }
                self.heard(session, now_ns);
                if newest {
                    self.probe_path(session, from, now_ns);
                }
            }
            PeerEvent::Message { session, message, size_bytes, received_ns } => {
                self.heard(session, now_ns);
                self.message(session, message, size_bytes, received_ns, now_ns);
            }
            PeerEvent::TooBig { size_bytes } => {
                if let Some(mtu) = &mut self.path_mtu {
                    mtu.too_big(size_bytes, now_ns);
                }
            }
            PeerEvent::Largest(bytes) => {
                if let Some(mtu) = &mut self.path_mtu {
                    mtu.set_largest(bytes, now_ns);
                }
            }
            PeerEvent::Failed { session, reason } => self.failed(session, &reason, now_ns),
            PeerEvent::Expired { session, reason } => self.end(session, &reason, now_ns),
            PeerEvent::Renew => {
                for session in &mut self.sessions {
                    session.old_at_ns = session.old_at_ns.min(now_ns);
                }
            }
            PeerEvent::Close => self.close(),
            PeerEvent::Tick => {}
        }
    }

    fn tick(&mut self, now_ns: u64) {
        self.expire(now_ns);
        self.end_keys(now_ns);
        self.count_losses(now_ns);
        self.look_for_death(now_ns);
        self.rekey(now_ns);
        self.dial(now_ns);
        self.probe_pending(now_ns);
        self.probe_used(now_ns);
        self.tell_mtu();
    }

    // Sessions

    fn used(&self) -> Option<&Session> {
        self.sessions.iter().find(|session| session.phase == Phase::Used)
    }

    fn session(&mut self, id: SessionId) -> Option<&mut Session> {
        self.sessions.iter_mut().find(|session| session.info.id == id)
    }

    fn rank(&self, info: &SessionInfo) -> Rank {
        Rank::of(info, self.settings.favoured)
    }

    /// Whether the session in use stays when this one works.
    fn outranked(&self, info: &SessionInfo) -> bool {
        self.used().is_some_and(|used| !used.void && self.rank(&used.info) > self.rank(info))
    }

    fn install(&mut self, info: SessionInfo, now_ns: u64) {
        if self.session(info.id).is_some() {
            return;
        }
        self.known.take_if(|known| known == TAKEN_DOWN);
        if self.epochs.saw(&info) {
            for session in &mut self.sessions {
                session.void = session.info.instance != info.instance;
            }
        }
        self.make_room();
        let phase = if self.outranked(&info) {
            Phase::Retiring { until_ns: now_ns.saturating_add(self.settings.retire_ns) }
        } else {
            // Only the dialler knows that the other end has the session too.
            let probe_ns = if info.dialler == End::Us { now_ns } else { u64::MAX };
            Phase::Pending { until_ns: now_ns.saturating_add(self.settings.dead_ns), probe_ns }
        };
        // Up to a tenth earlier, so that links that began together do not rekey together.
        let spread_ns = self.random.u64(0..=self.settings.rekey_ns / 10);
        let old_at_ns = now_ns.saturating_add(self.settings.rekey_ns - spread_ns);
        self.actions.push(Action::Install(info.id));
        let located = info.dialler == End::Us || self.settings.largest_packet_bytes.is_none();
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

    /// A peer that makes sessions without end loses its own: those that retire, then those that
    /// wait.
    fn make_room(&mut self) {
        while self.sessions.len() >= SESSIONS {
            let worst = self.sessions.iter().min_by_key(|session| match session.phase {
                Phase::Retiring { until_ns } => (0, until_ns),
                Phase::Pending { until_ns, .. } => (1, until_ns),
                Phase::Used => (2, 0),
            });
            let Some(id) = worst.map(|session| session.info.id) else { return };
            self.forget(id);
        }
    }

    /// Something authentic came under a session.
    fn heard(&mut self, id: SessionId, now_ns: u64) {
        let Some(session) = self.sessions.iter().find(|session| session.info.id == id) else {
            return;
        };
        match session.phase {
            Phase::Used => self.unanswered = None,
            Phase::Retiring { .. } => {}
            Phase::Pending { .. } => self.use_session(id, now_ns),
        }
    }

    fn retire(&mut self, id: SessionId, now_ns: u64) {
        let until_ns = now_ns.saturating_add(self.settings.retire_ns);
        if let Some(session) = self.session(id) {
            session.phase = Phase::Retiring { until_ns };
        }
    }

    fn use_session(&mut self, id: SessionId, now_ns: u64) {
        let Some(info) = self.session(id).map(|session| session.info.clone()) else { return };
        let was_up = self.used().is_some();
        self.actions.push(Action::Use(id));
        let others: Vec<_> = self.sessions.iter().filter(|s| s.info.id != id).collect();
        let (void, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|s| s.void);
        let void: Vec<_> = void.iter().map(|s| s.info.id).collect();
        // One of higher rank that is still pending may replace this one later.
        let retiring: Vec<_> = others
            .iter()
            .filter(|s| s.phase == Phase::Used || self.rank(&s.info) < self.rank(&info))
            .filter(|s| !matches!(s.phase, Phase::Retiring { .. }))
            .map(|s| s.info.id)
            .collect();
        void.into_iter().for_each(|other| self.forget(other));
        retiring.into_iter().for_each(|other| self.retire(other, now_ns));
        if let Some(session) = self.session(id) {
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
            self.known = None;
            self.actions.push(Action::Report(Report::Up { address: info.address }));
        }
        self.follow_path(info.address, now_ns);
    }

    fn forget(&mut self, id: SessionId) {
        self.sessions.retain(|session| session.info.id != id);
        self.probes.forget(id);
        self.actions.push(Action::Forget(id));
    }

    /// A session is lost; if it is the one in use, the peer is.
    fn failed(&mut self, id: SessionId, reason: &str, now_ns: u64) {
        let Some(session) = self.session(id) else { return };
        let (phase, ours) = (session.phase, session.info.dialler == End::Us);
        self.forget(id);
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
                let reason = cut(reason);
                self.actions.push(Action::Report(Report::Down { reason: reason.clone() }));
                self.reason = Some(reason);
                self.dial_later(now_ns);
            }
            Phase::Pending { .. } if ours => self.dial_failed(reason, true, now_ns),
            Phase::Pending { .. } => self.reason = Some(cut(reason)),
            Phase::Retiring { .. } => {}
        }
    }

    fn expire(&mut self, now_ns: u64) {
        let over = |session: &&Session| match session.phase {
            Phase::Pending { until_ns, .. } | Phase::Retiring { until_ns } => now_ns >= until_ns,
            Phase::Used => false,
        };
        while let Some(session) = self.sessions.iter().find(over) {
            let (id, address) = (session.info.id, session.info.address);
            let theirs =
                session.info.dialler == End::Peer && matches!(session.phase, Phase::Pending { .. });
            let medium = match self.settings.largest_packet_bytes {
                Some(_) => "no datagram came through: does a firewall let UDP pass both ways?",
                None => "its data connections carried nothing: does a firewall cut them?",
            };
            let reason = format!("the handshake with {address} went well, but {medium}");
            self.failed(id, &reason, now_ns);
            if theirs {
                self.known = Some(cut(&reason));
            }
        }
    }

    /// Ends sessions whose keys are used up, or too old: without new ones there is none.
    fn end_keys(&mut self, now_ns: u64) {
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
            self.end(id, &format!("its keys have come to their end without new ones{why}"), now_ns);
        }
    }

    /// Ends a session, and says so to the peer.
    fn end(&mut self, session: SessionId, reason: &str, now_ns: u64) {
        if self.session(session).is_some() {
            let message = Message::Close(CloseReason::Expired);
            self.actions.push(Action::Send { session, message, packet_bytes: None, to: None });
            self.failed(session, reason, now_ns);
        }
    }

    fn look_for_death(&mut self, now_ns: u64) {
        let (Some(used), Some((since_ns, UNANSWERED..))) = (self.used(), self.unanswered) else {
            return;
        };
        if now_ns.saturating_sub(since_ns) < self.settings.dead_ns {
            return;
        }
        let session = used.info.id;
        let message = Message::Close(CloseReason::Silence);
        // The way there may still be open.
        self.actions.push(Action::Send { session, message, packet_bytes: None, to: None });
        let seconds = self.settings.dead_ns as f64 / 1e9;
        self.failed(session, &format!("nothing was heard for {seconds:.0} s"), now_ns);
    }

    fn close(&mut self) {
        if let Some(session) = self.used().map(|used| used.info.id) {
            let message = Message::Close(CloseReason::Down);
            self.actions.push(Action::Send { session, message, packet_bytes: None, to: None });
            self.actions.push(Action::Down);
        }
        let ids: Vec<_> = self.sessions.iter().map(|session| session.info.id).collect();
        ids.into_iter().for_each(|id| self.forget(id));
        self.closed = true;
    }

    // Dialling

    fn configure(&mut self, settings: PeerSettings, now_ns: u64) {
        let old = std::mem::replace(&mut self.settings, settings);
        if old.largest_packet_bytes != self.settings.largest_packet_bytes {
            self.path_mtu = self.settings.largest_packet_bytes.map(PathMtu::new);
        }
        if old.back_off_ns != self.settings.back_off_ns {
            self.back_off = BackOff::new(self.settings.back_off_ns, self.random.fork());
        }
        if old.address == self.settings.address {
            return;
        }
        self.back_off.reset();
        self.dial_at_ns = None;
        self.rekeying = false;
        if self.used().is_none() {
            self.dial_later(now_ns);
        } else if self.settings.address.is_some() {
            self.rekey_asked = true;
        }
    }

    /// The next attempt is due, at once or after a wait.
    fn dial_later(&mut self, now_ns: u64) {
        if self.settings.address.is_some() {
            self.dial_at_ns = Some(now_ns.saturating_add(self.back_off.wait_ns()));
        }
    }

    fn dial(&mut self, now_ns: u64) {
        let Some(address) = self.settings.address.clone() else { return };
        if self.dialling || self.dial_at_ns.is_none_or(|at_ns| now_ns < at_ns) {
            return;
        }
        (self.dialling, self.dial_at_ns) = (true, None);
        self.actions.push(Action::Dial { address, epoch: self.epochs.advance() });
    }

    fn dial_failed(&mut self, reason: &str, answered: bool, now_ns: u64) {
        let reason = cut(reason);
        if answered {
            self.known = None;
        }
        self.reason = Some(match &self.known {
            Some(known) => cut(&format!("{known}; since then: {reason}")),
            None => reason.clone(),
        });
        // With a session in use there is only a hurry if that was to be replaced.
        if self.used().is_some() && !self.rekeying {
            return;
        }
        self.dial_later(now_ns);
        if let Some(ends_at_ns) = self.used().map(|used| used.ends_at_ns) {
            return self.rekey_fails(reason, ends_at_ns, now_ns);
        }
        let Some(at_ns) = self.dial_at_ns else { return };
        if self.reported.as_ref() != Some(&reason) {
            self.reported = Some(reason.clone());
            let retry_ns = at_ns.saturating_sub(now_ns);
            self.actions.push(Action::Report(Report::DialFailed { reason, retry_ns }));
        }
    }

    /// The session in use was to be replaced, which has failed.
    fn rekey_fails(&mut self, reason: String, ends_at_ns: u64, now_ns: u64) {
        let since_ns = match &self.rekey_failed {
            Some((_, before)) if *before == reason => return,
            Some((since_ns, _)) => *since_ns,
            None => now_ns,
        };
        let left_ns = ends_at_ns.saturating_sub(now_ns);
        self.actions.push(Action::Report(Report::RekeyFailed { reason: reason.clone(), left_ns }));
        self.rekey_failed = Some((since_ns, reason));
    }

    fn rekey(&mut self, now_ns: u64) {
        let Some(used) = self.used() else { return };
        let waits_ns = self.settings.rekey_ns / 2;
        if self.settings.address.is_none()
            && self.rekey_failed.is_none()
            && now_ns >= used.old_at_ns.saturating_add(waits_ns)
        {
            let ends_at_ns = used.ends_at_ns;
            return self.rekey_fails(NOT_RENEWED.to_owned(), ends_at_ns, now_ns);
        }
        if self.rekeying || self.dialling || self.settings.address.is_none() {
            return;
        }
        // It is the dialler's task, unless it does not do it.
        let overdue_ns = used.old_at_ns.saturating_add(self.settings.rekey_ns / 4);
        let ours = used.info.dialler == End::Us || now_ns >= overdue_ns;
        if self.rekey_asked || (ours && now_ns >= used.old_at_ns) {
            (self.rekeying, self.rekey_asked) = (true, false);
            self.back_off.reset();
            self.dial_later(now_ns);
        }
    }

    // The path

    fn traffic(&mut self, id: SessionId, traffic: SessionTraffic, now_ns: u64) {
        let (rekey_records, rekey_bytes) = (self.settings.rekey_records, self.settings.rekey_bytes);
        let Some(session) = self.session(id) else { return };
        if traffic.sent_packets.max(traffic.expected_packets) >= rekey_records
            || traffic.sent_bytes.max(traffic.received_bytes) >= rekey_bytes
        {
            session.old_at_ns = session.old_at_ns.min(now_ns);
        }
        let heard = traffic.received_packets > session.traffic.received_packets;
        session.traffic = traffic;
        // The packet that says where they come from is still to be told of, if it is not located.
        if heard && session.located {
            self.heard(id, now_ns);
        }
        if let Some(used) = self.used().filter(|used| used.info.id == id) {
            let counters = used.counters();
            self.meter.received(counters);
        }
    }

    /// The first datagram says where the peer is, and moves nothing.
    fn locate(&mut self, id: SessionId, from: SocketAddr) {
        let Some(session) = self.session(id).filter(|session| !session.located) else { return };
        session.located = true;
        session.info.address = from;
        self.actions.push(Action::Roam(id, from));
    }

    /// A datagram came from another address than the session's. It may be a copy, sent again with a
    /// forged source: the peer has moved when it answers a probe that was sent there.
    fn probe_path(&mut self, id: SessionId, from: SocketAddr, now_ns: u64) {
        if self.moves(id, from).is_none() {
            return;
        }
        let (credit, as_of_ns) = self.path_credit;
        let earned = now_ns.saturating_sub(as_of_ns).saturating_mul(PATHS_PER_S);
        let credit = credit.saturating_add(earned).min(PATHS_BURST * BILLION);
        let left = credit.checked_sub(BILLION);
        self.path_credit = (left.unwrap_or(credit), now_ns);
        if left.is_some() {
            self.probe(id, ProbePurpose::Path(from), now_ns);
        }
    }

    /// The former address of a session whose peer is at `to`; `None` if it does not move there.
    fn moves(&self, id: SessionId, to: SocketAddr) -> Option<SocketAddr> {
        let session = self.sessions.iter().find(|session| session.info.id == id)?;
        let datagrams = self.settings.largest_packet_bytes.is_some();
        let retiring = matches!(session.phase, Phase::Retiring { .. });
        let from = session.info.address;
        (datagrams && !retiring && canonical(from) != canonical(to)).then_some(from)
    }

    fn roam(&mut self, id: SessionId, to: SocketAddr, now_ns: u64) {
        let Some(from) = self.moves(id, to) else { return };
        let Some(session) = self.session(id) else { return };
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

    /// Another host's address is another path; another port is only a translator that forgot.
    fn follow_path(&mut self, address: SocketAddr, now_ns: u64) {
        let old = self.path_address.replace(address);
        if old.is_none_or(|old| canonical(old).ip() == canonical(address).ip()) {
            return;
        }
        self.meter.forget_path();
        if let Some(mtu) = &mut self.path_mtu {
            mtu.restart(now_ns);
        }
    }

    fn message(&mut self, id: SessionId, message: Message, size: u16, at_ns: u64, now_ns: u64) {
        let Some(session) = self.session(id) else { return };
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
                // A peer that asks again and again gets its way now and then only.
                if used && now_ns.saturating_sub(since_ns) >= self.settings.settled_ns {
                    self.rekey_asked |= wants_rekey;
                }
            }
            Message::Answer { id: probe, sent_ns, held_ns, answered_ns, counters, .. } => {
                let Some(probe) = self.probes.answered(probe, sent_ns) else { return };
                if let ProbePurpose::Path(to) = probe.purpose {
                    self.roam(probe.session, to, now_ns);
                }
                let trip_ns = at_ns.saturating_sub(sent_ns).saturating_sub(held_ns);
                self.round_trip.add(trip_ns, now_ns);
                if used {
                    let queued = self.round_trip.queued();
                    self.meter.told(counters, answered_ns, queued, now_ns);
                }
                if let Some(mtu) = &mut self.path_mtu {
                    match probe.purpose {
                        ProbePurpose::Path(_) => {}
                        ProbePurpose::Alive => mtu.small_answered(),
                        ProbePurpose::Full(size) | ProbePurpose::Search(size) => {
                            mtu.answered(size, now_ns)
                        }
                    }
                }
            }
            Message::Close(reason) => {
                if used && reason == CloseReason::Down {
                    self.known = Some(TAKEN_DOWN.into());
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
                self.failed(id, reason, now_ns);
            }
        }
    }

    fn count_losses(&mut self, now_ns: u64) {
        let timeout_ns = self.round_trip.timeout_ns();
        while let Some(probe) = self.probes.lost(timeout_ns, now_ns) {
            let Some(mtu) = &mut self.path_mtu else { continue };
            match probe.purpose {
                ProbePurpose::Alive | ProbePurpose::Path(_) => {}
                ProbePurpose::Search(size) => mtu.lost(size, now_ns),
                ProbePurpose::Full(size) => {
                    mtu.full_lost(size, now_ns);
                }
            }
        }
    }

    fn probe_pending(&mut self, now_ns: u64) {
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
        due.into_iter().for_each(|id| self.probe(id, ProbePurpose::Alive, now_ns));
    }

    fn probe_used(&mut self, now_ns: u64) {
        let Some(id) = self.used().map(|used| used.info.id) else { return };
        if now_ns >= self.probe_at_ns {
            let full = self.path_mtu.as_ref().map(PathMtu::bytes).filter(|_| self.probe_full);
            self.probe_full = !self.probe_full;
            let (since_ns, count) = self.unanswered.unwrap_or((now_ns, 0));
            self.unanswered = Some((since_ns, count.saturating_add(1)));
            self.probe(id, full.map_or(ProbePurpose::Alive, ProbePurpose::Full), now_ns);
            let suspects = self.path_mtu.as_ref().is_some_and(PathMtu::suspects);
            let faster = if suspects { FASTER } else { 1 };
            self.probe_at_ns = now_ns.saturating_add(self.settings.probe_ns / faster);
        }
        // A path on which nothing comes back is not measured.
        if self.unanswered.is_none_or(|(_, count)| count < UNANSWERED)
            && let Some(size) = self.path_mtu.as_mut().and_then(|mtu| mtu.probe(now_ns))
        {
            self.probe(id, ProbePurpose::Search(size), now_ns);
        }
    }

    fn search_deadline_ns(&self) -> u64 {
        match (&self.path_mtu, self.unanswered) {
            (_, Some((_, UNANSWERED..))) | (None, _) => u64::MAX,
            (Some(mtu), _) => mtu.deadline_ns(),
        }
    }

    fn probe(&mut self, session: SessionId, purpose: ProbePurpose, now_ns: u64) {
        let Some(of) = self.sessions.iter().find(|s| s.info.id == session) else { return };
        let wants_rekey = of.info.dialler == End::Peer && now_ns >= of.old_at_ns;
        let counters = of.counters();
        let id = self.probes.send(session, purpose, now_ns);
        let (packet_bytes, to) = match purpose {
            ProbePurpose::Alive => (None, None),
            ProbePurpose::Full(size) | ProbePurpose::Search(size) => (Some(size), None),
            ProbePurpose::Path(to) => (None, Some(to)),
        };
        let message = Message::Probe { id, sent_ns: now_ns, wants_rekey, counters };
        self.actions.push(Action::Send { session, message, packet_bytes, to });
    }

    fn tell_mtu(&mut self) {
        let bytes = self.path_mtu.as_ref().map(PathMtu::bytes);
        if let (Some(bytes), Some(_)) = (bytes, self.used())
            && self.told_mtu != Some(bytes)
        {
            self.told_mtu = Some(bytes);
            self.actions.push(Action::PathMtu(bytes));
            self.actions.push(Action::Report(Report::PathMtu(bytes)));
        }
    }
}

fn cut(reason: &str) -> String {
    reason.chars().take(REASON_CHARS).collect()
}

/// A dual-stack socket writes IPv4 addresses in another way.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        v4 if v4.is_ipv4() => SocketAddr::new(v4, address.port()),
        // With the interface that a link-local address is of.
        _ => address,
    }
}
