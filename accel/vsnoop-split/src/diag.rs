//! The kernel's information about all sockets of a network namespace (sock_diag(7),
//! linux/inet_diag.h).
//!
//! The process that has the sockets is not asked, so that it cannot be waited for.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use linux_raw_sys::net::tcp_info;
use netlink_sys::{Socket, SocketAddr as NetlinkAddr, protocols::NETLINK_SOCK_DIAG};

use crate::info::Info;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// NLM_F_REQUEST and NLM_F_DUMP.
const DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER: usize = 16;
/// struct inet_diag_req_v2, struct inet_diag_msg, and the header of an attribute.
const REQUEST: usize = 56;
const MESSAGE: usize = 72;
const ATTRIBUTE: usize = 4;
const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_CONG: u16 = 4;
/// Bits of enum tcp_state (net/tcp_states.h), without SYN-SENT, SYN-RECEIVED, TIME-WAIT, CLOSE,
/// LISTEN.
const STATES: u32 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;

/// A TCP socket that is connected.
#[derive(Clone, Debug)]
pub struct Diagnosed {
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// Index of the device that it is bound to; 0: none.
    pub ifindex: u32,
    pub congestion_control: String,
    pub info: Info,
}

/// All of the network namespace of the calling thread, of both families.
pub fn diagnose() -> io::Result<Vec<Diagnosed>> {
    let mut found = dump(libc::AF_INET)?;
    found.extend(dump(libc::AF_INET6)?);
    Ok(found)
}

fn dump(family: libc::c_int) -> io::Result<Vec<Diagnosed>> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&NetlinkAddr::new(0, 0))?;
    socket.send(&request(family as u8), 0)?;
    let mut found = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        if take(&datagram, &mut found)? {
            return Ok(found);
        }
    }
}

fn request(family: u8) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + REQUEST);
    bytes.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(DUMP.to_ne_bytes());
    // Sequence number and port; then family, protocol, extensions, padding, states.
    bytes.extend([0; 8]);
    let extensions = 1 << (INET_DIAG_INFO - 1) | 1 << (INET_DIAG_CONG - 1);
    bytes.extend([family, libc::IPPROTO_TCP as u8, extensions, 0]);
    bytes.extend(STATES.to_ne_bytes());
    bytes.resize(HEADER + REQUEST, 0);
    bytes
}

/// Takes the sockets of a datagram. Returns whether it was the last one.
fn take(mut rest: &[u8], found: &mut Vec<Diagnosed>) -> io::Result<bool> {
    while let (Some(length), Some(kind)) = (word(rest, 0), half(rest, 4)) {
        let length = (length as usize).max(HEADER);
        let Some(payload) = rest.get(HEADER..length) else { break };
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let errno = word(payload, 0).map_or(0, |word| word as i32);
                return Err(io::Error::from_raw_os_error(-errno));
            }
            SOCK_DIAG_BY_FAMILY => found.extend(parse(payload)),
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Reads a struct inet_diag_msg and its attributes. `None` if something is missing.
fn parse(message: &[u8]) -> Option<Diagnosed> {
    let is_v6 = i32::from(*message.first()?) == libc::AF_INET6;
    let port = |at: usize| Some(u16::from_be_bytes(*message.get(at..)?.first_chunk()?));
    let address = |at: usize| -> Option<IpAddr> {
        let bytes = message.get(at..at + 16)?;
        Some(match is_v6 {
            true => Ipv6Addr::from(*bytes.first_chunk::<16>()?).into(),
            false => Ipv4Addr::from(*bytes.first_chunk::<4>()?).into(),
        })
    };
    let (mut info, mut congestion_control) = (None, String::new());
    let mut rest = message.get(MESSAGE..)?;
    while let (Some(length), Some(kind)) = (half(rest, 0), half(rest, 2)) {
        let length = usize::from(length).max(ATTRIBUTE);
        let Some(value) = rest.get(ATTRIBUTE..length) else { break };
        match kind {
            INET_DIAG_INFO => info = Some(Info::new(&tcp_info_of(value))),
            INET_DIAG_CONG => {
                let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
                congestion_control = String::from_utf8_lossy(name).into_owned();
            }
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(Diagnosed {
        local: SocketAddr::new(address(8)?, port(4)?),
        remote: SocketAddr::new(address(24)?, port(6)?),
        ifindex: word(message, 40)?,
        congestion_control,
        info: info?,
    })
}

/// Reads TCP_INFO. A field that an older kernel does not know is zero.
fn tcp_info_of(value: &[u8]) -> tcp_info {
    let mut info = MaybeUninit::<tcp_info>::zeroed();
    let length = value.len().min(size_of::<tcp_info>());
    // SAFETY: both are as long; all fields are integers, for which any bytes are a value.
    unsafe {
        std::ptr::copy_nonoverlapping(value.as_ptr(), info.as_mut_ptr().cast(), length);
        info.assume_init()
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connected_socket_is_found_with_its_figures() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (local, remote) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            let all = diagnose().unwrap();
            let mut found = all.iter().filter(|one| (one.local, one.remote) == (local, remote));
            let one = found.next().expect("it is listed");
            assert!(found.next().is_none(), "twice");
            assert!(one.info.congestion_window > 0 && !one.congestion_control.is_empty());
        }
    }

    #[test]
    fn no_bytes_are_read_beyond_a_message_that_is_cut() {
        let mut whole = vec![0; MESSAGE];
        whole[0] = libc::AF_INET as u8;
        let attributes = [(INET_DIAG_CONG, &b"bbr\0"[..]), (INET_DIAG_INFO, &[1; 40])];
        for (kind, value) in attributes {
            whole.extend(((ATTRIBUTE + value.len()) as u16).to_ne_bytes());
            whole.extend(kind.to_ne_bytes());
            whole.extend(value);
        }
        assert_eq!(parse(&whole).unwrap().congestion_control, "bbr");
        for length in 0..whole.len() {
            assert!(parse(&whole[..length]).is_none(), "{length}");
        }
        for length in 0..64 {
            assert!(!take(&[0xff; 64][..length], &mut Vec::new()).unwrap());
        }
    }
}
