//! The learned addresses, each VLAN's for itself.
//!
//! A frame's source address makes and refreshes its entry, which expires when no frame has come
//! from the address for a while. Expired entries are removed when others need their room. A frame
//! refreshes its entry with shared access only, a few times a second, so that only new addresses
//! and moves write to a table behind a read-write lock.
//!
//! # An address that two locations use
//! A VM that migrates, a loop and a forged source address look the same at first: frames with one
//! source address come from two locations. A bridge believes the last frame; one forged frame is
//! then enough to take the owner's traffic away. This table believes both locations for as long as
//! both use the address:
//!
//! | the address was last used by | frames to it go to |
//! |---|---|
//! | one location | that location |
//! | one location, and no more than [`TableSettings::doubt_ns`] before by another | both |
//! | a third location beside two such | all locations (flood), and beyond the rate of a flood the |
//! | | location that used it first and the one that came last |
//!
//! Frames from the address are forwarded from each of them, and none is dropped for its source.
//! Loops are bounded: a frame that is copied, and whose source address
//! entered the table at another location that still uses it, counts towards a rate
//! ([`TableSettings::copies_per_second`]).
//!
//! A peer behind a hub is a location of its own, also while the hub relays its frames. Until the
//! hub labels them as the peer's, they come as the hub's, and are no other use of the peer's
//! addresses. While it does, which its answers say, the hub and the peer are two locations as any
//! others: an address that is at the peer leaves the hub once it has been silent there.
//!
//! # Multicast and floods
//! A multicast goes where its group has members, if that is known ([`groups`](super::groups)). What
//! a port sends to all peers is bounded, because each such frame is sent as often as there are
//! peers, and so is what a peer has relayed to others: each address has a rate
//! ([`TableSettings::floods_per_second`]), and so have all addresses of a port together, against
//! invented ones. An address that is known for a while has a small rate beside, which the others of
//! its port cannot use up.
//!
//! # Bounds
//! The table is bounded, and so is each location in it: a location that is full gives up one of its
//! own entries, a full table one of the location that has most. A flood of invented addresses thus
//! pushes out none of another location's. Which entry goes is decided by a sample, its oldest:
//! finding the oldest of all would make such a flood expensive.

mod decision;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::groups::Groups;
use super::location::{DropReason, LearnedAddress, Location, Scope};
use super::mac::Mac;
use crate::rate::Rate;

const SECOND_NS: u64 = 1_000_000_000;
/// Entries of which the oldest gives way.
const SAMPLE: usize = 16;

/// How often `seen_ns` is written at most: other cores read it.
const REFRESH_NS: u64 = SECOND_NS / 4;
#[derive(Clone, Copy, Debug)]
pub struct TableSettings {
    /// How long an address is known without a frame from it.
    pub ageing_ns: u64,
    /// Entries in all.
    pub entries: usize,
    /// Entries of one location.
    pub entries_per_location: usize,
    /// How long a location that used an address is believed to have it, beside another.
    pub doubt_ns: u64,
    /// Frames of a doubtful source that are copied, per address and second.
    pub copies_per_second: u64,
    /// Frames to all peers, per address and second, and as many at once; 0: any number.
    pub floods_per_second: u64,
}

impl Default for TableSettings {
    fn default() -> Self {
        Self {
            ageing_ns: 300 * SECOND_NS,
            entries: 8192,
            entries_per_location: 2048,
            doubt_ns: 2 * SECOND_NS,
            copies_per_second: 100,
            floods_per_second: 1000,
        }
    }
}

/// Where an address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whereabouts {
    At(Location),
    /// Two locations use it; the first had it before.
    Either(Location, Location),
    /// More than two do.
    Anywhere,
}

/// State of the location that a frame came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourceState {
    /// No other location uses its address, or this one used it first.
    Settled,
    /// Another location has used its address first, and still does.
    Doubtful,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct AddressKey {
    mac: Mac,
    vlan: u16,
}

/// A location beside the one that an address has, which uses it too.
#[derive(Debug)]
struct Rival {
    location: Location,
    seen_ns: AtomicU64,
}

#[derive(Debug)]
struct LearnedEntry {
    location: Location,
    /// Index of its key in the location's list.
    index: usize,
    seen_ns: AtomicU64,
    rival: Option<Rival>,
    /// Until when more than two locations use the address.
    crowded_until_ns: u64,
    /// When the address was seen at this location first.
    since_ns: u64,
    copies: Rate,
    floods: Rate,
    assured: Rate,
}

