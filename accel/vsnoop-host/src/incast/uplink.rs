//! Finds a port's uplink, and sets it up.
//!
//! A port joins an existing uplink without changing it: other ports are behind it, and `vsnoop
//! incast` changes it for all. A new uplink gets rate and queue from the options, else from the
//! configuration, else the link's own speed and a default queue.

use serde::Serialize;
use vsnoop_bpf::{Port, Uplink, UplinkSettings, uplink_rate};
use vsnoop_netdev::ethtool;

use super::configured::Defaults;
use super::ingress;
use super::reckoning::bits_per_second;
use super::setting::{DEFAULT_BUFFER, RATES, Rate, rate_text};
use crate::error::{Error, Result, Unfit, unfit, usage};
use crate::size;
use crate::system::holder;
use crate::system::netdev::{self, Device};
use crate::system::netns::Netns;
use crate::units;

/// The options of `attach --incast`; a missing one comes from the configuration, or a default.
pub struct Wanted<'a> {
    pub rate: Option<Rate>,
    pub uplink: Option<&'a str>,
    pub buffer_bytes: Option<u32>,
    pub config: &'a Defaults,
    /// Path of the configuration, for messages.
    pub file: String,
}

/// The uplink that a port has joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Joined {
    pub uplink: String,
    #[serde(skip)]
    pub ifindex: u32,
    /// 0: it was turned off.
    pub rate_bits_per_second: u64,
    pub buffer_bytes: u32,
}

impl Joined {
    /// For the output of `attach`.
    pub fn describe_joined(&self) -> String {
        let name = &self.uplink;
        if self.rate_bits_per_second == 0 {
            return format!(
                "incast control behind {name}, where it is off (`vsnoop incast set --uplink {name} \
                 --rate RATE`)"
            );
        }
        format!(
            "incast control behind {name} ({}, {} of queue before it)",
            units::bit_rate(self.rate_bits_per_second),
            units::bytes(self.buffer_bytes.into())
        )
    }
}

/// Puts incast control on the uplink of this tap. The calling thread is in its network namespace.
pub fn prepare(tap: &Device, netns: &Netns, wanted: &Wanted<'_>) -> Result<Joined> {
    let uplink = uplink_of(tap, netns, wanted)?;
    refuse(&uplink, tap, netns)?;
    let known = Uplink::open(netns.inode, uplink.index)?.filter(Uplink::has_hook);
    match known {
        Some(known) => {
            let joined = join(&known, &uplink, wanted)?;
            ingress::set(&known, uplink.index)?;
            Ok(joined)
        }
        None => begin(&uplink, netns, wanted),
    }
}

fn begin(uplink: &Device, netns: &Netns, wanted: &Wanted<'_>) -> Result<Joined> {
    let rate = wanted.rate.or(wanted.config.rate).unwrap_or(Rate::Link);
    let settings = UplinkSettings {
        bits_per_second: bits_of(uplink, rate, "--incast RATE")?,
        buffer_bytes: wanted.buffer_bytes.or(wanted.config.buffer_bytes).unwrap_or(DEFAULT_BUFFER),
    };
    let begun = Uplink::attach(netns.inode, uplink.index, &uplink.name, &settings)
        .map_err(|source| Error::Uplink { name: uplink.name.clone(), source })?;
    ingress::set(&begun, uplink.index)?;
    Ok(Joined {
        uplink: uplink.name.clone(),
        ifindex: uplink.index,
        rate_bits_per_second: settings.bits_per_second,
        buffer_bytes: settings.buffer_bytes,
    })
}

/// Joins an uplink with other ports: options must agree with it.
fn join(known: &Uplink, uplink: &Device, wanted: &Wanted<'_>) -> Result<Joined> {
    let state = known.state()?;
    let joined = Joined {
        uplink: uplink.name.clone(),
        ifindex: uplink.index,
        rate_bits_per_second: bits_per_second(state.rate.into()),
        buffer_bytes: state.buffer,
    };
    if state.rate == 0 {
        return Ok(joined);
    }
    let name = &uplink.name;
    let refused = |option: &str, has: String, asked: String, way: String| {
        unfit(
            Unfit::Other,
            format!(
                "uplink {name} has {has} for the ports behind it, not the {asked} of {option}: leave that \
                 out, or change it for all ports with `vsnoop incast set --uplink {name} {way}`"
            ),
        )
    };
    if let Some(rate) = wanted.rate {
        let bits = bits_of(uplink, rate, "--incast RATE")?;
        if uplink_rate(bits) != state.rate {
            let (has, asked) =
                (units::bit_rate(joined.rate_bits_per_second), units::bit_rate(bits));
            return Err(refused("--incast", has, asked, format!("--rate {}", rate_text(bits))));
        }
    }
    if let Some(bytes) = wanted.buffer_bytes.filter(|bytes| *bytes != state.buffer) {
        let (has, asked) = (units::bytes(state.buffer.into()), units::bytes(bytes.into()));
        let has = format!("a queue of {has}");
        return Err(refused(
            "--incast-buffer",
            has,
            asked,
            format!("--buffer {}", size::render_size(bytes.into())),
        ));
    }
    Ok(joined)
}

