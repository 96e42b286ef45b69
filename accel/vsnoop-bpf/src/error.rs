//! Errors name the object that failed, and a remedy.

use std::path::PathBuf;

use vsnoop_flow::types::VSNOOP_ABI;

use crate::lockdown::{lockdown, under};

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Failures of operations on programs, maps, links and pins.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The tap has the hooks already.
    #[error(
        "port {ifname} is attached already: `vsnoop stats {ifname}` measures it, \
         `vsnoop set {ifname}` changes its hold; for all else `vsnoop detach {ifname}` first"
    )]
    AlreadyAttached {
        /// The tap.
        ifname: String,
    },
    /// The tap has no hooks.
    #[error("port {0} is not attached; `vsnoop status` lists the ports that are")]
    NotAttached(String),
    /// The BPF file system is missing.
    #[error(
        "no BPF file system at /sys/fs/bpf; mount it: mount -t bpf -o mode=0700 bpf /sys/fs/bpf"
    )]
    NoBpfFs,
    /// No privilege.
    #[error("no permission to {what}; run as root (CAP_BPF and CAP_NET_ADMIN)")]
    Permission {
        /// The failed action.
        what: String,
    },
    /// Pinned state that this version does not understand.
    #[error("pinned state {path} is damaged ({reason}); remove it with `vsnoop off --all`")]
    Damaged {
        /// The directory of the port.
        path: PathBuf,
        /// The fault.
        reason: Damage,
    },
    /// The kernel refused the programs.
    #[error("the kernel refused {what}: {source}; `vsnoop doctor` checks what it needs")]
    Load {
        /// Which program or map.
        what: String,
        /// The kernel's or libbpf's reason.
        source: libbpf_rs::Error,
    },
    /// The host's settings would prevent it.
    #[error(transparent)]
    Unready(#[from] Unready),
    /// The host, or a control group, has too little memory left.
    #[error(
        "no more may be taken, or the kernel would end processes for want of memory: `vsnoop doctor` \
         says whose limit that is"
    )]
    NoRoom,
    /// A map or link operation failed.
    #[error("cannot {what}: {source}")]
    Bpf {
        /// The failed action and its object.
        what: String,
        /// The kernel's or libbpf's reason.
        source: libbpf_rs::Error,
    },
    /// A file operation on the pins failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// The failed action and its file.
        what: String,
        /// The kernel's reason.
        source: std::io::Error,
    },
}

/// A fault of pinned state.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// Another version made it.
    #[error("made by a version with ABI {abi}, this one has {}", VSNOOP_ABI)]
    Abi {
        /// That version's.
        abi: u32,
    },
    /// Its hooks run nothing.
    #[error("its programs are not there")]
    NoPrograms,
    /// It has no place in the programs that it shares.
    #[error("it has no slot")]
    NoSlot,
    /// A record does not exist, or has another version.
    #[error("{what} cannot be read")]
    Unread {
        /// Which record.
        what: &'static str,
    },
    /// A map with records of another size.
    #[error("{pin} has records of {bytes} bytes, this version's have {ours}")]
    RecordSize {
        /// The pin of the map.
        pin: PathBuf,
        /// The size of its records.
        bytes: u32,
        /// The size of this version's.
        ours: usize,
    },
    /// A slab of another size.
    #[error("a slab of its hold has {bytes} bytes")]
    SlabSize {
        /// The slab's size.
        bytes: u32,
    },
    /// A pin that does not exist.
    #[error("{pin} does not exist")]
    NoPin {
        /// The pin.
        pin: PathBuf,
    },
    /// A pin that cannot be opened.
    #[error("{pin}: {error}")]
    Pin {
        /// The pin.
        pin: PathBuf,
        /// The kernel's or libbpf's reason.
        error: libbpf_rs::Error,
    },
}

/// A requirement that the host does not meet.
#[derive(Debug, thiserror::Error)]
pub enum Unready {
    /// The lock of all pins, or of a port, is taken.
    #[error(
        "another process has had the lock of {directory} for {seconds} s (is it stopped?); end it and \
         try again"
    )]
    Locked {
        /// The directory whose lock it is.
        directory: PathBuf,
        /// How long it was waited for.
        seconds: u64,
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
    let what = under(what, lockdown().as_deref());
    move |source| match source.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => {
            Error::Permission { what: format!("load {what}") }
        }
        _ => Error::Load { what, source },
    }
}
