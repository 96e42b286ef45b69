//! What `vsnoop doctor` finds out: about the host (`host`), about each tap and the VM behind it
//! (`taps`), about the memory that holds would need (`hold`), and about uplinks (`incast`).

pub mod hold;
pub mod host;
mod incast;
pub mod taps;

use serde::Serialize;
use vsnoop_host::error::Unfit;

pub use taps::TapReport;

/// How a check of the host ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    /// Works, but worse.
    Warn,
    Fail,
}

impl Level {
    pub fn text(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warn => "warning",
            Level::Fail => "FAIL",
        }
    }
}

/// One check of the host.
#[derive(Debug, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub level: Level,
    /// What was found, and the way out.
    pub detail: String,
    #[serde(skip)]
    pub unfit: Unfit,
}
