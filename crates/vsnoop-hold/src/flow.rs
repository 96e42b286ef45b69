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
//! *Loss* is detected in two ways. The VM sends three duplicate ACKs, or one with SACK blocks of
//! three segments: the holes below the highest block are then sent again, once, and a second time
//! only when a block shows that something sent after them has arrived (after RFC 6675 and RFC 8985;
//! nothing is reordered between host and VM). Without SACK one frame is sent again, and the next
//! with each partial ACK (RFC 6582). Or the VM had [`TIMEOUT_NS`] of run time to answer and did
//! not: the first frame is then sent again, and the timeout doubles (RFC 6298).
//!
//! *A closed window* is probed (RFC 9293, section 3.8.6.1) with one held byte, which is the only
//! probe that some stacks answer, or with a keep-alive probe, an old segment without data (section
//! 3.8.4). After a probe without an answer the other form is used.
//!
//! *An unconfirmed connection*: until the VM has sent something beyond its SYN-ACK it may have
//! none, because its listener's accept queue is full or because it keeps no state (SYN cookies).
//! Data from ISS + 1 with the handshake's ACK complete the handshake; any other segment may destroy
//! it. So only such data are sent, after 200, 400, 800 ms and then every second, by the clock: the
//! VM waits for its application, not for its CPU.
//!
//! *Giving up* ([`Reason`]). A VM that answers with a closed window is probed for ever. A VM that
//! has room, answers, and refuses the same bytes repeatedly is given up; so is one that has sent
//! nothing for [`SILENT_NS`] of its run time (R2 of RFC 9293, section 3.8.3). Where no frame gets
//! to the VM, it had nothing to answer: then it is given up after [`UNTAKEN_NS`].

use vsnoop_flow::types::seq;

use crate::repeats::Repeats;
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
/// A connection is given up after this number of refusals in a row, ...
const REFUSALS: u32 = 16;
/// ... over at least this run time of the VM, ns.
const REFUSED_NS: u64 = 100_000_000_000;
/// A VM without any packet for so much run time is given up.
const SILENT_NS: u64 = 100_000_000_000;
/// The same where its device took nothing: a ring that nothing reads, or a rule at the tap's egress
/// that drops what is held. As long as Linux sends again without an answer (tcp_retries2).
const UNTAKEN_NS: u64 = 924_000_000_000;
/// An unconfirmed connection is given up after this time by the clock, and `SILENT_NS` of run time.
const UNCONFIRMED_NS: u64 = 130_000_000_000;
/// Times of the first attempt to confirm a connection and the longest pause between two, by the
/// clock.
const CONFIRM_NS: u64 = 200_000_000;
const CONFIRM_MOST_NS: u64 = 1_000_000_000;
/// Duplicate ACKs that prove a loss (RFC 5681).
const DUPLICATE_ACKS: u32 = 3;
/// Largest payload of a frame: an IPv6 packet has 65535 bytes with the TCP header and its options.
const LARGEST: u32 = 65_535 - 60;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes that the VM gets for the first time.
    Handover,
    /// A retransmission.
    Resend,
    /// A pure ACK with the sender's latest ACK and window.
    Ack,
    /// A window probe: with the next byte, or a keep-alive probe without data.
    Probe,
}

/// Why a connection is given up: enum reset_reason of flow/types/abi.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The VM has room, answers, and refuses the same bytes.
    Refused,
    /// The VM ran for `SILENT_NS` and sent nothing, or for `UNTAKEN_NS` and took nothing.
    Silent,
}

/// A segment, or a super-packet, for the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldFrame {
    /// SEQ of the first byte.
    pub seq: seq,
    /// Payload, bytes.
    pub len: u32,
    /// With the sender's FIN.
    pub fin: bool,
    /// Its kind.
    pub kind: Kind,
}

impl HoldFrame {
    /// SEQ after the last byte, or after the FIN.
    pub fn end(&self) -> seq {
        self.seq.add(self.len + u32::from(self.fin))
    }
}

