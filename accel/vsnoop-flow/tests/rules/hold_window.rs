//! With a hold: how far the sender's window grows beyond the VM's.

use vsnoop_flow::hold::Verdict;
use vsnoop_flow::{FromVm, segment, types::*};

use crate::case::*;

const UNIT: i32 = 1 << SCALE;

/// Up to a unit of the scale.
#[track_caller]
fn about(edge: i32, expected: u32) {
    assert!((edge - expected as i32).abs() < UNIT, "the edge {edge} is not about {expected}");
}

#[test]
fn the_window_grows_by_two_bytes_for_each_byte_acknowledged() {
    let mut c = FlowCase::new();
    let out = c.early(&c.data(0, MSS));
    about(c.edge(&out), FULL + 2 * MSS);
    let out = c.early(&c.data(MSS, MSS));
    about(c.edge(&out), FULL + 5 * MSS);
    // Held or handed over makes no difference.
    let mut c = FlowCase::full();
    let before = c.h.rcv_win;
    c.held(&c.data(FULL, 10 * MSS));
    assert_eq!(c.h.rcv_win, before + 20 * MSS);
}

#[test]
fn the_shown_window_begins_with_the_vms_own() {
    let mut c = FlowCase::new();
    c.early(&c.data(0, MSS));
    assert_eq!(c.h.rcv_win, FULL - MSS + 2 * MSS);
}

#[test]
fn a_sender_runs_ahead_of_the_vms_window_as_far_as_the_operator_says() {
    let mut c = FlowCase::new();
    c.policy.ahead = 10 * 1_024;
    let most = FULL + 10 * 1_024;
    let mut out = c.early(&c.data(0, FULL));
    about(c.edge(&out), most);
    for i in 0..10 {
        assert!(c.edge(&out) <= most as i32);
        out = c.held(&c.data(FULL + i * 1_024, 1_024));
    }
    assert_eq!(out.ack.window, 0, "that is all: the window closes");
    assert_eq!(c.not_kept(&c.data(most, MSS)).0, Verdict::Reack);
    // The bound moves with the VM's own edge.
    c.acks(FULL, WINDOW);
    c.engine_hands_over(most);
    let out = c.early(&c.data(most, MSS));
    about(c.edge(&out), 2 * FULL + 10 * 1_024);
}

#[test]
fn a_port_with_less_memory_than_its_quota_shows_no_more() {
    let edge_with = |slabs, chunks| {
        let mut c = FlowCase::new();
        (c.port.slabs, c.policy.hold_chunks) = (slabs, chunks);
        c.h.rcv_win = 1 << 30;
        let out = c.early(&c.data(0, MSS));
        c.edge(&out)
    };
    let slab = SLAB_BYTES as i32;
    assert_eq!(edge_with(1, 64), edge_with(1, 4_096), "memory that is not there");
    assert_eq!(edge_with(2, 128), edge_with(64, 128), "memory that it may not use");
    assert!(edge_with(1, 4_096) < slab && edge_with(2, 4_096) > slab);
}

#[test]
fn a_flow_gets_less_the_more_memory_is_used() {
    let mut c = FlowCase::full();
    c.port.chunks_used = CHUNKS - 5;
    // Four fifths of the free and the flow's own memory, counted from VM_SEQ.
    let share = |own: u32| (5 * HOLD_CHUNK + own) * 4 / 5;
    let out = c.held(&c.data(FULL, MSS));
    about(c.edge(&out), share(FULL + MSS).max(c.f.adv_edge.diff(at(0)) as u32));
    let mut c = FlowCase::new();
    c.port.chunks_used = CHUNKS - 5;
    let out = c.early(&c.data(0, 20 * MSS));
    about(c.edge(&out), share(20 * MSS).max(FULL));
    let mut c = FlowCase::new();
    c.port.chunks_used = CHUNKS - 1;
    let out = c.early(&c.data(0, 20 * MSS));
    about(c.edge(&out), FULL);
    c.port.chunks_used = CHUNKS;
    let out = c.early(&c.data(20 * MSS, MSS));
    about(c.edge(&out), FULL);
}

