//! The rules of incast control, one by one.

use vsnoop_flow::testing::segment::{ACK, RST};
use vsnoop_flow::{incast, segment, types::*};

use crate::case::*;
use crate::properties::rate_of;

pub const LEAST: u32 = INCAST_LEAST_MSS;
pub const UNIT: u32 = 1 << SCALE;

/// A grant of `segments`, until the window shows whole units.
pub const fn segments(count: u32) -> u32 {
    count * LEAST + UNIT - 1
}

#[track_caller]
pub fn exact(c: &mut IncastCase) {
    assert_eq!(incast::outstanding(c.u()), c.host.outstanding());
}

// Credit.

#[test]
fn a_request_takes_credit_and_its_answer_pays_it_back() {
    let mut c = IncastCase::with(1);
    assert_eq!(incast::outstanding(c.u()), 0, "nothing was asked for yet");
    c.vm(0, 100);
    assert_eq!(c.outstanding(0), segments(10));
    assert_eq!(incast::outstanding(c.u()), i64::from(segments(10)));
    let shown = c.f(0).adv_edge;
    c.keep_shut(0);
    c.data(0, MSS);
    let left = segments(10) / UNIT * UNIT - MSS;
    assert_eq!(incast::outstanding(c.u()), i64::from(left), "the window asks for no more");
    assert_eq!(c.i(0).edge, shown, "what was not shown is not outstanding");
    exact(&mut c);
}

#[test]
fn the_window_of_the_handshake_counts_as_outstanding() {
    let mut c = IncastCase::new(1_000, BUFFER);
    c.begin(5_000);
    assert_eq!(incast::outstanding(c.u()), 5_000);
    // An older flow with any window is charged nothing.
    c.begin(1 << 20);
    assert_eq!(incast::outstanding(c.u()), 5_000);
    assert_eq!(c.u().all.open, 2);
}

#[test]
fn an_edge_is_not_taken_back_when_the_window_shrinks() {
    let mut c = IncastCase::with(1);
    c.vm(0, 100);
    let mut shown = 0;
    for window in [20, 10, 2, 5, 1, 30, 1] {
        c.i(0).window = window * LEAST;
        for (_, ack) in c.wait(10 * US).data(0, MSS) {
            let edge = IncastCase::edge_of(&ack);
            assert!(edge + (1 << SCALE) > shown, "{edge} after {shown}");
            shown = shown.max(edge);
        }
        exact(&mut c);
    }
}

/// Each ACK has its window in whole units. Rounded up, that would be half a unit more with each.
#[test]
fn late_acks_of_an_answer_move_the_edge_on_by_two_units_at_most() {
    const SENT: u32 = 8;
    let steps = [MSS / 4, MSS, 2 * MSS];
    for (scale, step) in [7, 9, 10, 11].iter().flat_map(|scale| steps.map(|step| (*scale, step))) {
        let (mut c, unit) = (IncastCase::without_early_acks(1), 1 << scale);
        c.f(0).scale = scale;
        c.vm(0, 100);
        for _ in 0..SENT {
            c.keep_shut(0);
            c.data(0, MSS);
        }
        let (edge, outstanding) = (c.f(0).adv_edge, c.outstanding(0));
        for number in 1..=SENT * MSS / step {
            c.keep_shut(0);
            let s = segment { ack: at(number * step), ..c.of_vm(0, 0) };
            let answers = c.host.from_vm(0, &s, c.now);
            let (_, ack) = answers.last().expect("an ACK of the VM");
            let shown = ack.ack.add(u32::from(ack.window) << scale);
            assert!(shown.diff(edge) + unit > 0, "less than a unit lower");
            exact(&mut c);
        }
        let more = c.f(0).adv_edge.diff(edge);
        assert!(more <= 2 * unit, "{more} bytes with units of {unit}");
        assert!(c.outstanding(0) <= outstanding + 2 * unit as u32);
    }
}

#[test]
fn data_beyond_the_edge_pays_back_no_more_than_was_outstanding() {
    let mut c = IncastCase::with(2);
    c.vm(0, 100);
    c.vm(1, 100);
    let other = c.outstanding(1);
    c.keep_shut(0);
    c.data(0, 40_000);
    // Two segments are the minimum.
    assert_eq!(c.outstanding(0), segments(2));
    assert_eq!(incast::outstanding(c.u()), i64::from(other + segments(2)));
}

