//! Creation of records.

use vsnoop_flow::{FromVm, embryo, segment, types::*};

use crate::case::*;

#[test]
fn a_record_begins_with_the_handshake_that_the_vm_accepts() {
    let c = FlowCase::accepted();
    assert_eq!(c.f.next_seq, at(0));
    assert_eq!(c.f.snd_nxt, vm_at(0));
    assert_eq!(c.f.scale, SCALE);
    assert_eq!(c.mode(), flow_mode::FLOW_ACTIVE);
    assert!(c.has(FLOW_F_TIMESTAMPS) && c.has(FLOW_F_SACK) && c.has(FLOW_F_SCALE_KNOWN));
    assert!(!c.has(FLOW_F_VM_OPENED) && !c.has(FLOW_F_MID_FLOW) && !c.has(FLOW_F_UNPROVEN));
}

#[test]
fn a_record_begins_with_the_handshake_that_the_vm_opens() {
    let c = FlowCase::opened();
    assert_eq!(c.f.next_seq, at(0));
    assert_eq!(c.f.scale, SCALE);
    assert!(c.has(FLOW_F_TIMESTAMPS) && c.has(FLOW_F_SACK) && c.has(FLOW_F_SCALE_KNOWN));
    assert!(c.has(FLOW_F_VM_OPENED) && !c.has(FLOW_F_MID_FLOW) && !c.has(FLOW_F_UNPROVEN));
}

#[test]
fn the_window_of_a_syn_is_not_scaled() {
    let c = FlowCase::accepted();
    let e = vsnoop_flow::embryo_of_vm(&vm_syn(ACK));
    let f = vsnoop_flow::flow_accepted(&e, &c.ack_of_sender(0, 0), c.now).expect("handshake");
    assert_eq!(f.right_edge, at(SYN_WINDOW.into()));
}

#[test]
fn only_an_ack_of_the_vms_syn_ack_completes_the_handshake() {
    let e = vsnoop_flow::embryo_of_vm(&vm_syn(ACK));
    let c = FlowCase::accepted();
    let good = c.ack_of_sender(0, 0);
    let made = |s: &segment| vsnoop_flow::flow_accepted(&e, s, c.now).is_some();
    assert!(made(&good));
    assert!(!made(&segment { tcp_flags: SYN, ..good }));
    assert!(!made(&segment { tcp_flags: RST | ACK, ..good }));
    assert!(!made(&segment { tcp_flags: PSH, ..good }));
    assert!(!made(&segment { ack: vm_at(1), ..good }));
    assert!(!made(&segment { ack: vm_at(0).add(u32::MAX), ..good }));
    assert!(!made(&segment { seq: at(0).add(u32::MAX), ..good }));
    assert!(!made(&segment { seq: at(u32::from(SYN_WINDOW) + 1), ..good }));
    // The VM's own SYN awaits a SYN-ACK, not an ACK.
    let e = vsnoop_flow::embryo_of_vm(&vm_syn(0));
    assert!(vsnoop_flow::flow_accepted(&e, &good, c.now).is_none());
}

#[test]
fn a_record_that_begins_after_a_hole_waits_for_the_vm() {
    let e = vsnoop_flow::embryo_of_vm(&vm_syn(ACK));
    let mut c = FlowCase::accepted();
    // The ACK of the handshake and the first segment are lost.
    let second = c.data(MSS, MSS);
    c.f = vsnoop_flow::flow_accepted(&e, &second, c.now).expect("it acknowledges the SYN-ACK");
    c.pass(&second);
    c.pass(&c.data(0, MSS));
    assert_eq!(c.f.next_seq, at(0));
    assert_eq!(c.acks(2 * MSS, WINDOW).0, FromVm::Pass);
    c.begin_hold();
    c.early(&c.data(2 * MSS, MSS));
}

#[test]
fn a_syn_ack_for_another_syn_is_ignored() {
    let mut e = vsnoop_flow::embryo_of_vm(&vm_syn(0));
    let before = e;
    let other = segment { ack: vm_at(1), ..sender_syn_ack() };
    assert!(!vsnoop_flow::answer_embryo(&mut e, &other));
    assert_eq!(e, before);
    // Until it is answered, an ACK of the VM completes nothing.
    let c = FlowCase::accepted();
    assert!(vsnoop_flow::flow_opened(&e, &c.ack_of_vm(0, WINDOW), c.now).is_none());
}

