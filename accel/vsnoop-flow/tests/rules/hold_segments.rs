//! Each kind of segment while the host holds bytes of its flow.

use vsnoop_flow::hold::{Hand, Kept, Verdict};
use vsnoop_flow::{FromVm, segment, types::*};

use crate::case::*;

/// Where the held stream of [`FlowCase::holding`] ends.
const END: u32 = FULL + 2 * MSS;

#[test]
fn in_order_data_within_the_vms_window_are_copied_and_handed_over() {
    let mut c = FlowCase::new();
    let out = c.early(&c.data(0, MSS));
    assert_eq!((out.ack.ack, c.h.tail, c.f.high_seq), (at(MSS), at(MSS), at(MSS)));
    assert_eq!(c.mode(), flow_mode::FLOW_ACTIVE);
    assert_eq!(out.events & EVENT_WAKE, 0, "the engine has nothing to do");
}

#[test]
fn data_beyond_the_vms_window_are_held() {
    let mut c = FlowCase::full();
    let out = c.held(&c.data(FULL, MSS));
    assert_eq!((out.ack.ack, c.h.tail), (at(FULL + MSS), at(FULL + MSS)));
    assert_eq!((c.f.high_seq, c.h.high_seq, c.h.handed), (at(FULL), at(FULL), at(FULL)));
    assert_ne!(out.events & EVENT_WAKE, 0, "the engine learns of it");
    assert_eq!(c.h.since_ns, c.now);
}

#[test]
fn a_segment_partly_within_the_vms_window_is_held_as_a_whole() {
    let mut c = FlowCase::new();
    c.early(&c.data(0, FULL - 100));
    c.held(&c.data(FULL - 100, MSS));
    assert_eq!(c.f.high_seq, at(FULL - 100));
}

#[test]
fn a_segment_that_the_ring_refuses_is_held() {
    let mut c = FlowCase::new();
    let s = c.data(0, MSS);
    assert_eq!(c.decide(&s).0, Verdict::Keep { skip: 0, hand: Hand::AndAck });
    let (kept, out) = c.after_copy(&s, true, false);
    assert_eq!((kept, out.ack.ack, c.mode()), (Kept::Ack, at(MSS), flow_mode::FLOW_HOLDING));
    assert_eq!(c.f.high_seq, at(0));
}

#[test]
fn a_clone_is_held_if_the_vm_shrinks_its_window_meanwhile() {
    let mut c = FlowCase::new();
    let s = c.data(0, MSS);
    assert_eq!(c.decide(&s).0, Verdict::Keep { skip: 0, hand: Hand::AndAck });
    c.acks(0, 5);
    let (kept, _) = c.after_copy(&s, true, true);
    assert_eq!((kept, c.mode()), (Kept::Ack, flow_mode::FLOW_HOLDING));
    assert_eq!((c.f.next_seq, c.f.high_seq), (at(MSS), at(0)), "it is handed over again");
}

#[test]
fn later_data_do_not_overtake_held_bytes() {
    let mut c = FlowCase::holding();
    c.acks(FULL, WINDOW);
    // The VM's window has room now, but the engine has not handed over everything yet.
    c.held(&c.data(END, MSS));
    assert_eq!(c.f.high_seq, at(FULL));
}

#[test]
fn without_memory_nothing_is_acknowledged() {
    let mut c = FlowCase::holding();
    let s = c.data(END, MSS);
    assert!(matches!(c.decide(&s).0, Verdict::Keep { .. }));
    let edge = c.f.adv_edge;
    let (kept, out) = c.after_copy(&s, false, false);
    // A sender without SACK repeats it after three such ACKs.
    assert_eq!((kept, c.f.next_seq, out.ack.ack), (Kept::Reack, at(END), at(END)));
    assert!(c.f.adv_edge.diff(edge) >= 0, "the window is not taken back");
    assert_ne!(out.events & EVENT_HOLD_FULL, 0);
    assert_eq!(c.h.claimed, 0);
    // With nothing held the VM gets it, and answers.
    let mut c = FlowCase::new();
    let s = c.data(0, MSS);
    assert!(matches!(c.decide(&s).0, Verdict::Keep { .. }));
    let (kept, _) = c.after_copy(&s, false, false);
    assert_eq!((kept, c.mode()), (Kept::Pass, flow_mode::FLOW_NO_BUF));
    assert_eq!((c.f.next_seq, c.f.high_seq), (at(0), at(MSS)));
}

