//! A VM that has accepted a connection, and sent nothing since: it may have none yet (full accept
//! queue, SYN cookies).

use vsnoop_flow::hold::{Hand, Verdict};
use vsnoop_flow::{segment, types::*};

use crate::case::*;

/// HOLD_UNCONFIRMED_NS.
const ANSWERS_WITHIN: u64 = 200 * MS;

fn is_unconfirmed(c: &FlowCase) -> bool {
    let record = c.has(FLOW_F_UNCONFIRMED);
    assert_eq!(record, c.holds(HOLD_UNCONFIRMED), "the engine knows");
    record
}

/// A connection whose VM was handed a segment, and has not answered.
fn asked() -> FlowCase {
    let mut c = FlowCase::unconfirmed().unbounded();
    c.early(&c.data(0, MSS));
    c
}

#[test]
fn a_connection_is_unconfirmed_until_the_vm_has_sent_something_beyond_its_syn_ack() {
    assert!(is_unconfirmed(&FlowCase::unconfirmed()));
    assert!(is_unconfirmed(&asked()));
    assert!(!is_unconfirmed(&FlowCase::opened()) && !is_unconfirmed(&FlowCase::mid_flow()));
    let says: [fn(&FlowCase) -> segment; 4] = [
        |c| c.ack_of_vm(0, WINDOW),
        |c| c.ack_of_vm(MSS, WINDOW),
        |c| c.data_of_vm(0, 10, 0),
        |c| segment { tcp_flags: ACK | FIN, ..c.ack_of_vm(0, WINDOW) },
    ];
    for says in says {
        let mut c = asked();
        c.hear(&says(&c));
        assert!(!is_unconfirmed(&c));
    }
    // A repeated SYN-ACK shows that the VM has no connection.
    let c = asked();
    assert!(vsnoop_flow::is_own_syn(&c.f, &vm_syn(ACK)));
}

#[test]
fn a_listener_that_does_not_answer_is_handed_nothing_more() {
    let mut c = asked();
    c.wait(ANSWERS_WITHIN);
    c.early(&c.data(MSS, MSS));
    c.wait(1);
    let out = c.held(&c.data(2 * MSS, MSS));
    assert_eq!(out.ack.ack, at(3 * MSS), "the sender is acknowledged all the same");
    assert_ne!(out.events & EVENT_TELL, 0);
    // A VM that was handed nothing has nothing to answer.
    let mut c = FlowCase::unconfirmed();
    c.wait(10 * ANSWERS_WITHIN);
    c.early(&c.data(0, MSS));
    // And a VM that has answered may take its time.
    let mut c = FlowCase::accepted();
    c.early(&c.data(0, MSS));
    c.wait(10 * ANSWERS_WITHIN);
    c.early(&c.data(MSS, MSS));
}

#[test]
fn a_listener_that_answers_is_handed_segments_again() {
    let mut c = asked();
    c.wait(ANSWERS_WITHIN + 1);
    c.held(&c.data(MSS, MSS));
    c.acks(MSS, WINDOW);
    c.engine_hands_over(2 * MSS);
    let verdict = c.decide(&c.data(2 * MSS, MSS)).0;
    assert_eq!(verdict, Verdict::Keep { skip: 0, hand: Hand::AndAck });
}

#[test]
fn segments_to_an_unconfirmed_vm_begin_at_vm_seq() {
    let mut c = asked();
    c.held(&c.data(MSS + 1, MSS));
    assert_eq!(c.f.high_seq, at(MSS));
    // Without data: a segment beyond its RCV.NXT would complete no handshake.
    let (verdict, out) = c.not_kept(&c.ack_of_sender(MSS, 0));
    assert_eq!((verdict, out.ack.seq), (Verdict::Forward, at(0)));
    assert_eq!(vsnoop_flow::hold::sender_ack(&c.f, &c.h).seq, at(0));
    // Nor one below it, which a listener with SYN cookies takes for another handshake.
    c.wait(400_000 * MS);
    let (verdict, out) = c.not_kept(&c.ack_of_sender(MSS - 1, 0));
    assert_eq!((verdict, out.ack.seq), (Verdict::Forward, at(0)));
    // A VM with the connection has all bytes that it was handed.
    c.acks(0, WINDOW);
    let (_, out) = c.not_kept(&c.ack_of_sender(MSS, 0));
    assert_eq!(out.ack.seq, at(MSS));
    assert_eq!(vsnoop_flow::hold::sender_ack(&c.f, &c.h).seq, at(MSS));
}

