//! Leases: which of a passive flow's next segments pass without a full decision, and what ends
//! that.

use vsnoop_flow::{continues_passive, grant_lease, lease_covers, segment, types::*};

use crate::case::*;

const JIFFY: u64 = 7;

/// A flow in a paused port, with a backlog of one segment and a lease that the second one brought.
fn leased() -> FlowCase {
    let mut c = FlowCase::accepted();
    c.policy.run = port_run::PORT_PAUSED;
    c.pass(&c.data(0, MSS));
    let s = c.data(MSS, MSS);
    assert!(continues_passive(&c.f, &s, &c.port, &c.policy, c.now));
    grant_lease(&mut c.f, &s, JIFFY);
    passes(&mut c, &s);
    c
}

/// The hook's part when a lease covers a segment.
fn passes(c: &mut FlowCase, s: &segment) {
    assert!(lease_covers(&c.f, s, JIFFY), "{:?}", c.f);
    c.f.high_seq = s.seq.add(s.len);
}

fn next(c: &FlowCase) -> segment {
    c.data(c.f.high_seq.diff(at(0)) as u32, MSS)
}

#[test]
fn a_lease_covers_what_continues_the_backlog_until_the_jiffy_ends() {
    let mut c = leased();
    for _ in 0..10 {
        let s = next(&c);
        passes(&mut c, &s);
    }
    let s = next(&c);
    passes(&mut c, &segment { tcp_flags: ACK | PSH, ..s });
    assert!(!lease_covers(&c.f, &next(&c), JIFFY + 1));
}

#[test]
fn what_a_lease_covers_a_full_decision_would_pass() {
    let mut c = leased();
    while lease_covers(&c.f, &next(&c), JIFFY) {
        let s = next(&c);
        assert!(continues_passive(&c.f, &s, &c.port, &c.policy, c.now), "{:?}", c.f);
        passes(&mut c, &s);
    }
    let left = c.f.right_edge.diff(c.f.high_seq);
    assert!((2 * MSS as i32..4 * MSS as i32).contains(&left), "it ends near the edge: {left}");
}

#[test]
fn anything_unusual_takes_a_full_decision() {
    let c = leased();
    let s = next(&c);
    let unusual: [(&str, segment); 14] = [
        ("a hole", segment { seq: s.seq.add(1), ..s }),
        ("old data", segment { seq: s.seq.add(MSS.wrapping_neg()), ..s }),
        ("no data", segment { len: 0, unit_len: 0, ..s }),
        ("FIN", segment { tcp_flags: ACK | FIN, ..s }),
        ("RST", segment { tcp_flags: ACK | RST, ..s }),
        ("URG", segment { tcp_flags: ACK | URG, ..s }),
        ("CWR", segment { tcp_flags: ACK | CWR, ..s }),
        ("no ACK", segment { tcp_flags: PSH, ..s }),
        ("a new ACK", segment { ack: s.ack.add(1), ..s }),
        ("congestion", segment { bits: s.bits | SEG_CE as u16, ..s }),
        ("an option", segment { bits: s.bits | SEG_FOREIGN as u16, ..s }),
        ("no timestamps", segment { bits: 0, ..s }),
        ("an old timestamp", segment { tsval: s.tsval.wrapping_sub(1_000), ..s }),
        ("larger segments", segment { unit_len: MSS as u16 + 1, len: 2 * MSS, ..s }),
    ];
    assert!(lease_covers(&c.f, &s, JIFFY));
    for (name, s) in unusual {
        assert!(!lease_covers(&c.f, &s, JIFFY), "{name}");
    }
}

#[test]
fn a_vm_that_has_caught_up_ends_a_lease() {
    let mut c = leased();
    let sent = c.f.high_seq.diff(at(0)) as u32;
    assert!(lease_covers(&c.f, &next(&c), JIFFY));
    c.acks(sent, WINDOW);
    assert_eq!(c.mode(), flow_mode::FLOW_ACTIVE);
    assert!(!lease_covers(&c.f, &next(&c), JIFFY));
}

#[test]
fn a_flow_that_becomes_passive_again_has_no_lease() {
    let mut c = leased();
    let sent = c.f.high_seq.diff(at(0)) as u32;
    c.acks(sent, WINDOW);
    // An early ACK: acknowledged bytes are outstanding when the flow is passive again.
    c.policy.run = port_run::PORT_ACCELERATE;
    c.early(&c.data(sent, MSS));
    c.policy.run = port_run::PORT_PAUSED;
    c.pass(&next(&c));
    assert_eq!(c.mode(), flow_mode::FLOW_PASSIVE);
    assert!(c.f.next_seq.diff(c.f.vm_seq) > 0);
    assert!(!lease_covers(&c.f, &next(&c), JIFFY));
}

#[test]
fn a_byte_is_timed_anew_after_some_milliseconds() {
    let mut c = leased();
    let timed = c.f.sample_seq.diff(at(0)) as u32;
    let s = next(&c);
    passes(&mut c, &s);
    c.acks(timed, WINDOW);
    assert_eq!((c.mode(), c.f.sample), (flow_mode::FLOW_PASSIVE, 0));
    let s = next(&c);
    passes(&mut c, &s);
    let continues = |c: &FlowCase| continues_passive(&c.f, &next(c), &c.port, &c.policy, c.now);
    assert!(continues(&c));
    c.now += 5 * MS;
    c.f.progress_ns = c.now;
    assert!(!continues(&c), "the next one is timed");
    c.pass(&next(&c));
    assert_ne!(c.f.sample, 0);
}

#[test]
fn a_flow_that_goes_offline_has_no_lease() {
    let mut c = leased();
    let s = next(&c);
    c.pass(&segment { seq: s.seq.add(MSS), ..s });
    assert_eq!(c.mode(), flow_mode::FLOW_UNEXPECTED_SEQ);
    assert!(!lease_covers(&c.f, &next(&c), JIFFY));
}

#[test]
fn a_flow_that_would_not_become_active_again_has_no_lease() {
    for flag in [FLOW_F_ECE, FLOW_F_UNPROVEN] {
        let mut c = FlowCase::accepted();
        c.f.mode = flow_mode::FLOW_PASSIVE as u8;
        c.f.flags |= flag as u16;
        let s = c.data(0, MSS);
        grant_lease(&mut c.f, &s, JIFFY);
        assert!(!lease_covers(&c.f, &s, JIFFY));
    }
}
