//! The far end behind the tap, by the TTL of what the VM sends.

use vsnoop_flow::hold::Verdict;
use vsnoop_flow::{FromVm, embryo, flow, segment, types::*};

use crate::case::*;

const SECOND: u64 = 1_000 * MS;

/// The record of a connection that the VM accepted, or opened, with this TTL.
fn begun(ttl: u8) -> [flow; 3] {
    let now = 1_000 * MS;
    let e = vsnoop_flow::embryo_of_vm(&segment { ttl, ..vm_syn(ACK) });
    let c = FlowCase::new();
    let first = segment { ack: vm_at(0), ..c.ack_of_sender(0, 0) };
    let accepted = vsnoop_flow::flow_accepted(&e, &first, now).expect("the handshake is whole");

    let mut e: embryo = vsnoop_flow::embryo_of_vm(&segment { ttl, ..vm_syn(0) });
    assert!(vsnoop_flow::answer_embryo(&mut e, &sender_syn_ack()));
    let ack = segment { ttl, ..c.ack_of_vm(0, WINDOW) };
    let opened = vsnoop_flow::flow_opened(&e, &ack, now).expect("the handshake is whole");
    let found = vsnoop_flow::flow_mid_flow(&ack, now).expect("an ACK of the VM");
    [accepted, opened, found]
}

/// A connection whose far end is one hop behind the VM.
fn neighbour() -> FlowCase {
    let mut c = FlowCase::new();
    let s = segment { ttl: 63, ..c.ack_of_vm(0, WINDOW) };
    c.hear(&s);
    c
}

fn is_bypassed(f: &flow) -> bool {
    u32::from(f.mode) == flow_mode::FLOW_BYPASS
}

fn is(c: &FlowCase, far: u32) -> bool {
    u32::from(c.f.far) & far != 0
}

/// The VM was just seen to wait for a CPU.
fn starve(c: &mut FlowCase) {
    c.port.starved_ns = c.now;
}

#[test]
fn a_flow_from_two_hops_behind_the_vm_is_left_to_it_from_the_first_segment() {
    for ttl in [62, 50, 126, 100, 253, 200] {
        for f in begun(ttl) {
            assert!(is_bypassed(&f), "{ttl}");
            assert_ne!(u32::from(f.far) & FAR_PATH, 0, "{ttl}");
        }
    }
}

#[test]
fn a_vm_that_is_the_far_end_is_accelerated_whatever_it_starts_with() {
    for ttl in [64, 128, 255] {
        let [accepted, opened, found] = begun(ttl);
        for f in [accepted, opened] {
            assert_eq!((is_bypassed(&f), f.far, f.ttl), (false, 0, ttl));
        }
        // Its window scale is not known.
        assert_eq!((is_bypassed(&found), found.far, found.ttl), (true, 0, ttl));
    }
    let mut c = FlowCase::new();
    let s = segment { ttl: 255, ..c.ack_of_vm(0, WINDOW) };
    c.hear(&s);
    c.early(&c.data(0, MSS));
}

#[test]
fn a_neighbour_is_accelerated_only_while_its_vm_waits_for_a_cpu() {
    for ttl in [63, 127, 254] {
        let [accepted, opened, _] = begun(ttl);
        for f in [accepted, opened] {
            assert_eq!((is_bypassed(&f), u32::from(f.far) & FAR_NEIGHBOUR != 0), (false, true));
        }
    }
    let mut c = neighbour();
    c.pass(&c.data(0, MSS));
    assert_eq!(c.mode(), flow_mode::FLOW_PASSIVE, "no want of memory");
    assert!(is(&c, FAR_LEFT));
    c.acks(MSS, WINDOW);

    starve(&mut c);
    c.early(&c.data(MSS, MSS));
    assert!(!is(&c, FAR_LEFT));
    c.acks(2 * MSS, WINDOW);

    c.wait(10 * SECOND);
    c.pass(&c.data(2 * MSS, MSS));
}

