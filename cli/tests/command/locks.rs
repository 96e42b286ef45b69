//! Locks are root's: another user cannot hold one, so as to stop commands, helper or engine.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;

use crate::hold::ConfigFile;
use crate::sandbox::{PINS, PORT, TapHost, running, running_helper};
use crate::service::Service;

const LOCKS: &str = "/run/vsnoop";

pub fn trials() -> Vec<Trial> {
    trials![another_user_can_hold_no_lock]
}

/// Can a user without rights open it to read? That is enough for its lock.
fn can_be_opened(path: &Path) -> Result<bool> {
    let mut open = Command::new("setpriv");
    open.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", "exec 3<\"$0\""]);
    let open = open.arg(path).stderr(Stdio::null()).status().context("setpriv")?;
    Ok(open.success())
}

fn are_closed(paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        ensure!(path.exists(), "{} is not there", path.display());
        ensure!(!can_be_opened(path)?, "others can open {}", path.display());
    }
    Ok(())
}

/// Also where an earlier version has left them open.
fn another_user_can_hold_no_lock() -> Result<()> {
    let [host, other] = [TapHost::new("locks")?, TapHost::new("locks2")?];
    ensure!(can_be_opened(Path::new(LOCKS))?, "a user can open nothing");
    let config = ConfigFile::new(&host, "[[port]]\ninterface = \"other\"\n")?;
    let service = Service::start(&host.netns, Some(&config))?;
    host.vsnoop(["attach", PORT])?.ok()?;
    running_helper()?;
    running("engine")?;
    let roles = ["command", "helper", "engine", "service"];
    let locks = roles.map(|role| Path::new(LOCKS).join(format!("{role}.lock")));
    let pins = [PathBuf::from(PINS), host.pins()?, host.pins()?.join("memory")];
    are_closed(&locks)?;
    are_closed(&pins)?;

    fs::set_permissions(&locks[0], Permissions::from_mode(0o644))?;
    fs::set_permissions(&pins[0], Permissions::from_mode(0o755))?;
    other.vsnoop(["attach", PORT])?.ok()?;
    are_closed(&locks)?;
    are_closed(&pins)?;
    are_closed(&[other.pins()?])?;
    other.vsnoop(["detach", PORT])?.ok()?;
    host.vsnoop(["detach", PORT])?.ok()?;
    service.end(Signal::SIGTERM)
}
