//! The configurations of the receiver that are compared.

use anyhow::{Result, bail};
use vsnoop_testbed::fan_in::{PORT, UPLINK};
use vsnoop_testbed::session::Session;
use vsnoop_testbed::switch::LastHop;
use vsnoop_testbed::vsnoop::Vsnoop;

/// Payload of a full segment, with timestamps.
const MSS_BYTES: u32 = 1448;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Configuration {
    /// Nothing is attached.
    Off,
    /// `vsnoop attach --observe --incast`: without early acknowledgements, as the paper's ICTCP.
    Incast,
    /// `vsnoop attach --incast`: with them.
    IncastEarly,
    /// Nothing is attached; the receiver's window is at most this number of MSS.
    Fixed(u32),
}

impl Configuration {
    pub fn name(self) -> String {
        match self {
            Self::Off => "off".into(),
            Self::Incast => "incast".into(),
            Self::IncastEarly => "incast-early".into(),
            Self::Fixed(mss) => format!("fixed-{mss}mss"),
        }
    }

    pub fn from_name(name: &str) -> Result<Self> {
        let fixed = name.strip_prefix("fixed-").and_then(|rest| rest.strip_suffix("mss"));
        Ok(match (name, fixed.map(str::parse)) {
            ("off", _) => Self::Off,
            ("incast", _) => Self::Incast,
            ("incast-early", _) => Self::IncastEarly,
            (_, Some(Ok(mss @ 1..=64))) => Self::Fixed(mss),
            _ => bail!(
                "there is no configuration {name:?}; there are: off, incast, incast-early, fixed-Nmss"
            ),
        })
    }

    /// Whether vsnoop is attached.
    pub fn attaches(self) -> bool {
        matches!(self, Self::Incast | Self::IncastEarly)
    }

    /// The receiver's largest window, in bytes.
    pub fn cap_bytes(self) -> Option<u32> {
        match self {
            Self::Fixed(mss) => Some(mss * MSS_BYTES),
            Self::Off | Self::Incast | Self::IncastEarly => None,
        }
    }
}

/// Attaches vsnoop to the VM's port. `vsnoop` is one for the host's namespace.
pub fn attach(
    session: &mut Session,
    vsnoop: &Vsnoop,
    netns: &str,
    configuration: Configuration,
    last_hop: &LastHop,
) -> Result<()> {
    session.note_port(netns, PORT)?;
    let LastHop { rate_mbit, buffer_bytes, .. } = last_hop;
    let (rate, buffer) = (format!("{rate_mbit}M"), buffer_bytes.to_string());
    let mut options = vec!["--incast", &rate, "--incast-buffer", &buffer, "--uplink", UPLINK];
    if configuration == Configuration::Incast {
        options.push("--observe");
    }
    vsnoop.attach_with(PORT, &options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_found_by_its_name() {
        for configuration in [Configuration::Off, Configuration::Incast, Configuration::Fixed(2)] {
            let found = Configuration::from_name(&configuration.name());
            assert_eq!(found.ok(), Some(configuration));
        }
        for unknown in ["vsnoop", "fixed-", "fixed-0mss", "fixed-x", "fixed-2"] {
            assert!(Configuration::from_name(unknown).is_err(), "{unknown}");
        }
    }
}
