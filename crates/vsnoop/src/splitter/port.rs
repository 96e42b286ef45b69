//! The split connections of one port.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use vsnoop_bpf::Port;
use vsnoop_bpf::split::{Record, SplitPort};
use vsnoop_bpf::types::{
    HOLD_CHUNK, SPLIT_LATE_FOR_NS, flow_key, policy, reset_reason, split_flow,
};
use vsnoop_host::error::with_causes;
use vsnoop_host::split::PATIENCE;
use vsnoop_host::system::clock::monotonic_ns;
use vsnoop_split::{Settings, Side, Split};

use crate::keeper::Keeper;
use crate::splitter::connection::{Connected, Numbers, Progress};
use crate::splitter::flights::Flights;
use crate::splitter::plan::{Refusal, plan};
use crate::splitter::record::{Left, PortKey};

/// Most bytes that a VM may be ahead of its peer on one connection.
const MOST_AHEAD: u32 = 4 << 20;
/// As much as this at least, if there are few connections: what a path carries is not known at
/// first, and a new congestion window doubles several times until the VM's next turn.
const FIRST_AHEAD: u32 = 1 << 20;
/// The same for all connections of a port together, so that what is ahead leaves soon.
const FIRST_OF_ALL: u32 = 8 << 20;
/// With less than this for a connection it is left to its VM.
const LEAST_AHEAD: u32 = 128 << 10;
/// How far a VM may be ahead while its port is paused.
const PAUSED_AHEAD: u32 = 16 << 10;
/// Connections that are split at this time after downloads were switched off are reset, before
/// the programs are taken off.
const RESET_AFTER: Duration = Duration::from_millis(2500);
const _: () = assert!(RESET_AFTER.as_millis() + 100 < PATIENCE.as_millis());
/// Most connections of a port that are split at a time.
const MOST: usize = 512;

/// A port whose connections are split.
pub struct SplitterPort {
    pub name: String,
    key: PortKey,
    port: Port,
    maps: SplitPort,
    /// The device by which the sockets reach both ends.
    device: String,
    flights: Flights,
    connections: HashMap<u32, Connected>,
    next: u32,
    /// Since when nothing is split any more, and since when downloads are off.
    paused: Option<Instant>,
    ends: Option<Instant>,
    /// Bytes that all VMs' connections may be ahead: the port's hold.
    quota: u64,
    /// Of the latest tick, CLOCK_MONOTONIC.
    now_ns: u64,
}

fn quota(policy: &policy) -> u64 {
    u64::from(policy.hold_chunks) * u64::from(HOLD_CHUNK)
}

impl SplitterPort {
    /// Opens the pins. Nothing is split before [`Self::take_up`].
    pub fn open(name: String, key: PortKey, port: Port, device: String) -> Result<Self> {
        let maps = SplitPort::open(&port)?;
        let quota = quota(&port.policy()?);
        Ok(Self {
            name,
            key,
            port,
            maps,
            device,
            flights: Flights::default(),
            connections: HashMap::new(),
            next: 1,
            paused: None,
            ends: None,
            quota,
            now_ns: monotonic_ns()?,
        })
    }

    /// Goes on with what an earlier splitter has left. Connections whose sockets are gone are over:
    /// the kernel has reset both ends. Returns the numbers of the others.
    pub fn take_up(&mut self, mut left: Vec<Left>) -> Vec<u32> {
        // The latest of an end's connections first: the earlier ones are over.
        left.sort_by_key(|one| std::cmp::Reverse(one.id));
        let known: HashSet<flow_key> = self.maps.split_flows().into_iter().map(full_key).collect();
        let mut taken = HashSet::new();
        for one in left {
            let key = one.record.key;
            if !taken.insert(key) || !known.contains(&key) {
                if one.drop_silently() {
                    self.give_up([key]);
                }
                continue;
            }
            match Connected::take_up(one) {
                Ok(connected) => drop(self.insert(connected)),
                // Its entry is found below.
                Err(error) => tracing::warn!("port {}: {error:#}", self.name),
            }
        }
        self.give_up_those_left();
        self.maps.turn_on(self.port.may_split().unwrap_or(false));
        self.connections.keys().copied().collect()
    }

    pub fn ring(&self) -> impl AsFd {
        self.maps.ring()
    }

    pub fn connection(&self, number: u32) -> Option<&Connected> {
        self.connections.get(&number)
    }

    /// Takes what the hooks have copied and asked. Returns the numbers of new connections.
    pub fn listen(&mut self, keeper: &mut Keeper) -> Vec<u32> {
        let mut begun = Vec::new();
        for record in self.maps.take_records() {
            match record {
                Record::Copied(copied) => self.flights.add(&copied),
                Record::Wanted(key) => match self.begin(&key, keeper) {
                    Ok(Ok(number)) => begun.push(number),
                    Ok(Err(refusal)) => self.refuse(&key, refusal),
                    Err(error) => {
                        tracing::warn!("port {}: no split: {error:#}", self.name);
                        self.refuse(&key, Refusal::Never);
                    }
                },
            }
        }
        begun
    }

