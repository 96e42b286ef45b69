//! Settings of the interfaces of ports: MTU, up, the bridge.

use vsnoop_netdev::{self as netdev, Device, change, netlink};

#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error(transparent)]
    Find(#[from] netdev::Error),
    #[error("there is no interface {name}")]
    Missing { name: String },
    #[error("setting the MTU of {name} to {bytes}")]
    Mtu {
        name: String,
        bytes: u16,
        #[source]
        error: netlink::Error,
    },
    #[error("setting {name} up")]
    Up {
        name: String,
        #[source]
        error: netlink::Error,
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
        error: netlink::Error,
    },
    #[error("putting {name} into bridge {bridge}")]
    Join {
        name: String,
        bridge: String,
        #[source]
        error: netlink::Error,
    },
}

type Result<T> = std::result::Result<T, DeviceError>;

/// An interface of the calling thread's network namespace.
pub struct Interface<'a> {
    name: &'a str,
}

impl<'a> Interface<'a> {
    pub fn new(name: &'a str) -> Self {
        Self { name }
    }

    fn find_device(&self) -> Result<Device> {
        netdev::find(self.name)?.ok_or_else(|| DeviceError::Missing { name: self.name.to_owned() })
    }

    pub fn set_mtu(&self, bytes: u16) -> Result<()> {
        change::set_mtu(self.find_device()?.index, bytes.into()).map_err(|error| DeviceError::Mtu {
            name: self.name.to_owned(),
            bytes,
            error,
        })
    }

    pub fn set_up(&self) -> Result<()> {
        change::set_up(self.find_device()?.index)
            .map_err(|error| DeviceError::Up { name: self.name.to_owned(), error })
    }

    /// Whether it is set up; an interface that is gone is not.
    pub fn is_up(&self) -> Result<bool> {
        Ok(netdev::find(self.name)?.is_some_and(|device| device.up))
    }

    /// Takes it out of this bridge; if it is in another one, or in none, nothing changes.
    pub fn leave_bridge(&self, bridge: &str) -> Result<()> {
        let (Some(device), Some(master)) = (netdev::find(self.name)?, netdev::find(bridge)?) else {
            return Ok(());
        };
        if device.master != Some(master.index) {
            return Ok(());
        }
        change::set_master(device.index, None).map_err(|error| DeviceError::Leave {
            name: self.name.to_owned(),
            bridge: bridge.to_owned(),
            error,
        })
    }

    /// Puts it into a bridge.
    pub fn join_bridge(&self, bridge: &str) -> Result<()> {
        let device = self.find_device()?;
        let name = || bridge.to_owned();
        let into = netdev::find(bridge)?.ok_or_else(|| DeviceError::NoBridge { bridge: name() })?;
        if into.kind != "bridge" {
            return Err(DeviceError::NotABridge { bridge: name() });
        }
        change::set_master(device.index, Some(into.index)).map_err(|error| DeviceError::Join {
            name: self.name.to_owned(),
            bridge: name(),
            error,
        })
    }
}
