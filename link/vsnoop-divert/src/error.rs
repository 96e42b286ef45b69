//! Errors name the object that failed, and a remedy.

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Failures of a hook and of a link's tap.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No privilege.
    #[error("no permission to {what}; run as root (CAP_BPF and CAP_NET_ADMIN)")]
    Permission {
        /// The failed action.
        what: String,
    },
    /// The kernel refused the program.
    #[error(
        "the kernel refused the program that diverts: {source}; `vsnoop doctor` checks what it needs"
    )]
    Load {
        /// The kernel's or libbpf's reason.
        source: libbpf_rs::Error,
    },
    /// Contradictory rules.
    #[error("prefix {prefix} has two rules; remove one of them")]
    TwoRules {
        /// The prefix.
        prefix: ipnet::IpNet,
    },
    /// The host's settings would prevent it.
    #[error(transparent)]
    Unready(#[from] Unready),
    /// An operation on the program or a map failed.
    #[error("cannot {what}: {source}")]
    Bpf {
        /// The failed action and its object.
        what: String,
        /// The kernel's or libbpf's reason.
        source: libbpf_rs::Error,
    },
    /// A setting of the host or of the tap cannot be read or changed.
    #[error("cannot {what}: {source}")]
    Io {
        /// The failed action and its object.
        what: String,
        /// The kernel's reason.
        source: std::io::Error,
    },
}

/// A requirement that the host, or the tap, does not meet.
#[derive(Debug, thiserror::Error)]
pub enum Unready {
    /// Reverse path filtering of all interfaces.
    #[error(
        "net.ipv4.conf.all.rp_filter is {all}, so this host drops all that comes out of {tap}: first \
         set net.ipv4.conf.INTERFACE.rp_filter of default and of each interface where it is less than \
         {all}, to {all}, so that these are filtered as before; then set net.ipv4.conf.all.rp_filter \
         to 0"
    )]
    ReversePathFilter {
        /// Its value.
        all: String,
        /// The link's tap.
        tap: String,
    },
    /// IPv6 is switched off.
    #[error("this host has no IPv6, and IPv6 packets are to come out of {tap}")]
    NoIpv6 {
        /// The link's tap.
        tap: String,
    },
    /// The kernel cannot forward the packets of one interface only.
    #[error(
        "this kernel forwards IPv6 only when all interfaces do: set net.ipv6.conf.all.forwarding to 1 \
         (and accept_ra to 2 on interfaces that are to heed router advertisements)"
    )]
    NoIpv6Forwarding,
    /// The name is not valid for an interface.
    #[error("no interface can be called '{name}'")]
    Name {
        /// It.
        name: String,
    },
    /// The interface is no tap.
    #[error("{name} is no tap: it has no Ethernet address")]
    NoEthernet {
        /// The interface.
        name: String,
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
