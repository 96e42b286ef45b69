//! The privileges that a link keeps, and the order in which it drops the others.

use vsnoop_privileges::refusals::{ALL_NAMESPACES, BPF, DESCRIPTORS, NEVER, PROGRAMS};
use vsnoop_privileges::{Capability, PrivilegeError, Privileges, is_low_port};

use super::needs::Needs;
use super::user::{AccountError, UserAccount};
use crate::config::Config;

/// Privileges were not dropped.
#[derive(Debug, thiserror::Error)]
pub enum DropError {
    #[error(transparent)]
    Account(#[from] AccountError),
    #[error(transparent)]
    Privileges(#[from] PrivilegeError),
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
    pub fn new(config: &Config) -> Result<Self, AccountError> {
        let needs = Needs {
            diverts: !config.diverts.is_empty(),
            // Each session over UDP opens a socket at the link's port.
            binds_low_port: is_low_port(config.listen.port()),
        };
        Ok(Self { account: config.user.as_deref().map(UserAccount::find).transpose()?, needs })
    }

    /// Drops all other privileges, irrevocably, in this thread and its children.
    pub fn drop(&self) -> Result<(), DropError> {
        self.privileges().drop_others_as(|| match &self.account {
            Some(account) => Ok(account.enter_account()?),
            None => Ok(()),
        })
    }

    fn privileges(&self) -> Privileges {
        // For a bridge that comes again, SO_SNDBUFFORCE of sessions, and settings of divert taps.
        let mut capabilities = vec![Capability::CAP_NET_ADMIN];
        let mut refused = [NEVER, &[PROGRAMS, DESCRIPTORS, ALL_NAMESPACES]].concat();
        match self.needs.diverts {
            true => capabilities.push(Capability::CAP_BPF),
            false => refused.push(BPF),
        }
        if self.needs.binds_low_port {
            capabilities.push(Capability::CAP_NET_BIND_SERVICE);
        }
        Privileges { capabilities, refused }
    }
}
