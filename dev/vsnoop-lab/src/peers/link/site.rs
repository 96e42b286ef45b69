//! The place of one carrier on two hosts: its ports, devices, addresses, files and processes.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use vsnoop_testbed::hosts::Network;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::session::Session;
use vsnoop_testbed::workspace;

use super::super::Daemon;
use super::ends::Ends;
use super::process::Processes;
use super::side::HostSide;

/// Ports of a carrier beyond its first: where a server of the lab listens, and where a forwarding
/// carrier waits for its client.
pub(super) const SERVER: u16 = 1;
pub(super) const FORWARD: u16 = 2;

const FIRST_PORT: u16 = 20_000;
const PORTS_EACH: u16 = 10;
/// The longest wait for a tunnel, which makes and exchanges keys before it carries frames.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
const PREFIX_LENGTH: u8 = 24;

#[derive(Debug)]
pub struct Site<'a> {
    pub hosts: &'a Network,
    session: &'a mut Session,
    dir: PathBuf,
    number: u8,
    processes: Processes,
}

impl<'a> Site<'a> {
    /// `number` tells carriers on the same hosts apart; files are in the session's scratch
    /// directory.
    pub fn new(hosts: &'a Network, session: &'a mut Session, number: u8) -> Result<Self> {
        let dir = session.scratch().join(format!("link{number}"));
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        Ok(Self { hosts, session, dir, number, processes: Processes::default() })
    }

    pub fn host(&self, side: HostSide) -> &'a Arc<Netns> {
        &self.hosts.hosts[side as usize].netns
    }

    /// The guest that a bridge of the host joins to the path.
    pub fn guest(&self, side: HostSide) -> &'a Arc<Netns> {
        &self.hosts.hosts[side as usize].vms[0]
    }

    /// The number of this carrier, which no other on the same hosts has.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// The first of its ports, the same on both hosts.
    pub fn port(&self) -> u16 {
        FIRST_PORT + u16::from(self.number) * PORTS_EACH
    }

    /// The device of its end; no other end on either host is called so.
    pub fn device(&self, side: HostSide) -> String {
        format!("vsl{}{}", self.number, side.name())
    }

    /// The address of its end.
    pub fn overlay(&self, side: HostSide) -> Ipv4Addr {
        Ipv4Addr::new(10, 91, self.number, side.number())
    }

    /// A shell on a host, in the carrier's directory. carriers.toml says what its variables are.
    pub fn shell(&self, side: HostSide, script: &str) -> Command {
        let mut command = self.host(side).command("sh");
        // Programs refuse keys that others may read.
        command.args(["-euc", &format!("umask 077\n{script}")]).current_dir(&self.dir);
        command.env("PATH", std::env::join_paths(program_dirs()).unwrap_or_default());
        command.env("side", side.name()).env("other", side.other().name());
        command.env("local", side.address().to_string());
        command.env("remote", side.other().address().to_string());
        command.env("path", self.hosts.outer_device());
        command.env("port", self.port().to_string()).env("number", self.number.to_string());
        command
    }

    /// Starts a program on a host, and waits until it listens on these TCP ports.
    pub fn start(&mut self, side: HostSide, command: Command, ports: &[u16]) -> Result<()> {
        let log = self.dir.join(format!("{}.{}.log", side.name(), self.processes.count()));
        let daemon = Daemon::start(command, self.host(side), ports, &log)?;
        self.session.note_process(daemon.pid())?;
        self.processes.push(daemon);
        Ok(())
    }

    /// Waits for the devices that its programs make, gives them their addresses, and sets them up.
    pub fn tunnel(&mut self, devices: [String; 2]) -> Result<Ends> {
        for side in HostSide::BOTH {
            let (host, device) = (self.host(side), &devices[side as usize]);
            let made = until_ready(&mut self.processes, &format!("device {device}"), || {
                Ok(host.ip(&format!("link show {device}")).is_ok())
            });
            made.with_context(|| self.logs())?;
            host.add_address(device, self.overlay(side).into(), PREFIX_LENGTH)?;
            host.up(device)?;
        }
        let [a, b] = HostSide::BOTH;
        let ends = Ends::new(self.host(a), self.host(b), self.overlay(b));
        Ok(Ends { devices: Some(devices), ..ends })
    }

    /// Waits until `ready` returns true; an error when a program of the carrier ends, or after
    /// [`READY_TIMEOUT`].
    pub fn until(&mut self, what: &str, ready: impl FnMut() -> Result<bool>) -> Result<()> {
        let ready = until_ready(&mut self.processes, what, ready);
        ready.with_context(|| self.logs())
    }

    pub(super) fn into_processes(self) -> Processes {
        self.processes
    }

    /// Sets the default congestion control of both hosts.
    pub fn set_congestion_control(&mut self, name: &str) -> Result<()> {
        self.session.allow_congestion_control(name)?;
        for side in HostSide::BOTH {
            self.host(side).set_sysctl("net.ipv4.tcp_congestion_control", name)?;
        }
        Ok(())
    }

    /// The last line of each of its programs' logs.
    fn logs(&self) -> String {
        let mut text = String::new();
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "log")
                && let Ok(log) = fs::read_to_string(&path)
                && let Some(last) = log.trim().lines().last()
            {
                text += &format!("{} ", last.trim());
            }
        }
        format!("its programs say: {}", text.trim())
    }
}

/// Waits until `ready` returns true; an error when a program ends, or after [`READY_TIMEOUT`].
fn until_ready(
    processes: &mut Processes,
    what: &str,
    mut ready: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + READY_TIMEOUT;
    while !ready()? {
        interrupt::check()?;
        processes.check().with_context(|| format!("while it was waited for {what}"))?;
        if Instant::now() > deadline {
            bail!("there was no {what} within {} s", READY_TIMEOUT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Where programs are: those that scripts/peers.sh has built, and those of packages.
fn program_dirs() -> impl Iterator<Item = PathBuf> {
    let built = workspace::root().map(|root| root.join("build/peers/bin"));
    let packaged = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from);
    built.into_iter().chain(packaged)
}

/// Fails if a program is missing.
pub(super) fn require(name: &str) -> Result<()> {
    let is_there = program_dirs().any(|dir| dir.join(name).is_file());
    ensure!(is_there, "{name} is missing: run scripts/peers.sh");
    Ok(())
}