/// Recovery from a loss.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    /// Recovery ends when the VM has acknowledged this.
    point: seq,
    /// Holes below this have been sent again.
    next: seq,
    /// A SACK block beyond this was sent after the retransmissions.
    proof: seq,
    /// Without SACK blocks: the first frame only, and the next with each partial ACK.
    blind: bool,
}

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
    /// Timeouts in a row.
    timeouts: u32,
    /// Had the VM room in its window when its last segment came?
    had_room: bool,
    recovery: Option<Recovery>,
    carried: (seq, u16),
    probe: WindowProbe,
    silence: Silence,
    refusal: Refusal,
    confirmation: Option<Confirmation>,
    /// Widest window of the VM so far, bytes.
    widest: u32,
    /// A portion is being handed over.
    handing_over: bool,
    /// Since when less than a portion waits, ns of run time.
    waits_ns: Option<u64>,
    given_up: Option<Reason>,
    /// Reports of a smaller path MTU that were seen.
    too_big: u32,
    repeats: Repeats,
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

/// Silence of the VM.
#[derive(Clone, Debug)]
struct Silence {
    /// When it began, ns of run time.
    since_ns: u64,
    /// Frames sent since that the VM should have answered.
    frames: u32,
    /// The device has not taken a frame since.
    refused: bool,
}

impl Silence {
    fn since(run_time_ns: u64) -> Self {
        Self { since_ns: run_time_ns, frames: 0, refused: false }
    }

    fn is_over(&self, run_time_ns: u64) -> bool {
        let lasted_ns = run_time_ns.saturating_sub(self.since_ns);
        (lasted_ns > SILENT_NS && self.frames > 1) || (lasted_ns > UNTAKEN_NS && self.refused)
    }
}

/// Refusals: the VM does not accept bytes for which it has room.
#[derive(Clone, Debug, Default)]
struct Refusal {
    count: u32,
    since_ns: u64,
    /// `vm_acks` when the byte at VM_SEQ was last sent again.
    resent: Option<u32>,
}

