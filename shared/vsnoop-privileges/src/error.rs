//! Why privileges could not be given up.

#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    #[error("giving up capabilities")]
    Capabilities(#[from] caps::errors::CapsError),
    #[error("giving up the right to gain privileges (no_new_privs)")]
    NoNewPrivileges(#[source] nix::Error),
    #[error("compiling the filter of system calls")]
    Filter(#[from] seccompiler::BackendError),
    #[error("installing the filter of system calls")]
    Install(#[from] seccompiler::Error),
}
