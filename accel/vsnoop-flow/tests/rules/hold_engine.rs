//! VM and engine while bytes are held: draining, losses, an engine that is gone.

use vsnoop_flow::hold::{Kept, Verdict};
use vsnoop_flow::{FromVm, segment, types::*};

use crate::case::*;

const END: u32 = FULL + 2 * MSS;
const ENGINE_GONE: u64 = HOLD_ENGINE_GONE_S as u64 * 1000 * MS;

#[test]
fn a_flow_is_active_again_when_the_engine_has_handed_over_everything() {
    let mut c = FlowCase::holding();
    c.acks(FULL, WINDOW);
    c.engine_hands_over(FULL + MSS);
    c.held(&c.data(END, MSS));
    assert_eq!(c.f.high_seq, at(FULL + MSS));
    c.engine_hands_over(END + MSS);
    c.early(&c.data(END + MSS, MSS));
    assert_eq!((c.mode(), c.h.since_ns), (flow_mode::FLOW_ACTIVE, 0));
}

#[test]
fn the_vms_ack_finds_that_all_is_handed_too() {
    let mut c = FlowCase::holding();
    c.engine_hands_over(END);
    c.acks(FULL, WINDOW);
    assert_eq!((c.mode(), c.f.high_seq), (flow_mode::FLOW_ACTIVE, at(END)));
}

#[test]
fn an_impossible_position_of_the_engine_is_ignored() {
    for handed in [at(END + 1), at(FULL - MSS), at(0).add(1 << 31)] {
        let mut c = FlowCase::holding();
        c.h.handed = handed;
        c.acks(FULL / 2, 0);
        assert_eq!((c.mode(), c.f.high_seq), (flow_mode::FLOW_HOLDING, at(FULL)));
    }
}

#[test]
fn ts_recent_follows_the_tsval_of_the_engines_frames() {
    let mut c = FlowCase::holding();
    // A pure ACK of the sender, later than its last data, went with the engine's frames.
    c.ts = c.ts.wrapping_add(10);
    c.decide(&c.ack_of_sender(END, 0));
    c.acks(FULL, WINDOW);
    c.engine_hands_over(END);
    let late = segment { tsval: c.ts.wrapping_sub(1), ..c.data(END, MSS) };
    assert_eq!(c.not_kept(&late).0, Verdict::Pass, "the VM may drop it");
    assert_eq!(c.f.next_seq, at(END));
}

#[test]
fn lateness_is_counted_from_the_engines_hand_over() {
    let mut c = FlowCase::holding();
    c.acks(FULL, WINDOW);
    let before = c.f.progress_ns;
    c.wait(10_000 * MS);
    c.engine_hands_over(END);
    c.h.handed_ns = c.now;
    c.now += MS / 2;
    let (_, out) = c.acks(FULL + MSS, c.window_at(FULL + MSS));
    assert_eq!(out.events & EVENT_LATE, 0, "it had half a millisecond");
    assert!(c.f.progress_ns > before);
    // One that has an older backlog is late since then.
    let mut c = FlowCase::holding();
    let since = c.f.progress_ns;
    c.wait(10_000 * MS);
    c.engine_hands_over(END);
    c.h.handed_ns = c.now;
    let (_, out) = c.acks(FULL, WINDOW);
    assert_eq!((out.events & EVENT_LATE, out.late_since_ns), (EVENT_LATE, since));
}

#[test]
fn the_vms_answer_to_a_held_byte_is_timed_from_the_engines_hand_over() {
    let mut c = FlowCase::holding();
    c.acks(FULL, WINDOW);
    c.wait(10_000 * MS);
    c.engine_hands_over(END);
    c.h.handed_ns = c.now;
    c.now += 30 * MS;
    let (_, out) = c.acks(FULL + MSS, c.window_at(FULL + MSS));
    let timed = EVENT_SAMPLE | EVENT_SAMPLE_EARLY;
    assert_eq!((out.events & timed, out.sample_ns), (timed, 30 * MS));
}

