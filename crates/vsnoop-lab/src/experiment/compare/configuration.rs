//! The configurations that are compared, by name.

use anyhow::Result;

use crate::experiment::definition::chosen;

/// The accelerator of the receiving machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Configuration {
    /// Nothing.
    Off,
    /// Longer queues: the machine's tuned device, with a larger ring on the host's side and a
    /// larger receive queue on its own.
    Tuned,
    /// Early acknowledgement within the machine's own window, the bound of the vSnoop report.
    AheadZero,
    /// Early acknowledgement as `vsnoop attach` does it without options.
    Vsnoop,
    /// A proxy on the host that splits connections.
    Proxy,
    /// The machine's vCPU has a higher priority than all others of the core while it receives.
    Priority,
    /// No machine: a server on the host itself.
    Host,
}

impl Configuration {
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Tuned => "tuned",
            Self::AheadZero => "ahead-0",
            Self::Vsnoop => "vsnoop",
            Self::Proxy => "proxy",
            Self::Priority => "priority",
            Self::Host => "host",
        }
    }

    /// Options of `vsnoop attach`; `None` where nothing is attached.
    pub fn attach_options(self) -> Option<&'static [&'static str]> {
        match self {
            Self::AheadZero => Some(&["--ahead", "0"]),
            Self::Vsnoop => Some(&[]),
            Self::Off | Self::Tuned | Self::Proxy | Self::Priority | Self::Host => None,
        }
    }

    /// The configurations of `all` with these names; all of them if there are no names.
    pub fn chosen(all: &[Self], asked: &[String]) -> Result<Vec<Self>> {
        let names: Vec<_> = all.iter().map(|configuration| configuration.name()).collect();
        let chosen = chosen(&names, asked)?;
        let all = all.iter().copied();
        Ok(all.filter(|configuration| chosen.contains(&configuration.name())).collect())
    }
}
