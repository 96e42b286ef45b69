//! The splitter's surroundings: the hooks' maps with the port's records, and the keeper.

use anyhow::Result;
use vsnoop_flow::split::{Candidate, Record, at_place};
use vsnoop_flow::types::{
    flow, flow_key, policy, rejoined, reset_reason, seq, split_ask, split_change, split_flow,
    split_place, split_totals,
};
use vsnoop_split::{Facing, Pair};

use crate::record;

/// A port, and the maps of its hooks (bpf/split.bpf.c).
pub trait Hooks {
    /// Takes all records out of the ring, in their order.
    fn take_records(&mut self) -> Vec<Record>;

    fn candidate(&mut self, key: &flow_key) -> Result<Option<Candidate>>;

    /// The connections that are split, without the VM's MAC address in their keys.
    fn split_flows(&mut self) -> Vec<(flow_key, split_flow)>;

    /// `None` if the connection is not split.
    fn split_flow(&mut self, key: &flow_key) -> Result<Option<split_flow>>;

    /// How often VMs of split connections were found elsewhere (the helper: SPLIT_PLACE).
    fn moves(&mut self) -> u64;

    /// Runs the program that changes the state of a connection.
    fn change(&mut self, change: split_change) -> Result<split_change>;

    /// Connections are split from now on, or no new ones are.
    fn turn_on(&mut self, is_on: bool);

    /// The ends of what is split are shown no room, until [`Self::turn_on`].
    fn drain(&mut self);

    /// The VM counts as late until then; what was followed before counts only if it is late now.
    fn extend_late(&mut self, now_ns: u64, until_ns: u64);

    /// When the engine last saw the VM wait for a CPU, or 0.
    fn starved_ns(&mut self) -> u64;

    /// Changes what the splitter has counted. Only it may do so.
    fn change_totals(&mut self, change: impl FnOnce(&mut split_totals));

    /// Does the port work, with downloads?
    fn may_split(&mut self) -> bool;

    fn policy(&mut self) -> Result<policy>;

    /// The name that the port's settings have; none: the host's default.
    fn congestion_control(&mut self) -> Result<Option<String>>;

    /// The record of a connection.
    fn flow(&mut self, key: &flow_key) -> Result<Option<flow>>;

    fn delete_flow(&mut self, key: &flow_key) -> Result<()>;

    /// Continues the record of a connection that was split, if it is there.
    fn rejoin(&mut self, key: &flow_key, ends: &rejoined, now_ns: u64) -> Result<()>;

    /// Its ends get RSTs when they send something.
    fn mark_reset(&mut self, key: &flow_key, seen: &flow, now_ns: u64) -> Result<()>;

    fn count_reset(&mut self, why: reset_reason::Type, flows: u64, bytes: u64) -> Result<()>;

    /// Sends both ends' segments to their sockets, if the VM has sent all up to `sent` and no more,
    /// and has acknowledged all of the peer, up to `peer_nxt`. Else nothing is changed.
    fn begin(
        &mut self,
        key: &flow_key,
        flow: split_flow,
        sent: u32,
        peer_nxt: u32,
    ) -> Result<bool> {
        let (sent, peer_nxt) = (seq::new(sent), seq::new(peer_nxt));
        let change = split_change { flow, sent, peer_nxt, ..asking(key, split_ask::SPLIT_BEGIN) };
        Ok(self.change(change)?.result == 1)
    }

    /// Lets the segments of both ends pass again. Each has acknowledged all that the other has
    /// sent. `None` if the connection is not split.
    fn end(&mut self, key: &flow_key, sent: u32, peer_nxt: u32) -> Result<Option<split_flow>> {
        let (sent, peer_nxt) = (seq::new(sent), seq::new(peer_nxt));
        let done =
            self.change(split_change { sent, peer_nxt, ..asking(key, split_ask::SPLIT_END) })?;
        Ok((done.result == 1).then_some(done.flow))
    }

    /// Undoes [`Self::end`]: a segment had come to a socket just before.
    fn again(&mut self, key: &flow_key, flow: split_flow, sent: u32) -> Result<bool> {
        let sent = seq::new(sent);
        let change = split_change { flow, sent, ..asking(key, split_ask::SPLIT_AGAIN) };
        Ok(self.change(change)?.result == 1)
    }

    /// Its sockets are closed: a SYN begins another connection between these ports.
    fn note_over(&mut self, key: &flow_key) -> Result<()> {
        self.change(asking(key, split_ask::SPLIT_OVER)).map(drop)
    }

    /// Its VM is behind its tap after all.
    fn note_at_tap(&mut self, key: &flow_key) -> Result<()> {
        self.change(at_place(key, split_place::SPLIT_AT_TAP)).map(drop)
    }

    /// The connection is not split now: the splitter is asked again.
    fn later(&mut self, key: &flow_key) -> Result<()> {
        self.change(asking(key, split_ask::SPLIT_LATER)).map(drop)
    }

    /// It is not split, and the splitter is not asked again soon.
    fn refuse(&mut self, key: &flow_key) -> Result<()> {
        self.change(asking(key, split_ask::SPLIT_REFUSE)).map(drop)
    }
}

fn asking(key: &flow_key, ask: split_ask::Type) -> split_change {
    split_change { key: *key, ask, ..Default::default() }
}

/// The process that has the sockets, too (cli/src/keeper).
pub trait Keeper<S: Facing> {
    /// A number that no other connection of this host has, nor had while it runs.
    fn next_id(&mut self) -> u64;

    /// Does it keep this connection?
    fn has(&self, id: u64) -> bool;

    /// Has the connection kept. Best effort: the next look tries again.
    fn keep(&mut self, id: u64, record: &record::Record, split: &Pair<S>);
}
