//! Network devices as the kernel describes them, and changes of them ([`change`]): requests over
//! rtnetlink ([`netlink`]) and to drivers ([`ethtool`]), notifications ([`events`]), routes
//! ([`route`], [`policy`]); what bridges have learned ([`fdb`]), and learn ([`learned`]); pairs of
//! devices ([`veth`]), and taps that are opened ([`tap`]).
//!
//! sysfs shows the network namespace in which it was mounted; these ask in that of the calling
//! thread.

pub mod change;
pub mod ethtool;
pub mod events;
pub mod fdb;
pub mod learned;
pub mod netlink;
mod notifications;
pub mod policy;
pub mod route;
pub mod tap;
pub mod veth;

use std::net::IpAddr;

use netlink_packet_core::{DefaultNla, Nla};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoBridge, InfoData, InfoTun, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, LinkXdp,
};

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// The kernel does not describe the devices.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("look for device {name}")]
    Find { name: String, source: netlink::Error },
    #[error("look for the device with index {index}")]
    FindIndex { index: u32, source: netlink::Error },
    #[error("list the network devices")]
    List(#[source] netlink::Error),
    #[error("look for the route to {to}")]
    Route { to: IpAddr, source: netlink::Error },
    #[error("look for an address in the bridge with index {bridge}")]
    Fdb { bridge: u32, source: netlink::Error },
    #[error("ask for the VLANs of the bridge port with index {port}")]
    PortVlan { port: u32, source: netlink::Error },
}

/// A network device of the calling thread's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    pub index: u32,
    /// The kernel's word for its kind: "tun" for taps too; empty for physical devices.
    pub kind: String,
    pub tap: Option<TapInfo>,
    pub up: bool,
    /// A process has the tap open.
    pub carrier: bool,
    /// Index of its master: a bridge, a bond, ...
    pub master: Option<u32>,
    /// Index of its lower device, in the same namespace: of a VLAN device, a macvlan, ...; of
    /// a veth its peer.
    pub lower: Option<u32>,
    pub ring_frames: u32,
    pub mtu: u32,
    /// Its Ethernet address.
    pub mac: Option<[u8; 6]>,
    pub qdisc: String,
    /// It is a bridge that filters VLANs, and learns addresses in each of them apart.
    pub filters_vlans: bool,
    /// Ids of its XDP programs, one for each mode that has one.
    pub xdp_programs: Vec<u32>,
}

impl Device {
    /// The common name of its kind.
    pub fn kind_words(&self) -> &str {
        match self.kind.as_str() {
            "" => "physical device",
            "tun" if self.tap.is_some() => "tap",
            "tun" => "tun without Ethernet frames",
            kind => kind,
        }
    }
}

/// Properties of a tap beyond those of all devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapInfo {
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
    let mut request = LinkMessage::default();
    request.attributes.push(LinkAttribute::IfName(name.to_owned()));
    match netlink::ask(RouteNetlinkMessage::GetLink(request), 0) {
        Ok(answers) => Ok(answers.into_iter().find_map(device)),
        Err(error) if error.errno() == Some(libc::ENODEV) => Ok(None),
        Err(source) => Err(Error::Find { name: name.to_owned(), source }),
    }
}

/// The device with this index, `None` when there is none.
pub fn find_index(index: u32) -> Result<Option<Device>> {
    let mut request = LinkMessage::default();
    request.header.index = index;
    match netlink::ask(RouteNetlinkMessage::GetLink(request), 0) {
        Ok(answers) => Ok(answers.into_iter().find_map(device)),
        Err(error) if error.errno() == Some(libc::ENODEV) => Ok(None),
        Err(source) => Err(Error::FindIndex { index, source }),
    }
}

/// All devices of the namespace.
pub fn list() -> Result<Vec<Device>> {
    let answers =
        netlink::dump(RouteNetlinkMessage::GetLink(LinkMessage::default())).map_err(Error::List)?;
    Ok(answers.into_iter().filter_map(device).collect())
}

