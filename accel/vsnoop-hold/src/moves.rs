//! VMs that are not behind their tap any more while they have bytes to acknowledge.
//!
//! - [`Moves`]: the bridge has learned a VM's Ethernet address at another port (the bond of a guest
//!   has failed over, a VM was migrated without its monitor's word). What is held goes by that
//!   port. Not where the sender is behind the same port: frames there with the sender's Ethernet
//!   address would teach the switches behind it that the sender is at this host.
//! - [`Takeovers`]: another Ethernet address has announced the VM's IP address: that of another VM
//!   (CARP, VRRP without a virtual one), or a new one of the VM itself. The frames of the sender go
//!   there.
//!
//! Both tell which VMs were not heard for [`PATIENCE_NS`]: their connections are reset at both
//! ends.

use std::collections::{BTreeMap, BTreeSet};

use vsnoop_flow::types::{flow, flow_key, flow_mode, seq};

use crate::outstanding::outstanding_bytes;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// A VM with bytes to acknowledge that is not heard for this time is given up: TCP would have sent
/// them again several times.
pub const PATIENCE_NS: u64 = 10_000_000_000;
/// Interval at which the bridge is asked.
pub const LOOK_NS: u64 = 1_000_000_000;
/// Announced addresses that are watched at the same time.
const TAKEOVERS: usize = 64;

/// A VM, in a VLAN, and the next hop of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VmRoute {
    pub mac: Mac,
    /// 0 on a bridge that does not filter VLANs: it learns addresses without.
    pub vlan: u16,
    pub next_hop: Mac,
}

/// Where a VM is that is not behind its tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// Index of the port.
    pub port: u32,
    /// Can frames go to the VM by that port, and its own be heard there?
    pub can_follow: bool,
}

/// The VMs of one tap that are behind other ports.
#[derive(Clone, Debug, Default)]
pub struct Moves(BTreeMap<VmRoute, Moved>);

#[derive(Clone, Copy, Debug)]
struct Moved {
    to: Elsewhere,
    /// When it was heard there, or found there first.
    heard_ns: u64,
}

impl Moves {
    pub fn are_any(&self) -> bool {
        !self.0.is_empty()
    }

    pub fn routes(&self) -> impl Iterator<Item = &VmRoute> {
        self.0.keys()
    }

    /// Forgets all but these.
    pub fn keep(&mut self, waiting: &BTreeSet<VmRoute>) {
        self.0.retain(|route, _| waiting.contains(route));
    }

    /// Takes the bridge's answer; `None`: the VM is behind its tap. Returns whether the VM has
    /// moved since the last look.
    pub fn found(&mut self, route: VmRoute, place: Option<Elsewhere>, now_ns: u64) -> bool {
        let Some(to) = place else {
            self.0.remove(&route);
            return false;
        };
        let has_moved = self.0.get(&route).is_none_or(|moved| moved.to != to);
        if has_moved {
            self.0.insert(route, Moved { to, heard_ns: now_ns });
        }
        has_moved
    }

    /// The VM has sent something at the port where it was found.
    pub fn heard(&mut self, mac: Mac, now_ns: u64) {
        let of_mac = self.0.iter_mut().filter(|(route, _)| route.mac == mac);
        for (_, moved) in of_mac.filter(|(_, moved)| moved.to.can_follow) {
            moved.heard_ns = now_ns;
        }
    }

    /// The port by which frames for a VM go; `None`: its tap.
    pub fn port(&self, mac: &[u8], next_hop: &[u8]) -> Option<u32> {
        let is_it = |route: &VmRoute| route.mac[..] == *mac && route.next_hop[..] == *next_hop;
        let (_, moved) = self.0.iter().find(|(route, _)| is_it(route))?;
        moved.to.can_follow.then_some(moved.to.port)
    }

    /// VMs that are heard, and by which port.
    pub fn followed(&self) -> BTreeMap<Mac, u32> {
        let followed = self.0.iter().filter(|(_, moved)| moved.to.can_follow);
        followed.map(|(route, moved)| (route.mac, moved.to.port)).collect()
    }

    /// Those that are given up. Each is named once in [`PATIENCE_NS`].
    pub fn lost(&mut self, now_ns: u64) -> Vec<VmRoute> {
        let mut lost = Vec::new();
        for (route, moved) in &mut self.0 {
            if now_ns.saturating_sub(moved.heard_ns) >= PATIENCE_NS {
                moved.heard_ns = now_ns;
                lost.push(*route);
            }
        }
        lost
    }
}

/// An Ethernet address said that it has this IP address, mapped to IPv6 if it is IPv4's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    pub mac: Mac,
    pub address: [u8; 16],
}

/// IP addresses of VMs of one tap that others have announced.
#[derive(Clone, Debug, Default)]
pub struct Takeovers(BTreeMap<[u8; 16], Takeover>);

#[derive(Clone, Debug)]
struct Takeover {
    mac: Mac,
    since_ns: u64,
    /// Connections with bytes to acknowledge, and their VM_SEQ at that time.
    left: Vec<(flow_key, seq)>,
}

impl Takeovers {
    /// The address was announced by another VM than that of `flows`, or by that with another
    /// Ethernet address.
    pub fn announced(&mut self, announced: &Announcement, flows: &[(flow_key, flow)], now_ns: u64) {
        let left = flows.iter().filter(|(key, flow)| is_left(announced, key, flow));
        let left: Vec<_> = left.map(|(key, flow)| (*key, flow.vm_seq)).collect();
        // Another announcement does not prolong a watch.
        if !left.is_empty() && self.0.len() < TAKEOVERS {
            let takeover = Takeover { mac: announced.mac, since_ns: now_ns, left };
            self.0.entry(announced.address).or_insert(takeover);
        }
    }

