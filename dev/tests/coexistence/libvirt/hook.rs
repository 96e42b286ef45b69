//! Our hook of libvirt, for domains whose monitor is taken.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use vsnoop_testbed::topology::PORT;
use vsnoop_testbed::vsnoop::PATIENTLY;
use vsnoop_testbed::wait::wait_until;
use vsnoop_testbed::workspace;

use super::daemon::Directory;
use super::site::{DOMAIN, Domain, PATIENCE, Site, is_active};

/// The calls of `vsnoop` that the hook of a libvirtd makes.
pub struct Calls(PathBuf);

impl Calls {
    /// Installs the hook.
    pub fn install(directory: &Directory) -> Result<Self> {
        let calls = directory.0.join("calls");
        fs::copy(workspace::root()?.join("deploy/libvirt/qemu"), directory.0.join("hook"))?;
        // It runs in the host's namespace, where the port is.
        directory.program(
            "vsnoop",
            &format!(
                "#!/bin/sh\n[ \"$1\" != pause ] || set -- \"$@\" {}\n\
                 {} \"$@\"\nstatus=$?\necho \"$1 $2 $status\" >>{}\nexit $status\n",
                PATIENTLY.join(" "),
                workspace::vsnoop_command()?.display(),
                calls.display(),
            ),
        )?;
        Ok(Self(calls))
    }

    /// `VERB PORT STATUS` in each line.
    pub fn made(&self) -> String {
        fs::read_to_string(&self.0).unwrap_or_default()
    }

    pub fn until_made(&self, call: &str) -> Result<()> {
        wait_until(&format!("the hook calls: {call}"), PATIENCE, || {
            Ok(self.made().lines().any(|made| made == call))
        })
        .with_context(|| self.made())
    }

    pub fn forget(&self) -> Result<()> {
        fs::write(&self.0, "").context("forget calls")
    }
}

/// A snapshot of memory is a migration to a file, after which the VM runs on.
pub fn snapshots() -> Result<()> {
    let directory = Directory::new()?;
    let calls = Calls::install(&directory)?;
    let site = Site::new(directory)?;
    let Site { host, .. } = &site;
    let libvirt = &host.libvirt;
    site.create(&Domain::default())?;
    site.until_the_guest_serves()?;
    let vsnoop = host.vsnoop()?;
    vsnoop.attach_with(PORT, &["--no-passive"])?;
    site.exact_transfers()?;
    // libvirt names snapshots by the second.
    let snapshot = |name: &str| {
        let memory = format!("file={}/memory,snapshot=external", libvirt.path().display());
        libvirt.virsh(&["snapshot-create-as", DOMAIN, name, "--memspec", &memory])
    };
    let follower = libvirt.path().join("followers").join(DOMAIN);
    ensure!(follower.exists(), "nothing follows the domain");
    snapshot("first")?;
    calls.until_made(&format!("resume {PORT} 0"))?;
    let made = calls.made();
    ensure!(made.contains(&format!("pause {PORT} ")), "never paused: {made}");
    ensure!(is_active(&host.port()?), "{}", host.port()?);
    site.exact_transfers()?;

    // The hook does not resume a port that an operator has paused.
    vsnoop.pause_with(PORT, PATIENTLY)?;
    calls.forget()?;
    fs::remove_file(libvirt.path().join("memory"))?;
    snapshot("second")?;
    calls.until_made(&format!("status {PORT} 0"))?;
    libvirt.virsh(&["destroy", DOMAIN])?;
    wait_until("its follower has ended", PATIENCE, || Ok(!follower.exists()))?;
    let made = calls.made();
    ensure!(!made.contains("pause") && !made.contains("resume"), "{made}");
    Ok(())
}
