//! Sockets for rounds, and how they become connections; no step waits for ever.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Protocol, Socket, Type};

/// For a handshake: a lost SYN is sent again after 1, 3 and 7 s.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn tcp_socket() -> Result<Socket> {
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).context("open a socket")
}

/// A socket with this congestion control; accepted connections inherit that of their listener.
pub fn tcp_socket_with(congestion_control: &str) -> Result<Socket> {
    let socket = tcp_socket()?;
    let name = congestion_control.as_bytes();
    socket.set_tcp_congestion(name).with_context(|| format!("choose {congestion_control}"))?;
    Ok(socket)
}

/// Listens for one connection; port 0 is any.
pub fn listen(socket: Socket, address: Ipv4Addr, port: u16) -> Result<(Socket, SocketAddr)> {
    let at = SocketAddr::V4(SocketAddrV4::new(address, port));
    socket.set_reuse_address(true).context("set SO_REUSEADDR")?;
    socket.bind(&at.into()).with_context(|| format!("bind to {at}"))?;
    socket.listen(1).with_context(|| format!("listen on {at}"))?;
    // Accepting waits no longer than this either.
    socket.set_read_timeout(Some(PATIENCE)).context("bound the wait for a connection")?;
    let at = socket.local_addr().context("ask where a socket listens")?;
    Ok((socket, at.as_socket().context("a socket listens on no IP address")?))
}

pub fn accept(listener: &Socket) -> Result<Socket> {
    let (socket, _) = listener.accept().context("accept a connection")?;
    Ok(socket)
}

pub fn connect(socket: Socket, to: SocketAddr) -> Result<Socket> {
    socket.connect_timeout(&to.into(), PATIENCE).with_context(|| format!("connect to {to}"))?;
    Ok(socket)
}

/// An error unless this connection has this congestion control.
pub fn verify_congestion_control(socket: &Socket, name: &str) -> Result<()> {
    let found = socket.tcp_congestion().context("ask for the congestion control")?;
    let found = found.split(|byte| *byte == 0).next().unwrap_or_default();
    ensure!(
        found == name.as_bytes(),
        "a connection uses {} and not {name}",
        String::from_utf8_lossy(found)
    );
    Ok(())
}