    pub fn are_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Connections of VMs that have acknowledged nothing for [`PATIENCE_NS`], since their IP
    /// address was announced, each with the Ethernet address that has it now.
    pub fn lost(&mut self, flows: &[(flow_key, flow)], now_ns: u64) -> Vec<(Mac, flow_key, flow)> {
        let mut lost = Vec::new();
        self.0.retain(|_, takeover| {
            let is_due = now_ns.saturating_sub(takeover.since_ns) >= PATIENCE_NS;
            takeover.left.retain(|(key, vm_seq)| {
                let now = flows.iter().find(|(other, _)| other == key).map(|(_, flow)| flow);
                let Some(flow) = now.filter(|flow| has_left(flow) && flow.vm_seq == *vm_seq) else {
                    return false;
                };
                if is_due {
                    lost.push((takeover.mac, *key, *flow));
                }
                true
            });
            !is_due && !takeover.left.is_empty()
        });
        lost
    }
}

fn is_left(announced: &Announcement, key: &flow_key, flow: &flow) -> bool {
    key.vm_addr == announced.address && key.vm_mac != announced.mac && has_left(flow)
}

fn has_left(flow: &flow) -> bool {
    u32::from(flow.mode) != flow_mode::FLOW_RESET && outstanding_bytes(flow) > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const VM: Mac = [2, 0, 0, 0, 0, 1];
    const OTHER: Mac = [2, 0, 0, 0, 0, 2];
    const SENDER: Mac = [2, 0, 0, 0, 0, 3];
    const ADDRESS: [u8; 16] = [7; 16];
    const S: u64 = 1_000_000_000;

    fn route(next_hop: Mac) -> VmRoute {
        VmRoute { mac: VM, vlan: 0, next_hop }
    }

    #[test]
    fn a_vm_is_followed_to_another_port_and_back() {
        let mut moves = Moves::default();
        let there = Some(Elsewhere { port: 5, can_follow: true });
        assert!(moves.found(route(SENDER), there, 0));
        assert!(!moves.found(route(SENDER), there, S));
        assert_eq!(moves.port(&VM, &SENDER), Some(5));
        assert_eq!(moves.port(&VM, &OTHER), None);
        assert!(!moves.found(route(SENDER), None, 2 * S));
        assert_eq!(moves.port(&VM, &SENDER), None);
        assert!(!moves.are_any());
    }

    #[test]
    fn a_vm_that_is_heard_is_not_given_up() {
        let mut moves = Moves::default();
        moves.found(route(SENDER), Some(Elsewhere { port: 5, can_follow: true }), 0);
        moves.heard(VM, 9 * S);
        assert!(moves.lost(18 * S).is_empty());
        assert_eq!(moves.lost(19 * S), [route(SENDER)]);
        assert!(moves.lost(20 * S).is_empty(), "it is said once");
    }

    #[test]
    fn a_vm_behind_the_port_of_its_sender_is_given_up_and_gets_no_frame() {
        let mut moves = Moves::default();
        moves.found(route(SENDER), Some(Elsewhere { port: 5, can_follow: false }), 0);
        assert_eq!(moves.port(&VM, &SENDER), None);
        assert!(moves.followed().is_empty());
        moves.heard(VM, 9 * S);
        assert_eq!(moves.lost(10 * S), [route(SENDER)]);
    }

    fn entry(vm_seq: u32) -> (flow_key, flow) {
        let key = flow_key { vm_mac: VM, vm_addr: ADDRESS, ..flow_key::default() };
        let flow = flow { vm_seq: seq::new(vm_seq), next_seq: seq::new(5000), ..flow::default() };
        (key, flow)
    }

    #[test]
    fn a_vm_that_stands_still_since_another_announced_its_address_is_given_up() {
        let mut takeovers = Takeovers::default();
        let announced = Announcement { mac: OTHER, address: ADDRESS };
        takeovers.announced(&announced, &[entry(1000)], 0);
        // Others repeat it; that is no reason to wait longer.
        takeovers.announced(&announced, &[entry(1000)], 5 * S);
        assert!(takeovers.lost(&[entry(1000)], 9 * S).is_empty());
        assert_eq!(takeovers.lost(&[entry(1000)], 10 * S).len(), 1);
        assert!(!takeovers.are_any());
    }

    #[test]
    fn a_vm_that_acknowledges_keeps_its_address() {
        let mut takeovers = Takeovers::default();
        let announced = Announcement { mac: OTHER, address: ADDRESS };
        takeovers.announced(&announced, &[entry(1000)], 0);
        assert!(takeovers.lost(&[entry(1001)], S).is_empty());
        assert!(takeovers.lost(&[entry(1001)], 10 * S).is_empty());
        assert!(!takeovers.are_any());
    }

    #[test]
    fn what_the_vm_itself_announces_or_owes_nothing_for_is_none() {
        let own = Announcement { mac: VM, address: ADDRESS };
        let other = Announcement { mac: OTHER, address: ADDRESS };
        let elsewhere = Announcement { address: [8; 16], ..other };
        for (announced, vm_seq, is_watched) in [
            (own, 1000, false),
            (other, 1000, true),
            (other, 5000, false),
            (elsewhere, 1000, false),
        ] {
            let mut takeovers = Takeovers::default();
            takeovers.announced(&announced, &[entry(vm_seq)], 0);
            assert_eq!(takeovers.are_any(), is_watched, "{announced:?}, {vm_seq}");
        }
    }
}
