//! The settings of the host: a small TOML file that the administrator may write.
//!
//! ```toml
//! [hold]
//! total = "2G"     # memory for the holds of all ports of the host
//! silence = 300    # seconds without a packet of a VM, after which it gets no early ACKs
//!
//! [incast]            # of an uplink, where `attach --incast` does not say it
//! rate = "25G"        # of the last hop, or "link"
//! buffer = "256K"     # its queue
//! uplink = "eth0"
//!
//! [metrics]           # of the service
//! listen = "127.0.0.1:19755"   # or "off"
//! ```
//!
//! Missing keys have defaults, and options of the command take precedence. The file is read when a
//! port is attached, so that an error in it does not keep a port from being detached. An error is
//! one line with the file, line, column and key. Tables `[[port]]` ([`port`]) are for the service.

mod bounds;
pub mod metrics;
pub mod port;
mod reader;

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;
use vsnoop_config::{Field, Place, Reader as _};
use vsnoop_hold::initial_policy::SILENCE_MS;

use crate::error::{Result, usage};
use crate::incast::configured::{Defaults, Table};
use crate::size;

pub use bounds::{HOLD_LEAST, HOLD_MOST, HoldSizeError, ahead_size, hold_size};

use metrics::MetricsTable;
use port::{PortPattern, PortTable};
use reader::Reader;

/// Read unless `--config` names another.
pub const FILE: &str = "/etc/vsnoop/vsnoop.toml";

/// Default total of all holds: 1/PART of the host's memory.
const PART: u64 = 4;

/// Range of `hold.silence`, seconds.
const SILENCE_SECONDS: std::ops::RangeInclusive<u32> = 1..=86_400;

/// The settings in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The file that would change them.
    pub file: PathBuf,
    /// Does that file exist?
    pub is_there: bool,
    /// Total of all holds, bytes; `None`: 1/PART of the host's memory.
    pub total: Option<u64>,
    /// A VM that has sent nothing for this time, ms, gets no early ACKs.
    pub silence_ms: u32,
    pub incast: Defaults,
    /// Where the service answers Prometheus; `None`: nowhere.
    pub metrics: Option<SocketAddr>,
    /// In the order of the file: the first that a tap meets counts.
    pub ports: Vec<PortPattern>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    #[serde(default)]
    hold: HoldTable,
    #[serde(default)]
    incast: Table,
    #[serde(default)]
    metrics: MetricsTable,
    #[serde(default)]
    port: Vec<Spanned<PortTable>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [hold]")]
struct HoldTable {
    total: Field,
    silence: Field,
}

impl Config {
    /// From the file of `--config`, which must be there, or from [`FILE`], which need not.
    pub fn read(chosen: Option<&Path>) -> Result<Self> {
        let file = chosen.unwrap_or(Path::new(FILE));
        match fs::read(file) {
            Ok(bytes) => Self::parse(file, text_of(file, &bytes)?),
            Err(error) if error.kind() == ErrorKind::NotFound && chosen.is_none() => {
                Ok(Self::absent(file))
            }
            Err(error) => {
                let text = "cannot be read; name another file, or make this one";
                Err(usage(format!("the configuration {} {text}: {error}", file.display())))
            }
        }
    }

    fn absent(file: &Path) -> Self {
        let file = file.to_owned();
        Self {
            file,
            is_there: false,
            total: None,
            silence_ms: SILENCE_MS,
            incast: Defaults::default(),
            metrics: Some(metrics::LISTEN),
            ports: Vec::new(),
        }
    }

    /// `text` as the contents of `file`.
    pub fn parse(file: &Path, text: &str) -> Result<Self> {
        let reader = Reader { file, text };
        let document: ConfigFile = reader.read_document()?;
        let hold = &document.hold;
        let seconds = reader.read_number("hold.silence", &hold.silence, SILENCE_SECONDS)?;
        let total = reader.read_quantity("hold.total", &hold.total, total)?;
        Ok(Self {
            file: file.to_owned(),
            is_there: true,
            silence_ms: seconds.map_or(SILENCE_MS, |seconds| seconds * 1000),
            total,
            incast: document.incast.read(&reader)?,
            metrics: document.metrics.read(&reader)?,
            ports: reader.ports(&document.port, total)?,
        })
    }

    /// Total of all holds on a host with this much memory, bytes.
    pub fn total_bytes(&self, memory_bytes: u64) -> u64 {
        self.total.unwrap_or(memory_bytes / PART)
    }

    /// Where [`Config::total_bytes`] comes from.
    pub fn total_source(&self) -> String {
        match self.total {
            Some(_) => format!("hold.total in {}", self.file.display()),
            None => format!(
                "a fourth of the host's memory, as {} sets no hold.total",
                self.file.display()
            ),
        }
    }
}

/// The bytes of `file` as a text.
fn text_of<'a>(file: &Path, bytes: &'a [u8]) -> Result<&'a str> {
    std::str::from_utf8(bytes).map_err(|error| {
        let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
        let place = Place::of_offset(&before, before.len());
        usage(format!("{}, {place}: no UTF-8; write the file as UTF-8", file.display()))
    })
}

