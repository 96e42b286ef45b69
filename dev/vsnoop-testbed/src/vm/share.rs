//! How VMs share a core, by name: `quota:20`, `fair`, `fair:2`, `slices`.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, ensure};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Share {
    /// Each VM may use this share of the core (cgroup `cpu.max`), as in today's clouds.
    Quota { percent: u32 },
    /// The host's ordinary scheduler (EEVDF) shares the core among VMs and threads that always
    /// run.
    Fair { hogs: u32 },
    /// Turns of 30 ms, as under the credit scheduler of the vSnoop report's Xen.
    Slices,
}

const MOST_HOGS: u32 = 32;

impl Share {
    /// For tables and titles.
    pub fn text(self) -> String {
        match self {
            Self::Quota { percent } => format!("quota of {percent} % of a core each"),
            Self::Fair { hogs: 0 } => "fair shares of the core".into(),
            Self::Fair { hogs: 1 } => "fair shares of the core, with a hog".into(),
            Self::Fair { hogs } => format!("fair shares of the core, with {hogs} hogs"),
            Self::Slices => "slices of 30 ms".into(),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quota { percent } => write!(f, "quota:{percent}"),
            Self::Fair { hogs: 0 } => write!(f, "fair"),
            Self::Fair { hogs } => write!(f, "fair:{hogs}"),
            Self::Slices => write!(f, "slices"),
        }
    }
}

impl FromStr for Share {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (name, number) = match text.split_once(':') {
            Some((name, number)) => {
                let number: u32 = number.parse().with_context(|| format!("{text}: no number"))?;
                (name, Some(number))
            }
            None => (text, None),
        };
        match (name, number) {
            ("quota", Some(percent)) => {
                ensure!((1..=100).contains(&percent), "{text}: 1 to 100 percent are possible");
                Ok(Self::Quota { percent })
            }
            ("fair", hogs) => {
                let hogs = hogs.unwrap_or(0);
                ensure!(hogs <= MOST_HOGS, "{text}: 0 to {MOST_HOGS} hogs are possible");
                Ok(Self::Fair { hogs })
            }
            ("slices", None) => Ok(Self::Slices),
            _ => anyhow::bail!("{text}: there are quota:PERCENT, fair, fair:HOGS and slices"),
        }
    }
}

impl TryFrom<String> for Share {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Share> for String {
    fn from(share: Share) -> Self {
        share.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_what_its_text_says_and_nonsense_is_refused() {
        for share in [
            Share::Quota { percent: 20 },
            Share::Fair { hogs: 0 },
            Share::Fair { hogs: 2 },
            Share::Slices,
        ] {
            assert_eq!(share.to_string().parse::<Share>().unwrap(), share);
        }
        for nonsense in ["quota", "quota:0", "quota:101", "fair:x", "slices:3", "round", ""] {
            assert!(nonsense.parse::<Share>().is_err(), "{nonsense}");
        }
    }
}
