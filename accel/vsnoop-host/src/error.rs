//! The errors of the crate.
//!
//! [`Error::Usage`] and [`Error::Unfit`] name the object and the way out in their texts; the others
//! are failures at run time, which name what was tried on which object, and have the kernel's
//! reason as their source.

use std::io;
use std::path::PathBuf;

use vsnoop_netdev::{ethtool, netlink};

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// A property of the host or the port that prevents the action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// None of those below.
    Other,
    NoPort,
    NotATap,
    AlreadyAttached,
    /// A configured qdisc, or another egress program, stands on the port.
    Qdisc,
    Kernel,
    Privilege,
    BpfFs,
    Damaged,
    NotAttached,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments cannot be followed.
    #[error("{0}")]
    Usage(String),
    /// The host or the port is not fit.
    #[error("{text}")]
    Unfit { what: Unfit, text: String },
    #[error(transparent)]
    Bpf(#[from] vsnoop_bpf::Error),
    #[error(transparent)]
    Netdev(#[from] vsnoop_netdev::Error),
    #[error(transparent)]
    Ethtool(#[from] ethtool::Error),
    #[error(transparent)]
    Netlink(netlink::Error),
    #[error(transparent)]
    System(#[from] SystemError),

    #[error("{doing}")]
    Call { doing: &'static str, source: SystemError },
    #[error("{doing} {}", path.display())]
    File { doing: &'static str, path: PathBuf, source: SystemError },
    #[error(
        "another vsnoop command has held {file} for {seconds} s; \
         end it, or take everything off with `vsnoop off --all`"
    )]
    Locked { file: String, seconds: u64 },
    #[error("enter network namespace {netns}")]
    EnterNetns { netns: String, source: nix::Error },
    #[error("a thread in network namespace {netns} died")]
    ThreadDied { netns: String },
    #[error("the probing thread died")]
    ProbeDied,
    #[error("the network namespace of the tap cannot be found, so its peers get no RST")]
    NoNetns,
    #[error("/proc/meminfo does not tell the host's memory; set hold.total in the configuration")]
    UnknownMemory,
    #[error("port {port} cannot be attached")]
    CannotAttach { port: String, source: vsnoop_bpf::Error },
    #[error("interrupted before it was attached")]
    Interrupted,
    #[error("clean up after port {port}")]
    CleanUp {
        port: String,
        #[source]
        error: Box<Error>,
    },
    #[error("uplink {name}")]
    Uplink { name: String, source: vsnoop_bpf::Error },
    #[error("the downloads of port {port} are not switched off: {reason}")]
    Downloads { port: String, reason: String },
    #[error("the devices of the downloads of port {port} keep their MTU: {reason}")]
    DownloadsMtu { port: String, reason: String },
    #[error("read the qdisc of port {port}")]
    ReadQdisc { port: String, source: netlink::Error },
    #[error("set the qdisc of port {port} to noqueue")]
    SetQdisc {
        port: String,
        #[source]
        error: Box<Error>,
    },
    #[error("restore the default qdisc of port {port}")]
    RestoreQdisc { port: String, source: netlink::Error },
    #[error("read the tc filters of port {port}")]
    ReadFilters { port: String, source: netlink::Error },
    #[error("read the tcx programs of port {port}")]
    ReadPrograms { port: String, source: io::Error },
}

/// The kernel's reason for a failed system call.
#[derive(Debug, thiserror::Error)]
pub enum SystemError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Errno(#[from] nix::Error),
}

impl Error {
    /// The error that decides the exit code: what failed within a clean-up or another step.
    pub fn innermost(&self) -> &Self {
        match self {
            Self::CleanUp { error, .. } | Self::SetQdisc { error, .. } => error.innermost(),
            error => error,
        }
    }

    /// A system call failed.
    pub(crate) fn call<E: Into<SystemError>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Call { doing, source: source.into() }
    }

    /// A system call on a file failed.
    pub(crate) fn file<E: Into<SystemError>>(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::File { doing, path: path.into(), source: source.into() }
    }
}

/// The text names the object and the way out.
pub fn unfit(what: Unfit, text: impl Into<String>) -> Error {
    Error::Unfit { what, text: text.into() }
}

pub fn usage(text: impl Into<String>) -> Error {
    Error::Usage(text.into())
}

/// An error and its causes, as people read them; a cause that an error has in its own text is not
/// repeated. (`{:#}` writes the causes of `anyhow` errors only.)
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.ends_with(&cause) { text } else { format!("{text}: {cause}") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot attach: {source}")]
    struct Named {
        source: io::Error,
    }

    #[test]
    fn a_cause_is_said_once() {
        let source = || io::Error::from_raw_os_error(libc::EINVAL);
        let named = Named { source: source() };
        assert_eq!(with_causes(&named), "cannot attach: Invalid argument (os error 22)");
        let called = Error::call("ask for the kernel's version")(source());
        let text = "ask for the kernel's version: Invalid argument (os error 22)";
        assert_eq!(with_causes(&called), text);
    }
}
