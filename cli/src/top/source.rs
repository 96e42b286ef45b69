//! Reads samples of the host.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::Result;
use vsnoop_bpf::Port;
use vsnoop_bpf::types::{HOLD_CHUNK, flow, flow_key};
use vsnoop_host::flow_key::socket;
use vsnoop_host::flow_mode;
use vsnoop_host::holds::{self, Holds};
use vsnoop_host::ports::{self, Attached};
use vsnoop_host::split::TapId;
use vsnoop_host::system::clock::monotonic_ns;
use vsnoop_host::system::netns::{self, Netns};

use super::holders::{Holders, Tap};
use super::sample::{FlowId, FlowSample, FlowsSample, HoldSample, PortId, PortSample, Sample};
use crate::background::{self, Role};
use crate::counters::Resets;
use crate::identity::PortIdentity;
use crate::sockets::{SPLIT, Sockets, SplitFlow, split_key};

/// Flows of further ports are counted in a sample until it has read this number of records.
const RECORDS: u64 = 10_000;

/// Reads the ports that the arguments of the command choose.
pub struct Source {
    /// Names of ports; empty: all.
    names: Vec<String>,
    /// Inode of their network namespace; `None`: any.
    netns: Option<u64>,
    holders: Holders,
    counts: HashMap<PortId, Count>,
    turn: u64,
}

/// Flows of a port, as counted in some turn.
#[derive(Clone, Copy)]
struct Count {
    flows: u64,
    turn: u64,
}

impl Source {
    /// `names` and `netns` are the arguments of the command. An error if a named port is not
    /// attached, or ports cannot be read at all.
    pub fn new(names: &[String], netns: Option<&str>) -> Result<Self> {
        ports::chosen(names, netns)?;
        let netns = match netns {
            None if names.is_empty() => None,
            netns => Some(Netns::chosen(netns)?.inode),
        };
        let names = names.to_vec();
        Ok(Self { names, netns, holders: Holders::default(), counts: HashMap::new(), turn: 0 })
    }

