//! Defaults for uplinks in the host's configuration: the table `[incast]`.

use serde::Deserialize;
use toml::{Spanned, Value};
use vsnoop_config::{Field, Reader};

use super::setting::{self, Rate, SettingError};
use crate::error;

/// Defaults for a new uplink.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    pub rate: Option<Rate>,
    pub buffer_bytes: Option<u32>,
    /// Default uplink of all ports with incast control.
    pub uplink: Option<String>,
}

/// The table as the file has it.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [incast]")]
pub struct Table {
    rate: Field,
    buffer: Field,
    uplink: Field,
}

impl Table {
    pub fn read(&self, reader: &impl Reader<Error = error::Error>) -> error::Result<Defaults> {
        Ok(Defaults {
            rate: reader.read_quantity("incast.rate", &self.rate, setting::rate)?,
            buffer_bytes: reader.read_quantity("incast.buffer", &self.buffer, setting::buffer)?,
            uplink: self.uplink.as_ref().map(|found| uplink(reader, found)).transpose()?,
        })
    }
}

fn uplink(
    reader: &impl Reader<Error = error::Error>,
    found: &Spanned<Value>,
) -> error::Result<String> {
    match found.get_ref() {
        Value::String(name) if !name.is_empty() => Ok(name.clone()),
        _ => Err(reader.wrong("incast.uplink", found, SettingError::Uplink)),
    }
}

#[cfg(test)]
mod tests {
    use vsnoop_config::Fault;

    use super::*;

    struct Text<'a>(&'a str);

    impl Reader for Text<'_> {
        type Error = error::Error;

        fn contents(&self) -> &str {
            self.0
        }

        fn fault(&self, offset: usize, fault: Fault) -> error::Error {
            error::usage(format!("{}: {fault}", self.place(offset)))
        }
    }

    fn read(text: &str) -> error::Result<Defaults> {
        Text(text).read_document::<Table>()?.read(&Text(text))
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
            ("rate = -1\n", ["line 1, column 8: incast.rate = -1", "1M to 400G"]),
            ("\nrate = 1e9\n", ["line 2, column 8: incast.rate = 1000000000.0", "25G"]),
            ("buffer = \"1K\"\n", ["line 1, column 10: incast.buffer = \"1K\"", "16K to 256M"]),
            ("buffer = -5\n", ["line 1, column 10: incast.buffer = -5", "16K to 256M"]),
            ("buffer = true\n", ["line 1, column 10: incast.buffer = true", "16K to 256M"]),
            ("uplink = 7\n", ["line 1, column 10: incast.uplink = 7", "interface"]),
            ("uplink = \"\"\n", ["line 1, column 10: incast.uplink = \"\"", "interface"]),
        ] {
            let error = read(text).expect_err(text).to_string();
            for word in words {
                assert!(error.contains(word), "{word:?} is not in: {error}");
            }
        }
    }
}
