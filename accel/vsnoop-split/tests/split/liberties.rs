//! A VM may cost the host more than usual: it repeats acknowledged bytes, sends beyond the window
//! that it was shown, and asks whether its peer is alive.

use std::cell::RefCell;
use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use crate::Test;
use crate::rig::{FIRST, Rig, bytes, expect, finish_both, send, transfer};
use crate::splitter::Ended;

pub const TESTS: &[Test] = &[
    ("what_a_vm_sends_again_arrives_once", || sends_again(&Rig::v4())),
    ("without_sack_what_a_vm_sends_again_arrives_once", || {
        sends_again(&Rig::with(&["net.ipv4.tcp_sack=0"]));
    }),
    ("what_a_vm_sends_beyond_its_window_arrives_once", sends_beyond),
    ("keep_alive_probes_of_both_ends_are_answered", keeps_alive),
];

/// ACKs are lost until the VM has sent all that it may again.
fn sends_again(rig: &Rig) {
    let ends = rig.connect();
    rig.first_flight(&ends);
    let splitter = rig.split(&ends);
    expect(&ends.peer, &FIRST);
    let all = bytes(3_000_000, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| send(&ends.vm, &all));
        rig.wire.until(|state| state.record.vm.bytes.len() > 200_000);
        rig.wire.state().lose_to_vm = true;
        rig.wire.until(|state| state.record.vm.repeated > 3);
        rig.wire.state().lose_to_vm = false;
        expect(&ends.peer, &all);
    });
    finish_both(&ends);
    assert!(matches!(splitter.wait(), Ended::Over));
}

/// The peer does not read until the VM, which takes no notice of its window, has sent more.
fn sends_beyond() {
    const LITTLE: u32 = 50_000;
    let rig = Rig::v4();
    let ends = rig.connect();
    rig.first_flight(&ends);
    let splitter = rig.split_with(&ends, |split, _| {
        split.limit(LITTLE).expect("limit");
    });
    expect(&ends.peer, &FIRST);
    ends.vm.set_nonblocking(true).expect("non-blocking");
    let sent = RefCell::new(Vec::new());
    let write = || {
        let mut sent = sent.borrow_mut();
        let more = bytes(1 << 16, sent.len() as u64);
        let count = (&ends.vm).write(&more).unwrap_or(0);
        sent.extend_from_slice(&more[..count]);
    };
    rig.wire.until(|state| {
        write();
        state.vm_room == Some(0)
    });
    let shown = rig.wire.state().record.vm.bytes.len();
    rig.wire.until(|state| {
        take_for_granted(&ends.vm, 10 * LITTLE);
        write();
        state.record.vm.bytes.len() > shown
    });
    ends.vm.set_nonblocking(false).expect("blocking");
    expect(&ends.peer, &sent.borrow());
    transfer(&ends.vm, &ends.peer, &bytes(500_000, 1));
    finish_both(&ends);
    assert!(matches!(splitter.wait(), Ended::Over));
}

/// The socket counts on this window (struct tcp_repair_window of linux/tcp.h) until it is shown
/// another.
fn take_for_granted(socket: &TcpStream, bytes: u32) {
    const WINDOW: libc::c_int = 29;
    const OFF_WITHOUT_PROBE: libc::c_int = -1;
    set(socket, libc::TCP_REPAIR, &1);
    let mut window = [0u32; 5];
    let mut length = size_of_val(&window) as libc::socklen_t;
    let fd = socket.as_raw_fd();
    // SAFETY: the descriptor is open; the option is as long as is said.
    let got = unsafe {
        libc::getsockopt(fd, libc::IPPROTO_TCP, WINDOW, window.as_mut_ptr().cast(), &raw mut length)
    };
    assert_eq!(got, 0, "TCP_REPAIR_WINDOW: {}", std::io::Error::last_os_error());
    (window[1], window[2]) = (bytes, bytes.max(window[2]));
    set(socket, WINDOW, &window);
    set(socket, libc::TCP_REPAIR, &OFF_WITHOUT_PROBE);
}

fn set<T>(socket: &TcpStream, option: libc::c_int, value: &T) {
    let (fd, length) = (socket.as_raw_fd(), size_of::<T>() as libc::socklen_t);
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: the descriptor is open; the value is live and as long as is said.
    let done = unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, option, value, length) };
    assert_eq!(done, 0, "option {option}: {}", std::io::Error::last_os_error());
}

/// For longer than probes that are not answered would end it.
fn keeps_alive() {
    const SECOND: Duration = Duration::from_secs(1);
    let rig = Rig::v4();
    let ends = rig.connect();
    for end in [&ends.vm, &ends.peer] {
        let often = TcpKeepalive::new().with_time(SECOND).with_interval(SECOND).with_retries(2);
        SockRef::from(end).set_tcp_keepalive(&often).expect("keep-alive");
    }
    rig.first_flight(&ends);
    let splitter = rig.split(&ends);
    expect(&ends.peer, &FIRST);
    std::thread::sleep(5 * SECOND);
    transfer(&ends.vm, &ends.peer, &FIRST);
    transfer(&ends.peer, &ends.vm, &FIRST);
    finish_both(&ends);
    assert!(matches!(splitter.wait(), Ended::Over));
}
