//! The place of one carrier on two hosts: its ports, devices, addresses, files and processes.

use std::ffi::OsStr;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
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

    /// A file of its own.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path(name);
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        // Programs refuse keys that others may read.
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&path, private)
            .with_context(|| format!("make {} private", path.display()))?;
        Ok(path)
    }

    /// A command on a host.
    pub fn command(&self, side: HostSide, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.host(side).command(program);
        command.current_dir(&self.dir);
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
    pub fn tunnel(&mut self) -> Result<Ends> {
        self.tunnel_of(HostSide::BOTH.map(|side| self.device(side)))
    }

    /// Like [`Site::tunnel`], for devices with these names.
    pub fn tunnel_of(&mut self, devices: [String; 2]) -> Result<Ends> {
        for side in HostSide::BOTH {
            let (host, device) = (self.host(side), &devices[side as usize]);
            let made = until_ready(&mut self.processes, &format!("device {device}"), || {
                Ok(host.ip(&format!("link show {device}")).is_ok())
            });
            made.with_context(|| self.logs())?;
            host.add_address(device, self.overlay(side).into(), PREFIX_LENGTH)?;
            host.up(device)?;
        }
        Ok(Ends {
            client: self.host(HostSide::A).clone(),
            server: self.host(HostSide::B).clone(),
            address: self.overlay(HostSide::B),
            devices: Some(devices),
            forwarded_from: None,
        })
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

/// A program that `scripts/peers.sh` has built.
pub(super) fn built(name: &str) -> Result<PathBuf> {
    let path = workspace::root()?.join("build/peers/bin").join(name);
    if !Path::new(&path).is_file() {
        bail!("{name} is not built: run scripts/peers.sh");
    }
    Ok(path)
}

/// A program of a Debian package.
pub(super) fn packaged(name: &str, package: &str) -> Result<PathBuf> {
    vsnoop_testbed::guest::installed(name, package)
        .with_context(|| format!("{name} is missing: run scripts/peers.sh"))
}
