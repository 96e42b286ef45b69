//! Repeats the RSTs of connections that were reset: one may be lost, inside the guest too, and an
//! end that only reads would never learn of it.

use std::collections::BTreeMap;

use vsnoop_flow::types::{flow, flow_key, flow_mode};

/// Interval and number of repetitions of a RST.
const REPEAT_NS: u64 = 1_000_000_000;
const REPEATS: u32 = 5;

/// The reset connections of one port, by their keys: RSTs sent, and when the last was (ns).
#[derive(Clone, Debug, Default)]
pub struct RstRepeats {
    repeated: BTreeMap<[u8; size_of::<flow_key>()], (u32, u64)>,
}

impl RstRepeats {
    /// Connections whose RSTs are due now (`now_ns`, CLOCK_MONOTONIC), and are now noted as sent.
    /// `flows`: all of the port.
    pub fn due(&mut self, flows: &[(flow_key, flow)], now_ns: u64) -> Vec<(flow_key, flow)> {
        let mut earlier = std::mem::take(&mut self.repeated);
        let mut due = Vec::new();
        for (key, flow) in flows.iter().filter(|(_, flow)| is_reset(flow)) {
            let bytes = key_bytes(key);
            let (mut sent, mut at) = earlier.remove(&bytes).unwrap_or((0, now_ns));
            if sent < REPEATS && now_ns.saturating_sub(at) >= REPEAT_NS {
                due.push((*key, *flow));
                (sent, at) = (sent + 1, now_ns);
            }
            self.repeated.insert(bytes, (sent, at));
        }
        due
    }
}

/// Was the connection reset?
pub fn is_reset(flow: &flow) -> bool {
    u32::from(flow.mode) == flow_mode::FLOW_RESET
}

pub(crate) fn key_bytes(key: &flow_key) -> [u8; size_of::<flow_key>()] {
    // SAFETY: a key is plain data without padding, so all its bytes are initialised.
    unsafe { std::mem::transmute::<flow_key, _>(*key) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_rst_is_repeated_five_times_a_second_apart() {
        let key = flow_key::default();
        let reset = flow { mode: flow_mode::FLOW_RESET as u8, ..flow::default() };
        let live = flow_key { vm_port: 1, ..key };
        let flows = [(key, reset), (live, flow::default())];
        let mut repeats = RstRepeats::default();
        let mut sent = Vec::new();
        for quarter in 0..40 {
            let now = 7 * SECOND + quarter * SECOND / 4;
            let due = repeats.due(&flows, now);
            sent.extend(due.iter().map(|(due, _)| (due.vm_port, quarter / 4)));
        }
        assert_eq!(sent, [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]);
    }

    #[test]
    fn a_record_that_is_gone_is_forgotten() {
        let reset = flow { mode: flow_mode::FLOW_RESET as u8, ..flow::default() };
        let flows = [(flow_key::default(), reset)];
        let mut repeats = RstRepeats::default();
        assert!(repeats.due(&flows, 0).is_empty());
        assert!(repeats.due(&[], SECOND).is_empty());
        assert!(repeats.due(&flows, SECOND).is_empty(), "another connection, just reset");
    }
}
