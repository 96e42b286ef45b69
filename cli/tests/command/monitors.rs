//! QMP monitors that belong to another user, as QEMU's do where libvirt runs it as `libvirt-qemu`.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Group};
use serde_json::{Value, json};

use crate::hold::ConfigFile;
use crate::metrics::{Scraped, until_scraped};
use crate::migration::{Qemu, is_active, is_paused_for_migration};
use crate::sandbox::{PORT, TapHost, wait_until};
use crate::service::{Service, until_port};

/// The user and the group without rights.
const OTHER: u32 = 65534;

pub fn trials() -> Vec<Trial> {
    trials![
        a_monitor_of_another_user_is_followed_once_its_group_is_the_services,
        a_monitor_is_in_status_and_metrics_as_long_as_it_cannot_be_used,
    ]
}

/// Gives a path, and what is there, to another user.
fn give(path: &Path, mode: u32) -> Result<()> {
    chown(path, Some(OTHER), Some(OTHER))?;
    Ok(fs::set_permissions(path, Permissions::from_mode(mode))?)
}

fn a_monitor_of_another_user_is_followed_once_its_group_is_the_services() -> Result<()> {
    let host = TapHost::new("alien")?;
    let qemu = Qemu::start("alien", "running")?;
    let monitor = qemu.path();
    give(monitor.parent().context("it is in a directory")?, 0o750)?;
    let config = ConfigFile::new(&host, &format!("[[port]]\n{}", qemu.key()))?;
    let group = Group::from_gid(Gid::from_raw(OTHER))?.context("this system has no such group")?;
    let unit = format!("SupplementaryGroups={})", group.name);
    // As systemd starts a service of root with this line in its unit.
    let serve = |groups: &str| {
        let mut setpriv = Command::new("setpriv");
        let command = Service::command(&host.netns, Some(&config));
        setpriv.arg(format!("--groups={groups}"));
        setpriv.arg(command.get_program()).args(command.get_args());
        Service::run(setpriv, &host.netns)
    };
    let more = format!("let its group {} write to it, and add", group.name);
    for (mode, remedy) in [(0o600, more.as_str()), (0o660, "another user: add its group")] {
        give(monitor, mode)?;
        let service = serve("0")?;
        service.until_logged("the service may not write to it")?;
        let log = service.log()?;
        ensure!(log.contains(remedy) && log.contains(&unit), "mode {mode:o}: {log}");
        until_port(&host.netns, "the tap is attached all the same", is_active)?;
        service.end(Signal::SIGTERM)?;
    }
    let service = serve(&format!("0,{OTHER}"))?;
    qemu.until_followed()?;
    qemu.say(&["setup"])?;
    until_port(&host.netns, "the port is paused", is_paused_for_migration)?;
    qemu.say(&["cancelled"])?;
    until_port(&host.netns, "the port goes on", is_active)?;
    service.end(Signal::SIGTERM)?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn a_monitor_is_in_status_and_metrics_as_long_as_it_cannot_be_used() -> Result<()> {
    let host = TapHost::new("unusable")?;
    let qemu = Qemu::start("unusable", "running")?;
    let path = qemu.path();
    give(path, 0o600)?;
    let config = ConfigFile::new(&host, &format!("[[port]]\n{}", qemu.key()))?;
    let service = Service::start(&host.netns, Some(&config))?;
    let failed = || -> Result<Value> {
        Ok(host.vsnoop(["status", "--service", "--json"])?.json()?["failed_monitors"].take())
    };
    let is_metric = |value: f64| {
        move |scraped: &Scraped| scraped.value("vsnoop_failed_monitors", &[]) == Some(value)
    };
    let line = format!("QMP monitor {}: the service may not write to it", path.display());
    let is_said = || -> Result<bool> { Ok(host.vsnoop(["status"])?.unfolded().contains(&line)) };
    wait_until(
        "status has the monitor",
        || Ok(failed()?[0]["path"] == path.display().to_string()),
    )?;
    let reason = failed()?[0]["reason"].to_string();
    ensure!(reason.contains("SupplementaryGroups="), "{reason}");
    ensure!(is_said()?, "status does not say: {line}");
    until_scraped(&host.netns, "one monitor cannot be used", is_metric(1.0))?;
    chown(path, Some(0), Some(0))?;
    qemu.until_followed()?;
    wait_until("status has it no more", || Ok(failed()? == json!([]) && !is_said()?))?;
    until_scraped(&host.netns, "all monitors can be used", is_metric(0.0))?;
    service.end(Signal::SIGTERM)?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}
