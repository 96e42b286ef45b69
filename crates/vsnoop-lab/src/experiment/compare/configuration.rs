//! What is done for a machine, by name.

use anyhow::Result;

use crate::experiment::chosen;

/// One way to treat a machine that receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Configuration {
    /// Nothing.
    Off,
    /// Longer queues: the machine's tuned device, with a larger ring on the host's side and a larger
    /// receive queue on its own.
    Tuned,
    /// Early acknowledgement within the machine's own window.
    Strict,
    /// Early acknowledgement of what the host holds.
    Hold,
    /// A proxy on the host that splits connections.
    Proxy,
    /// The machine's vCPU goes before all others of the core while it receives.
    Priority,
    /// No machine: a server on the host itself.
    Host,
}

/// Options of `vsnoop attach`.
const STRICT: &[&str] = &[];
const HOLD: &[&str] = &["--hold", "16M"];

impl Configuration {
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Tuned => "tuned",
            Self::Strict => "strict",
            Self::Hold => "hold",
            Self::Proxy => "proxy",
            Self::Priority => "priority",
            Self::Host => "host",
        }
    }

    /// How vsnoop is attached; `None` where it is not.
    pub fn attach_options(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Strict => Some(STRICT),
            Self::Hold => Some(HOLD),
            Self::Off | Self::Tuned | Self::Proxy | Self::Priority | Self::Host => None,
        }
    }

    /// Those of `all` that were asked for by name; all if none was.
    pub fn chosen(all: &[Self], asked: &[String]) -> Result<Vec<Self>> {
        let names: Vec<_> = all.iter().map(|configuration| configuration.name()).collect();
        let chosen = chosen(&names, asked)?;
        let all = all.iter().copied();
        Ok(all.filter(|configuration| chosen.contains(&configuration.name())).collect())
    }
}
