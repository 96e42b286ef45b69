//! Prepares a link's tap, and the host's stack, for diverted packets.
//!
//! Packets of a peer come in there with source addresses to which the host has other routes: a
//! reverse path filter would drop them all. An interface without addresses fails even a loose
//! filter, and the kernel applies the greater of the interface's setting and that of `all`.
//! Forwarding is enabled for this interface only. Linux always supports that for IPv4, and for IPv6
//! since 6.17 (`force_forwarding`); before, the host must forward IPv6 altogether, which is the
//! operator's decision, because a host that forwards ignores router advertisements.
//!
//! The interface gets no address, and sends nothing by itself.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use ipnet::IpNet;

use crate::error::{Error, Result, Unready};

/// A tap that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkTap {
    /// Index of the interface, in its network namespace.
    pub ifindex: u32,
    /// Frames for the host to route are addressed to it.
    pub mac: [u8; 6],
}

/// Prepares tap `name` of the calling thread's network namespace for packets to VMs behind
/// `prefixes`, of up to `mtu_bytes`, and sets it up.
///
/// Call it repeatedly: services that configure new interfaces may run later.
pub fn prepare_tap(name: &str, mtu_bytes: u32, prefixes: &[IpNet]) -> Result<LinkTap> {
    let device = Interface::find(name)?;
    device.set_mtu(mtu_bytes)?;
    if prefixes.iter().any(|prefix| matches!(prefix, IpNet::V4(_))) {
        forward_v4(name)?;
    }
    forward_v6(name, prefixes.iter().any(|prefix| matches!(prefix, IpNet::V6(_))))?;
    device.set_up()?;
    Ok(LinkTap { ifindex: device.ifindex, mac: device.read_mac()? })
}

fn forward_v4(name: &str) -> Result<()> {
    let all = Sysctl::new("ipv4", "all", "rp_filter").read()?;
    if all != "0" {
        return Err(Unready::ReversePathFilter { all, tap: name.to_owned() }.into());
    }
    for (key, value) in [("rp_filter", "0"), ("forwarding", "1")] {
        Sysctl::new("ipv4", name, key).set_value(value)?;
    }
    Ok(())
}

fn forward_v6(name: &str, is_wanted: bool) -> Result<()> {
    let sysctl = |key| Sysctl::new("ipv6", name, key);
    if !sysctl("disable_ipv6").exists() {
        let tap = name.to_owned();
        return if is_wanted { Err(Unready::NoIpv6 { tap }.into()) } else { Ok(()) };
    }
    if !is_wanted {
        return sysctl("disable_ipv6").set_value("1");
    }
    for (key, value) in [
        // No link-local address: neither at once nor later.
        ("addr_gen_mode", "1"),
        ("accept_ra", "0"),
        ("autoconf", "0"),
        ("router_solicitations", "0"),
        ("dad_transmits", "0"),
        ("forwarding", "1"),
        ("disable_ipv6", "0"),
    ] {
        sysctl(key).set_value(value)?;
    }
    if sysctl("force_forwarding").exists() {
        return sysctl("force_forwarding").set_value("1");
    }
    let all = Sysctl::new("ipv6", "all", "forwarding").read()?;
    if all != "1" {
        return Err(Unready::NoIpv6Forwarding.into());
    }
    Ok(())
}

/// A setting of an interface, or of `all`.
struct Sysctl {
    path: PathBuf,
}

impl Sysctl {
    fn new(family: &str, interface: &str, key: &str) -> Self {
        // The thread's own namespace, whatever that of the process is.
        Self { path: ["/proc/sys/net", family, "conf", interface, key].iter().collect() }
    }

    fn exists(&self) -> bool {
        self.path.exists()
    }

    fn read(&self) -> Result<String> {
        let text = fs::read_to_string(&self.path);
        let text = text.map_err(Error::io(format!("read {}", self.path.display())))?;
        Ok(text.trim().to_owned())
    }

    /// Writes only a different value: some settings notify listeners of every write.
    fn set_value(&self, value: &str) -> Result<()> {
        if self.read()? == value {
            return Ok(());
        }
        fs::write(&self.path, value)
            .map_err(Error::io(format!("set {} to {value}", self.path.display())))
    }
}

/// An interface of the calling thread's network namespace.
struct Interface {
    name: String,
    ifindex: u32,
    socket: UnixDatagram,
}

impl Interface {
    fn find(name: &str) -> Result<Self> {
        let is_name = (1..libc::IFNAMSIZ).contains(&name.len()) && !name.contains('/');
        let Some(c_name) = CString::new(name).ok().filter(|_| is_name) else {
            return Err(Unready::Name { name: name.to_owned() }.into());
        };
        // SAFETY: a C string that outlives the call.
        let ifindex = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
        if ifindex == 0 {
            let error = io::Error::last_os_error();
            return Err(Error::io(format!("find interface {name}"))(error));
        }
        // Any socket will do; it belongs to the thread's namespace.
        let socket = UnixDatagram::unbound().map_err(Error::io("open a socket"))?;
        Ok(Self { name: name.to_owned(), ifindex, socket })
    }

    fn make_request(&self) -> libc::ifreq {
        // SAFETY: an ifreq is plain data, for which all zeroes is a valid value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(self.name.bytes()) {
            *to = from as libc::c_char;
        }
        request
    }

    /// `what` is done, for the message of an error.
    fn call_ioctl(
        &self,
        number: libc::c_ulong,
        request: &mut libc::ifreq,
        what: &str,
    ) -> Result<()> {
        // SAFETY: an open socket, and a live request that names a device; the numbers used here
        // read or write nothing but an ifreq.
        match unsafe { libc::ioctl(self.socket.as_raw_fd(), number as _, request) } {
            0 => Ok(()),
            _ => Err(Error::io(format!("{what} of {}", self.name))(io::Error::last_os_error())),
        }
    }

    fn set_mtu(&self, mtu_bytes: u32) -> Result<()> {
        let mut request = self.make_request();
        request.ifr_ifru.ifru_mtu = mtu_bytes.try_into().unwrap_or(i32::MAX);
        self.call_ioctl(libc::SIOCSIFMTU, &mut request, &format!("set the MTU ({mtu_bytes} bytes)"))
    }

    fn set_up(&self) -> Result<()> {
        let mut request = self.make_request();
        self.call_ioctl(libc::SIOCGIFFLAGS, &mut request, "read the flags")?;
        // SAFETY: the kernel has just written this member.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
        self.call_ioctl(libc::SIOCSIFFLAGS, &mut request, "set the flags")
    }

    fn read_mac(&self) -> Result<[u8; 6]> {
        let mut request = self.make_request();
        self.call_ioctl(libc::SIOCGIFHWADDR, &mut request, "read the MAC address")?;
        // SAFETY: the kernel has just written this member.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        if address.sa_family != libc::ARPHRD_ETHER {
            return Err(Unready::NoEthernet { name: self.name.clone() }.into());
        }
        let mut mac = [0; 6];
        for (to, from) in mac.iter_mut().zip(address.sa_data) {
            *to = from as u8;
        }
        Ok(mac)
    }
}
