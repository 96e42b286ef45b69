//! The settings of a port.

use vsnoop_flow::types::{policy, port_run};

/// A VM that sent nothing for this long gets no early ACKs.
pub const SILENCE_MS: u32 = 300_000;

/// The policy of a port that is just attached: it only observes, without a hold.
pub fn initial() -> policy {
    policy {
        run: port_run::PORT_OBSERVE,
        passive: 1,
        ahead: u32::MAX,
        silence_ms: SILENCE_MS,
        ..policy::default()
    }
}