/// An operator must learn whether a larger hold helps.
#[test]
fn what_is_not_kept_is_counted_by_its_reason() {
    const REASONS: u32 = EVENT_HOLD_FULL | EVENT_HOLD_BUSY | EVENT_NOT_COPIED;
    for mut c in [FlowCase::new(), FlowCase::holding()] {
        let s = c.data(c.f.next_seq.diff(at(0)) as u32, MSS);
        let mut full = c.clone();
        assert!(matches!(full.decide(&s).0, Verdict::Keep { .. }));
        assert_eq!(full.after_copy(&s, false, false).1.events & REASONS, EVENT_HOLD_FULL);
        let mut failed = c.clone();
        assert!(matches!(failed.decide(&s).0, Verdict::Keep { .. }));
        assert_eq!(failed.after_failed_copy(&s).1.events & REASONS, EVENT_NOT_COPIED);
        // Another CPU copies to the chain.
        c.h.claimed = 1;
        let (verdict, out) = c.decide(&s);
        assert!(!matches!(verdict, Verdict::Keep { .. }));
        assert_eq!(out.events & REASONS, EVENT_HOLD_BUSY);
    }
}

#[test]
fn only_the_new_bytes_of_a_segment_are_kept() {
    let mut c = FlowCase::holding();
    let s = c.data(END - 1_000, 3_000);
    assert_eq!(c.decide(&s).0, Verdict::Keep { skip: 1_000, hand: Hand::Nothing });
    let before = c.f.early_bytes;
    let (_, out) = c.after_copy(&s, true, false);
    assert_eq!((out.ack.ack, c.f.early_bytes - before), (at(END + 2_000), 2_000));
}

#[test]
fn old_data_and_probes_are_answered_by_the_host() {
    let mut c = FlowCase::holding();
    for (offset, len) in [(0, MSS), (FULL, MSS), (END - 1, 0), (END - 1, 1), (0, 0)] {
        let reacked = c.f.reacked;
        let (verdict, out) = c.not_kept(&c.data(offset, len));
        assert_eq!((verdict, out.ack.ack), (Verdict::Reack, at(END)), "{offset}+{len}");
        assert_eq!(c.f.reacked, reacked + 1);
    }
}

#[test]
fn data_beyond_the_shown_edge_are_answered_and_not_kept() {
    let mut c = FlowCase::holding();
    c.h.rcv_win = 0;
    c.f.adv_edge = at(END);
    c.port.prompt_until_ns = c.now + MS;
    let (verdict, out) = c.not_kept(&c.data(END, 1));
    assert_eq!((verdict, out.ack.ack, out.ack.window), (Verdict::Reack, at(END), 0));
}

/// RFC 9293, section 3.10.7.4. One without data may be such an answer itself.
#[test]
fn data_that_the_vm_would_refuse_are_answered_and_nothing_else_is() {
    let mut c = FlowCase::holding();
    let edge = c.f.adv_edge.max(c.f.right_edge).diff(at(0)) as u32;
    let (verdict, out) = c.not_kept(&c.data(edge + 1, MSS));
    assert_eq!((verdict, out.ack.ack, out.ack.seq), (Verdict::Reack, at(END), c.f.snd_nxt));
    assert_eq!(out.ack.repeated, 0);
    assert_eq!(c.not_kept(&c.data(edge + 1, 0)).0, Verdict::Drop);
}

#[test]
fn a_pure_ack_reaches_the_vm_at_once_where_the_vm_accepts_it() {
    let mut c = FlowCase::holding();
    c.hear(&c.data_of_vm(0, 100, FULL));
    c.h.handed_tsval = c.h.tsval.wrapping_add(5);
    let s = segment { window: 77, ..c.ack_of_sender(END, 100) };
    let (verdict, out) = c.not_kept(&s);
    assert_eq!(verdict, Verdict::Forward);
    assert_eq!(out.ack.seq, at(FULL), "what the VM has been handed");
    assert_eq!(out.ack.tsval, c.h.handed_tsval, "not newer than the frames before it");
    assert_eq!(
        (c.h.snd_una, c.h.sender_window),
        (vm_at(100), 77),
        "the engine's frames say so too"
    );
}