#[test]
fn a_flow_with_a_fin_is_all_handed_when_the_fin_was_handed_over() {
    let mut c = FlowCase::holding();
    c.decide(&segment { tcp_flags: ACK | FIN, ..c.data(END, 0) });
    c.engine_hands_over(END);
    c.acks(FULL, WINDOW);
    assert_eq!(c.mode(), flow_mode::FLOW_HOLDING);
    c.engine_hands_over(END + 1);
    // The VM's own ACK of the FIN ends it.
    c.acks(END, WINDOW);
    assert_eq!(c.mode(), flow_mode::FLOW_UNEXPECTED_SEQ);
    let (verdict, _) = c.acks(END + 1, WINDOW);
    assert_ne!(verdict, FromVm::Drop);
    assert_eq!(c.mode(), flow_mode::FLOW_ACTIVE);
}

#[test]
fn sacked_bytes_of_the_vm_do_not_count_as_handed_over_while_holding() {
    // It passed before the flow was held.
    let mut c = FlowCase::holding();
    c.hear(&c.sack_of_vm(FULL, END + 5 * MSS));
    assert_eq!((c.mode(), c.f.high_seq), (flow_mode::FLOW_HOLDING, at(FULL)));
    c.now += ENGINE_GONE;
    assert_eq!(c.decide(&c.data(0, MSS)).0, Verdict::Reset, "the bytes before it still wait");
}

#[test]
fn a_flow_with_only_a_fin_left_needs_no_engine() {
    let mut c = FlowCase::holding();
    let fin = segment { tcp_flags: ACK | FIN, ..c.data(END, 0) };
    c.decide(&fin);
    c.acks(FULL, WINDOW);
    c.engine_hands_over(END);
    c.now += 1_000 * MS - 1;
    assert_eq!(c.decide(&fin).0, Verdict::Drop, "it lives");
    c.now += 1;
    assert_eq!(c.decide(&fin).0, Verdict::Pass);
    assert!(!c.holds(HOLD_FIN));
    let mut c = FlowCase::holding();
    c.decide(&fin);
    c.engine_hands_over(END - 1);
    c.now += 4_000 * MS;
    assert_eq!(c.decide(&fin).0, Verdict::Drop);
    assert!(c.holds(HOLD_FIN), "there are bytes before it");
}

#[test]
fn a_flow_whose_vm_echoes_congestion_stays_offline_when_all_is_handed() {
    let mut c = FlowCase::holding();
    c.hear(&segment { tcp_flags: ACK | ECE, ..c.ack_of_vm(FULL, WINDOW) });
    assert_eq!(c.mode(), flow_mode::FLOW_HOLDING);
    c.engine_hands_over(END);
    let cwr = segment { tcp_flags: ACK | CWR, ..c.data(END, MSS) };
    assert_eq!(c.not_kept(&cwr).0, Verdict::Pass);
    assert_eq!(c.mode(), flow_mode::FLOW_UNEXPECTED_SEQ);
}

#[test]
fn acks_of_held_bytes_wake_the_engine_and_do_not_pass() {
    let mut c = FlowCase::holding();
    let before = c.h.vm_acks;
    let (verdict, out) = c.acks(MSS, c.window_at(MSS));
    assert_eq!(verdict, FromVm::Drop);
    assert_eq!(out.events & (EVENT_WAKE | EVENT_NOTE), EVENT_NOTE, "there is no room for more");
    assert_eq!((c.h.vm_seq, c.h.right_edge, c.h.vm_acks), (at(MSS), c.f.right_edge, before + 1));
    // An ACK that opens the window wakes it; one that changes nothing does not.
    let (_, out) = c.acks(MSS, WINDOW);
    assert_ne!(out.events & EVENT_WAKE, 0);
    let (_, out) = c.acks(MSS, WINDOW);
    assert_eq!(out.events & EVENT_WAKE, 0);
    assert_eq!(c.h.vm_acks, before + 3);
}

