//! Where an answer ends, and what its flow waits for then.

use vsnoop_flow::{incast, types::*};

use crate::case::*;
use crate::rules::{LEAST, UNIT, exact, segments};

/// A flow that was granted two segments while its window was closed, and has answered with `len`
/// bytes.
fn answered(len: u32, flags: u32) -> IncastCase {
    let mut c = IncastCase::with(40);
    c.p().flows = 40;
    c.i(0).window = 2 * LEAST;
    c.vm(0, 100);
    let mut s = c.segment(0, 0, len);
    s.tcp_flags |= flags as u8;
    c.host.to_vm(0, &s, c.now);
    c
}

#[test]
fn a_short_segment_with_psh_ends_an_answer_unless_the_window_cut_it() {
    let finished = |c: &mut IncastCase| u32::from(c.i(0).bits) & INCAST_FINISHED != 0;
    assert!(finished(&mut answered(700, TCP_PSH)));
    assert!(!finished(&mut answered(700, 0)), "more is to come");
    assert!(!finished(&mut answered(MSS, TCP_PSH)), "a whole segment says nothing");
    let shown = segments(2) / UNIT * UNIT;
    assert!(!finished(&mut answered(shown, TCP_PSH)), "it ends where the window does");
    // Data that were in flight at the grant prove nothing.
    let mut c = IncastCase::with(40);
    c.p().flows = 40;
    c.begin(600);
    c.i(40).window = 2 * LEAST;
    c.vm(40, 100);
    let mut s = c.segment(40, 0, 500);
    s.tcp_flags |= TCP_PSH as u8;
    c.host.to_vm(40, &s, c.now);
    assert_eq!(u32::from(c.i(40).bits) & INCAST_FINISHED, 0);
}

#[test]
fn what_is_left_of_a_finished_answer_is_silent_at_once() {
    let mut c = answered(700, TCP_PSH);
    let left = segments(2) / UNIT * UNIT - 700;
    assert_eq!((incast::outstanding(c.u()), c.u().all.silent), (0, i64::from(left)));
    // The next request makes it count again.
    c.vm(0, 100);
    assert!(incast::outstanding(c.u()) >= i64::from(left) && c.u().all.silent == 0);
    assert_ne!(u32::from(c.i(0).bits) & INCAST_ANSWERS, 0);
    exact(&mut c);
}

#[test]
fn a_flow_that_only_answers_stays_shut_only_while_others_need_credit() {
    let mut c = answered(2_000, TCP_PSH);
    // There is credit: it was given a new window at once.
    assert_eq!(c.i(0).waiting, 0);
    assert!(c.outstanding(0) >= LEAST);
    let mut c = IncastCase::with(40);
    c.p().flows = 40;
    (c.i(0).window, c.i(1).window) = (2 * LEAST, 2 * LEAST);
    c.vm(0, 100);
    // A flow is in the grant queue.
    c.u().all.outstanding += 200_000;
    c.vm(1, 100);
    assert_eq!(u32::from(c.i(1).waiting), incast_waiting::INCAST_QUEUED);
    let mut s = c.segment(0, 0, 2_000);
    s.tcp_flags |= TCP_PSH as u8;
    c.host.to_vm(0, &s, c.now);
    assert_eq!(u32::from(c.i(0).waiting), incast_waiting::INCAST_FINISHED_OTHER);
    c.u().all.outstanding -= 200_000;
    let now = c.now;
    let order: Vec<_> = c.host.grants(0, 16, now).into_iter().map(|(id, _)| id).collect();
    assert_eq!(order, [1, 0], "flows in the grant queue come first");
}

#[test]
fn flows_that_have_finished_may_all_send_at_once() {
    let mut c = IncastCase::with(40);
    c.p().flows = 40;
    for id in 0..40 {
        c.i(id).window = 2 * LEAST;
        c.vm(id, 100);
        c.data(id, MSS);
        c.end(id, 1_000);
        assert!(c.outstanding(id) >= LEAST, "flow {id} has no window");
    }
    let open: u32 = (0..40).map(|id| c.outstanding(id)).sum();
    assert!(open < BUFFER / 4 * 3, "{open} bytes");
}

/// Returns what a flow waits for after each of its answers. Each has two segments, and ends without
/// credit.
fn waits_after_answers(lengths: &[u32]) -> Vec<u32> {
    let mut c = one_of_forty();
    lengths.iter().map(|len| wait_after_answer(&mut c, *len)).collect()
}

fn one_of_forty() -> IncastCase {
    let mut c = IncastCase::with(40);
    c.p().flows = 40;
    c.i(0).window = 2 * LEAST;
    c
}

fn wait_after_answer(c: &mut IncastCase, len: u32) -> u32 {
    c.vm(0, 100);
    c.data(0, MSS);
    end_without_credit(c, len - MSS)
}

fn end_without_credit(c: &mut IncastCase, len: u32) -> u32 {
    c.u().all.outstanding += 200_000;
    c.end(0, len);
    c.u().all.outstanding -= 200_000;
    u32::from(c.i(0).waiting)
}

#[test]
fn a_short_answer_is_a_pause_only_where_the_last_two_had_one_length() {
    use incast_waiting::{INCAST_FINISHED_ANSWERER as ANSWERER, INCAST_FINISHED_OTHER as OTHER};
    // The first may be followed by more: the VM has sent one request only.
    let waits = waits_after_answers(&[2_500; 40]);
    assert_eq!(waits[0], OTHER);
    assert!(waits[1..].iter().all(|wait| *wait == ANSWERER), "{waits:?}");
    let waits = waits_after_answers(&[2_800, 2_800, 2_000, 2_800, 2_000, 2_000, 2_800]);
    assert_eq!(waits, [OTHER, ANSWERER, OTHER, ANSWERER, ANSWERER, ANSWERER, ANSWERER]);
}

#[test]
fn a_sender_that_goes_on_and_ends_its_answer_waits_as_an_answerer() {
    use incast_waiting::{INCAST_FINISHED_ANSWERER as ANSWERER, INCAST_FINISHED_OTHER as OTHER};
    let mut c = one_of_forty();
    let waits = [2_800, 2_800, 2_000].map(|len| wait_after_answer(&mut c, len));
    assert_eq!(waits, [OTHER, ANSWERER, OTHER]);
    assert_eq!((c.p().finished_answerers, c.p().finished_others), (0, 1));
    assert_eq!(end_without_credit(&mut c, 800), ANSWERER);
    assert_eq!((c.p().finished_answerers, c.p().finished_others), (1, 0));
}
