//! Names of the modes of flows, for tables and JSON.

use vsnoop_bpf::types::{FLOW_F_CLOSED, flow, flow_mode};

/// The mode of a flow, or `closed` while its record waits to expire.
pub fn name(flow: &flow) -> &'static str {
    if u32::from(flow.flags) & FLOW_F_CLOSED != 0 && u32::from(flow.mode) != flow_mode::FLOW_RESET {
        return "closed";
    }
    match u32::from(flow.mode) {
        flow_mode::FLOW_ACTIVE => "active",
        flow_mode::FLOW_UNEXPECTED_SEQ => "unexpected-seq",
        flow_mode::FLOW_NO_BUF => "no-buf",
        flow_mode::FLOW_PASSIVE => "passive",
        flow_mode::FLOW_BYPASS => "bypass",
        flow_mode::FLOW_RESET => "reset",
        flow_mode::FLOW_HOLDING => "holding",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_that_was_reset_is_not_called_closed() {
        let mode_name = |mode, flags: u32| {
            name(&flow { mode: mode as u8, flags: flags as u16, ..Default::default() })
        };
        assert_eq!(mode_name(flow_mode::FLOW_HOLDING, 0), "holding");
        assert_eq!(mode_name(flow_mode::FLOW_HOLDING, FLOW_F_CLOSED), "closed");
        assert_eq!(mode_name(flow_mode::FLOW_RESET, FLOW_F_CLOSED), "reset");
    }
}
