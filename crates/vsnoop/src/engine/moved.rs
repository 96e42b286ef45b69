//! VMs that are behind another port of the tap's bridge, or whose IP address another VM has taken
//! (vsnoop_upkeep::moves decides).
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
use vsnoop_host::error;
use vsnoop_host::ports::Attached;
use vsnoop_host::reset::reset;
use vsnoop_host::system::bridge::{BridgeEvents, Place, TapBridge};
use vsnoop_host::system::clock::monotonic_ns;
use vsnoop_host::system::netns::Netns;
use vsnoop_upkeep::moves::{Announcement, Elsewhere, Mac, Moves, Takeovers, VmRoute};
use vsnoop_upkeep::outstanding_bytes;

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

/// What a VM and its senders send at another port.
struct HeardVm {
    port: u32,
    ear: Ear,
    from_vm: OpenHook,
    to_vm: OpenHook,
}

impl MovedVms {
    /// The way to the VM to which these frames go; `None`: the tap.
    pub fn device(&self, mac: &[u8], next_hop: &[u8]) -> Option<&Device> {
        self.devices.get(&self.moves.port(mac, next_hop)?)
    }

    pub fn are_any(&self) -> bool {
        self.moves.are_any()
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
        let announced = self.take_announcements(meta.bridge, netns)?;
        self.splits.listen(attached, netns)?;
        self.splits.look(attached, netns)?;
        self.splits.notice_takeovers(attached, &announced)?;
        let (waiting, are_all) = self.waiting(memory);
        if waiting.is_empty() && !self.moves.are_any() && !self.takeovers.are_any() {
            return Ok(());
        }
        let Some(bridge) = netns.run(|| TapBridge::of(&meta))? else { return Ok(()) };
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
        self.notice_takeovers(attached, netns, &bridge, &announced, now_ns)?;
        let place = |route: VmRoute| Ok((route, elsewhere(&bridge, &route)?));
        let places: error::Result<Vec<_>> = netns.run(|| waiting.into_iter().map(place).collect());
        for (route, found) in places? {
            match found {
                Found::Elsewhere(to) if self.moves.found(route, Some(to), now_ns) => {
                    say(attached, to);
                }
                Found::AtTap => drop(self.moves.found(route, None, now_ns)),
                Found::Elsewhere(_) | Found::Nowhere => {}
            }
        }
        self.follow(attached, netns)?;
        self.give_up(attached, netns, &bridge, now_ns)
    }

    /// For epoll: the bridge has learned an address.
    pub fn bridge_events(&self) -> Option<&BridgeEvents> {
        self.splits.events()
    }

    /// Tells of split connections whose VM the bridge has learned elsewhere.
    pub fn notice(&mut self, attached: &Attached, netns: Option<&Netns>) -> Result<()> {
        netns.map_or(Ok(()), |netns| self.splits.look(attached, netns))
    }

    /// Connections with bytes to acknowledge, and their next hops; and whether these are all.
    fn waiting(&mut self, memory: &HoldMaps) -> (Vec<(flow_key, Mac)>, bool) {
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
    fn follow(&mut self, attached: &Attached, netns: &Netns) -> Result<()> {
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
    pub fn hear(&mut self, netns: Option<&Netns>) -> Result<()> {
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

    /// Notes who announces the address of a VM with bytes to acknowledge, not behind the tap.
    fn notice_takeovers(
        &mut self,
        attached: &Attached,
        netns: &Netns,
        bridge: &TapBridge,
        announced: &[Announcement],
        now_ns: u64,
    ) -> Result<()> {
        if announced.is_empty() {
            return Ok(());
        }
        let flows = attached.port.flows()?;
        for announced in announced.iter().filter(|heard| Takeovers::concerns(heard, &flows)) {
            let vlans: BTreeSet<_> = flows
                .iter()
                .filter(|(key, _)| key.vm_addr == announced.address)
                .map(|(key, _)| bridge.vlan(key))
                .collect();
            let is_behind_tap = |vlan| bridge.is_behind_tap(announced.mac, vlan);
            let behind: error::Result<Vec<bool>> =
                netns.run(|| vlans.into_iter().map(is_behind_tap).collect());
            if !behind?.contains(&true) {
                self.takeovers.announced(announced, &flows, now_ns);
            }
        }
        Ok(())
    }

    fn give_up(
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
        let moved = flows.iter().filter(is_lost).copied().collect::<Vec<_>>();
        let why = "its VM is behind another port of the bridge, and does not answer";
        reset_all(attached, netns, &moved, why)?;
        let taken = self.takeovers.lost(&flows, now_ns);
        reset_all(
            attached,
            netns,
            &taken,
            "another VM has taken its address, and its own is silent",
        )
    }
}

fn reset_all(
    attached: &Attached,
    netns: &Netns,
    flows: &[(flow_key, flow)],
    why: &str,
) -> Result<()> {
    for (key, flow) in flows {
        if reset(&attached.port, Some(netns), key, flow, reset_reason::RESET_MOVED)? {
            tracing::warn!("port {}: a connection was reset: {why}", attached.name);
        }
    }
    Ok(())
}

fn say(attached: &Attached, to: Elsewhere) {
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

fn elsewhere(bridge: &TapBridge, route: &VmRoute) -> error::Result<Found> {
    if let Some(port) = bridge.other_port(route.mac, route.vlan)? {
        let sender = bridge.find(route.next_hop, route.vlan)?;
        let can_follow = !bridge.filters_vlans && sender != Some(Place::Port(port));
        return Ok(Found::Elsewhere(Elsewhere { port, can_follow }));
    }
    let is_known = bridge.find(route.mac, route.vlan)?.is_some();
    Ok(if is_known { Found::AtTap } else { Found::Nowhere })
}
