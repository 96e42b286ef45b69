//! The longest names and numbers that tables may have to show, for tests that these stay narrow.

use std::net::{Ipv6Addr, SocketAddr};

use vsnoop_host::holds::{EngineState, PortHold};
use vsnoop_host::incast::state::Bandwidth;
use vsnoop_host::incast::{UplinkControl, UplinkState};

use crate::identity::PortIdentity;
use crate::output::fold::WIDTH;

/// IFNAMSIZ without its end.
pub const INTERFACE: &str = "interface-15-ch";
/// The longest name of a link or a peer.
pub const NAME: &str = "a-name-of-sixty-four-characters-is-the-longest-that-is-taken-123";

pub fn address() -> SocketAddr {
    SocketAddr::from((Ipv6Addr::from([0xfedc; 8]), u16::MAX))
}

pub fn identity() -> PortIdentity {
    PortIdentity {
        port: INTERFACE.into(),
        ifindex: u32::MAX,
        netns: u64::MAX,
        netns_name: Some("/proc/4194303/ns/net".into()),
        state: "observing",
        paused_by: None,
    }
}

pub fn hold() -> PortHold {
    PortHold {
        size_bytes: 255 << 20,
        used_bytes: (255 << 20) - 1,
        memory_bytes: u64::MAX,
        flows: u64::MAX,
        held_flows: u64::MAX,
        held_bytes: u64::MAX,
        oldest_ns: Some(u64::MAX),
        handovers: u64::MAX,
        resends: u64::MAX,
        resent_bytes: u64::MAX,
        engine: EngineState::Silent,
        engine_silent_ns: Some(u64::MAX),
    }
}

pub fn uplink(state: UplinkControl) -> UplinkState {
    let most = Some(u64::MAX);
    UplinkState {
        name: INTERFACE.into(),
        interface: Some(INTERFACE.into()),
        state,
        rate_bits_per_second: u64::MAX,
        buffer_bytes: u32::MAX,
        bandwidth: Bandwidth {
            total_bits_per_second: most,
            available_bits_per_second: most,
            quota_bits_per_second: most,
        },
        flows: u64::MAX,
        waiting: u64::MAX,
        granted_bytes: u64::MAX,
        credit_bytes: Some(u32::MAX),
    }
}

/// Commands that are to be pasted may make a line longer: they stay whole.
pub fn assert_narrow(text: &str) {
    let is_long = |line: &&str| line.chars().count() > WIDTH && !line.starts_with('`');
    let long: Vec<_> = text.lines().filter(is_long).collect();
    assert!(long.is_empty(), "longer than {WIDTH} columns: {long:#?}");
}
