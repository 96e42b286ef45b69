//! Least privilege: a process gives up the capabilities and the system calls that it does not use,
//! for ever (docs/decisions/0026-link-privileges.md, 0041-daemon-privileges.md).
//!
//! Each process says beside its start what its [`Privileges`] are. Capabilities and filters of
//! system calls belong to a thread and are inherited by the threads and programs that it starts, so
//! [`Privileges::drop_others`] is called before there are other threads.

mod capabilities;
mod error;
pub mod refusals;
mod seccomp;
pub mod testing;

#[cfg(test)]
mod tests;

pub use capabilities::is_low_port;
pub use caps::Capability;
pub use error::PrivilegeError;
pub use refusals::Refusal;
pub use seccomp::refuse;

/// The privileges that a process keeps.
#[derive(Debug)]
pub struct Privileges {
    /// Capabilities that it keeps, as far as it was started with them.
    pub capabilities: Vec<Capability>,
    /// System calls that are refused.
    pub refused: Vec<Refusal>,
}

impl Privileges {
    /// Drops all others, irrevocably, in this thread and its children.
    pub fn drop_others(&self) -> Result<(), PrivilegeError> {
        self.drop_others_as(|| Ok(()))
    }

    /// [`Self::drop_others`] of a process that also changes its user. `become_user` does that when
    /// it still may; permitted capabilities must stay.
    pub fn drop_others_as<E: From<PrivilegeError>>(
        &self,
        become_user: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let kept = capabilities::held(&self.capabilities)?;
        capabilities::bound(&kept);
        become_user()?;
        capabilities::keep_only(&kept)?;
        nix::sys::prctl::set_no_new_privs().map_err(PrivilegeError::NoNewPrivileges)?;
        Ok(seccomp::refuse(&self.refused)?)
    }
}
