//! Checks uplinks with incast control: does each exist, with its hook, and does its rate match the
//! link?

use anyhow::Result;
use vsnoop_host::config::Config;
use vsnoop_host::error::Unfit;
use vsnoop_host::incast::UplinkControl;
use vsnoop_host::incast::listed::{self, ListedUplink};
use vsnoop_host::incast::uplink::link_speed;
use vsnoop_host::system::netdev::{self, Device};
use vsnoop_host::system::netns::{self, Netns};
use vsnoop_host::units;

use super::{Check, Level};

/// `None` without an uplink. `netns`: where the configured one is to be.
pub fn check_incast(config: Option<&Config>, netns: &Netns) -> Option<Check> {
    // Nothing can be read without privileges.
    let found = listed::all().unwrap_or_default();
    let paths = netns::paths();
    let look = |uplink: &ListedUplink| -> Result<(Level, String)> {
        let path = paths.get(&uplink.netns).map(|path| path.to_string_lossy());
        let device = match path {
            Some(path) => Netns::open(&path)?.run(|| look_at(uplink.ifindex))?,
            None => None,
        };
        Ok(find_trouble(uplink, device.as_ref()))
    };
    let mut findings: Vec<_> =
        found.uplinks.iter().filter_map(|uplink| look(uplink).ok()).collect();
    findings.extend(found.damaged.iter().map(|damaged| {
        let text = format!("{} is damaged; `vsnoop off --all` removes it", damaged.path);
        (Level::Warn, text)
    }));
    findings.extend(config.and_then(|config| find_missing(config, netns)));
    let is_well = findings.iter().all(|(level, _)| *level == Level::Ok);
    let texts: Vec<_> = findings.into_iter().map(|(_, text)| text).collect();
    (!texts.is_empty()).then(|| Check {
        name: "incast control",
        level: if is_well { Level::Ok } else { Level::Warn },
        detail: texts.join("; "),
        unfit: Unfit::Other,
    })
}

/// The uplink of the configuration, if there is none of that name.
fn find_missing(config: &Config, netns: &Netns) -> Option<(Level, String)> {
    let name = config.incast.uplink.as_deref()?;
    let is_there = netns.run(|| Ok::<_, anyhow::Error>(netdev::find(name)?.is_some()));
    let text = format!(
        "uplink {name} (incast.uplink in {}) does not exist in the network namespace {}; `ip link` lists \
         the devices",
        config.file.display(),
        netns.label()
    );
    (!is_there.ok()?).then_some((Level::Warn, text))
}

/// The interface, and its link speed if that is known.
fn look_at(ifindex: u32) -> Result<Option<(Device, Option<u64>)>> {
    let device = netdev::find_index(ifindex)?;
    Ok(device.map(|device| {
        let bits = link_speed(&device);
        (device, bits)
    }))
}

fn find_trouble(uplink: &ListedUplink, device: Option<&(Device, Option<u64>)>) -> (Level, String) {
    let state = &uplink.state;
    let name = &state.name;
    if let Some(trouble) = state.trouble() {
        return (Level::Warn, trouble);
    }
    if state.state == UplinkControl::Off {
        return (Level::Ok, format!("uplink {name}: off"));
    }
    if device.is_some_and(|(device, _)| !device.up || !device.carrier) {
        return (Level::Warn, format!("uplink {name} is down: nothing comes in through it"));
    }
    let rate = state.rate_bits_per_second;
    if let Some(bits) = device.and_then(|(_, bits)| *bits).filter(|bits| rate > *bits) {
        let text = format!(
            "uplink {name}: its rate is {}, and its link has {}: what comes at once overflows the queue \
             before it; `vsnoop incast set --uplink {name} --rate link`",
            units::bit_rate(rate),
            units::bit_rate(bits)
        );
        return (Level::Warn, text);
    }
    let ports = units::plural(uplink.ports.len() as u64, "port");
    (Level::Ok, format!("uplink {name}: {}, {ports}", units::bit_rate(rate)))
}

#[cfg(test)]
mod tests {
    use vsnoop_host::incast::UplinkState;
    use vsnoop_host::incast::state::Bandwidth;

    use super::*;

    fn uplink(state: UplinkControl) -> ListedUplink {
        ListedUplink {
            state: UplinkState {
                name: "eth0".into(),
                interface: Some("eth0".into()),
                state,
                rate_bits_per_second: 10_000_000_000,
                buffer_bytes: 64 << 10,
                bandwidth: Bandwidth::default(),
                flows: 0,
                waiting: 0,
                granted_bytes: 0,
                credit_bytes: None,
            },
            ifindex: 2,
            netns: 1,
            netns_name: None,
            ports: vec!["tap0".into()],
        }
    }

    fn device(bits: Option<u64>) -> (Device, Option<u64>) {
        (Device { up: true, carrier: true, ..Device::default() }, bits)
    }

    #[test]
    fn an_uplink_that_works_is_well() {
        for bits in [None, Some(10_000_000_000), Some(25_000_000_000)] {
            let found = find_trouble(&uplink(UplinkControl::On), Some(&device(bits)));
            assert_eq!(found, (Level::Ok, "uplink eth0: 10 Gb/s, 1 port".into()));
        }
        let off = find_trouble(&uplink(UplinkControl::Off), Some(&device(Some(1_000_000_000))));
        assert_eq!(off, (Level::Ok, "uplink eth0: off".into()));
    }

    #[test]
    fn what_is_wrong_with_an_uplink_is_said_with_the_way_out() {
        let down = (Device { up: true, ..Device::default() }, None);
        let slow = device(Some(1_000_000_000));
        for (state, device, words) in [
            (UplinkControl::On, &slow, ["its link has 1.0 Gb/s", "--rate link"]),
            (UplinkControl::On, &down, ["eth0 is down", "nothing comes in"]),
            (UplinkControl::Unhooked, &slow, ["lost its hook", "vsnoop incast set --uplink eth0"]),
            (UplinkControl::Gone, &slow, ["eth0 is gone", "detach"]),
        ] {
            let (level, text) = find_trouble(&uplink(state), Some(device));
            assert_eq!(level, Level::Warn);
            for word in words {
                assert!(text.contains(word), "{word:?} is not in: {text}");
            }
        }
    }
}
