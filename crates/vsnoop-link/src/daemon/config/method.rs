//! The name of a compression method.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// `off`, `lz4`, `zstd`, `zstd:LEVEL` or `auto`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Method(String);

impl FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = match text {
            "off" | "lz4" | "zstd" | "auto" => true,
            _ => text
                .strip_prefix("zstd:")
                .and_then(|level| level.parse::<i32>().ok())
                .is_some_and(|level| (-7..=19).contains(&level) && level != 0),
        };
        if known {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!("{text:?} is no method: give off, lz4, zstd, zstd:LEVEL (1 to 19) or auto"))
        }
    }
}

impl TryFrom<String> for Method {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Method> for String {
    fn from(method: Method) -> Self {
        method.0
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
