//! Exit codes of the command (docs/reference/exit-codes.md): which one an error deserves, and its
//! name.

use std::fmt;

use vsnoop_bpf::Error as BpfError;
#[cfg(feature = "link")]
use vsnoop_divert::Error as DivertError;
use vsnoop_host::error::{Error as HostError, Unfit};
use vsnoop_service::Error as ServiceError;

#[cfg(feature = "link")]
use crate::link_error::LinkFault;

/// Exit code of a failure at run time.
pub const EXIT_RUNTIME: u8 = 1;
/// Exit code of wrong arguments; clap uses the same.
pub const EXIT_USAGE: u8 = 2;

/// A link of this name runs.
const EXIT_LINK_UP: u8 = 40;
/// No link of this name runs.
const EXIT_LINK_NOT_UP: u8 = 41;

/// The arguments cannot be followed.
pub fn usage_error(text: impl Into<String>) -> anyhow::Error {
    vsnoop_host::error::usage(text).into()
}

/// The host or the port is not fit; the text names the object and the way out.
pub fn unfit_error(what: Unfit, text: impl Into<String>) -> anyhow::Error {
    vsnoop_host::error::unfit(what, text).into()
}

/// The error of another process of this program.
#[derive(Debug)]
pub struct Reported {
    pub message: String,
    pub exit_code: u8,
}

impl fmt::Display for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Reported {}

/// Exit code of an unfit host or port.
pub fn exit_code_of(what: Unfit) -> u8 {
    match what {
        Unfit::Other => 3,
        Unfit::NoPort => 31,
        Unfit::NotATap => 32,
        Unfit::AlreadyAttached => 33,
        Unfit::Qdisc => 34,
        Unfit::Kernel => 35,
        Unfit::Privilege => 36,
        Unfit::BpfFs => 37,
        Unfit::Damaged => 38,
        Unfit::NotAttached => 39,
    }
}

/// The exit code of an error.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    let of_service = error.downcast_ref().and_then(|error| match error {
        ServiceError::Host(error) => Some(error),
        _ => None,
    });
    let of_host = error.downcast_ref::<HostError>().or(of_service).map(HostError::innermost);
    match of_host {
        Some(HostError::Usage(_)) => return EXIT_USAGE,
        Some(HostError::Unfit { what, .. }) => return exit_code_of(*what),
        _ => {}
    }
    if let Some(reported) = error.downcast_ref::<Reported>() {
        return reported.exit_code;
    }
    #[cfg(feature = "link")]
    if let Some(fault) = LinkFault::find_in(error) {
        return match fault {
            LinkFault::Configuration => EXIT_USAGE,
            LinkFault::AlreadyUp => EXIT_LINK_UP,
            LinkFault::NotUp => EXIT_LINK_NOT_UP,
        };
    }
    #[cfg(feature = "link")]
    if let Some(of_diversion) = error.chain().find_map(|cause| cause.downcast_ref()) {
        return match of_diversion {
            DivertError::Permission { .. } => exit_code_of(Unfit::Privilege),
            DivertError::Load { .. } => exit_code_of(Unfit::Kernel),
            DivertError::Unready(_) => exit_code_of(Unfit::Other),
            DivertError::TwoRules { .. } => EXIT_USAGE,
            DivertError::Bpf { .. } | DivertError::Io { .. } => EXIT_RUNTIME,
        };
    }
    let of_bpf = match of_host {
        Some(HostError::Bpf(error)) => Some(error),
        _ => error.chain().find_map(|cause| cause.downcast_ref::<BpfError>()),
    };
    exit_code_of(match of_bpf {
        Some(BpfError::AlreadyAttached { .. }) => Unfit::AlreadyAttached,
        Some(BpfError::NotAttached(_)) => Unfit::NotAttached,
        Some(BpfError::NoBpfFs) => Unfit::BpfFs,
        Some(BpfError::Permission { .. }) => Unfit::Privilege,
        Some(BpfError::Damaged { .. }) => Unfit::Damaged,
        Some(BpfError::Load { .. }) => Unfit::Kernel,
        Some(BpfError::Unready(_)) => Unfit::Other,
        Some(BpfError::Bpf { .. } | BpfError::Io { .. } | BpfError::NoRoom) | None => {
            return EXIT_RUNTIME;
        }
    })
}

/// Names of exit codes, for programs that read `--json`.
pub fn exit_name(code: u8) -> &'static str {
    match code {
        EXIT_USAGE => "usage",
        3 => "environment",
        31 => "no_such_port",
        32 => "not_a_tap",
        33 => "already_attached",
        34 => "qdisc",
        35 => "kernel",
        36 => "privilege",
        37 => "bpffs",
        38 => "damaged_state",
        39 => "not_attached",
        EXIT_LINK_UP => "link_up",
        EXIT_LINK_NOT_UP => "link_not_up",
        _ => "runtime",
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn the_kind_of_an_error_survives_added_context() {
        let error =
            Err::<(), _>(unfit_error(Unfit::NotATap, "port x is a bridge")).context("attach x");
        assert_eq!(exit_code(&error.unwrap_err()), 32);
        assert_eq!(exit_code(&usage_error("no port").context("attach")), EXIT_USAGE);
        assert_eq!(exit_code(&anyhow::anyhow!("broken")), EXIT_RUNTIME);
        let error = Box::new(HostError::Bpf(BpfError::NoBpfFs));
        let error = HostError::CleanUp { port: "x".to_owned(), error };
        assert_eq!(exit_code(&anyhow::Error::from(error).context("attach")), 37);
        assert_eq!(exit_code(&anyhow::Error::from(BpfError::NoBpfFs).context("attach")), 37);
        assert_eq!(exit_name(37), "bpffs");
        assert_eq!(exit_name(1), "runtime");
    }
}
