//! A split connection is joined, dies, or is taken up by another process.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use vsnoop_split::{Direction, Error, PARTS, Side, Split, Waits};

use crate::Test;
use crate::rig::{
    Ends, FIRST, Rig, address, bytes, expect, expect_end, finish, finish_both, read_byte, send,
    settings, transfer,
};
use crate::splitter::{Ended, Splitter};

pub const TESTS: &[Test] = &[
    ("a_joined_connection_goes_on", || joined_goes_on(&Rig::v4())),
    ("ipv6_a_joined_connection_goes_on", || joined_goes_on(&Rig::v6())),
    ("without_timestamps_a_joined_connection_goes_on", || {
        joined_goes_on(&Rig::with(&["net.ipv4.tcp_timestamps=0"]));
    }),
    ("a_half_closed_connection_is_joined", a_half_closed_connection_is_joined),
    ("sockets_that_are_not_needed_are_silent", sockets_that_are_not_needed_are_silent),
    ("what_is_held_is_not_drained", what_is_held_is_not_drained),
    ("bytes_out_of_order_are_not_drained", bytes_out_of_order_are_not_drained),
    ("a_fin_under_way_is_not_drained", a_fin_under_way_is_not_drained),
    ("another_takes_up_where_one_has_died", another_takes_up),
    ("another_takes_up_before_the_first_flight_is_read", another_takes_up_at_first),
    ("another_takes_up_a_half_closed_connection", another_takes_up_half_closed),
    ("lost_bytes_are_noticed_when_taken_up", lost_bytes_are_noticed),
    ("as_long_as_another_has_the_parts_nothing_is_reset", another_has_the_parts),
];

fn begin(rig: &Rig) -> (Ends, Splitter) {
    let ends = rig.connect();
    rig.first_flight(&ends);
    let splitter = rig.split(&ends);
    expect(&ends.peer, &FIRST);
    (ends, splitter)
}

fn stop(splitter: Splitter) -> Split {
    let Ended::Stopped(split) = splitter.stop() else { panic!("the connection is over") };
    split
}

/// Splits and joins again and again.
fn joined_goes_on(rig: &Rig) {
    let (ends, mut splitter) = begin(rig);
    for round in 0..4 {
        let (down, up) = (bytes(500_000, round), bytes(500_000, !round));
        transfer(&ends.vm, &ends.peer, &down);
        transfer(&ends.peer, &ends.vm, &up);
        rig.join(splitter);
        transfer(&ends.vm, &ends.peer, &up);
        transfer(&ends.peer, &ends.vm, &down);
        splitter = rig.split(&ends);
    }
    rig.join(splitter);
    finish_both(&ends);
}

fn a_half_closed_connection_is_joined() {
    let rig = Rig::v4();
    let (ends, splitter) = begin(&rig);
    finish(&ends.peer);
    expect_end(&ends.vm);
    transfer(&ends.vm, &ends.peer, &bytes(500_000, 1));
    rig.join(splitter);
    transfer(&ends.vm, &ends.peer, &bytes(500_000, 2));
    finish(&ends.vm);
    expect_end(&ends.peer);
}

/// Made and dropped while the segments of both ends pass: `Rig` has no strays.
fn sockets_that_are_not_needed_are_silent() {
    let rig = Rig::v4();
    let ends = rig.connect();
    rig.first_flight(&ends);
    for _ in 0..3 {
        let (vm, peer, wire) = (address(&ends.vm), address(&ends.peer), rig.wire.clone());
        let made = rig.sockets.spawn(move || {
            let state = wire.state();
            let connection = state.record.connection(vm, peer);
            Split::new(&connection, &settings()).expect("split").join().expect("join");
        });
        made.join().expect("made");
    }
    rig.wire.state().hold_from_vm = false;
    expect(&ends.peer, &FIRST);
    transfer(&ends.vm, &ends.peer, &bytes(500_000, 1));
    transfer(&ends.peer, &ends.vm, &bytes(500_000, 1));
}

fn is_drained(split: &Split) -> bool {
    split.is_drained().expect("a state")
}

/// Waits until it holds for the idle sockets, which still get ACKs.
fn until(holds: impl Fn() -> bool) {
    while !holds() {
        std::thread::yield_now();
    }
}

fn what_is_held_is_not_drained() {
    let rig = Rig::v4();
    let (ends, splitter) = begin(&rig);
    let mut split = stop(splitter);
    until(|| is_drained(&split));
    send(&ends.vm, b"abc");
    until(|| split.held(Direction::ToPeer).expect("held") == 3);
    assert!(!is_drained(&split), "unread");
    rig.wire.state().lose_from_peer = true;
    split.pump(Direction::ToPeer).expect("moved");
    assert!(!is_drained(&split), "not acknowledged");
    rig.wire.state().lose_from_peer = false;
    expect(&ends.peer, b"abc");
    until(|| is_drained(&split));
}