#[test]
fn the_account_holds_across_the_wrap_and_for_what_comes_twice_or_out_of_order() {
    let mut c = IncastCase::with(1);
    c.vm(0, 100);
    for i in 0..60 {
        c.wait(12 * US).data(0, MSS);
        exact(&mut c);
        // The part of the edge that was not shown is returned with the next segment.
        let (granted, edge) = (incast::outstanding(c.u()), c.i(0).edge);
        let s = c.segment(0, (i / 2) * MSS, MSS);
        c.host.to_vm(0, &s, c.now);
        let unshown = i64::from(edge.diff(c.i(0).edge));
        assert_eq!(incast::outstanding(c.u()), granted - unshown, "old data moved the account");
        assert!(unshown < UNIT.into());
    }
    let end = 60 * MSS;
    let s = c.segment(0, end + MSS, MSS);
    c.host.to_vm(0, &s, c.now);
    assert_eq!(c.i(0).received, at(end + 2 * MSS));
    exact(&mut c);
}

#[test]
fn credit_comes_in_whole_segments() {
    let mut c = IncastCase::with(1);
    c.i(0).window = 3 * LEAST + 700;
    c.vm(0, 100);
    assert_eq!(c.outstanding(0), segments(3));
}

#[test]
fn no_more_is_granted_than_the_credit() {
    let mut c = IncastCase::with(60);
    for id in 0..60 {
        c.i(id).window = 64 << 10;
        c.vm(id, 100);
        c.data(id, 1);
        exact(&mut c);
        let most = i64::from(incast::credit(c.u()) + segments(2));
        assert!(incast::outstanding(c.u()) <= most);
    }
    assert!(incast::outstanding(c.u()) > i64::from(BUFFER / 3 * 2));
}

#[test]
fn a_volley_of_requests_gets_what_there_is_and_the_rest_is_queued() {
    let mut c = IncastCase::with(100);
    for id in 0..100 {
        c.vm(id, 100);
    }
    let asked = (0..100).filter(|&id| c.outstanding(id) > 0).count();
    assert!(asked >= 7, "only {asked} may answer");
    assert_eq!(c.u().all.queued as usize, 100 - asked);
    assert!(incast::outstanding(c.u()) <= i64::from(incast::credit(c.u())));
}

/// Or the answer of a far server would take one more round trip.
#[test]
fn a_connection_that_begins_with_little_beside_idle_ones_is_granted_its_request() {
    let mut c = IncastCase::new(1_000, 64 << 10);
    c.u().all.silent = 20_000;
    let shown = c.first_window(false);
    assert_eq!(shown, 536);
    let id = c.begin(shown);
    c.vm(id, 100);
    assert!(c.outstanding(id) >= LEAST, "{}", c.outstanding(id));
    // A volley of such requests gets what there is, and none waits: its window shows an answer.
    let others: Vec<_> = (0..100).map(|_| c.begin(536)).collect();
    let begun = incast::outstanding(c.u());
    others.iter().for_each(|&id| drop(c.vm(id, 100)));
    // Windows are rounded up to their unit.
    let most = begun.max(i64::from(incast::credit(c.u()))) + i64::from(100 * UNIT);
    assert!(incast::outstanding(c.u()) <= most);
    assert_eq!(c.u().all.queued, 0);
}

#[test]
fn a_flow_that_waited_for_a_timeout_gets_a_window_whatever_the_credit() {
    let mut c = IncastCase::with(2);
    c.u().all.outstanding += 1 << 20;
    c.vm(0, 100);
    assert_eq!(u32::from(c.i(0).waiting), incast_waiting::INCAST_QUEUED);
    c.f(0).flags |= FLOW_F_REPLY_DUE as u16;
    c.vm(0, 0);
    assert_eq!(c.i(0).waiting, 0);
    assert!(c.outstanding(0) >= 2 * LEAST);
}

#[test]
fn among_many_an_open_window_does_not_move() {
    for (flows, moves) in [(4, true), (40, false)] {
        let mut c = IncastCase::with(1);
        (c.p().flows, c.i(0).window) = (flows, 4 * LEAST);
        c.vm(0, 100);
        let edge = c.f(0).adv_edge;
        c.data(0, MSS);
        assert_eq!(c.i(0).edge.diff(edge) > 0, moves, "{flows} flows");
    }
}