    /// The chosen ports that are attached now.
    pub fn take_sample(&mut self) -> Result<Sample> {
        let mut inventory = ports::inventory()?;
        inventory.ports.retain(|port| {
            self.netns.is_none_or(|netns| port.meta.netns == netns)
                && (self.names.is_empty() || self.names.contains(&port.name))
        });
        let taps: Vec<Tap> =
            inventory.ports.iter().map(|port| (port.name.clone(), port.meta.netns)).collect();
        self.holders.update(taps.iter());
        self.count_flows(&inventory.ports);
        let names = netns::names();
        let mut ports = Vec::new();
        for (attached, tap) in inventory.ports.iter().zip(&taps) {
            match self.sample_port(attached, tap, &names) {
                Ok(port) => ports.push(port),
                // Detached meanwhile.
                Err(_) if !attached.port.is_there() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Sample {
            at: Instant::now(),
            ports,
            damaged: inventory.damaged.len(),
            has_helper: background::running_pid(Role::Helper).is_some(),
        })
    }

    fn sample_port(
        &self,
        attached: &Attached,
        tap: &Tap,
        names: &HashMap<u64, String>,
    ) -> Result<PortSample> {
        let identity = PortIdentity::from_attached(attached, names);
        let stats = attached.port.stats()?;
        let id = PortId(attached.port.id());
        Ok(PortSample {
            id,
            name: identity.port,
            netns: identity.netns_name,
            state: identity.state,
            vm: self.holders.name(tap).map(str::to_owned),
            early_bytes: stats.early_bytes,
            to_vm_bytes: stats.to_vm_bytes,
            masked_ns: stats.masked_ns,
            flows_created: stats.flows_created,
            resets: Resets::count_resets(&attached.meta, &stats).total(),
            hold: sample_hold(&attached.port)?,
            flows: self.counts.get(&id).map(|count| count.flows),
        })
    }

    /// Counts flows of the ports whose count is the oldest.
    fn count_flows(&mut self, ports: &[Attached]) {
        self.turn += 1;
        let mut waiting: Vec<_> = ports.iter().map(|port| &port.port).collect();
        let turn = |port: &&Port| self.counts.get(&PortId(port.id())).map(|count| count.turn);
        waiting.sort_by_cached_key(turn);
        let mut next = HashMap::with_capacity(ports.len());
        let mut records = 0;
        for port in waiting {
            let id = PortId(port.id());
            // A port that cannot be read is left out, or said, by what reads its counters.
            let flows = if records < RECORDS { port.flows().ok() } else { None };
            let count = flows.map(|flows| Count { flows: flows.len() as u64, turn: self.turn });
            records += count.map_or(0, |count| count.flows);
            if let Some(count) = count.or_else(|| self.counts.get(&id).copied()) {
                next.insert(id, count);
            }
        }
        self.counts = next;
    }

    /// All flows of a port that a sample had.
    pub fn sample_flows(&mut self, id: PortId) -> Result<FlowsSample> {
        let inventory = ports::inventory()?;
        let found = inventory.ports.iter().find(|attached| attached.port.id() == id.0);
        let flows = match found.map(|attached| read_flows(&attached.port)) {
            Some(Err(_)) if found.is_some_and(|attached| !attached.port.is_there()) => None,
            other => other.transpose()?,
        };
        Ok(FlowsSample { port: id, at: Instant::now(), flows })
    }
}

fn sample_hold(port: &Port) -> Result<Option<HoldSample>> {
    let (policy, state) = (port.policy()?, port.state()?);
    if policy.hold_chunks == 0 {
        return Ok(None);
    }
    let bytes = |chunks: u32| u64::from(chunks) * u64::from(HOLD_CHUNK);
    Ok(Some(HoldSample {
        used_bytes: bytes(state.chunks_used),
        size_bytes: bytes(policy.hold_chunks),
        engine_is_alive: holds::engine_is_alive(state.engine_ns, monotonic_ns()?),
    }))
}

fn read_flows(port: &Port) -> Result<Vec<FlowSample>> {
    let holds = Holds::open(port)?;
    let now_ns = monotonic_ns()?;
    let (tap, mut splits) = (TapId::from_port(port).ok(), HashMap::new());
    splits.extend(vsnoop_bpf::split::flows(port)?);
    let sockets = if splits.is_empty() { Sockets::default() } else { Sockets::read() };
    let mark = |(key, flow): &(flow_key, flow)| {
        let sample = describe_flow(key, flow, &holds, now_ns);
        let key = split_key(key);
        let (Some(split), Some(tap)) = (splits.get(&key), tap) else { return sample };
        mark_split(sample, &sockets.find_flow(tap, &key), now_ns.saturating_sub(split.last_ns))
    };
    Ok(port.flows()?.iter().map(mark).collect())
}

/// A connection that is split: bytes on their way in both directions, and those sent again to the
/// peer.
fn mark_split(sample: FlowSample, split: &SplitFlow, idle_ns: u64) -> FlowSample {
    let held = split.held_to_peer_bytes.zip(split.held_to_vm_bytes);
    FlowSample {
        mode: SPLIT,
        held_bytes: held.map(|(to_peer, to_vm)| to_peer + to_vm),
        resent_bytes: split.to_peer.as_ref().map(|sending| sending.retransmitted_bytes),
        idle_ns,
        ..sample
    }
}

fn describe_flow(key: &flow_key, flow: &flow, holds: &Holds, now_ns: u64) -> FlowSample {
    let hold = holds.flow(key, flow);
    FlowSample {
        id: FlowId {
            sender: socket(key.sender_addr, key.sender_port),
            vm: socket(key.vm_addr, key.vm_port),
            vlans: [key.vlan_outer, key.vlan_inner],
            vm_mac: key.vm_mac,
        },
        mode: flow_mode::name(flow),
        early_bytes: flow.early_bytes,
        outstanding_bytes: flow.next_seq.diff(flow.vm_seq).max(0) as u64,
        held_bytes: hold.as_ref().map(|hold| hold.held_bytes),
        resent_bytes: hold.as_ref().map(|hold| hold.resent_bytes),
        idle_ns: now_ns.saturating_sub(flow.last_ns),
    }
}
