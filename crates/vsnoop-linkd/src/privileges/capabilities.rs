//! Capabilities of the process (capabilities(7)).

use caps::{CapSet, Capability, CapsHashSet};
use tracing::debug;

use super::error::PrivilegeError;
use super::needs::Needs;

/// Those that a link uses while it runs, as far as it was started with them.
pub fn kept(needs: Needs) -> Result<CapsHashSet, PrivilegeError> {
    // For a bridge that comes again, SO_SNDBUFFORCE of sessions, and settings of divert taps.
    let mut used = CapsHashSet::from([Capability::CAP_NET_ADMIN]);
    if needs.diverts {
        used.insert(Capability::CAP_BPF);
    }
    if needs.binds_low_port {
        used.insert(Capability::CAP_NET_BIND_SERVICE);
    }
    let given = caps::read(None, CapSet::Permitted)?;
    Ok(used.intersection(&given).copied().collect())
}

/// Bounds what any program could regain. Without CAP_SETPCAP the bound stays as it was: the filter
/// of system calls lets no program be executed, either.
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
