//! Which connections are worth a split (flow/split.h).

use vsnoop_flow::split::{is_late, note_answer, note_peer, note_syn, note_vm};
use vsnoop_flow::types::{
    SEG_FOREIGN, SEG_SACK_PERMITTED, SEG_SCALE, SEG_TIMESTAMPS, SPLIT_F_NEVER, SPLIT_F_SACK,
    SPLIT_F_SCALES, SPLIT_F_TIMESTAMPS, TCP_ACK, TCP_CWR, TCP_ECE, TCP_FIN, TCP_SYN, segment, seq,
    split_candidate, split_port, split_state,
};

const MS: u64 = 1_000_000;
const MSS: u16 = 1460;
/// Payload of a segment with timestamps.
const UNIT: u32 = 1448;
/// More than half of all numbers from 0, where the record's fields begin.
const PEER_ISS: u32 = 3_000_000_000;
const VM_ISS: u32 = u32::MAX - 3000;

fn syn(iss: u32, flags: u32, bits: u32) -> segment {
    segment {
        seq: seq::new(iss),
        tcp_flags: flags as u8,
        bits: (bits | SEG_TIMESTAMPS | SEG_SACK_PERMITTED | SEG_SCALE) as u16,
        scale: 7,
        ..Default::default()
    }
}

fn data(from: u32, ack: u32, len: u32) -> segment {
    segment {
        seq: seq::new(from),
        ack: seq::new(ack),
        len,
        tcp_flags: TCP_ACK as u8,
        bits: SEG_TIMESTAMPS as u16,
        ..Default::default()
    }
}

fn accepted(flags: u32, bits: u32) -> split_candidate {
    let mut c = split_candidate::default();
    note_syn(&mut c, &syn(PEER_ISS, TCP_SYN, 0), MSS, false, 1);
    note_syn(&mut c, &syn(VM_ISS, TCP_SYN | TCP_ACK | flags, bits), MSS, true, 2);
    c
}

/// After the peer's request of 100 bytes.
fn asked() -> split_candidate {
    let mut c = accepted(0, 0);
    note_peer(&mut c, &data(PEER_ISS.wrapping_add(1), VM_ISS.wrapping_add(1), 100), 1, 3);
    c
}

/// A segment of the VM's answer, from its byte `from` on.
fn answer(from: u32, len: u32) -> segment {
    data(VM_ISS.wrapping_add(1 + from), PEER_ISS.wrapping_add(101), len)
}

fn state(c: &split_candidate) -> u32 {
    (c.sent >> 32) as u32
}

/// Two sockets of the VM listen on the port, with buffers of their own.
#[test]
fn a_syn_ack_of_another_socket_leaves_the_connection_to_its_vm() {
    let mut c = asked();
    note_syn(&mut c, &syn(VM_ISS, TCP_SYN | TCP_ACK, 0), MSS, true, 4);
    assert_eq!(u32::from(c.flags) & SPLIT_F_NEVER, 0, "it is a repetition");
    let other = segment { scale: 9, ..syn(7, TCP_SYN | TCP_ACK, 0) };
    note_syn(&mut c, &other, MSS, true, 5);
    assert_eq!(note_vm(&mut c, &answer(0, 10 * UNIT), 1), (true, false));
}

#[test]
fn a_first_flight_is_wanted_and_less_is_not() {
    let mut c = asked();
    assert_eq!(note_vm(&mut c, &answer(0, 9 * UNIT), 1), (true, false));
    assert_eq!(note_vm(&mut c, &answer(9 * UNIT, UNIT), 1), (true, true));
    assert_eq!(state(&c), split_state::SPLIT_WANTED);
    // The splitter is asked once.
    assert_eq!(note_vm(&mut c, &answer(10 * UNIT, UNIT), 1), (true, false));
    assert_eq!(c.sent as u32, VM_ISS.wrapping_add(1 + 11 * UNIT));
}

#[test]
fn nothing_of_a_split_connection_passes() {
    let mut c = asked();
    note_vm(&mut c, &answer(0, UNIT), 1);
    c.sent = u64::from(split_state::SPLIT_DONE) << 32 | c.sent & 0xffff_ffff;
    assert_eq!(note_vm(&mut c, &answer(UNIT, UNIT), 1), (false, false));
}

