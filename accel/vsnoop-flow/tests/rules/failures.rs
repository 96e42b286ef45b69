//! VM ports with failed connections: new ones go to BYPASS for minutes.

use vsnoop_flow::types::failures;
use vsnoop_flow::{is_bypassed, note_failure, note_not_taken};

use crate::case::MS;

const SECOND: u64 = 1_000 * MS;
const MINUTE: u64 = 60 * SECOND;
const NOW: u64 = 7 * MINUTE;

#[test]
fn after_two_failures_within_a_minute_a_port_is_bypassed_for_five() {
    let mut v = failures::default();
    assert!(!is_bypassed(&v, NOW));
    note_failure(&mut v, NOW);
    assert!(!is_bypassed(&v, NOW), "one may be chance");
    let second = NOW + MINUTE;
    note_failure(&mut v, second);
    assert!(is_bypassed(&v, second));
    assert!(is_bypassed(&v, second + 5 * MINUTE - 1));
    assert!(!is_bypassed(&v, second + 5 * MINUTE));
    assert_eq!((v.count, v.total), (2, 2));
}

#[test]
fn failures_further_apart_count_by_themselves() {
    let mut v = failures::default();
    for i in 0..5 {
        note_failure(&mut v, NOW + i * (MINUTE + 1));
        assert!(!is_bypassed(&v, NOW + i * (MINUTE + 1)));
    }
    assert_eq!((v.count, v.total), (1, 5));
}

#[test]
fn a_port_that_goes_on_failing_is_bypassed_for_longer() {
    let mut v = failures::default();
    note_failure(&mut v, NOW);
    note_failure(&mut v, NOW);
    note_failure(&mut v, NOW + 30 * SECOND);
    assert!(is_bypassed(&v, NOW + 30 * SECOND + 5 * MINUTE - 1));
}

#[test]
fn a_listener_that_takes_no_data_is_bypassed_for_ten_seconds() {
    let mut v = failures::default();
    note_not_taken(&mut v, NOW);
    assert!(is_bypassed(&v, NOW + 10 * SECOND - 1));
    assert!(!is_bypassed(&v, NOW + 10 * SECOND));
    assert_eq!((v.count, v.total), (0, 0), "it is no failure");
    // Nor does it shorten what failures have brought about.
    note_failure(&mut v, NOW);
    note_failure(&mut v, NOW);
    note_not_taken(&mut v, NOW + SECOND);
    assert!(is_bypassed(&v, NOW + 5 * MINUTE - 1));
}