#[test]
fn an_ack_without_news_opens_nothing() {
    let mut c = IncastCase::with(1);
    c.vm(0, 0);
    assert_eq!(c.outstanding(0), 0);
    assert_eq!(c.u().all.queued, 0);
}

#[test]
fn credit_of_silent_flows_does_not_count_until_they_send() {
    let mut c = IncastCase::with(2);
    c.vm(0, 100);
    let outstanding = i64::from(c.outstanding(0));
    // It got a request, and may compute its answer.
    c.wait(10 * MS).vm(1, 0);
    assert_eq!(incast::outstanding(c.u()), outstanding, "too early");
    let now = c.wait(10 * MS).now;
    c.advance_time(now);
    assert_eq!((incast::outstanding(c.u()), c.u().all.silent), (0, outstanding));
    exact(&mut c);
    c.keep_shut(0);
    c.data(0, MSS);
    let left = i64::from(segments(10) / UNIT * UNIT - MSS);
    assert_eq!((incast::outstanding(c.u()), c.u().all.silent), (left, 0));
    // It has answered, and is silent.
    let now = c.wait(3 * MS).now;
    c.advance_time(now);
    assert_eq!((incast::outstanding(c.u()), c.u().all.silent), (0, left));
    exact(&mut c);
}

// The grant queue.

/// `n` flows that use what there is; the last has a closed window and waits.
fn crowd(n: usize) -> IncastCase {
    let mut c = IncastCase::new(1_000, 20_000);
    for _ in 0..n {
        c.begin(0);
    }
    for id in 0..n {
        c.vm(id, 100);
    }
    c
}

#[test]
fn a_flow_without_credit_is_queued_once() {
    let mut c = crowd(20);
    let waiting = c.u().all.queued;
    assert!(waiting > 0);
    assert_eq!(c.queue().len(), waiting as usize);
    for id in 0..20 {
        c.vm(id, 100);
    }
    assert_eq!(c.u().all.queued, waiting);
    assert_eq!(c.queue().len(), waiting as usize);
}

#[test]
fn queued_flows_are_served_before_open_ones() {
    let mut c = crowd(20);
    let (queue, head) = (c.queue(), c.queue()[0]);
    c.i(0).window = 10 * LEAST;
    let mut answers = c.data(0, MSS);
    assert!(c.outstanding(0) < segments(10), "took what others wait for");
    answers.extend(c.use_up(0));
    // With the ACKs of its data go grants of those that wait, the head first.
    let (own, grants): (Vec<_>, Vec<_>) = answers.iter().partition(|(id, _)| *id == 0);
    assert!(!grants.is_empty() && grants.iter().map(|(id, _)| id).eq(&queue[..grants.len()]));
    assert_eq!(own.last().expect("its data are acknowledged").1.ack, c.f(0).next_seq);
    assert_eq!(c.i(head).waiting, 0);
    assert!(c.outstanding(head) >= LEAST);
    exact(&mut c);
}

#[test]
fn a_grant_shows_the_new_edge_and_acknowledges_what_the_vm_has() {
    let mut c = crowd(20);
    let head = c.queue()[0];
    let snd_nxt = c.f(head).snd_nxt;
    let (id, ack) = c.use_up(0)[1];
    assert_eq!((id, ack.ack, ack.seq), (head, at(0), snd_nxt));
    assert!(IncastCase::edge_of(&ack) > c.outstanding(head) - UNIT);
    assert_eq!(ack.timestamps, 1);
}

#[test]
fn every_queued_flow_gets_a_grant() {
    let mut c = crowd(20);
    let mut served = [false; 20];
    for _ in 0..200 {
        for (id, served) in served.iter_mut().enumerate() {
            let outstanding = c.outstanding(id);
            if outstanding >= MSS {
                *served = true;
                c.wait(12 * US).data(id, MSS);
                c.vm(id, 0);
            }
        }
    }
    assert!(served.iter().all(|&s| s), "{served:?}");
}

#[test]
fn when_all_flows_have_ended_nothing_is_outstanding_or_queued() {
    let mut c = crowd(20);
    for id in 0..20 {
        let now = c.now;
        c.host.begin_anew(id, now);
    }
    let u = c.u();
    assert_eq!((incast::outstanding(u), u.all.queued, u.all.open), (0, 0, 0));
}

