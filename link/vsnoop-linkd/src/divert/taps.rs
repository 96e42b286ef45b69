//! Divert taps: they carry diverted traffic out of the host's stack to peers, and back into it.
//!
//! A divert tap has no addresses and no neighbours. A frame read from one was sent there by the
//! hook on its VM's tap, or by the host itself; the latter is dropped. Frames of peers are not
//! trusted: only unicast packets to VMs of this host enter it, and each refusal is counted.

use std::sync::Arc;

use ipnet::IpNet;
use vsnoop_divert::{LinkTap, Reentry, parse_destination, prepare_tap};

use super::rules::Routes;
use crate::config::Config;
use crate::counters::counts::Counter;
use crate::frames::frame::Frame;
use crate::io::port::{LinkPort, PortError};
use crate::ports::counted_port::CountedPort;
use crate::threads::slots::{BySlot, Slots};
use vsnoop_link::slots::{DivertTapSlot, PeerSlot};

/// Headers that decide whether a frame enters the host: Ethernet, IPv6, and the byte after it.
const FRONT_BYTES: usize = 64;
/// Divert taps have numbers in their names; more than a host has.
const NUMBERS: u32 = 10_000;

/// Packets of peers enter the host by this tap, which stays.
const ENTRY: DivertTapSlot = DivertTapSlot(0);

#[derive(Debug, thiserror::Error)]
pub enum DivertTapError {
    #[error(transparent)]
    Make(#[from] PortError),
    #[error("there are interfaces vsd0 to vsd{} already", NUMBERS - 1)]
    NoNumber,
    #[error("preparing {tap}, the tap for diverted packets")]
    Prepare {
        tap: String,
        #[source]
        error: vsnoop_divert::Error,
    },
}

type Result<T> = std::result::Result<T, DivertTapError>;

/// One divert tap; clones are the same.
#[derive(Clone)]
pub struct DivertTap {
    pub port: CountedPort,
    pub ifindex: u32,
    /// The VM's tap; `None`: this one carries packets of peers only.
    pub interface: Option<String>,
    routes: Routes,
}

/// Counters of the diverted frames of one peer.
#[derive(Debug, Default)]
pub struct Entered {
    pub frames: Counter,
    pub bytes: Counter,
    /// The destination is no VM of this host.
    pub refused_prefix: Counter,
    /// It may not be routed: broadcast, VLAN tag, link-local address, neighbour discovery,
    /// malformed packet.
    pub refused_form: Counter,
}

/// All divert taps.
#[derive(Clone)]
pub struct DivertTaps {
    /// `None`: the tap was removed.
    pub taps: BySlot<DivertTapSlot, Option<DivertTap>>,
    pub peers: BySlot<PeerSlot, Arc<Entered>>,
    pub local: Vec<IpNet>,
    mtu_bytes: u16,
    reentry: Arc<Reentry>,
}

impl DivertTaps {
    /// `None`: this link diverts nothing, and accepts nothing diverted.
    pub fn open(config: &Config, peers: &Slots<PeerSlot>) -> Result<Option<Self>> {
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
        let mut taps = BySlot::default();
        for interface in interfaces {
            let let_in: &[IpNet] = if taps.len() == 0 { &local } else { &[] };
            let (tap, tap_mac) = DivertTap::make_tap(interface, mtu_bytes, let_in)?;
            if taps.len() == 0 {
                mac = tap_mac;
            }
            taps.push(Some(tap));
        }
        let entered = (0..peers.len()).map(|_| Arc::default()).collect();
        let reentry = Arc::new(Reentry::new(mac, local.clone()));
        let mut made = Self { taps, peers: entered, local, mtu_bytes, reentry };
        made.set_routes(config, peers);
        Ok(Some(made))
    }

    /// Follows the configuration: makes taps for interfaces that have none yet, and drops those of
    /// interfaces that are no longer diverted.
    pub fn reloaded(&self, config: &Config, peers: &Slots<PeerSlot>) -> Result<Self> {
        let mut new = self.clone();
        let wanted: Vec<_> = config.diverted_interfaces().collect();
        let is_wanted = |tap: &DivertTap| {
            tap.interface.as_ref().is_some_and(|interface| wanted.contains(&interface))
        };
        for (slot, tap) in new.taps.iter_mut() {
            if tap.as_ref().is_some_and(is_wanted) {
                continue;
            }
            match tap {
                // Packets of peers enter by it.
                Some(entry) if slot == ENTRY => entry.interface = None,
                _ => *tap = None,
            }
        }
        for interface in wanted {
            if new.all().any(|(_, tap)| tap.interface.as_ref() == Some(interface)) {
                continue;
            }
            let free = new.taps.position(|tap| match tap {
                Some(tap) => tap.interface.is_none(),
                None => true,
            });
            match free.and_then(|slot| new.taps.get_mut(slot)) {
                Some(Some(entry)) => entry.interface = Some(interface.clone()),
                Some(none) => {
                    let made = DivertTap::make_tap(Some(interface.clone()), new.mtu_bytes, &[])?;
                    *none = Some(made.0);
                }
                None => {
                    let made = DivertTap::make_tap(Some(interface.clone()), new.mtu_bytes, &[])?;
                    new.taps.push(Some(made.0));
                }
            }
        }
        new.set_routes(config, peers);
        Ok(new)
    }

