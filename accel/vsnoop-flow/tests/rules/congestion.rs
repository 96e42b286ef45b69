//! Congestion marks (RFC 3168): the VM's echo must reach the sender.

use vsnoop_flow::{FromVm, types::*};

use crate::case::*;

#[test]
fn a_ce_mark_is_left_to_the_vm_until_its_echo_has_ended() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, MSS));
        let mut s = c.data(MSS, MSS);
        s.bits |= SEG_CE as u16;
        assert_ne!(c.pass(&s) & EVENT_OFFLINE_CE, 0);
        let echo = |c: &FlowCase, offset| {
            let mut s = c.ack_of_vm(offset, WINDOW);
            s.tcp_flags |= ECE;
            s
        };
        assert_eq!(c.hear(&echo(&c, 2 * MSS)).0, FromVm::Pass);
        // The VM goes on echoing until the sender says that it has slowed down.
        c.pass(&c.data(2 * MSS, MSS));
        let mut s = c.data(3 * MSS, MSS);
        s.tcp_flags |= CWR;
        c.pass(&s);
        assert_eq!(c.hear(&echo(&c, 3 * MSS)).0, FromVm::Pass);
        c.acks(4 * MSS, WINDOW);
        c.early(&c.data(4 * MSS, MSS));
    }
}

#[test]
fn an_echo_below_next_seq_is_not_suppressed() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, 3 * MSS));
        let mut s = c.ack_of_vm(MSS, c.window_at(MSS));
        s.tcp_flags |= ECE;
        let (verdict, out) = c.hear(&s);
        assert_eq!(verdict, FromVm::Rewrite);
        assert_eq!(out.ack.ack, at(3 * MSS));
        c.pass(&c.data(3 * MSS, MSS));
    }
}

#[test]
fn accurate_ecn_in_the_handshake_means_bypass() {
    let mut syn_ack = vm_syn(ACK);
    syn_ack.tcp_flags |= CWR;
    let e = vsnoop_flow::embryo_of_vm(&syn_ack);
    let c = FlowCase::accepted();
    let f = vsnoop_flow::flow_accepted(&e, &c.ack_of_sender(0, 0), c.now).expect("handshake");
    assert_eq!(u32::from(f.mode), flow_mode::FLOW_BYPASS);

    let mut e = vsnoop_flow::embryo_of_vm(&vm_syn(0));
    let mut syn_ack = sender_syn_ack();
    syn_ack.tcp_flags |= CWR;
    assert!(vsnoop_flow::answer_embryo(&mut e, &syn_ack));
    let f = vsnoop_flow::flow_opened(&e, &c.ack_of_vm(0, WINDOW), c.now).expect("handshake");
    assert_eq!(u32::from(f.mode), flow_mode::FLOW_BYPASS);
}
