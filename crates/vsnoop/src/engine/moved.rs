//! VMs that are behind another port of the tap's bridge: the bond of a guest has failed over, or
//! another VM has taken the Ethernet address.
//!
//! Once a second the engine asks the bridge where it has learned the addresses of VMs that have
//! bytes to acknowledge. If that is another port, frames leave by it. What the VM sends there is
//! shown to the hook of the tap, without payload: record and hold follow the VM as before. Bytes of
//! a VM that is not heard there are given up ([`PATIENCE`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::Result;
use vsnoop_bpf::types::{SLAB_HOLDS, flow, flow_key, reset_reason};
use vsnoop_bpf::{HoldMaps, Hook, OpenHook};
use vsnoop_host::error;
use vsnoop_host::ports::Attached;
use vsnoop_host::reset::reset;
use vsnoop_host::system::netdev::{self, Place};
use vsnoop_host::system::netns::Netns;
use vsnoop_upkeep::outstanding_bytes;

use super::device::Device;
use super::ear::Ear;

/// An Ethernet address.
type Mac = [u8; 6];

/// A VM with bytes to acknowledge that is not heard for this time is given up: TCP would have sent
/// them again several times.
const PATIENCE: Duration = Duration::from_secs(10);
/// Holds that one look reads, and addresses that it asks the bridge for, at most.
const HOLDS: usize = 64;
const ADDRESSES: usize = 8;

/// The VMs of one tap that are behind other ports.
#[derive(Default)]
pub struct MovedVms {
    by_mac: BTreeMap<Mac, Moved>,
    /// The group of holds that the next look begins with.
    first_group: u32,
}

struct Moved {
    ifindex: u32,
    device: Device,
    ear: Ear,
    hook: OpenHook,
    heard: Instant,
}

impl MovedVms {
    /// The way to the VM with this address; `None`: the tap.
    pub fn device(&self, mac: &[u8]) -> Option<&Device> {
        self.by_mac.iter().find(|(moved, _)| moved[..] == *mac).map(|(_, moved)| &moved.device)
    }

    pub fn are_any(&self) -> bool {
        !self.by_mac.is_empty()
    }

    /// Asks where VMs are, and gives up what is lost.
    pub fn look(
        &mut self,
        attached: &Attached,
        netns: Option<&Netns>,
        memory: &HoldMaps,
    ) -> Result<()> {
        let meta = attached.port.meta()?;
        let Some(netns) = netns.filter(|_| meta.bridge != 0) else { return Ok(()) };
        let macs = self.waiting(memory);
        self.by_mac.retain(|mac, _| macs.contains(mac));
        if macs.is_empty() {
            return Ok(());
        }
        let places = netns.run(|| {
            let place = |mac| Ok((mac, netdev::find_in_bridge(meta.bridge, mac)?));
            macs.into_iter().map(place).collect::<error::Result<Vec<_>>>()
        })?;
        for (mac, place) in places {
            match place {
                Some(Place::Port(index)) if index != meta.ifindex => {
                    self.follow(mac, index, attached, netns)?;
                }
                Some(_) => {
                    self.by_mac.remove(&mac);
                }
                // The bridge has forgotten it.
                None => {}
            }
        }
        self.give_up(attached, netns)
    }

    /// Addresses of VMs that have bytes to acknowledge.
    fn waiting(&mut self, memory: &HoldMaps) -> BTreeSet<Mac> {
        let groups = memory.hold_count() / SLAB_HOLDS;
        let (mut macs, mut read) = (BTreeSet::new(), 0);
        for at in 0..groups {
            let group = (self.first_group + at) % groups;
            let busy = memory.busy(group);
            for bit in (0..SLAB_HOLDS).filter(|bit| busy & (1 << bit) != 0) {
                macs.insert(memory.read(group * SLAB_HOLDS + bit + 1).key.vm_mac);
                read += 1;
            }
            if read >= HOLDS || macs.len() >= ADDRESSES {
                self.first_group = group + 1;
                // Those that are known stay so until another look.
                macs.extend(self.by_mac.keys());
                break;
            }
        }
        macs
    }

    fn follow(&mut self, mac: Mac, index: u32, attached: &Attached, netns: &Netns) -> Result<()> {
        if self.by_mac.get(&mac).is_some_and(|moved| moved.ifindex == index) {
            return Ok(());
        }
        let hook = attached.port.open_hook(Hook::FromVm)?;
        let (device, ear) =
            netns.run(|| Ok::<_, error::Error>((Device::open(index), Ear::open(index, mac))))?;
        let (device, ear) = (device?, ear?);
        let moved = Moved { ifindex: index, device, ear, hook, heard: Instant::now() };
        self.by_mac.insert(mac, moved);
        tracing::warn!(
            "port {}: its VM is behind another port of the bridge now (interface {index}): what is \
             held goes there",
            attached.name
        );
        Ok(())
    }

    /// Shows the hook what VMs have sent.
    pub fn hear(&mut self, netns: Option<&Netns>) -> Result<()> {
        for moved in self.by_mac.values_mut() {
            let heard = moved.ear.take();
            let Some(netns) = netns.filter(|_| !heard.is_empty()) else { continue };
            moved.heard = Instant::now();
            let hook = &moved.hook;
            netns.run(|| {
                for segment in &heard {
                    hook.run(segment, 1)?;
                }
                Ok::<_, error::Error>(())
            })?;
        }
        Ok(())
    }

    fn give_up(&mut self, attached: &Attached, netns: &Netns) -> Result<()> {
        for (mac, moved) in &mut self.by_mac {
            if moved.heard.elapsed() < PATIENCE {
                continue;
            }
            moved.heard = Instant::now();
            let is_lost =
                |(key, flow): &&(flow_key, flow)| key.vm_mac == *mac && outstanding_bytes(flow) > 0;
            let flows = attached.port.flows()?;
            for (key, flow) in flows.iter().filter(is_lost) {
                let why = reset_reason::RESET_MOVED;
                if reset(&attached.port, Some(netns), key, flow, why)? {
                    tracing::warn!(
                        "port {}: a connection was reset: its VM is behind another port of the \
                         bridge, and does not answer",
                        attached.name
                    );
                }
            }
        }
        Ok(())
    }
}