fn bytes_out_of_order_are_not_drained() {
    let rig = Rig::v4();
    let (ends, splitter) = begin(&rig);
    let split = stop(splitter);
    until(|| is_drained(&split));
    let mut state = rig.wire.state();
    state.lose_seq = Some(state.record.vm.sent());
    drop(state);
    send(&ends.vm, b"lost");
    rig.wire.until(|state| state.record.vm.bytes.ends_with(b"lost"));
    send(&ends.vm, b"behind");
    until(|| !is_drained(&split));
    assert_eq!(split.held(Direction::ToPeer).expect("held"), 0, "in order");
}

fn a_fin_under_way_is_not_drained() {
    let rig = Rig::v4();
    let (ends, splitter) = begin(&rig);
    let mut split = stop(splitter);
    until(|| is_drained(&split));
    finish(&ends.vm);
    until(|| split.info(Side::Vm).expect("a state").state.has_received_fin());
    assert!(!is_drained(&split), "not passed on");
    rig.wire.state().lose_from_peer = true;
    assert_eq!(split.pump(Direction::ToPeer).expect("moved").waits, Waits::Over);
    assert!(!is_drained(&split), "not acknowledged");
    rig.wire.state().lose_from_peer = false;
    expect_end(&ends.peer);
    until(|| is_drained(&split));
    assert!(!split.is_over().expect("a state"));
}

/// The descriptors as another process has them.
fn copies(split: &Split) -> [OwnedFd; PARTS] {
    split.parts().map(|part| part.try_clone_to_owned().expect("a copy"))
}

/// Amid a transfer in both directions, with bytes in sockets and pipes.
fn another_takes_up() {
    let rig = Rig::v4();
    let (ends, mut splitter) = begin(&rig);
    let (down, up) = (bytes(20_000_000, 1), bytes(20_000_000, 2));
    splitter = std::thread::scope(|scope| {
        let busy = scope.spawn(|| transfer(&ends.vm, &ends.peer, &down));
        let other = scope.spawn(|| transfer(&ends.peer, &ends.vm, &up));
        while !busy.is_finished() || !other.is_finished() {
            let split = stop(splitter);
            let parts = copies(&split);
            drop(split);
            splitter = rig.take_up(parts);
        }
        splitter
    });
    finish_both(&ends);
    assert!(matches!(splitter.wait(), Ended::Over));
}

fn another_takes_up_at_first() {
    let rig = Rig::v4();
    let ends = rig.connect();
    rig.first_flight(&ends);
    let (vm, peer, wire) = (address(&ends.vm), address(&ends.peer), rig.wire.clone());
    let made = rig.sockets.spawn(move || {
        let mut state = wire.state();
        let connection = state.record.connection(vm, peer);
        let split = Split::new(&connection, &settings()).expect("split");
        (state.is_split, state.hold_from_vm) = (true, false);
        split.into_parts()
    });
    let splitter = rig.take_up(made.join().expect("made"));
    expect(&ends.peer, &FIRST);
    transfer(&ends.vm, &ends.peer, &bytes(500_000, 1));
    finish_both(&ends);
    assert!(matches!(splitter.wait(), Ended::Over));
}

fn another_takes_up_half_closed() {
    let rig = Rig::v4();
    let (ends, splitter) = begin(&rig);
    finish(&ends.peer);
    expect_end(&ends.vm);
    let splitter = rig.take_up(stop(splitter).into_parts());
    transfer(&ends.vm, &ends.peer, &bytes(500_000, 1));
    finish(&ends.vm);
    expect_end(&ends.peer);
    assert!(matches!(splitter.wait(), Ended::Over));
}

fn lost_bytes_are_noticed() {
    let rig = Rig::v4();
    let (ends, splitter) = begin(&rig);
    let split = stop(splitter);
    send(&ends.vm, b"abc");
    until(|| split.held(Direction::ToPeer).expect("held") == 3);
    let socket = socket2::Socket::from(split.socket(Side::Vm).try_clone_to_owned().expect("copy"));
    assert_eq!((&socket).read(&mut [0; 2]).expect("read"), 2);
    drop(socket);
    match Split::from_parts(split.into_parts()) {
        Err(Error::Missing { from: Side::Vm, bytes: 2 }) => {}
        other => panic!("{other:?}"),
    }
    let error = read_byte(&ends.peer).expect_err("a reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

fn another_has_the_parts() {
    let rig = Rig::v4();
    let (ends, splitter) = begin(&rig);
    let split = stop(splitter);
    let parts = copies(&split);
    drop(split);
    let splitter = rig.take_up(parts);
    transfer(&ends.vm, &ends.peer, &bytes(500_000, 1));
    let split = stop(splitter);
    let copies = copies(&split);
    // A reset is one to all that have the descriptors, too.
    split.reset().expect("reset");
    let error = read_byte(&ends.peer).expect_err("a reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert!(copies[0].as_fd().try_clone_to_owned().is_ok());
}
