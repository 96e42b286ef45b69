//! One connection: the next frame for the VM.
//!
//! In this order: a retransmission of lost bytes, held bytes that fit into the VM's window, a pure
//! ACK if the sender's latest ACK or window is in no frame yet, a probe of a closed window.
//!
//! While the VM has something to acknowledge, held bytes are handed over in large portions: when
//! half of the widest window is open, or after [`PATIENCE_NS`] in which it did not open further
//! (RFC 9293, section 3.8.6.2.1). A VM that has acknowledged everything gets a segment as soon as
//! one fits.
//!
//! *Loss* is detected in four ways; what is then sent again is in `recovery.rs`. The VM sends
//! three duplicate ACKs, or one with SACK blocks of three segments. Or it opens a window that was
//! closed below what it was handed: it had no memory for that. Or the VM had [`TIMEOUT_NS`] of
//! run time to answer and did not; the timeout then doubles (RFC 6298). Or it had half of that
//! time, and then sends a segment that does not acknowledge the byte at VM_SEQ, for which it has
//! room: what it sends by then it sends after it has read its ring, which keeps the order. (What it
//! sent before proves nothing: that may have been on its way when it was handed the byte.)
//!
//! *A closed window* is probed (RFC 9293, section 3.8.6.1) with one held byte, which is the only
//! probe that some stacks answer, or with a keep-alive probe, an old segment without data (section
//! 3.8.4). After a probe without an answer the other form is used.
//!
//! When a connection is given up is in `giving_up.rs`, one that the VM has not confirmed in
//! `confirmation.rs`.

use vsnoop_flow::types::seq;

use crate::confirmation::Confirmation;
use crate::giving_up::{Reason, Refusal, Rollback, Silence};
use crate::hold_frame::{HoldFrame, Kind, again, handover, largest};
use crate::late::DueAcks;
use crate::recovery::{Recovery, has_lost};
use crate::repeats::Repeats;
use crate::round_trip::RoundTrips;
use crate::scoreboard::Scoreboard;
use crate::time::{Deadline, Time};
use crate::view::View;

/// Retransmission timeout in the VM's run time: longer than any delayed ACK (RFC 9293, section
/// 3.8.6.3, and Linux's 40 ms).
pub const TIMEOUT_NS: u64 = 200_000_000;
/// Run time of the VM to open its window further, before less than a portion is handed over.
pub const PATIENCE_NS: u64 = 40_000_000;
/// A portion is this fraction of the widest window: a half.
const PORTION: u32 = 2;
/// How often a timeout doubles at most.
const BACK_OFF: u32 = 4;

/// State of a connection between two looks. It only serves efficiency: a new engine starts without.
#[derive(Clone, Debug)]
pub struct Flow {
    vm_seq: seq,
    /// Duplicate ACKs that were seen.
    duplicate_acks: u32,
    /// Those since the last recovery began, or since VM_SEQ advanced.
    new_duplicates: u32,
    vm_acks: u32,
    /// When the retransmission timer was started, ns of run time.
    since_ns: u64,
    /// `vm_acks` when the VM had had half of the timeout, by which it has read its ring.
    read_by: Option<u32>,
    /// Timeouts in a row.
    timeouts: u32,
    /// Run time at the last look.
    looked_ns: u64,
    /// Had the VM room in its window when its last segment came?
    had_room: bool,
    recovery: Option<Recovery>,
    carried: (seq, u16),
    probe: WindowProbe,
    silence: Silence,
    refusal: Refusal,
    rollback: Rollback,
    confirmation: Option<Confirmation>,
    /// Widest window of the VM so far, bytes.
    widest: u32,
    /// A portion is being handed over.
    handing_over: bool,
    /// Since when less than a portion waits, ns of run time.
    waits_ns: Option<u64>,
    reason_to_reset: Option<Reason>,
    /// Reports of a smaller path MTU that were seen.
    too_big: u32,
    /// `dropped` of the view, as far as it was seen.
    dropped: u32,
    repeats: Repeats,
    scoreboard: Scoreboard,
    round_trips: RoundTrips,
}

/// State of window probes.
#[derive(Clone, Debug, Default)]
struct WindowProbe {
    due: bool,
    /// The next is a keep-alive probe; else it has one byte, if there is one.
    keep_alive: bool,
    /// `vm_acks` when the last probe was sent.
    sent_at: Option<u32>,
}

