//! The checks of `vsnoop doctor`: of the host (`host`), of its configuration and the service's
//! (`configuration`), of each tap and its VM (`taps`), of the memory for holds (`hold`),
//! which the waits of vCPUs decide (`waits`), and of uplinks (`incast`).

pub mod configuration;
pub mod hold;
pub mod host;
mod incast;
pub mod taps;
mod waits;

use serde::Serialize;
use vsnoop_host::error::Unfit;

pub use taps::TapReport;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    /// Works, but worse.
    Warn,
    Fail,
}

impl Level {
    pub fn as_text(self) -> &'static str {
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
    /// The finding, and a remedy.
    pub detail: String,
    #[serde(skip)]
    pub unfit: Unfit,
}
