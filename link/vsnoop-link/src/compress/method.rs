//! Compression methods in their text form: `off`, `lz4`, `zstd`, `zstd:3`, `auto`.
//!
//! A method is the sender's choice among the codecs that the receiver accepts: every body says how
//! it was made, so a method changes between two messages of a flow without a word to the receiver.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Codecs;
use crate::slots::FrameSource;

/// The level of `zstd` without a level: measured, the one that keeps up with a gigabit on one core.
pub const DEFAULT_ZSTD_LEVEL: i32 = 1;
/// Below, text is hardly smaller than with lz4; above, one core no longer fills 100 Mb/s.
pub const ZSTD_LEVELS: std::ops::RangeInclusive<i32> = -5..=19;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Method {
    #[default]
    Off,
    Lz4,
    Zstd {
        level: i32,
    },
    /// Per flow, whatever shortens its way over the link: see [`super::auto`].
    Auto,
}

impl Method {
    /// The method to use for a receiver that accepts these codecs.
    pub fn accepted_by(self, codecs: Codecs) -> Self {
        match self {
            Self::Lz4 if !codecs.lz4 => Self::Off,
            Self::Zstd { .. } if !codecs.zstd => Self::Off,
            Self::Auto if codecs == Codecs::NONE => Self::Off,
            method => method,
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd { level: DEFAULT_ZSTD_LEVEL } => f.write_str("zstd"),
            Self::Zstd { level } => write!(f, "zstd:{level}"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

/// A word that is no method; its text says which words are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodError(String);

impl fmt::Display for MethodError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is no compression method: use off, lz4, zstd, zstd:LEVEL with a level from {} to {} \
             but 0, or auto",
            self.0,
            ZSTD_LEVELS.start(),
            ZSTD_LEVELS.end()
        )
    }
}

impl std::error::Error for MethodError {}

impl FromStr for Method {
    type Err = MethodError;

    fn from_str(word: &str) -> Result<Self, MethodError> {
        let zstd = |level: &str| {
            let level = level.parse().ok().filter(|level| ZSTD_LEVELS.contains(level))?;
            // Zero is zstd's word for its own default, which is another one than ours.
            (level != 0).then_some(Self::Zstd { level })
        };
        match word {
            "off" => Some(Self::Off),
            "lz4" => Some(Self::Lz4),
            "zstd" => Some(Self::Zstd { level: DEFAULT_ZSTD_LEVEL }),
            "auto" => Some(Self::Auto),
            _ => word.strip_prefix("zstd:").and_then(zstd),
        }
        .ok_or_else(|| MethodError(word.chars().take(40).collect()))
    }
}

impl Serialize for Method {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Method {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = std::borrow::Cow::<str>::deserialize(deserializer)?;
        word.parse().map_err(serde::de::Error::custom)
    }
}

/// The owner of a VM, by its full name: a hash could collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A VM for itself: where its frames are read, the numbers of its VLAN tags, and the address
    /// that it sends from.
    Vm { source: FrameSource, vlans: [u16; 2], mac: [u8; 6] },
    /// A name that rules give, by its number.
    Named(u32),
}

impl Owner {
    /// A number to spread owners by; several may have the same.
    pub fn spread(self) -> usize {
        match self {
            Self::Named(number) => number as usize,
            Self::Vm { source, vlans: [outer, inner], mac } => {
                let first = source.index() + usize::from(outer) + usize::from(inner);
                mac.iter().fold(first, |sum, byte| sum + usize::from(*byte))
            }
        }
    }
}

/// How the frames of a flow are compressed. Flows with the same policy and owner share a
/// dictionary, if the policy has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub method: Method,
    /// Contexts of one owner's bytes are never used for another's.
    pub owner: Owner,
    /// Opt-in: one context for all flows of this owner with a window of that many bytes, so that
    /// content that was sent before, in whatever flow, is sent as a reference. See the module's
    /// words on oracles.
    pub dictionary: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_read_as_it_is_written() {
        for word in ["off", "lz4", "zstd", "zstd:3", "zstd:-5", "zstd:19", "auto"] {
            let method: Method = word.parse().unwrap();
            assert_eq!(method.to_string(), word);
            let json = serde_json::to_string(&method).unwrap();
            assert_eq!(json, format!("\"{word}\""));
            assert_eq!(serde_json::from_str::<Method>(&json).unwrap(), method);
        }
        assert_eq!("zstd:1".parse::<Method>().unwrap().to_string(), "zstd");
    }

    #[test]
    fn a_wrong_word_is_answered_with_the_right_ones() {
        for word in ["", "on", "gzip", "zstd:", "zstd:0", "zstd:20", "zstd:-6", "zstd:x", "LZ4"] {
            let error = word.parse::<Method>().unwrap_err().to_string();
            assert!(error.contains(&format!("'{word}'")), "{error}");
            for allowed in ["off", "lz4", "zstd:LEVEL", "-5 to 19", "auto"] {
                assert!(error.contains(allowed), "{error}");
            }
        }
        assert!(serde_json::from_str::<Method>("3").is_err());
    }
}