/// The interface by which packets for this tap come in: the named one, or the only port of the
/// tap's bridge that is no tap.
fn uplink_of(tap: &Device, netns: &Netns, wanted: &Wanted<'_>) -> Result<Device> {
    let configured = wanted.config.uplink.as_deref();
    if let Some(name) = wanted.uplink.or(configured) {
        return netdev::find(name)?.ok_or_else(|| {
            let source = match wanted.uplink {
                Some(_) => String::new(),
                None => format!(" (incast.uplink in {})", wanted.file),
            };
            let label = netns.label();
            let text = format!(
                "uplink {name}{source} does not exist in the network namespace {label}; `ip link` lists \
                 the devices, --uplink names another one"
            );
            unfit(Unfit::NoPort, text)
        });
    }
    let name = &tap.name;
    let Some(bridge) = tap.master else {
        return Err(usage(format!(
            "port {name} is in no bridge, so that nothing tells its uplink: name it with --uplink"
        )));
    };
    let mut others: Vec<Device> = netdev::list()?
        .into_iter()
        .filter(|device| device.master == Some(bridge) && device.tap.is_none())
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

/// Refuses an interface on which the senders' packets are not seen.
fn refuse(uplink: &Device, tap: &Device, netns: &Netns) -> Result<()> {
    let name = &uplink.name;
    let port = &tap.name;
    let what = if uplink.index == tap.index {
        "is the port itself".to_owned()
    } else if tap.master == Some(uplink.index) {
        format!("is the bridge of port {port}, which does not see what it forwards")
    } else if uplink.tap.is_some() && Port::open(netns.inode, uplink.index).is_ok() {
        "is an attached port, with a VM behind it".to_owned()
    } else if uplink.tap.is_some()
        && let Some(holder) = holder::of_tap(name, netns.inode)
        && holder.is_vm()
    {
        format!("is the tap of a VM (process {} {})", holder.process.pid, holder.process.name)
    } else {
        return Ok(());
    };
    Err(usage(format!(
        "uplink {name} {what}: name the interface that the senders' packets for {port} come through \
         with --uplink"
    )))
}

/// The rate in bits per second; `option` is named in errors. The calling thread is in the uplink's
/// network namespace.
pub fn bits_of(uplink: &Device, rate: Rate, option: &str) -> Result<u64> {
    match rate {
        Rate::BitsPerSecond(bits) => Ok(bits),
        Rate::Link => link_speed(uplink).ok_or_else(|| {
            usage(format!(
                "the link speed of uplink {} is not known ({}): give the rate of the last hop with {option}",
                uplink.name,
                why_unknown(uplink)
            ))
        }),
    }
}

/// Speed of the link, bits per second, if it is known.
pub fn link_speed(device: &Device) -> Option<u64> {
    (!is_made_up(device))
        .then(|| ethtool::link_speed(&device.name))
        .flatten()
        .filter(|bits| RATES.contains(bits))
}

/// Drivers that report a meaningless speed: a veth always 10 Gb/s, a tap what was set, a bridge
/// that of its fastest port, taps included.
fn is_made_up(device: &Device) -> bool {
    ["veth", "tun", "bridge"].contains(&device.kind.as_str())
}

fn why_unknown(device: &Device) -> String {
    match device.kind.as_str() {
        "tun" => "a tap has none".to_owned(),
        kind if is_made_up(device) => format!("a {kind} has none"),
        _ if !device.carrier => "it is down".to_owned(),
        _ => "its driver does not tell".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_that_was_made_up_is_none() {
        let device = |kind: &str| Device { kind: kind.into(), ..Device::default() };
        for kind in ["veth", "tun", "bridge"] {
            assert!(is_made_up(&device(kind)), "{kind}");
            assert_eq!(link_speed(&device(kind)), None);
        }
        for kind in ["", "bond", "vlan"] {
            assert!(!is_made_up(&device(kind)), "{kind}");
        }
    }

    #[test]
    fn what_was_joined_is_said() {
        let joined = Joined {
            uplink: "eth0".into(),
            ifindex: 2,
            rate_bits_per_second: 10_000_000_000,
            buffer_bytes: 64 << 10,
        };
        let text = joined.describe_joined();
        assert_eq!(text, "incast control behind eth0 (10 Gb/s, 64 KiB of queue before it)");
        let off = Joined { rate_bits_per_second: 0, ..joined }.describe_joined();
        assert!(off.contains("where it is off") && off.contains("--rate RATE"), "{off}");
    }
}
