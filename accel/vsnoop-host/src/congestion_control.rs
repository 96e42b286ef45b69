//! The congestion controls that the host has.

use std::io;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt};
use vsnoop_bpf::CongestionControl;

use crate::error::{Error, Result, Unfit, unfit};

/// Those that are loaded, in the network namespace of the calling thread.
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// The word for the host's default.
pub const DEFAULT: &str = "default";

/// Reads a setting. Whether the host has it, [`require`] says.
pub fn parse(text: &str) -> std::result::Result<CongestionControl, &'static str> {
    if text == DEFAULT {
        return Ok(CongestionControl::default());
    }
    let allowed = "give the name of a congestion control of the kernel, such as cubic or bbr, or \
                   default";
    CongestionControl::named(text).ok_or(allowed)
}

/// Refuses one that the host does not have. The kernel loads a module for it, if there is one.
pub fn require(chosen: CongestionControl) -> Result<()> {
    let Some(name) = chosen.name() else { return Ok(()) };
    let tried = try_on_socket(&name);
    match tried {
        // Only an unprivileged process is not allowed to use it.
        Ok(()) | Err(Errno::EPERM) => Ok(()),
        Err(Errno::ENOENT) => Err(unfit(Unfit::Kernel, missing(&name, available().ok()))),
        Err(errno) => Err(Error::Call { doing: "try a congestion control", source: errno.into() }),
    }
}

fn try_on_socket(name: &str) -> nix::Result<()> {
    let tcp = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&tcp, sockopt::TcpCongestion, &name.into())
}

fn available() -> io::Result<String> {
    let text = std::fs::read_to_string(AVAILABLE)?;
    let mut names: Vec<_> = text.split_whitespace().collect();
    names.sort_unstable();
    Ok(names.join(", "))
}

fn missing(name: &str, available: Option<String>) -> String {
    let there =
        available.unwrap_or_else(|| "those of net.ipv4.tcp_available_congestion_control".into());
    format!("this host has no congestion control {name}; it has: {there}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_the_host_does_not_have_is_refused_with_those_that_are_there() {
        let error = require(parse("nonesuch").unwrap()).unwrap_err().to_string();
        assert!(error.contains("no congestion control nonesuch"), "{error}");
        assert!(error.contains("reno"), "every kernel has reno: {error}");
        require(parse("reno").unwrap()).unwrap();
        require(parse(DEFAULT).unwrap()).unwrap();
    }
}