impl Flow {
    /// A connection that no engine has looked at.
    pub fn new(view: &View, time: Time) -> Self {
        Self {
            vm_seq: view.vm_seq,
            // Earlier reports are unknown: a loss that persists is reported again, or times out.
            duplicate_acks: view.duplicate_acks,
            new_duplicates: 0,
            vm_acks: view.vm_acks,
            since_ns: time.run_time_ns,
            read_by: None,
            timeouts: 0,
            looked_ns: time.run_time_ns,
            had_room: view.has_room(),
            recovery: None,
            carried: view.sender,
            probe: WindowProbe::default(),
            silence: Silence::since(time.live_ns),
            refusal: Refusal::default(),
            rollback: Rollback::default(),
            confirmation: None,
            widest: 0,
            handing_over: false,
            waits_ns: None,
            reason_to_reset: None,
            too_big: view.too_big,
            dropped: view.dropped,
            repeats: Repeats::default(),
            scoreboard: Scoreboard::default(),
            round_trips: RoundTrips::default(),
        }
    }

    /// A connection that an earlier engine served. It is not known how long the VM has been silent,
    /// so its timeout has expired: engines could otherwise be replaced faster than it expires.
    pub fn resumed(view: &View, time: Time) -> Self {
        let mut flow = Self::new(view, time);
        if view.unconfirmed {
            flow.confirmation = Some(Confirmation::at_once(time));
        } else if !view.is_done() {
            flow.solicit(view);
        }
        flow
    }

    /// Reason to reset the connection: the VM does not answer, or refuses bytes for which it has
    /// room.
    pub fn reason_to_reset(&self) -> Option<Reason> {
        self.reason_to_reset
    }

    /// The next frame to send now, if there is one.
    pub fn poll(&mut self, view: &View, time: Time) -> Option<HoldFrame> {
        if view.unconfirmed {
            return self.confirm(view, time);
        }
        if self.confirmation.take().is_some() {
            self.begin_anew(view, time);
        }
        let view = &self.scoreboard.complete(&self.on_path(view));
        self.follow_view(view, time);
        if self.reason_to_reset.is_some() {
            return None;
        }
        self.resend(view)
            .or_else(|| self.hand_over(view, time.run_time_ns))
            .or_else(|| self.acknowledge(view))
            .or_else(|| self.probe(view))
    }

    /// When to look again if nothing happens, after `poll()` had no frame.
    pub fn deadline(&self, view: &View) -> Deadline {
        if let Some(confirmation) = self.confirmation.as_ref().filter(|_| view.unconfirmed) {
            return Deadline { now_ns: Some(confirmation.next_ns()), run_time_ns: None };
        }
        let is_read = self.read_by.is_some() || !view.has_room();
        let timeout =
            self.since_ns + if is_read { self.timeout(view) } else { self.reading_time(view) };
        let portion = self.waits_ns.map(|since| since + PATIENCE_NS);
        Deadline { now_ns: None, run_time_ns: Some(portion.map_or(timeout, |at| at.min(timeout))) }
    }

    /// Must the hooks wake the engine for each ACK of the VM? While it recovers, when the VM's
    /// next segment is a proof, and when it may confirm the connection.
    pub fn wants_acks(&self) -> bool {
        self.recovery.is_some() || self.read_by.is_some() || self.confirmation.is_some()
    }

