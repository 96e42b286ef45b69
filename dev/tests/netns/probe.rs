//! Probes of the capabilities of this machine.

use std::os::fd::AsRawFd;

use socket2::{Domain, Protocol, Socket, Type};
use vsnoop_testbed::net::Net;
use vsnoop_testbed::workspace;

use crate::PREFIX;
use crate::attached;

/// Why no test of this file can run here.
pub fn nothing_can_run() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("network namespaces need root".to_owned());
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        return Some("this kernel has no /dev/net/tun".to_owned());
    }
    if attached::is_wanted()
        && let Err(error) = workspace::vsnoop_command()
    {
        // Not a property of the machine: let the tests fail and say so.
        eprintln!("{error:#}");
    }
    None
}

/// The value of `net.ipv4.tcp_ecn` that asks for it (RFC 9768).
pub const ACCURATE_ECN: &str = "3";

/// Why accurate ECN cannot be tested here.
pub fn no_accurate_ecn() -> Option<String> {
    Net::new(PREFIX)
        .host("probe")
        .and_then(|netns| netns.set_sysctl("net.ipv4.tcp_ecn", ACCURATE_ECN))
        .err()
        .map(|_| "this kernel has no accurate ECN".to_owned())
}

/// Why MPTCP cannot be tested here.
pub fn no_mptcp() -> Option<String> {
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP))
        .err()
        .map(|error| format!("this kernel has no MPTCP: {error}"))
}

/// Why TCP MD5 signatures cannot be tested here.
pub fn no_md5() -> Option<String> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).ok()?;
    // SAFETY: the descriptor is an open socket; a null option of length 0 is refused with EINVAL by
    // a kernel that knows TCP_MD5SIG, and never read.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_MD5SIG,
            std::ptr::null(),
            0,
        )
    };
    match nix::Error::result(result) {
        Err(nix::Error::ENOPROTOOPT) => Some("this kernel has no CONFIG_TCP_MD5SIG".to_owned()),
        _ => None,
    }
}