/// Attempts to complete the VM's handshake, by the clock.
#[derive(Clone, Debug)]
struct Confirmation {
    since_ns: u64,
    run_time_ns: u64,
    next_ns: u64,
    pause_ns: u64,
    /// An attempt is under way, up to here.
    until: Option<seq>,
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
            timeouts: 0,
            had_room: view.has_room(),
            recovery: None,
            carried: view.sender,
            probe: WindowProbe::default(),
            silence: Silence::since(time.run_time_ns),
            refusal: Refusal::default(),
            confirmation: None,
            widest: 0,
            handing_over: false,
            waits_ns: None,
            given_up: None,
            too_big: view.too_big,
            repeats: Repeats::default(),
        }
    }

    /// A connection that an earlier engine served. It is not known how long the VM has been silent,
    /// so its timeout has expired: engines could otherwise be replaced faster than it expires.
    pub fn resumed(view: &View, time: Time) -> Self {
        let mut flow = Self::new(view, time);
        if view.unconfirmed {
            flow.confirmation =
                Some(Confirmation { next_ns: time.now_ns, ..Confirmation::new(time) });
        } else if !view.is_done() {
            flow.solicit(view);
        }
        flow
    }

    /// Reason to reset the connection: the VM does not answer, or refuses bytes for which it has
    /// room.
    pub fn given_up(&self) -> Option<Reason> {
        self.given_up
    }

    /// The next frame to send now, if there is one.
    pub fn poll(&mut self, view: &View, time: Time) -> Option<HoldFrame> {
        if view.unconfirmed {
            return self.confirm(view, time);
        }
        if self.confirmation.take().is_some() {
            self.begin_anew(view, time);
        }
        self.look(view, time.run_time_ns);
        if self.given_up.is_some() {
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
            return Deadline { now_ns: Some(confirmation.next_ns), run_time_ns: None };
        }
        let timeout = self.since_ns + self.patience();
        let portion = self.waits_ns.map(|since| since + PATIENCE_NS);
        Deadline { now_ns: None, run_time_ns: Some(portion.map_or(timeout, |at| at.min(timeout))) }
    }

    /// Notes that the device has taken a frame.
    pub fn sent(&mut self, view: &View, frame: &HoldFrame) {
        self.carried = view.sender;
        self.silence.frames += 1;
        self.repeats.sent(view, frame);
        match frame.kind {
            Kind::Resend => {
                if frame.seq == view.vm_seq {
                    self.refusal.resent.get_or_insert(view.vm_acks);
                }
                if let Some(recovery) = &mut self.recovery {
                    recovery.next = frame.end();
                }
                if let Some(confirmation) = &mut self.confirmation {
                    confirmation.until = None;
                }
            }
            Kind::Probe => (self.probe.due, self.probe.sent_at) = (false, Some(view.vm_acks)),
            Kind::Handover | Kind::Ack => {}
        }
    }

    /// Notes that the device has not taken a frame.
    pub fn refused(&mut self) {
        self.silence.refused = true;
    }

    /// An attempt to complete the handshake: data from VM_SEQ on, and no more than was handed over
    /// before.
    fn confirm(&mut self, view: &View, time: Time) -> Option<HoldFrame> {
        let first = self.confirmation.get_or_insert_with(|| Confirmation::new(time));
        let is_over = time.now_ns.saturating_sub(first.since_ns) >= UNCONFIRMED_NS
            && time.run_time_ns.saturating_sub(first.run_time_ns) >= SILENT_NS;
        if is_over {
            self.given_up = Some(Reason::Silent);
            return None;
        }
        let is_due = time.now_ns >= first.next_ns;
        if is_due {
            first.next_ns = time.now_ns + first.pause_ns;
            first.pause_ns = (first.pause_ns * 2).min(CONFIRM_MOST_NS);
        }
        if view.handed == view.vm_seq {
            return handover(view);
        }
        if is_due {
            first.until = Some(view.handed);
        }
        let until = first.until?;
        let frame = self.again(view, view.vm_seq, until);
        if frame.is_none() {
            self.confirmation.as_mut()?.until = None;
        }
        frame
    }

    /// The VM has just confirmed the connection.
    fn begin_anew(&mut self, view: &View, time: Time) {
        self.silence = Silence::since(time.run_time_ns);
        self.refusal = Refusal::default();
        (self.vm_acks, self.since_ns) = (view.vm_acks, time.run_time_ns);
    }

    fn look(&mut self, view: &View, run_time_ns: u64) {
        if view.vm_acks != self.vm_acks {
            self.vm_acks = view.vm_acks;
            self.silence = Silence::since(run_time_ns);
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
        let advanced = view.vm_seq.diff(self.vm_seq) > 0;
        if advanced {
            let bytes = view.vm_seq.diff(self.vm_seq) as u32;
            self.repeats.acknowledged(view, bytes);
            self.vm_seq = view.vm_seq;
            self.since_ns = run_time_ns;
            (self.timeouts, self.new_duplicates) = (0, 0);
            self.probe.due = false;
            self.refusal = Refusal::default();
        }
        let is_past = |recovery: &Recovery| view.vm_seq.diff(recovery.point) >= 0;
        if self.recovery.as_ref().is_some_and(is_past) {
            self.recovery = None;
        }
        if let Some(recovery) = &mut self.recovery {
            if advanced && recovery.blind {
                recovery.next = view.vm_seq;
            }
            let newest = view.blocks().last().map(|block| block.1);
            if newest.is_some_and(|newest| newest.diff(recovery.proof) > 0) {
                (recovery.next, recovery.proof) = (view.vm_seq, view.handed);
            }
        } else if self.new_duplicates > 0 && has_lost(view, self.new_duplicates) {
            self.recover(view, view.blocks().is_empty());
        }
        // The VM has dropped all that was larger.
        if view.too_big != self.too_big {
            self.too_big = view.too_big;
            self.recover(view, true);
        }
        self.time_out(view, run_time_ns);
    }

    fn recover(&mut self, view: &View, blind: bool) {
        let (next, point) = (view.vm_seq, view.handed);
        self.recovery = Some(Recovery { point, next, proof: point, blind });
        self.new_duplicates = 0;
    }

    fn patience(&self) -> u64 {
        TIMEOUT_NS << self.timeouts.min(BACK_OFF)
    }

    fn time_out(&mut self, view: &View, run_time_ns: u64) {
        if view.is_done() {
            self.since_ns = run_time_ns;
            self.silence = Silence::since(run_time_ns);
            return;
        }
        if self.silence.is_over(run_time_ns) {
            self.given_up = Some(Reason::Silent);
        }
        if run_time_ns.saturating_sub(self.since_ns) < self.patience() {
            return;
        }
        self.since_ns = run_time_ns;
        self.timeouts += 1;
        self.judge(view, run_time_ns);
        self.solicit(view);
    }

    /// Counts a refusal if the VM has answered, but not accepted the byte at VM_SEQ, since that was
    /// sent again.
    fn judge(&mut self, view: &View, run_time_ns: u64) {
        let refusal = &mut self.refusal;
        if refusal.resent.is_none_or(|before| before == view.vm_acks) || !view.has_room() {
            return;
        }
        refusal.resent = None;
        if refusal.count == 0 {
            refusal.since_ns = run_time_ns;
        }
        refusal.count += 1;
        let lasted_ns = run_time_ns.saturating_sub(refusal.since_ns);
        if refusal.count >= REFUSALS && lasted_ns > REFUSED_NS {
            self.given_up = Some(Reason::Refused);
        }
    }

    /// After a timeout: a retransmission or a probe, to make the VM answer.
    fn solicit(&mut self, view: &View) {
        if view.handed.diff(view.vm_seq) > 0 {
            self.recover(view, true);
        }
        if self.probe.sent_at == Some(view.vm_acks) {
            self.probe.keep_alive = !self.probe.keep_alive;
        }
        // Beside a retransmission, too: the VM may have shrunk its window since.
        self.probe.due = view.right_edge.diff(view.vm_seq) <= 0 || view.is_all_handed();
    }

    /// Retransmission of the next hole, within the VM's window.
    fn resend(&self, view: &View) -> Option<HoldFrame> {
        let recovery = self.recovery.filter(|_| view.is_kept())?;
        let mut from = recovery.next.max(view.vm_seq);
        let blocks = view.blocks();
        let mut until = if recovery.blind {
            if recovery.next.diff(view.vm_seq) > 0 {
                return None;
            }
            recovery.point
        } else {
            blocks.last()?.0
        };
        for (left, right) in blocks {
            if from.diff(*left) < 0 {
                until = until.min(*left);
                break;
            }
            from = from.max(*right);
        }
        self.repeats.cut(view, self.again(view, from, until)?)
    }

    /// Retransmission of the part of these bytes that the VM was handed, within its window.
    fn again(&self, view: &View, from: seq, until: seq) -> Option<HoldFrame> {
        // A FIN is sent with the last byte, or alone.
        let fin = view.fin && until.diff(view.tail) > 0;
        let until = until.min(view.tail).min(view.right_edge.max(view.vm_seq));
        let bytes = until.diff(from).max(0) as u32;
        let len = bytes.min(largest(view));
        let fin = fin && from.add(len) == view.tail && from.diff(view.tail) <= 0;
        (len > 0 || fin).then_some(HoldFrame { seq: from, len, fin, kind: Kind::Resend })
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
        let is_unsent = view.sender != self.carried && !view.is_all_handed();
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

impl Confirmation {
    fn new(time: Time) -> Self {
        Self {
            since_ns: time.now_ns,
            run_time_ns: time.run_time_ns,
            next_ns: time.now_ns + CONFIRM_NS,
            pause_ns: 2 * CONFIRM_NS,
            until: None,
        }
    }
}

/// Held bytes that fit into the VM's window.
fn handover(view: &View) -> Option<HoldFrame> {
    let from = view.handed;
    if view.is_all_handed() || from.diff(view.first) < 0 {
        return None;
    }
    let limit = view.tail.min(view.right_edge);
    let len = (limit.diff(from).max(0) as u32).min(largest(view));
    let end = from.add(len);
    let is_last = end == view.tail;
    // Less than a segment is sent only at the end, or if the VM has nothing to acknowledge that
    // would open its window further (RFC 9293, section 3.8.6.2.1).
    if len < view.mss && !is_last && (len == 0 || from.diff(view.vm_seq) > 0) {
        return None;
    }
    // A FIN needs no room in the window.
    let fin = view.fin && is_last;
    (len > 0 || fin).then_some(HoldFrame { seq: from, len, fin, kind: Kind::Handover })
}

/// Do duplicate ACKs or SACK blocks prove a loss?
fn has_lost(view: &View, duplicates: u32) -> bool {
    let reported = view.blocks().last().map_or(0, |block| block.1.diff(view.vm_seq));
    view.handed.diff(view.vm_seq) > 0
        && (duplicates >= DUPLICATE_ACKS || reported >= DUPLICATE_ACKS as i32 * view.mss as i32)
}

/// Payload of the largest frame: whole segments. The stack splits a super-packet that the tap does
/// not take, and does not tell whether the ring had room for all of its segments.
fn largest(view: &View) -> u32 {
    let segments = if view.super_packets { LARGEST / view.mss } else { 1 };
    segments.max(1) * view.mss
}