#[test]
fn only_options_that_both_ends_offer_are_in_use() {
    let c = FlowCase::opened();
    for (missing, flag) in [(SEG_TIMESTAMPS, FLOW_F_TIMESTAMPS), (SEG_SACK_PERMITTED, FLOW_F_SACK)]
    {
        let mut e = vsnoop_flow::embryo_of_vm(&vm_syn(0));
        let mut syn_ack = sender_syn_ack();
        syn_ack.bits &= !(missing as u16);
        assert!(vsnoop_flow::answer_embryo(&mut e, &syn_ack));
        let f = vsnoop_flow::flow_opened(&e, &c.ack_of_vm(0, WINDOW), c.now).expect("handshake");
        assert_eq!(u32::from(f.flags) & flag, 0);
        assert_eq!(f.scale, SCALE);
    }
    let mut e = vsnoop_flow::embryo_of_vm(&vm_syn(0));
    let mut syn_ack = sender_syn_ack();
    syn_ack.bits &= !(SEG_SCALE as u16);
    assert!(vsnoop_flow::answer_embryo(&mut e, &syn_ack));
    let f = vsnoop_flow::flow_opened(&e, &c.ack_of_vm(0, WINDOW), c.now).expect("handshake");
    assert_eq!(f.scale, 0);
}

#[test]
fn fast_open_data_and_foreign_options_in_the_handshake_mean_bypass() {
    let c = FlowCase::accepted();
    let mut with_option = vm_syn(ACK);
    with_option.bits |= SEG_FOREIGN as u16;
    let with_data = segment { len: 10, ..vm_syn(ACK) };
    for syn_ack in [with_option, with_data] {
        let e = vsnoop_flow::embryo_of_vm(&syn_ack);
        let f = vsnoop_flow::flow_accepted(&e, &c.ack_of_sender(0, 0), c.now).expect("handshake");
        assert_eq!(u32::from(f.mode), flow_mode::FLOW_BYPASS);
    }
}

/// MPTCP, say.
fn foreign(s: segment) -> segment {
    segment { bits: s.bits | SEG_FOREIGN as u16, ..s }
}

#[test]
fn an_option_of_the_vms_syn_counts_if_the_syn_ack_takes_it() {
    let c = FlowCase::opened();
    let mode = |answer: segment| {
        let mut e = vsnoop_flow::embryo_of_vm(&foreign(vm_syn(0)));
        assert!(vsnoop_flow::answer_embryo(&mut e, &answer));
        let f = vsnoop_flow::flow_opened(&e, &c.ack_of_vm(0, WINDOW), c.now).expect("handshake");
        u32::from(f.mode)
    };
    assert_eq!(mode(sender_syn_ack()), flow_mode::FLOW_ACTIVE);
    assert_eq!(mode(foreign(sender_syn_ack())), flow_mode::FLOW_BYPASS);
    let accurate_ecn = segment { tcp_flags: SYN | ACK | CWR, ..sender_syn_ack() };
    assert_eq!(mode(accurate_ecn), flow_mode::FLOW_BYPASS);
}

