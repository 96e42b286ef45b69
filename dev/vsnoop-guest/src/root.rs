//! The root file system on the disk, which all machines of a kind share.
//!
//! The disk is mounted read-only below a file system in memory, which takes all changes; this
//! process and all that it starts live in the sum of both.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use vsnoop_guest::control::DISK_PARAMETER;

const DEVICE: &str = "/dev/vda";
const DISK: &str = "/disk";
const CHANGES: &str = "/changes";
const ROOT: &str = "/root";

/// Changes into it; without the parameter on the kernel's command line the initramfs stays.
pub fn enter() -> Result<()> {
    let command_line = fs::read_to_string("/proc/cmdline").context("read /proc/cmdline")?;
    if !command_line.split_whitespace().any(|word| word == DISK_PARAMETER) {
        return Ok(());
    }
    attach(Some(DEVICE), DISK, Some("ext4"), MsFlags::MS_RDONLY, None)?;
    attach(Some("tmpfs"), CHANGES, Some("tmpfs"), MsFlags::empty(), Some("size=90%"))?;
    let [upper, work] = ["upper", "work"].map(|name| Path::new(CHANGES).join(name));
    for directory in [&upper, &work] {
        fs::create_dir(directory).with_context(|| format!("create {}", directory.display()))?;
    }
    let layers = format!("lowerdir={DISK},upperdir={},workdir={}", upper.display(), work.display());
    attach(Some("overlay"), ROOT, Some("overlay"), MsFlags::empty(), Some(&layers))?;
    for name in ["/proc", "/sys", "/dev"] {
        attach(Some(name), &format!("{ROOT}{name}"), None, MsFlags::MS_MOVE, None)?;
    }
    nix::unistd::chroot(ROOT).context("make it the root")?;
    nix::unistd::chdir("/").context("enter the root")?;
    attach(Some("devpts"), "/dev/pts", Some("devpts"), MsFlags::empty(), None)?;
    for directory in ["/dev/shm", "/run", "/tmp"] {
        attach(Some("tmpfs"), directory, Some("tmpfs"), MsFlags::empty(), Some("mode=1777"))?;
    }
    Ok(())
}

fn attach(
    source: Option<&str>,
    target: &str,
    kind: Option<&str>,
    flags: MsFlags,
    data: Option<&str>,
) -> Result<()> {
    fs::create_dir_all(target).with_context(|| format!("create {target}"))?;
    mount(source, target, kind, flags, data)
        .with_context(|| format!("mount {} on {target}", source.unwrap_or_default()))
}
