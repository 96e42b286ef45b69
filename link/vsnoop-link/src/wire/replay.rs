//! Which record numbers have been seen: a sliding window (RFC 4303, 3.4.3; the ring of RFC 6479).
//!
//! Numbers above all before move the window on; one within it is taken once; what is older than the
//! window is refused. The window is wide enough for what several super-packets become.

/// Records that may arrive behind the newest.
pub const WINDOW: u64 = (WORDS as u64 - 1) * 64;
const WORDS: usize = 128;

/// The numbers of one stream of records.
#[derive(Debug)]
pub struct ReplayWindow {
    /// The number after the newest.
    next: u64,
    seen: [u64; WORDS],
    received: u64,
}

/// Relation of a number to the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fresh {
    /// Higher than all before.
    Newest,
    /// New, but later ones came first.
    Late,
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { next: 0, seen: [0; WORDS], received: 0 }
    }
}

impl ReplayWindow {
    /// Whether a record with this number may be opened at all; spares the work for an old one.
    pub fn may_be_new(&self, number: u64) -> bool {
        number >= self.next
            || (self.next - number <= WINDOW
                && self.seen[word_index(number)] & bit_mask(number) == 0)
    }

    /// Takes the number of a record that was authentic; `None`: it was there before, or is too old.
    pub fn take(&mut self, number: u64) -> Option<Fresh> {
        if !self.may_be_new(number) {
            return None;
        }
        let fresh = if number >= self.next {
            // Words that the window reaches for the first time hold numbers of a round ago.
            let newest_word = self.next.wrapping_sub(1) / 64;
            let reached = if self.next == 0 { number / 64 + 1 } else { number / 64 - newest_word };
            let first = if self.next == 0 { 0 } else { newest_word + 1 };
            for at in 0..reached.min(WORDS as u64) {
                self.seen[(first + at) as usize % WORDS] = 0;
            }
            if reached > WORDS as u64 {
                self.seen = [0; WORDS];
            }
            self.next = number.saturating_add(1);
            Fresh::Newest
        } else {
            Fresh::Late
        };
        self.seen[word_index(number)] |= bit_mask(number);
        self.received += 1;
        Some(fresh)
    }

    /// Records taken, and the number after the newest: their difference was lost or is late.
    pub fn counts(&self) -> (u64, u64) {
        (self.received, self.next)
    }
}

fn word_index(number: u64) -> usize {
    (number / 64) as usize % WORDS
}

fn bit_mask(number: u64) -> u64 {
    1 << (number % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn a_number_is_taken_once() {
        let mut window = ReplayWindow::default();
        assert_eq!(window.take(5), Some(Fresh::Newest));
        assert_eq!(window.take(3), Some(Fresh::Late));
        assert_eq!(window.take(3), None);
        assert_eq!(window.take(5), None);
        assert_eq!(window.counts(), (2, 6));
    }

    #[test]
    fn what_is_older_than_the_window_is_refused() {
        let mut window = ReplayWindow::default();
        window.take(WINDOW + 10);
        assert_eq!(window.take(10), None);
        assert_eq!(window.take(11), Some(Fresh::Late));
    }

    #[test]
    fn the_last_numbers_do_not_wrap() {
        let mut window = ReplayWindow::default();
        assert_eq!(window.take(u64::MAX - 1), Some(Fresh::Newest));
        assert_eq!(window.take(u64::MAX - 1), None);
        assert_eq!(window.take(0), None);
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_set(
            steps in proptest::collection::vec((0u64..3, 0u64..9000), 1..2000),
        ) {
            let mut window = ReplayWindow::default();
            let mut seen = HashSet::new();
            let mut newest = 0u64;
            for (jump, back) in steps {
                let number = (newest + jump * 777).saturating_sub(if jump == 0 { back } else { 0 });
                let expected = if newest.saturating_add(1) > WINDOW + number && !seen.is_empty() {
                    false
                } else {
                    !seen.contains(&number)
                };
                let taken = window.take(number).is_some();
                prop_assert_eq!(taken, expected, "{} after {}", number, newest);
                seen.insert(number);
                newest = newest.max(number);
            }
        }
    }
}