/// It leaves out what may have been the reason why no answer came. That may be under way.
#[test]
fn a_syn_that_the_vm_repeats_with_less_may_be_answered_as_the_first_one() {
    let c = FlowCase::opened();
    let bare = segment { bits: 0, scale: 0, ..vm_syn(0) };
    let first = vsnoop_flow::embryo_of_vm(&vm_syn(0));
    let mut e = vsnoop_flow::repeated_embryo(&first, &bare);
    assert!(vsnoop_flow::answer_embryo(&mut e, &sender_syn_ack()));
    let f = vsnoop_flow::flow_opened(&e, &c.ack_of_vm(0, WINDOW), c.now).expect("handshake");
    let both = FLOW_F_TIMESTAMPS | FLOW_F_SACK;
    assert_eq!((f.scale, u32::from(f.flags) & both), (SCALE, both));
    // Or as the second.
    let mut e = vsnoop_flow::repeated_embryo(&first, &bare);
    assert!(vsnoop_flow::answer_embryo(&mut e, &segment { bits: 0, ..sender_syn_ack() }));
    let f = vsnoop_flow::flow_opened(&e, &c.ack_of_vm(0, WINDOW), c.now).expect("handshake");
    assert_eq!((f.scale, u32::from(f.flags) & both), (0, 0));
    // Another ISS is another connection.
    let other = segment { seq: vm_at(5_000), ..bare };
    assert_eq!(vsnoop_flow::repeated_embryo(&first, &other), vsnoop_flow::embryo_of_vm(&other));
    // The sender may have either SYN-ACK of a VM that accepts.
    let first = vsnoop_flow::embryo_of_vm(&foreign(vm_syn(ACK)));
    let e = vsnoop_flow::repeated_embryo(&first, &vm_syn(ACK));
    assert_ne!(u32::from(e.flags) & FLOW_F_FOREIGN, 0);
}

#[test]
fn data_of_a_syn_that_is_repeated_without_them_may_still_be_acknowledged() {
    let c = FlowCase::opened().without_hold();
    let with_data = vsnoop_flow::embryo_of_vm(&segment { len: 1_000, ..vm_syn(0) });
    let mut e = vsnoop_flow::repeated_embryo(&with_data, &vm_syn(0));
    let answer = segment { ack: vm_at(1_000), ..sender_syn_ack() };
    assert!(vsnoop_flow::answer_embryo(&mut e, &answer));
    let first = segment { seq: vm_at(1_000), ..c.ack_of_vm(0, WINDOW) };
    let f = vsnoop_flow::flow_opened(&e, &first, c.now).expect("the handshake is whole");
    assert_eq!((u32::from(f.mode), f.scale), (flow_mode::FLOW_BYPASS, SCALE));
}

#[test]
fn a_repeated_syn_ack_is_the_records_own() {
    let mut c = FlowCase::accepted();
    c.early(&c.data(0, MSS));
    assert!(vsnoop_flow::is_own_syn(&c.f, &vm_syn(ACK)), "the record is ahead of the VM");
    assert!(vsnoop_flow::is_own_syn(&FlowCase::opened().f, &vm_syn(0)));
    let other = segment { seq: vm_at(5_000), ..vm_syn(ACK) };
    assert!(!vsnoop_flow::is_own_syn(&c.f, &other));
    let other = segment { ack: at(77_000), ..vm_syn(ACK) };
    assert!(!vsnoop_flow::is_own_syn(&c.f, &other));
}

#[test]
fn a_mid_stream_flow_has_no_scale_and_is_left_to_the_vm() {
    let mut c = FlowCase::accepted().without_hold();
    let ack = c.ack_of_vm(0, WINDOW);
    c.f = vsnoop_flow::flow_mid_flow(&ack, c.now).expect("an ACK of the VM");
    c.hear(&ack);
    assert!(c.has(FLOW_F_MID_FLOW) && c.has(FLOW_F_UNPROVEN) && !c.has(FLOW_F_SCALE_KNOWN));
    assert_eq!(c.f.right_edge, at(WINDOW.into()), "the raw window: right for every scale");
    c.pass(&c.data(0, 100));
    c.acks(100, WINDOW);
    assert!(!c.has(FLOW_F_UNPROVEN));
    assert_eq!(c.mode(), flow_mode::FLOW_BYPASS, "its scale is not known now either");
}

/// The sender's ACK of the VM's SYN-ACK took another path. The ring may have segments that the
/// record has not seen: here three behind a hole.
#[test]
fn an_unproven_flow_waits_until_the_vm_has_acknowledged_what_the_record_saw() {
    let mut c = FlowCase::accepted().without_hold();
    let e = vsnoop_flow::embryo_of_vm(&vm_syn(ACK));
    let ack = c.ack_of_vm(0, WINDOW);
    c.f = vsnoop_flow::flow_opened(&e, &ack, c.now).expect("an ACK of the VM");
    c.hear(&ack);
    c.pass(&c.data(0, 100));
    for i in 1..4 {
        let (verdict, _) = c.hear(&c.sack_of_vm(0, (i + 1) * 100));
        assert_eq!(verdict, FromVm::Pass);
    }
    c.acks(400, WINDOW);
    assert_eq!(c.mode(), flow_mode::FLOW_ACTIVE);
    c.begin_hold();
    c.early(&c.data(400, 100));
}

