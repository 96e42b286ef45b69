//! One question over rtnetlink and all of its answers, blocking.
//!
//! The socket belongs to the network namespace of the calling thread.

use std::io;

use anyhow::{Context, Result, bail};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Asks for everything of a kind.
pub fn dump(question: RouteNetlinkMessage) -> Result<Vec<RouteNetlinkMessage>> {
    ask(question, NLM_F_DUMP)
}

/// Asks for one object, or changes one with the `NLM_F_*` flags of `flags`.
pub fn ask(question: RouteNetlinkMessage, flags: u16) -> Result<Vec<RouteNetlinkMessage>> {
    let mut socket = Socket::new(NETLINK_ROUTE).context("open a netlink socket")?;
    socket.bind_auto().context("bind a netlink socket")?;
    socket.connect(&SocketAddr::new(0, 0)).context("connect a netlink socket")?;

    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let dump = flags & NLM_F_DUMP == NLM_F_DUMP;
    if !dump {
        header.flags |= NLM_F_ACK;
    }
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(question));
    message.finalize();
    let mut buffer = vec![0; message.buffer_len()];
    message.serialize(&mut buffer);
    socket.send(&buffer, 0).context("send a netlink request")?;

    let mut answers = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full().context("receive a netlink answer")?;
        let mut rest = &datagram[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .context("parse a netlink answer")?;
            // Messages are padded to four bytes.
            let length = (message.header.length as usize).next_multiple_of(4).min(rest.len());
            if length == 0 {
                bail!("the kernel sent a netlink message of no length");
            }
            rest = &rest[length..];
            match message.payload {
                NetlinkPayload::Error(error) if error.code.is_some() => {
                    return Err(io::Error::from_raw_os_error(-error.raw_code()).into());
                }
                NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(answers),
                NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                _ => {}
            }
        }
    }
}

/// The errno of an error of [`ask`], if it came from the kernel.
pub fn errno(error: &anyhow::Error) -> Option<i32> {
    error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error)
}
