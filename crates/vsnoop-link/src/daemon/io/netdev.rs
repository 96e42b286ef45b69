//! What the kernel says of an interface: one question over rtnetlink, one answer.
//!
//! The ioctls of `device` do not tell which bridge an interface is in, and sysfs shows the network namespace
//! in which it was mounted, which need not be the link's.

use anyhow::{Context, Result, bail};
use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload, Nla};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoTun, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Of linux/if_link.h.
const IFLA_TUN_TYPE: u16 = 3;

/// An interface of the calling thread's network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Netdev {
    pub index: u32,
    pub name: String,
    /// The kernel's word for its kind, such as "bridge"; empty for physical devices.
    pub kind: String,
    pub is_tap: bool,
    /// It is set up.
    pub is_up: bool,
    /// Index of what it is a port of: a bridge, a bond, ...
    pub master: Option<u32>,
}

/// The interface of this name, `None` when there is none.
pub fn find(name: &str) -> Result<Option<Netdev>> {
    let mut question = LinkMessage::default();
    question.attributes.push(LinkAttribute::IfName(name.to_owned()));
    ask(question).with_context(|| format!("looking for interface {name}"))
}

/// The interface with this index, `None` when there is none.
pub fn find_index(index: u32) -> Result<Option<Netdev>> {
    let mut question = LinkMessage::default();
    question.header.index = index;
    ask(question).with_context(|| format!("looking for the interface with index {index}"))
}

fn ask(question: LinkMessage) -> Result<Option<Netdev>> {
    let mut socket = Socket::new(NETLINK_ROUTE).context("making a netlink socket")?;
    socket.bind_auto().context("binding it")?;
    socket.connect(&SocketAddr::new(0, 0)).context("connecting it")?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let question = NetlinkPayload::from(RouteNetlinkMessage::GetLink(question));
    let mut message = NetlinkMessage::new(header, question);
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0).context("asking the kernel")?;
    let (answer, _) = socket.recv_from_full().context("the kernel's answer")?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer);
    match answer.context("reading the kernel's answer")?.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => Ok(Some(read(link))),
        NetlinkPayload::Error(error) if error.raw_code() == -libc::ENODEV => Ok(None),
        NetlinkPayload::Error(error) => Err(error.to_io().into()),
        other => bail!("the kernel answers {other:?}"),
    }
}

fn read(link: LinkMessage) -> Netdev {
    let mut netdev = Netdev {
        index: link.header.index,
        is_up: link.header.flags.contains(LinkFlags::Up),
        ..Netdev::default()
    };
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => netdev.name = name,
            LinkAttribute::Controller(index) => netdev.master = Some(index),
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(kind) => netdev.kind = kind.to_string(),
                        LinkInfo::Data(InfoData::Tun(data)) => {
                            netdev.is_tap = data.iter().any(says_tap)
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    netdev
}

/// Taps are of the kind "tun", and so are interfaces without Ethernet frames.
fn says_tap(attribute: &InfoTun) -> bool {
    let InfoTun::Other(attribute) = attribute else { return false };
    let mut value = [0];
    if attribute.kind() != IFLA_TUN_TYPE || attribute.value_len() != value.len() {
        return false;
    }
    attribute.emit_value(&mut value);
    value == [libc::IFF_TAP as u8]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_found_by_name_and_by_index_and_one_that_is_not_there_is_none() {
        let index = nix::net::if_::if_nametoindex("lo").unwrap();
        let lo = find("lo").unwrap().expect("every namespace has one");
        assert_eq!((lo.index, lo.name.as_str(), lo.master), (index, "lo", None));
        assert!(!lo.is_tap);
        assert_eq!(find_index(index).unwrap(), Some(lo));
        assert_eq!(find("no-such-device").unwrap(), None);
        assert_eq!(find_index(i32::MAX as u32).unwrap(), None);
    }
}
