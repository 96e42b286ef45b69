//! Bound on what the engine repeats.
//!
//! Between host and VM is a ring, which loses nothing, so that a healthy VM needs no congestion
//! window. Behind a VM that forwards may be a slower link. If more than [`PERCENT`] per cent of the
//! bytes are repeats, in two rounds in a row, what the engine has outstanding is halved (RFC 5681,
//! section 3.1), and again in each such round that follows. A round ends when the VM has
//! acknowledged what was outstanding at its start, or when as much as is outstanding was repeated:
//! where everything is lost the VM acknowledges nothing. The bound grows again by an eighth of what
//! the VM acknowledges.

use vsnoop_flow::types::seq;

use crate::hold_frame::{HoldFrame, Kind};
use crate::view::View;

/// Share of repeats that a connection may have.
const PERCENT: u64 = 3;
/// Fewer repeated segments are chance.
const SEGMENTS: u64 = 4;
/// The least that may be outstanding, segments: a VM that gets a turn now and then must not get
/// less in it than a sender's initial window (RFC 6928).
const LEAST: u32 = 10;

/// What was sent and repeated of a connection, and the bound that follows.
#[derive(Clone, Debug, Default)]
pub struct Repeats {
    /// Bytes that may be outstanding; none: as many as the VM's window has room for.
    window: Option<u32>,
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
        let is_much = self.repeated * 100 > self.sent * PERCENT
            && self.repeated >= SEGMENTS * u64::from(view.mss);
        if is_much && !self.much[0] {
            self.much[0] = true;
            if self.much[1] {
                let before = self.window.map_or(outstanding, |window| window.min(outstanding));
                self.window = Some((before / 2).max(LEAST * view.mss));
            }
        }
        if is_much && self.repeated >= u64::from(outstanding) {
            self.begin_round();
        }
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
        self.window = self
            .window
            .map(|window| window.saturating_add(bytes / 8))
            .filter(|&window| window < 2 * room.max(LEAST * view.mss));
    }

    /// The frame, cut to what may be outstanding; none if that is nothing.
    pub fn cut(&self, view: &View, mut frame: HoldFrame) -> Option<HoldFrame> {
        let Some(window) = self.window else { return Some(frame) };
        let room = view.vm_seq.add(window).diff(frame.seq).max(0) as u32;
        if frame.len > room {
            // Whole segments.
            frame.len = room - room % view.mss;
            frame.fin = false;
        }
        (frame.len > 0 || frame.fin).then_some(frame)
    }
}
