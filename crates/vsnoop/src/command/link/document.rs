//! What `vsnoop link status` tells.

use serde::Serialize;
use vsnoop_linkd::control::Status;

/// What `--json` prints.
#[derive(Serialize)]
pub struct Document {
    pub links: Vec<Status>,
    /// Links that run and do not answer.
    pub silent: Vec<Silent>,
}

#[derive(Serialize)]
pub struct Silent {
    pub name: String,
    /// What to do about it.
    pub problem: String,
}
