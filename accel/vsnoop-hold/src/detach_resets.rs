//! Resets the connections that would not survive the detach of their port, because bytes that the
//! VM was not handed are in its hold only.

use vsnoop_flow::types::{flow, flow_key, hold, reset_reason};

use crate::connections::{Connections, mark_reset};
use crate::outstanding::{handed, hold_of, needed_bytes, outstanding_bytes};
use crate::rst_repeats::is_reset;

/// The helper has repeated the RSTs of connections that were reset longer ago.
const RECENT_NS: u64 = 5_000_000_000;

/// Connections that were reset because they had held bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    pub flows: u64,
    /// Their held bytes.
    pub held_bytes: u64,
    /// Their bytes that the VM had not acknowledged, held bytes included.
    pub outstanding_bytes: u64,
}

impl Ended {
    pub fn add(&mut self, other: Self) {
        self.flows += other.flows;
        self.held_bytes += other.held_bytes;
        self.outstanding_bytes += other.outstanding_bytes;
    }
}

/// Puts the flows with bytes that the VM has not been handed into RESET, and counts them; the
/// caller sends the RSTs ([`rsts_to_send`]). `hold` reads a hold by its number; `now_ns`:
/// CLOCK_MONOTONIC.
pub fn reset_held<C: Connections>(
    connections: &mut C,
    hold: impl Fn(u32) -> hold,
    now_ns: u64,
) -> Result<Ended, C::Error> {
    let mut ended = Ended::default();
    for (key, flow) in connections.flows()? {
        if let Some((flow, held_bytes)) = reset_if_held(connections, &hold, &key, flow, now_ns)? {
            let outstanding_bytes = outstanding_bytes(&flow);
            ended.add(Ended { flows: 1, held_bytes, outstanding_bytes });
        }
    }
    Ok(ended)
}

/// Puts a flow with held bytes into RESET. Returns the flow as it was, and the held bytes.
fn reset_if_held<C: Connections>(
    connections: &mut C,
    hold: impl Fn(u32) -> hold,
    key: &flow_key,
    mut flow: flow,
    now_ns: u64,
) -> Result<Option<(flow, u64)>, C::Error> {
    loop {
        let held_bytes = needed_bytes(&flow, hold_of(key, &flow, &hold).as_ref());
        if held_bytes == 0 {
            return Ok(None);
        }
        if mark_reset(connections, key, &flow, now_ns)? {
            let counted =
                connections.count_reset(reset_reason::RESET_DETACHED, 1, outstanding_bytes(&flow));
            if let Err(error) = counted {
                tracing::debug!("a reset is not counted: {error:#}");
            }
            return Ok(Some((flow, held_bytes)));
        }
        // The VM has acknowledged something since, or the record is in RESET already, or gone.
        match connections.flow(key)? {
            Some(now) => flow = now,
            None => return Ok(None),
        }
    }
}

/// Recently reset connections, once for each RST that the VM is sent; it reads its ring before a
/// RST, so a second one has the SEQ that is next after the ring. `hold` and `now_ns` as in
/// [`reset_held`].
pub fn rsts_to_send(
    flows: Vec<(flow_key, flow)>,
    hold: impl Fn(u32) -> hold,
    now_ns: u64,
) -> Vec<(flow_key, flow)> {
    let mut rsts = Vec::new();
    for (key, flow) in recently_reset(flows, now_ns) {
        rsts.push((key, flow));
        let handed = handed(&flow, hold_of(&key, &flow, &hold).as_ref());
        if handed.diff(flow.vm_seq) > 0 {
            rsts.push((key, flow { vm_seq: handed, ..flow }));
        }
    }
    rsts
}

/// Those of `flows` that were reset a short time ago.
fn recently_reset(mut flows: Vec<(flow_key, flow)>, now_ns: u64) -> Vec<(flow_key, flow)> {
    let is_recent = |flow: &flow| now_ns.saturating_sub(flow.last_ns) < RECENT_NS;
    flows.retain(|(_, flow)| is_reset(flow) && is_recent(flow));
    flows
}

/// Connections whose senders are sent a RST when the tap was deleted.
#[derive(Debug, Default)]
pub struct OfDeletedTap {
    /// They have bytes that the VM had not acknowledged.
    pub behind: Vec<(flow_key, flow)>,
    /// They were reset, however long ago: the helper, which sends the RSTs of those that the
    /// splitter leaves, may not have run since.
    pub reset: Vec<(flow_key, flow)>,
}

impl OfDeletedTap {
    pub fn among(flows: Vec<(flow_key, flow)>) -> Self {
        let (reset, others): (Vec<_>, Vec<_>) =
            flows.into_iter().partition(|(_, flow)| is_reset(flow));
        let is_behind = |(_, flow): &(flow_key, flow)| outstanding_bytes(flow) > 0;
        Self { behind: others.into_iter().filter(is_behind).collect(), reset }
    }
}

#[cfg(test)]
mod tests {
    use vsnoop_flow::types::{flow_mode, seq};

    use super::*;

    #[test]
    fn a_reset_of_long_ago_counts_where_the_tap_was_deleted() {
        let key = |vm_port| flow_key { vm_port, ..flow_key::default() };
        let reset =
            |last_ns| flow { mode: flow_mode::FLOW_RESET as u8, last_ns, ..flow::default() };
        let now_ns = 100 * RECENT_NS;
        let behind = flow { next_seq: seq::new(1), ..flow::default() };
        let flows = vec![
            (key(1), reset(now_ns)),
            (key(2), reset(RECENT_NS)),
            (key(3), behind),
            (key(4), flow::default()),
        ];
        let ports = |flows: &[(flow_key, flow)]| -> Vec<u16> {
            flows.iter().map(|(key, _)| key.vm_port).collect()
        };
        let OfDeletedTap { behind, reset } = OfDeletedTap::among(flows.clone());
        assert_eq!((ports(&behind), ports(&reset)), (vec![3], vec![1, 2]));
        assert_eq!(ports(&recently_reset(flows, now_ns)), [1], "the VM of another tap was told");
    }
}
