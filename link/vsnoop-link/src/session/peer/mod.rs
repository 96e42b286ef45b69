//! One peer: events in, actions out.
//!
//! A session begins *pending*: its handshake is done, but no packet has arrived under it yet. The
//! initiator sends a probe at once, so the first packet shows each end that the other one has the
//! session. Then the session is *in use*, and the one before it *retires*: its packets are still
//! received for a while, because some are in flight. [`super::order`] decides which of several
//! sessions stays. The peer keeps the old session until a packet has arrived under the new one.
//!
//! A peer is alive while packets come under the session in use. Probes make the peer send some;
//! after several probes and some seconds without a packet it is dead, and is dialled again.
//!
//! This file has the state and the dispatch of events. What they do is in `lifecycle` (sessions),
//! `dialling` (calls and rekeying), `probing` (probes and messages) and `paths` (addresses).

mod dialling;
mod lifecycle;
mod paths;
mod probing;
mod session;

use std::net::SocketAddr;

use self::session::{Phase, Session};
use super::back_off::BackOff;
use super::delivery::Meter;
use super::order::Epochs;
use super::path_mtu::PathMtu;
use super::probes::Probes;
use super::round_trip::RoundTrip;
use super::types::{
    Action, DialError, Overdue, PeerEvent, PeerSettings, PeerSnapshot, SessionState,
};

/// Unanswered probes before a peer is dead. One would prove nothing: this host may have been
/// suspended since.
const UNANSWERED: u32 = 3;
/// Probes of addresses at once, after seconds without any.
const PATHS_BURST: u64 = 4;
const BILLION: u64 = 1_000_000_000;
/// Longer error texts are cut.
const REASON_CHARS: usize = 400;
/// The reason when the peer has sent a close message.
const TAKEN_DOWN: &str = "the peer has taken the link down";

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
    /// When a hub may have it dialled at once again.
    found_again_ns: u64,
    /// The session in use is to be replaced.
    rekeying: bool,
    /// The peer wants that, too (`wants_rekey` of its probe), or its address has changed.
    rekey_asked: bool,
    closed: bool,
    since_ns: u64,
    reason: Option<String>,
    /// Why there is no session, if the peer has shown it: by its close message (until the next
    /// handshake), or because no packet arrives under a session that it dialled (until one does).
    /// The status prefers this to the error of a failed dial.
    known: Option<String>,
    /// The instance that has sent the last close message. Handshakes that it still completes, on a
    /// busy machine, do not show that the peer is there.
    left: Option<u64>,
    reported: Option<String>,
    /// Since when attempts to replace the session in use fail, and why.
    rekey_failed: Option<(u64, String)>,
    probes: Probes,
    probe_at_ns: u64,
    probe_full: bool,
    /// Since when probes are unanswered, and how many.
    unanswered: Option<(u64, u32)>,
    round_trip: RoundTrip,
    meter: Meter,
    path_mtu: Option<PathMtu>,
    told_mtu: Option<u16>,
    /// Address of the path that is measured.
    path_address: Option<SocketAddr>,
    /// Token bucket for probes of addresses: the tokens in billionths, and the time of that level.
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
            found_again_ns: 0,
            rekeying: false,
            rekey_asked: false,
            closed: false,
            since_ns: now_ns,
            reason: None,
            known: None,
            left: None,
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

    /// Handles an event at the monotonic time `now_ns`. If a time is before an earlier one,
    /// measurements are wrong, and nothing else is.
    ///
    /// The caller drops a session of `Dialled` or `Accepted` if no `Install` is among the actions.
    pub fn handle_event(&mut self, event: PeerEvent, now_ns: u64) -> Vec<Action> {
        if !self.closed {
            self.apply_event(event, now_ns);
        }
        if !self.closed {
            self.tick(now_ns);
        }
        std::mem::take(&mut self.actions)
    }

    /// The caller sends [`PeerEvent::Tick`] at this time at the latest; `u64::MAX`: never.
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
        if let (Some(_), Some((since_ns, UNANSWERED..))) = (self.used_session(), self.unanswered) {
            deadline_ns = deadline_ns.min(since_ns.saturating_add(self.settings.dead_ns));
        }
        // Old keys need no deadline of their own: probes cause ticks often enough.
        deadline_ns
    }

    /// The peer's state for the status.
    pub fn status(&self) -> PeerSnapshot {
        let used = self.used_session();
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
            overdue: used.and_then(|used| self.find_overdue(used)),
        }
    }

    fn find_overdue(&self, used: &Session) -> Option<Overdue> {
        let (since_ns, reason) = self.rekey_failed.clone()?;
        Some(Overdue { since_ns, reason, ends_ns: used.ends_at_ns })
    }

    fn apply_event(&mut self, event: PeerEvent, now_ns: u64) {
        match event {
            PeerEvent::Configured(settings) => self.configure(settings, now_ns),
            PeerEvent::Dialled(Ok(info)) => {
                self.dialling = false;
                self.install_session(info, now_ns);
            }
            PeerEvent::Dialled(Err(DialError { reason, answered })) => {
                self.dialling = false;
                self.dial_failed(&reason, answered, now_ns);
            }
            PeerEvent::Accepted(info) => self.install_session(info, now_ns),
            PeerEvent::Traffic(id, traffic) => self.note_traffic(id, traffic, now_ns),
            PeerEvent::Received { session, from, newest } => {
                if newest {
                    self.note_address(session, from);
                }
                self.note_heard(session, now_ns);
                if newest {
                    self.probe_path(session, from, now_ns);
                }
            }
            PeerEvent::Message { session, message, size_bytes, received_ns } => {
                self.note_heard(session, now_ns);
                self.handle_message(session, message, size_bytes, received_ns, now_ns);
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
            PeerEvent::Failed { session, reason } => self.note_failed(session, &reason, now_ns),
            PeerEvent::Expired { session, reason } => self.end_session(session, &reason, now_ns),
            PeerEvent::Renew => {
                for session in &mut self.sessions {
                    session.old_at_ns = session.old_at_ns.min(now_ns);
                }
            }
            PeerEvent::Found(address) => self.note_found(address, now_ns),
            PeerEvent::Close => self.close_sessions(),
            PeerEvent::Tick => {}
        }
    }

    fn tick(&mut self, now_ns: u64) {
        self.expire_sessions(now_ns);
        self.end_keys(now_ns);
        self.count_losses(now_ns);
        self.look_for_death(now_ns);
        self.rekey(now_ns);
        self.start_dial(now_ns);
        self.probe_pending(now_ns);
        self.probe_used(now_ns);
        self.tell_mtu();
    }
}

fn cut_reason(reason: &str) -> String {
    reason.chars().take(REASON_CHARS).collect()
}