#[test]
fn an_ack_wakes_the_engine_from_a_portion_of_room_on_or_for_all_that_is_held() {
    let wakes = |portion: u32, tail: u32, acks: u32| {
        let mut c = FlowCase::holding();
        c.held(&c.data(END, tail));
        c.h.portion = portion;
        let (_, out) = c.acks(acks, WINDOW);
        let told = out.events & (EVENT_WAKE | EVENT_NOTE);
        assert!(told == EVENT_WAKE || told == EVENT_NOTE);
        told == EVENT_WAKE
    };
    assert!(!wakes(3 * MSS, 5 * MSS, 2 * MSS));
    assert!(wakes(3 * MSS, 5 * MSS, 3 * MSS));
    assert!(wakes(2 * MSS, 5 * MSS, 2 * MSS));
    assert!(wakes(u32::MAX, MSS, 3 * MSS), "there is room for all that is held");
    assert!(wakes(u32::MAX, 5 * MSS, FULL), "it has all that it was handed");
}

#[test]
fn a_vm_that_has_no_room_and_all_that_it_was_handed_wakes_nobody() {
    let mut c = FlowCase::holding();
    let (_, out) = c.acks(FULL, 0);
    assert_eq!(out.events & (EVENT_WAKE | EVENT_NOTE), EVENT_NOTE);
    let out = c.held(&c.data(END, MSS));
    assert_eq!(out.events & (EVENT_WAKE | EVENT_TELL), 0);
    let (_, out) = c.acks(FULL, 1);
    assert_ne!(out.events & EVENT_WAKE, 0);
}

#[test]
fn what_comes_while_the_vm_has_no_room_wakes_nobody() {
    let mut c = FlowCase::holding();
    c.h.portion = 2 * MSS;
    c.acks(MSS, WINDOW);
    let out = c.held(&c.data(END, 4 * MSS));
    assert_eq!(out.events & (EVENT_WAKE | EVENT_TELL), 0);
}

#[test]
fn what_comes_for_a_late_vm_wakes_no_engine_that_looks_by_itself() {
    let mut c = FlowCase::holding();
    c.acks(MSS, WINDOW);
    let out = c.held(&c.data(END, MSS));
    assert_eq!(out.events & (EVENT_WAKE | EVENT_TELL), EVENT_WAKE, "the VM may wait for it");
    c.now += 2 * MS;
    let out = c.held(&c.data(END + MSS, MSS));
    assert_eq!(out.events & (EVENT_WAKE | EVENT_TELL), EVENT_TELL);
}

#[test]
fn data_of_the_vm_leaves_with_the_hosts_ack_and_window() {
    let mut c = FlowCase::holding();
    let (verdict, out) = c.hear(&c.data_of_vm(0, 100, MSS));
    assert_eq!((verdict, out.ack.ack), (FromVm::Rewrite, at(END)));
    assert_eq!(c.edge(&out), c.f.adv_edge.diff(at(0)));
    assert_eq!(c.h.snd_nxt, vm_at(100));
}

#[test]
fn a_record_with_held_bytes_stays_after_both_fins() {
    let mut c = FlowCase::holding();
    c.decide(&segment { tcp_flags: ACK | FIN, ..c.data(END, 0) });
    c.hear(&segment { tcp_flags: ACK | FIN, ..c.ack_of_vm(MSS, c.window_at(MSS)) });
    c.decide(&c.ack_of_sender(END + 1, 1));
    // The VM has acknowledged all that it was handed, and waits for the rest.
    let (_, out) = c.acks(FULL, WINDOW);
    assert_eq!(out.events & EVENT_CLOSED, 0);
    c.engine_hands_over(END + 1);
    let (_, out) = c.acks(END + 1, WINDOW);
    assert_ne!(out.events & EVENT_CLOSED, 0);
}

#[test]
fn the_engine_is_woken_for_a_loss_of_a_copied_byte() {
    let mut c = FlowCase::holding();
    c.acks(MSS, c.window_at(MSS));
    for i in 1..10 {
        let (verdict, out) = c.hear(&c.sack_of_vm(MSS, (2 + i) * MSS));
        assert_eq!(verdict, FromVm::Drop);
        assert_ne!(out.events & EVENT_WAKE, 0);
        assert_eq!(c.h.duplicate_acks, i);
    }
    assert_eq!(c.mode(), flow_mode::FLOW_HOLDING);
}