#[test]
fn a_segment_with_an_ack_beyond_snd_nxt_is_dropped() {
    let mut c = FlowCase::holding();
    let una = c.h.snd_una;
    assert_eq!(c.not_kept(&c.ack_of_sender(END, 1)).0, Verdict::Drop);
    let s = segment { ack: vm_at(1), ..c.data(END, MSS) };
    assert_eq!(c.not_kept(&s).0, Verdict::Reack, "its data are answered, and not kept");
    assert_eq!(c.h.snd_una, una);
}

#[test]
fn a_segment_that_paws_drops_is_not_kept() {
    let mut c = FlowCase::holding();
    let s = segment { tsval: c.f.ts_recent.wrapping_sub(1), ..c.data(END, MSS) };
    assert_eq!(c.not_kept(&s).0, Verdict::Reack);
    let s = segment { bits: 0, ..c.data(END, MSS) };
    assert_eq!(c.not_kept(&s).0, Verdict::Reack, "without the timestamps in use");
}

#[test]
fn urgent_data_and_foreign_options_are_dropped_while_bytes_are_held() {
    let mut c = FlowCase::holding();
    let urgent = segment { tcp_flags: ACK | URG, ..c.data(END, 10) };
    let foreign = segment { bits: (SEG_FOREIGN | SEG_TIMESTAMPS) as u16, ..c.data(END, 10) };
    let bare = segment { tcp_flags: PSH, ..c.data(END, 10) };
    for s in [urgent, foreign, bare] {
        assert_eq!(c.not_kept(&s).0, Verdict::Drop);
        assert_eq!(c.mode(), flow_mode::FLOW_HOLDING);
    }
}

#[test]
fn a_paused_port_keeps_nothing_more() {
    let mut c = FlowCase::holding();
    c.policy.run = port_run::PORT_PAUSED;
    for s in [c.data(END, MSS), segment { tcp_flags: ACK | FIN, ..c.data(END, 0) }] {
        let (verdict, out) = c.not_kept(&s);
        assert_eq!((verdict, out.ack.ack), (Verdict::Reack, at(END)));
    }
    assert!(!c.holds(HOLD_FIN));
    // One that was being copied when the port was paused.
    let mut c = FlowCase::holding();
    let s = c.data(END, MSS);
    assert!(matches!(c.decide(&s).0, Verdict::Keep { .. }));
    c.policy.run = port_run::PORT_PAUSED;
    assert_eq!(c.after_copy(&s, true, false).0, Kept::Reack);
    assert_eq!(c.f.next_seq, at(END));
}

#[test]
fn a_ce_mark_on_held_data_is_recorded_for_the_engine() {
    let mut c = FlowCase::holding();
    let s = c.data(END, MSS);
    c.held(&segment { bits: s.bits | SEG_CE as u16, ..s });
    assert_eq!(c.h.marked, 1);
    c.held(&c.data(END + MSS, MSS));
    assert_eq!(c.h.marked, 1);
}

#[test]
fn a_ce_mark_goes_to_the_vm_if_nothing_is_held() {
    for offset in [0, FULL] {
        let mut c = FlowCase::new();
        if offset > 0 {
            c.early(&c.data(0, FULL));
        }
        let s = c.data(offset, MSS);
        let s = segment { bits: s.bits | SEG_CE as u16, ..s };
        assert_eq!(c.not_kept(&s).0, Verdict::Pass);
        assert_eq!(c.mode(), flow_mode::FLOW_UNEXPECTED_SEQ);
    }
}

#[test]
fn a_fin_without_data_is_recorded_and_not_acknowledged() {
    let mut c = FlowCase::holding();
    let fin = segment { tcp_flags: ACK | FIN, ..c.data(END, 0) };
    let (verdict, out) = c.not_kept(&fin);
    assert_eq!(verdict, Verdict::Drop);
    assert!(c.holds(HOLD_FIN) && c.has(FLOW_F_FIN_SENDER));
    assert_ne!(out.events & EVENT_WAKE, 0);
    // Again: the engine knows.
    let (verdict, out) = c.not_kept(&fin);
    assert_eq!((verdict, out.events), (Verdict::Drop, 0));
}