/// State of a location.
#[derive(Debug, Default)]
struct LocationEntry {
    /// Its addresses, in no order.
    keys: Vec<AddressKey>,
    floods: Rate,
}

impl LearnedEntry {
    fn new(location: Location, index: usize, now_ns: u64) -> Self {
        Self {
            location,
            index,
            seen_ns: AtomicU64::new(now_ns),
            rival: None,
            crowded_until_ns: 0,
            since_ns: now_ns,
            copies: Rate::default(),
            floods: Rate::default(),
            assured: Rate::default(),
        }
    }

    /// When a frame came from the address last, by any location.
    fn newest_ns(&self) -> u64 {
        let rival_ns = self.rival.as_ref().map_or(0, |rival| rival.seen_ns.load(Relaxed));
        self.seen_ns.load(Relaxed).max(rival_ns)
    }

    fn whereabouts(&self, doubt_ns: u64, now_ns: u64) -> Whereabouts {
        let Some(rival) = &self.rival else { return Whereabouts::At(self.location) };
        if now_ns < self.crowded_until_ns {
            return Whereabouts::Anywhere;
        }
        let (own_ns, rival_ns) = (self.seen_ns.load(Relaxed), rival.seen_ns.load(Relaxed));
        if own_ns > rival_ns.saturating_add(doubt_ns) {
            Whereabouts::At(self.location)
        } else if rival_ns > own_ns.saturating_add(doubt_ns) {
            Whereabouts::At(rival.location)
        } else {
            Whereabouts::Either(self.location, rival.location)
        }
    }
}

#[derive(Debug)]
pub struct Table {
    settings: TableSettings,
    known: HashMap<AddressKey, LearnedEntry>,
    /// Addresses that the configuration gives to one location.
    fixed: HashMap<Mac, Location>,
    /// One entry for each port and peer.
    locations: HashMap<Location, LocationEntry>,
    groups: Groups,
    /// Peers whose frames go to each other.
    relayed: BTreeSet<u16>,
    /// Peers behind hubs, and their hubs.
    hubs: HashMap<Location, Location>,
    /// Those of them whose frames the hub labels.
    labelled: HashSet<Location>,
}

impl Table {
    pub fn new(settings: TableSettings) -> Self {
        Self {
            settings,
            known: HashMap::new(),
            fixed: HashMap::new(),
            locations: HashMap::new(),
            groups: Groups::default(),
            relayed: BTreeSet::new(),
            hubs: HashMap::new(),
            labelled: HashSet::new(),
        }
    }

    /// The peers that are behind hubs from now on, each with its hub.
    pub fn set_hubs(&mut self, hubs: impl IntoIterator<Item = (u16, u16)>) {
        let locations = |(peer, hub)| (Location::Peer(peer), Location::Peer(hub));
        let hubs: HashMap<_, _> = hubs.into_iter().map(locations).collect();
        self.labelled.retain(|peer| hubs.get(peer) == self.hubs.get(peer));
        self.hubs = hubs;
    }

    /// The peers whose frames go to each other from now on.
    pub fn set_relayed(&mut self, peers: impl IntoIterator<Item = u16>) {
        self.relayed = peers.into_iter().collect();
    }

    fn is_relayed(&self, location: Location) -> bool {
        matches!(location, Location::Peer(peer) if self.relayed.contains(&peer))
    }

    /// Whether a frame that came from `from` may go to `to` at all.
    fn reaches(&self, from: Location, to: Location) -> bool {
        from.reaches(to) || (from != to && self.is_relayed(from) && self.is_relayed(to))
    }

    /// Peers of a scope to which frames from this location are relayed.
    pub fn relays(&self, from: Location, scope: &Scope) -> Vec<u16> {
        if !self.is_relayed(from) || *scope == Scope::Ports {
            return Vec::new();
        }
        let gets = |to: Location| to != from && scope.includes(to);
        self.relayed.iter().copied().filter(|peer| gets(Location::Peer(*peer))).collect()
    }

    /// The rules from now on; what was learned stays.
    pub fn set(&mut self, settings: TableSettings) {
        self.settings = settings;
    }

    /// Gives an address to a location, in all VLANs: frames from it are believed there only, also
    /// if it was learned elsewhere before.
    pub fn fix(&mut self, mac: Mac, location: Location) {
        self.fixed.insert(mac, location);
        let is_elsewhere = |(key, known): &(&AddressKey, &LearnedEntry)| {
            key.mac == mac && (known.location != location || known.rival.is_some())
        };
        let elsewhere: Vec<_> =
            self.known.iter().filter(is_elsewhere).map(|(key, _)| *key).collect();
        elsewhere.into_iter().for_each(|key| self.remove(key));
    }

