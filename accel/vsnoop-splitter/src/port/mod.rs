//! The split connections of one port.

mod endings;

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::{Context, Result};
use vsnoop_flow::split::{Record, full_key};
use vsnoop_flow::types::{
    HOLD_CHUNK, SPLIT_LATE_FOR_NS, flow_key, policy, reset_reason, split_place,
};
use vsnoop_split::{Facing, Pair, Settings, Side};

use crate::connection::{Connected, Numbers, Progress, Whereabouts};
use crate::flights::Flights;
use crate::hooks::{Hooks, Keeper};
use crate::plan::{Refusal, plan};
use crate::record::{Left, PortKey};

/// Most bytes that a VM may be ahead of its peer on one connection.
const MOST_AHEAD: u32 = 4 << 20;
/// The least of that, if there are few connections, bytes: how much a path carries is not known at
/// first, and a new congestion window doubles several times until the VM's next turn.
const FIRST_AHEAD: u32 = 1 << 20;
/// The most that all connections of a port together may be ahead at first, bytes, so that they
/// leave soon.
const FIRST_OF_ALL: u32 = 2 << 20;
/// With less than this for a connection it is left to its VM.
const LEAST_AHEAD: u32 = 128 << 10;
/// How long the ends of a paused port may go on sending.
const DRAINS_AFTER_NS: u64 = 100_000_000;
/// Connections that are split at this time after downloads were switched off are reset, before
/// the programs are taken off.
pub const RESET_AFTER_NS: u64 = 2_500_000_000;
/// Interval at which bytes are counted.
const COUNT_NS: u64 = 90_000_000;
/// Most connections of a port that are split at a time.
const MOST: usize = 512;

/// A port whose connections are split.
#[derive(Debug)]
pub struct SplitterPort<S: Facing> {
    pub name: String,
    key: PortKey,
    /// The device by which the sockets reach both ends.
    device: String,
    flights: Flights,
    connections: BTreeMap<u32, Connected<S>>,
    next: u32,
    /// Since when nothing is split any more, and since when downloads are off: CLOCK_MONOTONIC, as
    /// all times here.
    paused_ns: Option<u64>,
    /// The ends are shown no room.
    drains: bool,
    ends_ns: Option<u64>,
    /// Bytes that all VMs' connections may be ahead: the port's hold.
    quota: u64,
    /// When what was moved was counted last.
    counted_ns: Option<u64>,
    /// How often VMs of split connections were found elsewhere, at the last look.
    moves: u64,
}

/// Simulated sockets can be cloned, as in [`Connected`].
impl<S: Facing + Clone> Clone for SplitterPort<S>
where
    S::Pipe: Clone,
{
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            device: self.device.clone(),
            flights: self.flights.clone(),
            connections: self.connections.clone(),
            ..*self
        }
    }
}

fn quota(policy: &policy) -> u64 {
    u64::from(policy.hold_chunks) * u64::from(HOLD_CHUNK)
}

impl<S: Facing> SplitterPort<S> {
    /// Nothing is split before [`Self::take_up`]. `device`: see [`Self::device`].
    pub fn new(name: String, key: PortKey, device: String) -> Self {
        Self {
            name,
            key,
            device,
            flights: Flights::default(),
            connections: BTreeMap::new(),
            next: 1,
            paused_ns: None,
            drains: false,
            ends_ns: None,
            quota: 0,
            counted_ns: None,
            moves: 0,
        }
    }

    /// Goes on with what an earlier splitter has left. Connections whose sockets are gone are over:
    /// the kernel has reset both ends. Returns the numbers of the others.
    pub fn take_up(
        &mut self,
        mut left: Vec<Left<S>>,
        hooks: &mut impl Hooks,
        now_ns: u64,
    ) -> Vec<u32> {
        self.quota = hooks.policy().map_or(0, |policy| quota(&policy));
        // The latest of an end's connections first: the earlier ones are over.
        left.sort_by_key(|one| std::cmp::Reverse(one.id));
        let known: HashSet<flow_key> = hooks.split_flows().iter().map(full_key).collect();
        let mut taken = HashSet::new();
        for one in left {
            let key = one.record.key;
            let is_latest = taken.insert(key);
            if !is_latest || !known.contains(&key) {
                // The entry of an earlier one is that of the latest.
                if one.drop_silently() && is_latest {
                    self.reset_lost([key], hooks, now_ns);
                }
                continue;
            }
            match Connected::take_up(one, now_ns) {
                Ok(connected) => drop(self.insert(connected)),
                // Its entry is found below.
                Err(error) => tracing::warn!("port {}: {error:#}", self.name),
            }
        }
        self.reset_unknown(hooks, now_ns);
        let may_split = hooks.may_split();
        hooks.turn_on(may_split);
        self.connections.keys().copied().collect()
    }

