//! TCP segments of a namespace, as its devices send and receive them: whose bytes, and when.
//!
//! The kernel keeps packets with their times in the buffer of a packet socket (packet(7)) until
//! they are read; no thread runs meanwhile that could disturb the measurement.

use std::io::IoSliceMut;
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, LinkAddr, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use socket2::{Domain, Protocol, Socket, Type};
use vsnoop_packet::format::{ACK, RST, SYN};
use vsnoop_packet::headers::Headers;
use vsnoop_packet::options::TIMESTAMPS;

use super::net::Netns;

/// Room for some 20 MB of payload, with the kernel's overhead.
const BUFFER_BYTES: usize = 64 << 20;
/// Marks a frame that a device sends (packet(7)).
const OUTGOING: u8 = libc::PACKET_OUTGOING;
/// A super-packet with its headers.
const LONGEST_FRAME: usize = 65_536 + 64;

/// A TCP segment, or a super-packet of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapturedSegment {
    /// Time since 1970.
    pub at: Duration,
    pub source_port: u16,
    pub destination_port: u16,
    pub seq: u32,
    /// The ACK number of a segment with ACK.
    pub ack: Option<u32>,
    pub payload_bytes: u32,
    pub syn: bool,
    pub rst: bool,
    /// A device of the namespace sent it; otherwise one received it.
    pub outgoing: bool,
    /// TSval (RFC 7323).
    pub timestamp: Option<u32>,
    /// The identification of an IPv4 packet. Linux counts it up in each connection; vsnoop sends 0
    /// (RFC 6864).
    pub identification: Option<u16>,
}

#[derive(Debug)]
pub struct Capture {
    socket: Socket,
}

impl Capture {
    /// Captures on all devices of this namespace, from now on.
    pub fn start(netns: &Netns) -> Result<Self> {
        let protocol = Protocol::from(i32::from((libc::ETH_P_ALL as u16).to_be()));
        let open = || Ok(Socket::new(Domain::PACKET, Type::RAW, Some(protocol))?);
        let socket = netns.run(open).context("open a packet socket")?;
        setsockopt(&socket, sockopt::RcvBufForce, &BUFFER_BYTES).context("enlarge its buffer")?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true).context("ask for times")?;
        Ok(Self { socket })
    }

    /// The packets since the last call, in order; an error when frames were
    /// lost.
    pub fn take(&self) -> Result<Vec<CapturedSegment>> {
        let mut frame = vec![0; LONGEST_FRAME];
        let mut control = cmsg_space!(TimeSpec);
        let mut segments = Vec::new();
        loop {
            let mut parts = [IoSliceMut::new(&mut frame)];
            let fd = self.socket.as_raw_fd();
            let flags = MsgFlags::MSG_DONTWAIT;
            let message = match recvmsg::<LinkAddr>(fd, &mut parts, Some(&mut control), flags) {
                Ok(message) => message,
                Err(Errno::EAGAIN) => break,
                Err(error) => return Err(error).context("read a packet socket"),
            };
            let at = message.cmsgs().context("a frame's time")?.find_map(time);
            let at = at.context("a frame without a time")?;
            let outgoing = message.address.is_some_and(|from| from.pkttype() == OUTGOING);
            let length = message.bytes;
            let seen = segment(&frame[..length], at);
            segments.extend(seen.map(|segment| CapturedSegment { outgoing, ..segment }));
        }
        ensure!(self.lost()? == 0, "more passed than a capture can keep");
        Ok(segments)
    }

    /// Frames that did not fit since the last call.
    fn lost(&self) -> Result<u32> {
        let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: an open socket, and room for the record with its true length.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                std::ptr::from_mut(&mut statistics).cast(),
                &mut length,
            )
        };
        Errno::result(result).context("read a packet socket's counters")?;
        Ok(statistics.tp_drops)
    }
}

fn time(message: ControlMessageOwned) -> Option<Duration> {
    match message {
        ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time)),
        _ => None,
    }
}

fn segment(frame: &[u8], at: Duration) -> Option<CapturedSegment> {
    let headers = Headers::parse(frame)?;
    let tcp = headers.tcp_header(frame)?;
    Some(CapturedSegment {
        at,
        source_port: tcp.source_port.get(),
        destination_port: tcp.destination_port.get(),
        seq: tcp.sequence.get(),
        ack: (tcp.flags & ACK != 0).then(|| tcp.acknowledgment.get()),
        payload_bytes: headers.payload_bytes() as u32,
        syn: tcp.flags & SYN != 0,
        rst: tcp.flags & RST != 0,
        timestamp: headers
            .tcp_options(frame)
            .find(|option| option.kind == TIMESTAMPS)
            .and_then(|option| option.word(0)),
        identification: headers.ipv4_header(frame).map(|header| header.identification.get()),
        ..CapturedSegment::default()
    })
}
