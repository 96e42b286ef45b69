//! Bound on what the engine repeats.
//!
//! Between host and VM is a ring, which loses nothing, so that a healthy VM needs no congestion
//! window. Behind a VM that forwards may be a slower link. If more than [`PERCENT`] per cent of the
//! bytes are repeats, in two rounds in a row, what the engine has outstanding is halved (RFC 5681,
//! section 3.1), and again in each such round that follows. A round ends when the VM has
//! acknowledged what was outstanding at its start, or when as much as is outstanding was repeated:
//! where everything is lost the VM acknowledges nothing. The bound grows again by an eighth of what
//! the VM acknowledges.
//!
//! A host one hop behind the VM may be a container inside it, or on a path, which the engine knows
//! nothing about. The first such round of its connection tells: what is outstanding is halved at
//! once, and the connection is left to the VM (flow/far_end.h).

use vsnoop_flow::types::seq;

use crate::hold_frame::{HoldFrame, Kind};
use crate::view::View;

/// Share of repeats that a connection may have.
const PERCENT: u64 = 3;
/// Fewer repeated segments are chance.
const SEGMENTS: u64 = 4;
/// The least that may be outstanding, segments: a VM that gets a turn now and then must not get
/// less in it than a sender's initial window (RFC 6928).
pub(crate) const LEAST: u32 = 10;

/// Segments that may be outstanding at first for a host one hop behind the VM: the first window of
/// most hosts. Acknowledged bytes raise the bound (slow start, RFC 5681).
const FIRST: u32 = 44;

/// Counts the segments that were sent and repeated of a connection, and derives the bound.
#[derive(Clone, Debug, Default)]
pub struct Repeats {
    /// Bytes that may be outstanding; none: as many as the VM's window has room for.
    window: Option<u32>,
    /// To what it was halved last (ssthresh).
    threshold: Option<u32>,
    /// Payload since the round began, and the repeated part of it.
    sent: u64,
    repeated: u64,
    /// The round ends when the VM has acknowledged this.
    until: Option<seq>,
    /// Too much was repeated in this round, and in the one before.
    much: [bool; 2],
}

impl Repeats {
    /// Notes a frame that the device has taken.
    pub fn sent(&mut self, view: &View, frame: &HoldFrame) {
        let bytes = u64::from(frame.len);
        match frame.kind {
            Kind::Handover => self.sent += bytes,
            Kind::Resend => {
                self.sent += bytes;
                self.repeated += bytes;
            }
            Kind::Ack | Kind::Probe => return,
        }
        let end = frame.end().max(view.handed);
        self.until.get_or_insert(end);
        let outstanding = end.diff(view.vm_seq).max(0) as u32;
        if view.neighbour {
            self.window.get_or_insert(outstanding.max(FIRST * view.mss));
        }
        let is_much = self.repeated * 100 > self.sent * PERCENT
            && self.repeated >= SEGMENTS * u64::from(view.mss);
        if is_much && !self.much[0] {
            self.much[0] = true;
            if self.much[1] || view.neighbour {
                let before = self.window.map_or(outstanding, |window| window.min(outstanding));
                self.window = Some((before / 2).max(LEAST * view.mss));
                self.threshold = self.window;
                if view.neighbour {
                    // Once for all that was outstanding (RFC 6582).
                    self.until = Some(end);
                }
            }
        }
        if is_much && !view.neighbour && self.repeated >= u64::from(outstanding) {
            self.begin_round();
        }
    }

    /// Notes that a recovery has ended. The VM may acknowledge much at once then, and the path must
    /// not get as much at once.
    pub fn recovered(&mut self, view: &View) {
        if view.neighbour {
            let outstanding = view.handed.diff(view.vm_seq).max(0) as u32;
            let burst = outstanding + LEAST * view.mss;
            self.window = self.window.map(|window| window.min(burst));
        }
    }

    /// Notes that the VM did not answer in time: what was repeated is lost, too.
    pub fn timed_out(&mut self, view: &View) {
        if view.neighbour && self.much[0] {
            self.window = self.window.map(|window| (window / 2).max(LEAST * view.mss));
            self.threshold = self.window;
        }
    }

    /// Is more repeated than of a host inside the VM?
    pub fn are_of_a_path(&self, view: &View) -> bool {
        view.neighbour && self.threshold.is_some()
    }

    fn begin_round(&mut self) {
        (self.sent, self.repeated, self.until) = (0, 0, None);
        self.much = [false, self.much[0]];
    }

    /// Notes that the VM has acknowledged `bytes` more.
    pub fn acknowledged(&mut self, view: &View, bytes: u32) {
        if self.until.is_some_and(|until| view.vm_seq.diff(until) >= 0) {
            self.begin_round();
        }
        let room = view.right_edge.diff(view.vm_seq).max(0) as u32;
        let threshold = self.threshold.unwrap_or(u32::MAX);
        let growth = |window: u32| match view.neighbour {
            true if window < threshold => 1,
            true => 16,
            false => 8,
        };
        self.window = self
            .window
            .map(|window| window.saturating_add(bytes / growth(window)))
            .filter(|&window| view.neighbour || window < 2 * room.max(LEAST * view.mss));
    }

    /// The frame, cut to what may be outstanding; none if that is nothing.
    pub fn cut(&self, view: &View, mut frame: HoldFrame) -> Option<HoldFrame> {
        let first = view.neighbour.then_some(FIRST * view.mss);
        let Some(window) = self.window.or(first) else { return Some(frame) };
        let room = view.vm_seq.add(window).diff(frame.seq).max(0) as u32;
        if frame.len > room {
            // Whole segments.
            frame.len = room - room % view.mss;
            frame.fin = false;
        }
        (frame.len > 0 || frame.fin).then_some(frame)
    }
}
