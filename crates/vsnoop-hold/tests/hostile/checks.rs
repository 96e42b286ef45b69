//! What must hold of every connection at every moment, seen from outside: the checks know both ends
//! and everything that was ever handed to the VM.

use vsnoop_flow::testing::memory::Memory;
use vsnoop_flow::testing::segment::*;
use vsnoop_flow::testing::tcp::{State, Tcp};
use vsnoop_flow::{flow, seq, types::*};

/// What the host does with a packet on its way to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// The VM's own, untouched.
    Passed,
    /// The same; it may answer an attacker, and is not to be touched (RFC 5961).
    Challenge,
    /// The VM's, its ACK and window replaced.
    Rewritten,
    /// Made by the host.
    Early,
    /// A retransmission answered by the host.
    Reacked,
}

#[derive(Debug, Default)]
pub struct Checks {
    /// Positions of the sender's stream that went into the ring.
    pub handed: Ranges,
    /// Highest position acknowledged to the sender.
    acked: u64,
    /// Highest right edge shown to the sender.
    shown_edge: u64,
    /// The VM's highest right edge ever.
    pub vm_edge: u64,
    /// The guest lost something, or took window back.
    pub vm_is_at_fault: bool,
    /// Why the connection may end in a reset.
    pub excuses: Vec<&'static str>,
}

impl Checks {
    /// The record and its hold agree with what has happened. `thorough`: also byte by byte.
    pub fn record(&self, f: &flow, m: &Memory, sender: &Tcp, vm: &Tcp, thorough: bool) {
        let at = |s: seq| position(s.v, sender.cfg.iss, vm.rcv_nxt);
        let (vm_seq, next, high) = (at(f.vm_seq), at(f.next_seq), at(f.high_seq));
        let is_holding = u32::from(f.mode) == flow_mode::FLOW_HOLDING;
        assert!(vm_seq <= vm.rcv_nxt as i64, "VM_SEQ {vm_seq} is ahead of the VM: {f:?}");
        assert!(next >= vm_seq, "NEXT_SEQ fell behind VM_SEQ: {f:?}");
        assert!(high >= next || is_holding, "NEXT_SEQ passed the highest byte: {f:?}");
        let limit = self.vm_edge.max(vm_seq as u64 + u64::from(m.policy.hold_flow));
        assert!(next as u64 <= limit + 1, "NEXT_SEQ {next} is beyond {limit}");

        let mut from = vm_seq.max(0) as u64;
        let next = next.max(0) as u64;
        if f.hold != 0 {
            let h = m.hold(f.hold.into());
            let first = at(h.first).max(at(f.vm_seq)).max(0) as u64;
            let tail = (at(h.tail).max(0) as u64).min(next);
            if first < tail {
                self.was_handed(from, first, f);
                self.is_kept(f, m, first, tail, sender, thorough);
                from = tail;
            }
            if is_holding {
                self.was_handed(vm_seq.max(0) as u64, high.max(0) as u64, f);
                // The VM may have acknowledged what passed before, or a FIN that the engine has
                // not noted yet.
                let end = at(h.tail).max(vm_seq) as u64;
                assert_eq!(end, next, "NEXT_SEQ is not what is kept: {f:?} {h:?}");
                let since = h.since_ns != 0;
                assert!(since, "held since never: {f:?} {h:?}");
            }
        } else {
            assert!(!is_holding, "holding without a hold: {f:?}");
        }
        self.was_handed(from, next, f);
    }

    fn was_handed(&self, from: u64, until: u64, f: &flow) {
        assert!(
            from >= until || self.handed.reach(from) >= until,
            "{from}..{until} is acknowledged, neither kept nor handed over ({}): {f:?}",
            self.handed.reach(from)
        );
    }

