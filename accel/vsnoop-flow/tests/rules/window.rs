//! The window that the sender is shown without a hold: the VM's own, never taken back.

use vsnoop_flow::hold::Verdict;
use vsnoop_flow::{FromVm, types::*};

use crate::case::*;

const UNIT: i32 = 1 << SCALE;

#[test]
fn nothing_beyond_the_vms_right_edge_is_acknowledged() {
    let edge = 50u32 << SCALE;
    for c in FlowCase::both() {
        let mut c = c.bounded(edge);
        c.early(&c.data(0, edge - 1));
        c.pass(&c.data(edge - 1, 2));
        assert_eq!(c.f.high_seq, at(edge), "the VM takes no more than that");
    }
    for c in FlowCase::both() {
        let mut c = c.bounded(edge);
        c.early(&c.data(0, edge));
    }
}

#[test]
fn an_early_ack_shows_the_vms_own_right_edge() {
    for mut c in FlowCase::both() {
        for i in 0..10 {
            let out = c.early(&c.data(i * 999, 999));
            let back = c.f.right_edge.diff(at(0)) - c.edge(&out);
            assert!((0..UNIT).contains(&back), "off by {back}");
        }
    }
}

#[test]
fn a_closed_window_is_shown_closed() {
    for c in FlowCase::both() {
        let mut c = c.bounded(20 << SCALE);
        assert_eq!(c.early(&c.data(0, 20 << SCALE)).ack.window, 0);
    }
}

#[test]
fn a_window_that_the_vm_takes_back_stays_as_it_was_shown() {
    for mut c in FlowCase::both() {
        let shown = c.f.adv_edge;
        c.acks(0, 20);
        let out = c.early(&c.data(0, 10 << SCALE));
        assert!((shown.diff(at(0)) - c.edge(&out)).abs() < UNIT);
        // Data within the window shown to the sender, but outside the VM's shrunk window, wait.
        c.held(&c.data(10 << SCALE, 11 << SCALE));
        assert_eq!(c.f.adv_edge, shown);
    }
}

#[test]
fn without_a_copy_a_window_that_the_vm_takes_back_is_taken_back() {
    for c in FlowCase::both() {
        let mut c = c.without_hold();
        assert_eq!(c.acks(0, 20).0, FromVm::Pass);
    }
}

#[test]
fn an_ack_of_the_vm_with_the_shown_edge_passes_untouched() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, MSS));
        assert_eq!(c.acks(MSS, WINDOW).0, FromVm::Pass);
    }
}

#[test]
fn a_window_shown_while_observing_is_not_taken_back() {
    for mut c in FlowCase::both() {
        c.policy.run = port_run::PORT_OBSERVE;
        c.acks(0, 2 * WINDOW);
        c.policy.run = port_run::PORT_ACCELERATE;
        c.acks(0, WINDOW);
        let out = c.early(&c.data(0, MSS));
        assert!((2 * FULL as i32 - c.edge(&out)).abs() < UNIT);
    }
}

#[test]
fn a_vms_window_below_the_scales_unit_is_shown_as_none() {
    let mut c = FlowCase::accepted().bounded(9 << SCALE);
    let out = c.early(&c.data(0, (8 << SCALE) + 1));
    assert_eq!(out.ack.window, 0, "more than the VM has is no safe answer");
}

/// Each early ACK would show a right edge below the VM's own, for all scales but one.
#[test]
fn with_an_unknown_scale_nothing_is_acknowledged_and_windows_pass_as_they_are() {
    for run in [port_run::PORT_ACCELERATE, port_run::PORT_PAUSED] {
        let mut c = FlowCase::mid_flow().unbounded();
        c.policy.run = run;
        let mut offset = 1;
        for len in [1, 100, MSS, 20 * MSS] {
            c.pass(&c.data(offset, len));
            offset += len;
            assert_eq!(c.acks(offset, 60_000).0, FromVm::Pass);
            c.pass(&c.data(offset, 10));
            assert_eq!(c.hear(&c.data_of_vm(offset, 10, offset)).0, FromVm::Pass);
            offset += 10;
        }
        assert_eq!((c.f.early_bytes, c.f.rewritten, c.mode()), (0, 0, flow_mode::FLOW_BYPASS));
    }
}

