//! libvirtd in a namespace of a test, with files of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use vsnoop_testbed::contained::{self, Contained, Network, Sandbox};
use vsnoop_testbed::net::{Netns, check};
use vsnoop_testbed::wait::wait_until;

const PATIENCE: Duration = Duration::from_secs(120);
const SCRIPT: &str = include_str!("daemon.sh");

/// A directory that goes with all that is in it.
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new() -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("vst-libvirt-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        for part in ["bin", "run"] {
            let part = path.join(part);
            fs::create_dir_all(&part).with_context(|| format!("create {}", part.display()))?;
        }
        Ok(Self(path))
    }

    /// Writes a program of this name, which libvirt and its hooks find first.
    pub fn program(&self, name: &str, text: &str) -> Result<()> {
        let path = self.0.join("bin").join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The daemon with all that it started; they end when this is dropped.
pub struct Libvirt {
    // Declared first, to end before its files go.
    _daemon: Contained,
    directory: Directory,
}

impl Libvirt {
    /// `name`: of its host, by which another libvirtd tells it from itself.
    pub fn start(host: &Netns, name: &str, directory: Directory) -> Result<Self> {
        let path = &directory.0;
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", SCRIPT, "sh"]).arg(path).arg(name);
        let sandbox = Sandbox { network: Network::Of(host), root: None };
        let daemon = contained::start_program(&sandbox, &shell, Some(&path.join("log")))?;
        let mut libvirt = Self { _daemon: daemon, directory };
        wait_until("libvirtd answers", PATIENCE, || {
            let ended = libvirt._daemon.ended()?;
            anyhow::ensure!(ended.is_none(), "libvirtd ended: {ended:?}");
            Ok(libvirt.virsh(&["version"]).is_ok())
        })
        .with_context(|| libvirt.log())?;
        Ok(libvirt)
    }

    pub fn path(&self) -> &Path {
        &self.directory.0
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.path().join("run/libvirt/libvirt-sock")
    }

    /// Runs `virsh` with these arguments.
    pub fn virsh(&self, arguments: &[&str]) -> Result<String> {
        let uri = format!("qemu:///system?socket={}", self.socket().display());
        check(Command::new("virsh").args(["--quiet", "--connect", &uri]).args(arguments))
    }

    /// Defines a domain, and starts it.
    pub fn create(&self, name: &str, xml: &str) -> Result<()> {
        let file = self.path().join("domain.xml");
        fs::write(&file, xml).with_context(|| format!("write {}", file.display()))?;
        self.virsh(&["define", &file.to_string_lossy()]).with_context(|| self.log())?;
        self.virsh(&["start", name]).with_context(|| self.log()).map(drop)
    }

    /// Errors and warnings of the daemon.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path().join("log")).unwrap_or_default()
    }
}
