//! A flow that the host keeps copies of, and short ways to drive it.
//!
//! There is no memory here: what is said to be copied is taken to be in a chain that is long enough.

use std::ops::{Deref, DerefMut};

use vsnoop_flow::hold::{self, Kept, Verdict};
use vsnoop_flow::types::{self, EVENT_FREE, flow_mode};
use vsnoop_flow::{FromVm, outcome, segment};

use crate::case::*;

/// The hold's number.
pub const NUMBER: u32 = 3;
/// Most that the flow may have, bytes.
pub const PER_FLOW: u32 = 1 << 20;
/// The port's chunks: 16 MiB.
pub const CHUNKS: u32 = 4_096;

#[derive(Clone)]
pub struct Held {
    pub c: Case,
    pub h: types::hold,
}

impl Deref for Held {
    type Target = Case;

    fn deref(&self) -> &Case {
        &self.c
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Case {
        &mut self.c
    }
}

impl Held {
    /// A connection that has just been given a hold, an engine that lives, a VM that is not prompt.
    pub fn of(mut c: Case) -> Self {
        c.policy.hold_chunks = CHUNKS;
        c.policy.hold_flow = PER_FLOW;
        c.port.engine_ns = c.now;
        let mut h = types::hold { used: 1, ..Default::default() };
        hold::begin(&mut c.f, &mut h, NUMBER as u16);
        Held { c, h }
    }

    pub fn new() -> Self {
        Self::of(Case::accepted())
    }

    /// The VM's window is full, and two segments more are held.
    pub fn holding() -> Self {
        let mut c = Self::full();
        c.held(&c.data(FULL, MSS));
        c.held(&c.data(FULL + MSS, MSS));
        assert_eq!(c.mode(), flow_mode::FLOW_HOLDING);
        c
    }

    /// The VM's window is full.
    pub fn full() -> Self {
        let mut c = Self::new();
        c.early(&c.data(0, FULL));
        c
    }

    pub fn decide(&mut self, s: &segment) -> (Verdict, outcome) {
        let c = &mut self.c;
        let (verdict, out) = hold::to_vm(&mut c.f, &mut self.h, s, &c.port, &c.policy, c.now);
        vsnoop_flow::learn(&mut c.port, &out, c.now);
        (verdict, out)
    }

    /// After [`Verdict::Keep`].
    pub fn after_copy(&mut self, s: &segment, copied: bool, taken: bool) -> (Kept, outcome) {
        if copied && self.h.chunks == 0 {
            self.h.front = u64::from(self.h.tail.v) << 32;
            self.h.chunks = 1;
        }
        let c = &mut self.c;
        let how = (copied, taken);
        hold::kept(&mut c.f, &mut self.h, s, how, &c.port, &c.policy, c.now)
    }

    /// This one is kept and handed over.
    #[track_caller]
    pub fn early(&mut self, s: &segment) -> outcome {
        let verdict = self.decide(s).0;
        assert_eq!(verdict, Verdict::Keep { skip: 0, deliver: true }, "{:?}", self.f);
        let (kept, out) = self.after_copy(s, true, true);
        assert_eq!(kept, Kept::Ack);
        out
    }

    /// This one is kept, and not handed over.
    #[track_caller]
    pub fn held(&mut self, s: &segment) -> outcome {
        let verdict = self.decide(s).0;
        assert!(
            matches!(verdict, Verdict::Keep { deliver: false, .. }),
            "{verdict:?} {:?}",
            self.f
        );
        let (kept, out) = self.after_copy(s, true, false);
        assert_eq!(kept, Kept::Ack, "{:?}", self.f);
        assert_eq!(self.mode(), flow_mode::FLOW_HOLDING);
        out
    }

    /// Neither NEXT_SEQ nor what is kept moves.
    #[track_caller]
    pub fn not_kept(&mut self, s: &segment) -> (Verdict, outcome) {
        let (next, tail) = (self.f.next_seq, self.h.tail);
        let (verdict, out) = self.decide(s);
        assert!(!matches!(verdict, Verdict::Keep { .. }), "kept: {:?}", self.f);
        assert_eq!((self.f.next_seq, self.h.tail), (next, tail));
        assert_eq!(self.h.busy, 0, "claimed for nothing");
        (verdict, out)
    }

    /// A segment of the VM; chunks that it frees are given back at once.
    pub fn hear(&mut self, s: &segment) -> (FromVm, outcome) {
        let (verdict, out) = self.hear_only(s);
        if out.events & EVENT_FREE != 0 {
            assert_eq!(self.h.busy, 1);
            self.h.busy = 0;
            if self.f.vm_seq.diff(self.h.tail) >= 0 && self.h.ahead_count == 0 {
                self.h.chunks = 0;
            } else {
                self.h.front = u64::from(self.f.vm_seq.v) << 32;
            }
        }
        (verdict, out)
    }

    /// The same, without that.
    pub fn hear_only(&mut self, s: &segment) -> (FromVm, outcome) {
        let c = &mut self.c;
        let (verdict, out) = hold::from_vm(&mut c.f, &mut self.h, s, &c.port, &c.policy, c.now);
        vsnoop_flow::learn(&mut c.port, &out, c.now);
        (verdict, out)
    }

    /// The VM acknowledges up to `offset`.
    pub fn acks(&mut self, offset: u32, window: u16) -> (FromVm, outcome) {
        self.hear(&self.ack_of_vm(offset, window))
    }

    /// Time passes, and the engine lives.
    pub fn wait(&mut self, ns: u64) {
        self.now += ns;
        self.port.engine_ns = self.now;
    }

    /// The engine has handed over everything below, with the sender's newest TSval.
    pub fn release(&mut self, offset: u32) {
        self.h.released = at(offset);
        self.h.released_tsval = self.h.tsval;
    }

    /// The right edge that an ACK shows.
    pub fn edge(&self, out: &outcome) -> i32 {
        out.ack.ack.add(u32::from(out.ack.window) << SCALE).diff(at(0))
    }

    pub fn holds(&self, flag: u32) -> bool {
        u32::from(self.h.flags) & flag != 0
    }
}

/// What the VM's window takes.
pub const FULL: u32 = (WINDOW as u32) << SCALE;
