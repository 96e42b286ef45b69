//! Reports of a command on several ports: one line, or one JSON object, for each.

use anyhow::Result;
use serde::Serialize;
use vsnoop_host::incast::uplink::Joined;
use vsnoop_host::ports::once_each;
use vsnoop_service::control;

use super::fold::fold_text;
use super::hint;
use super::watch::{has_printed, print_text};
use crate::cli::Cli;
use crate::error::{EXIT_USAGE, exit_code, exit_name};

/// Result of a command for one port.
#[derive(Debug, Serialize)]
pub struct Outcome {
    pub port: String,
    /// "attached", "detached", ..., or "failed".
    pub result: &'static str,
    /// For an attached port: the quota of its hold, and the limit of one connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_bytes: Option<u64>,
    /// How far its senders may send beyond the VM's own window, bytes; absent: as far as the hold
    /// allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead_bytes: Option<u64>,
    /// For an accelerated port: whether its downloads are split.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub downloads: Option<bool>,
    /// Congestion control of its split connections; absent: the host's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<String>,
    /// For a port that was attached with incast control.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incast: Option<Joined>,
    /// Bytes acknowledged by vsnoop and not by the VM when the wait ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outstanding_flows: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outstanding_bytes: Option<u64>,
    /// For a paused port: the part that is on this host only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_flows: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_bytes: Option<u64>,
    /// For a detached port: connections that were reset because of held bytes, and these bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_flows: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_bytes: Option<u64>,
    /// For a detached port that the service does not attach again: until what happens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detached_until: Option<&'static str>,
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
            ahead_bytes: None,
            downloads: None,
            congestion_control: None,
            incast: None,
            outstanding_flows: None,
            outstanding_bytes: None,
            held_flows: None,
            held_bytes: None,
            reset_flows: None,
            reset_bytes: None,
            detached_until: None,
            error: None,
            text: text.into(),
            warning: None,
        }
    }

    fn failed(port: &str, failure: Failure) -> Self {
        Self {
            warning: Some(failure.message.clone()),
            error: Some(failure),
            ..Self::done(port, "failed", "")
        }
    }
}

impl Failure {
    /// `netns`: the namespace of the command's ports, for its remedy.
    pub fn from_error(error: &anyhow::Error, netns: Option<&str>) -> Self {
        let exit_code = exit_code(error);
        let message = hint::in_netns(&format!("{error:#}"), netns);
        Self { kind: exit_name(exit_code), exit_code, message }
    }

    pub fn report_usage(message: &str) -> Self {
        Self { kind: exit_name(EXIT_USAGE), exit_code: EXIT_USAGE, message: message.to_owned() }
    }
}

/// Prints the document of a command that failed before it printed one.
pub fn print_failure(error: Failure) {
    #[derive(Serialize)]
    struct Document {
        error: Failure,
    }
    if has_printed() {
        return;
    }
    // A failure here is ignored: there is the exit code as well.
    let text = serde_json::to_string(&Document { error });
    let _ = text.map(|text| print_text(&text));
}

/// Runs `work` on each port, reports each, and returns the exit code: that of the first failure.
pub fn report_each(
    cli: &Cli,
    names: &[String],
    mut work: impl FnMut(&str) -> Result<Outcome>,
) -> Result<u8> {
    report_all(cli, once_each(names).into_iter().map(|name| (name.as_str(), work(name))))
}

/// Reports what came of each port, by its name, as soon as it comes; returns the exit code.
pub fn report_all<N: AsRef<str>>(
    cli: &Cli,
    results: impl Iterator<Item = (N, Result<Outcome>)>,
) -> Result<u8> {
    let (json, netns) = (cli.json, cli.netns.as_deref());
    let mut code = 0;
    let mut outcomes = Vec::new();
    for (name, result) in results {
        let outcome = result.unwrap_or_else(|error| {
            Outcome::failed(name.as_ref(), Failure::from_error(&error, netns))
        });
        if let Some(failure) = &outcome.error
            && code == 0
        {
            code = failure.exit_code;
        }
        if let Some(warning) = &outcome.warning {
            eprintln!("vsnoop: {warning}");
        }
        if !json && !outcome.text.is_empty() {
            print_text(&fold_text(&hint::in_netns(&outcome.text, netns)))?;
        }
        outcomes.push(outcome);
    }
    if json {
        #[derive(Serialize)]
        struct Document {
            ports: Vec<Outcome>,
            service_running: bool,
        }
        let document = Document { ports: outcomes, service_running: control::is_served() };
        print_text(&serde_json::to_string(&document)?)?;
    }
    Ok(code)
}
