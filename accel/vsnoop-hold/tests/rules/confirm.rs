//! A connection that the VM has not confirmed: it may have none.

use vsnoop_flow::types::HOLD_UNCONFIRMED;
use vsnoop_hold::{Deadline, Flow, HoldFrame, Kind, Reason};

use crate::case::*;

/// Two segments were handed over, and more is held.
fn unconfirmed() -> HoldCase {
    HoldCase::new(held(2_000, 5_000, 9_000)).unconfirmed()
}

/// Polls every 10 ms of the clock until `until_ms`; returns the frames and their times.
fn course(c: &mut HoldCase, until_ms: u64) -> Vec<(u64, HoldFrame)> {
    let mut sent = Vec::new();
    while c.now_ns < until_ms * MS {
        let now_ms = c.now_ns / MS;
        sent.extend(c.send_all().into_iter().map(|frame| (now_ms, frame)));
        c.now_ns += 10 * MS;
    }
    sent
}

#[test]
fn only_what_was_handed_over_is_sent_again_by_the_clock() {
    let mut c = unconfirmed();
    let again = resend(0, 2_000);
    let expected = [200, 600, 1_400, 2_400, 3_400, 4_400].map(|at_ms| (at_ms, again));
    assert_eq!(course(&mut c, 5_000), expected);
    // However long the VM runs, the flow sends nothing else.
    c.run_time_ns = 50_000 * MS;
    assert_eq!(course(&mut c, 7_000), [(5_400, again), (6_400, again)]);
}

#[test]
fn nothing_below_the_first_byte_and_no_bare_ack_is_sent() {
    let mut c = unconfirmed();
    c.h.snd_una = at(7);
    c.h.duplicate_acks = 20;
    c.h.sender_window += 1;
    c.acks(0, 0);
    for _ in 0..200 {
        c.now_ns += 500 * MS;
        c.run_time_ns += 500 * MS;
        c.h.vm_acks += 1;
        c.h.duplicate_acks += 1;
        for frame in c.send_all() {
            assert_eq!((frame.seq, frame.kind), (at(0), Kind::Resend), "{frame:?}");
        }
    }
}

#[test]
fn the_first_byte_is_handed_over_when_none_was() {
    let mut c = HoldCase::new(held(0, 5_000, 3_000)).unconfirmed();
    assert_eq!(c.send_all(), [handover(0, 3_000)]);
    assert_eq!(course(&mut c, 500), [(200, resend(0, 3_000))]);
}

#[test]
fn after_confirmation_the_rest_is_handed_over() {
    let mut c = unconfirmed();
    course(&mut c, 60_000);
    c.run_time_ns = 60_000 * MS;
    c.h.flags &= !(HOLD_UNCONFIRMED as u16);
    c.acks(2_000, 9_000);
    assert_eq!(c.send_all(), [handover(2_000, 3_000)]);
    assert_eq!(c.flow.reason_to_reset(), None);
}

#[test]
fn an_unconfirmed_connection_is_retried_by_the_clock() {
    let mut c = unconfirmed();
    assert_eq!(c.send(), None);
    assert_eq!(c.deadline(), Deadline { now_ns: Some(200 * MS), run_time_ns: None });
}

#[test]
fn an_unconfirmed_connection_is_given_up_after_130_s_and_100_s_of_run_time() {
    let mut c = unconfirmed();
    c.wants();
    c.now_ns = 130_000 * MS;
    c.wants();
    assert_eq!(c.flow.reason_to_reset(), None, "it has not run");
    c.run_time_ns = 100_000 * MS;
    c.wants();
    assert_eq!(c.flow.reason_to_reset(), Some(Reason::Silent));
}

#[test]
fn a_new_engine_retries_an_unconfirmed_connection_at_once() {
    let mut c = unconfirmed();
    c.flow = Flow::resumed(&c.view(), c.time());
    assert_eq!(c.send_all(), [resend(0, 2_000)]);
    assert_eq!(c.send_all(), []);
}