#[test]
fn a_request_that_the_vm_has_not_acknowledged_is_in_the_way() {
    let mut c = asked();
    note_peer(&mut c, &data(PEER_ISS.wrapping_add(101), VM_ISS.wrapping_add(1), 50), 1, 4);
    assert_eq!(note_vm(&mut c, &answer(0, 12 * UNIT), 1), (true, false));
    let later = data(VM_ISS.wrapping_add(1 + 12 * UNIT), PEER_ISS.wrapping_add(151), UNIT);
    assert_eq!(note_vm(&mut c, &later, 1), (true, true));
}

#[test]
fn options_count_that_both_ends_offer() {
    let c = accepted(0, 0);
    let all = SPLIT_F_TIMESTAMPS | SPLIT_F_SACK | SPLIT_F_SCALES;
    assert_eq!(u32::from(c.flags) & (all | SPLIT_F_NEVER), all);
    let mut c = split_candidate::default();
    let bare = segment { bits: 0, ..syn(PEER_ISS, TCP_SYN, 0) };
    note_syn(&mut c, &bare, MSS, false, 1);
    note_syn(&mut c, &syn(VM_ISS, TCP_SYN | TCP_ACK, 0), MSS, true, 2);
    assert_eq!(u32::from(c.flags) & (all | SPLIT_F_NEVER), 0);
}

#[test]
fn what_a_restored_socket_cannot_have_is_left_to_the_vm() {
    for c in [
        accepted(TCP_ECE, 0),
        accepted(TCP_ECE | TCP_CWR, 0),
        accepted(0, SEG_FOREIGN),
        // Its SYN was not seen.
        {
            let mut c = split_candidate::default();
            note_syn(&mut c, &syn(VM_ISS, TCP_SYN | TCP_ACK, 0), MSS, true, 2);
            c
        },
        {
            let mut c = asked();
            let fin = segment {
                tcp_flags: (TCP_ACK | TCP_FIN) as u8,
                ..data(PEER_ISS.wrapping_add(101), VM_ISS.wrapping_add(1), 0)
            };
            note_peer(&mut c, &fin, 1, 4);
            c
        },
    ] {
        assert_ne!(u32::from(c.flags) & SPLIT_F_NEVER, 0);
        let mut c = c;
        assert_eq!(note_vm(&mut c, &answer(0, 20 * UNIT), 1), (true, false));
    }
}

#[test]
fn numbers_of_an_earlier_epoch_do_not_count() {
    let mut c = asked();
    note_vm(&mut c, &answer(0, UNIT), 1);
    // Segments passed unseen. The peer's numbers are not known yet.
    assert_eq!(note_vm(&mut c, &answer(500 * UNIT, 20 * UNIT), 2), (true, false));
    let ack = data(PEER_ISS.wrapping_add(101), VM_ISS.wrapping_add(1 + 500 * UNIT), 0);
    note_peer(&mut c, &ack, 2, 5);
    assert_eq!(note_vm(&mut c, &answer(520 * UNIT, UNIT), 2), (true, true));
}

#[test]
fn a_vm_that_answers_late_is_late_for_a_while() {
    let mut port = split_port::default();
    note_answer(&mut port, 100, 100 + MS);
    assert!(!is_late(&port, 100 + MS));
    note_answer(&mut port, 100, 100 + 30 * MS);
    assert!(is_late(&port, 9_000 * MS));
    assert_eq!(port.epoch, 1);
    note_answer(&mut port, 8_000 * MS, 8_030 * MS);
    assert_eq!(port.epoch, 1);
    assert!(is_late(&port, 18_000 * MS));
    assert!(!is_late(&port, 18_040 * MS));
    // It had nothing to send.
    note_answer(&mut port, 19_000 * MS, 40_000 * MS);
    assert!(!is_late(&port, 40_000 * MS));
}

#[test]
fn the_splitter_is_asked_a_bounded_number_of_times() {
    let mut c = asked();
    let mut times = 0;
    for at in 0..100 {
        times += u32::from(note_vm(&mut c, &answer(at * 20 * UNIT, 20 * UNIT), 1).1);
        // "Later."
        c.sent &= 0xffff_ffff;
    }
    assert_eq!(times, 16);
}
