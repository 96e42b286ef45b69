//! Settings of the interfaces of ports: MTU, up, the bridge.

use std::ffi::{CString, NulError};
use std::io;
use std::os::fd::AsRawFd;

use socket2::{Domain, Socket, Type};

/// `SIOCBRADDIF` of linux/sockios.h.
const SIOCBRADDIF: libc::c_ulong = 0x89a2;
/// `SIOCBRDELIF`, likewise.
const SIOCBRDELIF: libc::c_ulong = 0x89a3;

nix::ioctl_readwrite_bad!(siocgifflags, libc::SIOCGIFFLAGS, libc::ifreq);
nix::ioctl_write_ptr_bad!(siocsifflags, libc::SIOCSIFFLAGS, libc::ifreq);
nix::ioctl_write_ptr_bad!(siocsifmtu, libc::SIOCSIFMTU, libc::ifreq);
nix::ioctl_write_ptr_bad!(siocbraddif, SIOCBRADDIF, libc::ifreq);
nix::ioctl_write_ptr_bad!(siocbrdelif, SIOCBRDELIF, libc::ifreq);

#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("making a socket")]
    Socket(#[source] io::Error),
    #[error("an interface name with a zero byte")]
    ZeroByte(#[source] NulError),
    #[error("{name:?} is too long for an interface")]
    TooLong { name: CString },
    #[error("setting the MTU of {name} to {bytes}")]
    Mtu {
        name: String,
        bytes: u16,
        #[source]
        error: io::Error,
    },
    #[error("setting {name} up")]
    Up {
        name: String,
        #[source]
        error: io::Error,
    },
    #[error("there is no interface {name}")]
    Missing {
        name: String,
        #[source]
        error: io::Error,
    },
    #[error(
        "there is no bridge {bridge} here: make it (`ip link add {bridge} type bridge`) or name \
         another"
    )]
    NoBridge { bridge: String },
    #[error("{bridge} is no bridge")]
    NotABridge { bridge: String },
    #[error("taking {name} out of bridge {bridge}")]
    Leave {
        name: String,
        bridge: String,
        #[source]
        error: io::Error,
    },
    #[error("putting {name} into bridge {bridge}")]
    Join {
        name: String,
        bridge: String,
        #[source]
        error: io::Error,
    },
}

type Result<T> = std::result::Result<T, DeviceError>;

/// An interface of the calling thread's network namespace.
pub struct Interface<'a> {
    name: &'a str,
    socket: Socket,
}

impl<'a> Interface<'a> {
    pub fn new(name: &'a str) -> Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).map_err(DeviceError::Socket)?;
        Ok(Self { name, socket })
    }

    fn request(&self, name: &str) -> Result<libc::ifreq> {
        let name = CString::new(name).map_err(DeviceError::ZeroByte)?;
        // SAFETY: all zeroes is a valid ifreq.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        let bytes = name.as_bytes();
        if bytes.len() >= libc::IFNAMSIZ {
            return Err(DeviceError::TooLong { name });
        }
        for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        Ok(request)
    }

    /// Takes it out of this bridge; if it is in another one, or in none, nothing changes.
    pub fn leave(&self, bridge: &str) -> Result<()> {
        let (Ok(index), Ok(_)) =
            (nix::net::if_::if_nametoindex(self.name), nix::net::if_::if_nametoindex(bridge))
        else {
            return Ok(());
        };
        let mut request = self.request(bridge)?;
        request.ifr_ifru.ifru_ifindex = index as i32;
        // SAFETY: the request is live and names the bridge.
        match unsafe { siocbrdelif(self.socket.as_raw_fd(), &request) } {
            // It is no bridge, or another's.
            Ok(_) | Err(nix::Error::EINVAL | nix::Error::EOPNOTSUPP) => Ok(()),
            Err(error) => Err(DeviceError::Leave {
                name: self.name.to_owned(),
                bridge: bridge.to_owned(),
                error: error.into(),
            }),
        }
    }

    pub fn set_mtu(&self, bytes: u16) -> Result<()> {
        let mut request = self.request(self.name)?;
        request.ifr_ifru.ifru_mtu = bytes.into();
        // SAFETY: the request is live and names the interface.
        unsafe { siocsifmtu(self.socket.as_raw_fd(), &request) }.map_err(|error| {
            DeviceError::Mtu { name: self.name.to_owned(), bytes, error: error.into() }
        })?;
        Ok(())
    }

    pub fn set_up(&self) -> Result<()> {
        let mut request = self.request(self.name)?;
        let failed =
            |error: nix::Error| DeviceError::Up { name: self.name.to_owned(), error: error.into() };
        // SAFETY: the request is live and names the interface; the kernel fills in the flags.
        unsafe { siocgifflags(self.socket.as_raw_fd(), &mut request) }.map_err(failed)?;
        // SAFETY: the flags were filled in by the call before.
        unsafe { request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short };
        // SAFETY: as above.
        unsafe { siocsifflags(self.socket.as_raw_fd(), &request) }.map_err(failed)?;
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
        let name = || self.name.to_owned();
        let index = nix::net::if_::if_nametoindex(self.name)
            .map_err(|error| DeviceError::Missing { name: name(), error: error.into() })?;
        let mut request = self.request(bridge)?;
        request.ifr_ifru.ifru_ifindex = index as i32;
        // SAFETY: the request is live and names the bridge.
        match unsafe { siocbraddif(self.socket.as_raw_fd(), &request) } {
            Ok(_) => Ok(()),
            Err(error) => {
                let bridge = bridge.to_owned();
                Err(match error {
                    nix::Error::ENODEV => DeviceError::NoBridge { bridge },
                    nix::Error::EOPNOTSUPP => DeviceError::NotABridge { bridge },
                    error => DeviceError::Join { name: name(), bridge, error: error.into() },
                })
            }
        }
    }
}
