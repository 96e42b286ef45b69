//! Chains of items, all in one bounded piece of memory: a chain links slots.
//!
//! Hundreds of queues with memory of their own would for ever occupy the sum of their greatest
//! lengths.

/// No slot.
const NONE: u32 = u32::MAX;

/// An item in a chain.
#[derive(Debug)]
pub struct Entry<T> {
    /// The item.
    pub item: T,
    /// Its size on the transport.
    pub bytes: usize,
    /// When it was appended.
    pub since_ns: u64,
}

#[derive(Debug)]
struct Slot<T> {
    entry: Option<Entry<T>>,
    next: u32,
}

/// A chain: its first and last slot.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    first: u32,
    last: u32,
}

impl Chain {
    /// An empty chain.
    pub const EMPTY: Self = Self { first: NONE, last: NONE };

    /// Whether it has no slot.
    pub fn is_empty(&self) -> bool {
        self.first == NONE
    }
}

/// The slots of all chains.
#[derive(Debug)]
pub struct Arena<T> {
    slots: Vec<Slot<T>>,
    free: u32,
    used: usize,
}

impl<T> Arena<T> {
    /// Memory is allocated when it is first needed.
    pub fn new() -> Self {
        Self { slots: Vec::new(), free: NONE, used: 0 }
    }

    /// Items in all chains.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Appends to a chain. The caller bounds the number of items, by far less than 2^32.
    pub fn append(&mut self, chain: &mut Chain, entry: Entry<T>) {
        let slot = Slot { entry: Some(entry), next: NONE };
        let at = self.free;
        let at = match self.slots.get_mut(at as usize) {
            Some(free) => {
                self.free = free.next;
                *free = slot;
                at
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        match self.slots.get_mut(chain.last as usize) {
            Some(last) => last.next = at,
            None => chain.first = at,
        }
        chain.last = at;
        self.used += 1;
    }

    /// The first item of a chain.
    pub fn first(&self, chain: &Chain) -> Option<&Entry<T>> {
        self.slots.get(chain.first as usize)?.entry.as_ref()
    }

    /// Removes the first item of a chain.
    pub fn take(&mut self, chain: &mut Chain) -> Option<Entry<T>> {
        let at = chain.first;
        let slot = self.slots.get_mut(at as usize)?;
        let entry = slot.entry.take();
        chain.first = slot.next;
        if chain.first == NONE {
            chain.last = NONE;
        }
        slot.next = self.free;
        self.free = at;
        self.used -= 1;
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(item: u32) -> Entry<u32> {
        Entry { item, bytes: 1, since_ns: 0 }
    }

    #[test]
    fn chains_keep_their_order_and_share_slots() {
        let mut arena = Arena::new();
        let (mut a, mut b) = (Chain::EMPTY, Chain::EMPTY);
        for round in 0..10 {
            for i in 0..4 {
                arena.append(&mut a, entry(round * 10 + i));
                arena.append(&mut b, entry(1000 + round * 10 + i));
            }
            for i in 0..4 {
                assert_eq!(arena.take(&mut a).unwrap().item, round * 10 + i);
                assert_eq!(arena.take(&mut b).unwrap().item, 1000 + round * 10 + i);
            }
            assert!(a.is_empty() && b.is_empty() && arena.take(&mut a).is_none());
        }
        assert_eq!(arena.slots.len(), 8, "slots are used again");
        assert_eq!(arena.len(), 0);
    }
}
