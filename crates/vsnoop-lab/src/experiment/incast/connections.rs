//! The connections of a block: one from the VM to each sender, or the reverse.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use socket2::Socket;
use vsnoop_guest::rounds::socket::{
    accept, connect, listen, tcp_socket, tcp_socket_with, verify_congestion_control,
};
use vsnoop_testbed::fan_in::{FanIn, VM_ADDRESS, sender_address};
use vsnoop_testbed::net::Netns;

use crate::results::incast::CongestionControl;

/// A socket with a buffer size (SO_RCVBUF) has no receive window tuning.
const CAPPED_BUFFER_BYTES: usize = 128 * 1024;
/// The port at which the VM listens, when the senders open their connections.
const PORT: u16 = 5501;

/// The end that opens the connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Opener {
    #[default]
    Vm,
    Senders,
}

/// The connections that a point asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub count: usize,
    pub opener: Opener,
    pub congestion_control: CongestionControl,
    /// The number of connections, from the first on, whose receive window has a limit, and that
    /// limit in bytes.
    pub cap: Option<(usize, u32)>,
}

/// Both ends of each, senders' first, where the VM is a namespace.
pub fn open(fan_in: &FanIn, wanted: &Wanted) -> Result<(Vec<Socket>, Vec<Socket>)> {
    let (senders, vm) = match wanted.opener {
        Opener::Vm => opened_by_vm(fan_in, wanted)?,
        Opener::Senders => opened_by_senders(fan_in, wanted)?,
    };
    for socket in &vm {
        socket.set_tcp_nodelay(true).context("set TCP_NODELAY")?;
    }
    Ok((senders, vm))
}

/// The senders listen, each for one connection; where.
pub fn listen_at_senders(fan_in: &FanIn, wanted: &Wanted) -> Result<Vec<(Socket, SocketAddr)>> {
    let listener = |number: usize| {
        fan_in.senders[number].run(|| listen(sender_socket(wanted)?, sender_address(number), 0))
    };
    (0..wanted.count).map(listener).collect()
}

pub fn accept_at_senders(
    listeners: &[(Socket, SocketAddr)],
    wanted: &Wanted,
) -> Result<Vec<Socket>> {
    listeners.iter().map(|(listener, _)| ready(accept(listener)?, wanted)).collect()
}

fn opened_by_vm(fan_in: &FanIn, wanted: &Wanted) -> Result<(Vec<Socket>, Vec<Socket>)> {
    let listeners = listen_at_senders(fan_in, wanted)?;
    let vm = fan_in.vm()?.run(|| {
        let connect = |(number, (_, to)): (usize, &(Socket, SocketAddr))| {
            let socket = vm_socket(wanted, number)?;
            connect(socket, *to)
        };
        listeners.iter().enumerate().map(connect).collect::<Result<Vec<_>>>()
    })?;
    Ok((accept_at_senders(&listeners, wanted)?, vm))
}

/// Connections are opened one after the other, so that the receiver knows the sender of each.
fn opened_by_senders(fan_in: &FanIn, wanted: &Wanted) -> Result<(Vec<Socket>, Vec<Socket>)> {
    let (mut senders, mut vm) = (Vec::new(), Vec::new());
    for number in 0..wanted.count {
        let (listener, to) =
            fan_in.vm()?.run(|| listen(vm_socket(wanted, number)?, VM_ADDRESS, PORT))?;
        let sender: &Netns = &fan_in.senders[number];
        let socket = sender.run(|| connect(sender_socket(wanted)?, to))?;
        senders.push(ready(socket, wanted)?);
        vm.push(accept(&listener)?);
    }
    Ok((senders, vm))
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
