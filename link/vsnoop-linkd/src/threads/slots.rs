//! Gives each port, divert tap and peer its slot, and keeps lists that a slot indexes.
//!
//! A slot is its owner's until the owner is removed, whatever comes and goes beside it. A slot that
//! has become free is given to others with a later change, never with the same.

use std::collections::HashSet;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use vsnoop_link::slots::Slot;

/// A list by slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BySlot<S, T> {
    entries: Vec<T>,
    slots: PhantomData<S>,
}

impl<S, T> Default for BySlot<S, T> {
    fn default() -> Self {
        Self { entries: Vec::new(), slots: PhantomData }
    }
}

/// Entries beyond the last slot are dropped.
impl<S: Slot, T> FromIterator<T> for BySlot<S, T> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        Self { entries: entries.into_iter().take(S::COUNT).collect(), slots: PhantomData }
    }
}

impl<S: Slot, T> BySlot<S, T> {
    /// Number of slots, given and free.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn get(&self, slot: S) -> Option<&T> {
        self.entries.get(slot.index())
    }

    pub fn get_mut(&mut self, slot: S) -> Option<&mut T> {
        self.entries.get_mut(slot.index())
    }

    /// All slots, in order; they do not borrow the list.
    pub fn slots(&self) -> impl Iterator<Item = S> + use<S, T> {
        (0..self.len()).filter_map(S::at)
    }

    pub fn values(&self) -> std::slice::Iter<'_, T> {
        self.entries.iter()
    }

    pub fn values_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.entries.iter_mut()
    }

    /// All entries with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (S, &T)> {
        self.entries.iter().enumerate().map(|(index, entry)| (S::new(index as u16), entry))
    }

    /// All entries with their slots.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (S, &mut T)> {
        self.entries.iter_mut().enumerate().map(|(index, entry)| (S::new(index as u16), entry))
    }

    /// The first slot whose entry is one of these.
    pub fn position(&self, is_wanted: impl FnMut(&T) -> bool) -> Option<S> {
        S::at(self.entries.iter().position(is_wanted)?)
    }

    /// Makes room for `len` slots, at most for all that there are.
    pub fn resize_with(&mut self, len: usize, entry: impl FnMut() -> T) {
        self.entries.resize_with(len.min(S::COUNT), entry);
    }

    /// Makes room for a slot.
    pub fn make_room(&mut self, slot: S, entry: impl FnMut() -> T) {
        if slot.index() >= self.len() {
            self.resize_with(slot.index() + 1, entry);
        }
    }

    /// Adds an entry at the next slot, if there is one.
    pub fn push(&mut self, entry: T) {
        if self.len() < S::COUNT {
            self.entries.push(entry);
        }
    }
}

impl<S: Slot, T> Index<S> for BySlot<S, T> {
    type Output = T;

    fn index(&self, slot: S) -> &T {
        &self.entries[slot.index()]
    }
}

impl<S: Slot, T> IndexMut<S> for BySlot<S, T> {
    fn index_mut(&mut self, slot: S) -> &mut T {
        &mut self.entries[slot.index()]
    }
}

/// Names by slot, as threads share them; a free slot has an empty text, which is no name.
pub type Names<S> = Arc<BySlot<S, String>>;

/// The owners of slots by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots<S>(BySlot<S, Option<String>>);

impl<S: Slot> Slots<S> {
    /// Gives slots in this order.
    pub fn new<'n>(names: impl IntoIterator<Item = &'n String>) -> Self {
        Self(names.into_iter().cloned().map(Some).collect())
    }

    /// The slot of a name.
    pub fn find(&self, name: &str) -> Option<S> {
        self.0.position(|known| known.as_deref() == Some(name))
    }

    /// The owner of a slot.
    pub fn name(&self, slot: S) -> Option<&str> {
        self.0.get(slot)?.as_deref()
    }

    /// Number of slots, given and free.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// All slots, in order.
    pub fn all(&self) -> impl Iterator<Item = S> + use<S> {
        self.0.slots()
    }

    pub fn names(&self) -> Names<S> {
        Arc::new(self.0.values().map(|name| name.clone().unwrap_or_default()).collect())
    }

    /// The slots when there are these names, which differ.
    pub fn reloaded<'n>(&self, names: impl IntoIterator<Item = &'n String>) -> Self {
        let names: Vec<_> = names.into_iter().collect();
        let stay: HashSet<_> = names.iter().map(|name| name.as_str()).collect();
        let stays =
            |known: &Option<String>| known.clone().filter(|name| stay.contains(name.as_str()));
        let mut new: BySlot<S, _> = self.0.values().map(stays).collect();
        let is_free = |slot: &S| self.0.get(*slot).is_none_or(Option::is_none);
        let mut free = (0..).map_while(S::at).filter(is_free);
        for name in names {
            if self.find(name).is_some() {
                continue;
            }
            let Some(slot) = free.next() else { break };
            new.make_room(slot, || None);
            new[slot] = Some(name.clone());
        }
        Self(new)
    }
}

#[cfg(test)]
mod tests {
    use vsnoop_link::slots::PeerSlot;

    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_number_stays_and_a_free_one_is_given_with_the_next_change() {
        let first = Slots::<PeerSlot>::new(&names(&["a", "b", "c"]));
        let second = first.reloaded(&names(&["c", "d", "a"]));
        assert_eq!(*second.names(), BySlot::from_iter(names(&["a", "", "c", "d"])));
        let found = ["c", "b", ""].map(|name| second.find(name));
        assert_eq!(found, [Some(PeerSlot(2)), None, None]);
        let third = second.reloaded(&names(&["e", "f", "d"]));
        assert_eq!(*third.names(), BySlot::from_iter(names(&["", "e", "", "d", "f"])));
        assert_eq!(third.reloaded(&names(&["e", "f", "d"])), third);
    }

    #[test]
    fn a_list_has_no_more_entries_than_there_are_slots() {
        let mut list: BySlot<PeerSlot, u8> = std::iter::repeat_n(7, 70_000).collect();
        list.push(8);
        list.resize_with(80_000, || 9);
        assert_eq!((list.len(), list.slots().count()), (PeerSlot::COUNT, PeerSlot::COUNT));
        assert_eq!((list[PeerSlot(u16::MAX)], PeerSlot::at(PeerSlot::COUNT)), (7, None));
    }
}
