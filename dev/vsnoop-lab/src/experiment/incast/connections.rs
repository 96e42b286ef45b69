//! The connections of a block: one from the VM to each sender.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use socket2::Socket;
use vsnoop_guest::rounds::socket::{
    accept, connect, listen, tcp_socket, tcp_socket_with, verify_congestion_control,
};
use vsnoop_testbed::fan_in::{FanIn, sender_address};

use crate::results::incast::CongestionControl;

/// A socket with a buffer size (SO_RCVBUF) has no receive window tuning.
const CAPPED_BUFFER_BYTES: usize = 128 * 1024;

/// The connections that a point asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub count: usize,
    pub congestion_control: CongestionControl,
    /// The number of connections, from the first on, whose receive window has a limit, and that
    /// limit in bytes.
    pub cap: Option<(usize, u32)>,
}

/// Both ends of each, senders' first: the VM opens them, and each sender listens for one.
pub fn open(fan_in: &FanIn, wanted: &Wanted) -> Result<(Vec<Socket>, Vec<Socket>)> {
    let listener = |number: usize| {
        fan_in.senders[number].run(|| listen(sender_socket(wanted)?, sender_address(number), 0))
    };
    let listeners = (0..wanted.count).map(listener).collect::<Result<Vec<_>>>()?;
    let vm = fan_in.vm()?.run(|| {
        let connected = |(number, (_, to)): (usize, &(Socket, SocketAddr))| {
            let socket = connect(vm_socket(wanted, number)?, *to)?;
            socket.set_tcp_nodelay(true).context("set TCP_NODELAY")?;
            Ok(socket)
        };
        listeners.iter().enumerate().map(connected).collect::<Result<Vec<_>>>()
    })?;
    let accepted = listeners.iter().map(|(listener, _)| ready(accept(listener)?, wanted));
    Ok((accepted.collect::<Result<_>>()?, vm))
}

fn sender_socket(wanted: &Wanted) -> Result<Socket> {
    tcp_socket_with(wanted.congestion_control.name())
}

/// A sender's connection.
fn ready(socket: Socket, wanted: &Wanted) -> Result<Socket> {
    verify_congestion_control(&socket, wanted.congestion_control.name())?;
    socket.set_tcp_nodelay(true).context("set TCP_NODELAY")?;
    Ok(socket)
}

fn vm_socket(wanted: &Wanted, number: usize) -> Result<Socket> {
    let socket = tcp_socket()?;
    if let Some((_, bytes)) = wanted.cap.filter(|(capped, _)| number < *capped) {
        socket.set_recv_buffer_size(CAPPED_BUFFER_BYTES).context("set a receive buffer")?;
        clamp_window(&socket, bytes)?;
    }
    Ok(socket)
}

fn clamp_window(socket: &Socket, bytes: u32) -> Result<()> {
    let value = bytes as libc::c_int;
    // SAFETY: the descriptor is an open socket, and the option is an int whose address and size are
    // those of `value`.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_WINDOW_CLAMP,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    nix::Error::result(result).context("set TCP_WINDOW_CLAMP")?;
    Ok(())
}
