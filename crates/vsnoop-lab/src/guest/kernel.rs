//! The guest's kernel, from the distribution's own package.
//!
//! The package is downloaded with apt and unpacked, never installed. Debian's kernel for clouds is
//! preferred (small, quick to boot, has netem and the like as modules); Ubuntu's for virtual
//! machines and Debian's general one follow.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

const META_PACKAGES: [&str; 3] =
    ["linux-image-cloud-amd64", "linux-image-virtual", "linux-image-amd64"];

/// An unpacked kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub image: PathBuf,
    pub version: String,
    /// `lib/modules/VERSION` of the package.
    pub modules: PathBuf,
}

/// Returns the cached kernel, or downloads one.
pub fn prepare(dir: &Path) -> Result<Kernel> {
    let unpacked = dir.join("kernel");
    if unpacked.is_dir() {
        return find(&unpacked);
    }
    let package = choose()?;
    println!(
        "guest kernel: downloading the package {package} (unpacked into build/guest, not installed)"
    );
    let staging = dir.join("kernel.partial");
    if staging.exists() {
        fs::remove_dir_all(&staging).with_context(|| format!("remove {}", staging.display()))?;
    }
    let debs = staging.join("debs");
    fs::create_dir_all(&debs).with_context(|| format!("create {}", debs.display()))?;
    let mut wanted = vec![package.clone()];
    // Ubuntu ships the modules apart.
    let modules = package.replacen("linux-image-", "linux-modules-", 1);
    if known(&modules) {
        wanted.push(modules);
    }
    let status = Command::new("apt-get")
        .args(["-o", "APT::Sandbox::User=root", "-qq", "download"])
        .args(&wanted)
        .current_dir(&debs)
        .status()
        .context("run apt-get")?;
    ensure!(
        status.success(),
        "apt-get could not download {}: is there a network?",
        wanted.join(", ")
    );
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
    find(&staging)?;
    fs::rename(&staging, &unpacked).context("put the kernel into its place")?;
    find(&unpacked)
}

/// The concrete package behind the first of the meta packages that apt knows.
fn choose() -> Result<String> {
    for meta in META_PACKAGES {
        let output = Command::new("apt-cache")
            .args(["depends", "--important", meta])
            .stderr(Stdio::null())
            .output()
            .context("run apt-cache: the guest's kernel needs a Debian-family machine")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let image = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .find(|name| name.starts_with("linux-image-"));
        if let Some(name) = image {
            return Ok(name.to_owned());
        }
    }
    bail!("apt knows none of {}: run `apt-get update` first", META_PACKAGES.join(", "))
}

fn known(package: &str) -> bool {
    Command::new("apt-cache")
        .args(["show", package])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
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
