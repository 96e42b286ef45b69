//! The learned addresses, each VLAN's for itself.
//!
//! Frames from an address make and move its entry, which expires when none came for a while.
//! Expired entries are removed when others need their room. A frame refreshes its entry with shared
//! access only, at most once a second, so that only new addresses and moves write to a table behind
//! a read-write lock.
//!
//! The table is bounded, and so is each location in it: a location that is full gives up one of its
//! own entries, a full table one of the location that has most. A flood of invented addresses thus
//! pushes out none of another location's. Which entry goes is decided by a sample, its oldest:
//! finding the oldest of all would make such a flood expensive.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::frame_addresses::FrameAddresses;
use super::location::{DropReason, ForwardingDecision, Location};
use super::mac::Mac;

const SECOND_NS: u64 = 1_000_000_000;
/// Entries of which the oldest gives way.
const SAMPLE: usize = 16;

#[derive(Clone, Copy, Debug)]
pub struct TableSettings {
    /// How long an address is known without a frame from it.
    pub ageing_ns: u64,
    /// Entries in all.
    pub entries: usize,
    /// Entries of one location.
    pub entries_per_location: usize,
    /// Moves of an address within a second that are believed.
    pub moves_per_second: u32,
    /// How long an address that moved more often stays where it was before.
    pub hold_ns: u64,
}

impl Default for TableSettings {
    fn default() -> Self {
        Self {
            ageing_ns: 300 * SECOND_NS,
            entries: 8192,
            entries_per_location: 2048,
            moves_per_second: 4,
            hold_ns: 10 * SECOND_NS,
        }
    }
}

/// An address as it is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LearnedAddress {
    pub vlan: u16,
    pub mac: Mac,
    pub location: Location,
    pub age_ns: u64,
    pub held: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct AddressKey {
    mac: Mac,
    vlan: u16,
}

#[derive(Debug)]
struct LearnedEntry {
    location: Location,
    /// Where its key stands in the location's list.
    index: usize,
    seen_ns: AtomicU64,
    moves: u32,
    /// Since when `moves` is counted, and where the address was until then.
    moves_since_ns: u64,
    home: Location,
    held_until_ns: u64,
}

#[derive(Debug)]
pub struct Table {
    settings: TableSettings,
    known: HashMap<AddressKey, LearnedEntry>,
    /// The keys of each location, in no order. There are as many as ports and peers.
    locations: HashMap<Location, Vec<AddressKey>>,
}

impl Table {
    pub fn new(settings: TableSettings) -> Self {
        Self { settings, known: HashMap::new(), locations: HashMap::new() }
    }

    /// Where an address is, if it is known and not too old.
    pub fn lookup(&self, vlan: u16, mac: Mac, now_ns: u64) -> Option<Location> {
        let known = self.known.get(&AddressKey { mac, vlan })?;
        self.is_fresh(known, now_ns).then_some(known.location)
    }

    fn is_fresh(&self, known: &LearnedEntry, now_ns: u64) -> bool {
        let age_ns = now_ns.saturating_sub(known.seen_ns.load(Ordering::Relaxed));
        age_ns <= self.settings.ageing_ns
    }

    /// Notes a frame from a known address; `false` if [`Self::learn`] has something to do.
    pub fn confirm(&self, vlan: u16, mac: Mac, location: Location, now_ns: u64) -> bool {
        let Some(known) = self.known.get(&AddressKey { mac, vlan }) else { return false };
        if known.location != location || !self.is_fresh(known, now_ns) {
            return false;
        }
        // Not at every frame, since other cores read it.
        if now_ns.saturating_sub(known.seen_ns.load(Ordering::Relaxed)) >= SECOND_NS {
            known.seen_ns.store(now_ns, Ordering::Relaxed);
        }
        true
    }

