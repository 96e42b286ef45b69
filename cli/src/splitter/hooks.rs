//! A port's pinned maps, as the splitter's decisions use them.

use anyhow::Result;
use vsnoop_bpf::split::{Candidate, Record, SplitPort};
use vsnoop_bpf::types::{
    flow, flow_key, policy, rejoined, reset_reason, split_change, split_flow, split_totals,
};
use vsnoop_bpf::{CongestionControl, Port};
use vsnoop_split::{Pair, Socket};
use vsnoop_splitter::Hooks;

use crate::keeper::Keeper;
use crate::splitter::record;

/// A port, and the maps of its hooks.
pub struct Pins {
    pub port: Port,
    pub maps: SplitPort,
}

impl Hooks for Pins {
    fn take_records(&mut self) -> Vec<Record> {
        self.maps.take_records()
    }

    fn candidate(&mut self, key: &flow_key) -> Result<Option<Candidate>> {
        Ok(self.maps.candidate(key)?)
    }

    fn split_flows(&mut self) -> Vec<(flow_key, split_flow)> {
        self.maps.split_flows()
    }

    fn split_flow(&mut self, key: &flow_key) -> Result<Option<split_flow>> {
        Ok(self.maps.split_flow(key)?)
    }

    fn moves(&mut self) -> u64 {
        self.maps.counters().moves
    }

    fn change(&mut self, change: split_change) -> Result<split_change> {
        Ok(self.maps.change(change)?)
    }

    fn turn_on(&mut self, is_on: bool) {
        self.maps.turn_on(is_on);
    }

    fn drain(&mut self) {
        self.maps.drain();
    }

    fn extend_late(&mut self, now_ns: u64, until_ns: u64) {
        self.maps.extend_late(now_ns, until_ns);
    }

    fn starved_ns(&mut self) -> u64 {
        self.port.state().map_or(0, |state| state.starved_ns)
    }

    fn change_totals(&mut self, change: impl FnOnce(&mut split_totals)) {
        self.maps.change_totals(change);
    }

    /// A record that cannot be read is of a port that goes.
    fn may_split(&mut self) -> bool {
        self.port.may_split().unwrap_or(false)
    }

    fn policy(&mut self) -> Result<policy> {
        Ok(self.port.policy()?)
    }

    fn congestion_control(&mut self) -> Result<Option<String>> {
        Ok(CongestionControl::from_policy(&self.port.policy()?).name())
    }

    fn flow(&mut self, key: &flow_key) -> Result<Option<flow>> {
        Ok(self.port.flow(key)?)
    }

    fn delete_flow(&mut self, key: &flow_key) -> Result<()> {
        self.port.delete_flow_if(key, |_| true)?;
        Ok(())
    }

    fn rejoin(&mut self, key: &flow_key, ends: &rejoined, now_ns: u64) -> Result<()> {
        self.port.rejoin(key, ends, now_ns)?;
        Ok(())
    }

    fn mark_reset(&mut self, key: &flow_key, seen: &flow, now_ns: u64) -> Result<()> {
        self.port.mark_reset(key, seen, now_ns)?;
        Ok(())
    }

    fn count_reset(&mut self, why: reset_reason::Type, flows: u64, bytes: u64) -> Result<()> {
        Ok(self.port.count_reset(why, flows, bytes)?)
    }
}

impl vsnoop_splitter::Keeper<Socket> for Keeper {
    fn next_id(&mut self) -> u64 {
        Keeper::next_id(self)
    }

    fn has(&self, id: u64) -> bool {
        Keeper::has(self, id)
    }

    fn keep(&mut self, id: u64, record: &vsnoop_splitter::Record, split: &Pair<Socket>) {
        Keeper::keep_split(self, id, &record::to_bytes(record), split.parts());
    }
}
