//! Room in a table, and which address gives way where there is none.
//!
//! | an address | is | and gives way |
//! |---|---|---|
//! | seen once, or for less than two seconds | *new* | to any other new one, the oldest first |
//! | seen for longer, or that has answered a frame | *proven* | never to a new one |
//!
//! So a flood of invented addresses pushes out invented ones. Of a full table the location with
//! most new addresses gives one up, which may be the one that the next address is of. Seven eighths
//! of the table are for proven addresses; beyond, the location with most of them gives one up for a
//! location that has fewer. An address that is too old makes room for any.
//!
//! Which entry goes is decided by a sample, its oldest: finding the oldest of all would make a
//! flood expensive.

use super::entry::{AddressKey, LearnedEntry};
use super::{LocationEntry, Table};
use crate::forwarding::location::{DropReason, Location};

/// Entries of which the oldest gives way.
const SAMPLE: usize = 16;
/// Parts of a table, of which the last is for new addresses.
const PARTS: usize = 8;

/// How full a table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Addresses that it may have.
    pub limit: usize,
    pub addresses: usize,
    /// Addresses that have proved themselves.
    pub proven: usize,
    /// Addresses that gave way to others, and were not too old.
    pub displaced: u64,
    /// The location that has most, and how many.
    pub most: Option<(Location, usize)>,
}

impl LocationEntry {
    pub(super) fn len(&self) -> usize {
        self.new.len() + self.proven.len()
    }

    fn address_list(&mut self, is_proven: bool) -> &mut Vec<AddressKey> {
        if is_proven { &mut self.proven } else { &mut self.new }
    }
}

impl Table {
    /// How full the table is.
    pub fn count_room(&self) -> Room {
        Room {
            limit: self.settings.entries,
            addresses: self.known.len(),
            proven: self.proven,
            displaced: self.displaced,
            most: self.find_largest(LocationEntry::len),
        }
    }

    fn find_largest(&self, size: impl Fn(&LocationEntry) -> usize) -> Option<(Location, usize)> {
        let sizes = self.locations.iter().map(|(location, entry)| (*location, size(entry)));
        sizes.filter(|(_, size)| *size > 0).max_by_key(|(_, size)| *size)
    }

    /// Adds an address; refused beyond the quota of its location.
    pub(super) fn insert_address(
        &mut self,
        key: AddressKey,
        location: Location,
        now_ns: u64,
    ) -> Result<(), DropReason> {
        self.check_quota(location, now_ns)?;
        self.make_room(self.settings.entries.saturating_sub(1), now_ns);
        let new = &mut self.locations.entry(location).or_default().new;
        let index = new.len();
        new.push(key);
        self.known.insert(key, LearnedEntry::new(location, index, now_ns));
        Ok(())
    }

    fn check_quota(&mut self, location: Location, now_ns: u64) -> Result<(), DropReason> {
        self.remove_an_old_one(location, now_ns);
        let taken = self.locations.get(&location).map_or(0, LocationEntry::len);
        let is_full = self.quotas.get(&location).is_some_and(|quota| taken >= *quota);
        if is_full { Err(DropReason::TooMany) } else { Ok(()) }
    }

    /// Removes addresses until there are no more than these.
    pub(super) fn make_room(&mut self, entries: usize, now_ns: u64) {
        while self.known.len() > entries {
            let new = self.find_largest(|entry| entry.new.len()).map(|(at, _)| (at, false));
            let proven = || self.find_largest(|entry| entry.proven.len()).map(|(at, _)| (at, true));
            let Some((location, is_proven)) = new.or_else(proven) else { return };
            let Some(key) = self.find_oldest(location, is_proven) else { return };
            self.displaced += u64::from(self.known.get(&key).is_some_and(|known| {
                // It is missed only if it was still in use.
                self.is_fresh(known, now_ns)
            }));
            self.remove_address(key);
        }
    }

