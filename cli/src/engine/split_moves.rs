//! Split connections (accel/flow/split.h) whose VM is behind another port of the bridge, or whose
//! IP address another Ethernet address has announced. Hooks and splitter are told (`split_place`).
//!
//! The sockets' segments enter the bridge at the tap, and teach it that the VM is there. So it is
//! not asked once a second, as for what is held: the kernel says when it learns an address.

use std::collections::BTreeSet;

use anyhow::Result;
use vsnoop_bpf::split::{self, full_key};
use vsnoop_bpf::types::{flow_key, split_flow, split_place};
use vsnoop_hold::moves::Announcement;
use vsnoop_host::error;
use vsnoop_host::ports::Attached;
use vsnoop_host::system::bridge::{BridgeEvents, Learned, TapBridge};
use vsnoop_host::system::netns::Netns;

/// The split connections of one tap.
#[derive(Default)]
pub struct SplitMoves {
    /// While the port has downloads.
    events: Option<BridgeEvents>,
    /// The bridge at the last [`Self::listen_to_bridge`]: to ask costs time, in which sockets send.
    bridge: Option<TapBridge>,
    /// The bridge may have learned something before.
    must_ask: bool,
}

impl SplitMoves {
    /// Listens while the port has downloads.
    pub fn listen_to_bridge(&mut self, attached: &Attached, netns: &Netns) -> Result<()> {
        if !split::is_attached(&attached.port) {
            (self.events, self.bridge) = (None, None);
            return Ok(());
        }
        let meta = attached.port.meta()?;
        self.bridge = netns.run(|| TapBridge::find_bridge(&meta))?;
        if self.events.is_none() {
            self.events = Some(netns.run(|| Ok::<_, error::Error>(BridgeEvents::listen()))??);
            self.must_ask = true;
        }
        Ok(())
    }

    /// For epoll.
    pub fn events(&self) -> Option<&BridgeEvents> {
        self.events.as_ref()
    }

    /// Notes VMs whose addresses the bridge has learned elsewhere since the last time.
    pub fn follow_moves(&mut self, attached: &Attached, netns: &Netns) -> Result<()> {
        let Some(events) = &self.events else { return Ok(()) };
        let heard = events.take()?;
        let must_ask = std::mem::take(&mut self.must_ask) || heard.is_incomplete;
        let is_elsewhere = |one: &Learned| one.port != attached.meta.ifindex;
        let learned: Vec<_> = heard.learned.into_iter().filter(is_elsewhere).collect();
        if learned.is_empty() && !must_ask {
            return Ok(());
        }
        let Some(bridge) = self.bridge else { return Ok(()) };
        let here = find_keys(attached, |_, flow| flow.moved != split_place::SPLIT_MOVED)?;
        let mut moved = BTreeSet::new();
        for key in here {
            let vlan = bridge.vlan(&key);
            let has_learned = |one: &Learned| {
                (one.bridge, one.mac, one.vlan) == (bridge.ifindex, key.vm_mac, vlan)
            };
            if learned.iter().any(has_learned)
                || must_ask && netns.run(|| bridge.other_port(key.vm_mac, vlan))?.is_some()
            {
                split::note_place(&attached.port, &key, split_place::SPLIT_MOVED)?;
                moved.insert(key.vm_mac);
            }
        }
        if !moved.is_empty() {
            tracing::warn!(
                "port {}: its VM is behind another port of the bridge now: nothing is sent for it \
                 on split connections, unless it is heard here again",
                attached.name
            );
        }
        Ok(())
    }

    /// Notes VMs whose IP address another Ethernet address has announced: of another VM, or a new
    /// one of the VM itself. The splitter finds out whether both ends still answer.
    pub fn notice_takeovers(&self, attached: &Attached, announced: &[Announcement]) -> Result<()> {
        if self.events.is_none() || announced.is_empty() {
            return Ok(());
        }
        let is_taken = |key: &flow_key, flow: &split_flow| {
            let by_another =
                |one: &Announcement| one.address == key.vm_addr && one.mac != key.vm_mac;
            flow.moved == split_place::SPLIT_AT_TAP && announced.iter().any(by_another)
        };
        for key in find_keys(attached, is_taken)? {
            split::note_place(&attached.port, &key, split_place::SPLIT_TAKEN)?;
        }
        Ok(())
    }
}

fn find_keys(
    attached: &Attached,
    is_it: impl Fn(&flow_key, &split_flow) -> bool,
) -> Result<Vec<flow_key>> {
    let keys = split::flows(&attached.port)?.into_iter().map(|entry| (full_key(&entry), entry.1));
    Ok(keys.filter(|(key, flow)| is_it(key, flow)).map(|(key, _)| key).collect())
}
