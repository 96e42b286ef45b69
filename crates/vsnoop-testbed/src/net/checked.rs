//! Commands that must succeed.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a command to its end and returns what it printed; an error carries what it complained of.
pub fn checked<I, S>(program: &str, arguments: I) -> Result<String>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    let output = command.output().with_context(|| format!("starting {program}"))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed ({}): {}", output.status, complaint.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("reading what {program} printed"))
}
