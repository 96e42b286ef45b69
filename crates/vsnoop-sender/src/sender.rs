//! The socket: made in repair mode, written to, closed without a word.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::connection::{Connection, Timestamps};
use crate::option::{
    NODELAY, QUEUE_SEQ, REPAIR, REPAIR_OPTIONS, REPAIR_QUEUE, REPAIR_WINDOW, TIMESTAMP, TcpOption,
    set,
};
use crate::{Error, Result};

/// Values of TCP_REPAIR.
const REPAIR_ON: libc::c_int = 1;
/// Leaves repair mode without a window probe, which the peer would answer.
const REPAIR_OFF_NO_PROBE: libc::c_int = -1;

/// Values of TCP_REPAIR_QUEUE.
const RECEIVE_QUEUE: libc::c_int = 1;
const SEND_QUEUE: libc::c_int = 2;

/// Codes of TCP_REPAIR_OPTIONS: kinds of TCP options.
const MSS: u32 = 2;
const WINDOW_SCALE: u32 = 3;
const SACK_PERMITTED: u32 = 4;
const TIMESTAMPS: u32 = 8;

/// Receive window of the socket, to which nothing is sent but ACKs.
const RECEIVE_WINDOW: u32 = 65535;

/// A socket that sends for a VM.
#[derive(Debug)]
pub struct Sender {
    socket: OwnedFd,
    /// SEQ of the byte that is written next.
    next: u32,
}

impl Sender {
    /// Makes a socket that has sent what is in flight, and leaves repair mode.
    pub fn restore(connection: &Connection) -> Result<Self> {
        let socket = open(connection.vm)?;
        let mut sender = Self { socket, next: connection.snd_una };
        sender.prepare(connection)?;
        sender.number(connection)?;
        sender.join(connection)?;
        sender.negotiate(connection)?;
        sender.queue_in_flight(connection.in_flight)?;
        sender.set(REPAIR, &REPAIR_OFF_NO_PROBE)?;
        Ok(sender)
    }

