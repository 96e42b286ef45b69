//! One connection: what is to be sent to the VM next.
//!
//! In this order: what it lost, what is held and fits into its window, a bare ACK when the sender
//! has told something that no frame carries, a probe of a window that is closed.
//!
//! While the VM has something to acknowledge, what is held is handed over in large portions: when
//! half of the widest window is open, or [`PATIENCE_NS`] have brought no more (RFC 9293, section
//! 3.8.6.2.1). One that has acknowledged everything never waits: if a segment fits it is handed
//! over.
//!
//! *Loss* shows in two ways. The VM repeats its ACK, three times or with SACK blocks of three
//! segments: then the holes below the highest block are sent again, once; and again only when a
//! block shows that something sent after them has arrived (RFC 6675 and RFC 8985 in spirit; between
//! host and VM nothing is reordered). Without SACK, one frame is sent again, and the next with each
//! ACK that falls short (RFC 6582). Or the VM had [`TIMEOUT_NS`] to answer and did not; then the
//! first frame is sent again, and the time doubles (RFC 6298).
//!
//! *A closed window* is probed (RFC 9293, section 3.8.6.1) with one byte of what is held, which
//! some stacks alone answer, or with an old segment without data (a keep-alive, section 3.8.4).
//! Each time that one form stays unanswered the other one is used.
//!
//! *An unconfirmed connection*: until the VM has sent something beyond its SYN-ACK, it may have
//! none: its listener's queue is full, or it keeps no state at all (SYN cookies). Then data from
//! ISS + 1 with the handshake's ACK completes the handshake, and anything else may destroy it. So
//! nothing but that is sent, after 200, 400, 800 ms and then every second, by the clock: it is the
//! application that the VM waits for.
//!
//! *Giving up* ([`Reason`]). A VM that answers, but whose window is closed, is probed for ever. One
//! that has room, answers, and does not take the same bytes again and again never will; and one
//! that has sent nothing for [`SILENT_NS`] of its own time is dead (R2 of RFC 9293, section 3.8.3).

use vsnoop_flow::types::seq;

use crate::time::{Deadline, Time};
use crate::view::View;

/// The VM's own time to answer: more than any delayed ACK (RFC 9293, section 3.8.6.3, and Linux's
/// 40 ms).
pub const TIMEOUT_NS: u64 = 200_000_000;
/// The VM's own time to open its window further before less than a portion is handed over.
pub const PATIENCE_NS: u64 = 40_000_000;
/// Of the widest window, what makes a portion.
const PORTION: u32 = 2;
/// The time doubles this often.
const BACK_OFF: u32 = 4;
/// Refusals in a row, ...
const REFUSALS: u32 = 16;
/// ... and the VM's own time that they take at least, after which it is given up.
const REFUSED_NS: u64 = 100_000_000_000;
/// The VM's own time without any packet of it, after which it is given up.
const SILENT_NS: u64 = 100_000_000_000;
/// Of a connection that was never confirmed, by the clock.
const UNCONFIRMED_NS: u64 = 130_000_000_000;
/// The first try at confirming it, and the longest pause between two, by the clock.
const CONFIRM_NS: u64 = 200_000_000;
const CONFIRM_MOST_NS: u64 = 1_000_000_000;
/// Repeated ACKs that prove a loss (RFC 5681).
const REPEATED: u32 = 3;
/// Payload of a frame at most: an IPv6 packet has 65535 bytes with the TCP header and its options.
const LARGEST: u32 = 65_535 - 60;

/// Why a frame is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// For the first time.
    Release,
    /// Again.
    Resend,
    /// It only carries what the sender has acknowledged.
    Ack,
    /// It asks the VM for its window: with the next byte, or with an old segment without data.
    Probe,
}

/// Why a connection is given up: enum reset_reason of flow/types/abi.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The VM has room, answers, and refuses the same bytes.
    Refused,
    /// The VM has run for long and sent nothing.
    Silent,
}

