//! Timestamps (RFC 7323) of early ACKs, and PAWS.

use vsnoop_flow::{segment, types::*};

use crate::case::*;

#[test]
fn early_acks_keep_the_vms_last_tsval_and_echo_the_segments() {
    for mut c in FlowCase::both() {
        c.ts = SENDER_TS.wrapping_add(50);
        let ack = c.early(&c.data(0, MSS)).ack;
        assert_eq!((ack.timestamps, ack.tsval, ack.tsecr), (1, VM_TS, c.ts));
        c.vm_ts = VM_TS + 100;
        c.acks(MSS, WINDOW);
        // An older ACK of the VM does not take it back.
        let old = segment { tsval: VM_TS, ..c.ack_of_vm(MSS, WINDOW) };
        c.hear(&old);
        let ack = c.early(&c.data(MSS, MSS)).ack;
        assert_eq!(ack.tsval, VM_TS + 100);
    }
}

#[test]
fn without_timestamps_an_early_ack_has_none() {
    let mut c = FlowCase::plain();
    assert_eq!(c.early(&c.data(0, MSS)).ack.timestamps, 0);
}

#[test]
fn a_segment_without_the_timestamps_in_use_is_left_to_the_vm() {
    for mut c in FlowCase::both() {
        let mut s = c.data(0, MSS);
        s.bits &= !(SEG_TIMESTAMPS as u16);
        c.pass(&s);
    }
}

#[test]
fn a_segment_that_paws_drops_is_not_acknowledged() {
    for mut c in FlowCase::both() {
        c.ts = SENDER_TS.wrapping_add(10);
        c.early(&c.data(0, MSS));
        c.pass(&segment { tsval: SENDER_TS.wrapping_add(9), ..c.data(MSS, MSS) });
        // Equal is good enough.
        let mut c = FlowCase::accepted();
        c.early(&c.data(0, MSS));
        c.early(&c.data(MSS, MSS));
    }
}

#[test]
fn paws_starts_from_the_handshake() {
    for mut c in FlowCase::both() {
        c.pass(&segment { tsval: SENDER_TS.wrapping_sub(1), ..c.data(0, MSS) });
    }
}

#[test]
fn paws_counts_the_timestamps_of_old_segments() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, MSS));
        c.acks(MSS, WINDOW);
        // A retransmission overtakes the segment that was sent before it.
        c.pass(&segment { tsval: SENDER_TS.wrapping_add(5), ..c.data(0, MSS) });
        // An ACK that left the VM before it saw the retransmission.
        c.acks(MSS, WINDOW);
        c.pass(&segment { tsval: SENDER_TS.wrapping_add(4), ..c.data(MSS, MSS) });
    }
}

#[test]
fn ts_recent_follows_the_vms_echo_when_nothing_is_outstanding() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, MSS));
        c.acks(MSS, WINDOW);
        // Corrupt, say: the VM will drop it.
        c.pass(&segment { tsval: SENDER_TS.wrapping_add(1 << 30), ..c.data(0, MSS) });
        c.pass(&c.data(MSS, MSS));
        c.acks(2 * MSS, WINDOW);
        c.early(&c.data(2 * MSS, MSS));
    }
}

/// The VM has read fragments, which the hooks do not: its TS.Recent is later than any TSval that
/// the record has seen.
#[test]
fn a_copy_carries_at_least_the_tsval_that_the_vm_echoes() {
    let mut c = FlowCase::new();
    c.early(&c.data(0, MSS));
    let told = c.ts.wrapping_add(200);
    let repeated = segment { tsecr: told, ..c.ack_of_vm(0, WINDOW) };
    c.hear(&repeated);
    assert_eq!(c.h.tsval, told);
    // PAWS drops this one.
    c.pass(&c.data(MSS, MSS));
}

#[test]
fn a_tsecr_that_no_sender_can_have_sent_changes_nothing() {
    for step in [0, u32::MAX, FLOW_MAX_TS_STEP, 1 << 31] {
        let mut c = FlowCase::new();
        c.early(&c.data(0, MSS));
        let lie = segment { tsecr: c.ts.wrapping_add(step), ..c.ack_of_vm(0, WINDOW) };
        c.hear(&lie);
        assert_eq!(c.h.tsval, c.ts);
        c.early(&c.data(MSS, MSS));
    }
}
