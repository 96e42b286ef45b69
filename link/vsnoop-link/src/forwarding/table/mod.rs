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
//! The table is bounded. Addresses that have proved themselves give way to no others than such
//! ([`room`]), and a port may have a quota of its own. What an address is fixed to, and who else
//! uses it, is noted.

mod decision;
mod entry;
mod fixed;
mod room;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

pub use self::entry::Whereabouts;
use self::entry::{AddressKey, Contest, LearnedEntry, SECOND_NS};
use self::fixed::FixedAddresses;
pub use self::fixed::FixedElsewhere;
pub use self::room::Room;
use super::groups::Groups;
use super::location::{DropReason, LearnedAddress, Location, Scope};
use super::mac::Mac;
use crate::rate::Rate;
use crate::slots::PeerSlot;

/// How often `seen_ns` is written at most: other cores read it.
const REFRESH_NS: u64 = SECOND_NS / 4;
#[derive(Clone, Copy, Debug)]
pub struct TableSettings {
    /// How long an address is known without a frame from it.
    pub ageing_ns: u64,
    /// Entries in all: some 100 bytes each.
    pub entries: usize,
    /// How long a location that used an address is believed to have it, beside another.
    pub doubt_ns: u64,
    /// Frames of a doubtful source that are copied, per address and second.
    pub copies_per_second: u64,
    /// Frames to all peers, per address and second, and as many at once; 0: any number.
    pub floods_per_second: u64,
    /// Whether bridges behind locations make one spanning tree: BPDUs pass.
    pub passes_bpdus: bool,
}

impl Default for TableSettings {
    fn default() -> Self {
        Self {
            ageing_ns: 300 * SECOND_NS,
            entries: 100_000,
            doubt_ns: 2 * SECOND_NS,
            copies_per_second: 100,
            floods_per_second: 1000,
            passes_bpdus: false,
        }
    }
}

/// State of the location that a frame came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourceState {
    /// No other location uses its address, or this one used it first.
    Settled,
    /// Another location has used its address first, and still does.
    Doubtful,
}

/// State of a location.
#[derive(Debug, Default)]
struct LocationEntry {
    /// Its addresses that have not proved themselves, in no order.
    new: Vec<AddressKey>,
    /// Its other addresses, in no order.
    proven: Vec<AddressKey>,
    floods: Rate,
}

#[derive(Debug)]
pub struct Table {
    settings: TableSettings,
    known: HashMap<AddressKey, LearnedEntry>,
    /// Number of proven ones.
    proven: usize,
    /// See [`Room::displaced`].
    displaced: u64,
    /// Addresses that the configuration gives to one location.
    fixed: FixedAddresses,
    /// Addresses that a location may have, where that is bounded.
    quotas: HashMap<Location, usize>,
    /// One entry for each port and peer.
    locations: HashMap<Location, LocationEntry>,
    groups: Groups,
    /// Peers whose frames go to each other.
    relayed: BTreeSet<PeerSlot>,
    /// Peers behind hubs, and their hubs.
    hubs: HashMap<Location, Location>,
    /// Peers behind hubs whose frames the hub labels.
    labelled: HashSet<Location>,
}

impl Table {
    pub fn new(settings: TableSettings) -> Self {
        Self {
            settings,
            known: HashMap::new(),
            proven: 0,
            displaced: 0,
            fixed: FixedAddresses::default(),
            quotas: HashMap::new(),
            locations: HashMap::new(),
            groups: Groups::default(),
            relayed: BTreeSet::new(),
            hubs: HashMap::new(),
            labelled: HashSet::new(),
        }
    }

    /// The peers that are behind hubs from now on, each with its hub.
    pub fn set_hubs(&mut self, hubs: impl IntoIterator<Item = (PeerSlot, PeerSlot)>) {
        let locations = |(peer, hub)| (Location::Peer(peer), Location::Peer(hub));
        let hubs: HashMap<_, _> = hubs.into_iter().map(locations).collect();
        self.labelled.retain(|peer| hubs.get(peer) == self.hubs.get(peer));
        self.hubs = hubs;
    }

