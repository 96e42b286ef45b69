//! The invariants of DESIGN.md's safety section, checked at every step.
//!
//! The checks see what the code under test cannot: both endpoints' true state
//! and everything that was ever handed to the VM's ring.

use std::collections::VecDeque;

use vsnoop_flow::testing::segment::*;
use vsnoop_flow::testing::tcp::{State, Tcp};
use vsnoop_flow::{flow, types::*};

/// What the host does with a packet on its way to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// The VM's own, untouched.
    Passed,
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
    pub acked: u64,
    /// Highest right edge shown to the sender.
    shown_edge: u64,
    /// The VM's highest right edge ever.
    vm_edge: u64,
    /// The VM's own packets may come in any order, its windows with them.
    unordered: bool,
    /// The VM's window shrank, or its data got lost.
    pub vm_is_at_fault: bool,
}

impl Checks {
    /// `unordered`: see there.
    pub fn new(unordered: bool) -> Self {
        Checks { unordered, ..Checks::default() }
    }

    /// The record must agree with what has happened.
    pub fn record(&mut self, f: &flow, vm: &Tcp, sender_iss: u32) {
        assert!(f.next_seq.diff(f.vm_seq) >= 0, "NEXT_SEQ fell behind VM_SEQ: {f:?}");
        assert!(f.high_seq.diff(f.next_seq) >= 0, "NEXT_SEQ passed the highest byte: {f:?}");
        let next = position(f.next_seq.v, sender_iss, vm.rcv_nxt);
        let handed = self.handed.reach(1) as i64;
        assert!(next <= handed, "NEXT_SEQ {next} was not handed over in order, only {handed}");
        assert!(
            position(f.vm_seq.v, sender_iss, vm.rcv_nxt) <= vm.rcv_nxt as i64,
            "VM_SEQ is ahead of the VM"
        );
    }

    /// A record goes. I6: never with bytes outstanding.
    pub fn removal(&self, f: &flow) {
        assert!(
            f.next_seq.diff(f.vm_seq) <= 0,
            "a record with {} bytes outstanding was removed",
            f.next_seq.diff(f.vm_seq)
        );
    }

    /// A segment was acknowledged by the host. I7, I8.
    pub fn early(&self, s: &Seg, reply: &Seg, f: &flow) {
        assert!(!s.has(SYN | FIN | RST | URG), "acknowledged for the VM: flags {:#x}", s.flags);
        assert!(!s.ce && !s.foreign && !s.corrupt, "acknowledged for the VM: {s:?}");
        assert_eq!(reply.ts.is_some(), u32::from(f.flags) & FLOW_F_TIMESTAMPS != 0);
        if let (Some((tsval, tsecr)), Some((segment, _))) = (reply.ts, s.ts) {
            assert_eq!(tsval, f.vm_tsval, "TSval is not the VM's last");
            assert_eq!(tsecr, segment, "TSecr is not the segment's");
        }
    }

    /// The VM speaks, and grants a window with it.
    pub fn granted(&mut self, vm: &Tcp) {
        self.vm_edge = self.vm_edge.max(vm.right_edge);
    }

    /// A segment leaves the host for the sender.
    pub fn for_sender(
        &mut self,
        s: &Seg,
        made: Made,
        f: Option<&flow>,
        vm: &Tcp,
        ring: &VecDeque<Seg>,
        sender_iss: u32,
    ) {
        if s.has(RST | SYN) || !s.has(ACK) {
            return;
        }
        self.granted(vm);
        let ack = position(s.ack, sender_iss, vm.rcv_nxt);
        assert!(ack >= 0, "an ACK of what was never sent: {s:?}");
        let ack = ack as u64;
        let vm_lives = matches!(vm.state, State::Open | State::SynReceived);

        if made != Made::Passed {
            assert!(ack >= self.acked, "{made:?} ACK {ack} after {}", self.acked);
            if vm_lives {
                assert!(ack <= self.vm_edge + 1, "ACK {ack} is beyond the edge {}", self.vm_edge);
            }
            if vm_lives && !self.vm_is_at_fault && ack > vm.rcv_nxt {
                let mut there = vm.ooo.clone();
                there.insert(vm.rcv_nxt.saturating_sub(1), vm.rcv_nxt);
                for s in ring.iter().filter(|s| !s.corrupt) {
                    let start = position(s.seq, sender_iss, vm.rcv_nxt).max(0) as u64;
                    there.insert(start, start + u64::from(s.len()));
                }
                let reach = there.reach(vm.rcv_nxt.saturating_sub(1));
                assert!(ack <= reach, "ACK {ack}, but the VM has or will get only {reach}");
            }
        }

        let edge = ack + (u64::from(s.window) << vm.rcv_scale);
        assert!(
            edge <= self.vm_edge,
            "{made:?}: shown the edge {edge}, the VM granted {}",
            self.vm_edge
        );
        if ack >= self.acked {
            let scale_known = f.is_some_and(|f| u32::from(f.flags) & FLOW_F_SCALE_KNOWN != 0);
            let unit = 1 << vm.rcv_scale;
            if scale_known && !self.vm_is_at_fault && !self.unordered {
                assert!(
                    edge + unit > self.shown_edge,
                    "{made:?}: the edge moved back from {} to {edge}",
                    self.shown_edge
                );
                self.shown_edge = self.shown_edge.max(edge);
            } else {
                self.shown_edge = edge;
            }
            self.acked = ack;
        }
    }
}
