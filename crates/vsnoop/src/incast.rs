//! Incast control as the commands see it: which interface is a port's uplink, how fast it is, and the
//! uplinks that ports are behind.

use anyhow::{Context, Result};
use serde::Serialize;
use vsnoop_bpf::types::{self, flow, incast_phase};
use vsnoop_bpf::{Uplink, UplinkSettings};

use crate::error::{Unfit, unfit, usage};
use crate::ports::{self, Attached};
use crate::system::ethtool;
use crate::system::netdev::{self, Device};
use crate::system::netns::Netns;

/// Least and most rate that the reckoning is made for, bits per second.
const RATES: std::ops::RangeInclusive<u64> = 1_000_000..=400_000_000_000;

/// What `--incast` may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// The link speed of the uplink.
    Link,
    BitsPerSecond(u64),
}

/// Bits per second with an optional suffix, in powers of 1000.
pub fn rate(text: &str) -> Result<Rate, String> {
    let wrong = || {
        "give a rate such as 1G, 25G or 800M (bits per second), or leave it out for the \
                    link speed of the uplink"
            .to_owned()
    };
    if text == "link" {
        return Ok(Rate::Link);
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "bit" => 1.0,
        "k" | "kbit" => 1e3,
        "m" | "mbit" => 1e6,
        "g" | "gbit" => 1e9,
        _ => return Err(wrong()),
    };
    let bits = digits.parse::<f64>().map_err(|_| wrong())? * unit;
    let bits = bits as u64;
    RATES
        .contains(&bits)
        .then_some(Rate::BitsPerSecond(bits))
        .ok_or_else(|| format!("{text}: incast control works from 1M to 400G bits per second"))
}

/// The interface through which the packets for this tap come: the one that was named, or the only port
/// of the tap's bridge that is no tap.
pub fn uplink_of(tap: &Device, named: Option<&str>, place: &Netns) -> Result<Device> {
    if let Some(name) = named {
        return netdev::find(name)?.ok_or_else(|| {
            let label = place.label();
            let text = format!(
                "uplink {name} does not exist in the network namespace {label}; \
                 `ip link` lists the devices"
            );
            unfit(Unfit::NoPort, text)
        });
    }
    let name = &tap.name;
    let Some(bridge) = tap.bridge else {
        return Err(usage(format!(
            "port {name} is in no bridge, so that nothing tells its uplink: name it with --uplink"
        )));
    };
    let mut others: Vec<Device> = netdev::list()?
        .into_iter()
        .filter(|device| device.bridge == Some(bridge) && device.tap.is_none())
        .collect();
    match others.len() {
        1 => Ok(others.remove(0)),
        0 => Err(usage(format!(
            "the bridge of port {name} has no port that leads to a network: \
             name the uplink with --uplink"
        ))),
        _ => {
            let names: Vec<_> = others.into_iter().map(|device| device.name).collect();
            Err(usage(format!(
                "the bridge of port {name} has several ports that may be the uplink ({}): \
                 name it with --uplink",
                names.join(", ")
            )))
        }
    }
}

/// The rate to reckon with. The calling thread is in the uplink's network namespace.
pub fn settings(uplink: &Device, rate: Rate, buffer_bytes: u32) -> Result<UplinkSettings> {
    let bits_per_second = match rate {
        Rate::BitsPerSecond(bits) => bits,
        Rate::Link => ethtool::link_speed(&uplink.name)
            .filter(|bits| RATES.contains(bits))
            .ok_or_else(|| {
                usage(format!(
                    "the link speed of uplink {} is not known: give it with --incast RATE",
                    uplink.name
                ))
            })?,
    };
    Ok(UplinkSettings { bits_per_second, buffer_bytes })
}

/// Puts incast control on the uplink of this tap; the index of that interface.
pub fn prepare(
    tap: &Device,
    place: &Netns,
    named: Option<&str>,
    rate: Rate,
    buffer_bytes: u32,
) -> Result<u32> {
    let uplink = uplink_of(tap, named, place)?;
    if uplink.index == tap.index {
        return Err(usage(format!("{} is the port itself, not its uplink", uplink.name)));
    }
    let settings = settings(&uplink, rate, buffer_bytes)?;
    Uplink::attach(place.inode, uplink.index, &uplink.name, &settings)
        .with_context(|| format!("uplink {}", uplink.name))?;
    Ok(uplink.index)
}

/// Takes away the uplinks that no port is behind any more.
pub fn sweep() -> Result<()> {
    if Uplink::list()?.is_empty() {
        return Ok(());
    }
    let used: Vec<_> = ports::inventory()?
        .ports
        .iter()
        .filter(|attached| attached.meta.uplink != 0)
        .map(|attached| (attached.meta.netns, attached.meta.uplink))
        .collect();
    Ok(Uplink::sweep(&used)?)
}

/// Whether the interface is there at all, for what is said about it.
pub fn name_of(index: u32) -> Option<String> {
    netdev::find_index(index).ok().flatten().map(|device| device.name)
}