// The window.

/// A round trip of 100 us in which `bytes` came, at a window of `window`.
fn round_trip(c: &mut IncastCase, window: u32, bytes: u32) -> u32 {
    let now = c.wait(100 * US).now;
    let i = c.i(0);
    i.window = window;
    (i.rtt_ns, i.min_rtt_ns, i.measured) = (100 * US as u32, 100 * US as u32, 0);
    i.sample_at = ((now - 100_200) >> 8) as u32;
    i.sample_bytes = bytes - 1;
    c.data(0, 1);
    c.i(0).window
}

/// The only flow of a census, with this many others.
fn among(flows: u32) -> IncastCase {
    let mut c = IncastCase::with(1);
    c.vm(0, 100);
    c.p().flows = flows;
    c.u().census_ns = c.now;
    c
}

#[test]
fn slow_start_doubles_up_to_the_share() {
    let mut c = among(5);
    let share = c.share();
    assert_eq!(round_trip(&mut c, 8_000, 8_000), 16_000);
    assert_eq!(round_trip(&mut c, 16_000, 16_000), share);
}

#[test]
fn avoidance_steps_by_a_segment_or_a_sixteenth() {
    let mut c = among(5);
    c.i(0).bits |= INCAST_AVOIDS as u16;
    assert_eq!(round_trip(&mut c, 8_000, 8_000), 8_000 + LEAST);
    let mut c = IncastCase::new(100_000, 1 << 20);
    c.begin(0);
    c.p().flows = 2;
    c.u().census_ns = c.now;
    c.i(0).bits |= INCAST_AVOIDS as u16;
    assert_eq!(round_trip(&mut c, 160_000, 160_000), 170_000);
}

#[test]
fn a_window_that_is_filled_grows_and_one_that_is_not_does_not() {
    for (missing, grows) in [(0, true), (9, true), (11, false), (40, false)] {
        let mut c = among(3);
        let grown = round_trip(&mut c, 20_000, 20_000 - 200 * missing);
        assert_eq!(grown > 20_000, grows, "d = {missing} %");
        assert_eq!(u32::from(c.i(0).bits) & INCAST_AVOIDS == 0, grows);
    }
}

#[test]
fn three_round_trips_that_use_less_than_half_shrink_it() {
    let mut c = among(3);
    assert_eq!(round_trip(&mut c, 20_000, 5_000), 20_000);
    assert_eq!(round_trip(&mut c, 20_000, 5_000), 20_000);
    assert_eq!(round_trip(&mut c, 20_000, 5_000), 20_000 - LEAST);
    assert_eq!(c.i(0).over, 0);
    // Not if a round trip between them uses more.
    round_trip(&mut c, 20_000, 5_000);
    round_trip(&mut c, 20_000, 5_000);
    round_trip(&mut c, 20_000, 15_000);
    assert_eq!(round_trip(&mut c, 20_000, 5_000), 20_000);
}

#[test]
fn beyond_the_share_a_window_grows_by_quota_alone() {
    for (granting, quota, grows) in [(1, 200_000, true), (0, 200_000, false), (1, 1_000, false)] {
        let mut c = among(20);
        let share = c.share();
        // Neither half of the slot ends meanwhile.
        (c.u().t_ns, c.u().slot_ns) = (4 * MS as u32, c.now - 5 * MS * granting);
        (c.u().is_granting, c.u().quota) = (granting as u32, quota);
        let grown = round_trip(&mut c, share + 4_000, share + 4_000);
        assert_eq!(grown, share + 4_000 + if grows { LEAST } else { 0 });
        let taken = quota - c.u().quota;
        assert_eq!(taken, if grows { (i64::from(LEAST) << 20) / 100_000 } else { 0 });
    }
}

#[test]
fn no_flow_grows_twice_within_two_round_trips_beyond_the_share() {
    let mut c = among(20);
    let window = c.share() + 4_000;
    (c.u().t_ns, c.u().slot_ns) = (4 * MS as u32, c.now - 5 * MS);
    (c.u().is_granting, c.u().quota) = (1, 1_000_000);
    assert!(round_trip(&mut c, window, window) > window);
    assert_eq!(round_trip(&mut c, window, window), window);
    c.wait(200 * US);
    assert!(round_trip(&mut c, window, window) > window);
}

