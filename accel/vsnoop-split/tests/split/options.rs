//! The options of the sockets.

use std::os::fd::{AsFd, AsRawFd};

use vsnoop_split::{Connection, Error, Settings, Side, Split};

use crate::Test;
use crate::rig::{Rig, address, settings};
use crate::splitter::Ended;

pub const TESTS: &[Test] = &[
    ("sockets_have_the_options_of_the_ends", sockets_have_the_options_of_the_ends),
    ("an_unknown_congestion_control_is_named", an_unknown_congestion_control_is_named),
    ("the_congestion_control_is_that_of_the_peer_socket", the_congestion_control_is_set),
];

fn sockets_have_the_options_of_the_ends() {
    let rig = Rig::v4();
    let ends = rig.connect();
    rig.first_flight(&ends);
    let splitter = rig.split(&ends);
    let Ended::Stopped(split) = splitter.stop() else { panic!("it goes on") };
    for (side, end) in [(Side::Vm, &ends.vm), (Side::Peer, &ends.peer)] {
        let (of_end, of_socket) = (information(end), information(&split.socket(side)));
        // A restored socket has a MSS of 536 bytes but for care.
        assert_eq!(of_socket.tcpi_snd_mss, of_end.tcpi_snd_mss);
        // Timestamps, SACK, window scale.
        assert_eq!((of_socket.tcpi_options & 7, of_end.tcpi_options & 7), (7, 7));
        let scales = |info: &libc::tcp_info| {
            // SAFETY: a tcp_info is plain bytes, and longer than seven.
            let byte = unsafe { *(&raw const *info).cast::<u8>().add(6) };
            [byte & 15, byte >> 4]
        };
        assert_eq!(scales(&of_socket), {
            let [send, receive] = scales(&of_end);
            [receive, send]
        });
    }
}

fn information(socket: &impl AsFd) -> libc::tcp_info {
    // SAFETY: all fields are plain integers, for which zero is a valid value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    let (fd, to) = (socket.as_fd().as_raw_fd(), (&raw mut info).cast());
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes.
    let result =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut length) };
    assert_eq!(result, 0, "TCP_INFO");
    info
}

/// Makes the sockets of a connection whose segments still pass.
fn made(settings: Settings<'static>) -> Result<String, Error> {
    let rig = Rig::v4();
    let ends = rig.connect();
    rig.first_flight(&ends);
    let (vm, peer, wire) = (address(&ends.vm), address(&ends.peer), rig.wire.clone());
    let made = rig.sockets.spawn(move || {
        let state = wire.state();
        let connection: Connection = state.record.connection(vm, peer);
        let split = Split::new(&connection, &settings)?;
        let descriptor = split.socket(Side::Peer);
        let name = socket2::SockRef::from(&descriptor).tcp_congestion().expect("a name");
        split.join().expect("join");
        Ok(String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned())
    });
    made.join().expect("no panic")
}

fn an_unknown_congestion_control_is_named() {
    let error = made(Settings { congestion_control: Some("none_such"), ..settings() });
    let error = error.expect_err("no such congestion control");
    assert!(matches!(error, Error::CongestionControl { ref name, .. } if name == "none_such"));
}

fn the_congestion_control_is_set() {
    let chosen = made(Settings { congestion_control: Some("reno"), ..settings() });
    assert_eq!(chosen.expect("split"), "reno");
    let default = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    assert_ne!(default.expect("a default").trim(), "reno", "it would be chosen in any case");
}