    /// Moves bytes of a connection.
    pub fn serve(&mut self, number: u32) -> Progress {
        let Some(connected) = self.connections.get_mut(&number) else { return Progress::Waits };
        match connected.pump() {
            Ok(progress) => {
                self.adapt(number, Instant::now());
                progress
            }
            Err(broken) => {
                tracing::debug!("port {}: a split connection ends: {broken:?}", self.name);
                self.reset(number);
                Progress::Waits
            }
        }
    }

    /// Adapts how far the VM of a connection may be ahead. All connections are looked at for that.
    fn adapt(&mut self, number: u32, now: Instant) {
        let may_adapt = |one: &Connected| self.paused.is_none() && one.may_adapt(now);
        if !self.connections.get(&number).is_some_and(may_adapt) {
            return;
        }
        let (first, room) = (self.first_ahead(), self.room());
        if let Some(connected) = self.connections.get_mut(&number) {
            let most = connected.ahead.saturating_add(room).min(MOST_AHEAD);
            connected.adapt(first.min(most), most, now);
        }
    }

    /// Joins what is idle, or all if the port is paused; removes what is over.
    pub fn tick(&mut self, now: Instant) {
        if let Ok(now_ns) = monotonic_ns() {
            self.now_ns = now_ns;
        }
        self.follow_the_record(now);
        let is_urgent = self.ends.is_some_and(|since| now.duration_since(since) > RESET_AFTER);
        let numbers: Vec<u32> = self.connections.keys().copied().collect();
        for number in numbers {
            let Some(connected) = self.connections.get_mut(&number) else { continue };
            if connected.is_over(now) {
                self.remove(number);
            } else if connected.is_to_be_joined(self.paused.is_some(), now) {
                self.join(number);
                if is_urgent {
                    self.reset(number);
                }
            }
        }
        if self.connections.values().any(|connected| connected.vm_is_late(now)) {
            self.maps.extend_late(self.now_ns.saturating_add(SPLIT_LATE_FOR_NS));
        }
    }

    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Has the keeper keep what it does not have. Adds the numbers of all to `live`.
    pub fn keep(&self, keeper: &mut Keeper, live: &mut HashSet<u64>) {
        for connected in self.connections.values() {
            live.insert(connected.id);
            connected.keep(keeper);
        }
    }

    pub fn are_any(&self) -> bool {
        !self.connections.is_empty()
    }

