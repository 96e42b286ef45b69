//! Where a link listens on this host.

use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

/// `link.listen`, or all IPv4 addresses instead of all addresses on a host whose kernel has no IPv6
/// (`ipv6.disable=1`). With IPv6 disabled by a sysctl only, there are sockets for both families.
pub fn listen_address(configured: SocketAddr) -> SocketAddr {
    let is_all = configured.is_ipv6() && configured.ip().is_unspecified();
    if is_all && !has_ipv6() {
        (Ipv4Addr::UNSPECIFIED, configured.port()).into()
    } else {
        configured
    }
}

fn has_ipv6() -> bool {
    let made = Socket::new(Domain::IPV6, Type::DGRAM, None);
    !made.is_err_and(|error| error.raw_os_error() == Some(libc::EAFNOSUPPORT))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    fn step(code: u32, k: u32, skip_if_not: u8) -> libc::sock_filter {
        libc::sock_filter { code: code as u16, jt: 0, jf: skip_if_not, k }
    }

    /// The calling thread gets no sockets of IPv6, as if the kernel had none.
    fn without_ipv6() {
        const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        const IS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
        // Its low half, which comes first on this architecture or second.
        let first_argument = if cfg!(target_endian = "little") { 16 } else { 20 };
        let mut filter = [
            step(LOAD, 0, 0),
            step(IS, libc::SYS_socket as u32, 3),
            step(LOAD, first_argument, 0),
            step(IS, libc::AF_INET6 as u32, 1),
            step(RETURN, libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT as u32, 0),
            step(RETURN, libc::SECCOMP_RET_ALLOW, 0),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: both change the calling thread only; the kernel copies the live program.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
                + libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
        };
        assert_eq!(done, 0, "no filter: {}", std::io::Error::last_os_error());
    }

    #[test]
    fn a_host_without_ipv6_listens_at_all_its_ipv4_addresses() {
        let all: SocketAddr = "[::]:7".parse().unwrap();
        let own: SocketAddr = "[::1]:7".parse().unwrap();
        std::thread::spawn(move || {
            without_ipv6();
            assert!(UdpSocket::bind("[::]:0").is_err(), "IPv6 is there");
            assert_eq!(listen_address(all), "0.0.0.0:7".parse().unwrap());
            assert_eq!(listen_address(own), own, "it was asked for");
            let free = listen_address("[::]:0".parse().unwrap());
            UdpSocket::bind(free).unwrap();
            TcpListener::bind(free).unwrap();
        })
        .join()
        .unwrap();
        let v4 = "0.0.0.0:7".parse().unwrap();
        assert_eq!(listen_address(v4), v4);
    }
}