/// A segment, or a super-packet, for the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Of the first byte.
    pub seq: seq,
    /// Payload, bytes.
    pub len: u32,
    /// With the sender's FIN.
    pub fin: bool,
    /// Why.
    pub kind: Kind,
}

impl Frame {
    /// Behind the last byte, or the FIN.
    pub fn end(&self) -> seq {
        self.seq.add(self.len + u32::from(self.fin))
    }
}

/// Sending again what was lost.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    /// It is over when the VM has acknowledged this.
    point: seq,
    /// Holes below have been sent again.
    next: seq,
    /// A block beyond this was sent after them.
    proof: seq,
    /// Nothing is known of holes: the first frame only, and the next with each ACK.
    blind: bool,
}

/// What is remembered of a connection from one look to the next; only how it goes on best.
#[derive(Clone, Debug)]
pub struct Flow {
    vm_seq: seq,
    repeated: u32,
    repeats: u32,
    heard: u32,
    /// The timer runs since then.
    since_ns: u64,
    /// In a row.
    timeouts: u32,
    /// As of when the VM was last heard of.
    had_room: bool,
    recovery: Option<Recovery>,
    carried: (seq, u16),
    probe: Probe,
    silence: Silence,
    refusal: Refusal,
    confirmation: Option<Confirmation>,
    /// The widest window of the VM, bytes.
    widest: u32,
    /// A portion is being handed over.
    releasing: bool,
    /// Since when less than a portion waits, in the VM's own time.
    waits_ns: Option<u64>,
    given_up: Option<Reason>,
}

/// A probe for the VM's window.
#[derive(Clone, Debug, Default)]
struct Probe {
    due: bool,
    /// Without data; else with one byte, if there is one.
    keep_alive: bool,
    /// `heard` when the last one was sent.
    sent_at: Option<u32>,
}

/// The VM was not heard of.
#[derive(Clone, Debug)]
struct Silence {
    /// In the VM's own time.
    since_ns: u64,
    /// Frames that it should have answered.
    frames: u32,
}

/// The VM does not take what it has room for.
#[derive(Clone, Debug, Default)]
struct Refusal {
    count: u32,
    since_ns: u64,
    /// `heard` when the next byte was last sent again.
    resent: Option<u32>,
}

/// Tries at completing the VM's handshake, by the clock.
#[derive(Clone, Debug)]
struct Confirmation {
    since_ns: u64,
    run_time_ns: u64,
    next_ns: u64,
    pause_ns: u64,
    /// A try is under way, up to here.
    until: Option<seq>,
}

impl Flow {
    /// A connection that was never looked at.
    pub fn new(view: &View, time: Time) -> Self {
        Self {
            vm_seq: view.vm_seq,
            // Reports of before are unknown: one that still stands is repeated, or times out.
            repeated: view.repeated,
            repeats: 0,
            heard: view.heard,
            since_ns: time.run_time_ns,
            timeouts: 0,
            had_room: view.has_room(),
            recovery: None,
            carried: view.sender,
            probe: Probe::default(),
            silence: Silence { since_ns: time.run_time_ns, frames: 0 },
            refusal: Refusal::default(),
            confirmation: None,
            widest: 0,
            releasing: false,
            waits_ns: None,
            given_up: None,
        }
    }

    /// One that another engine has looked after. How long the VM has been silent is not known, so
    /// that its time is over at once: engines may come and go faster than it would be.
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

    /// The VM's end does not answer any more, or not take what it has room for, though it had every
    /// chance: the connection is to be reset.
    pub fn given_up(&self) -> Option<Reason> {
        self.given_up
    }

