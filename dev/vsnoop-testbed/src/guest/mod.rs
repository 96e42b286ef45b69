//! The guest: a distribution's kernel and an initramfs with one static program of our own.
//!
//! Nothing is installed: the kernel package is downloaded and unpacked into the build directory
//! ([`kernel`]), the few modules that are needed are taken from it in the order of their
//! dependencies ([`modules`]), and an [`archive`] is written around our init ([`initramfs`]). All
//! steps are safe to repeat and do only what is missing. A guest that runs services has a root file
//! system of packages on a disk ([`System`]), into which our init changes.
//!
//! Apart from that, [`batch`] boots any kernel to run programs of this host under it, and
//! [`systemd`] a system as a distribution boots it.

mod archive;
pub mod batch;
mod emulator;
mod initramfs;
mod kernel;
mod modules;
mod packages;
mod system;
pub mod systemd;
mod user_mode;
mod web;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::fcntl::Flock;

use crate::{lock, workspace};

pub use archive::installed;
pub use initramfs::Options;
pub use kernel::Kernel;
pub use packages::Unavailable;
pub use system::{Made, System};
pub use user_mode::UserModeImage;

/// Kernels that have tcx and can be booted from packages of Debian (11/2026: 6.12 is that of Debian
/// 13; its backports have the others, and 6.19, 7.0 and 7.1 without their modules).
pub const KERNEL_SERIES: [&str; 6] = [OLDEST_SERIES, "6.16", "6.17", "6.18", "7.2", "7.3"];
pub const OLDEST_SERIES: &str = "6.12";

/// Each guest boots with it. An emulated machine on a busy host may get no timer interrupt while
/// the kernel tests whether there are any, and would panic (`no_timer_check`).
pub const KERNEL_COMMAND_LINE: &str = "console=ttyS0 panic=-1 quiet no_timer_check";

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Kernel, file systems and memory of a VM.
#[derive(Clone, Debug)]
pub struct Image {
    pub kernel: PathBuf,
    pub kernel_version: String,
    pub initramfs: PathBuf,
    /// Its root file system, which is not written; without one the initramfs stays the root.
    pub disk: Option<PathBuf>,
    pub memory_mb: u32,
}

/// A machine that runs services, and where their clients run.
#[derive(Clone, Debug)]
pub struct SystemImage {
    pub image: Image,
    /// A directory of the host has the same packages.
    pub tree: PathBuf,
}

/// Memory of a machine without a disk.
const MEMORY_MB: u32 = 160;

/// Makes what is missing and returns the image.
pub fn prepare(options: Options) -> Result<Image> {
    if cfg!(not(target_arch = "x86_64")) {
        bail!("the lab's guests are x86_64 machines and need a host of that kind");
    }
    let dir = build_dir()?;
    let _lock = lock(&dir)?;
    let kernel = kernel::prepare(&dir).context("prepare the guest's kernel")?;
    let init = build_init().context("build the guest's init")?;
    let initramfs = dir.join(options.file_name());
    initramfs::write(&initramfs, &dir, &kernel, &init, options)
        .with_context(|| format!("write {}", initramfs.display()))?;
    let (image, kernel_version) = (kernel.image, kernel.version);
    Ok(Image { kernel: image, kernel_version, initramfs, disk: None, memory_mb: MEMORY_MB })
}

/// Makes what is missing of a guest that is a process (User Mode Linux); an error that is
/// [`Unavailable`] if there is no such kernel.
pub fn prepare_user_mode() -> Result<UserModeImage> {
    let dir = build_dir()?;
    let _lock = lock(&dir)?;
    // First: where there is none, no init is needed.
    let kernel = user_mode::prepare(&dir)?;
    let init = build_init().context("build the guest's init")?;
    let initramfs = dir.join("initramfs-user-mode.cpio");
    initramfs::write_bare(&initramfs, &init)
        .with_context(|| format!("write {}", initramfs.display()))?;
    Ok(UserModeImage { kernel, initramfs })
}

/// Makes what is missing of a machine with this system.
pub fn prepare_system(system: &System) -> Result<SystemImage> {
    let image = prepare(Options { disk: true, ..Options::default() })?;
    let made = make_system(&build_dir()?, system)?;
    let image = Image { disk: Some(made.disk), memory_mb: system.memory_mb, ..image };
    Ok(SystemImage { image, tree: made.tree })
}

/// Makes what is missing of a system in this directory.
pub fn make_system(dir: &Path, system: &System) -> Result<Made> {
    let _lock = lock(dir)?;
    system::prepare(dir, system)
}

/// Makes what the tests of this crate boot, which need no network then; they need QEMU, too
/// ([`crate::vm::require_qemu`]).
pub fn prepare_for_tests() -> Result<()> {
    prepare(Options { firewall: true, dctcp: true, ..Options::default() })?;
    prepare(Options { firewall: true, tools: true, ..Options::default() })?;
    match prepare_user_mode() {
        Err(error) if error.is::<Unavailable>() => println!("guest kernel: {error:#}"),
        other => drop(other?),
    }
    prepare_system(&System::for_tests())?;
    for series in KERNEL_SERIES {
        match kernel_of_series(series) {
            Err(error) if error.is::<Unavailable>() => println!("guest kernel: {error:#}"),
            other => drop(other?),
        }
    }
    Ok(())
}

/// The newest kernel of a series ("6.12") that Debian has, or an error that is [`Unavailable`] if
/// there is none.
pub fn kernel_of_series(series: &str) -> Result<Kernel> {
    let dir = build_dir()?;
    let _lock = lock(&dir)?;
    kernel::prepare_series(&dir, series).with_context(|| format!("prepare a kernel {series}"))
}

/// Images are made in `dir` by one process at a time, while the lock lives.
fn lock(dir: &Path) -> Result<Flock<File>> {
    lock::wait_for(&dir.join("lock"), "another run builds the guest")
}

/// [`make_system`] where all images are.
pub fn make_system_of_build(system: &System) -> Result<Made> {
    make_system(&build_dir()?, system)
}

fn build_dir() -> Result<PathBuf> {
    let dir = workspace::build_dir()?;
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    Ok(dir)
}

/// A static build, apart from the ordinary target directory because its flags differ.
fn build_init() -> Result<PathBuf> {
    let root = workspace::root()?;
    let target_dir = root.join("target").join("guest");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(&root)
        .args(["build", "--quiet", "--release", "-p", "vsnoop-guest", "--target", TARGET])
        .arg("--target-dir")
        .arg(&target_dir)
        .env("RUSTFLAGS", "-C target-feature=+crt-static -C strip=symbols")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .status()
        .context("run cargo (is the Rust toolchain in PATH?)")?;
    if !status.success() {
        bail!("cargo could not build vsnoop-guest ({status})");
    }
    Ok(target_dir.join(TARGET).join("release").join("vsnoop-guest"))
}
