//! Packets that the host sends for a VM take the path of the VM's own: the same next hop, traffic
//! class and IPv6 flow label.

use vsnoop_flow::hold::{self, Verdict};
use vsnoop_flow::{ack_fields, outcome, segment, types::*};

use crate::case::*;

const OTHER_HOP: [u8; 6] = [2, 0, 0, 0, 0, 9];
const OTHER_TRAFFIC: u32 = 0x08 << 20 | 0xfffff;

#[track_caller]
fn is_routed(ack: &ack_fields, hop: [u8; 6], traffic: u32) {
    assert_eq!((ack.next_hop, ack.traffic), (hop, traffic));
}

fn waits(c: &mut FlowCase) -> outcome {
    let full = c.f.right_edge.diff(at(0)) as u32;
    c.early(&c.data(0, full));
    c.held(&c.data(full, MSS))
}

/// A kind of answer, and a function that provokes it.
type Answer = (&'static str, fn(&mut FlowCase) -> outcome);

/// All packets that the host itself makes.
fn answers() -> Vec<Answer> {
    vec![
        ("an early ACK", |c| c.early(&c.data(0, MSS))),
        ("an ACK of what waits", waits),
        ("an ACK that reports a range", |c| c.held(&c.data(MSS, MSS))),
        ("an ACK of old data", |c| {
            c.early(&c.data(0, MSS));
            c.not_kept(&c.data(0, MSS)).1
        }),
        ("an answer to a probe", |c| {
            c.early(&c.data(0, MSS));
            c.not_kept(&c.data(MSS - 1, 0)).1
        }),
        ("an ACK in the place of the VM's", |c| {
            c.held(&c.data(MSS, MSS));
            c.acks(0, c.window_at(0)).1
        }),
        ("a reset", |c| {
            c.f.mode = flow_mode::FLOW_RESET as u8;
            let (verdict, out) = c.decide(&c.data(0, MSS));
            assert_eq!(verdict, Verdict::Reset);
            out
        }),
        ("a reset of the VM's", |c| {
            c.f.mode = flow_mode::FLOW_RESET as u8;
            c.acks(0, WINDOW).1
        }),
        ("a reset of both ends", |c| {
            waits(c);
            c.now += 30_000 * MS;
            c.acks(0, c.window_at(0)).1
        }),
        ("the sender's ACK", |c| outcome {
            ack: hold::sender_ack(&c.f, &c.h),
            ..outcome::default()
        }),
    ]
}

#[test]
fn answers_use_the_next_hop_and_traffic_class_of_the_handshake() {
    for case in [FlowCase::unconfirmed(), FlowCase::accepted(), FlowCase::opened()] {
        for (what, answer) in answers() {
            println!("{what}");
            is_routed(&answer(&mut case.clone().unbounded()).ack, NEXT_HOP, TRAFFIC);
        }
    }
    let c = FlowCase::new();
    let f = vsnoop_flow::flow_mid_flow(&c.ack_of_vm(0, WINDOW), c.now).expect("an ACK of the VM");
    assert_eq!((f.next_hop, f.traffic), (NEXT_HOP, TRAFFIC));
}

#[test]
fn answers_use_the_vms_latest_next_hop_and_traffic_class() {
    for (what, answer) in answers() {
        println!("{what}");
        let mut c = FlowCase::new();
        let s =
            segment { destination: OTHER_HOP, traffic: OTHER_TRAFFIC, ..c.ack_of_vm(0, WINDOW) };
        c.hear(&s);
        assert_eq!((c.f.next_hop, c.h.next_hop), (OTHER_HOP, OTHER_HOP), "the engine knows");
        // The VM's segments of before were the exception.
        let out = match what {
            "an ACK in the place of the VM's" | "a reset of the VM's" | "a reset of both ends" => {
                continue;
            }
            _ => answer(&mut c),
        };
        is_routed(&out.ack, OTHER_HOP, OTHER_TRAFFIC);
    }
}

#[test]
fn next_hop_and_traffic_class_of_the_sender_are_not_used() {
    let mut c = FlowCase::new();
    let s = segment { destination: [2, 0, 0, 0, 0, 1], traffic: 7, ..c.data(0, MSS) };
    is_routed(&c.early(&s).ack, NEXT_HOP, TRAFFIC);
}
