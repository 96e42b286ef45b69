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
use crate::daemon::counts::Counter;
use crate::daemon::frame::{self, Frame};
use crate::daemon::io::port::Port;
use crate::daemon::stats::PortStats;

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
        if entered.judge(&self.reentry, front, frame.bytes) {
            frame::write(&door.port, &door.stats, front, frame);
        }
    }
}

impl Entered {
    /// Whether a frame of `bytes` with this beginning comes in. If so, it is addressed to the door.
    fn judge(&self, reentry: &Reentry, front: &mut [u8], bytes: usize) -> bool {
        let is_admitted = reentry.admit(front);
        if is_admitted {
            self.frames.add(1);
            self.bytes.add(bytes as u64);
        } else if destination(front).is_some() {
            self.refused_prefix.add(1);
        } else {
            self.refused_form.add(1);
        }
        is_admitted
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

#[cfg(test)]
mod tests {
    use super::*;

    const DOOR: [u8; 6] = [2, 0, 0, 0, 0, 7];

    /// Of an IPv4 packet to 10.1.0.`to`, with payload behind what is looked at.
    fn frame(to: u8) -> Vec<u8> {
        let mut frame =
            [&[2; 6][..], &[4; 6], &[8, 0, 0x45, 0, 0, 120, 0, 0, 0, 0, 64, 6]].concat();
        frame.extend([0, 0, 10, 2, 0, 1, 10, 1, 0, to]);
        frame.resize(134, 0xa5);
        frame
    }

    fn judge(entered: &Entered, mut frame: Vec<u8>) -> Option<Vec<u8>> {
        let reentry = Reentry::new(DOOR, vec!["10.1.0.2/32".parse().unwrap()]);
        let bytes = frame.len();
        frame.truncate(FRONT_BYTES);
        entered.judge(&reentry, &mut frame, bytes).then_some(frame)
    }

    #[test]
    fn what_a_peer_sends_comes_in_or_is_counted_with_the_reason() {
        let entered = Entered::default();
        let front = judge(&entered, frame(2)).expect("let in");
        assert_eq!((&front[..6], &front[6..]), (&DOOR[..], &frame(2)[6..FRONT_BYTES]));
        assert_eq!((entered.frames.get(), entered.bytes.get()), (1, 134));
        assert_eq!(judge(&entered, frame(3)), None, "the VM's neighbour");
        let mut broadcast = frame(2);
        broadcast[..6].fill(0xff);
        assert_eq!(judge(&entered, broadcast), None);
        assert_eq!(judge(&entered, frame(2)[..20].to_vec()), None, "a cut header");
        assert_eq!((entered.refused_prefix.get(), entered.refused_form.get()), (1, 2));
        assert_eq!(entered.frames.get(), 1);
    }
}
