//! Network devices that vsnoop supports.
//!
//! Only taps: for a tap, the result of the hand-over says whether the VM's ring took the segment.
//! For other devices it says less, and an early ACK could acknowledge a segment that is lost.

pub use vsnoop_netdev::Device;

use crate::error::{Error, Result, Unfit, unfit};

/// The device of this name, `None` when there is none.
pub fn find(name: &str) -> Result<Option<Device>> {
    Ok(vsnoop_netdev::find(name)?)
}

/// The device with this index, `None` when there is none.
pub fn find_index(index: u32) -> Result<Option<Device>> {
    Ok(vsnoop_netdev::find_index(index)?)
}

/// All devices of the namespace.
pub fn list() -> Result<Vec<Device>> {
    Ok(vsnoop_netdev::list()?)
}

/// Finds a tap; for another device an error that says why not, and what to use instead.
pub fn find_tap(name: &str, place: &str) -> Result<Device> {
    let Some(device) = find(name)? else { return Err(does_not_exist(name, place)) };
    if device.tap.is_some() {
        return Ok(device);
    }
    Err(unfit(Unfit::NotATap, format!("port {name} {}", refusal(&device)?)))
}

/// The error for a missing device; `place` names the network namespace.
pub fn does_not_exist(name: &str, place: &str) -> Error {
    let text = format!(
        "port {name} does not exist in the network namespace {place}; \
         `ip link` lists the devices, --netns names another namespace"
    );
    unfit(Unfit::NoPort, text)
}

fn refusal(device: &Device) -> Result<String> {
    Ok(match device.kind.as_str() {
        "tun" => {
            "is a tun without Ethernet frames, not a tap: vsnoop works on the tap of a VM".into()
        }
        "veth" => "is a veth, not a tap: nothing tells whether the receiver took a segment; \
                   attach to the VM's own tap (of a VM in a pod: --netns)"
            .into(),
        "macvtap" | "ipvtap" => format!(
            "is a {}, not a tap: the host sends through it to the network, not to the VM; \
             connect the VM with a tap in a bridge",
            device.kind
        ),
        "bridge" => {
            let taps: Vec<_> = list()?
                .into_iter()
                .filter(|port| port.tap.is_some() && port.master == Some(device.index))
                .map(|port| port.name)
                .collect();
            if taps.is_empty() {
                "is a bridge, not a tap, and has no tap as a port: attach to the tap of a VM".into()
            } else {
                format!("is a bridge, not a tap: attach to its ports, the taps {}", taps.join(", "))
            }
        }
        "" => "is a physical device, a virtual function of one or the loopback, not a tap: frames that hardware \
               hands to the VM (SR-IOV) cannot be accelerated; connect the VM with a tap"
            .into(),
        kind => format!("is a device of kind {kind}, not a tap: attach to the tap of a VM"),
    })
}

/// Index of the bridge that a device of this namespace is a port of; 0: of none. Other masters
/// (Open vSwitch, a VRF) take no frame for the senders.
pub fn bridge_of(device: &Device) -> Result<u32> {
    let Some(index) = device.master else { return Ok(0) };
    let master = find_index(index)?.filter(|master| master.kind == "bridge");
    Ok(master.map_or(0, |bridge| bridge.index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_is_refused_as_no_tap() {
        let error = find_tap("lo", "here").unwrap_err();
        assert!(error.to_string().contains("not a tap"), "{error}");
        assert!(matches!(error, Error::Unfit { what: Unfit::NotATap, .. }), "{error:?}");
    }
}