    pub fn connection(&self, number: u32) -> Option<&Connected<S>> {
        self.connections.get(&number)
    }

    /// All, with their numbers.
    pub fn connections(&self) -> impl Iterator<Item = (u32, &Connected<S>)> {
        self.connections.iter().map(|(number, connected)| (*number, connected))
    }

    /// Takes what the hooks have copied and asked. Returns the numbers of new connections.
    pub fn listen(
        &mut self,
        hooks: &mut impl Hooks,
        keeper: &mut impl Keeper<S>,
        now_ns: u64,
    ) -> Vec<u32> {
        let (mut begun, mut wanted) = (Vec::new(), Vec::new());
        for record in hooks.take_records() {
            match record {
                Record::Copied(copied) => self.flights.add(&copied),
                Record::Wanted(key) => wanted.push(key),
            }
        }
        // Last: a VM sends more behind the segment with which it was wanted.
        for key in wanted {
            match self.begin(&key, hooks, keeper, now_ns) {
                Ok(number) => begun.push(number),
                Err(refusal) => self.refuse(&key, refusal, hooks),
            }
        }
        begun
    }

    /// Moves bytes of a connection.
    pub fn serve(&mut self, number: u32, hooks: &mut impl Hooks, now_ns: u64) -> Progress {
        let Some(connected) = self.connections.get_mut(&number) else { return Progress::Waits };
        match connected.pump(now_ns) {
            Ok(Progress::Over) => {
                let key = *connected.key();
                self.note_over(&key, hooks);
                Progress::Over
            }
            Ok(progress) => {
                self.adapt(number, now_ns);
                progress
            }
            Err(broken) => {
                self.end(number, &broken, hooks, now_ns);
                Progress::Waits
            }
        }
    }

    /// Adapts how far the VM of a connection may be ahead. All connections are looked at for that.
    fn adapt(&mut self, number: u32, now_ns: u64) {
        let may_adapt = |one: &Connected<S>| self.paused_ns.is_none() && one.may_adapt(now_ns);
        if !self.connections.get(&number).is_some_and(may_adapt) {
            return;
        }
        let (first, room) = (self.first_ahead(), self.room());
        if let Some(connected) = self.connections.get_mut(&number) {
            let most = connected.ahead.saturating_add(room).min(MOST_AHEAD);
            connected.adapt(first.min(most), most, now_ns);
        }
    }

    /// Joins what is idle, or all if the port is paused; removes what is over.
    pub fn tick(&mut self, hooks: &mut impl Hooks, now_ns: u64) {
        self.follow_the_record(hooks, now_ns);
        self.follow_vms(hooks, now_ns);
        self.count(hooks, now_ns);
        let is_urgent =
            self.ends_ns.is_some_and(|since| now_ns.saturating_sub(since) > RESET_AFTER_NS);
        let numbers: Vec<u32> = self.connections.keys().copied().collect();
        for number in numbers {
            let Some(connected) = self.connections.get_mut(&number) else { continue };
            if connected.is_over(now_ns) {
                self.remove(number, hooks);
            } else if connected.is_to_be_joined(self.paused_ns.is_some(), now_ns) {
                self.join(number, hooks, now_ns);
                if is_urgent {
                    self.reset(number, hooks, now_ns);
                }
            }
        }
        self.follow_lateness(hooks, now_ns);
    }

    /// The VM is late with what is split, or the engine saw it wait for a CPU. The hooks note only
    /// what is late of connections that are not split, after their first answer.
    fn follow_lateness(&self, hooks: &mut impl Hooks, now_ns: u64) {
        let is_late = self.connections.values().any(|connected| connected.vm_is_late(now_ns));
        if let Some(until_ns) = late_until(now_ns, is_late, hooks.starved_ns()) {
            hooks.extend_late(now_ns, until_ns);
        }
    }