#[test]
fn a_fin_with_data_is_kept_and_its_data_acknowledged() {
    let mut c = FlowCase::holding();
    let s = segment { tcp_flags: ACK | FIN | PSH, ..c.data(END, 100) };
    let out = c.held(&s);
    assert_eq!((out.ack.ack, c.h.tail), (at(END + 100), at(END + 100)));
    assert!(c.holds(HOLD_FIN) && c.has(FLOW_F_FIN_SENDER));
    // Its data again.
    assert_eq!(c.not_kept(&s).0, Verdict::Drop);
}

/// Its sender would repeat it only after a timeout: no ACK tells that it is missing.
#[test]
fn a_fin_beyond_a_hole_follows_the_bytes_that_fill_the_hole() {
    for len in [0, 100] {
        let mut c = FlowCase::holding();
        let s = segment { tcp_flags: ACK | FIN, ..c.data(END + MSS, len) };
        let ack = if len > 0 { c.held(&s).ack } else { c.not_kept(&s).1.ack };
        assert_eq!(ack.ack, at(END));
        assert!(!c.holds(HOLD_FIN) && !c.has(FLOW_F_FIN_SENDER));
        let out = c.held(&c.data(END, MSS - 10));
        assert!(!c.holds(HOLD_FIN), "ten bytes are missing");
        assert_eq!(out.ack.ack, at(END + MSS - 10));
        let out = c.held(&c.data(END + MSS - 10, 10));
        assert!(c.holds(HOLD_FIN) && c.has(FLOW_F_FIN_SENDER));
        // The VM acknowledges the FIN itself.
        assert_eq!((out.ack.ack, c.h.tail), (at(END + MSS + len), at(END + MSS + len)));
    }
}

/// Someone else has invented it.
#[test]
fn a_fin_beyond_a_hole_that_is_none_is_forgotten() {
    let mut c = FlowCase::holding();
    let garbage = segment { tsval: c.f.ts_recent.wrapping_sub(1), ..c.data(END + 10, 0) };
    for s in [c.data(END + 10, 0), garbage] {
        c.not_kept(&segment { tcp_flags: ACK | FIN, ..s });
    }
    c.held(&c.data(END, MSS));
    c.held(&c.data(END + MSS, MSS));
    assert!(!c.holds(HOLD_FIN) && !c.holds(HOLD_FIN_WAITS));
    c.not_kept(&segment { tcp_flags: ACK | FIN, ..garbage });
    assert!(!c.holds(HOLD_FIN_WAITS));
}

#[test]
fn nothing_is_kept_behind_a_fin() {
    let mut c = FlowCase::holding();
    c.not_kept(&segment { tcp_flags: ACK | FIN, ..c.data(END, 0) });
    c.not_kept(&c.data(END, MSS));
    c.not_kept(&c.data(END + 1, MSS));
}

#[test]
fn a_fin_with_data_beyond_the_vms_window_is_kept() {
    let mut c = FlowCase::full();
    let s = segment { tcp_flags: ACK | FIN, ..c.data(FULL, 100) };
    let out = c.held(&s);
    assert_eq!((out.ack.ack, c.h.tail), (at(FULL + 100), at(FULL + 100)));
    assert!(c.holds(HOLD_FIN) && c.has(FLOW_F_FIN_SENDER));
    // Not beyond a hole.
    let mut c = FlowCase::full();
    let s = segment { tcp_flags: ACK | FIN, ..c.data(FULL + 10, 100) };
    assert_eq!(c.not_kept(&s).0, Verdict::Reack);
}

#[test]
fn a_fin_goes_to_the_vm_if_nothing_is_held() {
    let mut c = FlowCase::new();
    let s = segment { tcp_flags: ACK | FIN, ..c.data(0, 100) };
    assert_eq!(c.not_kept(&s).0, Verdict::Pass);
    assert!(!c.holds(HOLD_FIN));
}

#[test]
fn a_reset_at_next_seq_is_forwarded_at_the_vms_seq_and_ends_the_hold() {
    let mut c = FlowCase::holding();
    let s = segment { tcp_flags: RST, ..c.data(END, 0) };
    let (verdict, out) = c.not_kept(&s);
    assert_eq!((verdict, out.ack.seq), (Verdict::Forward, at(FULL)));
    assert!(c.has(FLOW_F_CLOSED) && c.holds(HOLD_OVER));
}

