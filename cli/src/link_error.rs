//! Errors of links that have an exit code of their own.

use vsnoop_linkd::LinkError;
use vsnoop_linkd::config::ConfigError;
use vsnoop_linkd::control::{AlreadyUp, AskError, ControlError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkFault {
    Configuration,
    /// A link of this name runs.
    AlreadyUp,
    /// No link of this name runs.
    NotUp,
}

impl LinkFault {
    /// `None`: any other error.
    pub fn find_in(error: &anyhow::Error) -> Option<Self> {
        if error.downcast_ref::<ConfigError>().is_some() {
            return Some(Self::Configuration);
        }
        let is_up = error.downcast_ref::<AlreadyUp>().is_some()
            || matches!(error.downcast_ref(), Some(ControlError::AlreadyUp(_)))
            || error.downcast_ref().is_some_and(LinkError::is_already_up);
        if is_up {
            return Some(Self::AlreadyUp);
        }
        match error.downcast_ref::<AskError>() {
            Some(AskError::NotRunning(_)) => Some(Self::NotUp),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_is_up_already_is_known_with_context() {
        let is_up = ControlError::AlreadyUp(AlreadyUp("office".to_owned()));
        let is_up = anyhow::Error::from(LinkError::from(is_up)).context("link office");
        assert_eq!(LinkFault::find_in(&is_up), Some(LinkFault::AlreadyUp));
        assert!(format!("{is_up:#}").starts_with("link office: link office is up already"));
        assert_eq!(LinkFault::find_in(&anyhow::anyhow!("broken")), None);
    }
}