    /// Learns from a frame; the reason if the frame is not to be believed, and therefore dropped.
    pub fn learn(
        &mut self,
        vlan: u16,
        mac: Mac,
        location: Location,
        now_ns: u64,
    ) -> Result<(), DropReason> {
        if mac.is_group() || mac.0 == [0; 6] {
            return Err(DropReason::BadSource);
        }
        let key = AddressKey { mac, vlan };
        let Some(known) = self.known.get_mut(&key) else {
            self.insert(key, location, now_ns);
            return Ok(());
        };
        if known.location != location {
            if now_ns < known.held_until_ns {
                return Err(DropReason::Flapping);
            }
            if now_ns.saturating_sub(known.moves_since_ns) >= SECOND_NS {
                (known.moves, known.moves_since_ns) = (0, now_ns);
                known.home = known.location;
            }
            if known.moves >= self.settings.moves_per_second {
                known.held_until_ns = now_ns.saturating_add(self.settings.hold_ns);
                known.moves = 0;
                // In a loop the first location is the right one: the copies come later.
                let home = known.home;
                if known.location != home {
                    self.relist(key, home);
                }
                if location != home {
                    return Err(DropReason::Flapping);
                }
            } else {
                known.moves += 1;
                self.relist(key, location);
            }
        }
        if let Some(known) = self.known.get(&key) {
            known.seen_ns.store(now_ns, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Everything that is known and not too old, in no order.
    pub fn entries(&self, now_ns: u64) -> impl Iterator<Item = LearnedAddress> {
        self.known.iter().filter(move |(_, known)| self.is_fresh(known, now_ns)).map(
            move |(key, known)| LearnedAddress {
                vlan: key.vlan,
                mac: key.mac,
                location: known.location,
                age_ns: now_ns.saturating_sub(known.seen_ns.load(Ordering::Relaxed)),
                held: now_ns < known.held_until_ns,
            },
        )
    }

    /// Where a frame goes whose source is believed.
    pub fn decide(
        &self,
        addresses: &FrameAddresses,
        from: Location,
        now_ns: u64,
    ) -> ForwardingDecision {
        if addresses.destination.is_control() {
            return ForwardingDecision::Drop(DropReason::Control);
        }
        if addresses.destination.is_group() {
            return ForwardingDecision::Flood;
        }
        match self.lookup(addresses.vlan, addresses.destination, now_ns) {
            None => ForwardingDecision::Flood,
            Some(to) if to == from => ForwardingDecision::Drop(DropReason::SameLocation),
            Some(to) if !from.reaches(to) => ForwardingDecision::Drop(DropReason::SplitHorizon),
            Some(to) => ForwardingDecision::To(to),
        }
    }

    fn insert(&mut self, key: AddressKey, location: Location, now_ns: u64) {
        if self.locations.get(&location).map_or(0, Vec::len)
            >= self.settings.entries_per_location.max(1)
        {
            self.displace(location);
        } else if self.known.len() >= self.settings.entries.max(1)
            && let Some(largest) = self.largest_place()
        {
            self.displace(largest);
        }
        let keys = self.locations.entry(location).or_default();
        let index = keys.len();
        keys.push(key);
        self.known.insert(
            key,
            LearnedEntry {
                location,
                index,
                seen_ns: AtomicU64::new(now_ns),
                moves: 0,
                moves_since_ns: now_ns,
                home: location,
                held_until_ns: 0,
            },
        );
    }

    fn largest_place(&self) -> Option<Location> {
        self.locations.iter().max_by_key(|(_, keys)| keys.len()).map(|(location, _)| *location)
    }

    /// Removes the oldest of a sample of a location's entries.
    fn displace(&mut self, location: Location) {
        let Some(keys) = self.locations.get(&location).filter(|keys| !keys.is_empty()) else {
            return;
        };
        let begin = if keys.len() > SAMPLE { fastrand::usize(..keys.len()) } else { 0 };
        let oldest =
            (0..SAMPLE.min(keys.len())).map(|step| keys[(begin + step) % keys.len()]).min_by_key(
                |key| self.known.get(key).map(|known| known.seen_ns.load(Ordering::Relaxed)),
            );
        if let Some(key) = oldest {
            self.remove(key);
        }
    }

    fn remove(&mut self, key: AddressKey) {
        if let Some(known) = self.known.remove(&key) {
            self.unlist(known.location, known.index);
        }
    }

    /// Puts a known key on another location's list.
    fn relist(&mut self, key: AddressKey, to: Location) {
        let Some((location, index)) =
            self.known.get(&key).map(|known| (known.location, known.index))
        else {
            return;
        };
        self.unlist(location, index);
        if self.locations.get(&to).map_or(0, Vec::len) >= self.settings.entries_per_location.max(1)
        {
            self.displace(to);
        }
        let keys = self.locations.entry(to).or_default();
        keys.push(key);
        if let Some(known) = self.known.get_mut(&key) {
            (known.location, known.index) = (to, keys.len() - 1);
        }
    }

    /// Takes a key off a location's list; the last one takes its position.
    fn unlist(&mut self, location: Location, index: usize) {
        let Some(keys) = self.locations.get_mut(&location) else { return };
        keys.swap_remove(index);
        if let Some(known) = keys.get(index).and_then(|moved| self.known.get_mut(moved)) {
            known.index = index;
        }
        if keys.is_empty() {
            self.locations.remove(&location);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PORT: Location = Location::Port(1);
    const OTHER: Location = Location::Port(2);
    const PEER: Location = Location::Peer(1);

    fn mac(number: u32) -> Mac {
        let [a, b, c, d] = number.to_be_bytes();
        Mac([2, 0, a, b, c, d])
    }

    fn table() -> Table {
        Table::new(TableSettings::default())
    }

    fn addresses(destination: Mac) -> FrameAddresses {
        FrameAddresses { destination, source: mac(99), vlan: 0 }
    }

    #[test]
    fn vlans_learn_for_themselves() {
        let mut table = table();
        assert_eq!(table.learn(1, mac(1), PORT, 0), Ok(()));
        assert_eq!(table.learn(2, mac(1), PEER, 0), Ok(()));
        assert_eq!(table.lookup(1, mac(1), 0), Some(PORT));
        assert_eq!(table.lookup(2, mac(1), 0), Some(PEER));
        assert_eq!(table.lookup(0, mac(1), 0), None);
    }

    #[test]
    fn an_address_is_forgotten_when_it_is_silent() {
        let mut table = table();
        let ageing = TableSettings::default().ageing_ns;
        assert_eq!(table.learn(0, mac(1), PORT, 0), Ok(()));
        assert!(table.confirm(0, mac(1), PORT, ageing));
        assert_eq!(table.lookup(0, mac(1), 2 * ageing), Some(PORT));
        assert_eq!(table.lookup(0, mac(1), 2 * ageing + 1), None);
        assert!(!table.confirm(0, mac(1), PORT, 2 * ageing + 1));
        assert_eq!(table.entries(2 * ageing + 1).count(), 0);
    }

    #[test]
    fn nothing_goes_back_or_from_peer_to_peer() {
        let mut table = table();
        assert_eq!(table.learn(0, mac(1), PORT, 0), Ok(()));
        assert_eq!(table.learn(0, mac(2), PEER, 0), Ok(()));
        let decide = |to: u32, from| table.decide(&addresses(mac(to)), from, 0);
        assert_eq!(decide(1, PEER), ForwardingDecision::To(PORT));
        assert_eq!(decide(1, OTHER), ForwardingDecision::To(PORT));
        assert_eq!(decide(2, PORT), ForwardingDecision::To(PEER));
        assert_eq!(decide(1, PORT), ForwardingDecision::Drop(DropReason::SameLocation));
        assert_eq!(
            decide(2, Location::Peer(2)),
            ForwardingDecision::Drop(DropReason::SplitHorizon)
        );
        assert_eq!(decide(3, PORT), ForwardingDecision::Flood);
        assert!(!PEER.reaches(Location::Peer(2)) && !PORT.reaches(PORT));
        assert!(PEER.reaches(PORT) && PORT.reaches(PEER) && PORT.reaches(OTHER));
    }

    #[test]
    fn groups_are_flooded_and_control_is_not() {
        let table = table();
        assert_eq!(table.decide(&addresses(Mac([0xff; 6])), PORT, 0), ForwardingDecision::Flood);
        assert_eq!(
            table.decide(&addresses(Mac([0x33, 0x33, 0, 0, 0, 1])), PEER, 0),
            ForwardingDecision::Flood
        );
        let stp = Mac([1, 0x80, 0xc2, 0, 0, 0]);
        assert_eq!(
            table.decide(&addresses(stp), PORT, 0),
            ForwardingDecision::Drop(DropReason::Control)
        );
    }

    #[test]
    fn a_group_address_is_never_learned() {
        let mut table = table();
        for source in [Mac([0xff; 6]), Mac([1, 2, 3, 4, 5, 6]), Mac([0; 6])] {
            assert_eq!(table.learn(0, source, PORT, 0), Err(DropReason::BadSource));
        }
        assert!(table.known.is_empty());
    }

    #[test]
    fn a_flood_from_one_place_pushes_out_its_own_only() {
        let settings =
            TableSettings { entries: 100, entries_per_location: 60, ..TableSettings::default() };
        let mut table = Table::new(settings);
        for number in 0..40 {
            assert_eq!(table.learn(0, mac(number), PORT, 0), Ok(()));
        }
        for number in 0..10_000 {
            assert_eq!(table.learn(0, mac(1000 + number), PEER, 1 + u64::from(number)), Ok(()));
        }
        assert_eq!(table.known.len(), 100);
        for number in 0..40 {
            assert_eq!(table.lookup(0, mac(number), 0), Some(PORT), "address {number}");
        }
        // A third location still finds room, taken from who has most.
        assert_eq!(table.learn(0, mac(77), OTHER, 20_000), Ok(()));
        assert_eq!(table.lookup(0, mac(77), 20_000), Some(OTHER));
        assert_eq!(table.locations[&PORT].len(), 40);
        assert_eq!(table.known.len(), 100);
    }

    #[test]
    fn the_oldest_gives_way() {
        let mut table =
            Table::new(TableSettings { entries_per_location: 3, ..TableSettings::default() });
        for (number, now) in [(1, 0), (2, 1), (3, 2)] {
            assert_eq!(table.learn(0, mac(number), PORT, now), Ok(()));
        }
        assert!(table.confirm(0, mac(1), PORT, SECOND_NS));
        assert_eq!(table.learn(0, mac(4), PORT, SECOND_NS), Ok(()));
        let known = [1, 2, 3, 4].map(|number| table.lookup(0, mac(number), SECOND_NS).is_some());
        assert_eq!(known, [true, false, true, true]);
    }

    #[test]
    fn an_address_that_keeps_moving_is_held() {
        let mut table = table();
        assert_eq!(table.learn(0, mac(1), PORT, 0), Ok(()));
        let mut believed = 0;
        for now in 1..100 {
            let location = if now % 2 == 0 { PORT } else { PEER };
            let before = table.lookup(0, mac(1), now);
            match table.learn(0, mac(1), location, now) {
                Ok(()) => believed += u32::from(before != Some(location)),
                Err(reason) => assert_eq!(reason, DropReason::Flapping),
            }
        }
        assert_eq!(believed, TableSettings::default().moves_per_second);
        assert!(table.entries(100).all(|entry| entry.held));
        // Where it is held it is believed; afterwards it may move again.
        assert_eq!(table.lookup(0, mac(1), 100), Some(PORT));
        assert_eq!(table.learn(0, mac(1), PORT, 100), Ok(()));
        let later = 100 + TableSettings::default().hold_ns;
        assert_eq!(table.learn(0, mac(1), PEER, later), Ok(()));
        assert_eq!(table.lookup(0, mac(1), later), Some(PEER));
    }

    #[test]
    fn an_address_is_held_where_it_was_before_it_began_to_move() {
        for moves_per_second in 1..6 {
            let mut table =
                Table::new(TableSettings { moves_per_second, ..TableSettings::default() });
            assert_eq!(table.learn(0, mac(1), PORT, 0), Ok(()));
            for now in 1..20 {
                let _ = table.learn(0, mac(1), if now % 2 == 0 { PORT } else { PEER }, now);
            }
            assert_eq!(table.lookup(0, mac(1), 20), Some(PORT), "{moves_per_second} moves");
            assert_eq!(table.entries(20).filter(|entry| entry.held).count(), 1);
        }
    }

    #[test]
    fn a_vm_that_migrates_is_found_at_once() {
        let mut table = table();
        assert_eq!(table.learn(0, mac(1), PORT, 0), Ok(()));
        assert!(!table.confirm(0, mac(1), PEER, 1));
        assert_eq!(table.learn(0, mac(1), PEER, 1), Ok(()));
        assert_eq!(table.lookup(0, mac(1), 1), Some(PEER));
    }

    proptest! {
        #[test]
        fn lists_and_entries_agree_whatever_happens(
            steps in proptest::collection::vec((0..4u8, 0..40u32, 0..5u16, 0..400u64), 1..400),
        ) {
            let settings = TableSettings::default();
            let settings = TableSettings { entries: 20, entries_per_location: 8, ..settings };
            let mut table = Table::new(settings);
            let mut now = 0;
            for (step, number, at, seconds) in steps {
                let location = if at < 3 { Location::Port(at) } else { Location::Peer(at) };
                now += seconds * SECOND_NS / 20;
                match step {
                    0..=2 => { let _ = table.learn(0, mac(number), location, now); }
                    _ => { table.confirm(0, mac(number), location, now); }
                }
                prop_assert!(table.known.len() <= 20);
                let listed: usize = table.locations.values().map(Vec::len).sum();
                prop_assert_eq!(listed, table.known.len());
                for (location, keys) in &table.locations {
                    prop_assert!(!keys.is_empty() && keys.len() <= 8);
                    for (index, key) in keys.iter().enumerate() {
                        let known = &table.known[key];
                        prop_assert_eq!((known.location, known.index), (*location, index));
                    }
                }
            }
        }
    }
}
