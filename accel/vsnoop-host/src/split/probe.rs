//! Does this host have what split connections need?

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::thread;

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use vsnoop_netdev::veth;

use super::error::{Result, Unavailable};
use super::pair::FAR_MAC;
use crate::error::Error;
use crate::system::netns::Netns;

/// From linux/tcp.h; the crate libc does not have it.
const TCP_REPAIR: libc::c_int = 19;

/// Sockets can be restored in the calling thread's network namespace.
pub fn require_repair() -> Result<()> {
    let socket =
        socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, SockProtocol::Tcp)
            .map_err(|errno| Unavailable::NoRepair(errno.into()))?;
    let on: libc::c_int = 1;
    // SAFETY: an open descriptor, and an int that outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_REPAIR,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(Unavailable::NoRepair(io::Error::last_os_error())),
    }
}

/// Tries all of it in a network namespace that goes again at once.
pub fn require() -> Result<()> {
    thread::scope(|scope| scope.spawn(try_all).join())
        .map_err(|_| Error::ThreadDied { netns: "of a probe".to_owned() })?
}

fn try_all() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| Unavailable::Namespace(errno.into()))?;
    require_repair()?;
    let own = Netns::current()?;
    let pair = veth::Pair {
        near: "near",
        far: "far",
        far_netns: own.as_fd(),
        far_mac: FAR_MAC,
        mtu: 1500,
    };
    veth::create(&pair).map_err(|error| match error.errno() {
        Some(libc::EOPNOTSUPP) => Unavailable::NoVeth,
        _ => Unavailable::Pair(error),
    })
}

#[cfg(test)]
mod tests {
    use nix::unistd::geteuid;

    use super::*;

    #[test]
    fn a_host_without_privileges_says_what_is_missing() {
        match require() {
            Ok(()) => assert!(geteuid().is_root()),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
