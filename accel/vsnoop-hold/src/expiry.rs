//! Removes records of connections that ended or were idle for long (`vsnoop_flow::expiry`).

use vsnoop_flow::expiry::is_due;
use vsnoop_flow::types::{flow, flow_key};

use crate::connections::{Connections, delete_flow_if};

/// Removes the expired ones of `flows`, which are all of the port, and calls `removed` for each.
/// `now_ns`: CLOCK_MONOTONIC.
pub fn expire<C: Connections, E: From<C::Error>>(
    connections: &mut C,
    flows: &[(flow_key, flow)],
    now_ns: u64,
    mut removed: impl FnMut(&flow) -> Result<(), E>,
) -> Result<(), E> {
    let crowded = flows.len() as u64 * 10 > u64::from(connections.max_flows()) * 9;
    for (key, flow) in flows {
        if is_due(flow, now_ns, crowded)
            && delete_flow_if(connections, key, |flow| is_due(flow, now_ns, crowded))?
        {
            removed(flow)?;
        }
    }
    Ok(())
}
