//! The connections of a block: one from the VM to each sender, or the reverse.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Protocol, Socket, Type};

use crate::results::incast::CongestionControl;
use crate::testbed::fan_in::{FanIn, VM_ADDRESS, sender_address};
use crate::testbed::net::Netns;

/// For a handshake: a lost SYN is sent again after 1, 3 and 7 s.
const PATIENCE: Duration = Duration::from_secs(10);
/// With a buffer of its own a receiver's window is not tuned by its kernel.
const CAPPED_BUFFER_BYTES: usize = 128 * 1024;
/// Of the VM, when the senders open their connections.
const PORT: u16 = 5501;

/// Who opens the connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Opener {
    #[default]
    Vm,
    Senders,
}

/// What connections are to be like.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub count: usize,
    pub opener: Opener,
    pub congestion_control: CongestionControl,
    /// The receiver's window is never more than this, on the first so many connections.
    pub cap: Option<(usize, u32)>,
}

/// Both ends of each, senders' first.
pub fn open(fan_in: &FanIn, wanted: &Wanted) -> Result<(Vec<Socket>, Vec<Socket>)> {
    let (senders, vm) = match wanted.opener {
        Opener::Vm => opened_by_vm(fan_in, wanted)?,
        Opener::Senders => opened_by_senders(fan_in, wanted)?,
    };
    let name = wanted.congestion_control.name();
    for socket in &senders {
        let found = socket.tcp_congestion().context("ask for the congestion control")?;
        let found = found.split(|byte| *byte == 0).next().unwrap_or_default();
        ensure!(found == name.as_bytes(), "a sender does not use {name}");
    }
    for socket in senders.iter().chain(&vm) {
        socket.set_tcp_nodelay(true).context("set TCP_NODELAY")?;
    }
    Ok((senders, vm))
}

fn opened_by_vm(fan_in: &FanIn, wanted: &Wanted) -> Result<(Vec<Socket>, Vec<Socket>)> {
    let listener = |number: usize| {
        fan_in.senders[number].run(|| {
            let listener = sender_socket(wanted)?;
            listen(listener, sender_address(number), 0)
        })
    };
    let listeners = (0..wanted.count).map(listener).collect::<Result<Vec<_>>>()?;
    let vm = fan_in.vm.run(|| {
        let connect = |(number, (_, to)): (usize, &(Socket, SocketAddr))| {
            let socket = vm_socket(wanted, number)?;
            connect(socket, *to)
        };
        listeners.iter().enumerate().map(connect).collect::<Result<Vec<_>>>()
    })?;
    let accept = |(listener, _): &(Socket, SocketAddr)| {
        let (socket, _) = listener.accept().context("accept a connection of the VM")?;
        Ok(socket)
    };
    Ok((listeners.iter().map(accept).collect::<Result<_>>()?, vm))
}

/// One after the other, so that it is known which is whose.
fn opened_by_senders(fan_in: &FanIn, wanted: &Wanted) -> Result<(Vec<Socket>, Vec<Socket>)> {
    let (mut senders, mut vm) = (Vec::new(), Vec::new());
    for number in 0..wanted.count {
        let (listener, to) =
            fan_in.vm.run(|| listen(vm_socket(wanted, number)?, VM_ADDRESS, PORT))?;
        let sender: &Netns = &fan_in.senders[number];
        senders.push(sender.run(|| connect(sender_socket(wanted)?, to))?);
        let (socket, _) = listener.accept().context("accept a connection of a sender")?;
        vm.push(socket);
    }
    Ok((senders, vm))
}

fn sender_socket(wanted: &Wanted) -> Result<Socket> {
    let socket = tcp_socket()?;
    let name = wanted.congestion_control.name();
    socket.set_tcp_congestion(name.as_bytes()).with_context(|| format!("choose {name}"))?;
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

fn tcp_socket() -> Result<Socket> {
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).context("open a socket")
}

fn listen(socket: Socket, address: Ipv4Addr, port: u16) -> Result<(Socket, SocketAddr)> {
    let at = SocketAddr::V4(SocketAddrV4::new(address, port));
    socket.set_reuse_address(true).context("set SO_REUSEADDR")?;
    socket.bind(&at.into()).with_context(|| format!("bind to {at}"))?;
    socket.listen(1).with_context(|| format!("listen on {at}"))?;
    // Accepting waits no longer than this either.
    socket.set_read_timeout(Some(PATIENCE)).context("bound the wait for a connection")?;
    let at = socket.local_addr().context("ask where a socket listens")?;
    Ok((socket, at.as_socket().context("a socket listens on no IP address")?))
}

fn connect(socket: Socket, to: SocketAddr) -> Result<Socket> {
    socket.connect_timeout(&to.into(), PATIENCE).with_context(|| format!("connect to {to}"))?;
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
