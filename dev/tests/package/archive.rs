//! The archive: its program runs where there is no other file.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use vsnoop_testbed::workspace;

use crate::Scratch;

/// A root of a file system with the archive alone; what the kernel has; a tap. In namespaces of its
/// own, which end with it.
const SCRIPT: &str = r#"
set -eu
root=$1 v="chroot $1 /usr/local/sbin/vsnoop"
mkdir "$root/proc" "$root/sys" "$root/dev" "$root/run"
mount --rbind /sys "$root/sys"
mount -t bpf bpf "$root/sys/fs/bpf"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
ip link set lo up
ip tuntap add vst-tap mode tap
ip link set vst-tap up
$v attach vst-tap
$v status --json
$v detach vst-tap
"#;

pub fn runs_without_any_library() -> Result<()> {
    let root = workspace::root()?;
    let made = Command::new("make").args(["--silent", "tarball"]).current_dir(&root).output()?;
    let said = String::from_utf8_lossy(&made.stdout);
    ensure!(made.status.success(), "{said}{}", String::from_utf8_lossy(&made.stderr));
    let archive = said.lines().find_map(|line| line.strip_prefix("tarball: "));
    let archive = root.join(archive.with_context(|| format!("it names no archive: {said}"))?);
    let scratch = Scratch::make("archive")?;
    let unpacked = scratch.0.join("archive");
    fs::create_dir_all(&unpacked)?;
    let unpacked = path(&unpacked)?;
    run("tar", &["-xJf", path(&archive)?, "-C", unpacked, "--strip-components=1"])?;
    let namespaces = ["-mnpf", "--mount-proc", "--kill-child", "--propagation", "private"];
    let script = ["sh", "-c", SCRIPT, "sh", unpacked];
    let said = run("unshare", &[&namespaces[..], &script[..]].concat())?;
    ensure!(said.contains("vst-tap: attached"), "{said}");
    ensure!(said.contains("vst-tap: detached"), "{said}");
    Ok(())
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("a path in UTF-8")
}

fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    Ok(said.into_owned())
}
