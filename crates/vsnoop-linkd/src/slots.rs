//! Numbers of ports and peers, by which the data threads know them.
//!
//! A number is its owner's until the owner is removed, whatever comes and goes beside it. A number
//! that has become free is given to others with a later change, never with the same.

use std::collections::HashSet;
use std::sync::Arc;

/// Names by number; `None`: the number is free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots(Vec<Option<String>>);

impl Slots {
    /// In this order.
    pub fn new<'n>(names: impl IntoIterator<Item = &'n String>) -> Self {
        Self(names.into_iter().cloned().map(Some).collect())
    }

    /// The number of a name.
    pub fn of(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|known| known.as_deref() == Some(name))
    }

    /// The owner of a number.
    pub fn name(&self, slot: usize) -> Option<&str> {
        self.0.get(slot)?.as_deref()
    }

    /// Numbers given, and those that have become free.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// By number; without an owner an empty text, which is no name.
    pub fn names(&self) -> Arc<[String]> {
        self.0.iter().map(|name| name.clone().unwrap_or_default()).collect()
    }

    /// The numbers when there are these names, which differ.
    pub fn reloaded<'n>(&self, names: impl IntoIterator<Item = &'n String>) -> Self {
        let names: Vec<_> = names.into_iter().collect();
        let stay: HashSet<_> = names.iter().map(|name| name.as_str()).collect();
        let stays =
            |known: &Option<String>| known.clone().filter(|name| stay.contains(name.as_str()));
        let mut new: Vec<_> = self.0.iter().map(stays).collect();
        let mut free = (0..).filter(|slot| self.0.get(*slot).is_none_or(Option::is_none));
        for name in names {
            if self.of(name).is_some() {
                continue;
            }
            let Some(slot) = free.next() else { break };
            if slot >= new.len() {
                new.push(None);
            }
            new[slot] = Some(name.clone());
        }
        Self(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_number_stays_and_a_free_one_is_given_with_the_next_change() {
        let first = Slots::new(&slots(&["a", "b", "c"]));
        let second = first.reloaded(&slots(&["c", "d", "a"]));
        assert_eq!(second.names()[..], slots(&["a", "", "c", "d"]));
        assert_eq!((second.of("c"), second.of("b"), second.of("")), (Some(2), None, None));
        let third = second.reloaded(&slots(&["e", "f", "d"]));
        assert_eq!(third.names()[..], slots(&["", "e", "", "d", "f"]));
        assert_eq!(third.reloaded(&slots(&["e", "f", "d"])), third);
    }
}
