//! Makes a socket in the middle of a connection (TCP_REPAIR).

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Type};

use crate::ahead::Ahead;
use crate::connection::{Connection, End, Settings, Side};
use crate::option::{
    IP_TRANSPARENT, IPV6_TRANSPARENT, MAX_SEGMENT, NOT_SENT, QUEUE_SEQ, RECEIVE_BUFFER,
    REPAIR_OPTIONS, REPAIR_QUEUE, REPAIR_WINDOW, SEND_BUFFER, SocketOption, TIMESTAMP,
    WINDOW_CLAMP, set,
};
use crate::socket::{Repair, Socket, integer};
use crate::{Error, Result};

/// Values of TCP_REPAIR_QUEUE.
pub const RECEIVE_QUEUE: libc::c_int = 1;
pub const SEND_QUEUE: libc::c_int = 2;

/// TCP_MIN_MSS: the least that TCP_MAXSEG may be.
const LEAST_MSS: u32 = 88;

/// Most that a window without a scale can be.
const UNSCALED: u32 = 0xffff;

/// Codes of TCP_REPAIR_OPTIONS: kinds of TCP options.
const MSS: u32 = 2;
const WINDOW_SCALE: u32 = 3;
const SACK_PERMITTED: u32 = 4;
const TIMESTAMPS: u32 = 8;

/// A socket that is made: it faces one end, and stands in the place of the other.
pub struct Restore<'a> {
    socket: Socket,
    connection: &'a Connection<'a>,
    settings: &'a Settings<'a>,
    side: Side,
}

impl<'a> Restore<'a> {
    /// Makes the socket that faces `side`. It has sent what the other end has in flight, received
    /// what `side` has in flight, and nothing of that has been read.
    pub fn run(
        side: Side,
        connection: &'a Connection<'a>,
        settings: &'a Settings<'a>,
    ) -> Result<Socket> {
        let domain = Domain::for_address(connection.vm.address);
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket =
            socket2::Socket::new(domain, kind, Some(Protocol::TCP)).map_err(Error::Open)?;
        let restore = Self { socket: Socket::new(socket), connection, settings, side };
        restore.prepare()?;
        restore.number()?;
        restore.connect()?;
        restore.negotiate()?;
        restore.queue()?;
        restore.open_window()?;
        let socket = restore.socket;
        socket.repair(Repair::Off).map_err(set_error("TCP_REPAIR"))?;
        Ok(socket)
    }