#[test]
fn the_engine_is_woken_for_a_loss_if_no_bytes_wait() {
    let mut c = FlowCase::full();
    for i in 1..10 {
        assert_eq!(c.hear(&c.sack_of_vm(0, (2 + i) * MSS)).0, FromVm::Drop);
        assert_eq!(c.h.duplicate_acks, i);
    }
    assert_eq!(c.mode(), flow_mode::FLOW_ACTIVE);
}

#[test]
fn a_flow_whose_engine_is_gone_for_30_s_is_reset_at_the_next_packet_of_either_end() {
    let gone = |mut c: FlowCase| {
        c.now = c.port.engine_ns + ENGINE_GONE;
        c
    };
    let mut c = gone(FlowCase::holding());
    let (verdict, out) = c.decide(&c.data(END, MSS));
    assert_eq!((verdict, out.events), (Verdict::Reset, EVENT_ENGINE_GONE));
    assert_eq!(out.ack.seq, c.f.snd_nxt, "exact for the sender");
    assert_eq!((c.mode(), c.f.retired), (flow_mode::FLOW_RESET, END));
    assert!(c.holds(HOLD_OVER));

    let mut c = gone(FlowCase::holding());
    let (verdict, out) = c.acks(MSS, c.window_at(MSS));
    assert_eq!((verdict, out.events & EVENT_ENGINE_GONE), (FromVm::ResetBoth, EVENT_ENGINE_GONE));
    assert_eq!((out.ack.seq, out.ack.ack), (at(MSS), vm_at(0)), "exact for both");
    assert!(c.holds(HOLD_OVER));
}

#[test]
fn a_reset_and_a_syn_pass_if_the_engine_is_gone() {
    for flags in [RST, SYN, RST | ACK, 0] {
        let mut c = FlowCase::holding();
        c.now = c.port.engine_ns + ENGINE_GONE;
        let (verdict, out) = c.decide(&segment { tcp_flags: flags, ..c.data(END, 0) });
        assert_eq!((verdict, out.events), (Verdict::Pass, EVENT_ENGINE_GONE), "{flags}");
        assert_eq!(c.mode(), flow_mode::FLOW_RESET);
        assert!(c.holds(HOLD_OVER));
    }
}

#[test]
fn a_flow_without_an_engine_is_not_reset_within_30_s() {
    let mut c = FlowCase::holding();
    c.now = c.port.engine_ns + ENGINE_GONE - 1;
    assert_eq!(c.decide(&c.data(END, MSS)).0, Verdict::Reack);
    assert_eq!(c.acks(MSS, c.window_at(MSS)).0, FromVm::Drop);
    // Held for a shorter time: a new engine may start.
    let mut c = FlowCase::full();
    c.now += 900 * MS;
    c.held(&c.data(FULL, MSS));
    c.now += ENGINE_GONE - MS;
    assert_eq!(c.decide(&c.data(0, MSS)).0, Verdict::Reack);
    c.now += MS;
    assert_eq!(c.decide(&c.data(0, MSS)).0, Verdict::Reset);
}

#[test]
fn a_flow_without_held_bytes_needs_no_engine() {
    let mut c = FlowCase::full();
    c.now += 2 * ENGINE_GONE;
    assert_ne!(c.decide(&c.data(0, MSS)).0, Verdict::Reset);
    assert_ne!(c.acks(MSS, c.window_at(MSS)).0, FromVm::ResetBoth);
    // Nor a flow for which the engine has handed over everything.
    let mut c = FlowCase::holding();
    c.engine_hands_over(END);
    c.now += 2 * ENGINE_GONE;
    assert_ne!(c.decide(&c.data(0, MSS)).0, Verdict::Reset);
}