#[test]
fn the_first_half_of_a_slot_measures_and_the_second_gives_away() {
    let mut c = IncastCase::with(1);
    let t = 100 * US;
    let (rate, now) = (u64::from(c.u().rate), c.now);
    c.u().slot_ns = now;
    c.u().slot_bytes = 0;
    // Half of C.
    c.u().bytes = (rate * t / 2) >> 20;
    c.advance_time(now + t - 1);
    assert_eq!(c.u().is_granting, 0);
    c.advance_time(now + t);
    assert_eq!(c.u().is_granting, 1);
    let total = u64::from(c.u().total);
    assert!(total.abs_diff(rate / 2) < rate / 100, "{total}");
    assert_eq!(c.u().quota, (rate / 10 * 9 - total) as i64);
    c.advance_time(now + 2 * t);
    assert_eq!((c.u().is_granting, c.u().slot_ns), (0, now + 2 * t));
    let u = c.u();
    assert_eq!(u.slot_bytes, u.bytes);
    // More than ALPHA came in: no quota is left.
    c.u().bytes += (rate * t * 95 / 100) >> 20;
    c.advance_time(now + 3 * t);
    assert_eq!((c.u().is_granting, c.u().quota), (1, 0));
}

#[test]
fn with_little_bandwidth_left_windows_above_the_share_shrink() {
    for (used, shrinks) in [(85, true), (75, false)] {
        let mut c = among(20);
        let window = c.share() + 10_000;
        c.u().slot_ns = c.now;
        c.u().t_ns = 4 * MS as u32;
        c.u().total = c.u().rate / 100 * used;
        assert_eq!(round_trip(&mut c, window, window) < window, shrinks, "{used} % used");
        let share = c.share();
        assert!(round_trip(&mut c, share, share) >= share, "no more than its share");
    }
}

#[test]
fn a_mark_halves_the_window() {
    let mut c = among(3);
    let mut s = c.segment(0, 0, MSS);
    s.bits |= SEG_CE as u16;
    c.host.to_vm(0, &s, c.now);
    let marked = |c: &mut IncastCase| u32::from(c.i(0).bits) & INCAST_MARKED;
    assert_ne!(marked(&mut c), 0);
    let now = c.now;
    let i = c.i(0);
    (i.window, i.rtt_ns, i.sample_bytes) = (20_000, 100_000, 20_000);
    i.sample_at = ((now - 99_300) >> 8) as u32;
    let s = c.wait(US).segment(0, MSS, MSS);
    c.host.to_vm(0, &s, c.now);
    assert_eq!((c.i(0).window, marked(&mut c)), (10_000, 0));
    assert_ne!(u32::from(c.i(0).bits) & INCAST_AVOIDS, 0);
}

#[test]
fn a_window_never_falls_below_two_segments_or_one_among_many() {
    for (flows, least) in [(3, 2), (200, 1)] {
        let mut c = among(flows);
        c.i(0).bits |= INCAST_MARKED as u16;
        assert_eq!(round_trip(&mut c, least * LEAST, least * LEAST), least * LEAST);
    }
}

#[test]
fn after_a_long_pause_a_flow_begins_anew() {
    let mut c = among(1);
    round_trip(&mut c, 60_000, 60_000);
    assert!(c.i(0).window >= 60_000);
    c.wait(250 * MS).data(0, 1);
    assert_eq!(c.i(0).window, 10 * LEAST);
    assert_eq!(u32::from(c.i(0).bits) & INCAST_AVOIDS, 0);
}

// Scope.

/// Answers to grants that take this long, without timestamps: whether it is still shaped.
fn far(c: &mut IncastCase, rtt_ns: u64, times: usize) -> bool {
    c.f(0).flags &= !(FLOW_F_TIMESTAMPS as u16);
    c.i(0).window = 4 * LEAST;
    c.vm(0, 100);
    for _ in 0..times {
        let now = c.now;
        let edge = c.i(0).received;
        let i = c.i(0);
        (i.asked, i.asked_at) = (edge.v, (now >> 4) as u32 | 1);
        i.bits &= INCAST_SHAPED as u16;
        c.wait(rtt_ns).data(0, 4 * LEAST);
        c.i(0).asked_at = 0;
    }
    c.data(0, 1);
    c.i(0).is_shaped()
}

