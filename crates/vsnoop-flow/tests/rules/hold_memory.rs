//! The memory of holds (bpf/hold.h): who gets one, when it goes back, where bytes are found.

use vsnoop_flow::testing::memory::Memory;
use vsnoop_flow::{flow, flow_key, policy, types::*};

use crate::case::*;

const SECOND: u64 = 1_000 * MS;
/// HOLD_SEEK: links that are followed for a piece beyond a hole.
const SEEK: u32 = 4_096;

fn memory(chunks: u32) -> Memory {
    let policy = policy { hold_chunks: chunks, hold_flow: u32::MAX / 4, ..policy::default() };
    Memory::new(policy, 2)
}

/// A connection with a hold, its number, and what it has.
fn holder(chunks: u32) -> (Memory, flow, u32) {
    let (mut m, mut f) = (memory(chunks), Case::accepted().f);
    assert!(m.take(&flow_key::default(), &mut f));
    let number = f.hold.into();
    (m, f, number)
}

/// Copies from `offset` on; `in_order`: it is part of the stream then.
fn copy(m: &mut Memory, number: u32, offset: u32, len: u32, in_order: bool) -> bool {
    let bytes: Vec<_> = (offset..offset + len).map(content).collect();
    let copied = m.copy(number, at(offset), &bytes);
    if copied && in_order {
        m.hold_mut(number).tail = at(offset + len);
    }
    copied
}

fn content(offset: u32) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

#[track_caller]
fn is_kept(m: &Memory, number: u32, offset: u32, len: u32) {
    let wanted: Vec<_> = (offset..offset + len).map(content).collect();
    assert!(m.stream(number, at(offset), len) == wanted, "{offset}+{len} is kept wrong");
}

#[test]
fn a_flow_that_another_cpu_has_given_a_hold_has_that_one() {
    let (mut m, mut f, number) = holder(8);
    assert!(m.take(&flow_key::default(), &mut f), "it would do without");
    assert_eq!(u32::from(f.hold), number);
    let used: u32 = (1..=2).map(|number| m.hold(number).used).sum();
    assert_eq!(used, 1, "a hold is lost");
    assert!(m.highest() >= number);
}

#[test]
fn a_silent_connection_gives_its_hold_back() {
    // Sooner when its sender was shown no more than the VM takes.
    for (ahead, seconds) in [(0, 10), (10 * MSS, 60)] {
        let (mut m, mut f, number) = holder(8);
        f.adv_edge = f.right_edge.add(ahead);
        m.now = f.last_ns + seconds * SECOND - 1;
        assert_eq!(m.tend(number, false, Some(&mut f)), 0);
        assert_eq!(u32::from(f.hold), number, "{ahead} bytes ahead");
        m.now += 1;
        assert_eq!(m.tend(number, false, Some(&mut f)), 1);
        assert_eq!(f.hold, 0, "{ahead} bytes ahead");
        assert_eq!(m.tend(number, true, Some(&mut f)), 2);
        // It has one again when it needs it.
        assert!(m.take(&flow_key::default(), &mut f));
    }
}

#[test]
fn one_with_bytes_does_not() {
    let (mut m, mut f, number) = holder(8);
    assert!(copy(&mut m, number, 0, MSS, true));
    f.next_seq = at(MSS);
    m.now = f.last_ns + 1_000 * SECOND;
    assert_eq!(m.tend(number, false, Some(&mut f)), 0);
    assert_eq!(u32::from(f.hold), number);
}

#[test]
fn pieces_in_any_order_are_found_where_they_belong() {
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..50 {
        let (mut m, _, number) = holder(200);
        let end = 90 * MSS;
        assert!(copy(&mut m, number, 0, MSS, true));
        let mut rest: Vec<_> = (1..90).collect();
        rng.shuffle(&mut rest);
        for i in rest {
            assert!(copy(&mut m, number, i * MSS, MSS, false));
        }
        is_kept(&m, number, 0, end);
        // The VM acknowledges half of it, and the stream goes on.
        let h = m.hold_mut(number);
        (h.tail, h.vm_seq, h.busy) = (at(end), at(end / 2), 1);
        m.release(number, false);
        assert!(copy(&mut m, number, end, MSS, true));
        assert!(copy(&mut m, number, end + 5 * MSS, MSS, false));
        is_kept(&m, number, end / 2, end / 2 + MSS);
        is_kept(&m, number, end + 5 * MSS, MSS);
        m.check();
    }
}

#[test]
fn only_so_much_is_walked_for_a_piece() {
    let (mut m, _, number) = holder(3 * SEEK);
    assert!(copy(&mut m, number, 0, MSS, true));
    let far = (SEEK + 1) * HOLD_CHUNK;
    assert!(!copy(&mut m, number, far, MSS, false));
    // Not from the beginning again for the next one.
    assert!(copy(&mut m, number, far - HOLD_CHUNK, MSS, false));
    assert!(copy(&mut m, number, far, MSS, false));
    assert!(copy(&mut m, number, 2 * SEEK * HOLD_CHUNK, MSS, false));
    is_kept(&m, number, far, MSS);
    assert!(copy(&mut m, number, 2 * MSS, MSS, false), "one before it");
    assert!(!copy(&mut m, number, far, MSS, false), "that is where the latest was");
    // The stream itself is found, however far it went by way of the pieces.
    m.hold_mut(number).tail = at(far);
    assert!(copy(&mut m, number, far, MSS, true));
    is_kept(&m, number, far, MSS);
}

#[test]
fn the_place_of_a_piece_is_forgotten_with_its_chunk() {
    let (mut m, _, number) = holder(40);
    assert!(copy(&mut m, number, 0, MSS, true));
    assert!(copy(&mut m, number, 2 * HOLD_CHUNK, MSS, false));
    let behind = |m: &Memory| m.hold(number).ahead_base.diff(m.front(number).0);
    assert_eq!(behind(&m), 2 * HOLD_CHUNK as i32);
    // However long the stream goes on without another.
    for round in 1..20 {
        let from = m.hold(number).tail.diff(at(0)) as u32;
        assert!(copy(&mut m, number, from, 4 * HOLD_CHUNK, true));
        let h = m.hold_mut(number);
        (h.vm_seq, h.busy) = (h.tail.add(u32::MAX), 1);
        m.release(number, false);
        let from = m.hold(number).tail.diff(at(0)) as u32;
        assert!(copy(&mut m, number, from, 1, true));
        assert_eq!(behind(&m), -1, "round {round}");
    }
}