#[test]
fn acknowledged_chunks_are_freed_by_one_cpu() {
    let mut c = FlowCase::new();
    c.early(&c.data(0, 10_000));
    let (_, out) = c.hear_only(&c.ack_of_vm(HOLD_CHUNK - 1, WINDOW));
    assert_eq!(out.events & EVENT_FREE, 0, "not a whole chunk");
    let (_, out) = c.hear_only(&c.ack_of_vm(HOLD_CHUNK, WINDOW));
    assert_ne!(out.events & EVENT_FREE, 0);
    assert_eq!(c.h.claimed, 1, "claimed for that");
    let (_, out) = c.hear_only(&c.ack_of_vm(HOLD_CHUNK + 1, WINDOW));
    assert_eq!(out.events & EVENT_FREE, 0, "it has the claim already");
    c.h.claimed = 0;
    let (_, out) = c.hear_only(&c.ack_of_vm(10_000, WINDOW));
    assert_ne!(out.events & EVENT_FREE, 0, "all of it");
}

#[test]
fn bytes_left_to_the_vm_do_not_count_as_copies() {
    let mut c = FlowCase::new();
    c.early(&c.data(0, MSS));
    c.acks(MSS, WINDOW);
    c.policy.run = port_run::PORT_PAUSED;
    assert_eq!(c.not_kept(&c.data(MSS, MSS)).0, Verdict::Pass);
    c.acks(2 * MSS, WINDOW);
    c.policy.run = port_run::PORT_ACCELERATE;
    c.early(&c.data(2 * MSS, MSS));
    assert_eq!((c.h.first, c.h.tail), (at(2 * MSS), at(3 * MSS)));
}

/// Offline: a marked segment was left to the VM, whose window takes only the first bytes of it.
fn offline() -> FlowCase {
    let mut c = FlowCase::full();
    c.acks(FULL, 1);
    let s = c.data(FULL, MSS);
    let s = segment { bits: s.bits | SEG_CE as u16, ..s };
    assert_eq!(c.decide(&s).0, Verdict::Pass);
    assert_eq!(c.mode(), flow_mode::FLOW_UNEXPECTED_SEQ);
    c.acks(FULL, 1);
    assert_eq!((c.mode(), c.f.next_seq), (flow_mode::FLOW_UNEXPECTED_SEQ, at(FULL)));
    assert!(c.f.high_seq.diff(c.f.next_seq) > 0);
    c
}

fn last(c: &FlowCase) -> segment {
    segment { tcp_flags: ACK | FIN, ..c.data(FULL, MSS) }
}

#[test]
fn a_segment_beyond_the_vms_window_is_held_when_an_offline_flow_has_nothing_outstanding() {
    // The sender was shown more than the VM's window, and would repeat the same segment for ever.
    let mut c = offline();
    let out = c.held(&last(&c));
    assert_eq!((out.ack.ack, c.f.high_seq), (at(FULL + MSS), at(FULL)));
    assert!(c.holds(HOLD_FIN));
    assert_eq!((c.h.handed, c.h.high_seq), (at(FULL), at(FULL)), "the engine begins there");
}

#[test]
fn an_offline_flow_with_outstanding_bytes_is_left_to_the_vm() {
    let mut c = offline();
    c.f.vm_seq = at(FULL - 1);
    assert_eq!(c.not_kept(&c.data(FULL, MSS)).0, Verdict::Pass);
}

#[test]
fn an_offline_flows_data_within_the_window_are_left_to_the_vm() {
    let mut c = offline();
    assert_eq!(c.not_kept(&c.data(FULL, 128)).0, Verdict::Pass);
    assert_eq!(c.not_kept(&c.data(FULL + 128, MSS)).0, Verdict::Pass, "nor is what is not next");
}

#[test]
fn a_flow_that_has_outstanding_bytes_again_after_the_copy_is_not_held() {
    let mut c = offline();
    let s = c.data(FULL, MSS);
    assert!(matches!(c.decide(&s).0, Verdict::Keep { .. }));
    c.f.vm_seq = at(FULL - 1);
    assert_eq!(c.after_copy(&s, true, false).0, Kept::Pass);
}