    /// The peers whose frames go to each other from now on.
    pub fn set_relayed(&mut self, peers: impl IntoIterator<Item = PeerSlot>) {
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
    pub fn find_relays(&self, from: Location, scope: &Scope) -> Vec<PeerSlot> {
        if !self.is_relayed(from) || *scope == Scope::Ports {
            return Vec::new();
        }
        let gets = |to: Location| to != from && scope.includes(to);
        self.relayed.iter().copied().filter(|peer| gets(Location::Peer(*peer))).collect()
    }

    /// The rules from now on; what was learned stays, as far as there is room.
    pub fn set_settings(&mut self, settings: TableSettings, now_ns: u64) {
        self.settings = settings;
        self.make_room(settings.entries, now_ns);
    }

    /// How many addresses a location may have; what is known of it already stays.
    pub fn set_quota(&mut self, location: Location, addresses: Option<usize>) {
        match addresses {
            Some(addresses) => self.quotas.insert(location, addresses),
            None => self.quotas.remove(&location),
        };
    }

    /// Gives an address to a location, in all VLANs: frames from it are believed there only, also
    /// if it was learned elsewhere before.
    pub fn fix_address(&mut self, mac: Mac, location: Location) {
        self.fixed.insert(mac, location);
        let is_elsewhere = |(key, known): &(&AddressKey, &LearnedEntry)| {
            key.mac == mac && (known.location != location || known.contest.is_some())
        };
        let elsewhere: Vec<_> =
            self.known.iter().filter(is_elsewhere).map(|(key, _)| *key).collect();
        elsewhere.into_iter().for_each(|key| self.remove_address(key));
    }

    /// Takes all such addresses from a location again.
    pub fn unfix_addresses(&mut self, location: Location) {
        self.fixed.remove_location(location);
    }

    /// Addresses that are fixed to a location, and that another one has used since then.
    pub fn fixed_elsewhere(&self, since_ns: u64) -> impl Iterator<Item = FixedElsewhere> {
        self.fixed.list_elsewhere(since_ns)
    }

    /// Removes a location and its addresses, which are learned anew elsewhere.
    pub fn forget_location(&mut self, location: Location) {
        self.unfix_addresses(location);
        self.quotas.remove(&location);
        self.groups.forget_location(location);
        // A hub that comes again does not label at once.
        let hubs = &self.hubs;
        self.labelled.retain(|peer| *peer != location && hubs.get(peer) != Some(&location));
        if let Some(LocationEntry { new, proven, .. }) = self.locations.remove(&location) {
            self.proven -= proven.len();
            for key in new.iter().chain(&proven) {
                self.known.remove(key);
            }
        }
        for known in self.known.values_mut() {
            known.contest.take_if(|contest| contest.rival == location);
        }
    }

    /// A location is reached that was not reached before.
    pub fn note_arrival(&mut self, location: Location, now_ns: u64) {
        self.groups.note_arrival(location, now_ns);
    }

    /// Where an address is, if it is known and not too old.
    pub fn look_up_address(&self, vlan: u16, mac: Mac, now_ns: u64) -> Option<Whereabouts> {
        self.find_entry(vlan, mac, now_ns).map(|(whereabouts, _)| whereabouts)
    }

    fn find_entry(
        &self,
        vlan: u16,
        mac: Mac,
        now_ns: u64,
    ) -> Option<(Whereabouts, Option<&LearnedEntry>)> {
        if let Some(fixed) = self.fixed.find_location(mac) {
            return Some((Whereabouts::At(fixed), None));
        }
        let known = self.known.get(&AddressKey { mac, vlan })?;
        let whereabouts = known.whereabouts(self.settings.doubt_ns, now_ns);
        self.is_fresh(known, now_ns).then_some((whereabouts, Some(known)))
    }

    fn is_fresh(&self, known: &LearnedEntry, now_ns: u64) -> bool {
        now_ns.saturating_sub(known.newest_ns()) <= self.settings.ageing_ns
    }

    /// Notes a frame from a known address; `None` if [`Self::learn_address`] has something to do.
    pub fn confirm_address(
        &self,
        vlan: u16,
        mac: Mac,
        from: Location,
        now_ns: u64,
    ) -> Option<SourceState> {
        let known = self.known.get(&AddressKey { mac, vlan })?;
        if !self.is_fresh(known, now_ns) {
            return None;
        }
        let own_age_ns = now_ns.saturating_sub(known.seen_ns.load(Relaxed));
        let (seen_ns, source) = match &known.contest {
            _ if known.location == from => {
                if known.is_proof_due(now_ns) {
                    return None;
                }
                (&known.seen_ns, SourceState::Settled)
            }
            Some(contest) if contest.rival == from && own_age_ns <= self.settings.doubt_ns => {
                (&contest.seen_ns, SourceState::Doubtful)
            }
            _ => return None,
        };
        if now_ns.saturating_sub(seen_ns.load(Relaxed)) >= REFRESH_NS {
            seen_ns.store(now_ns, Relaxed);
        }
        Some(source)
    }

    /// Learns from a frame; the reason if it has no address to learn, and is therefore dropped.
    pub fn learn_address(
        &mut self,
        vlan: u16,
        mac: Mac,
        from: Location,
        now_ns: u64,
    ) -> Result<SourceState, DropReason> {
        if mac.is_group() || mac.0 == [0; 6] {
            return Err(DropReason::BadSource);
        }
        if !self.fixed.allows_source(mac, from, now_ns) {
            return Err(DropReason::Fixed);
        }
        let key = AddressKey { mac, vlan };
        let doubt_ns = self.settings.doubt_ns;
        let Some(known) = self.known.get_mut(&key) else {
            self.insert_address(key, from, now_ns)?;
            return Ok(SourceState::Settled);
        };
        let is_in_use = |seen_ns: u64| now_ns.saturating_sub(seen_ns) <= doubt_ns;
        if known.location == from {
            known.seen_ns.store(now_ns, Relaxed);
            if known.is_proof_due(now_ns) {
                self.prove_address(key, now_ns);
            }
            return Ok(SourceState::Settled);
        }
        if !is_in_use(known.seen_ns.load(Relaxed)) {
            self.relist_address(key, from, now_ns)?;
            self.groups.note_arrival(from, now_ns);
            return Ok(SourceState::Settled);
        }
        // A hub that does not say so may have relayed it.
        if self.hubs.get(&known.location) == Some(&from) && !self.labelled.contains(&known.location)
        {
            return Ok(SourceState::Settled);
        }
        self.groups.note_arrival(from, now_ns);
        let contest = known.contest.get_or_insert_with(|| Box::new(Contest::new(from, now_ns)));
        if contest.rival != from && is_in_use(contest.seen_ns.load(Relaxed)) {
            contest.crowded_until_ns = now_ns.saturating_add(doubt_ns);
        }
        (contest.rival, contest.seen_ns) = (from, AtomicU64::new(now_ns));
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
                known.contest.take_if(|contest| contest.rival == *hub);
            }
        }
    }

    /// Every address at each location that frames to it go to, in no order.
    pub fn entries(&self, now_ns: u64) -> impl Iterator<Item = LearnedAddress> {
        let fresh = self.known.iter().filter(move |(_, known)| self.is_fresh(known, now_ns));
        fresh.flat_map(move |(key, known)| {
            let whereabouts = known.whereabouts(self.settings.doubt_ns, now_ns);
            let contest = known.contest.as_ref();
            let rival = contest.map(|contest| (contest.rival, &contest.seen_ns));
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
    pub fn group_entries(&self, now_ns: u64) -> impl Iterator<Item = LearnedAddress> {
        self.groups.entries(now_ns)
    }
}