/// The window of one connection, as incast control sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowWindow {
    /// What it is to have on its way at most.
    pub window_bytes: u32,
    /// What it may have on its way now: granted, and not received.
    pub granted_bytes: u64,
    /// Of that, what the sender has been told of.
    pub shown_bytes: u64,
    /// Round trip, smoothed; null when not known yet.
    pub rtt_ns: Option<u32>,
    /// b_m, bits per second.
    pub measured_bits_per_second: u64,
    /// (b_e - b_m) / b_e, in hundredths.
    pub d_percent: u32,
    /// "slow start" or "avoidance".
    pub phase: &'static str,
    /// Its window is closed, and it stands in line for credit.
    pub waiting: bool,
}

/// `None` where it is left alone.
pub fn window_of(flow: &flow) -> Option<FlowWindow> {
    let incast = &flow.incast;
    (incast.shaped != 0).then(|| FlowWindow {
        window_bytes: incast.window,
        granted_bytes: incast.edge.diff(incast.received).max(0) as u64,
        shown_bytes: flow.adv_edge.diff(incast.received).max(0) as u64,
        rtt_ns: Some(incast.rtt_ns).filter(|rtt| *rtt != 0),
        measured_bits_per_second: bits_per_second(incast.measured.into()),
        d_percent: d_percent(incast),
        phase: match u32::from(incast.phase) {
            incast_phase::INCAST_SLOW_START => "slow start",
            _ => "avoidance",
        },
        waiting: incast.waiting != 0,
    })
}

/// (b_e - b_m) / b_e, in hundredths; b_e, per 2^20 ns, is what the window would carry in a round trip.
fn d_percent(incast: &types::incast) -> u32 {
    let measured = u64::from(incast.measured);
    let expected = (u64::from(incast.window) << 20) / u64::from(incast.rtt_ns.max(1));
    if incast.rtt_ns == 0 || expected <= measured {
        return 0;
    }
    ((expected - measured) * 100 / expected) as u32
}

/// The uplink of a port, and what all flows behind it have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortUplink {
    /// Null when it is gone: then nothing is shaped.
    pub interface: Option<String>,
    pub rate_bits_per_second: u64,
    pub buffer_bytes: u32,
    /// BW_T, BW_A and what is left of it in this slot.
    pub total_bits_per_second: u64,
    pub available_bits_per_second: u64,
    pub quota_bits_per_second: u64,
    /// Connections that are shaped, and those of them that stand in line.
    pub flows: u64,
    pub waiting: u64,
    /// Windows that are open, of connections that are not silent.
    pub granted_bytes: u64,
}

/// The uplink of an attached port; `None` without incast control.
pub fn uplink_state(attached: &Attached) -> Result<Option<PortUplink>> {
    let (netns, index) = (attached.meta.netns, attached.meta.uplink);
    if index == 0 {
        return Ok(None);
    }
    let uplink = Uplink::open(netns, index)?;
    let state = match &uplink {
        Some(uplink) => uplink.state()?,
        None => types::uplink::default(),
    };
    let is_on = uplink.is_some_and(|uplink| uplink.is_on());
    let interface = match Netns::find_again(netns, &mut None) {
        Some(place) if is_on => place.run(|| Ok(name_of(index)))?,
        _ => None,
    };
    let rate = u64::from(state.rate);
    Ok(Some(PortUplink {
        interface,
        rate_bits_per_second: bits_per_second(rate),
        buffer_bytes: state.buffer,
        total_bits_per_second: bits_per_second(state.total.into()),
        // The paper's alpha (flow/incast.h).
        available_bits_per_second: bits_per_second(
            (rate / 10 * 9).saturating_sub(state.total.into()),
        ),
        quota_bits_per_second: bits_per_second(state.quota.max(0) as u64),
        flows: state.open.max(0) as u64,
        waiting: state.waiting.max(0) as u64,
        granted_bytes: state.granted.max(0) as u64,
    }))
}

/// Where the uplink was deleted nobody counts what comes in any more: windows are the VMs' own again.
/// True when this look has found it gone.
pub fn notice_gone(attached: &Attached) -> Result<bool> {
    let index = attached.meta.uplink;
    if index == 0 {
        return Ok(false);
    }
    let Some(uplink) = Uplink::open(attached.meta.netns, index)? else { return Ok(false) };
    if uplink.is_on() || uplink.state()?.rate == 0 {
        return Ok(false);
    }
    uplink.disable();
    Ok(true)
}

/// A record of this port was forgotten.
pub fn forget(attached: &Attached, flow: &flow) -> Result<()> {
    if flow.incast.shaped == 0 {
        return Ok(());
    }
    if let Some(uplink) = Uplink::open(attached.meta.netns, attached.meta.uplink)? {
        uplink.forget(flow);
    }
    Ok(())
}

/// Of bytes per 2^20 ns.
fn bits_per_second(rate: u64) -> u64 {
    (u128::from(rate) * 8 * 1_000_000_000 >> 20) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_suffixes_in_powers_of_a_thousand() {
        assert_eq!(rate("1G"), Ok(Rate::BitsPerSecond(1_000_000_000)));
        assert_eq!(rate("2.5gbit"), Ok(Rate::BitsPerSecond(2_500_000_000)));
        assert_eq!(rate("800m"), Ok(Rate::BitsPerSecond(800_000_000)));
        assert_eq!(rate("link"), Ok(Rate::Link));
        for wrong in ["", "0", "-1G", "1T", "fast", "500G", "100K"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