    /// Ends connections whose VM is elsewhere for long.
    fn follow_vms(&mut self, hooks: &mut impl Hooks, now_ns: u64) {
        let moves = hooks.moves();
        if moves == self.moves && !self.connections.values().any(Connected::is_elsewhere) {
            return;
        }
        self.moves = moves;
        let flows = hooks.split_flows();
        let places: HashMap<flow_key, split_place::Type> =
            flows.iter().map(|entry| (full_key(entry), entry.1.moved)).collect();
        let numbers: Vec<u32> = self.connections.keys().copied().collect();
        for number in numbers {
            let Some(connected) = self.connections.get_mut(&number) else { continue };
            let Some(place) = places.get(connected.key()) else { continue };
            match connected.look_for_vm(*place, now_ns) {
                Whereabouts::Here | Whereabouts::Unknown => {}
                Whereabouts::HereAfterAll => {
                    if let Err(error) = hooks.note_at_tap(connected.key()) {
                        tracing::warn!("port {}: {error:#}", self.name);
                    }
                }
                Whereabouts::Elsewhere if *place == split_place::SPLIT_GONE => {
                    self.leave(number, reset_reason::RESET_NO_READER, hooks, now_ns);
                }
                Whereabouts::Elsewhere => {
                    self.leave(number, reset_reason::RESET_MOVED, hooks, now_ns);
                }
            }
        }
    }

    /// Counts what was moved, and what is held now.
    fn count(&mut self, hooks: &mut impl Hooks, now_ns: u64) {
        if self.counted_ns.is_some_and(|at| now_ns.saturating_sub(at) < COUNT_NS) {
            return;
        }
        self.counted_ns = Some(now_ns);
        hooks.change_totals(|totals| {
            (totals.held_to_peer_bytes, totals.held_to_vm_bytes) = (0, 0);
            for connected in self.connections.values_mut() {
                let held = connected.count(totals);
                totals.held_to_peer_bytes += held.to_peer;
                totals.held_to_vm_bytes += held.to_vm;
            }
        });
    }

    pub fn is_paused(&self) -> bool {
        self.paused_ns.is_some()
    }

    /// Has the keeper keep what it does not have. Adds the numbers of all to `live`.
    pub fn keep(&self, keeper: &mut impl Keeper<S>, live: &mut HashSet<u64>) {
        for connected in self.connections.values() {
            live.insert(connected.id);
            connected.keep(keeper);
        }
    }

    pub fn are_any(&self) -> bool {
        !self.connections.is_empty()
    }

    /// Pauses with the port, and ends with its downloads. A record that cannot be read is of a port
    /// that goes.
    fn follow_the_record(&mut self, hooks: &mut impl Hooks, now_ns: u64) {
        let may_split = hooks.may_split();
        let policy = hooks.policy();
        let has_downloads = policy.as_ref().is_ok_and(|policy| policy.downloads != 0);
        self.quota = policy.map_or(0, |policy| quota(&policy));
        self.ends_ns = (!has_downloads).then_some(self.ends_ns.unwrap_or(now_ns));
        if may_split == self.paused_ns.is_none() {
            // Ends that pause by themselves are joined sooner, and need not be shown that.
            let is_long =
                self.paused_ns.is_some_and(|since| now_ns.saturating_sub(since) > DRAINS_AFTER_NS);
            if is_long && !self.drains {
                self.drains = true;
                hooks.drain();
            }
            return;
        }
        self.drains = false;
        self.paused_ns = (!may_split).then_some(now_ns);
        hooks.turn_on(may_split);
        for connected in self.connections.values_mut() {
            match may_split {
                true => connected.limit(connected.ahead),
                false => connected.drain(),
            }
        }
    }

