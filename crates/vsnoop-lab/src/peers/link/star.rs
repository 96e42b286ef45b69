//! A hub with many peers, each a process of its own: `vsnoop link up`.
//!
//! ```text
//! hub: 10.7.0.1 --+-- first: 10.7.0.2   one peer, with a tap
//!                 +-- second: 10.7.0.3  one peer, with a tap
//!                 +-- idle: 10.7.0.4    all others, each with an address in 10.8.0.0/16 and a tap
//! ```
//!
//! The idle ones share a namespace, since a bridge has at most 1024 ports; it is the router of
//! their addresses, since the kernel knows about 1000 neighbours. Peers call, as from behind a
//! NAT, and the hub does not; it relays between them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use vsnoop_testbed::hosts::{all_up, keygen, link_table, peer_table, status};
use vsnoop_testbed::net::{Net, Netns};
use vsnoop_testbed::session::{PREFIX, Session};
use vsnoop_testbed::wait::wait_until;
use vsnoop_testbed::workspace;

use super::super::Daemon;
use super::process::Processes;
use crate::usage::status_kilobytes;

const PORT: u16 = 7757;
const BRIDGE: &str = "net";
const TAP: &str = "tap0";
const HUB: &str = "hub";
/// The longest wait for all peers, which may be backing off.
const UP_PATIENCE: Duration = Duration::from_secs(180);

/// A hub and its peers. Their processes end when it is dropped, before their namespaces.
#[derive(Debug)]
pub struct Star {
    hub: Processes,
    peers: Processes,
    dir: PathBuf,
    name: String,
    hub_netns: Arc<Netns>,
    /// The two peers that are not idle, and those that are.
    peer_netns: [Arc<Netns>; 3],
    count: u16,
}

impl Star {
    /// Makes keys, configurations and namespaces of the peers. Starts nothing.
    pub fn new(session: &Session, count: u16) -> Result<Self> {
        let net = Net::new(PREFIX);
        let dir = session.scratch().join("star");
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        let namespace = |role: &str| net.silent_host(role).map(Arc::new);
        let star = Self {
            hub: Processes::default(),
            peers: Processes::default(),
            dir,
            name: net.name(""),
            hub_netns: namespace(HUB)?,
            peer_netns: [namespace("first")?, namespace("second")?, namespace("idle")?],
            count,
        };
        star.join()?;
        star.configure()?;
        Ok(star)
    }

    fn join(&self) -> Result<()> {
        let hub = &self.hub_netns;
        hub.bridge(BRIDGE)?;
        for (number, netns) in self.peer_netns.iter().enumerate() {
            hub.veth_port(BRIDGE, &format!("to{number}"), netns, "uplink")?;
            netns.up_with("uplink", &[(outer(number as u8 + 2).into(), 24)])?;
        }
        hub.up_with(BRIDGE, &[(outer(1).into(), 24)])?;
        hub.ip(&format!("route add 10.8.0.0/16 via {}", outer(4)))?;
        self.peer_netns[2].ip("route add local 10.8.0.0/16 dev lo")?;
        Ok(())
    }

    fn configure(&self) -> Result<()> {
        let key = |name: &str| self.dir.join(format!("{name}.key"));
        let hub_key = keygen(&key(HUB))?;
        let hub_address = SocketAddr::new(outer(1).into(), PORT);
        let mut hub = self.link(HUB, hub_address, TAP, &key(HUB));
        for number in 0..self.count {
            let peer = peer_name(number);
            let public = keygen(&key(&peer))?;
            hub += &format!("[[peer]]\nname = \"{peer}\"\nkey = \"{public}\"\nrelay = true\n");
            let tap = if number < 2 { TAP } else { &peer };
            let own_address = SocketAddr::new(self.address(number), PORT);
            let text = self.link(&peer, own_address, tap, &key(&peer))
                + &peer_table(HUB, &hub_key, hub_address, "udp");
            write(&self.config(&peer), &text)?;
        }
        write(&self.config(HUB), &hub)
    }

    fn link(&self, name: &str, listen: SocketAddr, tap: &str, key: &Path) -> String {
        let name = format!("{}{name}", self.name);
        let table = link_table(&name, "star", Some(listen), key);
        format!("{table}\n[[port]]\ntap = \"{tap}\"\n")
    }

    fn config(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.toml"))
    }

    fn address(&self, number: u16) -> IpAddr {
        let [high, low] = number.to_be_bytes();
        match number {
            0 | 1 => outer(low + 2).into(),
            _ => Ipv4Addr::new(10, 8, high, low).into(),
        }
    }

    fn spawn(&self, netns: &Netns, name: &str) -> Result<Daemon> {
        let mut command = netns.command(workspace::vsnoop_command()?);
        command.args(["link", "up", "--foreground"]).arg(self.config(name));
        Daemon::start(command, netns, &[], &self.dir.join(format!("{name}.log")))
    }

    /// Starts the hub, which waits for its peers then.
    pub fn start_hub(&mut self) -> Result<()> {
        let hub = self.spawn(&self.hub_netns, HUB)?;
        self.hub.push(hub);
        let up = || Ok(self.status().is_ok());
        wait_until("the hub is up", UP_PATIENCE, up)
    }

    /// Starts all peers, and returns the time until the last was up.
    pub fn start_peers(&mut self) -> Result<Duration> {
        let since = Instant::now();
        for number in 0..self.count {
            let netns = &self.peer_netns[usize::from(number.min(2))];
            let peer = self.spawn(netns, &peer_name(number))?;
            self.peers.push(peer);
        }
        self.until_all_up()?;
        let took = since.elapsed();
        for number in 0..2 {
            let address = inner(number).into();
            self.peer_netns[usize::from(number)].up_with(TAP, &[(address, 24)])?;
        }
        Ok(took)
    }

    /// Ends the hub and starts it again; returns the time from its start until the last peer was
    /// up.
    pub fn restart_hub(&mut self) -> Result<Duration> {
        self.hub = Processes::default();
        let since = Instant::now();
        self.start_hub()?;
        self.until_all_up()?;
        Ok(since.elapsed())
    }

    fn until_all_up(&self) -> Result<()> {
        wait_until("all peers are up", UP_PATIENCE, || {
            // It costs the hub some CPU time to say how 1000 peers are. While all of them start it
            // may have none.
            std::thread::sleep(Duration::from_millis(200));
            Ok(self.status().is_ok_and(|status| all_up(&status)))
        })
    }

    fn status(&self) -> Result<serde_json::Value> {
        status(&self.hub_netns, &format!("{}{HUB}", self.name))
    }

    /// Resident memory of the hub, and of all peers together, in KiB.
    pub fn resident_kilobytes(&self) -> Result<[u64; 2]> {
        let of = |processes: &Processes| -> Result<u64> {
            processes.pids().into_iter().map(|pid| status_kilobytes(pid, "VmRSS")).sum()
        };
        Ok([of(&self.hub)?, of(&self.peers)?])
    }

    /// CPU time of the hub, and of all peers together, in seconds.
    pub fn cpu_seconds(&self) -> [f64; 2] {
        [&self.hub, &self.peers].map(|processes| processes.cpu_seconds().unwrap_or_default())
    }

    /// The namespace of the first peer, and the address of the second in the network of the VMs.
    pub fn echo_path(&self) -> (&Netns, Ipv4Addr) {
        (&self.peer_netns[0], inner(1))
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

fn peer_name(number: u16) -> String {
    format!("p{number}")
}

fn outer(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 7, 0, number)
}

fn inner(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, number + 1)
}