#[test]
fn an_edge_that_was_shown_is_not_taken_back() {
    let mut c = FlowCase::full();
    let out = c.held(&c.data(FULL, 10 * MSS));
    let edge = c.edge(&out);
    // Neither when the pool fills, nor when the port is paused, nor when the VM's window shrinks.
    c.port.chunks_used = CHUNKS;
    let (_, out) = c.not_kept(&c.data(0, MSS));
    about(c.edge(&out), edge as u32);
    c.policy.run = port_run::PORT_PAUSED;
    let (_, out) = c.not_kept(&c.data(0, MSS));
    about(c.edge(&out), edge as u32);
    let (verdict, out) = c.acks(FULL / 2, 1);
    assert_ne!(verdict, FromVm::Pass);
    if verdict == FromVm::Rewrite {
        about(c.edge(&out), edge as u32);
    }
    assert_eq!(c.f.adv_edge.diff(at(0)), edge);
}

#[test]
fn a_prompt_vm_needs_no_larger_window() {
    let mut c = FlowCase::new();
    c.port.prompt_until_ns = c.now + MS;
    c.early(&c.data(0, MSS));
    assert_eq!(c.h.rcv_win, 0);
    c.port.prompt_until_ns = 0;
    c.early(&c.data(MSS, MSS));
    assert_ne!(c.h.rcv_win, 0);
}

#[test]
fn the_edge_stays_while_the_vm_is_prompt() {
    let mut c = FlowCase::new();
    let out = c.early(&c.data(0, MSS));
    let shown = c.edge(&out);
    c.port.prompt_until_ns = c.now + MS;
    for i in 1..4 {
        let out = c.early(&c.data(i * MSS, MSS));
        about(c.edge(&out), shown as u32);
    }
    c.acks(4 * MSS, WINDOW);
    let out = c.early(&c.data(4 * MSS, MSS));
    about(c.edge(&out), FULL + 4 * MSS);
}

#[test]
fn a_window_that_closed_while_the_vm_was_prompt_opens_for_a_probe() {
    let mut c = FlowCase::holding();
    c.port.prompt_until_ns = c.now + MS;
    let mut next = FULL + 2 * MSS;
    while c.f.adv_edge.diff(at(next)) >= MSS as i32 {
        c.held(&segment { tcp_flags: ACK | PSH, ..c.data(next, MSS) });
        next += MSS;
    }
    let probe = c.ack_of_sender(next - 1, 0);
    let (_, out) = c.not_kept(&probe);
    assert!(c.edge(&out) < (next + MSS) as i32, "the VM is prompt");
    c.port.prompt_until_ns = 0;
    let (verdict, out) = c.not_kept(&probe);
    assert_eq!(verdict, Verdict::Reack);
    assert!(c.edge(&out) >= (next + MSS) as i32, "the VM has stopped");
}

#[test]
fn a_holding_flow_is_shown_no_more_than_the_hold_has_room_for() {
    for free in [10, 4_000] {
        let mut c = FlowCase::holding();
        c.port.chunks_used = CHUNKS - free;
        let shown = c.f.adv_edge.diff(at(0)) as u32;
        c.acks(MSS, 0x7fff);
        let window = MSS + (0x7fff << SCALE);
        let out = c.held(&c.data(FULL + 2 * MSS, MSS));
        let own = FULL + 2 * MSS - MSS;
        let room = MSS + (free * HOLD_CHUNK + own + MSS) * 4 / 5;
        about(c.edge(&out), window.min(room).max(shown).max(c.f.adv_edge.diff(at(0)) as u32));
        assert_eq!(c.edge(&out) < window as i32 - UNIT, free == 10);
    }
}

#[test]
fn without_an_engine_nothing_beyond_the_vms_window_is_acknowledged() {
    let mut c = FlowCase::full();
    let shown = c.f.adv_edge;
    assert!(shown.diff(c.f.right_edge) > MSS as i32);
    c.now = c.port.engine_ns + HOLD_STALE - 1;
    assert!(matches!(c.clone().decide(&c.data(FULL, MSS)).0, Verdict::Keep { .. }));
    c.now += 1;
    assert_eq!(c.not_kept(&c.data(FULL, MSS)).0, Verdict::Pass, "the VM is asked");
    assert_eq!(c.h.rcv_win, 0);
    assert_eq!(c.f.adv_edge, shown, "what was shown stays");
}

