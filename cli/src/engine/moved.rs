//! VMs that are behind another port of the tap's bridge, or whose IP address another VM has taken
//! (vsnoop_hold::moves decides).
//!
//! Once a second the engine asks the bridge where it has learned the addresses of VMs that have
//! bytes to acknowledge. If that is another port, frames leave by it. What the VM and its senders
//! send there is shown to the hooks of the tap, without payload: record and hold follow both as
//! before. On a bridge that filters VLANs, whose tags frames would need at that port, the VM is not
//! followed.
//!
//! A socket on the bridge hears who announces the IP address of such a VM.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use vsnoop_bpf::types::{SLAB_HOLDS, flow, flow_key, reset_reason};
use vsnoop_bpf::{HoldMaps, Hook, OpenHook};
use vsnoop_hold::moves::{Announcement, Elsewhere, Mac, Moves, Takeovers, VmRoute};
use vsnoop_hold::outstanding_bytes;
use vsnoop_host::error;
use vsnoop_host::port_resets::{reset, send};
use vsnoop_host::ports::Attached;
use vsnoop_host::system::bridge::{BridgeEvents, Place, TapBridge};
use vsnoop_host::system::clock::monotonic_ns;
use vsnoop_host::system::netns::Netns;

use super::device::Device;
use super::ear::{Ear, Heard};
use super::split_moves::SplitMoves;

/// Holds that one look reads, beside those of the last group, and asks the bridge about.
const HOLDS: usize = 64;

/// The VMs of one tap that are elsewhere.
#[derive(Default)]
pub struct MovedVms {
    moves: Moves,
    takeovers: Takeovers,
    /// The ways to VMs behind other ports, by port.
    devices: BTreeMap<u32, Device>,
    heard: BTreeMap<Mac, HeardVm>,
    /// Hears announcements at this bridge.
    announcements: Option<(u32, Ear)>,
    /// The group of holds that the next look begins with.
    first_group: u32,
    splits: SplitMoves,
}

/// Segments that a VM and its senders send at another port, and the hooks that get them.
struct HeardVm {
    port: u32,
    ear: Ear,
    from_vm: OpenHook,
    to_vm: OpenHook,
}

impl MovedVms {
    /// The way to the VM to which these frames go; `None`: the tap.
    pub fn device_to(&self, mac: &[u8], next_hop: &[u8]) -> Option<&Device> {
        self.devices.get(&self.moves.port(mac, next_hop)?)
    }

    pub fn are_any(&self) -> bool {
        self.moves.are_any()
    }

    /// Asks where VMs are, and gives up what is lost.
    pub fn find_moved(
        &mut self,
        attached: &Attached,
        netns: Option<&Netns>,
        memory: &HoldMaps,
    ) -> Result<()> {
        let meta = attached.port.meta()?;
        let Some(netns) = netns.filter(|_| meta.bridge != 0) else { return Ok(()) };
        let announced = self.take_announcements(meta.bridge, netns)?;
        self.splits.listen_to_bridge(attached, netns)?;
        self.splits.follow_moves(attached, netns)?;
        self.splits.notice_takeovers(attached, &announced)?;
        let (waiting, are_all) = self.waiting_vms(memory);
        if waiting.is_empty() && !self.moves.are_any() && !self.takeovers.are_any() {
            return Ok(());
        }
        let Some(bridge) = netns.run(|| TapBridge::find_bridge(&meta))? else { return Ok(()) };
        let route = |(key, next_hop): (flow_key, Mac)| {
            let vlan = bridge.vlan(&key);
            VmRoute { mac: key.vm_mac, vlan, next_hop }
        };
        let mut waiting: BTreeSet<_> = waiting.into_iter().map(route).collect();
        if are_all {
            self.moves.keep(&waiting);
        } else {
            // Those that are known stay so until another look.
            waiting.extend(self.moves.routes());
        }
        let now_ns = monotonic_ns()?;
        self.notice_takeovers(attached, &announced, now_ns)?;
        let place = |route: VmRoute| Ok((route, find_elsewhere(&bridge, &route)?));
        let places: error::Result<Vec<_>> = netns.run(|| waiting.into_iter().map(place).collect());
        for (route, found) in places? {
            match found {
                Found::Elsewhere(to) if self.moves.found(route, Some(to), now_ns) => {
                    log_move(attached, to);
                }
                Found::AtTap => drop(self.moves.found(route, None, now_ns)),
                Found::Elsewhere(_) | Found::Nowhere => {}
            }
        }
        self.follow_taps(attached, netns)?;
        self.reset_lost(attached, netns, &bridge, now_ns)
    }

    /// For epoll: the bridge has learned an address.
    pub fn bridge_events(&self) -> Option<&BridgeEvents> {
        self.splits.events()
    }

    /// Tells of split connections whose VM the bridge has learned elsewhere.
    pub fn notice_announced(&mut self, attached: &Attached, netns: Option<&Netns>) -> Result<()> {
        netns.map_or(Ok(()), |netns| self.splits.follow_moves(attached, netns))
    }

    /// Connections with bytes to acknowledge, and their next hops; and whether these are all.
    fn waiting_vms(&mut self, memory: &HoldMaps) -> (Vec<(flow_key, Mac)>, bool) {
        let groups = memory.hold_count() / SLAB_HOLDS;
        let mut found = Vec::new();
        for at in 0..groups {
            let group = (self.first_group + at) % groups;
            let busy = memory.busy(group);
            for bit in (0..SLAB_HOLDS).filter(|bit| busy & (1 << bit) != 0) {
                let hold = memory.read(group * SLAB_HOLDS + bit + 1);
                found.push((hold.key, hold.next_hop));
            }
            if found.len() >= HOLDS {
                self.first_group = group + 1;
                return (found, at + 1 == groups);
            }
        }
        (found, true)
    }