#[test]
fn no_probe_is_answered_and_no_window_lent_for_a_flow_that_is_left_alone() {
    let mut c = neighbour();
    starve(&mut c);
    c.early(&c.data(0, MSS));
    c.acks(MSS, WINDOW);
    c.wait(11 * SECOND);
    let (verdict, _) = c.not_kept(&c.data(MSS - 1, 0));
    assert_eq!(verdict, Verdict::Pass);
    assert_eq!(c.h.rcv_win, 0);
    // What was shown stays; it moves no further with the VM's ACKs.
    let shown = c.f.adv_edge;
    c.pass(&c.data(MSS, MSS));
    c.acks(2 * MSS, c.window_at(2 * MSS));
    assert_eq!(c.f.adv_edge, shown);
}

#[test]
fn a_path_that_shows_in_mid_flow_gets_what_is_held_before_it_is_left_alone() {
    let mut c = FlowCase::holding();
    let with_ttl =
        |c: &FlowCase, offset: u32, ttl: u8| segment { ttl, ..c.ack_of_vm(offset, WINDOW) };
    let (_, out) = c.hear(&with_ttl(&c, MSS, 60));
    assert_ne!(out.events & EVENT_FORWARDED, 0, "counted once");
    assert_eq!(c.mode(), flow_mode::FLOW_HOLDING);
    // Nothing more is acknowledged.
    c.not_kept(&c.data(FULL + 2 * MSS, MSS));
    c.engine_hands_over(FULL + 2 * MSS);
    let (_, out) = c.hear(&with_ttl(&c, 2 * MSS, 60));
    assert_eq!(out.events & (EVENT_FORWARDED | EVENT_BYPASS), 0, "bytes are outstanding");
    let (_, out) = c.hear(&with_ttl(&c, FULL + 2 * MSS, 60));
    assert_eq!(out.events & EVENT_BYPASS, 0, "the sender was shown more than the VM's window");
    c.pass(&c.data(FULL + 2 * MSS, MSS));
    let end = FULL + 3 * MSS;
    let (_, out) = c.hear(&segment { window: 3 * WINDOW, ..with_ttl(&c, end, 60) });
    assert!(is_bypassed(&c.f), "{:?}", c.f);
    assert_ne!(out.events & EVENT_BYPASS, 0);
    // For good, whatever the VM claims now.
    c.hear(&segment { window: 3 * WINDOW, ..with_ttl(&c, end, 64) });
    assert!(is_bypassed(&c.f));
    c.pass(&c.data(end, MSS));
}

#[test]
fn what_the_host_sends_for_the_vm_has_the_vms_ttl_and_to_it_the_senders() {
    for ttl in [255, 128, 64] {
        let mut c = FlowCase::new();
        let s = segment { ttl, ..c.ack_of_vm(0, WINDOW) };
        c.hear(&s);
        let s = segment { ttl: 41, ..c.data(0, MSS) };
        assert_eq!(c.early(&s).ack.ttl, ttl);
        assert_eq!(c.h.sender_ttl, 41);
        assert_eq!(vsnoop_flow::hold::sender_ack(&c.f, &c.h).ttl, 41);
        c.f.mode = flow_mode::FLOW_RESET as u8;
        let (verdict, out) = c.acks(0, WINDOW);
        assert_eq!((verdict, out.ack.ttl), (FromVm::Reset, 255));
        assert_eq!(c.decide(&c.data(0, MSS)).1.ack.ttl, ttl);
    }
}

#[test]
fn a_flow_that_a_path_loses_is_left_to_the_vm_when_it_has_what_is_held() {
    for (late, far) in [(LATE_LOSSES, FAR_LOSSY), (LATE_ACKS, FAR_LATE)] {
        let mut c = FlowCase::new();
        c.early(&c.data(0, MSS));
        c.h.late = late;
        c.pass(&c.data(MSS, MSS));
        assert!(is(&c, far) && is(&c, FAR_LEFT));
        let (_, out) = c.acks(2 * MSS, 3 * WINDOW);
        assert_ne!(out.events & EVENT_FORWARDED, 0, "it is counted");
        assert!(is_bypassed(&c.f));
    }
}

#[test]
fn the_engine_is_told_of_a_neighbour() {
    let mut c = neighbour();
    starve(&mut c);
    c.early(&c.data(0, MSS));
    assert_eq!(c.h.neighbour, 1);
    let mut c = FlowCase::new();
    c.early(&c.data(0, MSS));
    assert_eq!(c.h.neighbour, 0);
}
