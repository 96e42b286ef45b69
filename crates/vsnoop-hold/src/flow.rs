//! One connection: what is to be sent to the VM next.
//!
//! In this order: what it lost, what is held and fits into its window, a bare ACK when the sender has
//! told something that no frame carries, a probe of a window that is closed.
//!
//! What is held is handed over in large portions: when half of the widest window is open, or [`PATIENCE_NS`]
//! have brought no more (RFC 9293, section 3.8.6.2.1). A VM acknowledges a portion before its application
//! has read it, with a window of what is left beside. Filling that at once, and half of the rest again, would
//! keep the application from ever sleeping, and its scheduler treats it as one that only computes: it has its
//! turn late, and transfers last half as long again.
//!
//! *Loss* shows in two ways. The VM repeats its ACK, three times or with SACK blocks of three segments:
//! then the holes below the highest block are sent again, once; and again only when a block shows that
//! something sent after them has arrived (RFC 6675 and RFC 8985 in spirit; between host and VM nothing is
//! reordered). Without SACK, one frame is sent again, and the next with each ACK that falls short (RFC 6582). Or the
//! VM had [`TIMEOUT_NS`] to answer and did not; then the first frame is sent again, and the time doubles
//! (RFC 6298).
//!
//! *Giving up.* A VM that answers, but whose window is closed, is asked for ever. One that does not answer, or
//! has room and does not take what it is sent again and again, never will.

use vsnoop_flow::types::seq;

use crate::view::View;

/// The VM's own time to answer: more than any delayed ACK (RFC 9293, section 3.8.6.3, and Linux's 40 ms).
pub const TIMEOUT_NS: u64 = 200_000_000;
/// The VM's own time to open its window further before less than a portion is handed over.
pub const PATIENCE_NS: u64 = 40_000_000;
/// Of the widest window, what makes a portion.
const PORTION: u32 = 2;
/// The time doubles this often.
const BACK_OFF: u32 = 4;
/// Timeouts in a row after which the VM's end is taken to be dead.
const TRIES: u32 = 15;
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
    /// It asks the VM for its window: the last byte that it has acknowledged, without that byte.
    Probe,
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
#[derive(Debug)]
pub struct Flow {
    vm_seq: seq,
    repeated: u32,
    repeats: u32,
    heard: u32,
    since_ns: u64,
    /// In a row: without a sign of life, or in spite of room.
    timeouts: u32,
    /// As of when the VM was last heard of.
    had_room: bool,
    recovery: Option<Recovery>,
    carried: (seq, u16),
    probe_due: bool,
    /// The widest window of the VM, bytes.
    widest: u32,
    /// A portion is being handed over.
    releasing: bool,
    /// Since when less than a portion waits, in the VM's own time.
    waits_ns: Option<u64>,
}

impl Flow {
    /// A connection that was never looked at. `ran_ns`: how long the VM has run.
    pub fn new(view: &View, ran_ns: u64) -> Self {
        Self {
            vm_seq: view.vm_seq,
            // Reports of before are unknown: one that still stands is repeated, or times out.
            repeated: view.repeated,
            repeats: 0,
            heard: view.heard,
            since_ns: ran_ns,
            timeouts: 0,
            had_room: view.has_room(),
            recovery: None,
            carried: view.sender,
            probe_due: false,
            widest: 0,
            releasing: false,
            waits_ns: None,
        }
    }

    /// One that another engine has looked after. How long the VM has been silent is not known, so
    /// that its time is over at once: engines may come and go faster than it would be.
    pub fn resumed(view: &View, ran_ns: u64) -> Self {
        let mut flow = Self::new(view, ran_ns);
        if !view.is_done() {
            flow.ask(view);
        }
        flow
    }

    /// The VM's end does not answer any more, or not take what it has room for, though it had every chance:
    /// the connection is to be reset.
    pub fn is_dead(&self) -> bool {
        self.timeouts > TRIES
    }

    /// The next frame, if there is one to be sent now.
    pub fn poll(&mut self, view: &View, ran_ns: u64) -> Option<Frame> {
        self.look(view, ran_ns);
        self.resend(view)
            .or_else(|| self.release(view, ran_ns))
            .or_else(|| self.acknowledge(view))
            .or_else(|| self.probe(view))
    }