    /// Takes all such addresses from a location again.
    pub fn unfix(&mut self, location: Location) {
        self.fixed.retain(|_, fixed| *fixed != location);
    }

    /// Removes a location and its addresses, which are learned anew elsewhere.
    pub fn forget(&mut self, location: Location) {
        self.unfix(location);
        self.groups.forget(location);
        // A hub that comes again does not label at once.
        let hubs = &self.hubs;
        self.labelled.retain(|peer| *peer != location && hubs.get(peer) != Some(&location));
        if let Some(LocationEntry { keys, .. }) = self.locations.remove(&location) {
            for key in &keys {
                self.known.remove(key);
            }
        }
        for known in self.known.values_mut() {
            known.rival.take_if(|rival| rival.location == location);
        }
    }

    /// A location is reached that was not reached before.
    pub fn note_arrival(&mut self, location: Location, now_ns: u64) {
        self.groups.note_arrival(location, now_ns);
    }

    fn is_fixed_elsewhere(&self, mac: Mac, location: Location) -> bool {
        self.fixed.get(&mac).is_some_and(|fixed| *fixed != location)
    }

    /// Where an address is, if it is known and not too old.
    pub fn lookup(&self, vlan: u16, mac: Mac, now_ns: u64) -> Option<Whereabouts> {
        if let Some(fixed) = self.fixed.get(&mac) {
            return Some(Whereabouts::At(*fixed));
        }
        let known = self.known.get(&AddressKey { mac, vlan })?;
        self.is_fresh(known, now_ns).then(|| known.whereabouts(self.settings.doubt_ns, now_ns))
    }

    fn is_fresh(&self, known: &LearnedEntry, now_ns: u64) -> bool {
        now_ns.saturating_sub(known.newest_ns()) <= self.settings.ageing_ns
    }

    /// Notes a frame from a known address; `None` if [`Self::learn`] has something to do.
    pub fn confirm(&self, vlan: u16, mac: Mac, from: Location, now_ns: u64) -> Option<SourceState> {
        let known = self.known.get(&AddressKey { mac, vlan })?;
        if !self.is_fresh(known, now_ns) {
            return None;
        }
        let own_age_ns = now_ns.saturating_sub(known.seen_ns.load(Relaxed));
        let (seen_ns, source) = match &known.rival {
            _ if known.location == from => (&known.seen_ns, SourceState::Settled),
            Some(rival) if rival.location == from && own_age_ns <= self.settings.doubt_ns => {
                (&rival.seen_ns, SourceState::Doubtful)
            }
            _ => return None,
        };
        if now_ns.saturating_sub(seen_ns.load(Relaxed)) >= REFRESH_NS {
            seen_ns.store(now_ns, Relaxed);
        }
        Some(source)
    }

    /// Learns from a frame; the reason if it has no address to learn, and is therefore dropped.
    pub fn learn(
        &mut self,
        vlan: u16,
        mac: Mac,
        from: Location,
        now_ns: u64,
    ) -> Result<SourceState, DropReason> {
        if mac.is_group() || mac.0 == [0; 6] {
            return Err(DropReason::BadSource);
        }
        if self.is_fixed_elsewhere(mac, from) {
            return Err(DropReason::Forged);
        }
        let key = AddressKey { mac, vlan };
        let doubt_ns = self.settings.doubt_ns;
        let Some(known) = self.known.get_mut(&key) else {
            self.insert(key, from, now_ns);
            return Ok(SourceState::Settled);
        };
        let is_in_use = |seen_ns: u64| now_ns.saturating_sub(seen_ns) <= doubt_ns;
        if known.location == from {
            known.seen_ns.store(now_ns, Relaxed);
            return Ok(SourceState::Settled);
        }
        if !is_in_use(known.seen_ns.load(Relaxed)) {
            self.groups.note_arrival(from, now_ns);
            self.relist(key, from, now_ns);
            return Ok(SourceState::Settled);
        }
        // A hub that does not say so may have relayed it.
        if self.hubs.get(&known.location) == Some(&from) && !self.labelled.contains(&known.location)
        {
            return Ok(SourceState::Settled);
        }
        self.groups.note_arrival(from, now_ns);
        if let Some(rival) = &known.rival
            && rival.location != from
            && is_in_use(rival.seen_ns.load(Relaxed))
        {
            known.crowded_until_ns = now_ns.saturating_add(doubt_ns);
        }
        known.rival = Some(Rival { location: from, seen_ns: AtomicU64::new(now_ns) });
        Ok(SourceState::Doubtful)
    }

