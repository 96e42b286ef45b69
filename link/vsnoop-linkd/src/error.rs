//! Why a link cannot be made, or ends; errors of the parts stand with the parts.

use std::io;
use std::net::SocketAddr;

use vsnoop_link::identity::IdentityError;

use crate::control::ControlError;
use crate::divert::hooks::HookError;
use crate::divert::taps::DivertTapError;
use crate::identity::credentials::CredentialsError;
use crate::io::device::DeviceError;
use crate::io::port::PortError;
use crate::membership::MembershipError;
use crate::privileges::{AccountError, DropError};

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("{doing}")]
    Call {
        doing: &'static str,
        #[source]
        error: io::Error,
    },
    #[error("starting the thread {name}")]
    Thread {
        name: &'static str,
        #[source]
        error: io::Error,
    },
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Credentials(Box<CredentialsError>),
    #[error("listening at {address} ({protocol}): {error}{hint}")]
    Listen { address: SocketAddr, protocol: &'static str, error: io::Error, hint: &'static str },
    #[error(transparent)]
    Account(#[from] AccountError),
    #[error(transparent)]
    Privileges(#[from] DropError),
    #[error(transparent)]
    Port(#[from] PortError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    DivertTap(#[from] DivertTapError),
    #[error(transparent)]
    Hook(#[from] HookError),
    #[error(transparent)]
    Membership(#[from] MembershipError),
    #[error("the thread {thread} of link {link} has ended; this is a defect")]
    ThreadEnded { thread: String, link: String },
}

impl LinkError {
    /// For `map_err` of a system call.
    pub(crate) fn call<E: Into<io::Error>>(doing: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::Call { doing, error: error.into() }
    }

    /// A link of this name runs.
    pub fn is_already_up(&self) -> bool {
        matches!(self, Self::Control(ControlError::AlreadyUp(_)))
    }
}

impl From<CredentialsError> for LinkError {
    fn from(error: CredentialsError) -> Self {
        Self::Credentials(Box::new(error))
    }
}

impl From<IdentityError> for LinkError {
    fn from(error: IdentityError) -> Self {
        CredentialsError::from(error).into()
    }
}
