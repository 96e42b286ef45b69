//! Options of a TCP header.

/// Kinds of options (RFC 9293, 3.1; RFC 7323; RFC 2018).
pub const MSS: u8 = 2;
pub const WINDOW_SCALE: u8 = 3;
pub const SACK_PERMITTED: u8 = 4;
pub const SACK: u8 = 5;
pub const TIMESTAMPS: u8 = 8;
const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;

/// The timestamps option with what is usually put before it.
pub fn timestamps(value: u32, echo: u32) -> [u8; 12] {
    let [[a, b, c, d], [e, f, g, h]] = [value.to_be_bytes(), echo.to_be_bytes()];
    [NO_OPERATION, NO_OPERATION, TIMESTAMPS, 10, a, b, c, d, e, f, g, h]
}

/// An option other than those of one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOption<'a> {
    pub kind: u8,
    pub value: &'a [u8],
    /// Where the value begins in all options.
    pub at: usize,
}

impl TcpOption<'_> {
    /// The `index`th number of 4 bytes in the value.
    pub fn word(&self, index: usize) -> Option<u32> {
        self.value.get(4 * index..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
    }
}

/// Iterates over options, up to their end or to one that exceeds the remaining bytes.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Options<'a> {
    pub fn new(all: &'a [u8]) -> Self {
        Self { all, at: 0 }
    }

    /// Whether there are no more options, read or not.
    pub fn is_at_end(&self) -> bool {
        self.all.get(self.at).is_none_or(|kind| *kind == END_OF_OPTIONS)
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = TcpOption<'a>;

    fn next(&mut self) -> Option<TcpOption<'a>> {
        while self.all.get(self.at) == Some(&NO_OPERATION) {
            self.at += 1;
        }
        if self.is_at_end() {
            return None;
        }
        let [kind, bytes] = *self.all.get(self.at..)?.first_chunk()?;
        let at = self.at + 2;
        let value = self.all.get(at..self.at + usize::from(bytes))?;
        self.at = at + value.len();
        Some(TcpOption { kind, value, at })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn options_are_read_whatever_stands_around_them() {
        let syn = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7, 0, 3, 3, 8];
        let mut options = Options::new(&syn);
        let all: Vec<_> = options.by_ref().map(|option| (option.kind, option.at)).collect();
        assert_eq!(all, [(MSS, 2), (SACK_PERMITTED, 6), (TIMESTAMPS, 8), (WINDOW_SCALE, 19)]);
        assert!(options.is_at_end());
        let bytes = timestamps(1, 2);
        let option = Options::new(&bytes).next().expect("an option");
        assert_eq!((option.word(0), option.word(1), option.word(2)), (Some(1), Some(2), None));
    }

    #[test]
    fn what_is_no_option_ends_them() {
        for rubbish in [&[3, 200, 7][..], &[3, 0, 7], &[3, 1, 7], &[3]] {
            let mut options = Options::new(rubbish);
            assert_eq!(options.next(), None, "{rubbish:?}");
            assert!(!options.is_at_end());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_come_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..50)) {
            for option in Options::new(&bytes) {
                prop_assert_eq!(option.value, &bytes[option.at..][..option.value.len()]);
            }
        }
    }
}
