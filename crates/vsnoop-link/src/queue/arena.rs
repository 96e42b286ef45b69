//! Items in lines, all in one bounded piece of memory: a line is a chain of slots.
//!
//! Hundreds of lines that each kept room of their own would hold the sum of their longest lengths
//! for ever.

/// No slot.
const NONE: u32 = u32::MAX;

/// An item that waits.
#[derive(Debug)]
pub struct Entry<T> {
    /// What waits.
    pub item: T,
    /// As the transport will carry it.
    pub bytes: usize,
    /// When it came.
    pub since_ns: u64,
}

#[derive(Debug)]
struct Slot<T> {
    entry: Option<Entry<T>>,
    next: u32,
}

/// A line: its first and last slot.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    first: u32,
    last: u32,
}

impl Line {
    /// Nobody stands in it.
    pub const EMPTY: Self = Self { first: NONE, last: NONE };

    /// Whether nobody does.
    pub fn is_empty(&self) -> bool {
        self.first == NONE
    }
}

/// The slots of all lines.
#[derive(Debug)]
pub struct Arena<T> {
    slots: Vec<Slot<T>>,
    free: u32,
    used: usize,
}

impl<T> Arena<T> {
    /// Memory is taken when it is needed first.
    pub fn new() -> Self {
        Self { slots: Vec::new(), free: NONE, used: 0 }
    }

    /// Items in all lines.
    pub fn len(&self) -> usize {
        self.used
    }

    /// At the end of the line. The caller bounds the number of items, by far less than 2^32.
    pub fn append(&mut self, line: &mut Line, entry: Entry<T>) {
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
        match self.slots.get_mut(line.last as usize) {
            Some(last) => last.next = at,
            None => line.first = at,
        }
        line.last = at;
        self.used += 1;
    }

    /// The first of a line.
    pub fn first(&self, line: &Line) -> Option<&Entry<T>> {
        self.slots.get(line.first as usize)?.entry.as_ref()
    }

    /// Takes the first out of a line.
    pub fn take(&mut self, line: &mut Line) -> Option<Entry<T>> {
        let at = line.first;
        let slot = self.slots.get_mut(at as usize)?;
        let entry = slot.entry.take();
        line.first = slot.next;
        if line.first == NONE {
            line.last = NONE;
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
    fn lines_keep_their_order_and_share_slots() {
        let mut arena = Arena::new();
        let (mut a, mut b) = (Line::EMPTY, Line::EMPTY);
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