    fn is_kept(&self, f: &flow, m: &Memory, from: u64, until: u64, sender: &Tcp, thorough: bool) {
        let (number, len) = (u32::from(f.hold), (until - from) as u32);
        let start = seq::new(sender.wire(from));
        let (base, _) = m.front(number);
        let h = m.hold(number);
        assert!(start.diff(base) >= 0, "{from} was given back: {f:?} {h:?}");
        let reach = base.add(h.chunks * HOLD_CHUNK).diff(start);
        assert!(reach >= len as i32, "{from}..{until} is not in the chain: {f:?} {h:?}");
        if thorough {
            let kept = m.stream(number, start, len);
            let wrong = (from..until).zip(&kept).find(|(p, byte)| content(0, *p) != **byte);
            assert!(wrong.is_none(), "byte {:?} is kept wrong: {f:?} {h:?}", wrong.unwrap().0);
        }
    }

    /// Pieces that the sender is told of are there.
    pub fn pieces(&self, f: &flow, m: &Memory, sender: &Tcp, vm: &Tcp) {
        if f.hold == 0 {
            return;
        }
        let h = m.hold(f.hold.into());
        assert!(h.ahead_count <= 4);
        for edges in h.ahead.chunks_exact(2).take(h.ahead_count as usize) {
            assert!(edges[0].diff(h.tail) > 0, "a piece that is no hole away: {h:?}");
            let at = |s: seq| position(s.v, sender.cfg.iss, vm.rcv_nxt) as u64;
            self.is_kept(f, m, at(edges[0]), at(edges[1]), sender, true);
        }
    }

    /// A record goes: never with bytes outstanding.
    pub fn removal(&self, f: &flow) {
        let outstanding = f.next_seq.diff(f.vm_seq);
        let is_over = u32::from(f.mode) == flow_mode::FLOW_RESET
            || u32::from(f.flags) & FLOW_F_CLOSED != 0
            || !self.excuses.is_empty();
        assert!(
            outstanding <= 0 || is_over,
            "a record with {outstanding} bytes was removed: {f:?}"
        );
    }

    /// A segment leaves the host for the sender. `f`: of an attached port.
    pub fn for_sender(
        &mut self,
        s: &Seg,
        made: Made,
        f: Option<&flow>,
        m: &Memory,
        vm: &Tcp,
        iss: u32,
    ) {
        if s.has(RST | SYN) || !s.has(ACK) {
            return;
        }
        let ack = position(s.ack, iss, vm.rcv_nxt);
        assert!(ack >= 0, "an ACK of what was never sent: {s:?}");
        let ack = ack as u64;
        let vm_lives = matches!(vm.state, State::Open | State::SynReceived);
        if !matches!(made, Made::Passed | Made::Challenge) && vm_lives {
            assert!(ack >= self.acked, "{made:?} ACK {ack} after {}", self.acked);
            if let Some(f) = f {
                let next = position(f.next_seq.v, iss, vm.rcv_nxt) as u64;
                assert!(ack <= next, "ACK {ack} is beyond NEXT_SEQ {next}");
            }
        }
        let edge = ack + (u64::from(s.window) << vm.rcv_scale);
        let vm_seq = f.map_or(0, |f| position(f.vm_seq.v, iss, vm.rcv_nxt).max(0) as u64);
        let kept = vm_seq + f.map_or(0, |_| u64::from(m.policy.hold_flow)) + (1 << vm.rcv_scale);
        if vm_lives {
            assert!(
                edge <= self.vm_edge.max(kept).max(self.shown_edge),
                "{made:?}: shown the edge {edge}, the VM granted {}, the hold {kept}",
                self.vm_edge
            );
        }
        if ack < self.acked || made == Made::Challenge {
            return;
        }
        self.acked = ack;
        let is_watched = f.is_some_and(|f| {
            u32::from(f.flags) & FLOW_F_SCALE_KNOWN != 0
                && !matches!(u32::from(f.mode), flow_mode::FLOW_BYPASS | flow_mode::FLOW_RESET)
                && (f.hold != 0 || !self.vm_is_at_fault)
        });
        if is_watched {
            assert!(
                edge + (1 << vm.rcv_scale) > self.shown_edge,
                "{made:?}: the edge moved back from {} to {edge}: {f:?}",
                self.shown_edge
            );
            self.shown_edge = self.shown_edge.max(edge);
        } else {
            self.shown_edge = edge;
        }
    }
}