    /// An address has sent for a while, or has answered.
    pub(super) fn prove_address(&mut self, key: AddressKey, now_ns: u64) {
        let Some(location) = self.known.get(&key).map(|known| known.location) else { return };
        self.remove_an_old_one(location, now_ns);
        let most = self.settings.entries - self.settings.entries / PARTS;
        if self.proven >= most && !self.give_up_a_proven_one(location) {
            if let Some(known) = self.known.get_mut(&key) {
                known.refuse_proof(now_ns);
            }
            return;
        }
        self.set_proven(key, true);
    }

    /// The location with most proven addresses has one less, for another location.
    fn give_up_a_proven_one(&mut self, location: Location) -> bool {
        let own = self.locations.get(&location).map_or(0, |entry| entry.proven.len());
        let largest = self.find_largest(|entry| entry.proven.len());
        let Some((largest, _)) = largest.filter(|(_, count)| *count > own + 1) else {
            return false;
        };
        let Some(key) = self.find_oldest(largest, true) else { return false };
        self.set_proven(key, false);
        true
    }

    fn set_proven(&mut self, key: AddressKey, is_proven: bool) {
        let Some(known) = self.known.get(&key).filter(|known| known.is_proven != is_proven) else {
            return;
        };
        let (location, index) = (known.location, known.index as usize);
        self.unlist_address(location, !is_proven, index);
        let list = self.locations.entry(location).or_default().address_list(is_proven);
        let index = list.len();
        list.push(key);
        if let Some(known) = self.known.get_mut(&key) {
            (known.index, known.is_proven) = (index as u32, is_proven);
        }
        if is_proven { self.proven += 1 } else { self.proven -= 1 }
    }

    /// Looks at one entry of each list of a location: with each address that comes, one that is too
    /// old may go.
    fn remove_an_old_one(&mut self, location: Location, now_ns: u64) {
        let Some(LocationEntry { new, proven, .. }) = self.locations.get(&location) else { return };
        let chosen = |list: &Vec<AddressKey>| match list.len() {
            0 => None,
            length => list.get(fastrand::usize(..length)).copied(),
        };
        for key in [chosen(new), chosen(proven)].into_iter().flatten() {
            if self.known.get(&key).is_some_and(|known| !self.is_fresh(known, now_ns)) {
                self.remove_address(key);
            }
        }
    }

    /// The oldest of a sample of a location's addresses of one kind.
    fn find_oldest(&self, location: Location, is_proven: bool) -> Option<AddressKey> {
        let LocationEntry { new, proven, .. } = self.locations.get(&location)?;
        let keys = if is_proven { proven } else { new };
        let begin = if keys.len() > SAMPLE { fastrand::usize(..keys.len()) } else { 0 };
        let sample = (0..SAMPLE.min(keys.len())).map(|step| keys[(begin + step) % keys.len()]);
        sample.min_by_key(|key| self.known.get(key).map(LearnedEntry::newest_ns))
    }

    pub(super) fn remove_address(&mut self, key: AddressKey) {
        if let Some(known) = self.known.remove(&key) {
            self.proven -= usize::from(known.is_proven);
            self.unlist_address(known.location, known.is_proven, known.index as usize);
        }
    }

    /// Moves a known key to another location, which alone has it from now on.
    pub(super) fn relist_address(
        &mut self,
        key: AddressKey,
        to: Location,
        now_ns: u64,
    ) -> Result<(), DropReason> {
        self.check_quota(to, now_ns)?;
        self.remove_address(key);
        self.insert_address(key, to, now_ns)
    }

    /// Takes a key off a location's list; the last one takes its position.
    fn unlist_address(&mut self, location: Location, is_proven: bool, index: usize) {
        let Some(entry) = self.locations.get_mut(&location) else { return };
        let keys = entry.address_list(is_proven);
        keys.swap_remove(index);
        if let Some(known) = keys.get(index).and_then(|moved| self.known.get_mut(moved)) {
            known.index = index as u32;
        }
    }
}
