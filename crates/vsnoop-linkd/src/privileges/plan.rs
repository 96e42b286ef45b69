//! The privileges that a link keeps, and the order in which it drops the others.

use super::error::PrivilegeError;
use super::needs::Needs;
use super::user::{AccountError, UserAccount};
use super::{capabilities, seccomp};
use crate::config::Config;

/// The first port that needs no CAP_NET_BIND_SERVICE (ip-sysctl). Each session over UDP opens a
/// socket at the link's port.
fn first_free_port() -> u16 {
    let said = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    said.ok().and_then(|said| said.trim().parse().ok()).unwrap_or(u16::MAX)
}

/// The privileges that a link keeps.
#[derive(Debug)]
pub struct Plan {
    /// `None`: the user that started it.
    pub account: Option<UserAccount>,
    pub needs: Needs,
}

impl Plan {
    /// For a link of this configuration. Fails if there is no such user.
    pub fn of(config: &Config) -> Result<Self, AccountError> {
        let needs = Needs {
            diverts: !config.diverts.is_empty(),
            binds_low_port: config.listen.port() < first_free_port(),
        };
        Ok(Self { account: config.user.as_deref().map(UserAccount::find).transpose()?, needs })
    }

    /// Drops all other privileges, irrevocably, in this thread and its children.
    pub fn drop(&self) -> Result<(), PrivilegeError> {
        let kept = capabilities::kept(self.needs)?;
        capabilities::bound(&kept);
        if let Some(account) = &self.account {
            account.enter()?;
        }
        capabilities::keep_only(&kept)?;
        nix::sys::prctl::set_no_new_privs().map_err(PrivilegeError::NoNewPrivileges)?;
        seccomp::install(self.needs)
    }
}
