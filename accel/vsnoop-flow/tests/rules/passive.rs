//! The passive mode, which lets the VM acknowledge by itself, never keeps a sender waiting.

use vsnoop_flow::{continues_passive, segment, types::*};

use crate::case::*;

/// A flow past its ramp, to a VM that has answered promptly for long enough.
fn prompt(mut c: FlowCase) -> FlowCase {
    c.policy.passive = 1;
    let mut offset = 0;
    for _ in 0..400 {
        let s = c.data(offset, MSS);
        c.goes(&s);
        offset += MSS;
        c.now += MS / 10;
        c.acks(offset, WINDOW);
        c.now += MS * 9 / 10;
    }
    assert_eq!(c.f.next_seq, c.f.vm_seq);
    c
}

fn sent(c: &FlowCase) -> u32 {
    c.f.next_seq.diff(at(0)) as u32
}

#[test]
fn a_prompt_vm_is_left_to_answer_by_itself() {
    for c in FlowCase::both() {
        let mut c = prompt(c);
        assert_eq!(c.pass(&c.data(sent(&c), MSS)), EVENT_PASSIVE);
        assert_eq!(c.mode(), flow_mode::FLOW_PASSIVE);
        // Until it has caught up, nothing is acknowledged before it.
        let rest = sent(&c) + MSS;
        c.pass(&segment { tcp_flags: ACK | PSH, ..c.data(rest, 10) });
        c.acks(rest + 10, WINDOW);
        assert_eq!(c.mode(), flow_mode::FLOW_ACTIVE);
    }
}

#[test]
fn no_flow_is_passive_if_the_operator_forbids_it() {
    for c in FlowCase::both() {
        let mut c = prompt(c);
        c.policy.passive = 0;
        c.kept(&c.data(sent(&c), MSS));
    }
}

#[test]
fn psh_is_acknowledged_at_once_even_when_passive_is_allowed() {
    for c in FlowCase::both() {
        let mut c = prompt(c);
        let s = segment { tcp_flags: ACK | PSH, ..c.data(sent(&c), MSS) };
        c.early(&s);
    }
}

#[test]
fn a_segment_below_mss_is_acknowledged_at_once() {
    for c in FlowCase::both() {
        let mut c = prompt(c);
        c.early(&c.data(sent(&c), MSS - 1));
    }
}

#[test]
fn near_the_end_of_the_window_segments_are_acknowledged_at_once() {
    for c in FlowCase::both() {
        let c = prompt(c);
        let offset = sent(&c);
        let mut c = c.bounded(offset + 3 * MSS - 1);
        c.early(&c.data(offset, MSS));
    }
}

#[test]
fn the_first_16_segments_are_acknowledged_one_by_one() {
    for c in FlowCase::both() {
        let mut c = prompt(c);
        c.f.ramp = 0;
        let offset = sent(&c);
        for i in 0..16 {
            c.early(&c.data(offset + i * MSS, MSS));
        }
        c.pass(&c.data(offset + 16 * MSS, MSS));
    }
}

#[test]
fn after_a_hole_the_ramp_begins_again() {
    for c in FlowCase::both() {
        let mut c = prompt(c);
        let offset = sent(&c);
        c.held(&c.data(offset + MSS, MSS));
        c.held(&c.data(offset, MSS));
        c.engine_hands_over(offset + 2 * MSS);
        c.acks(offset + 2 * MSS, WINDOW);
        c.early(&c.data(offset + 2 * MSS, MSS));
    }
}

#[test]
fn a_late_vm_is_not_prompt() {
    for c in FlowCase::both() {
        let mut c = prompt(c);
        let offset = sent(&c);
        for i in 0..3 {
            c.pass(&c.data(offset + i * MSS, MSS));
        }
        c.now += 30 * MS;
        let (_, out) = c.acks(offset + 3 * MSS, WINDOW);
        assert_ne!(out.events & EVENT_LATE, 0);
        c.kept(&c.data(offset + 3 * MSS, MSS));
        // A single prompt answer does not make the VM prompt again.
        c.acks(offset + 4 * MSS, WINDOW);
        c.kept(&c.data(offset + 4 * MSS, MSS));
    }
}

#[test]
fn a_vm_that_does_not_answer_counts_as_late() {
    for c in FlowCase::both() {
        let mut c = prompt(c);
        let offset = sent(&c);
        c.pass(&c.data(offset, MSS));
        c.pass(&c.data(offset + MSS, MSS));
        c.now += 2 * MS;
        let (_, out) = c.decide(&c.data(offset + 2 * MSS, MSS));
        assert_ne!(out.events & EVENT_LATE, 0);
        assert_eq!(c.port.late_ns, c.now);
    }
}