/// Edges of VM and hold lie anywhere between two units of the scale.
#[test]
fn the_edges_of_vm_and_hold_are_rounded_down_to_the_unit_of_the_scale() {
    for odd in 0..UNIT as u32 {
        for c in FlowCase::both() {
            let mut c = c.bounded(FULL + odd);
            let (edge, out) = (c.f.right_edge.diff(at(0)), c.early(&c.data(0, 1_000)));
            assert!((0..UNIT).contains(&(edge - c.edge(&out))), "{odd}: the VM's");
        }
        // The hold has less room than the VM: all that the sender sends must be kept.
        let mut c = FlowCase::holding();
        c.f.right_edge = c.f.next_seq.add(10 * FULL);
        c.f.adv_edge = c.f.next_seq;
        let free = 20 + odd;
        c.port.chunks_used = CHUNKS - free;
        let (verdict, out) = c.not_kept(&c.data(FULL, MSS));
        let own = c.f.next_seq.diff(c.f.vm_seq) as u32;
        let room = (free * HOLD_CHUNK + own) * 4 / 5;
        let edge = c.f.vm_seq.diff(at(0)) + room as i32;
        assert_eq!(verdict, Verdict::Reack);
        assert!((0..UNIT).contains(&(edge - c.edge(&out))), "{odd}: {edge}, {}", c.edge(&out));
    }
}

#[test]
fn data_beyond_the_shown_edge_are_not_acknowledged() {
    for c in FlowCase::both() {
        let mut c = c.unbounded();
        c.early(&c.data(0, MSS));
        let shown = c.f.adv_edge.diff(at(0)) as u32;
        assert!(shown > FULL);
        // The hold has room for more by now, but the sender was not shown it.
        c.h.rcv_win += 10 * MSS;
        for (offset, len) in [(shown - 10, 11), (MSS, shown), (shown, 1), (shown + 1, 1)] {
            let mut c = c.clone();
            let (verdict, out) = c.not_kept(&c.data(offset, len));
            assert!(verdict != Verdict::Reack || out.ack.ack == at(MSS));
            assert_eq!(c.f.early_bytes, u64::from(MSS));
        }
        c.held(&c.data(MSS, shown - MSS));
    }
    let mut c = FlowCase::holding();
    let (shown, next) = (c.f.adv_edge.diff(at(0)) as u32, c.f.next_seq);
    c.h.rcv_win += 10 * MSS;
    let (verdict, out) = c.not_kept(&c.data(next.diff(at(0)) as u32, shown));
    assert_eq!((verdict, out.ack.ack), (Verdict::Reack, next));
}

/// Without the host the sender would not send it. lwIP fails where such a segment comes first.
#[test]
fn data_beyond_a_hole_and_the_vms_window_do_not_reach_the_vm() {
    let mut c = FlowCase::full();
    let shown = c.f.adv_edge;
    assert!(shown.diff(c.f.right_edge) > 2 * MSS as i32);
    c.policy.run = port_run::PORT_PAUSED;
    // The VM may cut it at its window, so that a hole is behind it.
    c.pass(&c.data(FULL - 10, MSS));
    assert_eq!(c.f.high_seq, c.f.right_edge);
    for flags in [ACK, ACK | FIN] {
        let s = segment { tcp_flags: flags, ..c.data(FULL - 10 + MSS, MSS) };
        let (verdict, out) = c.not_kept(&s);
        assert_eq!((verdict, out.ack.ack), (Verdict::Reack, c.f.next_seq));
    }
    // A VM that did not cut it says so.
    c.acks(FULL - 10 + MSS, WINDOW);
    assert_eq!(c.f.high_seq, at(FULL - 10 + MSS));
    c.pass(&c.data(FULL - 10 + MSS, MSS));
}