#[test]
fn without_an_engine_data_within_the_window_are_acknowledged_early() {
    let mut c = FlowCase::new();
    c.now += 10 * HOLD_STALE;
    let out = c.early(&c.data(0, MSS));
    about(c.edge(&out), FULL);
    assert_eq!(c.h.rcv_win, 0);
}

#[test]
fn an_engine_that_dies_during_a_copy_is_not_relied_upon() {
    let mut c = FlowCase::full();
    let s = c.data(FULL, MSS);
    assert!(matches!(c.decide(&s).0, Verdict::Keep { .. }));
    c.now = c.port.engine_ns + HOLD_STALE;
    let (kept, _) = c.after_copy(&s, true, false);
    assert_eq!(kept, vsnoop_flow::hold::Kept::Pass);
    assert_eq!(c.f.next_seq, at(FULL));
}

/// The VM has opened its window, but its ACK was lost.
fn opened_unheard(window: u16) -> FlowCase {
    let mut c = closed();
    c.policy.ahead = 0;
    c.acks(FULL, window);
    c
}

#[test]
fn a_window_probe_is_answered_with_the_edge_that_the_host_knows() {
    let mut c = opened_unheard(WINDOW);
    // The VM is asked first, and does not answer a segment below its window.
    c.pass(&c.ack_of_sender(FULL - 1, 0));
    for _ in 0..3 {
        let (verdict, out) = c.not_kept(&c.ack_of_sender(FULL - 1, 0));
        assert_eq!((verdict, out.ack.ack), (Verdict::Reack, at(FULL)));
        about(c.edge(&out), 2 * FULL);
    }
    // Not while the VM has something to acknowledge.
    let mut c = opened_unheard(WINDOW);
    c.pass(&segment { tcp_flags: ACK | URG, ..c.data(FULL, 10) });
    c.pass(&c.ack_of_sender(FULL - 1, 0));
}

/// The VM has closed its window, and the sender knows.
fn closed() -> FlowCase {
    let mut c = FlowCase::new();
    c.port.prompt_until_ns = c.now + MS;
    c.early(&c.data(0, FULL));
    c.acks(FULL, 0);
    c.port.prompt_until_ns = 0;
    assert_eq!((c.h.rcv_win, c.f.adv_edge), (0, at(FULL)));
    c
}

#[test]
fn a_probe_of_a_closed_window_is_answered_with_the_holds_window() {
    let mut c = closed();
    let (verdict, out) = c.not_kept(&c.ack_of_sender(FULL - 1, 0));
    assert_eq!(verdict, Verdict::Reack);
    about(c.edge(&out), FULL + 2 * MSS);
    c.held(&c.data(FULL, MSS));
}

#[test]
fn a_probe_passes_to_the_vm_if_the_hold_has_no_room() {
    for spoil in [
        |c: &mut FlowCase| c.now += HOLD_STALE,
        |c: &mut FlowCase| c.policy.run = port_run::PORT_PAUSED,
        |c: &mut FlowCase| c.policy.ahead = 0,
        // Less than a segment: it is to say how much.
        |c: &mut FlowCase| {
            c.policy.ahead = 0;
            c.acks(FULL, (MSS >> SCALE) as u16);
        },
    ] {
        let mut c = closed();
        spoil(&mut c);
        assert_eq!(c.not_kept(&c.ack_of_sender(FULL - 1, 0)).0, Verdict::Pass);
        assert_eq!(c.h.rcv_win, 0);
    }
    // An ACK of the sender is not a probe.
    let mut c = closed();
    assert_eq!(c.not_kept(&c.ack_of_sender(FULL, 0)).0, Verdict::Pass);
}

/// HOLD_STALE_NS.
const HOLD_STALE: u64 = 1_000 * MS;
