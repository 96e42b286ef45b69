//! The Internet checksum, eight bytes at a time (RFC 1071).
//!
//! Sums are `u16` numbers in network byte order, added with end-around carry. Since the carry makes
//! the order of bytes irrelevant until the end (RFC 1071, 2B), words are added as they lie in
//! memory. The four chains have no data in common, so that a core can work on all of them at once.

use super::headers::Headers;

/// The sum of `bytes`; an odd last byte counts as if a zero followed it.
pub fn sum(bytes: &[u8]) -> u16 {
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut chains = [0u64; 4];
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for (chain, word) in chains.iter_mut().zip(words) {
            *chain = carry(*chain, u64::from_ne_bytes(*word));
        }
    }
    let (words, rest) = rest.as_chunks::<8>();
    let mut total = chains.into_iter().fold(0, carry);
    for word in words {
        total = carry(total, u64::from_ne_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    total = carry(total, u64::from_ne_bytes(last));

    // Half of the bits at a time, and once more for the carry of each.
    let total = (total >> 32) + (total & 0xffff_ffff);
    let total = (total >> 16) + (total & 0xffff);
    let total = (total >> 16) + (total & 0xffff);
    let total = (total >> 16) + (total & 0xffff);
    u16::from_be(total as u16)
}

#[inline]
fn carry(total: u64, word: u64) -> u64 {
    let (total, over) = total.overflowing_add(word);
    total + u64::from(over)
}

/// The sum of two sums.
#[inline]
pub fn add(one: u16, other: u16) -> u16 {
    let (total, over) = one.overflowing_add(other);
    total + u16::from(over)
}

/// The sum that `other` was added to, to get `one`.
#[inline]
pub fn subtract(one: u16, other: u16) -> u16 {
    add(one, !other)
}

/// Whether two sums are the same number: all ones is another way to write zero.
#[inline]
pub fn same(one: u16, other: u16) -> bool {
    one == other || (matches!(one, 0 | 0xffff) && matches!(other, 0 | 0xffff))
}

/// The sum of the pseudo-header without its length.
pub fn pseudo_header(headers: &Headers, frame: &[u8]) -> u16 {
    add(sum(headers.addresses(frame)), u16::from(headers.protocol))
}

/// Whether the checksum of a transport header that is 0 over the pseudo-header holds.
pub fn transport_is_right(headers: &Headers, frame: &[u8]) -> bool {
    let Some(bytes) = frame.get(usize::from(headers.l4)..headers.end as usize) else {
        return false;
    };
    let pseudo = add(pseudo_header(headers, frame), bytes.len() as u16);
    add(pseudo, sum(bytes)) == 0xffff
}

/// Whether the IPv4 header's own checksum holds; IPv6 has none.
pub fn ip_is_right(headers: &Headers, frame: &[u8]) -> bool {
    headers.v6
        || frame
            .get(usize::from(headers.ip)..usize::from(headers.l4))
            .is_some_and(|header| sum(header) == 0xffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slow(bytes: &[u8]) -> u16 {
        let mut total = 0u64;
        for pair in bytes.chunks(2) {
            total += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
        }
        while total > 0xffff {
            total = (total >> 16) + (total & 0xffff);
        }
        total as u16
    }

    proptest! {
        #[test]
        fn the_fast_sum_is_the_plain_sum(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(sum(&bytes), slow(&bytes));
        }

        #[test]
        fn what_was_added_can_be_subtracted(one: u16, other: u16) {
            prop_assert!(same(subtract(add(one, other), other), one));
        }
    }

    #[test]
    fn every_carry_is_kept() {
        for length in 0..100 {
            assert_eq!(sum(&vec![0xff; length]), slow(&vec![0xff; length]), "{length} bytes");
        }
    }
}
