//! The guest's kernel, from the distribution's own package.
//!
//! The package is downloaded with apt and unpacked, never installed. Debian's kernel for clouds is
//! preferred (small, quick to boot, has netem and the like as modules); Ubuntu's for virtual
//! machines and Debian's general one follow. A kernel of a certain series can be asked for too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::packages::{self, unavailable};

const META_PACKAGES: [&str; 3] =
    ["linux-image-cloud-amd64", "linux-image-virtual", "linux-image-amd64"];

/// The directory of the lab's kernel.
const OF_THE_LAB: &str = "kernel";

/// An unpacked kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub image: PathBuf,
    pub version: String,
    /// `lib/modules/VERSION` of the package.
    pub modules: PathBuf,
}

/// Returns the cached kernel of the lab's machines, or downloads one.
pub fn prepare(dir: &Path) -> Result<Kernel> {
    obtain(dir, OF_THE_LAB, &META_PACKAGES, "linux-image-")
}

/// Returns the cached kernel of a series ("6.12"), or downloads one.
///
/// A distribution has a meta package for a series only if it is not its own.
pub fn prepare_series(dir: &Path, series: &str) -> Result<Kernel> {
    // The lab's machines may have one.
    let of_the_lab = dir.join(OF_THE_LAB);
    if of_the_lab.is_dir() {
        let kernel = find(&of_the_lab)?;
        if kernel.version.starts_with(&format!("{series}.")) {
            return Ok(kernel);
        }
    }
    let own = format!("linux-image-{series}-cloud-amd64");
    let mut metas = vec![own.as_str()];
    metas.extend(META_PACKAGES);
    obtain(dir, &format!("kernel-{series}"), &metas, &format!("linux-image-{series}."))
}

fn obtain(dir: &Path, name: &str, metas: &[&str], begins: &str) -> Result<Kernel> {
    let unpacked = dir.join(name);
    if unpacked.is_dir() {
        return find(&unpacked);
    }
    let package = choose(metas, begins)?;
    println!(
        "guest kernel: downloading the package {package} (unpacked into build/guest, not installed)"
    );
    let mut wanted = vec![package.clone()];
    // Ubuntu ships the modules apart.
    let modules = package.replacen("linux-image-", "linux-modules-", 1);
    if packages::known(&modules) {
        wanted.push(modules);
    }
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    packages::unpack(&wanted, &unpacked, |staging| find(staging).map(drop))?;
    find(&unpacked)
}

/// The concrete package behind the first of the meta packages that apt knows, whose name begins so.
fn choose(metas: &[&str], begins: &str) -> Result<String> {
    for meta in metas {
        let output = Command::new("apt-cache")
            .args(["depends", "--important", meta])
            .stderr(Stdio::null())
            .output()
            .map_err(|error| {
                unavailable(format!(
                    "cannot run apt-cache ({error}): the guest's kernel needs a Debian-family machine"
                ))
            })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let image = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .find(|name| name.starts_with(begins));
        if let Some(name) = image {
            return Ok(name.to_owned());
        }
    }
    let metas = metas.join(", ");
    Err(unavailable(format!(
        "apt knows no package {begins}* behind any of {metas}: run `apt-get update` first"
    )))
}

fn find(unpacked: &Path) -> Result<Kernel> {
    let boot = unpacked.join("boot");
    let image = fs::read_dir(&boot)
        .with_context(|| format!("list {}", boot.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| name(path).starts_with("vmlinuz-"))
        .with_context(|| {
            format!("no kernel in {}: remove {} and retry", boot.display(), unpacked.display())
        })?;
    let version = name(&image).trim_start_matches("vmlinuz-").to_owned();
    let modules = [unpacked.join("lib/modules"), unpacked.join("usr/lib/modules")]
        .into_iter()
        .map(|dir| dir.join(&version))
        .find(|dir| dir.is_dir())
        .with_context(|| format!("no modules of {version} in {}", unpacked.display()))?;
    Ok(Kernel { image, version, modules })
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
