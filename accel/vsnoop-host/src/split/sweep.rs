//! Removes what killed processes have left of downloads, and ends the downloads of ports whose pair
//! of devices, or whose tap, was taken away by others.

use vsnoop_bpf::UplinkId;
use vsnoop_bpf::split;

use super::error::Result;
use super::namespace;
use super::pair::{self, TapId};
use crate::lock::CommandLock;
use crate::ports::{self, Attached, Inventory};
use crate::system::netns::Netns;

/// Pairs and ports whose downloads are not complete, and are taken off.
#[derive(Default)]
struct Found {
    /// Pairs of no port with downloads.
    pairs: Vec<TapId>,
    /// Ports with downloads that have no pair, and ports without downloads that have programs.
    ports: Vec<Attached>,
}

/// Removes leftovers. The lock keeps commands from making some meanwhile.
pub fn sweep(_lock: &CommandLock) -> Result<()> {
    let Some(sockets) = namespace::open()? else { return Ok(()) };
    let Found { pairs, ports } = find_unused(&sockets, ports::inventory()?)?;
    // The programs first: no segment may be sent to a device that is gone.
    for attached in ports {
        tracing::warn!("port {}: its downloads end: {}", attached.name, why(&attached));
        attached.port.set_downloads(false)?;
        split::detach(&attached.port)?;
        let tap = TapId::from_port(&attached.port)?;
        sockets.run(|| pair::remove_far(tap))?;
    }
    sockets.run(|| pairs.into_iter().try_for_each(pair::remove_far))
}

/// [`sweep`] for the helper, which has just read all ports: does nothing while a command runs, or
/// if there is nothing to do.
pub fn sweep_if_idle<'a>(ports: impl Iterator<Item = &'a Attached>) -> Result<()> {
    let Some(sockets) = namespace::open()? else { return Ok(()) };
    let pairs = sockets.run(pair::all)?;
    let (mut used, mut is_clean) = (0, true);
    for attached in ports {
        match (has_downloads(attached), pairs.contains(&tap_of(attached))) {
            (true, true) => used += 1,
            (true, false) => is_clean = false,
            (false, _) => is_clean &= !split::has_pins(&attached.port),
        }
    }
    if is_clean && used == pairs.len() {
        return Ok(());
    }
    CommandLock::try_take()?.map_or(Ok(()), |lock| sweep(&lock))
}

/// Removes the namespace if no port needs it.
pub fn remove_namespace_if_unused(lock: &CommandLock) -> Result<()> {
    // Its maker may have been killed when it had no more than its name.
    let Some(sockets) = namespace::open()? else { return namespace::remove(lock) };
    let has_pairs = !sockets.run(pair::all)?.is_empty();
    let inventory = ports::inventory()?;
    if has_pairs || inventory.ports.iter().any(has_downloads) {
        return Ok(());
    }
    namespace::remove(lock)
}

fn find_unused(sockets: &Netns, inventory: Inventory) -> Result<Found> {
    let pairs = sockets.run(pair::all)?;
    let mut found = Found::default();
    let mut used: Vec<TapId> = Vec::new();
    // A damaged port does not say whether it uses one.
    used.extend(inventory.damaged.iter().filter_map(|damaged| {
        let UplinkId { netns, ifindex } = UplinkId::from_directory(&damaged.path)?;
        Some(TapId { netns, ifindex })
    }));
    for attached in inventory.ports {
        let tap = tap_of(&attached);
        let has_pair = pairs.contains(&tap);
        match (has_downloads(&attached), has_pair) {
            (true, true) => used.push(tap),
            (true, false) => found.ports.push(attached),
            (false, _) if split::has_pins(&attached.port) => {
                used.push(tap);
                found.ports.push(attached);
            }
            (false, _) => {}
        }
    }
    found.pairs = pairs.into_iter().filter(|tap| !used.contains(tap)).collect();
    Ok(found)
}

fn tap_of(attached: &Attached) -> TapId {
    TapId { netns: attached.meta.netns, ifindex: attached.meta.ifindex }
}

/// A port that cannot be read any more was just detached, and has none.
fn has_downloads(attached: &Attached) -> bool {
    attached.port.policy().is_ok_and(|policy| policy.downloads != 0)
}

fn why(attached: &Attached) -> &'static str {
    match has_downloads(attached) {
        true => "another program has deleted its devices",
        false => "what switched them on or off was killed",
    }
}