fn device(answer: RouteNetlinkMessage) -> Option<Device> {
    let RouteNetlinkMessage::NewLink(link) = answer else { return None };
    let mut device = Device {
        index: link.header.index,
        up: link.header.flags.contains(LinkFlags::Up),
        carrier: link.header.flags.contains(LinkFlags::LowerUp),
        ..Device::default()
    };
    let mut is_elsewhere = false;
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => device.name = name,
            LinkAttribute::TxQueueLen(frames) => device.ring_frames = frames,
            LinkAttribute::Mtu(bytes) => device.mtu = bytes,
            LinkAttribute::Address(bytes) => device.mac = bytes.try_into().ok(),
            LinkAttribute::Qdisc(kind) => device.qdisc = kind,
            LinkAttribute::Controller(index) => device.master = Some(index),
            LinkAttribute::Link(index) => device.lower = Some(index),
            LinkAttribute::Xdp(of_modes) => device.xdp_programs = xdp_programs(&of_modes),
            LinkAttribute::LinkNetNsId(_) => is_elsewhere = true,
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(kind) => device.kind = kind.to_string(),
                        LinkInfo::Data(InfoData::Tun(data)) => device.tap = tap(&data),
                        LinkInfo::Data(InfoData::Bridge(data)) => {
                            device.filters_vlans = data.contains(&InfoBridge::VlanFiltering(true));
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    device.lower = device.lower.filter(|index| !is_elsewhere && *index != 0);
    Some(device)
}

fn tap(data: &[InfoTun]) -> Option<TapInfo> {
    let mut tap = TapInfo { queues: 1, ..TapInfo::default() };
    let mut kind = 0;
    for attribute in data {
        let InfoTun::Other(attribute) = attribute else { continue };
        let value = number(attribute)?;
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

/// With one program the kernel names it twice: alone and with its mode.
fn xdp_programs(attributes: &[LinkXdp]) -> Vec<u32> {
    let id = |attribute: &LinkXdp| match attribute {
        LinkXdp::ProgId(id)
        | LinkXdp::DrvProgId(id)
        | LinkXdp::SkbProgId(id)
        | LinkXdp::HwProgId(id) => Some(*id).filter(|id| *id != 0),
        _ => None,
    };
    let mut ids: Vec<_> = attributes.iter().filter_map(id).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// The value of a u8 or u32 attribute; `None` for one of another length.
fn number(attribute: &DefaultNla) -> Option<u32> {
    let mut bytes = [0; 4];
    match attribute.value_len() {
        1 => {
            attribute.emit_value(&mut bytes[..1]);
            Some(bytes[0].into())
        }
        4 => {
            attribute.emit_value(&mut bytes);
            Some(u32::from_ne_bytes(bytes))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::XdpAttached;

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
        assert_eq!(tap(&multi), Some(TapInfo { vnet_hdr: true, multi_queue: true, queues: 4 }));
    }

    #[test]
    fn an_xdp_program_is_found_in_each_mode() {
        assert_eq!(xdp_programs(&[LinkXdp::Attached(XdpAttached::None)]), []);
        let one = [
            LinkXdp::Attached(XdpAttached::SocketBuffer),
            LinkXdp::ProgId(7),
            LinkXdp::SkbProgId(7),
        ];
        assert_eq!(xdp_programs(&one), [7]);
        let two = [
            LinkXdp::Attached(XdpAttached::Multiple),
            LinkXdp::DrvProgId(9),
            LinkXdp::SkbProgId(7),
        ];
        assert_eq!(xdp_programs(&two), [7, 9]);
    }

    #[test]
    fn a_name_that_no_device_can_have_is_not_found() {
        assert_eq!(find("a-name-much-longer-than-ifnamsiz").unwrap(), None);
        assert_eq!(find("").unwrap(), None);
    }

    #[test]
    fn an_interface_is_found_by_name_and_by_index_and_one_that_is_not_there_is_none() {
        let index = nix::net::if_::if_nametoindex("lo").unwrap();
        let lo = find("lo").unwrap().expect("every namespace has one");
        assert_eq!((lo.index, lo.name.as_str(), lo.master), (index, "lo", None));
        assert_eq!(lo.tap, None);
        assert_eq!(find_index(index).unwrap(), Some(lo));
        assert_eq!(find("no-such-device").unwrap(), None);
        assert_eq!(find_index(i32::MAX as u32).unwrap(), None);
    }
}