    /// The device has taken a frame.
    pub fn sent(&mut self, view: &View, frame: &Frame) {
        self.carried = view.sender;
        match frame.kind {
            Kind::Resend => {
                if let Some(recovery) = &mut self.recovery {
                    recovery.next = frame.end();
                }
            }
            Kind::Probe => self.probe_due = false,
            Kind::Release | Kind::Ack => {}
        }
    }

    fn look(&mut self, view: &View, ran_ns: u64) {
        if view.heard != self.heard {
            self.heard = view.heard;
            let has_room = view.has_room();
            // It lives; which is an excuse, unless it has had room for long.
            if !(self.had_room && has_room) {
                self.timeouts = 0;
            }
            self.had_room = has_room;
        }
        self.repeats += view.repeated.wrapping_sub(self.repeated);
        self.repeated = view.repeated;
        let advanced = view.vm_seq.diff(self.vm_seq) > 0;
        if advanced {
            self.vm_seq = view.vm_seq;
            self.since_ns = ran_ns;
            (self.timeouts, self.repeats) = (0, 0);
            self.probe_due = false;
        }
        let is_over = |recovery: &Recovery| view.vm_seq.diff(recovery.point) >= 0;
        if self.recovery.as_ref().is_some_and(is_over) {
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
        self.time_out(view, ran_ns);
    }

    fn recover(&mut self, view: &View, blind: bool) {
        let (next, point) = (view.vm_seq, view.handed);
        self.recovery = Some(Recovery { point, next, proof: point, blind });
        self.repeats = 0;
    }

    fn time_out(&mut self, view: &View, ran_ns: u64) {
        if view.is_done() {
            self.since_ns = ran_ns;
            return;
        }
        let patience = TIMEOUT_NS << self.timeouts.min(BACK_OFF);
        if ran_ns.saturating_sub(self.since_ns) < patience {
            return;
        }
        self.since_ns = ran_ns;
        self.timeouts += 1;
        self.ask(view);
    }

    /// Whatever makes the VM answer.
    fn ask(&mut self, view: &View) {
        if view.handed.diff(view.vm_seq) > 0 {
            self.recover(view, true);
        }
        // Also beside a resend: the VM may have taken its window back since.
        self.probe_due = view.right_edge.diff(view.vm_seq) <= 0 || view.is_drained();
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
        // The FIN goes with the last byte, or alone.
        let fin = view.fin && until.diff(view.tail) > 0;
        until = earlier(earlier(until, view.tail), later(view.right_edge, view.vm_seq));
        let bytes = until.diff(from).max(0) as u32;
        let len = bytes.min(largest(view));
        let fin = fin && from.add(len) == view.tail && from.diff(view.tail) <= 0;
        (len > 0 || fin).then_some(Frame { seq: from, len, fin, kind: Kind::Resend })
    }

    fn release(&mut self, view: &View, ran_ns: u64) -> Option<Frame> {
        self.releasing &= view.right_edge.diff(view.handed) > 0;
        if !self.releasing && !self.is_portion(view, ran_ns) {
            return None;
        }
        self.waits_ns = None;
        let frame = release(view);
        self.releasing = frame.is_some();
        frame
    }

    /// Is enough of the window open?
    fn is_portion(&mut self, view: &View, ran_ns: u64) -> bool {
        let room = |from: seq, to: seq| to.diff(from).max(0) as u32;
        self.widest = self.widest.max(room(view.vm_seq, view.right_edge));
        let usable = room(view.handed, view.right_edge);
        if usable >= self.widest / PORTION || usable >= room(view.handed, view.end()) {
            return true;
        }
        let since = *self.waits_ns.get_or_insert(ran_ns);
        if ran_ns.saturating_sub(since) < PATIENCE_NS {
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
        let seq = view.vm_seq.add(u32::MAX);
        self.probe_due.then_some(Frame { seq, len: 0, fin: false, kind: Kind::Probe })
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
    // Less than a segment is sent only when it is the last of it, or the VM has nothing to answer that
    // would open its window further (RFC 9293, section 3.8.6.2.1).
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
