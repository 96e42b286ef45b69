//! State of an uplink, and of all connections behind it.

use std::path::PathBuf;

use serde::Serialize;
use vsnoop_bpf::types::uplink;
use vsnoop_bpf::{Uplink, UplinkId};
use vsnoop_flow::incast;

use super::reckoning::bits_per_second;
use crate::error::Result;
use crate::ports::Attached;
use crate::system::clock::monotonic_ns;
use crate::system::netdev::{self, Device};
use crate::system::netns::Netns;

/// A slot takes some ms at most: if the last one began longer ago, no packet of a connection has
/// come since.
const SLOT_NS: u64 = 100_000_000;

/// Does incast control shape windows?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum UplinkControl {
    On,
    /// Turned off: windows are the VMs' own.
    Off,
    /// The interface was deleted: windows are the VMs' own.
    Gone,
    /// The interface has lost its hook: windows are the VMs' own.
    Unhooked,
}

/// The uplink of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UplinkState {
    /// Its name, or its last one.
    pub name: String,
    /// Null if it is gone.
    pub interface: Option<String>,
    pub state: UplinkControl,
    /// 0: off. For a deleted uplink 0 after the helper's next look.
    pub rate_bits_per_second: u64,
    pub buffer_bytes: u32,
    #[serde(flatten)]
    pub bandwidth: Bandwidth,
    /// Shaped connections, and those of them in the grant queue.
    pub flows: u64,
    pub waiting: u64,
    /// Outstanding credit of live connections.
    pub granted_bytes: u64,
    /// Limit of their sum; null while off.
    pub credit_bytes: Option<u32>,
}

/// Rate that comes in (BW_T), rate that may be granted beside it (BW_A), and the part of that left
/// in this slot. Null while off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bandwidth {
    pub total_bits_per_second: Option<u64>,
    pub available_bits_per_second: Option<u64>,
    pub quota_bits_per_second: Option<u64>,
}

impl Bandwidth {
    fn from_record(record: &uplink, now_ns: u64) -> Self {
        // The paper's alpha (flow/incast.h).
        let promised = u64::from(record.rate) / 10 * 9;
        let age_ns = now_ns.saturating_sub(record.slot_ns);
        let (total, quota) = if age_ns < SLOT_NS {
            (record.total.into(), record.quota.max(0) as u64)
        } else {
            let bytes = record.bytes.saturating_sub(record.slot_bytes);
            let total = ((u128::from(bytes) << 20) / u128::from(age_ns)) as u64;
            (total, promised.saturating_sub(total))
        };
        Self {
            total_bits_per_second: Some(bits_per_second(total)),
            available_bits_per_second: Some(bits_per_second(promised.saturating_sub(total))),
            quota_bits_per_second: Some(bits_per_second(quota)),
        }
    }
}

impl UplinkState {
    /// `path`: the uplink's network namespace, as [`Netns::find_again`] keeps it.
    pub fn read(uplink: &Uplink, id: UplinkId, path: &mut Option<PathBuf>) -> Result<Self> {
        let record = uplink.state()?;
        let netns = Netns::find_again(id.netns, path);
        let device = match &netns {
            Some(netns) => netns.run(|| netdev::find_index(id.ifindex))?,
            None => None,
        };
        let (name, control) = control(uplink, &record, device.as_ref());
        let is_on = control == UplinkControl::On;
        Ok(Self {
            interface: (control != UplinkControl::Gone).then(|| name.clone()),
            name,
            state: control,
            rate_bits_per_second: bits_per_second(record.rate.into()),
            buffer_bytes: record.buffer,
            bandwidth: if is_on {
                Bandwidth::from_record(&record, monotonic_ns()?)
            } else {
                Bandwidth::default()
            },
            flows: record.all.open.max(0) as u64,
            waiting: record.all.queued.max(0) as u64,
            granted_bytes: incast::outstanding(&record).max(0) as u64,
            credit_bytes: is_on.then(|| incast::credit(&record)),
        })
    }

    /// State of a port's uplink; `None` without incast control.
    pub fn of_port(attached: &Attached) -> Result<Option<Self>> {
        let id = UplinkId { netns: attached.meta.netns, ifindex: attached.meta.uplink };
        if id.ifindex == 0 {
            return Ok(None);
        }
        let uplink = Uplink::open(id.netns, id.ifindex)?;
        uplink.map(|uplink| Self::read(&uplink, id, &mut None)).transpose()
    }

    /// The problem and a remedy; `None` if it is on, or was turned off.
    pub fn trouble(&self) -> Option<String> {
        trouble(&self.name, self.state)
    }
}

/// Name of the interface, and whether windows are shaped. `device`: the interface, if it was found.
pub fn control(
    uplink: &Uplink,
    record: &uplink,
    device: Option<&Device>,
) -> (String, UplinkControl) {
    let name = device.map_or_else(|| uplink.ifname(), |device| device.name.clone());
    let control = match (uplink.has_hook(), device) {
        (true, _) if record.rate == 0 => UplinkControl::Off,
        (true, _) => UplinkControl::On,
        (false, Some(_)) => UplinkControl::Unhooked,
        (false, None) => UplinkControl::Gone,
    };
    (name, control)
}

pub fn trouble(name: &str, control: UplinkControl) -> Option<String> {
    match control {
        UplinkControl::On | UplinkControl::Off => None,
        UplinkControl::Gone => Some(format!(
            "uplink {name} is gone: incast control stands still, and windows are the VMs' own; detach the \
             ports behind it, and attach them to another one"
        )),
        UplinkControl::Unhooked => Some(format!(
            "uplink {name} has lost its hook: incast control stands still, and windows are the VMs' own; \
             `vsnoop incast set --uplink {name} --rate RATE` puts it on again"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 Gb/s.
    const RATE: u32 = 131_072;
    const MBIT: u64 = 1_000_000;

    fn record() -> uplink {
        uplink { rate: RATE, total: RATE / 2, slot_ns: 1 << 40, ..Default::default() }
    }

    #[test]
    fn a_slot_says_what_comes_in_and_what_is_left() {
        let quota = i64::from(RATE / 10);
        let seen = Bandwidth::from_record(&uplink { quota, ..record() }, (1 << 40) + SLOT_NS - 1);
        assert_eq!(seen.total_bits_per_second, Some(500 * MBIT));
        assert_eq!(seen.available_bits_per_second.map(|bits| bits / MBIT), Some(399));
        assert_eq!(seen.quota_bits_per_second.map(|bits| bits / MBIT), Some(99));
    }

    #[test]
    fn an_old_slot_says_what_has_come_in_since() {
        let second_ns = 1_000_000_000;
        let idle = Bandwidth::from_record(&record(), (1 << 40) + second_ns);
        assert_eq!(idle.total_bits_per_second, Some(0));
        assert_eq!(idle.quota_bits_per_second, idle.available_bits_per_second);
        let record = uplink { bytes: 12_500_000, quota: -1, ..record() };
        let seen = Bandwidth::from_record(&record, (1 << 40) + second_ns);
        assert_eq!(seen.total_bits_per_second.map(|bits| (bits + MBIT / 2) / MBIT), Some(100));
        assert_eq!(seen.quota_bits_per_second, seen.available_bits_per_second);
    }
}
