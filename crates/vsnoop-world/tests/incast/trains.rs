//! Trains: what flows from the grant queue are granted when their answers are long.

use crate::case::IncastCase;
use crate::sim::*;

const LEAST: u32 = 2 * 1_460;
/// The longest train, and what rounding to the window's unit adds at most.
const TRAIN: u32 = 12 * 1_460;
const UNIT: u32 = 128;

/// Bytes that a flow among 40 is granted from the queue; its last answer had `answer` bytes, and it
/// has `sent` of the present one.
fn granted(answer: u32, sent: u32, has_hold: bool) -> u32 {
    let mut c = IncastCase::with(2);
    c.p().flows = 40;
    c.u().all.outstanding += 200_000;
    c.vm(0, 100);
    assert_eq!(c.queue(), [0]);
    let f = c.f(0);
    f.hold = has_hold.into();
    f.incast.window = LEAST;
    f.incast.answer = (answer >> 8) as u16;
    f.incast.answer_at = ((f.incast.received.v.wrapping_sub(sent)) >> 8) as u16;
    c.u().all.outstanding -= 200_000;
    // An ACK of the other flow brings the grant.
    c.vm(1, 0);
    assert!(c.queue().is_empty());
    c.outstanding(0)
}

#[test]
fn a_train_is_as_long_as_what_is_left_of_the_answer_at_most() {
    let within = |granted: u32, most: u32| (most - 1_460..most + UNIT).contains(&granted);
    assert!(within(granted(1 << 20, 0, false), TRAIN));
    assert!(within(granted(64_000, 20_000, false), TRAIN));
    assert!(within(granted(64_000, 64_000 - 10_000, false), 10_000));
    for (answer, sent) in [(64_000, 64_000 - 1_000), (64_000, 70_000), (0, 0)] {
        let granted = granted(answer, sent, false);
        assert!(within(granted, LEAST), "{granted} with {sent} of {answer}");
    }
}

#[test]
fn where_the_host_acknowledges_early_there_are_none() {
    assert!(granted(1 << 20, 0, true) < LEAST + UNIT);
}

#[test]
fn many_senders_of_long_answers_need_a_few_grants_each() {
    let senders = 64;
    let mut sim = Sim::new(Setting { senders, early: false, ..Setting::default() });
    let mut grants = [0; 3];
    for count in &mut grants {
        let before = sim.host.share_of(0).grants;
        sim.round(senders, 64 << 10, 10_000 * MS).expect("the round ends");
        *count = (sim.host.share_of(0).grants - before) as usize / senders;
    }
    // The length of an answer is known from the second round on.
    assert!(grants[0] > 3 * grants[1] && grants[0] > 3 * grants[2], "{grants:?}");
    assert_eq!((sim.tally.drops, sim.tally.timeouts), (0, 0));
}
