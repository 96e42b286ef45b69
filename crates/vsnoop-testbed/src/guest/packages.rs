//! Packages of the distribution, downloaded with apt and unpacked, never installed.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Error, Result, ensure};

/// This package is not available on this machine.
#[derive(Debug)]
pub struct Unavailable(String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

pub(super) fn unavailable(reason: impl Into<String>) -> Error {
    Unavailable(reason.into()).into()
}

/// Does apt know a package of this name?
pub fn known(package: &str) -> bool {
    Command::new("apt-cache")
        .args(["show", package])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Downloads packages and unpacks them all into the new directory `to`. It appears at once, and
/// only if `check` finds in it what is needed.
pub fn unpack(packages: &[&str], to: &Path, check: impl Fn(&Path) -> Result<()>) -> Result<()> {
    let staging = to.with_extension("partial");
    if staging.exists() {
        fs::remove_dir_all(&staging).with_context(|| format!("remove {}", staging.display()))?;
    }
    let debs = staging.join("debs");
    fs::create_dir_all(&debs).with_context(|| format!("create {}", debs.display()))?;
    let status = Command::new("apt-get")
        .args(["-o", "APT::Sandbox::User=root", "-qq", "download"])
        .args(packages)
        .current_dir(&debs)
        .status()
        .context("run apt-get")?;
    if !status.success() {
        let packages = packages.join(", ");
        return Err(unavailable(format!(
            "apt-get could not download {packages}: is there a network?"
        )));
    }
    for entry in fs::read_dir(&debs).context("list the downloaded packages")? {
        let path = entry.context("list the downloaded packages")?.path();
        let status = Command::new("dpkg-deb")
            .arg("-x")
            .args([&path, &staging])
            .status()
            .context("run dpkg-deb")?;
        ensure!(status.success(), "dpkg-deb could not unpack {}", path.display());
    }
    // Packages and documentation are no longer needed.
    fs::remove_dir_all(&debs).context("remove the downloaded packages")?;
    let _ = fs::remove_dir_all(staging.join("usr/share"));
    check(&staging)?;
    fs::rename(&staging, to).with_context(|| format!("rename to {}", to.display()))
}
