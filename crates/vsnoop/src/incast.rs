//! Incast control as the commands see it: which interface is a port's uplink, how fast it is, and the
//! uplinks that ports are behind.


use anyhow::{Context, Result};
use vsnoop_bpf::{Uplink, UplinkSettings};

use crate::error::{Unfit, unfit, usage};
use crate::ports;
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
    let wrong = || "give a rate such as 1G, 25G or 800M (bits per second), or leave it out for the \
                    link speed of the uplink"
        .to_owned();
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
    RATES.contains(&bits).then_some(Rate::BitsPerSecond(bits)).ok_or_else(|| {
        format!("{text}: incast control works from 1M to 400G bits per second")
    })
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
        Rate::Link => ethtool::link_speed(&uplink.name).filter(|bits| RATES.contains(bits)).ok_or_else(
            || {
                usage(format!(
                    "the link speed of uplink {} is not known: give it with --incast RATE",
                    uplink.name
                ))
            },
        )?,
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
