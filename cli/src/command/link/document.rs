//! The JSON document of `vsnoop link status`.

use serde::Serialize;
use vsnoop_linkd::control::Status;

/// The document of `--json`.
#[derive(Serialize)]
pub struct LinkStatusDocument {
    pub links: Vec<Status>,
    /// Links that run but do not answer.
    pub silent: Vec<Silent>,
}

#[derive(Serialize)]
pub struct Silent {
    pub name: String,
    /// The problem and a remedy.
    pub problem: String,
}
