//! The strict window policy: what the VM granted, capped, never taken back.

use vsnoop_flow::{FromVm, Verdict};

use crate::case::*;

#[test]
fn nothing_beyond_the_vms_right_edge_is_acknowledged() {
    for mut c in Case::both() {
        c.vm_acks(0, 50);
        let edge = 50u32 << SCALE;
        c.early(&c.data(0, edge - 1));
        c.pass(&c.data(edge - 1, 2));
        assert_eq!(c.f.high_seq, at(edge), "the VM takes no more than that");
        let mut c = Case::accepted();
        c.vm_acks(0, 50);
        c.early(&c.data(0, edge));
    }
}

#[test]
fn an_early_ack_shows_the_vms_own_right_edge() {
    for mut c in Case::both() {
        for i in 0..10 {
            let ack = c.early(&c.data(i * 999, 999));
            let shown = ack.ack.add(u32::from(ack.window) << SCALE);
            let back = c.f.right_edge.diff(shown);
            assert!((0..1 << SCALE).contains(&back), "off by {back}");
        }
    }
}

#[test]
fn a_closed_window_is_shown_closed() {
    for mut c in Case::both() {
        c.vm_acks(0, 20);
        assert_eq!(c.early(&c.data(0, 20 << SCALE)).window, 0);
    }
}

#[test]
fn a_window_that_the_vm_takes_back_is_taken_back() {
    for mut c in Case::both() {
        c.vm_acks(0, 20);
        c.pass(&c.data(0, 21 << SCALE));
        let mut c = Case::accepted();
        c.vm_acks(0, 20);
        let ack = c.early(&c.data(0, 10 << SCALE));
        assert_eq!(ack.window, 10);
    }
}

#[test]
fn window_is_capped_but_never_taken_back() {
    for mut c in Case::both() {
        let shown = c.f.adv_edge;
        c.policy.buf_size = 10_000;
        // Already shown: kept.
        let ack = c.early(&c.data(0, MSS));
        assert!(shown.diff(ack.ack.add(u32::from(ack.window) << SCALE)) < 1 << SCALE);
        // The VM grants more: capped to what was shown.
        let (verdict, out) = c.vm_acks(MSS, WINDOW);
        assert_eq!(verdict, FromVm::Rewrite);
        let edge = at(MSS).add(u32::from(out.ack.window) << SCALE);
        assert!(edge.diff(shown).abs() < 1 << SCALE);
        // Once the stream has passed what was shown, the cap counts from VM_SEQ.
        let offset = shown.diff(at(0)) as u32;
        c.early(&c.data(MSS, offset - MSS));
        let (verdict, out) = c.vm_acks(offset, WINDOW);
        assert_eq!(verdict, FromVm::Rewrite);
        assert_eq!(u32::from(out.ack.window), 10_000u32.div_ceil(1 << SCALE));
    }
}

#[test]
fn a_window_within_the_cap_is_not_touched() {
    for mut c in Case::both() {
        c.policy.buf_size = 4 << 20;
        c.early(&c.data(0, MSS));
        assert_eq!(c.vm_acks(MSS, WINDOW).0, FromVm::Pass);
    }
}

#[test]
fn a_cap_below_the_scales_unit_does_not_close_the_window() {
    for mut c in Case::both() {
        c.f.scale = 14;
        c.f.adv_edge = at(0);
        c.policy.buf_size = 5_000;
        let (verdict, out) = c.vm_acks(0, 10);
        assert_eq!(verdict, FromVm::Rewrite);
        assert_eq!(out.ack.window, 1);
    }
}

#[test]
fn a_window_shown_while_observing_is_not_taken_back() {
    for mut c in Case::both() {
        c.policy.run = vsnoop_flow::types::port_run::PORT_OBSERVE;
        c.vm_acks(0, 2 * WINDOW);
        c.policy.run = vsnoop_flow::types::port_run::PORT_ACTIVE;
        c.policy.buf_size = 10_000;
        let ack = c.early(&c.data(0, MSS));
        let shown = ack.ack.add(u32::from(ack.window) << SCALE);
        assert!(at((2 * u32::from(WINDOW)) << SCALE).diff(shown) < 1 << SCALE);
    }
}

#[test]
fn unknown_scale_never_shows_more_than_the_vm_granted() {
    for scale in 0..15 {
        let mut c = Case::mid_flow();
        let granted = at(1).add(u32::from(WINDOW) << scale);
        for (offset, len) in [(1, 1), (2, 98), (100, 350)] {
            let ack = c.early(&c.data(offset, len));
            let shown = ack.ack.add(u32::from(ack.window) << scale);
            assert!(granted.diff(shown) >= 0, "scale {scale}: {} too far", shown.diff(granted));
        }
        // Data of the VM in between shows no more either.
        let (verdict, out) = c.vm_sends(&c.data_of_vm(0, 10, 1));
        assert_eq!(verdict, FromVm::Rewrite);
        let shown = out.ack.ack.add(u32::from(out.ack.window) << scale);
        assert!(granted.diff(shown) >= 0);
        // Beyond the raw window nothing is acknowledged.
        assert_eq!(c.towards_vm(&c.data(450, 60)).0, Verdict::Pass);
    }
}

#[test]
fn unknown_scale_is_never_capped() {
    let mut c = Case::mid_flow();
    c.policy.buf_size = 100;
    c.early(&c.data(1, 100));
    assert_eq!(c.vm_acks(101, 60_000).0, FromVm::Pass);
}