    /// Opens the ways to VMs that are followed, and closes the others.
    fn follow_taps(&mut self, attached: &Attached, netns: &Netns) -> Result<()> {
        let followed = self.moves.followed();
        self.devices.retain(|port, _| followed.values().any(|followed| followed == port));
        self.heard.retain(|mac, heard| followed.get(mac) == Some(&heard.port));
        for (mac, port) in followed {
            if let Entry::Vacant(entry) = self.devices.entry(port) {
                entry.insert(netns.run(|| Ok::<_, error::Error>(Device::open(port)))??);
            }
            if let Entry::Vacant(entry) = self.heard.entry(mac) {
                let from_vm = attached.port.open_hook(Hook::FromVm)?;
                let to_vm = attached.port.open_hook(Hook::ToVm)?;
                let ear = netns.run(|| Ok::<_, error::Error>(Ear::of_vm(port, mac)))??;
                entry.insert(HeardVm { port, ear, from_vm, to_vm });
            }
        }
        Ok(())
    }

    /// Shows the hooks what VMs and their senders have sent.
    pub fn hear_bridges(&mut self, netns: Option<&Netns>) -> Result<()> {
        for (mac, vm) in &mut self.heard {
            let heard = vm.ear.take_acks();
            let Some(netns) = netns.filter(|_| !heard.is_empty()) else { continue };
            if heard.iter().any(|heard| matches!(heard, Heard::OfVm(_))) {
                self.moves.heard(*mac, monotonic_ns()?);
            }
            let (from_vm, to_vm) = (&vm.from_vm, &vm.to_vm);
            netns.run(|| {
                for segment in &heard {
                    match segment {
                        Heard::OfVm(ack) => from_vm.run(ack, 1)?,
                        Heard::OfSender(ack) => to_vm.run(ack, 1)?,
                    };
                }
                Ok::<_, error::Error>(())
            })?;
        }
        Ok(())
    }

    /// Takes what was announced at this bridge since the last look.
    fn take_announcements(&mut self, bridge: u32, netns: &Netns) -> Result<Vec<Announcement>> {
        if self.announcements.as_ref().is_none_or(|(at, _)| *at != bridge) {
            let ear = netns.run(|| Ok::<_, error::Error>(Ear::of_announcements(bridge)))??;
            self.announcements = Some((bridge, ear));
        }
        Ok(self.announcements.as_mut().map_or(Vec::new(), |(_, ear)| ear.take_announcements()))
    }

    /// Notes who announces the address of a VM with bytes to acknowledge: another VM, or the VM
    /// itself with another Ethernet address. What is held goes to the address of before.
    fn notice_takeovers(
        &mut self,
        attached: &Attached,
        announced: &[Announcement],
        now_ns: u64,
    ) -> Result<()> {
        if announced.is_empty() {
            return Ok(());
        }
        let flows = attached.port.flows()?;
        for announced in announced {
            self.takeovers.announced(announced, &flows, now_ns);
        }
        Ok(())
    }

    fn reset_lost(
        &mut self,
        attached: &Attached,
        netns: &Netns,
        bridge: &TapBridge,
        now_ns: u64,
    ) -> Result<()> {
        let lost = self.moves.lost(now_ns);
        if lost.is_empty() && !self.takeovers.are_any() {
            return Ok(());
        }
        let flows = attached.port.flows()?;
        let is_lost = |(key, flow): &&(flow_key, flow)| {
            let (mac, vlan, next_hop) = (key.vm_mac, bridge.vlan(key), flow.next_hop);
            outstanding_bytes(flow) > 0 && lost.contains(&VmRoute { mac, vlan, next_hop })
        };
        let why = "its VM is behind another port of the bridge, and does not answer";
        for (key, flow) in flows.iter().filter(is_lost) {
            reset_moved(attached, netns, key, flow, why)?;
        }
        let why = "another Ethernet address has announced its IP address, and its VM is silent";
        for (mac, key, flow) in self.takeovers.lost(&flows, now_ns) {
            if reset_moved(attached, netns, &key, &flow, why)? {
                // The VM itself may have that address now.
                let key = flow_key { vm_mac: mac, ..key };
                netns.run(|| Ok::<_, error::Error>(send(&attached.port, &key, &flow)))?;
            }
        }
        Ok(())
    }
}

/// False if the VM has acknowledged something since.
fn reset_moved(
    attached: &Attached,
    netns: &Netns,
    key: &flow_key,
    flow: &flow,
    why: &str,
) -> Result<bool> {
    let is_reset = reset(&attached.port, Some(netns), key, flow, reset_reason::RESET_MOVED)?;
    if is_reset {
        tracing::warn!("port {}: a connection was reset: {why}", attached.name);
    }
    Ok(is_reset)
}

fn log_move(attached: &Attached, to: Elsewhere) {
    let what = if to.can_follow { "goes there" } else { "cannot follow it" };
    tracing::warn!(
        "port {}: its VM is behind another port of the bridge now (interface {}): what is held {what}",
        attached.name,
        to.port
    );
}

enum Found {
    AtTap,
    Elsewhere(Elsewhere),
    /// The bridge has forgotten it.
    Nowhere,
}

fn find_elsewhere(bridge: &TapBridge, route: &VmRoute) -> error::Result<Found> {
    if let Some(port) = bridge.other_port(route.mac, route.vlan)? {
        let sender = bridge.find(route.next_hop, route.vlan)?;
        let can_follow = !bridge.filters_vlans && sender != Some(Place::Port(port));
        return Ok(Found::Elsewhere(Elsewhere { port, can_follow }));
    }
    let is_known = bridge.find(route.mac, route.vlan)?.is_some();
    Ok(if is_known { Found::AtTap } else { Found::Nowhere })
}
