//! A path behind the VM: smaller segments, and a bound on what is repeated.

use vsnoop_hold::Kind;
use vsnoop_packet::vnet::VNET_BYTES;

use crate::case::*;

const KB: u32 = 1_000;
/// Bytes that each round trip loses, of 500,000 or fewer.
const LOST: u32 = 40 * KB;

/// The VM was handed `bytes`, of which it has acknowledged none, and 1 MB is kept.
fn handed(bytes: u32) -> HoldCase {
    HoldCase::new(held(bytes, 1_000 * KB, 500 * KB))
}

fn len_of(frames: &[vsnoop_hold::HoldFrame], kind: Kind) -> u32 {
    frames.iter().filter(|frame| frame.kind == kind).map(|frame| frame.len).sum()
}

/// Reports that the byte at `offset` is lost, and everything up to `end` has arrived.
fn loses(c: &mut HoldCase, offset: u32, end: u32) {
    c.h.vm_seq = at(offset);
    c.duplicate_ack(&[(offset + LOST, end)]);
}

#[test]
fn a_report_of_a_smaller_path_mtu_has_all_sent_again_in_that_size() {
    let mut c = handed(20 * KB);
    assert_eq!(c.send_all().iter().filter(|frame| frame.kind == Kind::Resend).count(), 0);
    c.h.path_mss = 900;
    c.h.too_big += 1;
    let first = c.send().expect("a frame");
    assert_eq!((first.kind, first.seq), (Kind::Resend, at(0)));
    let headers = vsnoop_hold::headers(&c.h, &first, false, 1_500);
    assert_eq!(u16::from_le_bytes([headers[4], headers[5]]), 900, "segments of the super-packet");
    assert!(headers.len() > VNET_BYTES);
    // The same report does not have it sent once more.
    assert!(c.send_all().iter().all(|frame| frame.kind != Kind::Resend));
}

#[test]
fn what_a_path_loses_again_and_again_halves_what_is_outstanding() {
    let mut c = handed(0);
    let first = len_of(&c.send_all(), Kind::Handover);
    assert_eq!(first, 500 * KB, "no bound before a loss");
    let mut outstanding = first;
    for round in 0..3 {
        let begin = c.h.vm_seq;
        c.h.vm_acks += 1;
        let handed = c.h.handed;
        let offset = begin.diff(at(0)) as u32;
        loses(&mut c, offset, handed.diff(at(0)) as u32);
        let again = len_of(&c.send_all(), Kind::Resend);
        assert_eq!(again, LOST, "only what is lost");
        // All is acknowledged, and the window is as wide as ever.
        let end = handed.diff(at(0)) as u32;
        c.sacks(&[]);
        c.h.tail = at(end + 1_000 * KB);
        c.acks(end, end + 500 * KB);
        let next = len_of(&c.send_all(), Kind::Handover);
        match round {
            0 => assert_eq!(next, first, "once is chance"),
            _ => assert!(next < outstanding, "round {round}: {next} of {outstanding}"),
        }
        outstanding = next;
    }
}

#[test]
fn what_is_lost_each_time_it_is_repeated_is_repeated_in_ever_smaller_parts() {
    let mut c = handed(0);
    c.send_all();
    let mut again = Vec::new();
    for round in 0..8 {
        // Only what was sent last has arrived: all before it is lost once more.
        let end = c.h.handed.diff(at(0)) as u32;
        c.h.tail = at(end + 1_000 * KB);
        c.h.right_edge = at(500 * KB + round * KB);
        c.duplicate_ack(&[(end - KB, end)]);
        again.push(len_of(&c.send_all(), Kind::Resend));
    }
    let (first, last) = (again[0], *again.last().expect("a round"));
    assert!(first >= 400 * KB && last <= first / 8, "{again:?}");
}

#[test]
fn a_loss_now_and_then_bounds_nothing() {
    let mut c = handed(0);
    c.send_all();
    for _ in 0..20 {
        let offset = c.h.vm_seq.diff(at(0)) as u32;
        let end = c.h.handed.diff(at(0)) as u32;
        c.h.vm_acks += 1;
        c.duplicate_ack(&[(offset + KB, end)]);
        assert_eq!(len_of(&c.send_all(), Kind::Resend), KB);
        c.sacks(&[]);
        c.h.tail = at(end + 1_000 * KB);
        c.acks(end, end + 500 * KB);
        assert_eq!(len_of(&c.send_all(), Kind::Handover), 500 * KB);
    }
}

/// A case as [`handed`] makes it, for a host one hop behind the VM.
fn neighbour(bytes: u32) -> HoldCase {
    let mut h = held(bytes, 1_000 * KB, 500 * KB);
    h.neighbour = 1;
    HoldCase::new(h)
}

#[test]
fn what_a_neighbour_has_outstanding_begins_as_hosts_do_and_doubles() {
    let mut c = neighbour(0);
    assert_eq!(len_of(&c.send_all(), Kind::Handover), 44 * MSS);
    c.acks(44 * MSS, 544 * KB);
    assert_eq!(len_of(&c.send_all(), Kind::Handover), 88 * MSS);
}

#[test]
fn losses_on_the_way_to_a_neighbour_are_of_a_path_at_once() {
    let mut c = neighbour(400 * KB);
    c.send_all();
    loses(&mut c, 0, 400 * KB);
    let again = len_of(&c.send_all(), Kind::Resend);
    assert_eq!(again, 10 * MSS, "the path gets no more at once than a sender's initial window");
    assert!(c.flow.is_lost_on_a_path(&c.view()));
    // What it acknowledges is sent again with it, as in slow start.
    c.h.vm_seq = at(again);
    c.duplicate_ack(&[(LOST, 400 * KB)]);
    assert_eq!(len_of(&c.send_all(), Kind::Resend), 20 * MSS);
    // Nothing new while more is outstanding than the half of what was.
    assert_eq!(len_of(&c.send_all(), Kind::Handover), 0);
}

#[test]
fn a_few_losses_on_the_way_to_a_neighbour_are_not_of_a_path() {
    let mut c = neighbour(400 * KB);
    c.send_all();
    c.duplicate_ack(&[(2 * KB, 400 * KB)]);
    assert_eq!(len_of(&c.send_all(), Kind::Resend), 2 * KB);
    assert!(!c.flow.is_lost_on_a_path(&c.view()));
}

#[test]
fn a_vm_that_loses_as_much_itself_is_no_path() {
    let mut c = handed(400 * KB);
    c.send_all();
    loses(&mut c, 0, 400 * KB);
    assert_eq!(len_of(&c.send_all(), Kind::Resend), LOST);
    assert!(!c.flow.is_lost_on_a_path(&c.view()));
}

#[test]
fn an_answer_is_due_after_the_round_trip_of_the_path() {
    const ROUND_TRIP: u64 = 400 * MS;
    let mut c = handed(0);
    for _ in 0..5 {
        c.send_all();
        let offset = c.h.handed.diff(at(0)) as u32;
        c.run_time_ns += ROUND_TRIP;
        c.h.tail = at(offset + 1_000 * KB);
        c.acks(offset, offset + 500 * KB);
    }
    c.send_all();
    // The VM has sent something since, and does not acknowledge it: the path is long.
    for passed in [250, 140] {
        c.run_time_ns += passed * MS;
        c.h.vm_acks += 1;
        assert_eq!(len_of(&c.send_all(), Kind::Resend), 0);
    }
    c.run_time_ns += ROUND_TRIP;
    assert_ne!(len_of(&c.send_all(), Kind::Resend), 0);
}
