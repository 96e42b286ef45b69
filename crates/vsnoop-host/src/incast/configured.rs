//! Defaults for uplinks in the host's configuration: the table `[incast]`.

use serde::Deserialize;
use toml::{Spanned, Value};

use super::setting::{self, Rate, SettingError, bits_per_second};
use crate::config::value::shown;
use crate::error;

/// Defaults for a new uplink.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    pub rate: Option<Rate>,
    pub buffer_bytes: Option<u32>,
    /// Default uplink of all ports with incast control.
    pub uplink: Option<String>,
}

/// Values of any type, so that an error can name the key.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [incast]")]
pub struct Table {
    rate: Option<Spanned<Value>>,
    buffer: Option<Spanned<Value>>,
    uplink: Option<Spanned<Value>>,
}

impl Table {
    /// `complaint` builds an error from a position and a message.
    pub fn read(&self, complaint: impl Fn(usize, &str) -> error::Error) -> error::Result<Defaults> {
        let wrong = |key: &str, value: &Spanned<Value>, why: SettingError| {
            let what = format!("incast.{key} = {}: {why}", shown(value.get_ref()));
            complaint(value.span().start, &what)
        };
        let mut defaults = Defaults::default();
        if let Some(value) = &self.rate {
            let rate = rate(value.get_ref()).map_err(|why| wrong("rate", value, why))?;
            defaults.rate = Some(rate);
        }
        if let Some(value) = &self.buffer {
            let buffer = buffer(value.get_ref()).map_err(|why| wrong("buffer", value, why))?;
            defaults.buffer_bytes = Some(buffer);
        }
        if let Some(value) = &self.uplink {
            let uplink = uplink(value.get_ref()).map_err(|why| wrong("uplink", value, why))?;
            defaults.uplink = Some(uplink);
        }
        Ok(defaults)
    }
}

fn rate(value: &Value) -> Result<Rate, SettingError> {
    match value {
        Value::Integer(bits) => bits_per_second(u64::try_from(*bits).unwrap_or(0)),
        Value::String(text) => setting::rate(text),
        _ => setting::rate(""),
    }
}

fn buffer(value: &Value) -> Result<u32, SettingError> {
    match value {
        Value::Integer(bytes) => setting::buffer(&bytes.to_string()),
        Value::String(text) => setting::buffer(text),
        _ => setting::buffer(""),
    }
}

fn uplink(value: &Value) -> Result<String, SettingError> {
    match value {
        Value::String(name) if !name.is_empty() => Ok(name.clone()),
        _ => Err(SettingError::Uplink),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> error::Result<Defaults> {
        let table = toml::from_str::<Table>(text).expect("a table");
        table.read(|at, what| error::usage(format!("{at}: {what}")))
    }

    #[test]
    fn an_uplink_is_described_by_texts_or_numbers() {
        let text = "rate = \"25G\"\nbuffer = 262144\nuplink = \"eth0\"\n";
        let defaults = Defaults {
            rate: Some(Rate::BitsPerSecond(25_000_000_000)),
            buffer_bytes: Some(256 << 10),
            uplink: Some("eth0".into()),
        };
        assert_eq!(read(text).unwrap(), defaults);
        let rate = |text: &str| read(&format!("rate = {text}")).unwrap().rate;
        assert_eq!(rate("1000000000"), Some(Rate::BitsPerSecond(1_000_000_000)));
        assert_eq!(rate("\"link\""), Some(Rate::Link));
        assert_eq!(read("").unwrap(), Defaults::default());
    }

    #[test]
    fn what_is_wrong_is_said_with_place_key_and_bounds() {
        for (text, words) in [
            ("rate = -1\n", ["7: incast.rate = -1", "1M to 400G"]),
            ("\nrate = 1e9\n", ["8: incast.rate = 1000000000.0", "25G"]),
            ("buffer = \"1K\"\n", ["9: incast.buffer = \"1K\"", "16K to 256M"]),
            ("buffer = -5\n", ["9: incast.buffer = -5", "16K to 256M"]),
            ("buffer = true\n", ["9: incast.buffer = true", "16K to 256M"]),
            ("uplink = 7\n", ["9: incast.uplink = 7", "interface"]),
            ("uplink = \"\"\n", ["9: incast.uplink = \"\"", "interface"]),
        ] {
            let error = read(text).expect_err(text).to_string();
            for word in words {
                assert!(error.contains(word), "{word:?} is not in: {error}");
            }
        }
    }
}
