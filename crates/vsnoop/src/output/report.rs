//! The outcome of a command on several ports: one line, or one JSON object, for each.

use anyhow::Result;
use serde::Serialize;

use super::watch::print;
use crate::error::{exit_code, exit_name};
use crate::incast::uplink::Joined;

/// What a command did to one port.
#[derive(Debug, Serialize)]
pub struct Outcome {
    pub port: String,
    /// "attached", "detached", ..., or "failed".
    pub result: &'static str,
    /// Of a port that was attached: the memory of its hold, and what one connection may have of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_bytes: Option<u64>,
    /// Of a port that was attached with incast control.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incast: Option<Joined>,
    /// Acknowledged by vsnoop and not yet by the VM when the wait ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outstanding_flows: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outstanding_bytes: Option<u64>,
    /// Of a paused port: what of it is on this host only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_flows: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_bytes: Option<u64>,
    /// Of a detached port: connections that were reset for what was still held, and how much that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_flows: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// For people; not part of the JSON.
    #[serde(skip)]
    pub text: String,
    #[serde(skip)]
    pub warning: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct Failure {
    pub kind: &'static str,
    pub exit_code: u8,
    pub message: String,
}

impl Outcome {
    pub fn done(port: &str, result: &'static str, text: impl Into<String>) -> Self {
        Self {
            port: port.to_owned(),
            result,
            hold_bytes: None,
            incast: None,
            outstanding_flows: None,
            outstanding_bytes: None,
            held_flows: None,
            held_bytes: None,
            reset_flows: None,
            reset_bytes: None,
            error: None,
            text: text.into(),
            warning: None,
        }
    }

    pub fn failed(port: &str, error: &anyhow::Error) -> Self {
        let code = exit_code(error);
        let message = format!("{error:#}");
        Self {
            error: Some(Failure {
                kind: exit_name(code),
                exit_code: code,
                message: message.clone(),
            }),
            warning: Some(message),
            ..Self::done(port, "failed", "")
        }
    }
}

/// Runs `work` on each port, reports each, and returns the exit code: that of the first failure.
pub fn each(
    names: &[String],
    json: bool,
    mut work: impl FnMut(&str) -> Result<Outcome>,
) -> Result<u8> {
    let mut code = 0;
    let mut outcomes = Vec::new();
    for name in names {
        let outcome = work(name).unwrap_or_else(|error| Outcome::failed(name, &error));
        if let Some(failure) = &outcome.error
            && code == 0
        {
            code = failure.exit_code;
        }
        if let Some(warning) = &outcome.warning {
            eprintln!("vsnoop: {warning}");
        }
        if !json && !outcome.text.is_empty() {
            print(&outcome.text)?;
        }
        outcomes.push(outcome);
    }
    if json {
        #[derive(Serialize)]
        struct Document {
            ports: Vec<Outcome>,
        }
        print(&serde_json::to_string(&Document { ports: outcomes })?)?;
    }
    Ok(code)
}
