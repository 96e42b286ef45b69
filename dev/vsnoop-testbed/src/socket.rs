//! Sockets of a topology's two ends, with the TCP options that tests vary.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, Result};
use linux_raw_sys::net::{tcp_info, tcp_md5sig};
use socket2::{Domain, Protocol, Socket, Type};

use super::topology::{Family, Side, Topology, address};

/// Socket options of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    pub mptcp: bool,
    /// TCP MD5 signatures (RFC 2385), with a key of the testbed's own.
    pub md5: bool,
    /// Data in the SYN, once the client has a cookie from an earlier connection (RFC 7413).
    pub fast_open: bool,
    /// Bytes of receive buffer at the VM's end, hence its largest window.
    pub vm_receive_buffer_bytes: Option<usize>,
}

const MD5_KEY: &[u8] = b"vsnoop testbed";
/// Time without progress after which a stream counts as hanging.
const PATIENCE: Duration = Duration::from_secs(120);

/// A listening socket of `side`, and where it listens.
pub fn listen(
    topology: &Topology,
    side: Side,
    family: Family,
    options: SocketOptions,
) -> Result<(Socket, SocketAddr)> {
    let at = address(side, family);
    topology.netns(side).run(|| {
        let socket = open(side, family, options)?;
        socket.bind(&SocketAddr::new(at, 0).into()).with_context(|| format!("binding to {at}"))?;
        if options.fast_open {
            set_integer(&socket, libc::TCP_FASTOPEN, 16).context("setting TCP_FASTOPEN")?;
        }
        socket.listen(16).with_context(|| format!("listening on {at}"))?;
        let at = socket.local_addr().context("asking where a socket listens")?;
        Ok((socket, at.as_socket().context("a socket listens on no IP address")?))
    })
}

/// A socket of `side`, connected to `to`.
pub fn connect(
    topology: &Topology,
    side: Side,
    to: SocketAddr,
    options: SocketOptions,
) -> Result<Socket> {
    let family = if to.is_ipv6() { Family::V6 } else { Family::V4 };
    topology.netns(side).run(|| {
        let socket = open(side, family, options)?;
        if options.fast_open {
            set_integer(&socket, libc::TCP_FASTOPEN_CONNECT, 1)
                .context("setting TCP_FASTOPEN_CONNECT")?;
        }
        // Waits as `connect` does, but goes on where it is interrupted.
        let connected = socket.connect_timeout(&to.into(), PATIENCE);
        connected.with_context(|| format!("connecting {side:?} to {to}"))?;
        Ok(socket)
    })
}

fn open(side: Side, family: Family, options: SocketOptions) -> Result<Socket> {
    let domain = match family {
        Family::V4 => Domain::IPV4,
        Family::V6 => Domain::IPV6,
    };
    let protocol = if options.mptcp { Protocol::MPTCP } else { Protocol::TCP };
    let socket = Socket::new(domain, Type::STREAM, Some(protocol))
        .with_context(|| format!("opening a socket for {protocol:?}"))?;
    // Hosts have different defaults: without this, results would depend on the host.
    socket.set_tcp_congestion(b"cubic").context("choosing cubic")?;
    socket.set_read_timeout(Some(PATIENCE)).context("bounding a socket's reads")?;
    socket.set_write_timeout(Some(PATIENCE)).context("bounding a socket's writes")?;
    if !options.mptcp {
        // MPTCP has no urgent data.
        socket.set_out_of_band_inline(true).context("asking for urgent data in line")?;
    }
    if let (Side::Vm, Some(bytes)) = (side, options.vm_receive_buffer_bytes) {
        socket.set_recv_buffer_size(bytes).context("setting a receive buffer")?;
    }
    if options.md5 {
        let other = match side {
            Side::Client => Side::Vm,
            Side::Vm => Side::Client,
        };
        set_md5_key(&socket, address(other, family))?;
    }
    Ok(socket)
}

fn set_integer(socket: &Socket, option: libc::c_int, value: libc::c_int) -> Result<()> {
    // SAFETY: the descriptor is an open socket, and the option is an int whose address and size are
    // those of `value`.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    nix::Error::result(result)?;
    Ok(())
}

fn set_md5_key(socket: &Socket, peer: IpAddr) -> Result<()> {
    let peer = socket2::SockAddr::from(SocketAddr::new(peer, 0));
    // SAFETY: all fields are plain integers, for which zero is a valid value.
    let mut signature: tcp_md5sig = unsafe { std::mem::zeroed() };
    // SAFETY: a SockAddr of an IP address holds at most a sockaddr_storage, of the length it says.
    unsafe {
        std::ptr::copy_nonoverlapping(
            peer.as_ptr().cast::<u8>(),
            (&raw mut signature.tcpm_addr).cast::<u8>(),
            peer.len() as usize,
        );
    }
    signature.tcpm_keylen = MD5_KEY.len() as u16;
    signature.tcpm_key[..MD5_KEY.len()].copy_from_slice(MD5_KEY);
    // SAFETY: the descriptor is an open socket; address and size are those of a live tcp_md5sig.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_MD5SIG,
            (&raw const signature).cast(),
            size_of_val(&signature) as libc::socklen_t,
        )
    };
    nix::Error::result(result).context("setting a TCP MD5 key (CONFIG_TCP_MD5SIG)")?;
    Ok(())
}

/// The kernel's state of a connection (`TCP_INFO`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Both directions are shut down.
    pub closed: bool,
    pub timestamps: bool,
    pub sack: bool,
    pub window_scale: bool,
    pub ecn: bool,
    /// Data of the SYN was acknowledged.
    pub fast_open: bool,
    pub retransmissions: u32,
    /// Time in which the other end's window limited sending.
    pub window_limited_us: u64,
    /// The peer's latest window, in bytes.
    pub send_window_bytes: u32,
    /// Bytes that the peer may still send: the last advertised window, less the bytes that came
    /// since.
    pub receive_window_bytes: u32,
}

/// The value of `tcpi_state`, include/net/tcp_states.h.
const CLOSE: u8 = 7;
/// Bits of `tcpi_options`, linux/tcp.h.
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const WINDOW_SCALE: u8 = 4;
const ECN: u8 = 8;
const SYN_DATA: u8 = 32;

/// Asks the kernel about a connection; a MPTCP socket, which has several, answers with zeroes.
pub fn info(socket: &Socket) -> Result<ConnectionInfo> {
    // SAFETY: all fields are plain integers, for which zero is a valid value.
    let mut info: tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the descriptor is an open socket; address and size are those of a live tcp_info, and
    // the kernel writes no more than that.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &mut length,
        )
    };
    match nix::Error::result(result) {
        Ok(_) => {}
        Err(nix::Error::EOPNOTSUPP) => return Ok(ConnectionInfo::default()),
        Err(error) => return Err(error).context("asking for TCP_INFO"),
    }
    let has = |bit: u8| info.tcpi_options & bit != 0;
    Ok(ConnectionInfo {
        closed: info.tcpi_state == CLOSE,
        timestamps: has(TIMESTAMPS),
        sack: has(SACK),
        window_scale: has(WINDOW_SCALE),
        ecn: has(ECN),
        fast_open: has(SYN_DATA),
        retransmissions: info.tcpi_total_retrans,
        window_limited_us: info.tcpi_rwnd_limited,
        send_window_bytes: info.tcpi_snd_wnd,
        receive_window_bytes: info.tcpi_rcv_wnd,
    })
}
