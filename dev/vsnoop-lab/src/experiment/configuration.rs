//! The configurations that are compared, by name.

use anyhow::{Context, Result};
use vsnoop_testbed::stage::Stage;

use super::rounds::Named;

/// The accelerator of the receiving machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Configuration {
    /// Nothing.
    Off,
    /// Longer queues: the machine's tuned device, with a larger ring on the host's side and a
    /// larger receive queue on its own.
    Tuned,
    /// Both: early acknowledgement at the tuned device.
    TunedVsnoop,
    /// Early acknowledgement within the machine's own window, the bound of the vSnoop report.
    #[strum(serialize = "ahead-0")]
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

impl Named for Configuration {
    fn name(self) -> &'static str {
        self.into()
    }
}

impl Configuration {
    pub fn find(name: &str) -> Result<Self> {
        name.parse().with_context(|| format!("there is no configuration {name:?}"))
    }

    /// Does for a machine of a stage what the configuration needs; `more`: options of `vsnoop
    /// attach` beside its own.
    pub fn set_up(self, stage: &Stage, machine: usize, more: &[&str]) -> Result<()> {
        if let Some(options) = self.attach_options() {
            stage.attach_tap(self.tap(stage, machine)?, &[options, more].concat())?;
        }
        if self == Self::Priority {
            stage.favour(machine, true)?;
        }
        Ok(())
    }

    pub fn undo(self, stage: &Stage, machine: usize) -> Result<()> {
        if self.attach_options().is_some() {
            stage.detach_tap(self.tap(stage, machine)?)?;
        }
        if self == Self::Priority {
            stage.favour(machine, false)?;
        }
        Ok(())
    }

    /// Whether it is the machine's tuned device that receives.
    pub fn is_tuned(self) -> bool {
        matches!(self, Self::Tuned | Self::TunedVsnoop)
    }

    /// The tap of the device that receives, or that a peer sends to.
    pub fn tap(self, stage: &Stage, machine: usize) -> Result<&str> {
        if self.is_tuned() { stage.tuned_tap(machine) } else { Ok(stage.tap(machine)) }
    }

    /// Options of `vsnoop attach`; `None` where nothing is attached.
    pub fn attach_options(self) -> Option<&'static [&'static str]> {
        match self {
            Self::AheadZero => Some(&["--ahead", "0"]),
            Self::Vsnoop | Self::TunedVsnoop => Some(&[]),
            Self::Off | Self::Tuned | Self::Proxy | Self::Priority | Self::Host => None,
        }
    }
}
