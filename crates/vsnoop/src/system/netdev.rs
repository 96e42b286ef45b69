//! Network devices, and which of them vsnoop can work on.
//!
//! Only a tap will do: for a tap, the return value of the hand-over says whether the VM's ring took
//! the segment. For every other device it says something weaker, and an early ACK could be a lie.

use anyhow::{Context, Result, bail};
use netlink_packet_core::{DefaultNla, Nla};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoTun, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};

use super::netlink;
use crate::error::{Unfit, unfit};

/// A network device of the calling thread's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    pub index: u32,
    /// The kernel's word for its kind: "tun" for taps too; empty for physical devices.
    pub kind: String,
    pub tap: Option<Tap>,
    pub up: bool,
    /// Somebody holds the other end.
    pub carrier: bool,
    pub bridge: Option<u32>,
    pub ring_frames: u32,
    pub mtu: u32,
    pub qdisc: String,
}

/// What is known of a tap beyond other devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tap {
    pub vnet_hdr: bool,
    pub multi_queue: bool,
    /// Queues that a process serves now; 1 unless the tap has several.
    pub queues: u32,
}

// include/uapi/linux/if_link.h, IFLA_TUN_*
const IFLA_TUN_TYPE: u16 = 3;
const IFLA_TUN_VNET_HDR: u16 = 5;
const IFLA_TUN_MULTI_QUEUE: u16 = 7;
const IFLA_TUN_NUM_QUEUES: u16 = 8;
const TYPE_TAP: u32 = 2;

/// The device of this name, `None` when there is none.
pub fn find(name: &str) -> Result<Option<Device>> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ {
        return Ok(None);
    }
    let mut question = LinkMessage::default();
    question.attributes.push(LinkAttribute::IfName(name.to_owned()));
    match netlink::ask(RouteNetlinkMessage::GetLink(question), 0) {
        Ok(answers) => Ok(answers.into_iter().find_map(device)),
        Err(error) if netlink::errno(&error) == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(error.context(format!("look for device {name}"))),
    }
}

/// The device with this index, `None` when there is none.
pub fn find_index(index: u32) -> Result<Option<Device>> {
    let mut question = LinkMessage::default();
    question.header.index = index;
    match netlink::ask(RouteNetlinkMessage::GetLink(question), 0) {
        Ok(answers) => Ok(answers.into_iter().find_map(device)),
        Err(error) if netlink::errno(&error) == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(error.context(format!("look for the device with index {index}"))),
    }
}

/// All devices of the namespace.
pub fn list() -> Result<Vec<Device>> {
    let answers = netlink::dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))
        .context("list the network devices")?;
    Ok(answers.into_iter().filter_map(device).collect())
}

/// The device, if it is a tap; otherwise an error that says why not and what to use instead.
pub fn find_tap(name: &str, place: &str) -> Result<Device> {
    let Some(device) = find(name)? else { return Err(does_not_exist(name, place)) };
    if device.tap.is_some() {
        return Ok(device);
    }
    Err(unfit(Unfit::NotATap, format!("port {name} {}", refusal(&device)?)))
}

/// There is no device of this name in the network namespace that is called `place`.
pub fn does_not_exist(name: &str, place: &str) -> anyhow::Error {
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
                .filter(|port| port.tap.is_some() && port.bridge == Some(device.index))
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

fn device(answer: RouteNetlinkMessage) -> Option<Device> {
    let RouteNetlinkMessage::NewLink(link) = answer else { return None };
    let mut device = Device {
        index: link.header.index,
        up: link.header.flags.contains(LinkFlags::Up),
        carrier: link.header.flags.contains(LinkFlags::LowerUp),
        ..Device::default()
    };
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => device.name = name,
            LinkAttribute::TxQueueLen(frames) => device.ring_frames = frames,
            LinkAttribute::Mtu(bytes) => device.mtu = bytes,
            LinkAttribute::Qdisc(kind) => device.qdisc = kind,
            LinkAttribute::Controller(index) => device.bridge = Some(index),
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(kind) => device.kind = kind.to_string(),
                        LinkInfo::Data(InfoData::Tun(data)) => device.tap = tap(&data),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Some(device)
}

fn tap(data: &[InfoTun]) -> Option<Tap> {
    let mut tap = Tap { queues: 1, ..Tap::default() };
    let mut kind = 0;
    for attribute in data {
        let InfoTun::Other(attribute) = attribute else { continue };
        let value = number(attribute).ok()?;
        match attribute.kind() {
            IFLA_TUN_TYPE => kind = value,
            IFLA_TUN_VNET_HDR => tap.vnet_hdr = value != 0,
            IFLA_TUN_MULTI_QUEUE => tap.multi_queue = value != 0,
            IFLA_TUN_NUM_QUEUES => tap.queues = value,
            _ => {}
        }
    }
    (kind == TYPE_TAP).then_some(tap)
}

/// The value of a u8 or u32 attribute.
fn number(attribute: &DefaultNla) -> Result<u32> {
    let mut bytes = [0; 4];
    match attribute.value_len() {
        1 => {
            attribute.emit_value(&mut bytes[..1]);
            Ok(bytes[0].into())
        }
        4 => {
            attribute.emit_value(&mut bytes);
            Ok(u32::from_ne_bytes(bytes))
        }
        length => bail!("a tun attribute of {length} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> InfoTun {
        InfoTun::Other(DefaultNla::new(kind, value.to_vec()))
    }

    #[test]
    fn a_tap_is_told_from_a_tun() {
        let tun = [attribute(IFLA_TUN_TYPE, &[1]), attribute(IFLA_TUN_VNET_HDR, &[1])];
        assert_eq!(tap(&tun), None);
        let multi = [
            attribute(IFLA_TUN_TYPE, &[2]),
            attribute(IFLA_TUN_VNET_HDR, &[1]),
            attribute(IFLA_TUN_MULTI_QUEUE, &[1]),
            attribute(IFLA_TUN_NUM_QUEUES, &4u32.to_ne_bytes()),
        ];
        assert_eq!(tap(&multi), Some(Tap { vnet_hdr: true, multi_queue: true, queues: 4 }));
    }

    #[test]
    fn the_loopback_device_is_refused_as_no_tap() {
        let error = find_tap("lo", "here").unwrap_err();
        assert!(error.to_string().contains("not a tap"), "{error}");
        assert_eq!(crate::error::exit_code(&error), Unfit::NotATap as u8);
    }

    #[test]
    fn a_name_that_no_device_can_have_is_not_found() {
        assert_eq!(find("a-name-much-longer-than-ifnamsiz").unwrap(), None);
        assert_eq!(find("").unwrap(), None);
    }
}