    fn set_routes(&mut self, config: &Config, peers: &Slots<PeerSlot>) {
        for tap in self.taps.values_mut().flatten() {
            let routes = |interface: &String| Routes::new(config, interface, peers);
            tap.routes = tap.interface.as_ref().map_or(Routes::default(), routes);
        }
    }

    /// Counts the frames of a peer in this slot from zero.
    pub fn set_new_peer(&mut self, slot: PeerSlot) {
        self.peers.make_room(slot, Arc::default);
        self.peers[slot] = Arc::default();
    }

    pub fn find_tap(&self, slot: DivertTapSlot) -> Option<&DivertTap> {
        self.taps.get(slot)?.as_ref()
    }

    /// The tap by which packets of peers enter the host.
    pub fn entry_tap(&self) -> Option<&DivertTap> {
        self.find_tap(ENTRY)
    }

    /// All taps, with their slots.
    pub fn all(&self) -> impl Iterator<Item = (DivertTapSlot, &DivertTap)> {
        self.taps.iter().filter_map(|(slot, tap)| Some((slot, tap.as_ref()?)))
    }

    /// Repeats the settings of the first divert tap: other services may have changed them.
    pub fn prepare_again(&self) -> Result<()> {
        match self.entry_tap() {
            Some(tap) => prepare_divert_tap(&tap.port.port, self.mtu_bytes, &self.local).map(drop),
            None => Ok(()),
        }
    }

    /// The peer that a frame of a divert tap is for; `None`: no hook has sent this frame.
    pub fn peer_of(&self, tap: DivertTapSlot, frame: &Frame<'_>) -> Option<PeerSlot> {
        self.find_tap(tap)?.routes.peer_of(parse_destination(frame.start())?)
    }

    /// Writes a frame of a peer into the host, or refuses it.
    pub fn enter_frame(&self, peer: PeerSlot, frame: &Frame<'_>) {
        let (Some(tap), Some(entered)) = (self.entry_tap(), self.peers.get(peer)) else {
            return;
        };
        let start = frame.start();
        let mut front = [0; FRONT_BYTES];
        let front = &mut front[..start.len().min(FRONT_BYTES)];
        front.copy_from_slice(&start[..front.len()]);
        if entered.judge(&self.reentry, front, frame.bytes) {
            tap.port.write_with_front(front, frame);
        }
    }
}

impl DivertTap {
    /// Makes one, and says its MAC address. Packets to `let_in` may enter the host by it.
    fn make_tap(
        interface: Option<String>,
        mtu_bytes: u16,
        let_in: &[IpNet],
    ) -> Result<(Self, [u8; 6])> {
        let port = make_tap()?;
        let LinkTap { mac, ifindex, .. } = prepare_divert_tap(&port, mtu_bytes, let_in)?;
        let (port, routes) = (CountedPort::new(port), Routes::default());
        Ok((Self { port, ifindex, interface, routes }, mac))
    }
}

impl Entered {
    /// Whether a frame of `bytes` with these first bytes enters the host. If so, sets its
    /// destination MAC to the tap's.
    fn judge(&self, reentry: &Reentry, front: &mut [u8], bytes: usize) -> bool {
        let is_admitted = reentry.admit_frame(front);
        if is_admitted {
            self.frames.add(1);
            self.bytes.add(bytes as u64);
        } else if parse_destination(front).is_some() {
            self.refused_prefix.add(1);
        } else {
            self.refused_form.add(1);
        }
        is_admitted
    }
}

/// Makes a divert tap with the first number that is free.
fn make_tap() -> Result<LinkPort> {
    for number in 0..NUMBERS {
        let name = format!("vsd{number}");
        if is_there(&name) {
            continue;
        }
        match LinkPort::open_tap(&name) {
            Ok(port) => return Ok(port),
            // Another link was faster.
            Err(_) if is_there(&name) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(DivertTapError::NoNumber)
}

fn is_there(interface: &str) -> bool {
    nix::net::if_::if_nametoindex(interface).is_ok()
}

fn prepare_divert_tap(port: &LinkPort, mtu_bytes: u16, local: &[IpNet]) -> Result<LinkTap> {
    prepare_tap(port.name(), mtu_bytes.into(), local)
        .map_err(|error| DivertTapError::Prepare { tap: port.name().to_owned(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAP_MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

    /// The frame of an IPv4 packet to 10.1.0.`to`, with payload behind what is looked at.
    fn frame(to: u8) -> Vec<u8> {
        let mut frame =
            [&[2; 6][..], &[4; 6], &[8, 0, 0x45, 0, 0, 120, 0, 0, 0, 0, 64, 6]].concat();
        frame.extend([0, 0, 10, 2, 0, 1, 10, 1, 0, to]);
        frame.resize(134, 0xa5);
        frame
    }

    fn judge(entered: &Entered, mut frame: Vec<u8>) -> Option<Vec<u8>> {
        let reentry = Reentry::new(TAP_MAC, vec!["10.1.0.2/32".parse().unwrap()]);
        let bytes = frame.len();
        frame.truncate(FRONT_BYTES);
        entered.judge(&reentry, &mut frame, bytes).then_some(frame)
    }

    #[test]
    fn what_a_peer_sends_comes_in_or_is_counted_with_the_reason() {
        let entered = Entered::default();
        let front = judge(&entered, frame(2)).expect("let in");
        assert_eq!((&front[..6], &front[6..]), (&TAP_MAC[..], &frame(2)[6..FRONT_BYTES]));
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
