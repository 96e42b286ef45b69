//! Every byte arrives, in both directions.

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use vsnoop_split::{Direction, Side};

use crate::Test;
use crate::report::Report;
use crate::rig::{Ends, FIRST, Rig, bytes, expect, finish_both, send, settings, transfer};
use crate::splitter::{Ended, Splitter};

pub const TESTS: &[Test] = &[
    ("both_directions_are_exact", || both_directions(&Rig::v4())),
    ("ipv6_both_directions_are_exact", || both_directions(&Rig::v6())),
    ("without_timestamps_both_directions_are_exact", || {
        both_directions(&Rig::with(&["net.ipv4.tcp_timestamps=0"]));
    }),
    ("without_sack_both_directions_are_exact", || {
        both_directions(&Rig::with(&["net.ipv4.tcp_sack=0"]));
    }),
    ("without_window_scaling_both_directions_are_exact", || {
        both_directions(&Rig::with(&["net.ipv4.tcp_window_scaling=0"]));
    }),
    ("lost_segments_are_sent_again", lost_segments_are_sent_again),
    ("a_first_flight_that_is_lost_is_sent_again", a_first_flight_that_is_lost),
    ("what_both_ends_have_in_flight_is_sent_again", what_both_ends_have_in_flight),
    ("a_split_amid_a_transfer_is_exact", a_split_amid_a_transfer),
    ("the_first_flight_is_acknowledged_at_once", the_first_flight_is_acknowledged),
    ("without_window_scaling_the_first_flight_is_acknowledged_at_once", || {
        acknowledged_at_once(&Rig::with(&["net.ipv4.tcp_window_scaling=0"]));
    }),
    ("a_peer_that_does_not_read_holds_the_vm_back", a_peer_that_does_not_read),
    ("a_path_that_becomes_narrow_is_exact", a_path_that_becomes_narrow),
    ("an_unreachable_peer_may_come_back", an_unreachable_peer_may_come_back),
    ("a_limit_bounds_what_is_held", a_limit_bounds_what_is_held),
    ("an_urgent_byte_stays_urgent", an_urgent_byte_stays_urgent),
];

/// A lot in both directions at once, from the first flight on; then both ends close.
fn both_directions(rig: &Rig) {
    let ends = rig.connect();
    rig.first_flight(&ends);
    let splitter = rig.split(&ends);
    expect(&ends.peer, &FIRST);
    exchange(&ends, 3_000_000);
    finish_both(&ends);
    assert!(matches!(splitter.wait(), Ended::Over));
}

fn exchange(ends: &Ends, count: usize) {
    let (down, up) = (bytes(count, 1), bytes(count, 2));
    std::thread::scope(|scope| {
        scope.spawn(|| transfer(&ends.peer, &ends.vm, &up));
        transfer(&ends.vm, &ends.peer, &down);
    });
}

fn lost_segments_are_sent_again() {
    let rig = Rig::v4();
    let ends = rig.connect();
    rig.first_flight(&ends);
    let splitter = rig.split(&ends);
    rig.wire.state().lose_one_of = 50;
    expect(&ends.peer, &FIRST);
    exchange(&ends, 1_000_000);
    finish_both(&ends);
    assert!(matches!(splitter.wait(), Ended::Over));
}

fn a_first_flight_that_is_lost() {
    let rig = Rig::v4();
    let ends = rig.connect();
    rig.wire.state().lose_from_vm = true;
    rig.first_flight(&ends);
    let splitter = rig.split_with(&ends, |_, state| state.lose_from_vm = false);
    expect(&ends.peer, &FIRST);
    exchange(&ends, 1_000_000);
    let Ended::Stopped(split) = splitter.stop() else { panic!("it goes on") };
    assert!(split.info(Side::Peer).expect("information").retransmissions > 0);
}

fn what_both_ends_have_in_flight() {
    let rig = Rig::v4();
    let ends = rig.connect();
    let up = bytes(5000, 3);
    rig.wire.state().lose_to_vm = true;
    send(&ends.peer, &up);
    rig.wire.until(|state| state.record.peer.bytes.len() == up.len());
    rig.wire.state().lose_from_vm = true;
    rig.first_flight(&ends);
    let splitter = rig.split_with(&ends, |_, state| {
        (state.lose_from_vm, state.lose_to_vm) = (false, false);
    });
    expect(&ends.peer, &FIRST);
    expect(&ends.vm, &up);
    exchange(&ends, 100_000);
    assert!(matches!(splitter.stop(), Ended::Stopped(_)));
}

/// Whatever is in flight at the moment, in both directions.
fn a_split_amid_a_transfer() {
    for round in 0..10 {
        let rig = Rig::v4();
        let ends = rig.connect();
        let busy = std::thread::scope(|scope| {
            let busy = scope.spawn(|| exchange(&ends, 2_000_000));
            rig.wire.until(|state| state.record.vm.bytes.len() > 100_000 * round);
            let splitter = rig.split(&ends);
            busy.join().expect("exact");
            splitter
        });
        finish_both(&ends);
        assert!(matches!(busy.wait(), Ended::Over));
    }
}

fn the_first_flight_is_acknowledged() {
    acknowledged_at_once(&Rig::v4());
    acknowledged_at_once(&Rig::v6());
}

