//! Items on an ordered transport: each after its length.
//!
//! `| length: u32, big-endian | item |`, inside TLS. [`Cutter`] finds items in what a socket gives;
//! it has one buffer, as large as a few of the largest items, and hands out items in place.

/// The longest item: a super-packet with its header, tags and the item's own header.
pub const MAX_ITEM_BYTES: usize = 65_536 + 512;
/// Bytes before an item.
pub const LENGTH_BYTES: usize = 4;

/// An item's length is longer than any item; the connection cannot be followed further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong(pub usize);

/// Cuts what a socket gives into items.
#[derive(Debug)]
pub struct Cutter {
    buffer: Box<[u8]>,
    begin: usize,
    end: usize,
}

impl Default for Cutter {
    fn default() -> Self {
        Self { buffer: vec![0; 4 * MAX_ITEM_BYTES].into_boxed_slice(), begin: 0, end: 0 }
    }
}

impl Cutter {
    /// Where the next bytes go; never empty after [`cut_item`](Self::cut_item) returned `None`.
    pub fn free_space(&mut self) -> &mut [u8] {
        if self.begin == self.end {
            self.begin = 0;
            self.end = 0;
        } else if self.buffer.len() - self.end < MAX_ITEM_BYTES {
            self.buffer.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
        &mut self.buffer[self.end..]
    }

    /// Says how many bytes were put into the space.
    pub fn note_filled(&mut self, bytes: usize) {
        self.end = (self.end + bytes).min(self.buffer.len());
    }

    /// The next whole item, in place.
    pub fn cut_item(&mut self) -> Result<Option<&mut [u8]>, TooLong> {
        let waiting = &self.buffer[self.begin..self.end];
        let Some(length) = waiting.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if length > MAX_ITEM_BYTES {
            return Err(TooLong(length));
        }
        let whole = LENGTH_BYTES + length;
        if waiting.len() < whole {
            return Ok(None);
        }
        let at = self.begin;
        self.begin += whole;
        Ok(Some(&mut self.buffer[at + LENGTH_BYTES..at + whole]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream(items: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for item in items {
            bytes.extend_from_slice(&(item.len() as u32).to_be_bytes());
            bytes.extend_from_slice(item);
        }
        bytes
    }

    #[test]
    fn a_length_that_no_item_has_ends_it() {
        let mut cutter = Cutter::default();
        cutter.free_space()[..4].copy_from_slice(&u32::MAX.to_be_bytes());
        cutter.note_filled(4);
        assert_eq!(cutter.cut_item(), Err(TooLong(u32::MAX as usize)));
    }

    proptest! {
        #[test]
        fn items_come_out_as_they_went_in_however_they_are_cut(
            lengths in proptest::collection::vec(0usize..70_000, 1..20),
            cuts in proptest::collection::vec(1usize..200_000, 1..50),
        ) {
            let items: Vec<Vec<u8>> = lengths.iter().enumerate()
                .map(|(index, &length)| vec![index as u8; length.min(MAX_ITEM_BYTES)]).collect();
            let bytes = stream(&items);
            let mut cutter = Cutter::default();
            let mut given = 0;
            let mut got = Vec::new();
            for &cut in cuts.iter().cycle() {
                let space = cutter.free_space();
                prop_assert!(!space.is_empty());
                let length = cut.min(space.len()).min(bytes.len() - given);
                space[..length].copy_from_slice(&bytes[given..given + length]);
                cutter.note_filled(length);
                given += length;
                while let Some(item) = cutter.cut_item().unwrap() {
                    got.push(item.to_vec());
                }
                if given == bytes.len() { break; }
            }
            prop_assert_eq!(got, items);
        }
    }
}
