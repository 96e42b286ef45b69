//! Commands that must succeed.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a command to its end and returns its output; an error has its stderr.
pub fn checked<I, S>(program: impl AsRef<OsStr>, arguments: I) -> Result<String>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    check(Command::new(program).args(arguments))
}

/// Like [`checked`], for a command with its arguments.
pub fn check(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("starting {:?}", command.get_program()))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed ({}): {}", output.status, complaint.trim());
    }
    let text = String::from_utf8(output.stdout);
    text.with_context(|| format!("reading what {:?} printed", command.get_program()))
}
