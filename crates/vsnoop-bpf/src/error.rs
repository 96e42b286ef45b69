//! Errors name the object that failed, and a remedy.

use std::path::PathBuf;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Failures of operations on programs, maps, links and pins.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The tap has the hooks already.
    #[error("port {ifname} is attached already; `vsnoop detach {ifname}` first")]
    AlreadyAttached {
        /// The tap.
        ifname: String,
    },
    /// The tap has no hooks.
    #[error("port {0} is not attached; `vsnoop status` lists the ports that are")]
    NotAttached(String),
    /// The BPF file system is missing.
    #[error("no BPF file system at /sys/fs/bpf; mount it: mount -t bpf bpf /sys/fs/bpf")]
    NoBpfFs,
    /// No privilege.
    #[error("no permission to {what}; run as root (CAP_BPF and CAP_NET_ADMIN)")]
    Permission {
        /// What was tried.
        what: String,
    },
    /// Pinned state that this version does not understand.
    #[error("pinned state {path} is damaged ({reason}); remove it with `vsnoop off --all`")]
    Damaged {
        /// The directory of the port.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The kernel refused the programs.
    #[error("the kernel refused {what}: {source}; `vsnoop doctor` checks what it needs")]
    Load {
        /// Which program or map.
        what: String,
        /// The kernel's or libbpf's reason.
        source: libbpf_rs::Error,
    },
    /// Contradictory rules of diversion.
    #[error("prefix {prefix} has two rules; remove one of them")]
    TwoRules {
        /// The prefix.
        prefix: ipnet::IpNet,
    },
    /// The host's settings would prevent it.
    #[error("{0}")]
    Unready(String),
    /// A map or link operation failed.
    #[error("cannot {what}: {source}")]
    Bpf {
        /// What was tried, on which object.
        what: String,
        /// The kernel's or libbpf's reason.
        source: libbpf_rs::Error,
    },
    /// A file operation on the pins failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried, on which file.
        what: String,
        /// The kernel's reason.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn bpf(what: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> Error {
        let what = what.into();
        move |source| match source.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => Error::Permission { what },
            _ => Error::Bpf { what, source },
        }
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        let what = what.into();
        move |source| match source.kind() {
            std::io::ErrorKind::PermissionDenied => Error::Permission { what },
            _ => Error::Io { what, source },
        }
    }
}

/// The error of a part of an object that the kernel or libbpf refused.
pub(crate) fn refused(what: &str) -> impl FnOnce(libbpf_rs::Error) -> Error + use<> {
    let what = what.to_owned();
    move |source| match source.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => {
            Error::Permission { what: format!("load {what}") }
        }
        _ => Error::Load { what, source },
    }
}
