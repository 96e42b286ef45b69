//! The host sends no early ACKs for a VM that has sent nothing for long.

use vsnoop_flow::hold::Verdict;
use vsnoop_flow::{FromVm, segment, types::*};

use crate::case::*;

const END: u32 = FULL + 2 * MSS;
/// The operator's `silence_ms`, plus a unit of the record's clock.
const SILENCE: u64 = 20_000 * MS;
const COARSE: u64 = 1 << 20;

fn silent_for(mut c: FlowCase, ns: u64) -> FlowCase {
    c.policy.silence_ms = (SILENCE / MS) as u32;
    c.wait(ns);
    c
}

fn silent(c: FlowCase) -> FlowCase {
    silent_for(c, SILENCE + COARSE)
}

#[test]
fn nothing_is_acknowledged_for_a_silent_vm() {
    for c in FlowCase::both() {
        let mut c = silent(c);
        c.pass(&c.data(0, MSS));
        assert_eq!(c.f.early_acks, 0);
        // It answers: it is alive.
        c.acks(MSS, WINDOW);
        c.early(&c.data(MSS, MSS));
    }
    let mut c = silent(FlowCase::holding());
    assert_eq!(c.not_kept(&c.data(END, MSS)).0, Verdict::Drop);
    assert_eq!(c.not_kept(&c.data(END + MSS, MSS)).0, Verdict::Drop, "nor reported");
    c.acks(MSS, c.window_at(MSS));
    c.held(&c.data(END, MSS));
}

#[test]
fn nothing_is_acknowledged_again_for_a_silent_vm() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, 2 * MSS));
        let mut c = silent(c);
        c.pass(&c.data(0, MSS));
        c.pass(&c.data(2 * MSS - 1, 0));
        assert_eq!(c.f.reacked, 0);
    }
    let mut c = silent(FlowCase::holding());
    assert_eq!(c.not_kept(&c.data(0, MSS)).0, Verdict::Drop);
    assert_eq!(c.f.reacked, 0);
}

#[test]
fn before_silence_ms_the_host_answers() {
    let mut c = silent_for(FlowCase::holding(), SILENCE - COARSE);
    assert_eq!(c.not_kept(&c.data(0, MSS)).0, Verdict::Reack);
    assert_eq!(c.not_kept(&c.data(END - 1, 0)).0, Verdict::Reack);
    c.held(&c.data(END, MSS));
    // A new connection counts as heard.
    let mut c = FlowCase::unconfirmed();
    c.policy.silence_ms = 1;
    c.early(&c.data(0, MSS));
}

#[test]
fn a_keep_alive_passes_to_a_silent_vm() {
    let mut c = FlowCase::holding();
    c.acks(MSS, c.window_at(MSS));
    let mut c = silent(c);
    for offset in [END - 1, 0] {
        let (verdict, out) = c.not_kept(&c.data(offset, 0));
        // Below its RCV.NXT, so that it answers (RFC 9293, section 3.8.4).
        assert_eq!((verdict, out.ack.seq), (Verdict::Forward, at(MSS - 1)));
        assert_eq!(out.ack.tsval, c.h.handed_tsval);
    }
    // Its answer reaches the sender, with NEXT_SEQ as ACK.
    c.f.flags |= FLOW_F_REPLY_DUE as u16;
    let (verdict, out) = c.acks(MSS, c.window_at(MSS));
    assert_eq!((verdict, out.ack.ack), (FromVm::Rewrite, at(END)));
    assert_eq!(c.not_kept(&c.data(END - 1, 0)).0, Verdict::Reack, "it is there");
}

#[test]
fn acks_and_resets_of_the_sender_reach_a_silent_vm() {
    let mut c = silent(FlowCase::holding());
    let (verdict, out) = c.not_kept(&c.ack_of_sender(END, 0));
    assert_eq!((verdict, out.ack.seq), (Verdict::Forward, at(FULL)));
    let (verdict, _) = c.not_kept(&segment { tcp_flags: RST, ..c.data(END, 0) });
    assert_eq!(verdict, Verdict::Forward);
}

#[test]
fn any_packet_of_the_vm_ends_its_silence() {
    let says: [fn(&FlowCase) -> segment; 3] = [
        |c| c.data_of_vm(0, 1, 0),
        // Even an old one.
        |c| segment { ack: at(0).add(u32::MAX), ..c.ack_of_vm(0, WINDOW) },
        |c| c.ack_of_vm(0, WINDOW),
    ];
    for says in says {
        let mut c = silent(FlowCase::new());
        c.hear(&says(&c));
        c.early(&c.data(0, MSS));
    }
}