    /// Had the VM not confirmed the connection at the last look?
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.confirmation.is_some()
    }

    /// When the last attempt to confirm the connection began, by the clock; `None` without one.
    pub(crate) fn attempted_ns(&self) -> Option<u64> {
        self.confirmation.as_ref()?.attempted_ns()
    }

    /// The next attempt to confirm the connection is due now.
    pub(crate) fn attempt_at_once(&mut self, time: Time) {
        if let Some(confirmation) = &mut self.confirmation {
            confirmation.attempt_at_once(time);
        }
    }

    /// The room in the VM's window from which it is handed more, in bytes; 0: any.
    pub fn portion(&self) -> u32 {
        self.waits_ns.map_or(0, |_| self.widest / PORTION)
    }

    /// Does a path behind the VM lose what the engine sends?
    pub fn is_lost_on_a_path(&self, view: &View) -> bool {
        self.repeats.are_of_a_path(&self.on_path(view))
    }

    /// ACKs that were due for what the engine handed over.
    pub fn due_acks(&self) -> DueAcks {
        self.round_trips.due_acks()
    }

    /// The view, in which long round trips tell of a path as the TTL does.
    fn on_path(&self, view: &View) -> View {
        let mut view = *view;
        view.neighbour |= self.round_trips.are_long();
        view
    }

    /// Notes that the device has taken a frame.
    pub fn sent(&mut self, view: &View, frame: &HoldFrame) {
        self.carried = view.sender;
        self.silence.sent();
        self.repeats.sent(&self.on_path(view), frame);
        match frame.kind {
            Kind::Resend => {
                self.round_trips.resent();
                if frame.seq == view.vm_seq {
                    self.refusal.resent(view);
                    self.start_timer(self.looked_ns);
                }
                if let Some(recovery) = &mut self.recovery {
                    recovery.sent(frame.end());
                }
                if let Some(confirmation) = &mut self.confirmation {
                    confirmation.end_attempt();
                }
            }
            Kind::Probe => (self.probe.due, self.probe.sent_at) = (false, Some(view.vm_acks)),
            // It has waited for its window until now (RFC 6298, section 5).
            Kind::Handover => {
                if view.handed == view.vm_seq {
                    self.start_timer(self.looked_ns);
                }
                self.round_trips.sent(frame.end(), self.looked_ns);
            }
            Kind::Ack => {}
        }
    }

    /// Notes that the device has not taken a frame.
    pub fn refused(&mut self) {
        self.silence.refused();
    }

    /// An attempt to complete the handshake: data from VM_SEQ on, and no more than was handed over
    /// before.
    fn confirm(&mut self, view: &View, time: Time) -> Option<HoldFrame> {
        let confirmation = self.confirmation.get_or_insert_with(|| Confirmation::new(time));
        if confirmation.is_over(time) {
            self.reason_to_reset = Some(Reason::Silent);
            return None;
        }
        let until = confirmation.attempt_if_due(time, view.handed, view.vm_seq);
        if view.handed == view.vm_seq {
            return handover(view);
        }
        let frame = again(view, view.vm_seq, until?);
        if frame.is_none() {
            self.confirmation.as_mut()?.end_attempt();
        }
        frame
    }

    /// The VM has just confirmed the connection.
    fn begin_anew(&mut self, view: &View, time: Time) {
        self.silence = Silence::since(time.live_ns);
        self.refusal = Refusal::default();
        self.vm_acks = view.vm_acks;
        self.start_timer(time.run_time_ns);
    }

    fn follow_view(&mut self, view: &View, time: Time) {
        self.looked_ns = time.run_time_ns;
        if view.vm_acks != self.vm_acks {
            self.vm_acks = view.vm_acks;
            self.silence = Silence::since(time.live_ns);
            let has_room = view.has_room();
            // A sign of life resets the timeouts only if the VM had no room before.
            if !(self.had_room && has_room) {
                self.timeouts = 0;
                self.refusal = Refusal::default();
            }
            self.had_room = has_room;
        }
        self.new_duplicates += view.duplicate_acks.wrapping_sub(self.duplicate_acks);
        self.duplicate_acks = view.duplicate_acks;
        let advanced = view.vm_seq.diff(self.vm_seq);
        if advanced > 0 {
            self.repeats.acknowledged(view, advanced as u32);
            self.round_trips.acknowledged(view.vm_seq, time.run_time_ns);
            self.vm_seq = view.vm_seq;
            self.start_timer(time.run_time_ns);
            (self.timeouts, self.new_duplicates) = (0, 0);
            self.probe.due = false;
            self.refusal = Refusal::default();
        }
        // The VM has dropped all that was larger, or all while it had no memory.
        let seen = (self.too_big, self.dropped);
        if (view.too_big, view.dropped) != seen {
            (self.too_big, self.dropped) = (view.too_big, view.dropped);
            self.recover(Recovery::of_timeout(view, largest(view)));
        }
        self.detect_loss(view);
        self.time_out(view, time);
    }

    fn detect_loss(&mut self, view: &View) {
        if self.recovery.take_if(|recovery| recovery.is_over(view)).is_some() {
            self.repeats.recovered(view);
        }
        let is_reported = self.new_duplicates > 0 && has_lost(view, self.new_duplicates);
        match &mut self.recovery {
            Some(recovery) if !(is_reported && recovery.is_refined_by(view)) => {
                recovery.follow_acks(view, largest(view));
            }
            None if !is_reported => {}
            _ => self.recover(Recovery::of_report(view)),
        }
    }

    fn recover(&mut self, recovery: Recovery) {
        self.recovery = Some(recovery);
        self.new_duplicates = 0;
    }

    fn start_timer(&mut self, run_time_ns: u64) {
        (self.since_ns, self.read_by) = (run_time_ns, None);
    }

    fn timeout(&self, view: &View) -> u64 {
        self.backed_off(TIMEOUT_NS, view)
    }

    /// By then a VM has read its ring, and an answer from behind it is here.
    fn reading_time(&self, view: &View) -> u64 {
        self.backed_off(TIMEOUT_NS / 2, view)
    }

    fn backed_off(&self, least_ns: u64, view: &View) -> u64 {
        let due_ns = self.round_trips.timeout(view.neighbour);
        least_ns.max(due_ns) << self.timeouts.min(BACK_OFF)
    }

    fn time_out(&mut self, view: &View, time: Time) {
        if view.is_done() {
            self.start_timer(time.run_time_ns);
            self.silence = Silence::since(time.live_ns);
            return;
        }
        if self.silence.is_over(time.live_ns) {
            self.reason_to_reset = Some(Reason::Silent);
        }
        let lasted_ns = time.run_time_ns.saturating_sub(self.since_ns);
        if lasted_ns < self.timeout(view) && !self.has_proof(view) {
            if lasted_ns >= self.reading_time(view) && view.has_room() {
                self.read_by.get_or_insert(view.vm_acks);
            }
            return;
        }
        self.start_timer(time.run_time_ns);
        self.timeouts += 1;
        if self.refusal.judge(view, time.live_ns) {
            self.reason_to_reset = Some(Reason::Refused);
        }
        if self.rollback.judge(view) {
            self.reason_to_reset = Some(Reason::RolledBack);
        }
        self.solicit(view);
    }

    /// Has the VM sent something since it has read its ring, and still lacks the byte at VM_SEQ?
    fn has_proof(&self, view: &View) -> bool {
        self.read_by.is_some_and(|before| before != view.vm_acks) && view.has_room()
    }

    /// After a timeout: a retransmission or a probe, to make the VM answer.
    fn solicit(&mut self, view: &View) {
        // The VM may have dropped what it has reported (RFC 2018, section 8).
        if self.timeouts > 1 {
            self.scoreboard.clear();
        }
        self.repeats.timed_out(view);
        if view.handed.diff(view.vm_seq) > 0 {
            self.recover(Recovery::of_timeout(view, largest(view)));
        }
        if self.probe.sent_at == Some(view.vm_acks) {
            self.probe.keep_alive = !self.probe.keep_alive;
        }
        // Beside a retransmission, too: the VM may have shrunk its window since.
        self.probe.due = view.right_edge.diff(view.vm_seq) <= 0 || view.is_all_handed();
    }

    /// Retransmission of the next lost bytes, within the VM's window.
    fn resend(&self, view: &View) -> Option<HoldFrame> {
        let recovery = self.recovery.filter(|_| view.is_kept())?;
        let (from, until) = recovery.range(view)?;
        self.repeats.cut(view, again(view, from, until)?)
    }

    fn hand_over(&mut self, view: &View, run_time_ns: u64) -> Option<HoldFrame> {
        self.handing_over &= view.right_edge.diff(view.handed) > 0;
        if !self.handing_over && !self.is_portion(view, run_time_ns) {
            return None;
        }
        self.waits_ns = None;
        let frame = handover(view).and_then(|frame| self.repeats.cut(view, frame));
        self.handing_over = frame.is_some();
        frame
    }

    /// Is enough of the window open for a portion?
    fn is_portion(&mut self, view: &View, run_time_ns: u64) -> bool {
        let room = |from: seq, to: seq| to.diff(from).max(0) as u32;
        self.widest = self.widest.max(room(view.vm_seq, view.right_edge));
        let usable = room(view.handed, view.right_edge);
        if usable >= self.widest / PORTION || usable >= room(view.handed, view.end()) {
            return true;
        }
        // The VM has nothing to acknowledge, so it may send no further window update.
        if view.handed == view.vm_seq && usable >= view.mss {
            return true;
        }
        let since = *self.waits_ns.get_or_insert(run_time_ns);
        if run_time_ns.saturating_sub(since) < PATIENCE_NS {
            return false;
        }
        // The window may never be so wide again.
        self.widest -= self.widest / 8;
        true
    }

    fn acknowledge(&self, view: &View) -> Option<HoldFrame> {
        let is_unsent = view.ack_waits || (view.sender != self.carried && !view.is_all_handed());
        is_unsent.then_some(HoldFrame { seq: view.handed, len: 0, fin: false, kind: Kind::Ack })
    }

    fn probe(&self, view: &View) -> Option<HoldFrame> {
        if !self.probe.due {
            return None;
        }
        let is_closed = view.right_edge.diff(view.vm_seq) <= 0;
        let has_byte = view.tail.diff(view.vm_seq) > 0 && view.is_kept();
        let (seq, len) = if is_closed && has_byte && !self.probe.keep_alive {
            (view.vm_seq, 1)
        } else {
            (view.vm_seq.add(u32::MAX), 0)
        };
        Some(HoldFrame { seq, len, fin: false, kind: Kind::Probe })
    }
}
