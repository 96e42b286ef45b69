//! The interfaces that skb->skb_iif may name for packets of an uplink.
//!
//! skb_iif is the last interface by which the stack received a packet. A bridge and a router do not
//! change it. A bond or team receives the packet again, and so does a VLAN device, or a bridge that
//! hands the packet to the host for routing. So the ingress interfaces of an uplink are the uplink,
//! its masters, the devices stacked on these, and so on. A veth's peer receives a packet as a new
//! one: the list ends there.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use vsnoop_bpf::{INGRESS_MAX, Uplink, UplinkId};

use crate::error::Result;
use crate::system::netdev::{self, Device};
use crate::system::netns::Netns;

/// The ingress interfaces of `uplink`, which is the first, in a stable order.
pub fn from(uplink: u32, devices: &[Device]) -> Vec<u32> {
    let mut found = vec![uplink];
    let mut at = 0;
    while let Some(&ifindex) = found.get(at) {
        let master = devices.iter().find(|device| device.index == ifindex).and_then(|d| d.master);
        let is_upon = |device: &&Device| device.lower == Some(ifindex) && device.kind != "veth";
        let upper = devices.iter().filter(is_upon).map(|device| device.index);
        for next in master.into_iter().chain(upper) {
            if !found.contains(&next) {
                found.push(next);
            }
        }
        at += 1;
    }
    found
}

/// Sets the ingress interfaces of an uplink. The calling thread is in its network namespace.
pub fn set(uplink: &Uplink, ifindex: u32) -> Result<()> {
    let found = from(ifindex, &netdev::list()?);
    let known = found.len().min(INGRESS_MAX);
    if uplink.ingress()? == found[..known] {
        return Ok(());
    }
    if known < found.len() {
        tracing::warn!(
            "uplink {}: {} interfaces lead from it; incast control knows the first {INGRESS_MAX}",
            uplink.ifname(),
            found.len()
        );
    }
    uplink.set_ingress(&found);
    Ok(())
}

/// Keeps the ingress interfaces of all uplinks up to date: interfaces are created, deleted, and
/// added to bridges and bonds.
#[derive(Default)]
pub struct Follower {
    /// Paths of their network namespaces.
    places: HashMap<UplinkId, Option<PathBuf>>,
    looked_at: Option<Instant>,
}

/// Interval of listing interfaces.
const PERIOD: Duration = Duration::from_secs(1);

impl Follower {
    /// Updates all uplinks, once per `PERIOD`.
    pub fn follow_ports(&mut self) -> Result<()> {
        if !self.is_due(Instant::now()) {
            return Ok(());
        }
        if !Uplink::are_any() {
            self.places.clear();
            return Ok(());
        }
        let mut earlier = std::mem::take(&mut self.places);
        for id in Uplink::list()? {
            let mut path = earlier.remove(&id).flatten();
            if let Some(uplink) = Uplink::open(id.netns, id.ifindex)?
                && let Some(netns) = Netns::find_again(id.netns, &mut path)
            {
                netns.run(|| set(&uplink, id.ifindex))?;
            }
            self.places.insert(id, path);
        }
        Ok(())
    }

    /// Is a look due? If so, the next is due a period later.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.looked_at.is_none_or(|at| now.duration_since(at) >= PERIOD);
        if is_due {
            self.looked_at = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: u32, kind: &str, master: u32, lower: u32) -> Device {
        let some = |index: u32| Some(index).filter(|index| *index != 0);
        let (master, lower) = (some(master), some(lower));
        Device { index, kind: kind.into(), master, lower, ..Device::default() }
    }

    #[test]
    fn uplinks_are_looked_at_once_a_second() {
        let (mut follower, start) = (Follower::default(), Instant::now());
        let due = [0, 250, 999, 1000, 1250, 2000];
        let due = due.map(|ms| follower.is_due(start + Duration::from_millis(ms)));
        assert_eq!(due, [true, false, false, true, false, true]);
    }

    #[test]
    fn bonds_vlans_and_bridges_lead_on_from_an_uplink() {
        let devices = [
            device(2, "", 3, 0),
            device(3, "bond", 0, 0),
            device(4, "vlan", 5, 3),
            device(5, "bridge", 0, 0),
            device(6, "vlan", 0, 5),
            device(7, "tun", 5, 0),
            device(8, "", 0, 0),
            device(9, "vlan", 0, 8),
        ];
        assert_eq!(from(2, &devices), [2, 3, 4, 5, 6]);
        assert_eq!(from(8, &devices), [8, 9]);
    }

    #[test]
    fn the_peer_of_a_veth_is_no_ingress_interface() {
        let devices = [device(2, "veth", 0, 3), device(3, "veth", 0, 2)];
        assert_eq!(from(2, &devices), [2]);
    }

    #[test]
    fn of_an_interface_that_is_gone_only_itself_is_listed() {
        assert_eq!(from(7, &[]), [7]);
    }
}