/// Without the peer, which has seen nothing, and without another segment of the VM.
fn acknowledged_at_once(rig: &Rig) {
    let ends = rig.connect();
    rig.wire.state().lose_from_vm = true;
    rig.first_flight(&ends);
    let _splitter = rig.split(&ends);
    rig.wire.until(|state| state.vm_acknowledged == Some(state.record.vm.sent()));
    let state = rig.wire.state();
    assert_eq!(state.record.vm.bytes, FIRST, "sent on its own");
    // Half of the window at once: a segment of the VM tells the kernel what else there is room for.
    let room = u32::from(state.vm_room.expect("a window")) << state.record.peer.scale();
    let most = settings().receive_bytes.min(0xffff << state.record.peer.scale());
    assert!(room > most / 10 * 4, "shown {room} bytes");
}

fn a_peer_that_does_not_read() {
    let rig = Rig::v4();
    let ends = rig.connect();
    rig.first_flight(&ends);
    let splitter = rig.split(&ends);
    let all = bytes(60 << 20, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| send(&ends.vm, &all));
        // Nothing is read until the VM is shown no room.
        rig.wire.until(|state| state.vm_room == Some(0));
        expect(&ends.peer, &FIRST);
        expect(&ends.peer, &all);
    });
    finish_both(&ends);
    assert!(matches!(splitter.wait(), Ended::Over));
}

/// The path's MTU falls to 1000 bytes.
fn a_path_that_becomes_narrow() {
    let rig = Rig::v4();
    let ends = rig.connect();
    rig.first_flight(&ends);
    let splitter = rig.split_with(&ends, |_, state| {
        state.report = Some(Report { mtu: 1000, code: 4 });
    });
    expect(&ends.peer, &FIRST);
    exchange(&ends, 1_000_000);
    assert!(rig.wire.state().reports > 0);
    finish_both(&ends);
    assert!(matches!(splitter.wait(), Ended::Over));
}

/// A router says that it is unreachable, and Linux tries on.
fn an_unreachable_peer_may_come_back() {
    let rig = Rig::v4();
    let ends = rig.connect();
    rig.first_flight(&ends);
    let splitter = rig.split(&ends);
    expect(&ends.peer, &FIRST);
    rig.wire.state().report = Some(Report { mtu: 99, code: 1 });
    let all = bytes(100_000, 1);
    send(&ends.vm, &all);
    rig.wire.until(|state| state.reports > 0);
    let Ended::Stopped(mut split) = splitter.stop() else { panic!("it is over") };
    split.pump(Direction::ToPeer).expect("the peer may come back");
    rig.wire.state().report = None;
    let splitter = Splitter::run(&rig.sockets, || split);
    expect(&ends.peer, &all);
    finish_both(&ends);
    assert!(matches!(splitter.wait(), Ended::Over));
}

/// It is set again and again, as the splitter does: the kernel forgets the window when the sizes of
/// the VM's segments change, and what the VM was shown until then stays allowed.
fn a_limit_bounds_what_is_held() {
    const ROUNDS: usize = 10;
    for limit in [100_000, 1 << 20, 4 << 20] {
        let rig = Rig::v4();
        let ends = rig.connect();
        rig.first_flight(&ends);
        let mut splitter = rig.split_with(&ends, move |split, _| {
            split.limit(limit).expect("limit");
        });
        expect(&ends.peer, &FIRST);
        let bounds = limit as usize / 2..limit as usize * 5 / 4 + (128 << 10);
        let mut held = Vec::new();
        while held.last().is_none_or(|held| !bounds.contains(held)) {
            assert!(held.len() < ROUNDS, "{held:?} of {limit}");
            let sent = fill(&rig, &ends.vm);
            let Ended::Stopped(mut split) = splitter.stop() else { panic!("it goes on") };
            held.push(split.held(Direction::ToPeer).expect("held"));
            split.limit(limit).expect("limit");
            splitter = Splitter::run(&rig.sockets, || split);
            expect(&ends.peer, &vec![0; sent]);
        }
    }
}

/// The VM sends zeros until it is shown no room. Returns how many.
fn fill(rig: &Rig, mut vm: &TcpStream) -> usize {
    rig.wire.until(|state| state.vm_room != Some(0));
    vm.set_nonblocking(true).expect("non-blocking");
    let mut sent = 0;
    rig.wire.until(|state| {
        sent += vm.write(&[0; 1 << 16]).unwrap_or(0);
        state.vm_room == Some(0)
    });
    sent
}

fn an_urgent_byte_stays_urgent() {
    let rig = Rig::v4();
    let ends = rig.connect();
    rig.first_flight(&ends);
    let splitter = rig.split(&ends);
    expect(&ends.peer, &FIRST);
    socket2::SockRef::from(&ends.peer).set_out_of_band_inline(true).expect("inline");
    send(&ends.vm, b"before");
    socket2::SockRef::from(&ends.vm).send_out_of_band(b"!").expect("send");
    send(&ends.vm, b"after");
    rig.wire.until(|_| unread(&ends.peer) == 12);
    expect(&ends.peer, b"before");
    assert_eq!(at_mark(&ends.peer), 1);
    expect(&ends.peer, b"!after");
    exchange(&ends, 100_000);
    assert!(matches!(splitter.stop(), Ended::Stopped(_)));
}

fn unread(socket: &impl AsRawFd) -> libc::c_int {
    number(socket, libc::FIONREAD as libc::c_ulong)
}

fn at_mark(socket: &impl AsRawFd) -> libc::c_int {
    number(socket, 0x8905)
}

fn number(socket: &impl AsRawFd, request: libc::c_ulong) -> libc::c_int {
    let mut number = 0;
    // SAFETY: the descriptor is open, and the requests write an int.
    assert_eq!(unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut number) }, 0);
    number
}
