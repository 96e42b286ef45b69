//! Sequence numbers compare modulo 2^32 (RFC 9293, section 3.4), as in flow/seq.h.

use crate::types::seq;

impl seq {
    /// The sequence number `v`.
    pub const fn new(v: u32) -> Self {
        seq { v }
    }

    /// `bytes` further on.
    #[must_use]
    pub const fn add(self, bytes: u32) -> Self {
        seq { v: self.v.wrapping_add(bytes) }
    }

    /// The later of two.
    #[must_use]
    pub const fn max(self, other: seq) -> Self {
        if self.diff(other) > 0 { self } else { other }
    }

    /// The earlier of two.
    #[must_use]
    pub const fn min(self, other: seq) -> Self {
        if self.diff(other) < 0 { self } else { other }
    }

    /// Bytes that `self` is ahead of `other`; negative when behind.
    pub const fn diff(self, other: seq) -> i32 {
        self.v.wrapping_sub(other.v) as i32
    }
}