#[test]
fn a_flow_with_long_round_trips_is_left_alone_and_pays_back() {
    let mut c = IncastCase::with(1);
    assert!(!far(&mut c, 20 * MS, 10));
    assert_eq!((incast::outstanding(c.u()), c.u().all.open), (0, 0));
    let edge = c.f(0).right_edge;
    let answers = c.vm(0, 0);
    let shown = IncastCase::edge_of(&answers[0].1);
    assert!(at(shown).diff(edge) >= 0, "the VM's own window");
}

#[test]
fn a_few_pauses_put_no_flow_out_of_scope() {
    let mut c = IncastCase::with(1);
    assert!(far(&mut c, 20 * MS, 7));
    assert!(far(&mut c, 100 * US, 1));
    assert!(far(&mut c, 20 * MS, 7));
}

#[test]
fn a_full_queue_puts_no_flow_out_of_scope() {
    let mut c = IncastCase::new(1_000, 256 << 10);
    c.begin(0);
    assert!(far(&mut c, 4 * MS, 30));
}

#[test]
fn bypassed_and_reset_flows_are_not_shaped() {
    for mode in [flow_mode::FLOW_BYPASS, flow_mode::FLOW_RESET] {
        let mut c = IncastCase::with(1);
        c.vm(0, 100);
        assert!(c.outstanding(0) > 0);
        c.f(0).mode = mode as u8;
        c.data(0, MSS);
        assert_eq!((c.i(0).is_shaped(), c.i(0).waiting), (false, 0));
        assert_eq!((incast::outstanding(c.u()), c.u().all.open), (0, 0));
    }
}

#[test]
fn only_listed_interfaces_are_ingress_of_the_uplink() {
    let mut c = IncastCase::with(0);
    c.u().ingress[..3].copy_from_slice(&[4, 9, 2]);
    for (ifindex, expected) in [(4, true), (9, true), (2, true), (3, false), (0, false)] {
        assert_eq!(incast::is_ingress(c.u(), ifindex), expected, "{ifindex}");
    }
    c.u().ingress = [7; INCAST_INGRESS as usize];
    assert!(!incast::is_ingress(c.u(), 8));
}

#[test]
fn a_flow_beside_the_uplink_has_no_outstanding_credit_and_is_not_queued() {
    let mut c = crowd(20);
    let head = c.queue()[0];
    for id in [0, head] {
        c.host.route_beside_uplink(id, true);
        c.data(id, MSS);
        assert_eq!((c.i(id).is_shaped(), c.i(id).waiting, c.outstanding(id)), (false, 0, 0));
    }
    assert_eq!((c.u().all.open, c.p().own.open), (18, 18));
    let (_, ack) = c.vm(0, 100)[0];
    assert_eq!(IncastCase::edge_of(&ack), MSS + (4 << 20), "the VM's own window");
    exact(&mut c);
    // It comes through the uplink again.
    c.host.route_beside_uplink(0, false);
    c.data(0, MSS);
    assert!(c.i(0).is_shaped());
    exact(&mut c);
}

#[test]
fn without_the_scale_nothing_is_shaped() {
    let mut c = IncastCase::with(1);
    let known = FLOW_F_SCALE_KNOWN as u16;
    c.f(0).flags &= !known;
    c.vm(0, 100);
    assert_eq!((c.i(0).is_shaped(), c.u().all.open), (false, 0));
}

/// Each ACK would give away a part of a unit of its window.
#[test]
fn a_window_in_large_units_is_left_alone() {
    for (scale, is_shaped) in [(11, true), (12, false), (14, false)] {
        let mut c = IncastCase::with(1);
        c.f(0).scale = scale;
        c.vm(0, 100);
        assert_eq!(c.i(0).is_shaped(), is_shaped, "scale {scale}");
    }
}

#[test]
fn without_incast_control_a_window_is_the_vms_own() {
    let mut c = IncastCase::new(0, BUFFER);
    c.begin(0);
    let (_, ack) = c.vm(0, 100)[0];
    assert_eq!(IncastCase::edge_of(&ack), 4 << 20);
    assert_eq!(c.u().all.open, 0);
}