#[test]
fn an_ack_beyond_the_record_does_not_prove_an_empty_ring() {
    let mut c = FlowCase::accepted();
    let ack = c.ack_of_vm(0, WINDOW);
    c.f = vsnoop_flow::flow_mid_flow(&ack, c.now).expect("an ACK of the VM");
    c.acks(300, WINDOW);
    assert!(c.has(FLOW_F_UNPROVEN));
    c.pass(&c.data(300, 100));
    c.acks(400, WINDOW);
    assert!(!c.has(FLOW_F_UNPROVEN));
}

#[test]
fn a_record_that_missed_the_senders_ack_is_unproven() {
    let c = FlowCase::accepted();
    let e = vsnoop_flow::embryo_of_vm(&vm_syn(ACK));
    let f = vsnoop_flow::flow_opened(&e, &c.ack_of_vm(2 * MSS, WINDOW), c.now).expect("an ACK");
    assert_eq!(f.next_seq, at(2 * MSS));
    assert_ne!(u32::from(f.flags) & FLOW_F_UNPROVEN, 0);
    assert_ne!(u32::from(f.flags) & FLOW_F_SCALE_KNOWN, 0);
}

#[test]
fn only_a_plain_ack_of_the_vm_creates_a_mid_stream_record() {
    let c = FlowCase::accepted();
    let ack = c.ack_of_vm(0, WINDOW);
    for flags in [SYN, SYN | ACK, RST, RST | ACK, FIN | ACK, PSH] {
        let s = segment { tcp_flags: flags, ..ack };
        assert!(vsnoop_flow::flow_mid_flow(&s, c.now).is_none(), "flags {flags:#x}");
    }
    assert!(vsnoop_flow::flow_mid_flow(&ack, c.now).is_some());
}

/// The VM's SYN with so much data (RFC 7413), answered with an ACK of `acked` bytes of it.
fn fast_open(len: u32, acked: u32) -> Option<embryo> {
    let mut e = vsnoop_flow::embryo_of_vm(&segment { len, ..vm_syn(0) });
    let answer = segment { ack: vm_at(acked), ..sender_syn_ack() };
    vsnoop_flow::answer_embryo(&mut e, &answer).then_some(e)
}

#[test]
fn a_syn_ack_may_take_data_of_the_vms_syn_or_leave_it() {
    for acked in [0, 1, 199, 200] {
        assert!(fast_open(200, acked).is_some(), "{acked}");
    }
    for acked in [201, u32::MAX, 1 << 31] {
        assert!(fast_open(200, acked).is_none(), "{acked}");
    }
    assert!(fast_open(0, 1).is_none());
}

#[test]
fn a_connection_that_began_with_fast_open_is_left_alone_and_its_edge_stays() {
    for acked in [0, 200] {
        let e = fast_open(200, acked).expect("it is the answer to that SYN");
        let mut c = FlowCase::opened().without_hold();
        let first = segment { seq: vm_at(200), ..c.ack_of_vm(0, WINDOW) };
        c.f = vsnoop_flow::flow_opened(&e, &first, c.now).expect("the handshake is whole");
        assert_eq!((c.mode(), c.f.scale), (flow_mode::FLOW_BYPASS, SCALE));
        let mut shown = c.f.adv_edge;
        for i in 0..5 {
            assert_eq!(c.acks(i * MSS, WINDOW).0, FromVm::Pass, "with the VM's own window");
            assert!(c.f.adv_edge.diff(shown) >= 0, "the edge went back");
            assert_eq!(c.f.right_edge, at(i * MSS + FULL), "the scale is known");
            shown = c.f.adv_edge;
            c.pass(&c.data(i * MSS, MSS));
        }
    }
}
