//! Connections whose engine has gone.
//!
//! The helper keeps an engine running, so an engine's silence means that none can be started only
//! while a helper has looked. One that was just started, or had no turn for long, has not tried
//! yet: [`EngineSilence`] counts its looks.

use crate::view::View;
use vsnoop_flow::types::{HOLD_ENGINE_GONE_S, flow, flow_key, flow_mode, hold};

use crate::outstanding::outstanding_bytes;

/// Time without an engine after which none counts as running, as in the hooks.
pub const HOLD_ENGINE_GONE_NS: u64 = HOLD_ENGINE_GONE_S as u64 * 1_000_000_000;
/// If the VM has acknowledged nothing for this time, and no engine retransmits, its segments count
/// as lost (R2 of RFC 9293, section 3.8.3).
const LOST_NS: u64 = 100_000_000_000;
/// The most that one look adds to the silence: meanwhile the helper may have been frozen, and the
/// engine, too.
const MOST_PER_LOOK_NS: u64 = 1_000_000_000;

/// How long this helper has found the engine of one port silent. Times are CLOCK_MONOTONIC.
#[derive(Clone, Debug, Default)]
pub struct EngineSilence {
    last_look: Option<Look>,
    silent_ns: u64,
}

#[derive(Clone, Debug)]
struct Look {
    /// The engine's last sign of life.
    engine_ns: u64,
    at_ns: u64,
}

impl EngineSilence {
    /// Counts a look. Returns the silence so far, which begins with the first look that finds this
    /// sign of life. `engine_ns`: the engine's last one.
    pub fn count_look(&mut self, engine_ns: u64, now_ns: u64) -> u64 {
        let last = self.last_look.replace(Look { engine_ns, at_ns: now_ns });
        self.silent_ns = match last {
            Some(last) if last.engine_ns == engine_ns => {
                self.silent_ns + now_ns.saturating_sub(last.at_ns).min(MOST_PER_LOOK_NS)
            }
            _ => 0,
        };
        self.silent_ns
    }
}

/// Connections whose held bytes no engine has handed over, or whose losses none has retransmitted,
/// for too long. `silent_ns`: [`EngineSilence`]; `now_ns`: CLOCK_MONOTONIC; `hold` reads a hold by
/// its number.
pub fn find_unserved(
    flows: &[(flow_key, flow)],
    silent_ns: u64,
    now_ns: u64,
    hold: impl Fn(u32) -> hold,
) -> Vec<(flow_key, flow)> {
    if silent_ns < HOLD_ENGINE_GONE_NS {
        return Vec::new();
    }
    let is_lost = |(_, flow): &&(flow_key, flow)| {
        let stands_ns = now_ns.saturating_sub(flow.progress_ns);
        is_held(flow, &hold) || outstanding_bytes(flow) > 0 && silent_ns.min(stands_ns) >= LOST_NS
    };
    flows.iter().filter(is_lost).copied().collect()
}

/// Has the flow bytes that the VM was not handed yet?
fn is_held(flow: &flow, hold: &impl Fn(u32) -> hold) -> bool {
    u32::from(flow.mode) == flow_mode::FLOW_HOLDING
        && flow.hold != 0
        && !View::new(&hold(flow.hold.into())).is_all_handed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LOOK_NS;
    use vsnoop_flow::types::seq;

    const SECOND: u64 = 1_000_000_000;
    const NOW: u64 = 1000 * SECOND;

    /// A connection with 1000 unacknowledged bytes, whose VM has acknowledged nothing for
    /// `stands_ns`.
    fn behind(stands_ns: u64) -> flow {
        flow { next_seq: seq::new(1000), progress_ns: NOW - stands_ns, ..Default::default() }
    }

    /// A connection all of whose bytes are held.
    fn holding() -> flow {
        flow { mode: flow_mode::FLOW_HOLDING as u8, hold: 1, ..behind(0) }
    }

    fn is_unserved(flow: flow, engine_silent_ns: u64) -> bool {
        let kept = hold { tail: seq::new(1000), chunks: 1, used: 1, ..Default::default() };
        let flows = [(flow_key::default(), flow)];
        !find_unserved(&flows, engine_silent_ns, NOW, |_| kept).is_empty()
    }

    /// Looks of the helper until `until_ns`. Returns the silence at the last one.
    fn look_until(
        silence: &mut EngineSilence,
        engine_ns: u64,
        mut now_ns: u64,
        until_ns: u64,
    ) -> u64 {
        loop {
            let silent_ns = silence.count_look(engine_ns, now_ns);
            if now_ns >= until_ns {
                return silent_ns;
            }
            now_ns += LOOK_NS;
        }
    }

    #[test]
    fn held_bytes_wait_30_s_for_another_engine() {
        assert!(!is_unserved(holding(), 30 * SECOND - 1));
        assert!(is_unserved(holding(), 30 * SECOND));
    }

    #[test]
    fn a_vm_without_an_engine_has_100_s_to_acknowledge_something() {
        assert!(!is_unserved(behind(500 * SECOND), 100 * SECOND - 1), "the engine is gone lately");
        assert!(!is_unserved(behind(100 * SECOND - 1), 500 * SECOND), "the VM has acknowledged");
        assert!(is_unserved(behind(100 * SECOND), 100 * SECOND));
        let idle = flow { next_seq: seq::new(0), ..behind(500 * SECOND) };
        assert!(!is_unserved(idle, 500 * SECOND), "nothing is outstanding");
    }

    #[test]
    fn a_helper_that_was_just_started_counts_from_its_first_look() {
        let (mut silence, engine_ns) = (EngineSilence::default(), NOW - 60 * SECOND);
        assert!(
            !is_unserved(holding(), silence.count_look(engine_ns, NOW)),
            "nobody tried a start"
        );
        let before = look_until(&mut silence, engine_ns, NOW, NOW + 30 * SECOND - LOOK_NS);
        assert!(!is_unserved(holding(), before));
        let after = look_until(&mut silence, engine_ns, NOW + 30 * SECOND, NOW + 30 * SECOND);
        assert!(is_unserved(holding(), after));
    }

    #[test]
    fn a_pause_between_two_looks_counts_as_a_second() {
        let mut silence = EngineSilence::default();
        let before = look_until(&mut silence, NOW, NOW, NOW + 2 * SECOND);
        let after = silence.count_look(NOW, NOW + 42 * SECOND);
        assert_eq!(after, before + SECOND);
        assert!(!is_unserved(holding(), after), "the helper may have its turn before the engine");
    }

    #[test]
    fn a_sign_of_life_ends_the_silence() {
        let mut silence = EngineSilence::default();
        let first = look_until(&mut silence, NOW, NOW, NOW + 29 * SECOND);
        assert_eq!(first, 29 * SECOND);
        let heard_ns = NOW + 29 * SECOND;
        let again = look_until(&mut silence, heard_ns, heard_ns + LOOK_NS, heard_ns + 29 * SECOND);
        assert!(!is_unserved(holding(), again));
    }
}