    /// The next frame, if there is one to be sent now.
    pub fn poll(&mut self, view: &View, time: Time) -> Option<Frame> {
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
            .or_else(|| self.release(view, time.run_time_ns))
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

    /// The device has taken a frame.
    pub fn sent(&mut self, view: &View, frame: &Frame) {
        self.carried = view.sender;
        self.silence.frames += 1;
        match frame.kind {
            Kind::Resend => {
                if frame.seq == view.vm_seq {
                    self.refusal.resent.get_or_insert(view.heard);
                }
                if let Some(recovery) = &mut self.recovery {
                    recovery.next = frame.end();
                }
                if let Some(confirmation) = &mut self.confirmation {
                    confirmation.until = None;
                }
            }
            Kind::Probe => (self.probe.due, self.probe.sent_at) = (false, Some(view.heard)),
            Kind::Release | Kind::Ack => {}
        }
    }

    /// Data from where the VM's own handshake ends, and no more than it was handed before.
    fn confirm(&mut self, view: &View, time: Time) -> Option<Frame> {
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
            return release(view);
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

    /// The VM has just shown that it has the connection.
    fn begin_anew(&mut self, view: &View, time: Time) {
        self.silence = Silence { since_ns: time.run_time_ns, frames: 0 };
        self.refusal = Refusal::default();
        (self.heard, self.since_ns) = (view.heard, time.run_time_ns);
    }

    fn look(&mut self, view: &View, run_time_ns: u64) {
        if view.heard != self.heard {
            self.heard = view.heard;
            self.silence = Silence { since_ns: run_time_ns, frames: 0 };
            let has_room = view.has_room();
            // It lives; which is an excuse, unless it has had room for long.
            if !(self.had_room && has_room) {
                self.timeouts = 0;
                self.refusal = Refusal::default();
            }
            self.had_room = has_room;
        }
        self.repeats += view.repeated.wrapping_sub(self.repeated);
        self.repeated = view.repeated;
        let advanced = view.vm_seq.diff(self.vm_seq) > 0;
        if advanced {
            self.vm_seq = view.vm_seq;
            self.since_ns = run_time_ns;
            (self.timeouts, self.repeats) = (0, 0);
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
        } else if self.repeats > 0 && has_lost(view, self.repeats) {
            self.recover(view, view.blocks().is_empty());
        }
        self.time_out(view, run_time_ns);
    }

    fn recover(&mut self, view: &View, blind: bool) {
        let (next, point) = (view.vm_seq, view.handed);
        self.recovery = Some(Recovery { point, next, proof: point, blind });
        self.repeats = 0;
    }

    fn patience(&self) -> u64 {
        TIMEOUT_NS << self.timeouts.min(BACK_OFF)
    }

    fn time_out(&mut self, view: &View, run_time_ns: u64) {
        if view.is_done() {
            self.since_ns = run_time_ns;
            self.silence = Silence { since_ns: run_time_ns, frames: 0 };
            return;
        }
        let silent_ns = run_time_ns.saturating_sub(self.silence.since_ns);
        if silent_ns > SILENT_NS && self.silence.frames > 1 {
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

    /// Was the next byte refused since it was sent again?
    fn judge(&mut self, view: &View, run_time_ns: u64) {
        let refusal = &mut self.refusal;
        if refusal.resent.is_none_or(|before| before == view.heard) || !view.has_room() {
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

    /// Resends or probes: whatever makes the VM answer.
    fn solicit(&mut self, view: &View) {
        if view.handed.diff(view.vm_seq) > 0 {
            self.recover(view, true);
        }
        if self.probe.sent_at == Some(view.heard) {
            self.probe.keep_alive = !self.probe.keep_alive;
        }
        // Also beside a resend: the VM may have taken its window back since.
        self.probe.due = view.right_edge.diff(view.vm_seq) <= 0 || view.is_drained();
    }

    /// The next hole, within the VM's window.
    fn resend(&self, view: &View) -> Option<Frame> {
        let recovery = self.recovery.filter(|_| view.is_kept())?;
        let mut from = later(recovery.next, view.vm_seq);
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
                until = earlier(until, *left);
                break;
            }
            from = later(from, *right);
        }
        self.again(view, from, until)
    }

    /// What the VM was handed of these bytes, within its window.
    fn again(&self, view: &View, from: seq, until: seq) -> Option<Frame> {
        // The FIN goes with the last byte, or alone.
        let fin = view.fin && until.diff(view.tail) > 0;
        let until = earlier(earlier(until, view.tail), later(view.right_edge, view.vm_seq));
        let bytes = until.diff(from).max(0) as u32;
        let len = bytes.min(largest(view));
        let fin = fin && from.add(len) == view.tail && from.diff(view.tail) <= 0;
        (len > 0 || fin).then_some(Frame { seq: from, len, fin, kind: Kind::Resend })
    }

    fn release(&mut self, view: &View, run_time_ns: u64) -> Option<Frame> {
        self.releasing &= view.right_edge.diff(view.handed) > 0;
        if !self.releasing && !self.is_portion(view, run_time_ns) {
            return None;
        }
        self.waits_ns = None;
        let frame = release(view);
        self.releasing = frame.is_some();
        frame
    }

    /// Is enough of the window open?
    fn is_portion(&mut self, view: &View, run_time_ns: u64) -> bool {
        let room = |from: seq, to: seq| to.diff(from).max(0) as u32;
        self.widest = self.widest.max(room(view.vm_seq, view.right_edge));
        let usable = room(view.handed, view.right_edge);
        if usable >= self.widest / PORTION || usable >= room(view.handed, view.end()) {
            return true;
        }
        // Else nothing may come that would bring more.
        if view.handed == view.vm_seq && usable >= view.mss {
            return true;
        }
        let since = *self.waits_ns.get_or_insert(run_time_ns);
        if run_time_ns.saturating_sub(since) < PATIENCE_NS {
            return false;
        }
        // It may never open so far again.
        self.widest -= self.widest / 8;
        true
    }

    fn acknowledge(&self, view: &View) -> Option<Frame> {
        let is_news = view.sender != self.carried && !view.is_drained();
        is_news.then_some(Frame { seq: view.handed, len: 0, fin: false, kind: Kind::Ack })
    }

    fn probe(&self, view: &View) -> Option<Frame> {
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
        Some(Frame { seq, len, fin: false, kind: Kind::Probe })
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

/// What is held and fits into the VM's window.
fn release(view: &View) -> Option<Frame> {
    let from = view.handed;
    if view.is_drained() || from.diff(view.first) < 0 {
        return None;
    }
    let limit = earlier(view.tail, view.right_edge);
    let len = (limit.diff(from).max(0) as u32).min(largest(view));
    let end = from.add(len);
    let is_last = end == view.tail;
    // Less than a segment is sent only when it is the last of it, or the VM has nothing to answer
    // that would open its window further (RFC 9293, section 3.8.6.2.1).
    if len < view.mss && !is_last && (len == 0 || from.diff(view.vm_seq) > 0) {
        return None;
    }
    // A FIN needs no room in the window.
    let fin = view.fin && is_last;
    (len > 0 || fin).then_some(Frame { seq: from, len, fin, kind: Kind::Release })
}

/// Do the VM's reports prove a loss?
fn has_lost(view: &View, repeats: u32) -> bool {
    let reported = view.blocks().last().map_or(0, |block| block.1.diff(view.vm_seq));
    view.handed.diff(view.vm_seq) > 0
        && (repeats >= REPEATED || reported >= REPEATED as i32 * view.mss as i32)
}

/// Whole segments.
fn largest(view: &View) -> u32 {
    (LARGEST / view.mss).max(1) * view.mss
}

fn later(a: seq, b: seq) -> seq {
    if a.diff(b) >= 0 { a } else { b }
}

fn earlier(a: seq, b: seq) -> seq {
    if a.diff(b) <= 0 { a } else { b }
}