#[test]
fn after_a_reset_that_the_vm_may_have_missed_the_host_answers_the_vm_with_another() {
    let mut holding = FlowCase::holding();
    holding.decide(&segment { tcp_flags: RST, ..holding.data(END, 0) });
    let mut early = FlowCase::full();
    early.decide(&segment { tcp_flags: RST, ..early.data(FULL, 0) });
    for mut c in [holding, early] {
        // Each at its ACK: the VM takes it if that is the last.
        for offset in [MSS, 2 * MSS, 2 * MSS, 3 * MSS] {
            let (verdict, out) = c.acks(offset, c.window_at(offset));
            assert_eq!((verdict, out.ack.seq), (FromVm::Reset, at(offset)));
        }
        let (verdict, out) = c.hear(&c.data_of_vm(0, 100, 3 * MSS));
        assert_eq!((verdict, out.ack.seq), (FromVm::Reset, at(3 * MSS)));
        assert_eq!(out.ack.ack, vm_at(100));
    }
}

#[test]
fn a_syn_and_a_reset_elsewhere_pass_to_the_vm_which_challenges_them() {
    for (flags, offset) in [(RST, FULL - 1), (RST, FULL), (SYN, FULL), (SYN, END)] {
        let mut c = FlowCase::holding();
        let s = segment { tcp_flags: flags, ..c.data(offset, 0) };
        assert_eq!(c.not_kept(&s).0, Verdict::Pass);
        assert!(c.has(FLOW_F_CHALLENGE_DUE));
    }
    // A RST whose SEQ is not exact ends nothing.
    for offset in [FULL - 1, FULL, FULL + 1, END - 1, END + 1, END + 100_000] {
        let mut c = FlowCase::holding();
        let (verdict, _) = c.not_kept(&segment { tcp_flags: RST, ..c.data(offset, 0) });
        assert_ne!(verdict, Verdict::Forward);
        assert!(!c.has(FLOW_F_CLOSED) && !c.holds(HOLD_OVER));
        assert_eq!(c.mode(), flow_mode::FLOW_HOLDING);
    }
}

#[test]
fn one_cpu_at_a_time_claims_the_chain() {
    let mut c = FlowCase::holding();
    let (first, second) = (c.data(END, MSS), c.data(END + MSS, MSS));
    assert!(matches!(c.decide(&first).0, Verdict::Keep { .. }));
    assert_eq!(c.h.claimed, 1);
    let (verdict, out) = c.decide(&second);
    assert_eq!((verdict, out.ack.ack), (Verdict::Reack, at(END)), "the sender repeats it");
    c.after_copy(&first, true, false);
    assert_eq!(c.h.claimed, 0);
    c.held(&second);
}

#[test]
fn a_segment_goes_to_the_vm_if_another_cpu_has_claimed_the_chain() {
    let mut c = FlowCase::new();
    let (first, second) = (c.data(0, MSS), c.data(MSS, MSS));
    assert!(matches!(c.decide(&first).0, Verdict::Keep { .. }));
    assert_eq!(c.decide(&second).0, Verdict::Pass, "nothing is lost by it");
    assert_ne!(c.mode(), flow_mode::FLOW_HOLDING);
}

#[test]
fn an_out_of_order_segment_is_kept_if_the_hold_has_room_for_the_shown_window() {
    for chunks in [0, 1] {
        let mut c = FlowCase::new();
        // The VM's own window is larger than what is free.
        let free = c.f.adv_edge.diff(c.f.next_seq) as u32 / HOLD_CHUNK + chunks;
        c.port.chunks_used = CHUNKS - free;
        let s = c.data(MSS, MSS);
        assert!(matches!(c.decide(&s).0, Verdict::Keep { .. }));
        let (kept, _) = c.after_copy(&s, true, false);
        assert_eq!(kept == Kept::Ack, chunks == 1);
        assert_eq!(c.mode() == flow_mode::FLOW_HOLDING, chunks == 1);
    }
    // The ring refuses the segment.
    let mut c = FlowCase::new();
    c.port.chunks_used = CHUNKS - 1;
    let s = c.data(0, MSS);
    assert!(matches!(c.decide(&s).0, Verdict::Keep { .. }));
    assert_eq!(c.after_copy(&s, true, false).0, Kept::Ack);
}

#[test]
fn bytes_acknowledged_during_the_copy_are_not_acknowledged_twice() {
    let mut c = FlowCase::full();
    let s = c.data(FULL, MSS);
    assert!(matches!(c.decide(&s).0, Verdict::Keep { .. }));
    c.f.next_seq = at(FULL + MSS);
    let before = c.f.early_bytes;
    assert_ne!(c.after_copy(&s, true, false).0, Kept::Ack);
    assert_eq!(c.f.early_bytes, before);
}

