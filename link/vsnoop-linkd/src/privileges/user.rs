//! The user that a link becomes once it has opened what needs root (`link.user`).

use std::os::fd::AsFd;

use nix::sys::prctl;
use nix::unistd::{self, Gid, Uid, User};

#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    #[error(
        "there is no user {name}, which link.user names; make it (`useradd --system \
         --no-create-home --shell /usr/sbin/nologin {name}`)"
    )]
    Missing { name: String },
    #[error("looking up user {name}")]
    LookUp {
        name: String,
        #[source]
        error: nix::Error,
    },
    #[error("becoming user {name}")]
    Become {
        name: String,
        #[source]
        error: nix::Error,
    },
}

/// A user of this host and its first group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserAccount {
    pub name: String,
    uid: Uid,
    gid: Gid,
}

impl UserAccount {
    pub fn find(name: &str) -> Result<Self, AccountError> {
        let name = name.to_owned();
        match User::from_name(&name) {
            Ok(Some(user)) => Ok(Self { name, uid: user.uid, gid: user.gid }),
            Ok(None) => Err(AccountError::Missing { name }),
            Err(error) => Err(AccountError::LookUp { name, error }),
        }
    }

    /// Gives it a socket: others of the same user may join its group (`SO_REUSEPORT`).
    pub fn give_socket(&self, socket: impl AsFd) -> Result<(), AccountError> {
        unistd::fchown(socket, Some(self.uid), Some(self.gid)).map_err(self.failed())
    }

    /// Becomes this user, without further groups. Permitted capabilities stay.
    pub(super) fn enter_account(&self) -> Result<(), AccountError> {
        let enter = || {
            prctl::set_keepcaps(true)?;
            unistd::setgroups(&[])?;
            unistd::setresgid(self.gid, self.gid, self.gid)?;
            unistd::setresuid(self.uid, self.uid, self.uid)?;
            prctl::set_keepcaps(false)
        };
        enter().map_err(self.failed())
    }

    fn failed(&self) -> impl Fn(nix::Error) -> AccountError {
        |error| AccountError::Become { name: self.name.clone(), error }
    }
}