    /// Queues bytes that follow those before. Returns how many had room.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: the descriptor is open, and the slice lives for the call.
        let count = unsafe {
            libc::send(
                self.socket.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_NOSIGNAL,
            )
        };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        self.next = self.next.wrapping_add(count as u32);
        Ok(count as usize)
    }

    /// Sends a FIN behind the last byte written.
    pub fn finish(&self) -> io::Result<()> {
        // SAFETY: a plain system call with an open descriptor.
        let result = unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_WR) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// SND.UNA of the socket, before [`Sender::finish`].
    pub fn snd_una(&self) -> io::Result<u32> {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the descriptor is open, and the kernel writes an int (SIOCOUTQ).
        let result =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(self.next.wrapping_sub(bytes as u32))
    }

    /// Has the socket refused an ACK that it was given? Another has to be made from `acknowledged`,
    /// the highest of them.
    pub fn is_behind(&self, acknowledged: u32) -> io::Result<bool> {
        Ok((self.snd_una()?.wrapping_sub(acknowledged) as i32) < 0)
    }

    /// Options that are set before the socket has addresses.
    fn prepare(&self, connection: &Connection) -> Result<()> {
        let (level, option) = match connection.vm {
            SocketAddr::V4(_) => (libc::SOL_IP, libc::IP_TRANSPARENT),
            SocketAddr::V6(_) => (libc::SOL_IPV6, libc::IPV6_TRANSPARENT),
        };
        self.set_at(level, option, "IP_TRANSPARENT", &1)?;
        let bytes = libc::c_int::try_from(connection.buffer_bytes).unwrap_or(libc::c_int::MAX);
        self.set_at(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, "SO_SNDBUFFORCE", &bytes)?;
        if let Some(name) = connection.congestion_control {
            self.choose_congestion_control(name)?;
        }
        // The VM has decided what waits for more (Nagle).
        self.set(NODELAY, &1)?;
        self.set(REPAIR, &REPAIR_ON)
    }

    fn choose_congestion_control(&self, name: &str) -> Result<()> {
        let mut value = [0u8; 16];
        let bytes = name.as_bytes();
        let length = bytes.len().min(value.len() - 1);
        value[..length].copy_from_slice(&bytes[..length]);
        set(self.as_fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, &value)
            .map_err(|source| Error::CongestionControl { name: name.to_owned(), source })
    }

    fn number(&self, connection: &Connection) -> Result<()> {
        self.set(REPAIR_QUEUE, &SEND_QUEUE)?;
        self.set(QUEUE_SEQ, &connection.snd_una)?;
        self.set(REPAIR_QUEUE, &RECEIVE_QUEUE)?;
        self.set(QUEUE_SEQ, &connection.rcv_nxt)
    }

    /// Gives the socket its addresses. In repair mode that connects without a handshake.
    fn join(&self, connection: &Connection) -> Result<()> {
        let fd = self.socket.as_raw_fd();
        let (vm, length) = address(connection.vm);
        // SAFETY: the descriptor is open; the address is live and as long as is said.
        if unsafe { libc::bind(fd, (&raw const vm).cast(), length) } != 0 {
            return Err(Error::Bind(io::Error::last_os_error()));
        }
        let (peer, length) = address(connection.peer);
        // SAFETY: as above.
        if unsafe { libc::connect(fd, (&raw const peer).cast(), length) } != 0 {
            return Err(Error::Connect(io::Error::last_os_error()));
        }
        Ok(())
    }

    /// What the handshake has agreed on, and the peer's window.
    fn negotiate(&self, connection: &Connection) -> Result<()> {
        self.set(REPAIR_OPTIONS, &[MSS, u32::from(connection.mss)])?;
        if let Some(scales) = connection.scales {
            let value = u32::from(scales.peer) | u32::from(scales.vm) << 16;
            self.set(REPAIR_OPTIONS, &[WINDOW_SCALE, value])?;
        }
        if connection.sack {
            self.set(REPAIR_OPTIONS, &[SACK_PERMITTED, 0])?;
        }
        if let Timestamps::From(tsval) = connection.timestamps {
            self.set(REPAIR_OPTIONS, &[TIMESTAMPS, 0])?;
            // The lowest bit would mean microseconds.
            self.set(TIMESTAMP, &(tsval & !1))?;
        }
        // struct tcp_repair_window: snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup.
        let window = connection.window_bytes;
        let rcv_nxt = connection.rcv_nxt;
        let most = window.max(RECEIVE_WINDOW);
        self.set(REPAIR_WINDOW, &[rcv_nxt, window, most, RECEIVE_WINDOW, rcv_nxt])
    }

    /// What is written in repair mode counts as sent.
    fn queue_in_flight(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.set(REPAIR_QUEUE, &SEND_QUEUE)?;
        while !bytes.is_empty() {
            let count = self.write(bytes).map_err(Error::InFlight)?;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    fn set<T>(&self, option: TcpOption, value: &T) -> Result<()> {
        self.set_at(libc::IPPROTO_TCP, option.number, option.name, value)
    }

    fn set_at<T>(
        &self,
        level: libc::c_int,
        number: libc::c_int,
        option: &'static str,
        value: &T,
    ) -> Result<()> {
        set(self.as_fd(), level, number, value).map_err(|source| Error::Set { option, source })
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Sender {
    /// Closed in repair mode, a socket sends neither FIN nor RST.
    fn drop(&mut self) {
        // Refused only without the privilege by which the socket was made.
        let _ = self.set(REPAIR, &REPAIR_ON);
    }
}

fn open(vm: SocketAddr) -> Result<OwnedFd> {
    let family = if vm.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: a plain system call.
    let fd = unsafe { libc::socket(family, kind, libc::IPPROTO_TCP) };
    if fd < 0 {
        return Err(Error::Open(io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is new, and no one else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn address(of: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all fields are plain integers, for which zero is a valid value.
    let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
    let length = match of {
        SocketAddr::V4(v4) => {
            // SAFETY: a sockaddr_storage has room and alignment for every address.
            let to = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in>() };
            to.sin_family = libc::AF_INET as libc::sa_family_t;
            to.sin_port = v4.port().to_be();
            to.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            // SAFETY: as above.
            let to = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in6>() };
            to.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            to.sin6_port = v6.port().to_be();
            to.sin6_addr.s6_addr = v6.ip().octets();
            to.sin6_scope_id = v6.scope_id();
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as libc::socklen_t)
}
