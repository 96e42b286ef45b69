//! What the process of a link may still do once it has its devices, keys and sockets.
//!
//! It reads bytes of strangers and peers. Should one of them take over a thread, this is what the
//! thread can do: see docs/decisions/0026-link-privileges.md. Capabilities, user and filters of
//! system calls belong to a thread and are inherited by those that it starts, so [`Plan::drop`] is
//! called before there are others.

mod capabilities;
mod seccomp;
mod user;

use super::config::Config;

pub use user::{Account, AccountError};

/// Ports below need CAP_NET_BIND_SERVICE: each session over UDP opens a socket at the link's port.
const FIRST_FREE_PORT: u16 = 1024;

#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    #[error("giving up capabilities")]
    Capabilities(#[from] caps::errors::CapsError),
    #[error("becoming user {user}")]
    User {
        user: String,
        #[source]
        error: nix::Error,
    },
    #[error("giving up the right to gain privileges (no_new_privs)")]
    NoNewPrivileges(#[source] nix::Error),
    #[error("compiling the filter of system calls")]
    Filter(#[from] seccompiler::BackendError),
    #[error("installing the filter of system calls")]
    Install(#[from] seccompiler::Error),
}

/// What a link keeps.
#[derive(Debug)]
pub struct Plan {
    /// `None`: the user that started it.
    pub account: Option<Account>,
    /// It attaches hooks to taps that come later.
    pub diverts: bool,
    /// It opens sockets at a port that not everybody may open.
    pub binds_low_port: bool,
}

impl Plan {
    /// For a link of this configuration. Fails if there is no such user.
    pub fn of(config: &Config) -> Result<Self, AccountError> {
        Ok(Self {
            account: config.user.as_deref().map(Account::find).transpose()?,
            diverts: !config.diverts.is_empty(),
            binds_low_port: config.listen.port() < FIRST_FREE_PORT,
        })
    }

    /// Gives up all else, in this thread and all that it will start, for ever.
    pub fn drop(&self) -> Result<(), PrivilegeError> {
        let kept = capabilities::kept(self)?;
        capabilities::bound(&kept);
        if let Some(account) = &self.account {
            account.enter()?;
        }
        capabilities::keep_only(&kept)?;
        nix::sys::prctl::set_no_new_privs().map_err(PrivilegeError::NoNewPrivileges)?;
        seccomp::install(self)
    }
}

#[cfg(test)]
mod tests;