    /// The end that the socket faces.
    fn remote(&self) -> &End<'a> {
        self.connection.end(self.side)
    }

    /// The end in whose place the socket is.
    fn local(&self) -> &End<'a> {
        self.connection.end(!self.side)
    }

    /// Options that are set before the socket has addresses.
    fn prepare(&self) -> Result<()> {
        let socket = &self.socket.inner;
        let transparent =
            if self.local().address.is_ipv4() { IP_TRANSPARENT } else { IPV6_TRANSPARENT };
        self.set(transparent, &1)?;
        let device = self.settings.device;
        if !device.is_empty() {
            let bound = socket.bind_device(Some(device.as_bytes()));
            bound.map_err(|source| Error::Device { device: device.to_owned(), source })?;
        }
        self.set(SEND_BUFFER, &integer(self.settings.send_bytes))?;
        self.set(NOT_SENT, &integer(Ahead::from_bytes(self.settings.receive_bytes).queued))?;
        self.set(RECEIVE_BUFFER, &integer(self.buffer()))?;
        // Both ends have decided what waits for more (Nagle).
        socket.set_tcp_nodelay(true).map_err(set_error("TCP_NODELAY"))?;
        socket.set_out_of_band_inline(true).map_err(set_error("SO_OOBINLINE"))?;
        // Closed by anything but `Socket::close_silently`, it sends a RST.
        socket.set_linger(Some(Duration::ZERO)).map_err(set_error("SO_LINGER"))?;
        // Taken when it connects: what repair mode sets later is only used once the MTU changes.
        self.set(MAX_SEGMENT, &integer(u32::from(self.remote().mss).max(LEAST_MSS)))?;
        self.choose_congestion_control()?;
        self.socket.repair(Repair::On).map_err(set_error("TCP_REPAIR"))
    }

    fn choose_congestion_control(&self) -> Result<()> {
        match (self.side, self.settings.congestion_control) {
            (Side::Peer, Some(name)) => {
                let chosen = self.socket.inner.set_tcp_congestion(name.as_bytes());
                chosen.map_err(|source| Error::CongestionControl { name: name.to_owned(), source })
            }
            _ => Ok(()),
        }
    }

    fn number(&self) -> Result<()> {
        self.set(REPAIR_QUEUE, &SEND_QUEUE)?;
        self.set(QUEUE_SEQ, &self.remote().ack)?;
        self.set(REPAIR_QUEUE, &RECEIVE_QUEUE)?;
        self.set(QUEUE_SEQ, &self.local().ack)
    }

    /// Gives the socket its addresses. In repair mode that connects without a handshake.
    fn connect(&self) -> Result<()> {
        let socket = &self.socket.inner;
        socket.bind(&SockAddr::from(self.local().address)).map_err(Error::Bind)?;
        socket.connect(&SockAddr::from(self.remote().address)).map_err(Error::Connect)
    }

    /// Sets the options on which the handshake has agreed.
    fn negotiate(&self) -> Result<()> {
        self.set(REPAIR_OPTIONS, &[MSS, u32::from(self.remote().mss)])?;
        if self.connection.scales {
            let value = u32::from(self.remote().scale) | u32::from(self.local().scale) << 16;
            self.set(REPAIR_OPTIONS, &[WINDOW_SCALE, value])?;
        }
        if self.connection.sack {
            self.set(REPAIR_OPTIONS, &[SACK_PERMITTED, 0])?;
        }
        if self.connection.timestamps {
            self.set(REPAIR_OPTIONS, &[TIMESTAMPS, 0])?;
            // The lowest bit would mean microseconds.
            self.set(TIMESTAMP, &(self.local().tsval & !1))?;
        }
        Ok(())
    }

    /// Fills the socket's queues: bytes that are written in repair mode count as sent, or as
    /// received.
    fn queue(&self) -> Result<()> {
        self.set_window(self.window())?;
        self.set(REPAIR_QUEUE, &SEND_QUEUE)?;
        self.write(self.local().in_flight)?;
        self.set(REPAIR_QUEUE, &RECEIVE_QUEUE)?;
        self.write(self.remote().in_flight)
    }

    fn write(&self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let count = self.socket.inner.send(bytes).map_err(Error::InFlight)?;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Lets the window be all of the buffer at the next ACK, and has the first read of received
    /// bytes send one: tcp_cleanup_rbuf() does if the window can at least be doubled.
    fn open_window(&self) -> Result<()> {
        // Raised, the clamp raises rcv_ssthresh up to the window of the moment.
        self.set(WINDOW_CLAMP, &integer(self.window() - 1))?;
        self.set(WINDOW_CLAMP, &integer(self.window()))?;
        let received = self.remote().in_flight.len() as u32;
        if received == 0 {
            return Ok(());
        }
        let left = self.local().shown_bytes.saturating_sub(received);
        // Less than half of what is then shown, which is at first half of the kernel's buffer, a
        // multiple of the MSS.
        self.set_window(left.min(self.buffer() / 3))
    }

    /// Sets the windows of both ends: that of the remote end as it was shown, and the socket's own.
    fn set_window(&self, receive_bytes: u32) -> Result<()> {
        let received = self.received()?;
        let send_bytes = self.remote().window_bytes;
        let most = send_bytes.max(receive_bytes);
        // struct tcp_repair_window: snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup.
        self.set(REPAIR_WINDOW, &[received, send_bytes, most, receive_bytes, received])
    }

    /// RCV.NXT.
    fn received(&self) -> Result<u32> {
        self.set(REPAIR_QUEUE, &RECEIVE_QUEUE)?;
        self.socket.get(QUEUE_SEQ).map_err(set_error(QUEUE_SEQ.name))
    }

    /// Half of the receive buffer: the kernel doubles it.
    fn buffer(&self) -> u32 {
        match self.side {
            // The first segment from the VM tells the kernel how much of a buffer is payload. It
            // forgets the clamp then, and the window becomes nearly all of the buffer. Until then
            // it is half of it, but no less than what was shown.
            Side::Vm => {
                let least = self.local().shown_bytes.max(UNSCALED).min(self.window());
                least.max(self.window() / 2)
            }
            Side::Peer => self.window(),
        }
    }

    /// The receive window: no right edge that was shown goes back, and no more than can be shown.
    fn window(&self) -> u32 {
        let scale = if self.connection.scales { self.local().scale.min(14) } else { 0 };
        let bytes = match self.side {
            Side::Vm => Ahead::from_bytes(self.settings.receive_bytes).window,
            Side::Peer => self.settings.receive_bytes,
        };
        bytes.max(self.local().shown_bytes).min(UNSCALED << scale)
    }

    fn set<T>(&self, option: SocketOption, value: &T) -> Result<()> {
        set(self.socket.as_fd(), option, value).map_err(set_error(option.name))
    }
}

fn set_error(option: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Set { option, source }
}
