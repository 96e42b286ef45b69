//! What a link sets on the interfaces of its ports: MTU, up, the bridge.

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use socket2::{Domain, Socket, Type};

/// `SIOCBRADDIF` of linux/sockios.h.
const SIOCBRADDIF: libc::c_ulong = 0x89a2;

nix::ioctl_readwrite_bad!(siocgifflags, libc::SIOCGIFFLAGS, libc::ifreq);
nix::ioctl_write_ptr_bad!(siocsifflags, libc::SIOCSIFFLAGS, libc::ifreq);
nix::ioctl_write_ptr_bad!(siocsifmtu, libc::SIOCSIFMTU, libc::ifreq);
nix::ioctl_write_ptr_bad!(siocbraddif, SIOCBRADDIF, libc::ifreq);

/// An interface of the calling thread's network namespace.
pub struct Device<'a> {
    name: &'a str,
    socket: Socket,
}

impl<'a> Device<'a> {
    pub fn new(name: &'a str) -> Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).context("making a socket")?;
        Ok(Self { name, socket })
    }

    fn request(&self, name: &str) -> Result<libc::ifreq> {
        let name = CString::new(name).context("an interface name with a zero byte")?;
        // SAFETY: all zeroes is a valid ifreq.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        let bytes = name.as_bytes();
        anyhow::ensure!(bytes.len() < libc::IFNAMSIZ, "{name:?} is too long for an interface");
        for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        Ok(request)
    }

    pub fn set_mtu(&self, bytes: u16) -> Result<()> {
        let mut request = self.request(self.name)?;
        request.ifr_ifru.ifru_mtu = bytes.into();
        // SAFETY: the request is live and names the interface.
        unsafe { siocsifmtu(self.socket.as_raw_fd(), &request) }
            .with_context(|| format!("setting the MTU of {} to {bytes}", self.name))?;
        Ok(())
    }

    pub fn set_up(&self) -> Result<()> {
        let mut request = self.request(self.name)?;
        let what = || format!("setting {} up", self.name);
        // SAFETY: the request is live and names the interface; the kernel fills in the flags.
        unsafe { siocgifflags(self.socket.as_raw_fd(), &mut request) }.with_context(what)?;
        // SAFETY: the flags were filled in by the call before.
        unsafe { request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short };
        // SAFETY: as above.
        unsafe { siocsifflags(self.socket.as_raw_fd(), &request) }.with_context(what)?;
        Ok(())
    }

    /// Whether it is set up; an interface that is gone is not.
    pub fn is_up(&self) -> bool {
        let Ok(mut request) = self.request(self.name) else { return false };
        // SAFETY: the request is live and names the interface; the kernel fills in the flags.
        unsafe { siocgifflags(self.socket.as_raw_fd(), &mut request) }.is_ok_and(|_| {
            // SAFETY: the flags were filled in.
            let flags = unsafe { request.ifr_ifru.ifru_flags };
            libc::c_int::from(flags) & libc::IFF_UP != 0
        })
    }

    /// Puts it into a bridge.
    pub fn join(&self, bridge: &str) -> Result<()> {
        let index = nix::net::if_::if_nametoindex(self.name)
            .with_context(|| format!("there is no interface {}", self.name))?;
        let mut request = self.request(bridge)?;
        request.ifr_ifru.ifru_ifindex = index as i32;
        // SAFETY: the request is live and names the bridge.
        match unsafe { siocbraddif(self.socket.as_raw_fd(), &request) } {
            Ok(_) => Ok(()),
            Err(nix::Error::ENODEV) => anyhow::bail!(
                "there is no bridge {bridge} here: make it (`ip link add {bridge} type bridge`) or \
                 name another"
            ),
            Err(nix::Error::EOPNOTSUPP) => anyhow::bail!("{bridge} is no bridge"),
            Err(error) => Err(io::Error::from(error))
                .with_context(|| format!("putting {} into bridge {bridge}", self.name)),
        }
    }
}
