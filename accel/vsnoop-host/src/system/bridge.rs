//! The bridge of a tap, and where it has learned Ethernet addresses.
//!
//! A bridge that filters VLANs learns an address in each VLAN apart: in that of the frame's tag, or
//! in the one that the port gives to frames without.

use vsnoop_bpf::types::{VLAN_PRESENT, flow_key, port_meta};
use vsnoop_netdev::fdb;
pub use vsnoop_netdev::fdb::Place;
pub use vsnoop_netdev::learned::{BridgeEvents, Learned};

use super::netdev;
use crate::error::Result;

/// The bridge that a tap is a port of, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapBridge {
    pub ifindex: u32,
    pub mac: [u8; 6],
    pub filters_vlans: bool,
    tap: u32,
    /// The VLAN of the tap's frames without a tag; 0 if the bridge filters none.
    tap_vlan: u16,
}

impl TapBridge {
    /// `None` if the tap was a port of none, or that is gone. The calling thread must be in the
    /// tap's network namespace.
    pub fn find_bridge(meta: &port_meta) -> Result<Option<Self>> {
        if meta.bridge == 0 {
            return Ok(None);
        }
        let Some(bridge) = netdev::find_index(meta.bridge)? else { return Ok(None) };
        let Some(mac) = bridge.mac else { return Ok(None) };
        let filters_vlans = bridge.filters_vlans;
        let tap_vlan = if filters_vlans { fdb::port_vlan(meta.ifindex)? } else { 0 };
        let (ifindex, tap) = (bridge.index, meta.ifindex);
        Ok(Some(Self { ifindex, mac, filters_vlans, tap, tap_vlan }))
    }

    /// The VLAN in which the bridge has the addresses of this connection; 0 if it filters none.
    pub fn vlan(&self, key: &flow_key) -> u16 {
        match key.vlan_outer {
            tag if self.filters_vlans && u32::from(tag) & VLAN_PRESENT != 0 => tag & 0x0fff,
            _ => self.tap_vlan,
        }
    }

    /// Where it sends frames for an address; `None` if it does not know.
    pub fn find(&self, address: [u8; 6], vlan: u16) -> Result<Option<Place>> {
        Ok(fdb::find(self.ifindex, address, vlan)?)
    }

    /// The port other than the tap where it has learned an address.
    pub fn other_port(&self, address: [u8; 6], vlan: u16) -> Result<Option<u32>> {
        Ok(match self.find(address, vlan)? {
            Some(Place::Port(index)) if index != self.tap => Some(index),
            _ => None,
        })
    }
}
