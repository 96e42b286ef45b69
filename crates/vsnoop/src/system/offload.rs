//! What a tap's reader leaves to be done: whether super-packets and unfinished checksums reach the VM.

use anyhow::Result;

use super::ethtool;

// include/uapi/linux/ethtool.h
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_GTSO: u32 = 0x1e;

#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Offloads {
    pub checksum: bool,
    pub tso: bool,
}

/// Reads the offloads of a device of the calling thread's namespace.
pub fn read(device: &str) -> Result<Offloads> {
    Ok(Offloads { checksum: value(device, ETHTOOL_GTXCSUM)?, tso: value(device, ETHTOOL_GTSO)? })
}

fn value(device: &str, command: u32) -> Result<bool> {
    let mut value = EthtoolValue { command, data: 0 };
    ethtool::ask(device, &mut value)?;
    Ok(value.data != 0)
}