#[test]
fn incast_control_that_is_turned_off_leaves_nothing() {
    let mut c = crowd(20);
    c.u().rate = 0;
    for id in 0..20 {
        c.vm(id, 0);
    }
    assert_eq!((incast::outstanding(c.u()), c.u().all.queued, c.u().all.open), (0, 0, 0));
}

#[test]
fn a_flow_that_the_vm_resets_pays_back() {
    let mut c = IncastCase::with(1);
    c.vm(0, 100);
    let s = segment { seq: c.f(0).snd_nxt, tcp_flags: RST | ACK, ..segment::default() };
    c.host.from_vm(0, &s, c.now);
    assert!(c.host.flow(0).is_none(), "the record goes");
    assert_eq!((incast::outstanding(c.u()), c.u().all.open), (0, 0));
}

// Beginning.

#[test]
fn a_handshake_shows_ten_segments_or_a_part_of_what_is_left() {
    let mut c = IncastCase::new(1_000, 1 << 20);
    let now = c.now;
    c.advance_time(now);
    assert_eq!(c.first_window(true), 10 * LEAST);
    let mut c = IncastCase::new(1_000, BUFFER);
    c.advance_time(now);
    let credit = incast::credit(c.u());
    assert_eq!(c.first_window(true), credit / 2 / 4);
    let mut sum = 0;
    for _ in 0..64 {
        let shown = c.first_window(true);
        assert!(shown >= INCAST_SMALLEST);
        c.begin(shown);
        sum += shown;
    }
    assert!(sum < credit, "{sum} of {credit}");
}

/// Or the first volley of a thousand connections, opened one by one, would overflow the queue.
#[test]
fn connections_that_the_vm_opens_one_by_one_have_no_more_than_the_queue() {
    let mut sums = [false, true].map(|accepts| {
        let mut c = IncastCase::new(1_000, BUFFER);
        let mut sum = 0;
        for _ in 0..200 {
            let shown = c.first_window(accepts);
            c.begin(shown);
            // What they have is silent when the next one is opened.
            c.wait(20 * MS);
            sum += shown;
        }
        sum
    });
    sums[0] -= 200 * INCAST_SMALLEST;
    assert!(sums[0] < BUFFER / 2, "{sums:?}");
    assert!(sums[1] > 200 * LEAST, "a peer that is far away begins with two segments: {sums:?}");
}

// Round trips.

#[test]
fn the_round_trip_is_timed_from_a_new_tsval_to_its_echo() {
    let mut c = IncastCase::with(1);
    c.vm(0, 100);
    c.i(0).rtt_ns = 500_000;
    c.wait(MS).data(0, MSS);
    c.vm(0, 0);
    let asked = c.now;
    assert_ne!(c.i(0).asked_at, 0);
    // Data that was on its way already.
    let mut s = c.segment(0, MSS, MSS);
    s.tsecr = s.tsecr.wrapping_sub(1);
    c.wait(30 * US);
    c.host.to_vm(0, &s, c.now);
    assert_ne!(c.i(0).asked_at, 0, "an old echo");
    let s = c.wait(70 * US).segment(0, 2 * MSS, MSS);
    c.host.to_vm(0, &s, c.now);
    let rtt = u64::from(c.i(0).min_rtt_ns);
    assert!(rtt.abs_diff(c.now - asked) <= 16, "{rtt} ns");
}

#[test]
fn a_handshake_lowers_the_base_round_trip() {
    let mut c = IncastCase::new(1_000, BUFFER / 16);
    for _ in 0..3 {
        c.begin(0);
    }
    // A full queue takes 66 us to empty; the base is an eighth of it more than the round trip.
    let before = u64::from(c.u().base_rtt_ns);
    assert!(before > 80 * US);
    // The first one does not come through the uplink.
    c.host.route_beside_uplink(0, true);
    for (id, rtt, most) in [(0, 10 * US, before), (1, 40 * US, 50 * US), (2, 70 * US, 50 * US)] {
        c.host.begin_anew_after(id, c.now, rtt);
        let base = u64::from(c.u().base_rtt_ns);
        assert!(base <= most && base >= most - 10 * US, "flow {id}: {base} ns");
    }
}

