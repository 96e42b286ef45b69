//! A VM that was rolled back to a snapshot: it acknowledges less than before.

use vsnoop_flow::hold::Verdict;
use vsnoop_flow::{FromVm, segment, types::*};

use crate::case::*;

const END: u32 = FULL + 2 * MSS;

/// The VM was rolled back; it has acknowledged 10 segments before, and sends the ACKs of then.
fn rolled_back(mut c: FlowCase, acks: u32) -> FlowCase {
    for _ in 0..acks {
        let s = c.ack_of_vm(MSS, WINDOW);
        assert_eq!(c.hear(&s).0, FromVm::Pass, "the sender ignores it");
    }
    c
}

fn caught_up(mut c: FlowCase) -> FlowCase {
    for i in 0..10 {
        c.early(&c.data(i * MSS, MSS));
    }
    c.acks(10 * MSS, WINDOW);
    c
}

#[test]
fn nothing_is_answered_in_the_place_of_a_vm_that_takes_back_what_it_has_acknowledged() {
    for c in FlowCase::both() {
        let c = caught_up(c);
        let mut c = rolled_back(c, FLOW_OLD_ACKS);
        c.pass(&c.data(10 * MSS - 1, 0));
        // Old data, and data that it could be handed.
        c.pass(&c.data(9 * MSS, MSS));
        c.pass(&c.data(10 * MSS, MSS));
        assert_eq!(c.f.early_acks, 10);
    }
    let mut c = FlowCase::holding();
    c.acks(2 * MSS, c.window_at(2 * MSS));
    let mut c = rolled_back(c, FLOW_OLD_ACKS);
    for s in [c.data(0, MSS), c.data(END, MSS), c.data(END + MSS, MSS)] {
        assert_eq!(c.not_kept(&s).0, Verdict::Drop);
    }
    assert_eq!(c.not_kept(&c.data(END - 1, 0)).0, Verdict::Forward, "the VM answers a probe");
}

/// The connection of a VM that was rolled back may not exist any more; both ends are idle.
#[test]
fn a_vm_with_nothing_outstanding_is_asked_first_by_a_keep_alive_probe() {
    for c in FlowCase::both() {
        let mut c = caught_up(c);
        for _ in 0..3 {
            c.pass(&c.data(10 * MSS - 1, 0));
            let (verdict, out) = c.acks(10 * MSS, c.window_at(10 * MSS));
            assert!(matches!(verdict, FromVm::Pass | FromVm::Rewrite), "the sender hears it");
            assert!(verdict == FromVm::Pass || out.ack.ack == at(10 * MSS));
        }
        // Not every stack answers such a probe, and a window update may be lost.
        c.pass(&c.data(10 * MSS - 1, 0));
        assert_eq!(c.decide(&c.data(10 * MSS - 1, 0)).0, Verdict::Reack);
        // An ACK of before the roll-back is an answer, too.
        let mut c = rolled_back(c, 1);
        c.pass(&c.data(10 * MSS - 1, 0));
        let rst = segment { tcp_flags: RST, ..c.ack_of_vm(0, 0) };
        assert_eq!(c.hear(&rst).0, FromVm::Pass);
        assert!(c.has(FLOW_F_CLOSED));
    }
}

#[test]
fn old_acks_that_were_reordered_change_nothing() {
    for c in FlowCase::both() {
        let mut c = rolled_back(caught_up(c), FLOW_OLD_ACKS - 1);
        c.pass(&c.data(10 * MSS - 1, 0));
        assert_eq!(c.decide(&c.data(10 * MSS - 1, 0)).0, Verdict::Reack);
        // What it has received stands, whatever comes late.
        let mut c = rolled_back(c, 10);
        c.acks(10 * MSS, WINDOW);
        assert_eq!(c.h.old_acks, 0);
        c.early(&c.data(10 * MSS, MSS));
    }
}
