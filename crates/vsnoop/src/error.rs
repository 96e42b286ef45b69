//! Kinds of failure and their exit codes (docs/command.md).
//!
//! Errors travel as `anyhow::Error`. Wrong arguments, and what makes a host or a port unfit, carry
//! one of the types below somewhere in their chain; everything else is a failure at run time.

use std::fmt;

use vsnoop_bpf::Error as BpfError;
use vsnoop_linkd::LinkError;
use vsnoop_linkd::config::ConfigError;
use vsnoop_linkd::control::{AlreadyUp, AskError, ControlError};

/// Exit code of a failure at run time.
pub const EXIT_RUNTIME: u8 = 1;
/// Exit code of wrong arguments; clap uses the same.
pub const EXIT_USAGE: u8 = 2;

/// What is unfit about the host or the port; the number is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// None of those below.
    Other = 3,
    NoPort = 31,
    NotATap = 32,
    AlreadyAttached = 33,
    /// A configured qdisc, or another egress program, stands on the port.
    Qdisc = 34,
    Kernel = 35,
    Privilege = 36,
    BpfFs = 37,
    Damaged = 38,
    NotAttached = 39,
    /// A link of this name runs.
    LinkUp = 40,
    /// No link of this name runs.
    LinkNotUp = 41,
}

/// The host or the port is not fit; the text names the object and the way out.
#[derive(Debug)]
pub struct Environment {
    what: Unfit,
    text: String,
}

/// What another process of this program has failed with.
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

/// The arguments cannot be followed.
#[derive(Debug)]
pub struct Usage(String);

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Environment {}
impl std::error::Error for Usage {}

pub fn unfit(what: Unfit, text: impl Into<String>) -> anyhow::Error {
    Environment { what, text: text.into() }.into()
}

pub fn usage(text: impl Into<String>) -> anyhow::Error {
    Usage(text.into()).into()
}

/// The exit code that an error deserves.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if error.downcast_ref::<Usage>().is_some() {
        return EXIT_USAGE;
    }
    if let Some(environment) = error.downcast_ref::<Environment>() {
        return environment.what as u8;
    }
    if let Some(reported) = error.downcast_ref::<Reported>() {
        return reported.exit_code;
    }
    if error.downcast_ref::<ConfigError>().is_some() {
        return EXIT_USAGE;
    }
    if is_already_up(error) {
        return Unfit::LinkUp as u8;
    }
    if let Some(AskError::NotRunning(_)) = error.downcast_ref::<AskError>() {
        return Unfit::LinkNotUp as u8;
    }
    match error.chain().find_map(|cause| cause.downcast_ref::<BpfError>()) {
        Some(BpfError::AlreadyAttached { .. }) => Unfit::AlreadyAttached as u8,
        Some(BpfError::NotAttached(_)) => Unfit::NotAttached as u8,
        Some(BpfError::NoBpfFs) => Unfit::BpfFs as u8,
        Some(BpfError::Permission { .. }) => Unfit::Privilege as u8,
        Some(BpfError::Damaged { .. }) => Unfit::Damaged as u8,
        Some(BpfError::Load { .. }) => Unfit::Kernel as u8,
        Some(BpfError::TwoRules { .. }) => EXIT_USAGE,
        Some(BpfError::Unready(_)) => Unfit::Other as u8,
        Some(BpfError::Bpf { .. } | BpfError::Io { .. }) | None => EXIT_RUNTIME,
    }
}

fn is_already_up(error: &anyhow::Error) -> bool {
    error.downcast_ref::<AlreadyUp>().is_some()
        || matches!(error.downcast_ref(), Some(ControlError::AlreadyUp(_)))
        || error.downcast_ref().is_some_and(LinkError::is_already_up)
}

/// Names of exit codes, for programs that read `--json`.
pub fn exit_name(code: u8) -> &'static str {
    const UNFIT: [(Unfit, &str); 12] = [
        (Unfit::Other, "environment"),
        (Unfit::NoPort, "no_such_port"),
        (Unfit::NotATap, "not_a_tap"),
        (Unfit::AlreadyAttached, "already_attached"),
        (Unfit::Qdisc, "qdisc"),
        (Unfit::Kernel, "kernel"),
        (Unfit::Privilege, "privilege"),
        (Unfit::BpfFs, "bpffs"),
        (Unfit::Damaged, "damaged_state"),
        (Unfit::NotAttached, "not_attached"),
        (Unfit::LinkUp, "link_up"),
        (Unfit::LinkNotUp, "link_not_up"),
    ];
    let unfit = UNFIT.iter().find(|(what, _)| *what as u8 == code).map(|(_, name)| *name);
    unfit.unwrap_or(if code == EXIT_USAGE { "usage" } else { "runtime" })
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn the_kind_of_an_error_survives_added_context() {
        let error = Err::<(), _>(unfit(Unfit::NotATap, "port x is a bridge")).context("attach x");
        assert_eq!(exit_code(&error.unwrap_err()), 32);
        assert_eq!(exit_code(&usage("no port").context("attach")), EXIT_USAGE);
        assert_eq!(exit_code(&anyhow::anyhow!("broken")), EXIT_RUNTIME);
        assert_eq!(exit_code(&anyhow::Error::from(BpfError::NoBpfFs).context("attach")), 37);
        let is_up = ControlError::AlreadyUp(AlreadyUp("office".to_owned()));
        let is_up = anyhow::Error::from(LinkError::from(is_up)).context("link office");
        assert_eq!(exit_code(&is_up), Unfit::LinkUp as u8);
        assert!(format!("{is_up:#}").starts_with("link office: link office is up already"));
        assert_eq!(exit_name(37), "bpffs");
        assert_eq!(exit_name(1), "runtime");
    }
}