    /// Resets all, for a port that goes.
    pub fn reset_all(&mut self) {
        self.maps.turn_on(false);
        let numbers: Vec<u32> = self.connections.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.reset(number));
    }

    /// Pauses with the port, and ends with its downloads. A record that cannot be read is of a port
    /// that goes.
    fn follow_the_record(&mut self, now: Instant) {
        let may_split = self.port.may_split().unwrap_or(false);
        let policy = self.port.policy();
        let has_downloads = policy.as_ref().is_ok_and(|policy| policy.downloads != 0);
        self.quota = policy.map_or(0, |policy| quota(&policy));
        self.ends = (!has_downloads).then_some(self.ends.unwrap_or(now));
        if may_split == self.paused.is_none() {
            return;
        }
        self.paused = (!may_split).then_some(now);
        self.maps.turn_on(may_split);
        for connected in self.connections.values() {
            connected.limit(if may_split { connected.ahead } else { PAUSED_AHEAD });
        }
    }

    fn begin(
        &mut self,
        key: &flow_key,
        keeper: &mut Keeper,
    ) -> Result<std::result::Result<u32, Refusal>> {
        let (Some(candidate), Some(record)) = (self.maps.candidate(key)?, self.port.flow(key)?)
        else {
            return Ok(Err(Refusal::Later));
        };
        let from = candidate.numbers().peer_ack.v;
        let Some(flight) = self.flights.get(key, from, candidate.sent()) else {
            return Ok(Err(Refusal::Later));
        };
        let Some(ahead) = self.ahead() else { return Ok(Err(Refusal::Later)) };
        let now_ns = monotonic_ns()?;
        let plan = match plan(key, &candidate, &record, &flight, now_ns) {
            Ok(plan) => plan,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let settings = Settings {
            device: &self.device,
            congestion_control: None,
            send_bytes: MOST_AHEAD,
            receive_bytes: ahead,
        };
        let split = Split::new(&plan.connection, &settings).context("make the sockets")?;
        let flow = plan.flow_with_clock(split.clock(Side::Peer).context("read a socket's clock")?);
        let numbers = Numbers { sent: plan.sent, peer_nxt: plan.peer_nxt };
        let id = keeper.next_id();
        let connected = Connected::new(id, self.key, *key, split, numbers, ahead)?;
        // First, so that they are known wherever this process is killed.
        connected.keep(keeper);
        if !self.maps.begin(key, flow, plan.sent, plan.peer_nxt)? {
            connected.give_back();
            return Ok(Err(Refusal::Later));
        }
        self.flights.forget(key);
        Ok(Ok(self.insert(connected)))
    }

    fn insert(&mut self, connected: Connected) -> u32 {
        let number = self.next;
        self.next = self.next.checked_add(1).unwrap_or(1);
        self.connections.insert(number, connected);
        number
    }

    /// How far the VM of another connection may be ahead at first. `None`: too little memory is
    /// left.
    fn ahead(&self) -> Option<u32> {
        if self.paused.is_some() || self.connections.len() >= MOST {
            return None;
        }
        let ahead = self.first_ahead().min(self.room());
        (ahead >= LEAST_AHEAD).then_some(ahead)
    }

    fn first_ahead(&self) -> u32 {
        let each = FIRST_OF_ALL / (self.connections.len() as u32 + 1);
        each.clamp(LEAST_AHEAD, FIRST_AHEAD)
    }

    /// Half of the memory that is left, so that each connection gets less the more there are.
    fn room(&self) -> u32 {
        let given: u64 = self.connections.values().map(|one| u64::from(one.ahead)).sum();
        u32::try_from(self.quota.saturating_sub(given) / 2).unwrap_or(u32::MAX)
    }

    fn refuse(&mut self, key: &flow_key, refusal: Refusal) {
        let done = match refusal {
            Refusal::Later => self.maps.later(key),
            Refusal::Never => {
                self.flights.forget(key);
                self.maps.refuse(key)
            }
        };
        if let Err(error) = done {
            tracing::warn!("port {}: {}", self.name, with_causes(&error));
        }
    }

    /// The ends talk to each other again, if nothing is on its way.
    fn join(&mut self, number: u32) {
        let Some(connected) = self.connections.get_mut(&number) else { return };
        match connected.join(&self.maps) {
            Ok(Some(ends)) => {
                let key = connected.key;
                self.connections.remove(&number);
                if let Err(error) = self.port.rejoin(&key, &ends, self.now_ns) {
                    tracing::warn!("port {}: {}", self.name, with_causes(&error));
                }
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!("port {}: {error:#}", self.name);
                self.reset(number);
            }
        }
    }

    /// Resets both ends. The hooks' entry goes later, behind the RSTs.
    fn reset(&mut self, number: u32) {
        let Some(connected) = self.connections.get_mut(&number) else { return };
        let bytes = connected.reset();
        if let Err(error) = self.port.count_reset(reset_reason::RESET_DETACHED, 1, bytes) {
            tracing::warn!("port {}: {}", self.name, with_causes(&error));
        }
    }

    /// Of a connection that is over.
    fn remove(&mut self, number: u32) {
        let Some(connected) = self.connections.remove(&number) else { return };
        self.forget(&connected.key);
    }

    fn forget(&self, key: &flow_key) {
        let gone = self.maps.end(key, 0, 0);
        let gone = gone.and_then(|_| self.port.delete_flow_if(key, |_| true).map(drop));
        if let Err(error) = gone {
            tracing::warn!("port {}: {}", self.name, with_causes(&error));
        }
    }

    fn give_up_those_left(&self) {
        let known: HashSet<flow_key> = self.connections.values().map(|one| one.key).collect();
        let left = self.maps.split_flows().into_iter().map(full_key);
        self.give_up(left.filter(|key| !known.contains(key)));
    }

    /// Of connections whose sockets are gone. An end that only reads may not have heard of it: the
    /// hooks answer what it sends with RST, and the helper lets it send something.
    fn give_up(&self, keys: impl IntoIterator<Item = flow_key>) {
        let mut count = 0;
        for key in keys {
            count += 1;
            if let Err(error) = self.try_give_up(&key) {
                tracing::warn!("port {}: {}", self.name, with_causes(&error));
            }
        }
        if count == 0 {
            return;
        }
        tracing::warn!(
            "port {}: an earlier splitter has ended, and {count} of its split connections were reset",
            self.name,
        );
        if let Err(error) = self.port.count_reset(reset_reason::RESET_ENGINE_GONE, count, 0) {
            tracing::warn!("port {}: {}", self.name, with_causes(&error));
        }
    }

    fn try_give_up(&self, key: &flow_key) -> vsnoop_bpf::Result<()> {
        if let Some(flow) = self.port.flow(key)? {
            self.port.mark_reset(key, &flow, self.now_ns)?;
        }
        self.maps.end(key, 0, 0).map(drop)
    }
}

/// The key with the VM's MAC address, which that of a split connection does not have.
fn full_key((key, flow): (flow_key, split_flow)) -> flow_key {
    flow_key { vm_mac: flow.vm_mac, ..key }
}
