//! The programs of split connections (bpf/split.bpf.c).

use std::ffi::CString;

use vsnoop_bpf::split::{self, SplitPort, SplitSpec};
use vsnoop_bpf::{Hook, Port};

use crate::scene::{Attached, ip};

/// A port whose connections are split, and its pins.
fn with_sockets() -> (Attached, SplitPort) {
    let port = Attached::with_hold();
    ip("link add so0 type veth peer name so1");
    ip("link set so0 up");
    ip("link set so1 up");
    let spec = SplitSpec {
        tap_ifindex: port.meta().expect("its record").ifindex,
        socket_ifindex: index("so0"),
    };
    split::attach(&port, &spec).unwrap_or_else(|error| panic!("{error:?}"));
    let opened = SplitPort::open(&port).expect("open the pins");
    (port, opened)
}

fn index(name: &str) -> u32 {
    let name = CString::new(name).expect("no NUL");
    // SAFETY: a C string that outlives the call.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

pub fn the_verifier_accepts_the_programs_of_split_connections() {
    let (port, opened) = with_sockets();
    assert!(split::is_attached(&port));
    opened.turn_on(true);
    assert_eq!(opened.counters().is_on, 1);
    assert!(opened.split_flows().is_empty());
    split::detach(&port).expect("detach");
    assert!(!split::is_attached(&port));
}

pub fn a_port_that_is_detached_leaves_no_program_of_split_connections() {
    let (port, _opened) = with_sockets();
    let dir = port.dir().to_owned();
    drop(port);
    assert!(!dir.exists());
    let _ = (Hook::ToVm, Port::list().expect("list"));
}
