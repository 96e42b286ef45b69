//! The process behind a tap, where several hold it, or none is a VM.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use vsnoop_testbed::net::{Net, Netns, Tap, TapOptions};

use crate::hold::ConfigFile;
use crate::sandbox::{PORT, PREFIX, TapHost, vsnoop, vsnoop_in, wait_until};
use crate::service::{Service, port, ports, until_port};

pub fn trials() -> Vec<Trial> {
    trials![
        a_tap_without_a_vm_is_not_attached_unless_it_is_named,
        the_process_that_reads_a_tap_counts_and_not_the_first_that_holds_it,
    ]
}

/// A process that holds a tap as its descriptor 0; killed when dropped.
pub struct Holder(Child);

impl Holder {
    pub fn start(mut command: Command, tap: &Tap) -> Result<Self> {
        let fd = tap.as_fd().as_raw_fd();
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // SAFETY: between fork and exec there is one system call. It makes a descriptor that exec
        // does not close.
        unsafe {
            command.pre_exec(move || match libc::dup2(fd, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            })
        };
        let holder = Self(command.spawn()?);
        // A name is looked at when the holder is found.
        let path = format!("/proc/{}/comm", holder.0.id());
        wait_until("it runs its own program", || {
            let name = fs::read_to_string(&path)?;
            Ok(["sleep\n", "cat\n"].contains(&&*name))
        })?;
        Ok(holder)
    }

    fn sleeping(tap: &Tap) -> Result<Self> {
        let mut command = Command::new("sleep");
        command.arg("600");
        Self::start(command, tap)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn a_tap_without_a_vm_is_not_attached_unless_it_is_named() -> Result<()> {
    let TapHost { netns, tap } = TapHost::new("vpn")?;
    let holder = Holder::sleeping(&tap)?;
    drop(tap);
    let config =
        ConfigFile::for_netns(&netns, "[[port]]\nname = \"all\"\ninterface = \"vscli-*\"\n")?;
    let service = Service::start(&netns, Some(&config))?;
    service.until_logged(&format!("tap {PORT}: sleep (process {}) holds it", holder.0.id()))?;
    ensure!(ports(&netns)?.is_empty(), "it was attached");
    let said = vsnoop(["status", "--json"])?.json()?["service"]["no_vms"].clone();
    let reason = said[0]["reason"].as_str().unwrap_or_default();
    ensure!(said[0]["port"] == PORT && reason.contains("no vCPUs"), "{said}");
    let text = vsnoop(["status"])?.ok()?.unfolded();
    ensure!(text.contains("the service leaves it alone: sleep"), "{text}");
    let verdict = vsnoop_in(netns.name(), ["doctor", PORT, "--measure", "0.1"])?.unfolded();
    ensure!(verdict.contains("left alone: sleep"), "{verdict}");
    let checked = vsnoop_in(netns.name(), ["check", &config.path])?.ok()?.unfolded();
    ensure!(checked.contains("the service would leave it alone: sleep"), "{checked}");
    config.write(&format!("[[port]]\nname = \"this\"\ninterface = \"{PORT}\"\n"))?;
    vsnoop(["reload"])?.ok()?;
    until_port(&netns, "it is attached, as it is named", |port| port["table"] == "this")?;
    config.write("[[port]]\nname = \"all\"\ninterface = \"vscli-*\"\n")?;
    service.signal(Signal::SIGHUP)?;
    service.end(Signal::SIGTERM)?;
    drop(holder);
    vsnoop(["off", "--all"])?.ok().map(drop)
}

/// A manager keeps a descriptor, as systemd-networkd does with KeepCarrier=.
fn the_process_that_reads_a_tap_counts_and_not_the_first_that_holds_it() -> Result<()> {
    let netns: Netns = Net::new(PREFIX).host("reads")?;
    let tap = netns.tap(PORT, &TapOptions { nonblocking: false, ..TapOptions::default() })?;
    netns.up(PORT)?;
    let manager = Holder::sleeping(&tap)?;
    let reader = Holder::start(Command::new("cat"), &tap)?;
    drop(tap);
    ensure!(manager.0.id() < reader.0.id(), "process ids have wrapped: run the test again");
    vsnoop_in(netns.name(), ["attach", PORT])?.ok()?;
    let behind = || Ok::<_, anyhow::Error>(port(&netns)?["process"]["pid"].clone());
    wait_until("the reader counts", || Ok(behind()? == reader.0.id()))?;
    // One that is stopped while it works on a frame waits for nothing: it is stopped again.
    wait_until("the stopped reader counts", || {
        let _stopped = vsnoop_testbed::process::Stopped::process(reader.0.id() as i32)?;
        Ok(behind()? == reader.0.id())
    })?;
    drop(manager);
    vsnoop_in(netns.name(), ["detach", PORT])?.ok().map(drop)
}
