//! The time that counts for timers and for giving up, from samples of a VM's threads.

use std::time::Duration;

use vsnoop_hold::{RunTime, Threads, Tick};

use crate::case::MS;

const PERIOD: Duration = Duration::from_millis(240);

fn tick(tid: i32, state: char, run_ns: u64) -> Tick {
    Tick { tid, state, run_ns, wait_ns: 0 }
}

fn threads(are_vcpus: bool, ticks: &[Tick]) -> Threads {
    Threads { are_vcpus, ticks: ticks.to_vec(), stopped: false, slept: Duration::ZERO }
}

fn between(before: &Threads, now: &Threads) -> RunTime {
    RunTime::between(before, &mut now.clone(), Some(true), PERIOD)
}

fn ran(ns: u64) -> RunTime {
    RunTime { ns, live_ns: ns }
}

/// Slept for the whole period: a sixth counts for giving up.
const ASLEEP: RunTime = RunTime { ns: 240 * MS, live_ns: 40 * MS };

#[test]
fn a_vm_that_sleeps_with_an_empty_ring_has_all_the_time_and_one_that_starves_has_none() {
    let before = threads(true, &[tick(1, 'R', 0), tick(2, 'S', 0)]);
    let run_time = |first: Tick, second: Tick| between(&before, &threads(true, &[first, second]));
    assert_eq!(run_time(tick(1, 'S', 0), tick(2, 'S', 0)), ASLEEP);
    // It woke for a moment: a monitor has not paused it.
    assert_eq!(run_time(tick(1, 'S', 1), tick(2, 'S', 0)), ran(240 * MS));
    let runs = tick(1, 'R', 5 * MS);
    assert_eq!(run_time(runs, tick(2, 'S', 0)), ran(5 * MS));
    for state in ['R', 'T', 'D'] {
        assert_eq!(run_time(runs, tick(2, state, 0)), RunTime::NONE, "{state}");
    }
}

#[test]
fn a_vm_that_has_not_read_its_ring_has_no_time() {
    let before = threads(true, &[tick(1, 'S', 0)]);
    for state in ['S', 'R'] {
        let mut now = threads(true, &[tick(1, state, 5 * MS)]);
        let time = RunTime::between(&before, &mut now, Some(false), PERIOD);
        assert_eq!(time, RunTime::NONE, "{state}");
    }
    // Where it is not known whether the ring is empty.
    let mut now = threads(true, &[tick(1, 'S', 0)]);
    assert_eq!(RunTime::between(&before, &mut now, None, PERIOD), ASLEEP);
}

/// Or its monitor pauses it: giving up has no time for that.
#[test]
fn a_vm_that_sleeps_for_a_second_beside_an_unread_ring_has_lost_the_wake_up() {
    let asleep = |are_vcpus| threads(are_vcpus, &[tick(1, 'S', 0), tick(2, 'S', 0)]);
    for are_vcpus in [true, false] {
        let mut before = asleep(are_vcpus);
        let mut next = |mut now: Threads, is_empty| {
            let time = RunTime::between(&before, &mut now, Some(is_empty), PERIOD);
            before = now;
            time
        };
        for _ in 0..5 {
            assert_eq!(next(asleep(are_vcpus), false), RunTime::NONE);
        }
        let woken = RunTime { ns: 240 * MS, live_ns: 0 };
        assert_eq!(next(asleep(are_vcpus), false), woken);
        assert_eq!(next(asleep(are_vcpus), false), woken);
        // It has read it.
        assert_eq!(next(asleep(are_vcpus), true), ASLEEP);
        assert_eq!(next(asleep(are_vcpus), false), RunTime::NONE);
        // A thread waits for a CPU.
        for _ in 0..10 {
            let now = threads(are_vcpus, &[tick(1, 'S', 0), tick(2, 'R', 0)]);
            assert_eq!(next(now, false), RunTime::NONE);
        }
    }
}

#[test]
fn a_halted_vcpu_did_not_have_the_time_that_it_waited() {
    let before = threads(true, &[tick(1, 'S', 0)]);
    let waited = |ms| Tick { wait_ns: ms * MS, ..tick(1, 'S', 20 * MS) };
    assert_eq!(between(&before, &threads(true, &[waited(200)])), ran(40 * MS));
    // The wait began in an earlier period.
    assert_eq!(between(&before, &threads(true, &[waited(500)])), RunTime::NONE);
}

#[test]
fn the_vcpu_that_had_least_counts() {
    let before = threads(true, &[tick(1, 'R', 0), tick(2, 'R', 0)]);
    let now = |state| threads(true, &[tick(1, 'R', 100 * MS), tick(2, state, 3 * MS)]);
    assert_eq!(between(&before, &now('R')), ran(3 * MS));
    assert_eq!(between(&before, &now('S')), ran(100 * MS));
}

#[test]
fn a_process_without_known_vcpus_has_its_time_unless_a_thread_starves() {
    let before = threads(false, &[tick(1, 'S', 0), tick(2, 'S', 7 * MS)]);
    let run_time = |state, run_ns| {
        between(&before, &threads(false, &[tick(1, 'S', 0), tick(2, state, run_ns)]))
    };
    assert_eq!(run_time('S', 8 * MS), ran(240 * MS));
    assert_eq!(run_time('R', 8 * MS), ran(240 * MS));
    assert_eq!(run_time('S', 7 * MS), ASLEEP);
    for state in ['R', 'T', 'D'] {
        assert_eq!(run_time(state, 7 * MS), RunTime::NONE, "{state}");
    }
    // A new thread has run, an ended one has not.
    let now = threads(false, &[tick(1, 'S', 0), tick(3, 'S', MS)]);
    assert_eq!(between(&before, &now), ran(240 * MS));
    assert_eq!(between(&before, &threads(false, &[tick(1, 'S', 0)])), ASLEEP);
}

#[test]
fn the_first_look_says_nothing_and_unreadable_threads_leave_the_clock() {
    let nothing = threads(false, &[]);
    let known = threads(true, &[tick(1, 'R', 5 * MS)]);
    assert_eq!(between(&nothing, &known), RunTime::NONE);
    assert_eq!(between(&known, &nothing), ran(240 * MS));
    assert_eq!(between(&known, &Threads { stopped: true, ..nothing }), RunTime::NONE);
}