#[test]
fn a_flow_that_went_to_bypass_while_a_segment_was_copied_leaves_it_to_the_vm() {
    for (taken, kept) in [(true, Kept::Drop), (false, Kept::Pass)] {
        let mut c = FlowCase::new();
        let s = c.data(0, MSS);
        assert!(matches!(c.decide(&s).0, Verdict::Keep { .. }));
        c.f.mode = flow_mode::FLOW_BYPASS as u8;
        assert_eq!(c.after_copy(&s, true, taken).0, kept);
        assert_eq!((c.f.next_seq, c.h.claimed), (at(0), 0));
    }
}

#[test]
fn the_senders_ack_and_window_are_noted_with_every_verdict() {
    let mut c = FlowCase::holding();
    c.hear(&c.data_of_vm(0, 100, FULL));
    let newer = c.h.tsval.wrapping_add(9);
    let bare = segment { tcp_flags: ACK | URG, ..c.data(END, 1) };
    let s = segment { ack: vm_at(60), tsval: newer, window: 5, ..bare };
    assert_eq!(c.not_kept(&s).0, Verdict::Drop);
    assert_eq!((c.h.snd_una, c.h.tsval, c.h.sender_window), (vm_at(60), newer, 5));
    // Not what is older.
    c.not_kept(&segment { ack: vm_at(50), tsval: newer - 3, window: 6, ..bare });
    assert_eq!((c.h.snd_una, c.h.tsval, c.h.sender_window), (vm_at(60), newer, 5));
    let tsecr = c.h.tsecr;
    c.not_kept(&segment { ack: vm_at(60), tsval: newer - 1, tsecr: tsecr - 1, ..bare });
    assert_eq!((c.h.tsval, c.h.tsecr), (newer, tsecr));
}

#[test]
fn the_ack_of_a_segment_that_the_vm_refuses_is_not_noted() {
    let mut c = FlowCase::holding();
    c.hear(&c.data_of_vm(0, 100, FULL));
    let edge = c.f.adv_edge.diff(at(0)) as u32;
    let shown = |c: &FlowCase| (c.h.snd_una, c.h.tsval, c.h.sender_window);
    let before = shown(&c);
    let newer = c.h.tsval.wrapping_add(1 << 30);
    let says = |c: &mut FlowCase, offset| {
        c.decide(&segment { tsval: newer, window: 5, ..c.ack_of_sender(offset, 60) });
        shown(c)
    };
    // A blind attacker (RFC 5961) that knows only the addresses; or an old segment.
    for offset in [0, FULL - 2, edge + 1, edge + (1 << 30)] {
        assert_eq!(says(&mut c.clone(), offset), before, "{offset}");
    }
    for offset in [END, edge] {
        assert_eq!(says(&mut c.clone(), offset), (vm_at(60), newer, 5), "{offset}");
    }
    // A probe's SEQ.
    assert_eq!(says(&mut c, FULL - 1).0, vm_at(60));
}

#[test]
fn an_older_window_does_not_replace_a_newer_one() {
    let mut c = FlowCase::holding();
    c.hear(&c.data_of_vm(0, 100, MSS));
    let says = |c: &mut FlowCase, offset, ack, window| {
        c.decide(&segment { window, ..c.ack_of_sender(offset, ack) });
        c.h.sender_window
    };
    assert_eq!(says(&mut c, END, 60, 20), 20);
    assert_eq!(says(&mut c, END, 60, 10), 10, "it takes some back, or says so twice");
    assert_eq!(says(&mut c, END - 1, 60, 30), 10, "sent before");
    assert_eq!(says(&mut c, END - 1, 100, 40), 10, "sent before, though it acknowledges more");
    assert_eq!(c.h.snd_una, vm_at(100));
    assert_eq!(says(&mut c, END, 100, 50), 50);
    // Segments that are left to the VM do not pass here: the hold's fields follow the VM's ACK.
    c.acks(END, WINDOW);
    assert!(c.h.sender_seq.diff(at(END - 1)) >= 0);
    c.h.sender_seq = at(0);
    c.acks(END, WINDOW);
    assert_eq!(c.h.sender_seq, at(END - 1));
}