fn total(text: &str) -> std::result::Result<u64, &'static str> {
    // Less is not even one hold.
    size::parse(text).filter(|bytes| *bytes >= HOLD_LEAST).ok_or(
        "give the memory for the holds of all ports, 256K or more, as a text such as \"64M\" or \
         \"2G\", or a number of bytes",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config> {
        Config::parse(Path::new("/f.toml"), text)
    }

    fn complaint(text: &str) -> String {
        let error = parse(text).expect_err(text);
        assert!(matches!(error, crate::error::Error::Usage(_)), "{error}");
        error.to_string()
    }

    #[test]
    fn how_far_ahead_has_suffixes_and_a_bound() {
        assert_eq!(ahead_size("4M"), Ok(4 << 20));
        assert_eq!(ahead_size("64k"), Ok(64 << 10));
        assert_eq!(ahead_size("0"), Ok(0));
        assert_eq!(ahead_size("1G"), Ok(1 << 30));
        assert!(ahead_size("2G").is_err());
        assert!(ahead_size("4X").is_err());
        assert!(ahead_size("").is_err());
        assert!(ahead_size("-1").is_err());
    }

    #[test]
    fn the_total_is_read_as_text_or_number() {
        let config = parse("# bounds\n[hold]\ntotal = 1073741824\n").unwrap();
        assert_eq!(config.total, Some(1 << 30));
        assert_eq!(config.total_bytes(64 << 30), 1 << 30);
        assert_eq!(config.total_source(), "hold.total in /f.toml");
        assert_eq!(parse("[hold]\ntotal = \"2G\"").unwrap().total, Some(2 << 30));
        assert_eq!(parse("[hold]\ntotal = 262144").unwrap().total, Some(HOLD_LEAST));
    }

    #[test]
    fn the_silence_is_read_in_seconds() {
        assert_eq!(parse("").unwrap().silence_ms, 300_000);
        assert_eq!(parse("[hold]\nsilence = 60").unwrap().silence_ms, 60_000);
    }

    #[test]
    fn what_is_not_set_has_a_default() {
        for text in ["", "[hold]\n"] {
            let config = parse(text).unwrap();
            assert_eq!(config.total, None);
            assert_eq!(config.incast, Defaults::default());
            assert_eq!(config.metrics, Some(metrics::LISTEN));
            assert_eq!(config.total_bytes(64 << 30), 16 << 30);
        }
    }

    #[test]
    fn an_error_is_one_line_that_names_file_line_and_key() {
        for (text, words) in [
            ("[hold]\ntotal = \"4M\"\ntotals = 1\n", ["/f.toml, line 3", "totals"]),
            ("\n[holds]\n", ["/f.toml, line 2", "holds"]),
            ("[hold]\ntotal = \"4X\"\n", ["/f.toml, line 2", "hold.total = \"4X\""]),
            ("[hold]\ntotal = -1\n", ["/f.toml, line 2", "hold.total = -1"]),
            ("[hold]\ntotal = true\n", ["/f.toml, line 2", "hold.total = true"]),
            ("[hold]\ntotal = 1.5\n", ["/f.toml, line 2", "hold.total = 1.5: give"]),
            ("[hold]\ntotal = \"100K\"\n", ["hold.total = \"100K\"", "256K or more"]),
            ("[hold]\ntotal = 0\n", ["hold.total = 0", "256K or more"]),
            ("hold = 5\n", ["/f.toml, line 1", "expected a table, [hold]"]),
            ("[[hold]]\n", ["/f.toml, line 1", "expected a table, [hold]"]),
            ("[metrics]\nlisten = \"eth0\"\n", ["/f.toml, line 2, column 10", "metrics.listen"]),
            ("[metrics]\nlisten = 80\n", ["metrics.listen = 80", "a text in quotes"]),
            ("[metrics]\nport = 80\n", ["/f.toml, line 2", "port"]),
            ("metrics = 1\n", ["/f.toml, line 1", "expected a table, [metrics]"]),
            ("incast = \"x\"\n", ["/f.toml, line 1", "expected a table, [incast]"]),
            ("[hold]\ntotals = 1\n", ["field `totals`", "expected `total` or `silence`,"]),
            ("[hold]\nsilence = 0\n", ["/f.toml, line 2", "hold.silence = 0"]),
            ("[hold]\ntotal = [1]\n", ["/f.toml, line 2", "hold.total = (array)"]),
            ("[hold]\ntotal = 1\ntotal = 2\n", ["/f.toml, line 3", "total = 2"]),
            ("[hold]\ntotal = \n", ["/f.toml, line 2", "total ="]),
            ("[hold\n", ["/f.toml, line 1", "[hold"]),
            ("[incast]\nrate = \"fast\"\n", ["/f.toml, line 2", "incast.rate = \"fast\""]),
            ("[incast]\nrates = 7\n", ["/f.toml, line 2", "rates"]),
        ] {
            let complaint = complaint(text);
            assert_eq!(complaint.lines().count(), 1, "{complaint}");
            assert!(!complaint.contains("struct") && !complaint.contains("Table"), "{complaint}");
            for word in words {
                assert!(complaint.contains(word), "{word:?} is not in: {complaint}");
            }
        }
    }

    #[test]
    fn only_a_file_that_was_named_must_be_there() {
        let missing = Path::new("/nonexistent/vsnoop.toml");
        let error = Config::read(Some(missing)).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/vsnoop.toml"), "{error}");
        assert!(!Config::absent(missing).is_there);
    }
}
