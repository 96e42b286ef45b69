//! Makes a link's tap, and the host's stack behind it, ready for diverted packets.
//!
//! What a peer sends comes in there with source addresses that the host would reach another way: a
//! reverse path filter would drop it all. An interface without addresses passes no such filter but none,
//! not even a loose one, and the kernel takes the stricter of the interface's setting and that of `all`.
//! Forwarding is switched on for this interface only. Linux has had that for IPv4 always, and for IPv6
//! since 6.17 (`force_forwarding`); before, the host must forward IPv6 altogether, which is its owner's
//! decision, for a host that forwards heeds router advertisements no longer.
//!
//! The interface gets no address, and says nothing by itself.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use ipnet::IpNet;
use socket2::{Domain, Socket, Type};

nix::ioctl_readwrite_bad!(siocgifflags, libc::SIOCGIFFLAGS, libc::ifreq);
nix::ioctl_readwrite_bad!(siocsifflags, libc::SIOCSIFFLAGS, libc::ifreq);
nix::ioctl_readwrite_bad!(siocsifmtu, libc::SIOCSIFMTU, libc::ifreq);
nix::ioctl_readwrite_bad!(siocgifhwaddr, libc::SIOCGIFHWADDR, libc::ifreq);

/// A tap that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkTap {
    /// Of the interface, in its network namespace.
    pub ifindex: u32,
    /// Frames for the host to route are addressed to it.
    pub mac: [u8; 6],
}

/// Prepares tap `name` of the calling thread's network namespace for packets that come back to VMs behind
/// `prefixes`, of packets of up to `mtu_bytes`, and sets it up.
///
/// It may be repeated at any time, and should be: services that configure interfaces as they appear may
/// have been later.
pub fn prepare(name: &str, mtu_bytes: usize, prefixes: &[IpNet]) -> Result<LinkTap> {
    let device = Device::find(name)?;
    device.set_mtu(mtu_bytes)?;
    if prefixes.iter().any(|prefix| matches!(prefix, IpNet::V4(_))) {
        forward_v4(name)?;
    }
    forward_v6(name, prefixes.iter().any(|prefix| matches!(prefix, IpNet::V6(_))))?;
    device.set_up()?;
    Ok(LinkTap { ifindex: device.ifindex, mac: device.mac()? })
}

fn forward_v4(name: &str) -> Result<()> {
    let all = Sysctl::new("ipv4", "all", "rp_filter").read()?;
    ensure!(
        all == "0",
        "net.ipv4.conf.all.rp_filter is {all}, so this host drops all that comes out of {name}: set it \
         to 0, and to {all} that of each interface which is to be filtered \
         (net.ipv4.conf.INTERFACE.rp_filter)"
    );
    for (key, value) in [("rp_filter", "0"), ("forwarding", "1")] {
        Sysctl::new("ipv4", name, key).set(value)?;
    }
    Ok(())
}

fn forward_v6(name: &str, is_wanted: bool) -> Result<()> {
    let of = |key| Sysctl::new("ipv6", name, key);
    if !of("disable_ipv6").exists() {
        ensure!(!is_wanted, "this host has no IPv6, and IPv6 prefixes are to come out of {name}");
        return Ok(());
    }
    if !is_wanted {
        return of("disable_ipv6").set("1");
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
        of(key).set(value)?;
    }
    if of("force_forwarding").exists() {
        return of("force_forwarding").set("1");
    }
    let all = Sysctl::new("ipv6", "all", "forwarding").read()?;
    if all != "1" {
        bail!(
            "this kernel forwards IPv6 only when all interfaces do: set net.ipv6.conf.all.forwarding to \
             1 (and accept_ra to 2 on interfaces that are to heed router advertisements)"
        );
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
        Path::exists(&self.path)
    }

    fn read(&self) -> Result<String> {
        let text = fs::read_to_string(&self.path);
        let text = text.with_context(|| format!("read {}", self.path.display()))?;
        Ok(text.trim().to_owned())
    }

    /// Changing nothing where it is so already: some settings tell listeners of every write.
    fn set(&self, value: &str) -> Result<()> {
        if self.read()? == value {
            return Ok(());
        }
        fs::write(&self.path, value)
            .with_context(|| format!("set {} to {value} (needs root)", self.path.display()))
    }
}

/// An interface of the calling thread's network namespace.
struct Device {
    name: CString,
    ifindex: u32,
    socket: Socket,
}

impl Device {
    fn find(name: &str) -> Result<Self> {
        ensure!(
            !name.is_empty() && name.len() < libc::IFNAMSIZ && !name.contains('/'),
            "interface name '{name}' must have 1 to {} characters",
            libc::IFNAMSIZ - 1
        );
        let name = CString::new(name).with_context(|| format!("interface name {name:?}"))?;
        let ifindex = nix::net::if_::if_nametoindex(name.as_c_str())
            .with_context(|| format!("find interface {}", name.to_string_lossy()))?;
        let socket = Socket::new(Domain::UNIX, Type::DGRAM, None).context("open a socket")?;
        Ok(Self { name, ifindex, socket })
    }

    fn request(&self) -> libc::ifreq {
        // SAFETY: an ifreq is plain data, for which all zeroes is a valid value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(self.name.as_bytes()) {
            *to = *from as libc::c_char;
        }
        request
    }

    fn what(&self, what: &str) -> String {
        format!("{what} of {}", self.name.to_string_lossy())
    }

    fn set_mtu(&self, mtu_bytes: usize) -> Result<()> {
        let mut request = self.request();
        request.ifr_ifru.ifru_mtu = mtu_bytes.try_into().context("an MTU that is too large")?;
        // SAFETY: an open socket, and a live request that names a device.
        unsafe { siocsifmtu(self.socket.as_raw_fd(), &mut request) }
            .map_err(io::Error::from)
            .with_context(|| self.what(&format!("set the MTU of {mtu_bytes} bytes")))?;
        Ok(())
    }

    fn set_up(&self) -> Result<()> {
        let mut request = self.request();
        // SAFETY: an open socket, and a live request that names a device.
        unsafe { siocgifflags(self.socket.as_raw_fd(), &mut request) }
            .map_err(io::Error::from)
            .with_context(|| self.what("read the flags"))?;
        // SAFETY: the kernel has just written this member.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
        // SAFETY: as above.
        unsafe { siocsifflags(self.socket.as_raw_fd(), &mut request) }
            .map_err(io::Error::from)
            .with_context(|| self.what("set the flags"))?;
        Ok(())
    }

    fn mac(&self) -> Result<[u8; 6]> {
        let mut request = self.request();
        // SAFETY: an open socket, and a live request that names a device.
        unsafe { siocgifhwaddr(self.socket.as_raw_fd(), &mut request) }
            .map_err(io::Error::from)
            .with_context(|| self.what("read the MAC address"))?;
        // SAFETY: the kernel has just written this member.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        ensure!(
            address.sa_family == libc::ARPHRD_ETHER,
            "{} is no tap: it has no Ethernet address",
            self.name.to_string_lossy()
        );
        let mut mac = [0; 6];
        for (to, from) in mac.iter_mut().zip(address.sa_data) {
            *to = from as u8;
        }
        Ok(mac)
    }
}