#[test]
fn without_timestamps_it_is_timed_from_the_edge_that_was_shown_before() {
    let mut c = IncastCase::with(1);
    c.f(0).flags &= !(FLOW_F_TIMESTAMPS as u16);
    c.i(0).window = 4 * LEAST;
    c.vm(0, 100);
    c.data(0, MSS);
    let (asked, edge) = (c.now, c.i(0).asked);
    assert_ne!(c.i(0).asked_at, 0);
    c.wait(40 * US).data(0, MSS);
    assert_eq!((c.i(0).rtt_ns, c.i(0).asked), (0, edge), "within the edge shown before");
    c.data(0, MSS);
    c.wait(60 * US).data(0, 2 * MSS);
    let rtt = u64::from(c.i(0).rtt_ns);
    assert!(rtt.abs_diff(c.now - asked) <= 16, "{rtt} ns");
}

#[test]
fn the_time_to_think_about_a_request_is_no_round_trip() {
    let mut c = IncastCase::with(1);
    c.vm(0, 100);
    assert_eq!(c.i(0).asked_at, 0);
    c.wait(MS).data(0, MSS);
    c.vm(0, 0);
    c.wait(MS).vm(0, 100);
    assert_eq!(c.i(0).asked_at, 0, "a request cancels what was asked before");
}

// Extremes.

#[test]
fn time_that_stands_still_or_goes_back_does_no_harm() {
    let mut c = IncastCase::with(3);
    for step in 0..400u64 {
        let id = (step % 3) as usize;
        c.now = if step % 7 == 0 { c.now - 50 * US } else { c.now };
        c.vm(id, (step % 2) as u32 * 100);
        c.i(id).rtt_ns = 1;
        c.data(id, MSS);
        exact(&mut c);
        let credit = incast::credit(c.u());
        assert!(c.i(id).window <= credit);
    }
}

#[test]
fn rates_and_segments_of_any_size() {
    for mbps in [10, 100, 1_000, 10_000, 100_000] {
        for mss in [536, 1_448, 8_960] {
            let mut c = IncastCase::new(mbps, BUFFER);
            c.begin(0);
            c.vm(0, 100);
            for _ in 0..2_000 {
                let open = c.outstanding(0);
                assert!(open >= mss.min(LEAST), "{mbps} Mb/s, {mss}: only {open}");
                c.wait(10 * US).data(0, mss.min(open));
                c.f(0).mss = mss as u16;
                c.vm(0, 0);
                exact(&mut c);
            }
            let (credit, window) = (incast::credit(c.u()), c.i(0).window);
            assert!(window <= credit && window >= mss, "{mbps} Mb/s, {mss}: {window} of {credit}");
        }
    }
}

#[test]
fn counters_near_their_limits() {
    let mut c = IncastCase::with(2);
    c.u().bytes = u64::MAX - 10_000;
    c.u().census = u32::MAX;
    c.u().all.epoch = u32::MAX;
    c.u().slot_bytes = u64::MAX - 20_000;
    for _ in 0..200 {
        c.i(0).measured = u32::MAX;
        c.wait(100 * US).data(0, MSS);
        c.vm(0, 100);
        exact(&mut c);
    }
    assert_eq!(rate_of(1_000), 131_072);
}

#[test]
fn data_with_an_old_ack_are_counted_once_the_vm_acknowledges_them() {
    let mut c = IncastCase::with(40);
    c.p().flows = 40;
    c.i(0).window = 2 * LEAST;
    c.vm(0, 100);
    let shown = c.outstanding(0) / UNIT * UNIT;
    assert!(shown >= MSS);
    // The segment was overtaken by an ACK of the VM's data.
    let mut s = c.segment(0, 0, shown);
    s.ack = s.ack.add(0u32.wrapping_sub(50));
    c.f(0).snd_una = c.f(0).snd_nxt;
    assert!(c.host.to_vm(0, &s, c.now).delivered);
    assert_eq!(c.i(0).received, at(0), "the VM might refuse it");
    c.f(0).high_seq = at(shown);
    c.vm(0, 0);
    let open = c.outstanding(0);
    let waiting = u32::from(c.i(0).waiting);
    assert_eq!(c.i(0).received, at(shown));
    assert!(open >= MSS || waiting == incast_waiting::INCAST_QUEUED, "nothing would open it");
}
