//! Capabilities of the process (capabilities(7)).

use caps::{CapSet, Capability, CapsHashSet};
use tracing::debug;

use super::error::PrivilegeError;

/// Does a socket at this port need CAP_NET_BIND_SERVICE (ip-sysctl)?
pub fn is_low_port(port: u16) -> bool {
    let first = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let first = first.ok().and_then(|first| first.trim().parse::<u16>().ok());
    port < first.unwrap_or(u16::MAX)
}

/// Those of `used` that the process has.
pub fn held(used: &[Capability]) -> Result<CapsHashSet, PrivilegeError> {
    let given = caps::read(None, CapSet::Permitted)?;
    Ok(used.iter().copied().filter(|capability| given.contains(capability)).collect())
}

/// Bounds what any program could regain. Without CAP_SETPCAP the bound stays as it was:
/// no_new_privs lets no program gain anything, either.
pub fn bound(kept: &CapsHashSet) {
    for capability in caps::runtime::thread_all_supported().difference(kept) {
        if let Err(error) = caps::drop(None, CapSet::Bounding, *capability) {
            debug!("the bounding set keeps {capability}: {error}");
        }
    }
}

/// All others are gone.
pub fn keep_only(kept: &CapsHashSet) -> Result<(), PrivilegeError> {
    // Permitted ones cannot be fewer than effective ones, nor ambient ones more than inheritable.
    if caps::runtime::ambient_set_supported().is_ok() {
        caps::clear(None, CapSet::Ambient)?;
    }
    caps::clear(None, CapSet::Effective)?;
    caps::clear(None, CapSet::Inheritable)?;
    caps::set(None, CapSet::Permitted, kept)?;
    caps::set(None, CapSet::Effective, kept)?;
    Ok(())
}
