//! How a connection ends: each end learns what the other did.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::Duration;

use vsnoop_split::{Side, Why};

use crate::Test;
use crate::rig::{
    Ends, FIRST, Rig, bytes, expect, expect_end, finish, finish_both, read_byte, send, transfer,
};
use crate::splitter::{Ended, Splitter};

pub const TESTS: &[Test] = &[
    ("the_vm_closes_first", || closes_first(|ends| [&ends.vm, &ends.peer])),
    ("the_peer_closes_first", || closes_first(|ends| [&ends.peer, &ends.vm])),
    ("a_port_that_is_used_again_is_split_again", || used_again(&Rig::v4())),
    ("without_timestamps_a_port_that_is_used_again_is_split_again", || {
        used_again(&Rig::with(&["net.ipv4.tcp_timestamps=0"]));
    }),
    ("both_close_at_once", both_close_at_once),
    ("a_fin_is_behind_the_last_byte", a_fin_is_behind_the_last_byte),
    ("a_half_closed_vm_receives", || half_close(|ends| [&ends.vm, &ends.peer])),
    ("a_half_closed_peer_receives", || half_close(|ends| [&ends.peer, &ends.vm])),
    ("a_reset_of_the_vm_reaches_the_peer", || reset_by(Side::Vm, false)),
    ("a_reset_of_the_peer_reaches_the_vm", || reset_by(Side::Peer, false)),
    ("a_reset_of_a_half_closed_vm_reaches_the_peer", || reset_by(Side::Vm, true)),
    ("a_reset_of_a_half_closed_peer_reaches_the_vm", || reset_by(Side::Peer, true)),
    ("a_peer_that_vanishes_resets_the_vm", || vanishes(Side::Peer)),
    ("a_vm_that_vanishes_resets_the_peer", || vanishes(Side::Vm)),
    ("a_dropped_splitter_resets_both", a_dropped_splitter_resets_both),
];

fn begin() -> (Rig, Ends, Splitter) {
    let rig = Rig::v4();
    let ends = rig.connect();
    rig.first_flight(&ends);
    let splitter = rig.split(&ends);
    expect(&ends.peer, &FIRST);
    (rig, ends, splitter)
}

fn closes_first(order: fn(&Ends) -> [&TcpStream; 2]) {
    let (_rig, ends, splitter) = begin();
    for end in order(&ends) {
        finish(end);
    }
    order(&ends).into_iter().for_each(expect_end);
    assert!(matches!(splitter.wait(), Ended::Over));
}

/// A socket of the first connection is in TIME-WAIT.
fn used_again(rig: &Rig) {
    for _ in 0..3 {
        let ends = rig.connect_from(40_000);
        rig.first_flight(&ends);
        let splitter = rig.split(&ends);
        expect(&ends.peer, &FIRST);
        transfer(&ends.vm, &ends.peer, &bytes(500_000, 1));
        finish_both(&ends);
        assert!(matches!(splitter.wait(), Ended::Over));
    }
}

fn both_close_at_once() {
    let (rig, ends, splitter) = begin();
    let state = rig.wire.state();
    finish(&ends.vm);
    finish(&ends.peer);
    drop(state);
    expect_end(&ends.vm);
    expect_end(&ends.peer);
    assert!(matches!(splitter.wait(), Ended::Over));
}

fn a_fin_is_behind_the_last_byte() {
    let (_rig, ends, splitter) = begin();
    let all = bytes(5_000_000, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send(&ends.vm, &all);
            finish(&ends.vm);
        });
        expect(&ends.peer, &all);
        expect_end(&ends.peer);
    });
    finish(&ends.peer);
    assert!(matches!(splitter.wait(), Ended::Over));
}

fn half_close(order: fn(&Ends) -> [&TcpStream; 2]) {
    let (_rig, ends, splitter) = begin();
    let [first, second] = order(&ends);
    finish(first);
    expect_end(second);
    transfer(second, first, &bytes(2_000_000, 1));
    finish(second);
    expect_end(first);
    assert!(matches!(splitter.wait(), Ended::Over));
}

fn order(ends: Ends, first: Side) -> [TcpStream; 2] {
    match first {
        Side::Vm => [ends.vm, ends.peer],
        Side::Peer => [ends.peer, ends.vm],
    }
}

fn reset_by(side: Side, half_closed: bool) {
    let (_rig, ends, splitter) = begin();
    let [gone, other] = order(ends, side);
    if half_closed {
        finish(&gone);
        expect_end(&other);
    }
    reset(gone);
    let Ended::Broken(broken) = splitter.wait() else { panic!("it is broken") };
    assert_eq!(broken.side, side);
    assert!(matches!(broken.why, Why::Reset), "{broken}");
    expect_reset(&other, half_closed);
}

fn reset(gone: TcpStream) {
    socket2::SockRef::from(&gone).set_linger(Some(Duration::ZERO)).expect("linger");
}

/// An end that has received a FIN reads no error.
fn expect_reset(mut other: &TcpStream, has_fin: bool) {
    let kinds = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
    if has_fin {
        let error = std::iter::repeat_with(|| std::io::Write::write(&mut other, b"a"));
        let error = error.inspect(|_| std::thread::yield_now()).find_map(Result::err);
        assert!(kinds.contains(&error.expect("an error").kind()));
    } else {
        let error = read_byte(other).expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

/// An end that answers nothing any more, of which something is wanted.
fn vanishes(side: Side) {
    let rig = Rig::v4();
    let ends = rig.connect();
    rig.first_flight(&ends);
    let splitter = rig.split(&ends);
    expect(&ends.peer, &FIRST);
    // Sockets that have seen ACKs have a timeout of a fraction of a second.
    transfer(&ends.vm, &ends.peer, &FIRST);
    transfer(&ends.peer, &ends.vm, &FIRST);
    let mut state = rig.wire.state();
    match side {
        Side::Vm => state.lose_from_vm = true,
        Side::Peer => state.lose_from_peer = true,
    }
    drop(state);
    let [_gone, other] = order(ends, side);
    send(&other, b"a");
    let Ended::Broken(broken) = splitter.wait() else { panic!("it is gone") };
    assert_eq!(broken.side, side);
    assert!(matches!(broken.why, Why::TimedOut), "{broken}");
    expect_reset(&other, false);
}

fn a_dropped_splitter_resets_both() {
    let (_rig, ends, splitter) = begin();
    let Ended::Stopped(split) = splitter.stop() else { panic!("it goes on") };
    drop(split);
    expect_reset(&ends.vm, false);
    expect_reset(&ends.peer, false);
}