#[test]
fn a_repeated_syn_ack_keeps_the_record_and_the_held_bytes() {
    let mut c = asked();
    c.wait(ANSWERS_WITHIN + 1);
    c.held(&c.data(MSS, MSS));
    assert!(vsnoop_flow::is_own_syn(&c.f, &vm_syn(ACK)));
}

#[test]
fn a_listener_takes_no_data_if_the_vm_repeats_its_syn_ack_twice() {
    // Nothing came yet that it could take.
    let mut c = FlowCase::unconfirmed();
    c.wait(1_000 * MS);
    assert!(!vsnoop_flow::repeats_syn(&mut c.f, c.now));
    c.wait(MS);
    c.early(&c.data(0, MSS));
    // A VM that was stopped repeats it before it reads its ring.
    c.wait(2_000 * MS);
    assert!(!vsnoop_flow::repeats_syn(&mut c.f, c.now));
    c.wait(4_000 * MS);
    assert!(vsnoop_flow::repeats_syn(&mut c.f, c.now));
}

#[test]
fn a_reset_of_bytes_that_only_the_host_acknowledged_is_counted() {
    let rst = |c: &FlowCase| segment { tcp_flags: RST, ..c.ack_of_vm(0, 0) };
    let mut c = asked();
    let (_, out) = c.hear(&rst(&c));
    assert_eq!(out.events, EVENT_REFUSED);
    assert!(c.holds(HOLD_OVER));
    // With nothing outstanding the sender learns of it, and loses nothing.
    let mut c = FlowCase::unconfirmed();
    let (_, out) = c.hear(&rst(&c));
    assert_eq!(out.events & EVENT_REFUSED, 0);
}

#[test]
fn a_reset_after_a_retransmission_of_the_host_is_counted() {
    let rst = |c: &FlowCase| segment { tcp_flags: RST, ..c.ack_of_vm(MSS, 0) };
    // What the engine sent (resends, probes), and whether the VM answered it before its RST.
    for (resends, probes, answers, is_refused) in
        [(1, 0, false, true), (0, 1, false, true), (1, 1, true, false), (0, 0, false, false)]
    {
        let mut c = FlowCase::accepted();
        c.early(&c.data(0, 2 * MSS));
        c.acks(MSS, c.window_at(MSS));
        c.h.resends += resends;
        c.h.probes += probes;
        if answers {
            c.acks(MSS, c.window_at(MSS));
        }
        let (_, out) = c.hear(&rst(&c));
        assert_eq!(out.events & EVENT_REFUSED != 0, is_refused);
        assert_eq!(c.mode(), flow_mode::FLOW_RESET);
    }
}

#[test]
fn a_reset_of_a_connection_that_the_vm_knows_no_more_is_counted() {
    // A segment of no connection is answered with RST alone; an application that aborts sends ACK,
    // too.
    for (flags, is_forgotten) in [(RST, true), (RST | ACK, false)] {
        let mut c = FlowCase::accepted();
        c.early(&c.data(0, 2 * MSS));
        let (_, out) = c.hear(&segment { tcp_flags: flags, ..c.ack_of_vm(0, 0) });
        assert_eq!(out.events & EVENT_FORGOTTEN != 0, is_forgotten);
        // The VM port has not failed.
        assert_eq!(out.events & EVENT_REFUSED, 0);
        assert_eq!(c.mode(), flow_mode::FLOW_RESET);
    }
}

#[test]
fn a_reset_by_an_application_that_has_closed_is_its_own() {
    let mut c = FlowCase::accepted();
    c.hear(&segment { tcp_flags: ACK | FIN, ..c.ack_of_vm(0, WINDOW) });
    c.early(&c.data(0, 2 * MSS));
    let (_, out) = c.hear(&segment { tcp_flags: RST, ..c.ack_of_vm(0, 0) });
    assert_eq!(out.events & (EVENT_FORGOTTEN | EVENT_REFUSED), 0);
    assert_eq!(c.mode(), flow_mode::FLOW_RESET);
}

#[test]
fn a_reset_by_the_vm_after_that_of_its_sender_is_not_the_hosts() {
    // Without an ACK, and after a retransmission of the engine that the VM did not answer.
    for resends in [0, 1] {
        let mut c = FlowCase::accepted();
        c.early(&c.data(0, 2 * MSS));
        c.pass(&segment { tcp_flags: RST, ..c.data(2 * MSS, 0) });
        c.h.resends += resends;
        let (_, out) = c.hear(&segment { tcp_flags: RST, ..c.ack_of_vm(0, 0) });
        assert_eq!(out.events & (EVENT_FORGOTTEN | EVENT_REFUSED), 0);
        assert_eq!(c.mode(), flow_mode::FLOW_RESET);
    }
}
