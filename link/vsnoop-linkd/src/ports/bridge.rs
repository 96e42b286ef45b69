//! The tap of a port and its bridge: it may fall out of it, and a bridge may go and come again, as
//! another one of the same name. A tap that is in no bridge is put back; one that is in another was
//! put there by an administrator, and stays.

use vsnoop_netdev as netdev;

use crate::causes::{BoxedError, with_causes};
use crate::io::device::Interface;

/// How a tap stands to its bridge.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// It had fallen out, and was put back.
    pub is_put_back: bool,
    /// Frames of a bridge reach it.
    pub carries: bool,
    /// How the tap differs from its configuration.
    pub reason: Option<String>,
}

/// Looks at the tap `tap`, and puts it into `bridge` if it is in none. `ports`: bridges of all
/// ports.
pub fn check_tap(tap: &str, bridge: &str, ports: &[String]) -> Standing {
    let unknown = |error: BoxedError| Standing {
        carries: true,
        reason: Some(format!(
            "whether it is in bridge {bridge} cannot be seen: {}",
            with_causes(&*error)
        )),
        ..Standing::default()
    };
    try_look(tap, bridge, ports).unwrap_or_else(unknown)
}

fn try_look(tap: &str, bridge: &str, ports: &[String]) -> Result<Standing, BoxedError> {
    // One that goes at this moment is missed at the next look.
    let is_in = netdev::find(tap)?.and_then(|tap| tap.master);
    let wanted = netdev::find(bridge)?;
    let other = match is_in {
        Some(index) if wanted.as_ref().is_none_or(|wanted| wanted.index != index) => {
            netdev::find_index(index)?
        }
        _ => None,
    };
    let is_put_back = is_in.is_none() && wanted.as_ref().is_some_and(is_bridge);
    if is_put_back && let Err(error) = Interface::new(tap).join_bridge(bridge) {
        let reason = Some(with_causes(&error));
        return Ok(Standing { reason, ..Standing::default() });
    }
    let (carries, reason) = judge_bridge(tap, bridge, wanted.as_ref(), other.as_ref(), ports);
    Ok(Standing { is_put_back, carries, reason })
}

fn is_bridge(device: &netdev::Device) -> bool {
    device.kind == "bridge"
}

/// Whether a tap carries frames, and what differs from the configuration. `wanted`: the device of
/// the bridge's name; `other`: the master of the tap if that is another device; `ports`: bridges of
/// all ports.
fn judge_bridge(
    tap: &str,
    bridge: &str,
    wanted: Option<&netdev::Device>,
    other: Option<&netdev::Device>,
    ports: &[String],
) -> (bool, Option<String>) {
    let down = |device: &netdev::Device| format!("{0} is down: `ip link set {0} up`", device.name);
    match (wanted, other) {
        (_, Some(other)) => {
            let (kind, name) = (other.kind_words(), &other.name);
            let last = match is_bridge(other) {
                true => format!("; bridge = \"{name}\" in the configuration is for good"),
                false => String::new(),
            };
            // Others, such as a virtual switch's, may carry frames while they are down.
            let is_stopped = is_bridge(other) && !other.up;
            let stopped = if is_stopped { format!("; {}", down(other)) } else { String::new() };
            let looped = match ports.contains(name) {
                true => format!("; {name} is a port of the link already: FRAMES GO ROUND FOR EVER"),
                false => String::new(),
            };
            let reason = format!(
                "somebody has put it into {kind} {name}, and it stays there; `ip link set {tap} master \
                 {bridge}` puts it back into bridge {bridge}{last}{stopped}{looped}"
            );
            (!is_stopped, Some(reason))
        }
        (Some(wanted), None) if !is_bridge(wanted) => {
            let kind = wanted.kind_words();
            let reason = format!(
                "{bridge} is no bridge any more but a {kind}; it is put into bridge {bridge} when there is one"
            );
            (false, Some(reason))
        }
        (Some(wanted), None) if !wanted.up => (false, Some(format!("bridge {}", down(wanted)))),
        (Some(_), None) => (true, None),
        (None, None) => {
            let reason = format!(
                "there is no bridge {bridge} (`ip link add {bridge} type bridge`); it is put into it when it is \
                 back"
            );
            (false, Some(reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, kind: &str, is_up: bool) -> netdev::Device {
        netdev::Device { name: name.into(), kind: kind.into(), up: is_up, ..Default::default() }
    }

    #[test]
    fn a_tap_in_a_bridge_that_is_up_carries_frames_and_else_the_way_out_is_told() {
        let (up, down) = (device("br0", "bridge", true), device("br0", "bridge", false));
        let (other, other_down) = (device("br1", "bridge", true), device("br1", "bridge", false));
        let (veth, bond) = (device("br0", "veth", true), device("bond0", "bond", true));
        let card = device("br0", "", true);
        let second = device("br2", "bridge", true);
        let ports = ["br0", "br2"].map(str::to_owned);
        let switch = device("ovs-system", "openvswitch", false);
        assert_eq!(judge_bridge("vsl0", "br0", Some(&up), None, &ports), (true, None));
        for (wanted, is_in, carries, words) in [
            (Some(&down), None, false, ["bridge br0 is down", "`ip link set br0 up`"]),
            (None, None, false, ["no bridge br0", "ip link add br0 type bridge"]),
            (Some(&veth), None, false, ["no bridge any more but a veth", "when there is one"]),
            (Some(&card), None, false, ["but a physical device", "when there is one"]),
            (Some(&up), Some(&other), true, ["bridge br1", "`ip link set vsl0 master br0`"]),
            (None, Some(&other), true, ["into bridge br1", "bridge = \"br1\""]),
            (Some(&up), Some(&bond), true, ["into bond bond0", "`ip link set vsl0 master br0`"]),
            (Some(&up), Some(&second), true, ["bridge br2", "FRAMES GO ROUND"]),
            (Some(&up), Some(&switch), true, ["openvswitch ovs-system", "puts it back"]),
            (Some(&up), Some(&other_down), false, ["into bridge br1", "`ip link set br1 up`"]),
        ] {
            let (said, reason) = judge_bridge("vsl0", "br0", wanted, is_in, &ports);
            let reason = reason.expect("something is wrong");
            assert_eq!(said, carries, "{reason}");
            assert!(words.iter().all(|word| reason.contains(word)), "{words:?}: {reason}");
        }
    }
}
