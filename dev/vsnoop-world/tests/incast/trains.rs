//! Trains: what flows from the grant queue are granted when their answers are long.

use vsnoop_flow::incast;

use crate::case::{BUFFER, IncastCase};
use crate::sim::*;

const LEAST: u32 = 2 * 1_460;
/// The longest train, and what rounding to the window's unit adds at most.
const TRAIN: u32 = 12 * 1_460;
const UNIT: u32 = 128;

/// A flow among 40 waits; its last answer had `answer` bytes, and it has `sent` of the present one.
fn waiting(answer: u32, sent: u32) -> IncastCase {
    let mut c = IncastCase::with(2);
    c.p().flows = 40;
    c.u().all.outstanding += 200_000;
    c.vm(0, 100);
    assert_eq!(c.queue(), [0]);
    let i = c.i(0);
    i.window = LEAST;
    i.answer = (answer >> 8) as u16;
    i.answer_at = (i.received.v.wrapping_sub(sent) >> 8) as u16;
    c.u().all.outstanding -= 200_000;
    c
}

/// Bytes that it is granted with the next ACK of another flow.
fn granted(c: &mut IncastCase) -> u32 {
    c.vm(1, 0);
    c.outstanding(0)
}

fn within(granted: u32, most: u32) -> bool {
    (most - 1_460..most + UNIT).contains(&granted)
}

#[test]
fn a_train_is_as_long_as_what_is_left_of_the_answer_at_most() {
    for (answer, sent, most) in
        [(1 << 20, 0, TRAIN), (64_000, 20_000, TRAIN), (64_000, 54_000, 10_000)]
    {
        let granted = granted(&mut waiting(answer, sent));
        assert!(within(granted, most), "{granted} with {sent} of {answer}");
    }
    for (answer, sent) in [(64_000, 64_000 - 1_000), (64_000, 70_000), (0, 0)] {
        let granted = granted(&mut waiting(answer, sent));
        assert!(within(granted, LEAST), "{granted} with {sent} of {answer}");
    }
}

#[test]
fn there_are_none_where_many_wait_or_much_is_open() {
    let reasons: [fn(&mut IncastCase); 2] =
        [|c| c.u().all.queued += 2_000, |c| c.u().all.silent += 60_000];
    for (number, reason) in reasons.into_iter().enumerate() {
        let mut c = waiting(1 << 20, 0);
        reason(&mut c);
        let granted = granted(&mut c);
        assert!(within(granted, LEAST), "{granted} in case {number}");
    }
}

#[test]
fn the_queue_waits_for_half_of_a_train_while_credit_will_return() {
    let mut c = waiting(1 << 20, 0);
    let credit = i64::from(incast::credit(c.u()));
    (c.p().own.train, c.p().own.outstanding) = (TRAIN, 1);
    let awaited = i64::from(BUFFER >> 4).min(i64::from(TRAIN / 2));
    c.u().all.outstanding = credit - awaited;
    assert_eq!(granted(&mut c), 0);
    c.u().all.outstanding = credit - awaited - 1;
    assert!(granted(&mut c) > LEAST);
    // Nothing of the port will return: it takes what there is.
    let mut c = waiting(1 << 20, 0);
    c.p().own.train = TRAIN;
    c.u().all.outstanding = credit - 2 * i64::from(LEAST);
    assert!(granted(&mut c) >= LEAST);
}

/// Or it would serve single segments while it keeps the rest for them.
#[test]
fn the_queue_waits_for_half_of_a_train_beside_what_is_kept_for_silent_flows() {
    let mut c = waiting(1 << 20, 0);
    let (credit, kept) = (i64::from(incast::credit(c.u())), 10_000);
    (c.p().own.train, c.p().own.outstanding) = (TRAIN, 1);
    c.u().all.silent = kept;
    c.u().all.outstanding = credit - i64::from(BUFFER >> 4) - 5_000;
    assert_eq!(granted(&mut c), 0);
    c.u().all.outstanding = credit - i64::from(BUFFER >> 4) - kept - 1;
    assert!(granted(&mut c) > LEAST);
}

/// Another port's flows send on and on, and idle connections have the rest: the head would wait as
/// long as they do.
#[test]
fn the_head_is_served_beside_others_that_never_return_their_credit() {
    for own in [0, 1] {
        let mut c = waiting(1 << 20, 0);
        let credit = i64::from(incast::credit(c.u()));
        (c.p().own.train, c.p().own.outstanding) = (TRAIN, own);
        c.u().all.silent = credit / 2;
        c.u().all.outstanding = credit / 20 * 11;
        assert!(granted(&mut c) > 0, "{own} bytes of its own port are outstanding");
    }
}

/// Or each flow would be given a segment as soon as another one has used up its own.
#[test]
fn the_first_flow_of_the_queue_waits_for_half_of_its_train() {
    let mut c = IncastCase::with(2);
    c.p().flows = 40;
    c.u().all.outstanding += 200_000;
    c.i(0).answer = (1u32 << 20 >> 8) as u16;
    c.vm(0, 100);
    assert_eq!(c.queue(), [0]);
    let credit = i64::from(incast::credit(c.u()));
    c.p().own.outstanding = 1;
    c.u().all.outstanding = credit - 2 * i64::from(LEAST);
    assert_eq!(granted(&mut c), 0);
    c.u().all.outstanding = credit - i64::from(TRAIN);
    assert!(granted(&mut c) > LEAST);
}

#[test]
fn many_senders_of_long_answers_need_a_few_grants_each() {
    let senders = 64;
    for early in [false, true] {
        let mut sim = Sim::new(Setting { senders, early, ..Setting::default() });
        let mut grants = [0; 9];
        for count in &mut grants {
            let before = sim.host.share_of(0).grants;
            sim.round(senders, 64 << 10, 10_000 * MS).expect("the round ends");
            *count = (sim.host.share_of(0).grants - before) as usize / senders;
        }
        // The length of an answer is known from the second round on.
        let (first, rest) = (grants[0], &grants[1..]);
        assert!(rest.iter().all(|count| first > 3 * count), "{early}: {grants:?}");
        assert_eq!((sim.tally.drops, sim.tally.timeouts), (0, 0));
    }
}

#[test]
fn the_host_acknowledges_every_second_segment_of_a_train() {
    let senders = 40;
    let mut sim = Sim::new(Setting { senders, ..Setting::default() });
    let early_acks = |sim: &Sim| -> u64 {
        sim.host.flows().iter().flatten().map(|f| u64::from(f.early_acks)).sum()
    };
    let mut of_round = Vec::new();
    for _ in 0..4 {
        let before = (early_acks(&sim), sim.tally.packets);
        sim.round(senders, 64 << 10, 10_000 * MS).expect("the round ends");
        of_round.push((early_acks(&sim) - before.0, sim.tally.packets - before.1));
    }
    // Every second segment, and the last one of each train.
    let (acks, packets) = of_round[3];
    assert!((packets / 4..packets * 3 / 4).contains(&acks), "{of_round:?}");
}