    /// Whether the hub labels frames of a peer behind it.
    pub fn is_labelled(&self, peer: Location) -> bool {
        self.labelled.contains(&peer)
    }

    /// Whether the hub labels frames of a peer behind it from now on: those without a label are of
    /// others then.
    pub fn set_labelled(&mut self, peer: Location, is_labelled: bool) {
        let Some(hub) = self.hubs.get(&peer) else { return };
        if is_labelled {
            self.labelled.insert(peer);
        } else if self.labelled.remove(&peer) {
            // What came by the hub since it labels no more may have been the peer's.
            for known in self.known.values_mut().filter(|known| known.location == peer) {
                known.rival.take_if(|rival| rival.location == *hub);
            }
        }
    }

    /// Every address at each location that frames to it go to, in no order.
    pub fn entries(&self, now_ns: u64) -> impl Iterator<Item = LearnedAddress> {
        let fresh = self.known.iter().filter(move |(_, known)| self.is_fresh(known, now_ns));
        fresh.flat_map(move |(key, known)| {
            let whereabouts = known.whereabouts(self.settings.doubt_ns, now_ns);
            let rival = known.rival.as_ref().map(|rival| (rival.location, &rival.seen_ns));
            let used = [Some((known.location, &known.seen_ns)), rival].into_iter().flatten();
            let shown = used.filter(move |(location, _)| match whereabouts {
                Whereabouts::At(at) => at == *location,
                Whereabouts::Either(..) | Whereabouts::Anywhere => true,
            });
            shown.map(move |(location, seen_ns)| LearnedAddress {
                vlan: key.vlan,
                mac: key.mac,
                location,
                age_ns: now_ns.saturating_sub(seen_ns.load(Relaxed)),
                contested: !matches!(whereabouts, Whereabouts::At(_)),
            })
        })
    }

    /// Every multicast group at each location with members of it, and the group of all hosts where
    /// a querier is, in no order; the age is the time since the last report or query.
    pub fn groups(&self, now_ns: u64) -> impl Iterator<Item = LearnedAddress> {
        self.groups.entries(now_ns)
    }

    fn insert(&mut self, key: AddressKey, location: Location, now_ns: u64) {
        let taken = self.locations.get(&location).map_or(0, |entry| entry.keys.len());
        if taken >= self.settings.entries_per_location.max(1) {
            self.displace(location);
        } else if self.known.len() >= self.settings.entries.max(1)
            && let Some(largest) = self.largest_location()
        {
            self.displace(largest);
        }
        let keys = &mut self.locations.entry(location).or_default().keys;
        let index = keys.len();
        keys.push(key);
        self.known.insert(key, LearnedEntry::new(location, index, now_ns));
    }

    fn largest_location(&self) -> Option<Location> {
        let largest = self.locations.iter().max_by_key(|(_, entry)| entry.keys.len());
        largest.map(|(location, _)| *location)
    }

    /// Removes the oldest of a sample of a location's entries.
    fn displace(&mut self, location: Location) {
        let Some(LocationEntry { keys, .. }) = self.locations.get(&location) else { return };
        if keys.is_empty() {
            return;
        }
        let begin = if keys.len() > SAMPLE { fastrand::usize(..keys.len()) } else { 0 };
        let oldest = (0..SAMPLE.min(keys.len()))
            .map(|step| keys[(begin + step) % keys.len()])
            .min_by_key(|key| self.known.get(key).map(|known| known.newest_ns()));
        if let Some(key) = oldest {
            self.remove(key);
        }
    }

    fn remove(&mut self, key: AddressKey) {
        if let Some(known) = self.known.remove(&key) {
            self.unlist(known.location, known.index);
        }
    }

    /// Moves a known key to another location, which alone has it from now on.
    fn relist(&mut self, key: AddressKey, to: Location, now_ns: u64) {
        self.remove(key);
        self.insert(key, to, now_ns);
    }

    /// Takes a key off a location's list; the last one takes its position.
    fn unlist(&mut self, location: Location, index: usize) {
        let Some(LocationEntry { keys, .. }) = self.locations.get_mut(&location) else { return };
        keys.swap_remove(index);
        if let Some(known) = keys.get(index).and_then(|moved| self.known.get_mut(moved)) {
            known.index = index;
        }
    }
}
