//! Requests to a running link, and the privileges for them.

use std::fs;

use anyhow::{Context, Result, bail};
use vsnoop_host::error::Unfit;
use vsnoop_host::system::netns::Netns;
use vsnoop_linkd::control::{self, Request, Response, Status};

use crate::cli::Cli;
use crate::error::{unfit_error, usage_error};

/// Requires root with CAP_NET_ADMIN, which a container may lack.
pub fn require_root() -> Result<()> {
    let status = fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
    if has_net_admin(&status) {
        return Ok(());
    }
    Err(unfit_error(Unfit::Privilege, "links need root (CAP_NET_ADMIN)"))
}

/// Does /proc/PID/status (proc(5)) list CAP_NET_ADMIN as effective?
fn has_net_admin(status: &str) -> bool {
    const CAP_NET_ADMIN: u32 = 12;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    effective.is_some_and(|bits| bits & (1 << CAP_NET_ADMIN) != 0)
}

/// With `--netns` the link must be in that network namespace. Without it none is asked for: a name
/// is unique on the host.
pub fn require_netns(cli: &Cli, name: &str) -> Result<()> {
    let Some(netns) = &cli.netns else { return Ok(()) };
    let wanted = Netns::open(netns)?.inode;
    if status_of(name, false)?.netns == wanted {
        return Ok(());
    }
    Err(usage_error(format!(
        "link {name} is not in the network namespace {netns} but in another one; leave out --netns: the \
         name of a link is unique on the host"
    )))
}

/// Sends a request that a link can only accept or refuse.
pub fn tell_link(name: &str, request: &Request) -> Result<()> {
    match control::ask_link(name, request)? {
        Response::Done => Ok(()),
        Response::Refused { reason } => Err(usage_error(reason)),
        _ => bail!("link {name} gave an answer to something else"),
    }
}

pub fn status_of(name: &str, addresses: bool) -> Result<Status> {
    match control::ask_link(name, &Request::Status { addresses })? {
        Response::Status(status) => Ok(*status),
        Response::Refused { reason } => bail!("link {name}: {reason}"),
        _ => bail!("link {name} gave an answer to something else"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_to_make_interfaces_is_what_counts() {
        assert!(has_net_admin("Name:\tx\nCapPrm:\t0\nCapEff:\t000001ffffffffff\n"));
        assert!(has_net_admin("CapEff:\t0000000000001000\n"));
        assert!(!has_net_admin("CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000fff\n"));
        assert!(!has_net_admin(""));
    }
}