    fn begin(
        &mut self,
        key: &flow_key,
        hooks: &mut impl Hooks,
        keeper: &mut impl Keeper<S>,
        now_ns: u64,
    ) -> Result<u32, Refusal> {
        let candidate = hooks.candidate(key).context("read what the hooks have seen")?;
        let record = hooks.flow(key).context("read the connection's record")?;
        let (Some(candidate), Some(record)) = (candidate, record) else {
            return Err(Refusal::Busy);
        };
        let from = candidate.numbers().peer_ack.v;
        let Some(flight) = self.flights.get(key, from, candidate.sent()) else {
            return Err(Refusal::NoCopy);
        };
        let Some(ahead) = self.ahead() else { return Err(Refusal::NoRoom) };
        let plan = plan(key, &candidate, &record, &flight, now_ns)?;
        let congestion_control = hooks.congestion_control().context("read the port's settings")?;
        let settings = Settings {
            device: &self.device,
            congestion_control: congestion_control.as_deref(),
            send_bytes: MOST_AHEAD,
            receive_bytes: ahead,
        };
        let split = Pair::<S>::new(&plan.connection, &settings).context("make the sockets")?;
        let flow = plan.flow_with_clock(split.clock(Side::Peer).context("read a socket's clock")?);
        let numbers = Numbers { sent: plan.sent, peer_nxt: plan.peer_nxt };
        let id = keeper.next_id();
        let connected = Connected::new(id, self.key, *key, split, numbers, ahead, now_ns)?;
        // First, so that they are known wherever this process is killed.
        connected.keep(keeper);
        let begun = hooks.begin(key, flow, plan.sent, plan.peer_nxt);
        if !begun.context("have the hooks begin")? {
            connected.give_back();
            return Err(Refusal::Changed);
        }
        self.flights.forget(key);
        hooks.change_totals(|totals| totals.split += 1);
        // One between the same ports is over: its entry has gone with the SYN of this one.
        self.connections.retain(|_, other| other.key() != key);
        Ok(self.insert(connected))
    }

    fn insert(&mut self, connected: Connected<S>) -> u32 {
        let number = self.next;
        self.next = self.next.checked_add(1).unwrap_or(1);
        self.connections.insert(number, connected);
        number
    }

    /// How far the VM of another connection may be ahead at first. `None`: too little memory is
    /// left.
    fn ahead(&self) -> Option<u32> {
        if self.paused_ns.is_some() || self.connections.len() >= MOST {
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

    fn refuse(&mut self, key: &flow_key, refusal: Refusal, hooks: &mut impl Hooks) {
        hooks.change_totals(|totals| totals.refused[refusal.counter() as usize] += 1);
        if let Refusal::Failed(error) = &refusal {
            tracing::warn!("port {}: no split: {error:#}", self.name);
        }
        let done = if refusal.is_lasting() {
            self.flights.forget(key);
            hooks.refuse(key)
        } else {
            hooks.later(key)
        };
        if let Err(error) = done {
            tracing::warn!("port {}: {error:#}", self.name);
        }
    }

    /// The ends talk to each other again, if nothing is on its way.
    fn join(&mut self, number: u32, hooks: &mut impl Hooks, now_ns: u64) {
        let Some(connected) = self.connections.get_mut(&number) else { return };
        hooks.change_totals(|totals| _ = connected.count(totals));
        match connected.join(hooks, self.drains) {
            Ok(Some(ends)) => {
                let key = *connected.key();
                self.connections.remove(&number);
                hooks.change_totals(|totals| totals.joined += 1);
                if let Err(error) = hooks.rejoin(&key, &ends, now_ns) {
                    tracing::warn!("port {}: {error:#}", self.name);
                }
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!("port {}: {error:#}", self.name);
                self.reset(number, hooks, now_ns);
            }
        }
    }
}

/// Until when the VM counts as late. `is_late`: it is so now; `starved_ns`: when it was last seen
/// to wait for a CPU, or 0.
fn late_until(now_ns: u64, is_late: bool, starved_ns: u64) -> Option<u64> {
    let since_ns = if is_late { now_ns } else { starved_ns };
    let until_ns = since_ns.saturating_add(SPLIT_LATE_FOR_NS);
    (since_ns > 0 && until_ns > now_ns).then_some(until_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// Else the first connection is over before the hooks have seen a late answer.
    #[test]
    fn a_vm_that_waits_for_a_cpu_is_late_before_its_first_answer() {
        for (now_ns, is_late, starved_ns, until_ns) in [
            (100 * S, false, 0, None),
            (100 * S, false, 99 * S, Some(109 * S)),
            (109 * S, false, 99 * S, None),
            (109 * S, true, 99 * S, Some(119 * S)),
            // The host has just started: 0 is not a time.
            (S, false, 0, None),
        ] {
            assert_eq!(late_until(now_ns, is_late, starved_ns), until_ns, "{now_ns} {starved_ns}");
        }
    }
}
