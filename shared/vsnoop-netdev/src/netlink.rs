//! One request over rtnetlink and all of its answers, blocking.
//!
//! The socket belongs to the network namespace of the calling thread.

use std::io;

use netlink_packet_core::{
    DecodeError, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// The module's result.
pub type Result<T> = std::result::Result<T, Error>;

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("open a netlink socket")]
    Open(#[source] io::Error),
    #[error("bind a netlink socket")]
    Bind(#[source] io::Error),
    #[error("connect a netlink socket")]
    Connect(#[source] io::Error),
    #[error("send a netlink request")]
    Send(#[source] io::Error),
    #[error("receive a netlink answer")]
    Receive(#[source] io::Error),
    #[error("parse a netlink answer")]
    Parse(#[source] DecodeError),
    #[error("the kernel sent a netlink message of no length")]
    NoLength,
    /// The kernel's answer is an errno.
    #[error(transparent)]
    Refused(io::Error),
}

impl Error {
    /// The errno of an error that came from the kernel.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Open(error)
            | Self::Bind(error)
            | Self::Connect(error)
            | Self::Send(error)
            | Self::Receive(error)
            | Self::Refused(error) => error.raw_os_error(),
            Self::Parse(_) | Self::NoLength => None,
        }
    }
}

/// Asks for everything of a kind.
pub fn dump(request: RouteNetlinkMessage) -> Result<Vec<RouteNetlinkMessage>> {
    ask(request, NLM_F_DUMP)
}

/// Asks for one object, or changes one with the `NLM_F_*` flags of `flags`.
pub fn ask(request: RouteNetlinkMessage, flags: u16) -> Result<Vec<RouteNetlinkMessage>> {
    let mut socket = Socket::new(NETLINK_ROUTE).map_err(Error::Open)?;
    socket.bind_auto().map_err(Error::Bind)?;
    socket.connect(&SocketAddr::new(0, 0)).map_err(Error::Connect)?;

    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let dump = flags & NLM_F_DUMP == NLM_F_DUMP;
    if !dump {
        header.flags |= NLM_F_ACK;
    }
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
    message.finalize();
    let mut buffer = vec![0; message.buffer_len()];
    message.serialize(&mut buffer);
    socket.send(&buffer, 0).map_err(Error::Send)?;

    let mut answers = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full().map_err(Error::Receive)?;
        let mut rest = &datagram[..];
        while !rest.is_empty() {
            let message =
                NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(Error::Parse)?;
            // Messages are padded to four bytes.
            let length = (message.header.length as usize).next_multiple_of(4).min(rest.len());
            if length == 0 {
                return Err(Error::NoLength);
            }
            rest = &rest[length..];
            match message.payload {
                NetlinkPayload::Error(error) if error.code.is_some() => {
                    let errno = io::Error::from_raw_os_error(-error.raw_code());
                    return Err(Error::Refused(errno));
                }
                NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(answers),
                NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                _ => {}
            }
        }
    }
}
