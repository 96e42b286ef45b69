//! Taps of a link that carry diverted traffic: out of the host's stack to peers, and back into it.
//!
//! They have no addresses and no neighbours. What is read from one was put there by the hook on its VM's tap,
//! or is the host's own noise, which goes nowhere. What a peer sends is believed as little as an unknown
//! neighbour on a wire: only unicast packets to VMs of this host come in, and each refusal is counted.

use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use vsnoop_bpf::divert::{LinkTap, Reentry, destination, prepare};

use super::rules::Routes;
use crate::daemon::config::Config;
use crate::daemon::egress::outlet::{self, Frame};
use crate::daemon::io::port::Port;
use crate::daemon::stats::{Counter, PortStats};

/// What a frame's way back into the host is decided by: Ethernet, IPv6, and the byte after it.
const FRONT_BYTES: usize = 64;
/// Taps are called by numbers; more than a host has.
const NUMBERS: u32 = 10_000;

/// One tap.
pub struct Door {
    pub port: Port,
    pub stats: PortStats,
    pub ifindex: u32,
    /// Of the VM's tap; `None`: only packets of peers pass.
    pub interface: Option<String>,
    routes: Routes,
}

/// What came from one peer.
#[derive(Debug, Default)]
pub struct Entered {
    pub frames: Counter,
    pub bytes: Counter,
    /// To an address of no VM of this host.
    pub refused_prefix: Counter,
    /// Nothing that may be routed: broadcast, VLAN tag, link-local address, neighbour discovery, nonsense.
    pub refused_form: Counter,
}

/// All of them; packets of peers come in by the first.
pub struct Doors {
    pub doors: Vec<Door>,
    pub peers: Vec<Entered>,
    pub local: Vec<IpNet>,
    mtu_bytes: u16,
    reentry: Reentry,
}

impl Doors {
    /// `None`: this link has nothing to do with diversion.
    pub fn open(config: &Config) -> Result<Option<Self>> {
        let mut interfaces: Vec<_> = config.diverted_interfaces().cloned().map(Some).collect();
        if interfaces.is_empty() {
            if config.local.is_empty() {
                return Ok(None);
            }
            interfaces.push(None);
        }
        let local = config.local.clone();
        let mtu_bytes = config.mtu_bytes;
        let mut mac = [0; 6];
        let mut doors = Vec::new();
        for interface in interfaces {
            let port = make_tap()?;
            let let_in: &[IpNet] = if doors.is_empty() { &local } else { &[] };
            let tap = prepared(&port, mtu_bytes, let_in)?;
            if doors.is_empty() {
                mac = tap.mac;
            }
            let routes =
                interface.as_deref().map_or(Routes::default(), |name| Routes::of(config, name));
            let (ifindex, stats) = (tap.ifindex, PortStats::default());
            doors.push(Door { port, stats, ifindex, interface, routes });
        }
        let peers = config.peers.iter().map(|_| Entered::default()).collect();
        let reentry = Reentry::new(mac, local.clone());
        Ok(Some(Self { doors, peers, local, mtu_bytes, reentry }))
    }

    /// Repeats what makes the first door ready: other services may have set it otherwise meanwhile.
    pub fn prepare_again(&self) -> Result<()> {
        match self.doors.first() {
            Some(door) => prepared(&door.port, self.mtu_bytes, &self.local).map(drop),
            None => Ok(()),
        }
    }

    /// The peer that a frame out of a door is for; `None`: it is nothing that a hook sent there.
    pub fn peer_of(&self, door: usize, frame: &Frame<'_>) -> Option<usize> {
        self.doors.get(door)?.routes.peer_of(destination(frame.start())?)
    }

    /// Lets a frame of a peer into the host, or refuses it.
    pub fn enter(&self, peer: usize, frame: &Frame<'_>) {
        let (Some(door), Some(entered)) = (self.doors.first(), self.peers.get(peer)) else {
            return;
        };
        let start = frame.start();
        let mut front = [0; FRONT_BYTES];
        let front = &mut front[..start.len().min(FRONT_BYTES)];
        front.copy_from_slice(&start[..front.len()]);
        if self.reentry.admit(front) {
            entered.frames.add(1);
            entered.bytes.add(frame.bytes as u64);
            outlet::write(&door.port, &door.stats, front, frame);
        } else if destination(front).is_some() {
            entered.refused_prefix.add(1);
        } else {
            entered.refused_form.add(1);
        }
    }
}

/// Under the first number that is free.
fn make_tap() -> Result<Port> {
    for number in 0..NUMBERS {
        let name = format!("vsd{number}");
        if is_there(&name) {
            continue;
        }
        match Port::tap(&name) {
            Ok(port) => return Ok(port),
            // Another link was faster.
            Err(_) if is_there(&name) => {}
            Err(error) => return Err(error),
        }
    }
    bail!("there are interfaces vsd0 to vsd{} already", NUMBERS - 1)
}

fn is_there(interface: &str) -> bool {
    nix::net::if_::if_nametoindex(interface).is_ok()
}

fn prepared(port: &Port, mtu_bytes: u16, local: &[IpNet]) -> Result<LinkTap> {
    prepare(port.name(), mtu_bytes.into(), local)
        .with_context(|| format!("preparing {}, the tap for diverted packets", port.name()))
}
