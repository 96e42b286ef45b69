//! The surroundings of a tap besides its attachment: its present name, its bridge and queue
//! discipline, the process that holds it and the VM's name there.
//!
//! Devices are listed once for each network namespace. To find the processes takes a pass over all
//! of the host, so they are remembered, and looked for when there is another tap, or at the latest
//! after [`LOOK_AGAIN`] for those without one.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use vsnoop_host::ports::Attached;
use vsnoop_host::system::holder;
use vsnoop_host::system::netdev;
use vsnoop_host::system::netns::{NAMED, Netns};
use vsnoop_host::system::process::{self, Process};

const LOOK_AGAIN: Duration = Duration::from_secs(15);

/// Inode of the network namespace, and index.
type Key = (u64, u32);

/// The surroundings of one tap.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// Its present name; `None` if its namespace cannot be entered.
    pub name: Option<String>,
    /// The network namespace, as in the label `netns`.
    pub netns: String,
    pub bridge: Option<String>,
    pub qdisc: Option<String>,
    pub process: Option<String>,
    pub vm: Option<String>,
}

struct Holder {
    process: Process,
    vm: Option<String>,
}

/// Remembers what takes long to find.
#[derive(Default)]
pub struct Surroundings {
    paths: HashMap<u64, PathBuf>,
    holders: HashMap<Key, Holder>,
    /// Taps at the last pass over all processes.
    looked_for: HashSet<Key>,
    looked_at: Option<Instant>,
}

impl Surroundings {
    pub fn find_places(&mut self, ports: &[Attached]) -> HashMap<Key, Place> {
        let mut places = self.places(ports);
        self.find_holders(&places);
        for (key, place) in &mut places {
            if let Some(holder) = self.holders.get(key) {
                place.process = Some(holder.process.name.clone());
                place.vm.clone_from(&holder.vm);
            }
        }
        places
    }

    fn places(&mut self, ports: &[Attached]) -> HashMap<Key, Place> {
        let mut places = HashMap::new();
        let inodes: HashSet<u64> = ports.iter().map(|port| port.meta.netns).collect();
        self.paths.retain(|inode, _| inodes.contains(inode));
        let own = Netns::current().ok().map(|own| own.inode);
        for inode in inodes {
            let mut path = self.paths.remove(&inode);
            let netns = Netns::find_again(inode, &mut path);
            let label = match own == Some(inode) {
                true => String::new(),
                false => label(inode, path.as_deref()),
            };
            self.paths.extend(path.map(|path| (inode, path)));
            let devices = netns.and_then(|netns| netns.run(netdev::list).ok()).unwrap_or_default();
            for port in ports.iter().filter(|port| port.meta.netns == inode) {
                let index = port.meta.ifindex;
                let device = devices.iter().find(|device| device.index == index);
                let master = device.and_then(|device| device.master);
                let bridge = devices
                    .iter()
                    .find(|other| Some(other.index) == master && other.kind == "bridge");
                let place = Place {
                    name: device.map(|device| device.name.clone()),
                    netns: label.clone(),
                    bridge: bridge.map(|bridge| bridge.name.clone()),
                    qdisc: device.map(|device| device.qdisc.clone()),
                    ..Place::default()
                };
                places.insert((inode, index), place);
            }
        }
        places
    }

    fn find_holders(&mut self, places: &HashMap<Key, Place>) {
        self.holders.retain(|key, holder| places.contains_key(key) && holder.process.is_alive());
        let is_new = places.keys().any(|key| !self.looked_for.contains(key));
        let is_old = self.looked_at.is_none_or(|at| at.elapsed() >= LOOK_AGAIN);
        let is_any_unknown = places.keys().any(|key| !self.holders.contains_key(key));
        if !is_any_unknown || !(is_new || is_old) {
            return;
        }
        let mut found = holder::of_all_taps();
        for (key, place) in places {
            let Some(name) = &place.name else { continue };
            if let Some(found) = found.remove(&(name.clone(), key.0)) {
                let process = found.process;
                let vm = process::vm_name(process.pid);
                self.holders.insert(*key, Holder { process, vm });
            }
        }
        self.looked_for = places.keys().copied().collect();
        self.looked_at = Some(Instant::now());
    }
}

/// Its name in /run/netns; else its inode, since a process there does not name it for long.
fn label(inode: u64, path: Option<&Path>) -> String {
    let name = path.and_then(|path| path.strip_prefix(NAMED).ok());
    name.map_or_else(|| inode.to_string(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_called_by_its_name_or_by_its_inode() {
        assert_eq!(label(7, Some(Path::new("/run/netns/pod"))), "pod");
        assert_eq!(label(7, Some(Path::new("/proc/12/ns/net"))), "7");
        assert_eq!(label(7, None), "7");
    }
}
