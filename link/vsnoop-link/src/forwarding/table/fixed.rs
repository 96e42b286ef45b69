//! Addresses that the configuration gives to one port, and where else frames come from that have
//! them: from a VM that has migrated to another host, or from a forger.

use std::collections::HashMap;

use crate::forwarding::location::Location;
use crate::forwarding::mac::Mac;

#[derive(Debug)]
struct FixedAddress {
    location: Location,
    elsewhere: Option<Sighting>,
}

/// Frames that came from another location.
#[derive(Clone, Copy, Debug)]
struct Sighting {
    location: Location,
    last_ns: u64,
}

/// An address that is fixed to one location, and used at another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedElsewhere {
    pub mac: Mac,
    /// Where it is fixed.
    pub fixed: Location,
    /// Where the last frame came from.
    pub used: Location,
}

#[derive(Debug, Default)]
pub(super) struct FixedAddresses(HashMap<Mac, FixedAddress>);

impl FixedAddresses {
    pub fn insert(&mut self, mac: Mac, location: Location) {
        self.0.insert(mac, FixedAddress { location, elsewhere: None });
    }

    pub fn remove_location(&mut self, location: Location) {
        self.0.retain(|_, fixed| fixed.location != location);
    }

    pub fn find_location(&self, mac: Mac) -> Option<Location> {
        Some(self.0.get(&mac)?.location)
    }

    /// Whether a frame from this location may have the address; else that is noted.
    pub fn allows_source(&mut self, mac: Mac, from: Location, now_ns: u64) -> bool {
        let Some(fixed) = self.0.get_mut(&mac).filter(|fixed| fixed.location != from) else {
            return true;
        };
        fixed.elsewhere = Some(Sighting { location: from, last_ns: now_ns });
        false
    }

    /// Addresses that another location has used since then.
    pub fn list_elsewhere(&self, since_ns: u64) -> impl Iterator<Item = FixedElsewhere> {
        self.0.iter().filter_map(move |(mac, fixed)| {
            let seen = fixed.elsewhere.filter(|seen| seen.last_ns >= since_ns)?;
            Some(FixedElsewhere { mac: *mac, fixed: fixed.location, used: seen.location })
        })
    }
}
