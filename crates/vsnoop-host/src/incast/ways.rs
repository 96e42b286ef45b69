//! By which interfaces the kernel may say that a packet came in which came through an uplink.
//!
//! A packet remembers the last interface that the stack has received it by (`skb->skb_iif`). A
//! bridge and a router leave that alone. A bond or team is a receiver of its own, and so is a VLAN
//! device, or a bridge that gives the packet to the host, which routes it. Hence what an uplink is
//! a port of, and what is stacked on it, are ways of the same packets, and so on from there. What a
//! veth sends its peer receives anew: the way ends there.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use vsnoop_bpf::{Uplink, UplinkId, WAYS};

use crate::system::netdev::{self, Device};
use crate::system::netns::Netns;

/// The ways from interface `uplink`, itself the first, in a stable order.
pub fn from(uplink: u32, devices: &[Device]) -> Vec<u32> {
    let mut ways = vec![uplink];
    let mut at = 0;
    while let Some(&way) = ways.get(at) {
        let master = devices.iter().find(|device| device.index == way).and_then(|d| d.master);
        let is_upon = |device: &&Device| device.lower == Some(way) && device.kind != "veth";
        let upper = devices.iter().filter(is_upon).map(|device| device.index);
        for next in master.into_iter().chain(upper) {
            if !ways.contains(&next) {
                ways.push(next);
            }
        }
        at += 1;
    }
    ways
}

/// Sets the ways of an uplink, in whose network namespace the calling thread is.
pub fn set(uplink: &Uplink, ifindex: u32) -> Result<()> {
    let ways = from(ifindex, &netdev::list()?);
    let known = ways.len().min(WAYS);
    if uplink.ways()? == ways[..known] {
        return Ok(());
    }
    if known < ways.len() {
        tracing::warn!(
            "uplink {}: {} interfaces lead from it; incast control knows the first {WAYS}",
            uplink.ifname(),
            ways.len()
        );
    }
    uplink.set_ways(&ways);
    Ok(())
}

/// Interfaces come and go, and are put into bridges and bonds: so do the ways of all uplinks.
#[derive(Default)]
pub struct Follower {
    /// Where their network namespaces were found.
    places: HashMap<UplinkId, Option<PathBuf>>,
    looked_at: Option<Instant>,
}

/// Interfaces are listed so often.
const PERIOD: Duration = Duration::from_secs(1);

impl Follower {
    /// Looks at all uplinks, if it is time.
    pub fn look(&mut self) -> Result<()> {
        if self.looked_at.is_some_and(|at| at.elapsed() < PERIOD) {
            return Ok(());
        }
        self.looked_at = Some(Instant::now());
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
    fn the_peer_of_a_veth_is_no_way() {
        let devices = [device(2, "veth", 0, 3), device(3, "veth", 0, 2)];
        assert_eq!(from(2, &devices), [2]);
    }

    #[test]
    fn an_interface_that_is_gone_is_its_own_way() {
        assert_eq!(from(7, &[]), [7]);
    }
}
