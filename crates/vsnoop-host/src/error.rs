//! Kinds of failure that a caller can tell apart.
//!
//! Errors travel as `anyhow::Error`. Wrong arguments, and what makes a host or a port unfit, carry
//! one of the types below somewhere in their chain; everything else is a failure at run time.

use thiserror::Error;

/// What is unfit about the host or the port.
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

/// The host or the port is not fit; the text names the object and the way out.
#[derive(Debug, Error)]
#[error("{text}")]
pub struct Environment {
    pub what: Unfit,
    text: String,
}

/// The arguments cannot be followed.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct Usage(String);

pub fn unfit(what: Unfit, text: impl Into<String>) -> anyhow::Error {
    Environment { what, text: text.into() }.into()
}

pub fn usage(text: impl Into<String>) -> anyhow::Error {
    Usage(text.into()).into()
}