/// Bulk for half a second to a VM that is late for `late_ns` after every 6 ms or so.
fn bulk(c: FlowCase, late_ns: u64) -> FlowCase {
    let mut c = prompt(c);
    for turn in 0..1000 {
        let offset = sent(&c);
        for i in 0..4 {
            let s = c.data(offset + i * MSS, MSS);
            c.goes(&s);
        }
        let delay = if turn % 16 == 0 { late_ns } else { MS / 10 };
        c.now += delay;
        c.acks(offset + 4 * MSS, WINDOW);
        c.now += MS / 2 - MS / 10;
    }
    c
}

#[test]
fn a_vm_delayed_for_a_moment_now_and_then_is_still_prompt() {
    for c in FlowCase::both() {
        let mut c = bulk(c, 2 * MS);
        assert_eq!(c.pass(&c.data(sent(&c), MSS)), EVENT_PASSIVE);
    }
}

#[test]
fn a_vm_delayed_for_half_of_the_time_is_not_prompt() {
    for c in FlowCase::both() {
        let mut c = bulk(c, 7 * MS); // of 13 ms
        c.kept(&c.data(sent(&c), MSS));
    }
}

#[test]
fn a_clock_that_steps_back_between_cores_makes_no_vm_late() {
    for c in FlowCase::both() {
        let mut c = prompt(c);
        let offset = sent(&c);
        c.pass(&c.data(offset, MSS));
        c.pass(&c.data(offset + MSS, MSS));
        c.acks(offset + MSS / 2, WINDOW);
        // Decided with a time from before the VM's ACK.
        c.now -= 1000;
        let (_, out) = c.decide(&c.data(offset + 2 * MSS, MSS));
        assert_eq!(out.events & EVENT_LATE, 0);
    }
}

#[test]
fn psh_in_the_midst_of_bulk_is_left_to_a_prompt_vm() {
    for c in FlowCase::both() {
        let mut c = prompt(c);
        let psh = |c: &FlowCase, offset| segment { tcp_flags: ACK | PSH, ..c.data(offset, MSS) };
        // The VM has a backlog: its next ACK will cover this segment too.
        let offset = sent(&c);
        c.early(&psh(&c, offset));
        assert_eq!(c.pass(&psh(&c, offset + MSS)), EVENT_PASSIVE);
        assert_eq!(c.pass(&psh(&c, offset + 2 * MSS)), EVENT_PASSIVE);
    }
}

#[test]
fn the_senders_ack_is_noted_while_acknowledged_bytes_are_outstanding() {
    for c in FlowCase::both() {
        let mut c = c;
        let is_left = |c: &FlowCase, s| continues_passive(&c.f, s, &c.port, &c.policy, c.now);
        // The engine may send this one again.
        c.early(&c.data(0, MSS));
        c.policy.run = port_run::PORT_PAUSED;
        c.pass(&c.data(MSS, 100));
        assert_eq!(c.mode(), flow_mode::FLOW_PASSIVE);
        c.hear(&c.data_of_vm(0, 50, 0));
        let s = segment { ack: vm_at(50), ..c.data(MSS + 100, 100) };
        assert!(!is_left(&c, &s));
        c.pass(&s);
        assert_eq!(c.h.snd_una, vm_at(50));
        // When the VM has acknowledged everything there is nothing to be sent again.
        c.acks(MSS + 200, WINDOW);
        c.pass(&c.data(MSS + 200, 100));
        assert!(is_left(&c, &c.data(MSS + 300, 100)));
    }
}

/// More than half of all sequence numbers pass without copies: what the ring has taken is known.
#[test]
fn a_segment_that_the_ring_refuses_is_held_after_gigabytes_without_copies() {
    let mut c = FlowCase::new();
    // The first copy.
    c.early(&c.data(0, MSS));
    c.acks(MSS, WINDOW);
    c.policy.run = port_run::PORT_PAUSED;
    let mut offset = MSS;
    for _ in 0..3_000_000_000u32 / 60_000 {
        c.pass(&c.data(offset, 60_000));
        offset = offset.wrapping_add(60_000);
        c.acks(offset, WINDOW);
    }
    c.policy.run = port_run::PORT_ACCELERATE;
    let s = c.data(offset, MSS);
    c.decide(&s);
    c.after_copy(&s, true, false);
    assert_eq!(c.mode(), flow_mode::FLOW_HOLDING);
    assert_eq!(
        (c.f.high_seq, c.h.handed),
        (at(offset), at(offset)),
        "nothing of it is handed over"
    );
}
