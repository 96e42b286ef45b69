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
//! | a third location beside two such | all locations (flood) |
//!
//! Frames from the address are forwarded from each of them, and none is dropped for its source.
//! What could keep a loop going is bounded: a frame that is copied, and whose source address
//! entered the table at another location that still uses it, counts towards a rate
//! ([`TableSettings::copies_per_second`]).
//!
//! # Bounds
//! The table is bounded, and so is each location in it: a location that is full gives up one of its
//! own entries, a full table one of the location that has most. A flood of invented addresses thus
//! pushes out none of another location's. Which entry goes is decided by a sample, its oldest:
//! finding the oldest of all would make such a flood expensive.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::frame_addresses::FrameAddresses;
use super::location::{DropReason, ForwardingDecision, Location};
use super::mac::Mac;

const SECOND_NS: u64 = 1_000_000_000;
/// Entries of which the oldest gives way.
const SAMPLE: usize = 16;

/// How often `seen_ns` is written at most: other cores read it.
const REFRESH_NS: u64 = SECOND_NS / 4;
/// Copies that a doubtful source may have at once.
const COPIES_BURST: u64 = 10;

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
}

impl Default for TableSettings {
    fn default() -> Self {
        Self {
            ageing_ns: 300 * SECOND_NS,
            entries: 8192,
            entries_per_location: 2048,
            doubt_ns: 2 * SECOND_NS,
            copies_per_second: 100,
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

/// An address at a location, as it is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LearnedAddress {
    pub vlan: u16,
    pub mac: Mac,
    pub location: Location,
    pub age_ns: u64,
    /// Another location uses it, too.
    pub contested: bool,
}

/// State of the location that a frame came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
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
    /// Where its key stands in the location's list.
    index: usize,
    seen_ns: AtomicU64,
    rival: Option<Rival>,
    /// Until when more than two locations use the address.
    crowded_until_ns: u64,
    /// When the copies so far are paid for, at the rate that is allowed (GCRA).
    copies_paid_ns: AtomicU64,
}

impl LearnedEntry {
    fn new(location: Location, index: usize, now_ns: u64) -> Self {
        Self {
            location,
            index,
            seen_ns: AtomicU64::new(now_ns),
            rival: None,
            crowded_until_ns: 0,
            copies_paid_ns: AtomicU64::new(0),
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
    /// The keys of each location, in no order. There are as many as ports and peers.
    locations: HashMap<Location, Vec<AddressKey>>,
}

impl Table {
    pub fn new(settings: TableSettings) -> Self {
        Self { settings, known: HashMap::new(), fixed: HashMap::new(), locations: HashMap::new() }
    }

    /// How long an address is known without a frame from it, from now on.
    pub fn set_ageing(&mut self, ageing_ns: u64) {
        self.settings.ageing_ns = ageing_ns;
    }

    /// Gives an address to a location, in all VLANs: frames from it are believed there only.
    pub fn fix(&mut self, mac: Mac, location: Location) {
        self.fixed.insert(mac, location);
    }

    /// Takes all such addresses from a location again.
    pub fn unfix(&mut self, location: Location) {
        self.fixed.retain(|_, fixed| *fixed != location);
    }

    /// A location is no more: its addresses are learned anew elsewhere.
    pub fn forget(&mut self, location: Location) {
        self.unfix(location);
        for key in self.locations.get(&location).cloned().unwrap_or_default() {
            self.remove(key);
        }
        for known in self.known.values_mut() {
            known.rival.take_if(|rival| rival.location == location);
        }
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
    pub fn confirm(&self, vlan: u16, mac: Mac, from: Location, now_ns: u64) -> Option<Source> {
        let known = self.known.get(&AddressKey { mac, vlan })?;
        if !self.is_fresh(known, now_ns) {
            return None;
        }
        let own_age_ns = now_ns.saturating_sub(known.seen_ns.load(Relaxed));
        let (seen_ns, source) = match &known.rival {
            _ if known.location == from => (&known.seen_ns, Source::Settled),
            Some(rival) if rival.location == from && own_age_ns <= self.settings.doubt_ns => {
                (&rival.seen_ns, Source::Doubtful)
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
    ) -> Result<Source, DropReason> {
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
            return Ok(Source::Settled);
        };
        let is_in_use = |seen_ns: u64| now_ns.saturating_sub(seen_ns) <= doubt_ns;
        if known.location == from {
            known.seen_ns.store(now_ns, Relaxed);
            return Ok(Source::Settled);
        }
        if !is_in_use(known.seen_ns.load(Relaxed)) {
            self.relist(key, from, now_ns);
            return Ok(Source::Settled);
        }
        if let Some(rival) = &known.rival
            && rival.location != from
            && is_in_use(rival.seen_ns.load(Relaxed))
        {
            known.crowded_until_ns = now_ns.saturating_add(doubt_ns);
        }
        known.rival = Some(Rival { location: from, seen_ns: AtomicU64::new(now_ns) });
        Ok(Source::Doubtful)
    }

    /// Where a frame goes. `source` is what [`Self::confirm`] or [`Self::learn`] said of it.
    pub fn decide(
        &self,
        addresses: &FrameAddresses,
        from: Location,
        source: Source,
        now_ns: u64,
    ) -> ForwardingDecision {
        if addresses.destination.is_control() {
            return ForwardingDecision::Drop(DropReason::Control);
        }
        let to = if addresses.destination.is_group() {
            Whereabouts::Anywhere
        } else {
            let known = self.lookup(addresses.vlan, addresses.destination, now_ns);
            known.unwrap_or(Whereabouts::Anywhere)
        };
        if let Whereabouts::At(to) = to {
            return Self::to_one(from, to);
        }
        if source == Source::Doubtful && !self.may_copy(addresses, now_ns) {
            return ForwardingDecision::Drop(DropReason::Loop);
        }
        match to {
            Whereabouts::Either(a, b) if from.reaches(a) && from.reaches(b) => {
                ForwardingDecision::Both(a, b)
            }
            Whereabouts::Either(a, b) => Self::to_one(from, if from.reaches(a) { a } else { b }),
            _ => ForwardingDecision::Flood,
        }
    }

    fn to_one(from: Location, to: Location) -> ForwardingDecision {
        if to == from {
            ForwardingDecision::Drop(DropReason::SameLocation)
        } else if !from.reaches(to) {
            ForwardingDecision::Drop(DropReason::SplitHorizon)
        } else {
            ForwardingDecision::To(to)
        }
    }

    /// Takes one copy from what a doubtful source may have; `false` if nothing is left.
    fn may_copy(&self, addresses: &FrameAddresses, now_ns: u64) -> bool {
        let key = AddressKey { mac: addresses.source, vlan: addresses.vlan };
        let Some(known) = self.known.get(&key) else { return true };
        let each_ns = SECOND_NS / self.settings.copies_per_second.max(1);
        let paid_ns = known.copies_paid_ns.load(Relaxed).max(now_ns);
        let is_allowed = paid_ns - now_ns < COPIES_BURST * each_ns;
        if is_allowed {
            known.copies_paid_ns.store(paid_ns + each_ns, Relaxed);
        }
        is_allowed
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

    fn insert(&mut self, key: AddressKey, location: Location, now_ns: u64) {
        if self.locations.get(&location).map_or(0, Vec::len)
            >= self.settings.entries_per_location.max(1)
        {
            self.displace(location);
        } else if self.known.len() >= self.settings.entries.max(1)
            && let Some(largest) = self.largest_location()
        {
            self.displace(largest);
        }
        let keys = self.locations.entry(location).or_default();
        let index = keys.len();
        keys.push(key);
        self.known.insert(key, LearnedEntry::new(location, index, now_ns));
    }

    fn largest_location(&self) -> Option<Location> {
        self.locations.iter().max_by_key(|(_, keys)| keys.len()).map(|(location, _)| *location)
    }

    /// Removes the oldest of a sample of a location's entries.
    fn displace(&mut self, location: Location) {
        let Some(keys) = self.locations.get(&location).filter(|keys| !keys.is_empty()) else {
            return;
        };
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
    use super::Whereabouts::{Anywhere, At, Either};
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
        assert_eq!(table.learn(1, mac(1), PORT, 0), Ok(Source::Settled));
        assert_eq!(table.learn(2, mac(1), PEER, 0), Ok(Source::Settled));
        assert_eq!(table.lookup(1, mac(1), 0), Some(At(PORT)));
        assert_eq!(table.lookup(2, mac(1), 0), Some(At(PEER)));
        assert_eq!(table.lookup(0, mac(1), 0), None);
    }

    #[test]
    fn an_address_is_forgotten_when_it_is_silent() {
        let mut table = table();
        let ageing = TableSettings::default().ageing_ns;
        assert_eq!(table.learn(0, mac(1), PORT, 0), Ok(Source::Settled));
        assert_eq!(table.confirm(0, mac(1), PORT, ageing), Some(Source::Settled));
        assert_eq!(table.lookup(0, mac(1), 2 * ageing), Some(At(PORT)));
        assert_eq!(table.lookup(0, mac(1), 2 * ageing + 1), None);
        assert_eq!(table.confirm(0, mac(1), PORT, 2 * ageing + 1), None);
    }

    #[test]
    fn nothing_goes_back_or_from_peer_to_peer() {
        let mut table = table();
        assert_eq!(table.learn(0, mac(1), PORT, 0), Ok(Source::Settled));
        assert_eq!(table.learn(0, mac(2), PEER, 0), Ok(Source::Settled));
        let decide = |to: u32, from| table.decide(&addresses(mac(to)), from, Source::Settled, 0);
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
        assert_eq!(
            table.decide(&addresses(Mac([0xff; 6])), PORT, Source::Settled, 0),
            ForwardingDecision::Flood
        );
        assert_eq!(
            table.decide(&addresses(Mac([0x33, 0x33, 0, 0, 0, 1])), PEER, Source::Settled, 0),
            ForwardingDecision::Flood
        );
        let stp = Mac([1, 0x80, 0xc2, 0, 0, 0]);
        assert_eq!(
            table.decide(&addresses(stp), PORT, Source::Settled, 0),
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
            assert_eq!(table.learn(0, mac(number), PORT, 0), Ok(Source::Settled));
        }
        for number in 0..10_000 {
            assert_eq!(
                table.learn(0, mac(1000 + number), PEER, 1 + u64::from(number)),
                Ok(Source::Settled)
            );
        }
        assert_eq!(table.known.len(), 100);
        for number in 0..40 {
            assert_eq!(table.lookup(0, mac(number), 0), Some(At(PORT)), "address {number}");
        }
        // A third location still finds room, taken from who has most.
        assert_eq!(table.learn(0, mac(77), OTHER, 20_000), Ok(Source::Settled));
        assert_eq!(table.lookup(0, mac(77), 20_000), Some(At(OTHER)));
        assert_eq!(table.locations[&PORT].len(), 40);
        assert_eq!(table.known.len(), 100);
    }

    #[test]
    fn the_oldest_gives_way() {
        let mut table =
            Table::new(TableSettings { entries_per_location: 3, ..TableSettings::default() });
        for (number, now) in [(1, 0), (2, 1), (3, 2)] {
            assert_eq!(table.learn(0, mac(number), PORT, now), Ok(Source::Settled));
        }
        assert!(table.confirm(0, mac(1), PORT, SECOND_NS).is_some());
        assert_eq!(table.learn(0, mac(4), PORT, SECOND_NS), Ok(Source::Settled));
        let known = [1, 2, 3, 4].map(|number| table.lookup(0, mac(number), SECOND_NS).is_some());
        assert_eq!(known, [true, false, true, true]);
    }

    const DOUBT: u64 = 2 * SECOND_NS;

    #[test]
    fn a_vm_that_migrates_is_found_at_once_and_alone_a_little_later() {
        let mut table = table();
        assert_eq!(table.learn(0, mac(1), PORT, 0), Ok(Source::Settled));
        assert_eq!(table.confirm(0, mac(1), PEER, 1), None);
        assert_eq!(table.learn(0, mac(1), PEER, 1), Ok(Source::Doubtful));
        assert_eq!(table.lookup(0, mac(1), 1), Some(Either(PORT, PEER)));
        assert_eq!(table.entries(1).filter(|entry| entry.contested).count(), 2);
        assert_eq!(table.confirm(0, mac(1), PEER, DOUBT), Some(Source::Doubtful));
        let later = DOUBT + 1;
        assert_eq!(table.confirm(0, mac(1), PEER, later), None, "it is to be moved");
        assert_eq!(table.learn(0, mac(1), PEER, later), Ok(Source::Settled));
        assert_eq!(table.lookup(0, mac(1), later), Some(At(PEER)));
        assert_eq!(table.entries(later).filter(|entry| !entry.contested).count(), 1);
    }

    #[test]
    fn a_move_after_silence_is_believed_like_a_bridge_believes_it() {
        let mut table = table();
        assert_eq!(table.learn(0, mac(1), PORT, 0), Ok(Source::Settled));
        assert_eq!(table.learn(0, mac(1), PEER, DOUBT + 1), Ok(Source::Settled));
        assert_eq!(table.lookup(0, mac(1), DOUBT + 1), Some(At(PEER)));
    }

    /// The owner sends 100 frames a second, the other host forges one at the worst moments: when
    /// the owner's entry is about to be refreshed, and often.
    #[test]
    fn forged_frames_take_nothing_from_the_owner() {
        let mut table = table();
        let mut now = 0;
        for step in 0..12_000u64 {
            now += SECOND_NS / 100;
            let from_owner = addresses(mac(7));
            let source = match table.confirm(0, mac(1), PORT, now) {
                Some(source) => source,
                None => table.learn(0, mac(1), PORT, now).expect("an address"),
            };
            let from_owner = FrameAddresses { source: mac(1), ..from_owner };
            let decision = table.decide(&from_owner, PORT, source, now);
            assert_eq!(decision, ForwardingDecision::Flood, "frame {step} of the owner");
            if step % 100 < 3 && table.confirm(0, mac(1), PEER, now).is_none() {
                let _ = table.learn(0, mac(1), PEER, now);
            }
            match table.lookup(0, mac(1), now + 1) {
                Some(At(PORT) | Either(PORT, PEER)) => {}
                other => panic!("step {step}: frames to the owner go to {other:?}"),
            }
        }
    }

    #[test]
    fn a_location_that_is_forgotten_has_no_address_any_more() {
        let mut table = table();
        table.fix(mac(3), PEER);
        let in_use =
            |table: &mut Table, number, from| table.learn(0, mac(number), from, 0).unwrap();
        in_use(&mut table, 1, PEER);
        in_use(&mut table, 2, PORT);
        in_use(&mut table, 2, PEER);
        table.forget(PEER);
        assert_eq!(
            [1, 2, 3].map(|number| table.lookup(0, mac(number), 0)),
            [None, Some(At(PORT)), None]
        );
        assert!(table.entries(0).all(|entry| entry.location == PORT && !entry.contested));
    }

    #[test]
    fn a_fixed_address_is_believed_at_its_port_only() {
        let mut table = table();
        table.fix(mac(1), PORT);
        assert_eq!(table.learn(0, mac(1), PEER, 0), Err(DropReason::Forged));
        assert_eq!(table.learn(0, mac(1), PORT, 1), Ok(Source::Settled));
        assert_eq!(table.confirm(0, mac(1), PEER, 2), None);
        assert_eq!(table.learn(0, mac(1), PEER, 2), Err(DropReason::Forged));
        for vlan in [0, 7] {
            assert_eq!(table.lookup(vlan, mac(1), u64::MAX), Some(At(PORT)));
        }
    }

    #[test]
    fn a_third_location_makes_it_a_flood_until_it_is_silent() {
        let mut table = table();
        for (location, now) in [(PORT, 0), (PEER, 1), (OTHER, 2)] {
            let _ = table.learn(0, mac(1), location, now);
        }
        assert_eq!(table.lookup(0, mac(1), 2), Some(Anywhere));
        assert_eq!(table.confirm(0, mac(1), PORT, DOUBT + 3), Some(Source::Settled));
        assert_eq!(table.lookup(0, mac(1), DOUBT + 3), Some(At(PORT)));
    }

    #[test]
    fn frames_to_a_doubtful_address_go_where_they_may() {
        let mut table = table();
        for (location, now) in [(PORT, 0), (PEER, 1)] {
            let _ = table.learn(0, mac(1), location, now);
        }
        let decide = |from| table.decide(&addresses(mac(1)), from, Source::Settled, 2);
        assert_eq!(decide(OTHER), ForwardingDecision::Both(PORT, PEER));
        assert_eq!(decide(PORT), ForwardingDecision::To(PEER));
        assert_eq!(decide(PEER), ForwardingDecision::To(PORT));
        assert_eq!(decide(Location::Peer(2)), ForwardingDecision::To(PORT));
    }

    #[test]
    fn copies_of_a_doubtful_source_are_bounded() {
        let mut table = table();
        let group = FrameAddresses { destination: Mac([0xff; 6]), source: mac(1), vlan: 0 };
        let _ = table.learn(0, mac(1), PORT, 0);
        let mut flooded = 0;
        for now in (0..10 * SECOND_NS).step_by(1_000_000) {
            let _ = table.confirm(0, mac(1), PORT, now);
            let source = match table.confirm(0, mac(1), PEER, now) {
                Some(source) => source,
                None => table.learn(0, mac(1), PEER, now).expect("an address"),
            };
            let decision = table.decide(&group, PEER, source, now);
            flooded += u64::from(decision == ForwardingDecision::Flood);
            let settled = table.decide(&group, PORT, Source::Settled, now);
            assert_eq!(settled, ForwardingDecision::Flood);
        }
        assert!((1000..=1000 + COPIES_BURST).contains(&flooded), "{flooded} in 10 s");
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
