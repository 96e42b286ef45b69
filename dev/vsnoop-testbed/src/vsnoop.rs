//! The `vsnoop` command as an operator would call it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::Pid;
use serde_json::Value;

use crate::place::Place;
use crate::workspace;

/// Options of `pause` and `detach`: on a busy machine a VM may take longer than the default.
pub const PATIENTLY: &[&str] = &["--timeout", "600"];

/// The command, perhaps for ports in another network namespace, perhaps in a [`Place`].
#[derive(Clone, Debug)]
pub struct Vsnoop {
    program: PathBuf,
    netns: Option<String>,
    /// The mount namespace of a place.
    mounts: Option<PathBuf>,
}

/// `vsnoop run`; it is killed when it is dropped, and leaves its ports as they are.
#[derive(Debug)]
pub struct Service(Child);

impl Service {
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id() as i32)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Vsnoop {
    pub fn find() -> Result<Self> {
        Ok(Self { program: workspace::vsnoop_command()?, netns: None, mounts: None })
    }

    pub fn in_netns(&self, name: &str) -> Self {
        Self { netns: Some(name.to_owned()), ..self.clone() }
    }

    /// With the ports, the service, the helper and the engine of the place.
    pub fn in_place(&self, place: &Place) -> Self {
        Self { mounts: Some(place.mounts()), ..self.clone() }
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
        self.pause_with(port, &[])
    }

    /// Pauses with further options of the command.
    pub fn pause_with(&self, port: &str, options: &[&str]) -> Result<()> {
        self.run(&[&["pause", port], options].concat()).map(drop)
    }

    /// Takes it off.
    pub fn detach(&self, port: &str) -> Result<()> {
        self.detach_with(port, &[])
    }

    /// Detaches with further options of the command.
    pub fn detach_with(&self, port: &str, options: &[&str]) -> Result<()> {
        self.run(&[&["detach", port], options].concat()).map(drop)
    }

    /// All ports, for a while: of ports that are named a service leaves off what it had attached.
    pub fn detach_all(&self) -> Result<()> {
        self.run(&["detach", "--all"]).map(drop)
    }

    /// The output of `vsnoop status PORT --json`.
    pub fn status(&self, port: &str) -> Result<Value> {
        let text = self.run(&["status", port, "--json"])?;
        serde_json::from_str(&text).context("vsnoop status did not print JSON")
    }

    /// Returns the status of all ports of the host.
    pub fn status_of_all(&self) -> Result<Value> {
        let text = self.run(&["status", "--json"])?;
        serde_json::from_str(&text).context("vsnoop status did not print JSON")
    }

    /// Fails if the port is attached without downloads: `attach` only warns if the host cannot.
    pub fn require_downloads(&self, port: &str) -> Result<()> {
        let has = self.status(port)?["ports"][0]["downloads"] == true;
        ensure!(has, "downloads stay off: see `vsnoop doctor`");
        Ok(())
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

    /// Starts `vsnoop run` with this configuration in its ports' namespace; it logs to `log`.
    pub fn serve(&self, config: &Path, log: &Path) -> Result<Service> {
        let log = File::create(log).with_context(|| format!("create {}", log.display()))?;
        let child = self
            .command()
            .arg("--config")
            .arg(config)
            .arg("run")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("run {}", self.program.display()))?;
        Ok(Service(child))
    }

    pub fn version(&self) -> Result<String> {
        Ok(self.run(&["--version"])?.trim().to_owned())
    }

    /// A command to which the caller adds what it does.
    pub fn command(&self) -> Command {
        let mut command = match &self.mounts {
            None => Command::new(&self.program),
            Some(mounts) => {
                let mut command = Command::new("nsenter");
                // Without `--wd` it would begin in `/`.
                command.arg(format!("--mount={}", mounts.display())).args(["--wd=.", "--"]);
                command.arg(&self.program);
                command
            }
        };
        if let Some(netns) = &self.netns {
            command.args(["--netns", netns]);
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> Result<String> {
        let output = self
            .command()
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
