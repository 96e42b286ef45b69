//! The `vsnoop` command as an operator would call it.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::workspace;

/// The command, perhaps for ports in another network namespace.
#[derive(Clone, Debug)]
pub struct Vsnoop {
    program: PathBuf,
    netns: Option<String>,
}

impl Vsnoop {
    pub fn find() -> Result<Self> {
        Ok(Self { program: workspace::vsnoop_command()?, netns: None })
    }

    pub fn in_netns(&self, name: &str) -> Self {
        Self { program: self.program.clone(), netns: Some(name.to_owned()) }
    }

    pub fn attach(&self, port: &str) -> Result<()> {
        self.attach_with(port, &[])
    }

    /// Attaches with further options of the command.
    pub fn attach_with(&self, port: &str, options: &[&str]) -> Result<()> {
        self.run(&[&["attach", port], options].concat()).map(drop)
    }

    /// Leaves all to the VM.
    pub fn pause(&self, port: &str) -> Result<()> {
        self.run(&["pause", port]).map(drop)
    }

    pub fn detach(&self, port: &str) -> Result<()> {
        self.run(&["detach", port]).map(drop)
    }

    /// The output of `vsnoop status PORT --json`.
    pub fn status(&self, port: &str) -> Result<Value> {
        let text = self.run(&["status", port, "--json"])?;
        serde_json::from_str(&text).context("vsnoop status did not print JSON")
    }

    /// The output of `vsnoop stats PORT --json`.
    pub fn stats(&self, port: &str) -> Result<Value> {
        let text = self.run(&["stats", port, "--json"])?;
        serde_json::from_str(&text).context("vsnoop stats did not print JSON")
    }

    /// The output of `vsnoop flows PORT --json`.
    pub fn flows(&self, port: &str) -> Result<Value> {
        let text = self.run(&["flows", port, "--json"])?;
        serde_json::from_str(&text).context("vsnoop flows did not print JSON")
    }

    pub fn version(&self) -> Result<String> {
        Ok(self.run(&["--version"])?.trim().to_owned())
    }

    fn run(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        if let Some(netns) = &self.netns {
            command.args(["--netns", netns]);
        }
        let output = command
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("run {}", self.program.display()))?;
        if !output.status.success() {
            bail!(
                "vsnoop {} failed ({}): {}",
                arguments.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        String::from_utf8(output.stdout).context("vsnoop printed something that is not text")
    }
}
