//! How split connections end before their ends are joined: reset, left, or over.

use std::collections::HashSet;

use anyhow::Result;
use vsnoop_flow::split::full_key;
use vsnoop_flow::types::{flow_key, reset_reason};
use vsnoop_split::{Broken, Facing, Why};

use super::SplitterPort;
use crate::hooks::Hooks;

impl<S: Facing> SplitterPort<S> {
    /// Resets all, for a port that goes.
    pub fn reset_all(&mut self, hooks: &mut impl Hooks, now_ns: u64) {
        hooks.turn_on(false);
        let numbers: Vec<u32> = self.connections.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.reset(number, hooks, now_ns));
    }

    /// The tap was deleted. The helper, or a command, resets the peers of what this leaves: the
    /// sockets' own RSTs have no way.
    pub fn leave_all(&mut self, hooks: &mut impl Hooks, now_ns: u64) {
        hooks.turn_on(false);
        let numbers: Vec<u32> = self.connections.keys().copied().collect();
        for number in numbers {
            self.leave(number, reset_reason::RESET_NO_READER, hooks, now_ns);
        }
    }

    /// Ends a connection of which an end is gone. The RST of an end is passed on to the other, and
    /// is no reset of vsnoop's.
    pub(super) fn end(
        &mut self,
        number: u32,
        broken: &Broken,
        hooks: &mut impl Hooks,
        now_ns: u64,
    ) {
        let reason = match broken.why {
            Why::Reset => {
                tracing::debug!("port {}: {broken}", self.name);
                if self.close(number, hooks).is_some() {
                    hooks.change_totals(|totals| totals.ended += 1);
                }
                return;
            }
            Why::TimedOut => reset_reason::RESET_SILENT,
            Why::Other(_) => reset_reason::RESET_DETACHED,
        };
        tracing::warn!("port {}: both ends are reset: {broken}", self.name);
        self.reset_for(number, reason, hooks, now_ns);
    }

    pub(super) fn reset(&mut self, number: u32, hooks: &mut impl Hooks, now_ns: u64) {
        self.reset_for(number, reset_reason::RESET_DETACHED, hooks, now_ns);
    }

    fn reset_for(
        &mut self,
        number: u32,
        reason: reset_reason::Type,
        hooks: &mut impl Hooks,
        now_ns: u64,
    ) {
        let Some(connected) = self.connections.get_mut(&number) else { return };
        if let Err(error) = connected.mark_record_reset(hooks, now_ns) {
            tracing::warn!("port {}: {error:#}", self.name);
        }
        let Some(bytes) = self.close(number, hooks) else { return };
        hooks.change_totals(|totals| totals.reset += 1);
        if let Err(error) = hooks.count_reset(reason, 1, bytes) {
            tracing::warn!("port {}: {error:#}", self.name);
        }
    }

    /// Resets a connection whose VM is elsewhere or gone, unless nothing is on its way, as where an
    /// end has closed. RSTs of the sockets would enter at the tap; the helper knows the ways to
    /// both ends (vsnoop_host::port_resets).
    pub(super) fn leave(
        &mut self,
        number: u32,
        reason: reset_reason::Type,
        hooks: &mut impl Hooks,
        now_ns: u64,
    ) {
        if self.connections.get(&number).is_some_and(|one| one.split().is_none()) {
            return self.remove(number, hooks);
        }
        let Some(mut connected) = self.connections.remove(&number) else { return };
        hooks.change_totals(|totals| _ = connected.count(totals));
        let done = match connected.leave(hooks, now_ns) {
            Ok(Some(bytes)) => {
                tracing::warn!("port {}: both ends are reset: the VM is not there", self.name);
                hooks.change_totals(|totals| totals.reset += 1);
                hooks.count_reset(reason, 1, bytes)
            }
            Ok(None) => {
                hooks.change_totals(|totals| totals.joined += 1);
                hooks.delete_flow(connected.key())
            }
            Err(error) => {
                tracing::warn!("port {}: {error:#}", self.name);
                return self.forget(connected.key(), hooks);
            }
        };
        if let Err(error) = done {
            tracing::warn!("port {}: {error:#}", self.name);
        }
    }

    /// Sends a RST to each end that is not gone. The hooks' entry goes later, behind the RSTs.
    /// Returns how many bytes were on their way, `None` if the connection is over.
    fn close(&mut self, number: u32, hooks: &mut impl Hooks) -> Option<u64> {
        // First: an end that gets the RST may use its port again at once.
        self.note_over(self.connections.get(&number)?.key(), hooks);
        let connected = self.connections.get_mut(&number)?;
        hooks.change_totals(|totals| _ = connected.count(totals));
        connected.reset()
    }

    /// Removes a connection that is over.
    pub(super) fn remove(&mut self, number: u32, hooks: &mut impl Hooks) {
        let Some(mut connected) = self.connections.remove(&number) else { return };
        hooks.change_totals(|totals| {
            connected.count(totals);
            // One that was reset was counted then.
            totals.ended += u64::from(connected.split().is_some());
        });
        if !connected.is_record_reset() {
            return self.forget(connected.key(), hooks);
        }
        if let Err(error) = hooks.end(connected.key(), 0, 0) {
            tracing::warn!("port {}: {error:#}", self.name);
        }
    }

    pub(super) fn note_over(&self, key: &flow_key, hooks: &mut impl Hooks) {
        if let Err(error) = hooks.note_over(key) {
            tracing::warn!("port {}: {error:#}", self.name);
        }
    }

    /// Not what is known of the next connection between the same ports: then there is no entry.
    pub(super) fn forget(&self, key: &flow_key, hooks: &mut impl Hooks) {
        let gone = hooks.end(key, 0, 0).and_then(|entry| match entry {
            Some(_) => hooks.delete_flow(key),
            None => Ok(()),
        });
        if let Err(error) = gone {
            tracing::warn!("port {}: {error:#}", self.name);
        }
    }

    pub(super) fn reset_unknown(&self, hooks: &mut impl Hooks, now_ns: u64) {
        let known: HashSet<flow_key> = self.connections.values().map(|one| *one.key()).collect();
        let flows = hooks.split_flows();
        let left = flows.iter().map(full_key).filter(|key| !known.contains(key));
        self.reset_lost(left, hooks, now_ns);
    }

    /// Resets connections whose sockets are gone. An end that only reads may not have heard of
    /// it: the hooks answer its segments with RST, and the helper has it send one.
    pub(super) fn reset_lost(
        &self,
        keys: impl IntoIterator<Item = flow_key>,
        hooks: &mut impl Hooks,
        now_ns: u64,
    ) {
        let mut count = 0;
        for key in keys {
            count += 1;
            if let Err(error) = try_to_reset_lost(&key, hooks, now_ns) {
                tracing::warn!("port {}: {error:#}", self.name);
            }
        }
        if count == 0 {
            return;
        }
        tracing::warn!(
            "port {}: an earlier splitter has ended, and {count} of its split connections were reset",
            self.name,
        );
        if let Err(error) = hooks.count_reset(reset_reason::RESET_ENGINE_GONE, count, 0) {
            tracing::warn!("port {}: {error:#}", self.name);
        }
    }
}

fn try_to_reset_lost(key: &flow_key, hooks: &mut impl Hooks, now_ns: u64) -> Result<()> {
    if let Some(flow) = hooks.flow(key)? {
        hooks.mark_reset(key, &flow, now_ns)?;
    }
    hooks.end(key, 0, 0).map(drop)
}
