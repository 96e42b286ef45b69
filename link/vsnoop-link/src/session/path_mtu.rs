//! The largest packet that the path takes, found by probes (RFC 8899), without ICMP messages that
//! report a packet as too big.
//!
//! A probe of a size that is acknowledged proves the size; [`TRIES`] that are not are taken as
//! proof of the contrary. The largest size is tried first, for most paths take it; then the range
//! is halved. Sizes are those of IP packets.
//!
//! *Black holes.* The path MTU may shrink without notice. Regular probes are small and full
//! alternately: when full ones are lost while small ones are answered, the search begins again
//! from the base. A path that became larger shows when the search is repeated: a minute after it
//! has become smaller, and after times that double, up to ten minutes.

/// Every IPv6 path takes this, and so does nearly every IPv4 path.
pub const BASE_BYTES: u16 = 1280;
/// Every IPv4 host takes this (RFC 791).
pub const LEAST_BYTES: u16 = 576;
/// The MTU of Ethernet: often the path MTU where the interface takes more.
const COMMON_BYTES: u16 = 1500;
/// Losses of a size that prove that it is too big.
const TRIES: u8 = 3;
/// Small probes that must have been answered meanwhile before the path counts as a black hole.
const ANSWERED: u8 = 2;
/// The longest interval between searches for a larger size, and the one after the path MTU fell.
const RAISE_NS: u64 = 600_000_000_000;
const FIRST_RAISE_NS: u64 = 60_000_000_000;

/// The search.
#[derive(Clone, Debug)]
pub struct PathMtu {
    /// MTU of the interface.
    largest: u16,
    /// Largest size known to pass.
    confirmed: u16,
    /// Largest size that may pass.
    bound: u16,
    /// Size of the probe in flight.
    probing: Option<u16>,
    /// The size that is tried, and the number of its lost probes.
    tried: (u16, u8),
    raise_at_ns: u64,
    /// Interval until the next search for a larger size.
    raise_ns: u64,
    full_lost: u8,
    small_answered: u8,
}

impl PathMtu {
    /// A path behind an interface with this MTU.
    pub fn new(largest: u16) -> Self {
        let confirmed = BASE_BYTES.min(largest);
        Self {
            largest,
            confirmed,
            bound: largest,
            probing: None,
            tried: (0, 0),
            raise_at_ns: u64::MAX,
            raise_ns: RAISE_NS,
            full_lost: 0,
            small_answered: 0,
        }
    }

    /// The largest IP packet of data, bytes.
    pub fn bytes(&self) -> u16 {
        self.confirmed
    }

    /// A size to probe now. Its probe counts as in flight until it is answered or lost.
    pub fn next_probe(&mut self, now_ns: u64) -> Option<u16> {
        if self.probing.is_some() {
            return None;
        }
        if self.confirmed >= self.bound {
            if now_ns < self.raise_at_ns || self.bound >= self.largest {
                return None;
            }
            self.raise_ns = self.raise_ns.saturating_mul(2).min(RAISE_NS);
            self.search(now_ns);
        }
        let size = match self.tried {
            (size, lost) if lost > 0 && size > self.confirmed && size <= self.bound => size,
            _ => self.next_candidate(),
        };
        self.probing = Some(size);
        Some(size)
    }

    /// When to call [`PathMtu::next_probe`] again if no event comes before.
    pub fn deadline_ns(&self) -> u64 {
        if self.probing.is_some() || (self.confirmed >= self.bound && self.bound >= self.largest) {
            u64::MAX
        } else if self.confirmed < self.bound {
            0
        } else {
            self.raise_at_ns
        }
    }

    /// A probe of this size, of any purpose, was answered.
    pub fn note_answered(&mut self, size: u16, now_ns: u64) {
        self.probing = self.probing.filter(|probing| *probing != size);
        if size > self.confirmed && size <= self.largest {
            self.confirmed = size;
            self.bound = self.bound.max(size);
        }
        if size >= self.confirmed {
            (self.full_lost, self.small_answered) = (0, 0);
        }
        self.settle_size(now_ns);
    }

    /// A probe of the search was lost.
    pub fn note_lost(&mut self, size: u16, now_ns: u64) {
        if self.probing != Some(size) {
            return;
        }
        self.probing = None;
        let lost = if self.tried.0 == size { self.tried.1 + 1 } else { 1 };
        self.tried = (size, lost);
        if lost >= TRIES {
            self.exclude_size(size, now_ns);
        }
    }

    /// The local system refuses packets of a size, because of the interface's MTU or an ICMP
    /// message.
    pub fn too_big(&mut self, size: u16, now_ns: u64) {
        // The path MTU is smaller by now: this is an old message.
        let is_news = size <= self.confirmed || self.probing == Some(size);
        if size <= LEAST_BYTES || !is_news {
            return;
        }
        if size <= self.confirmed {
            // From where the search finds the size quickly, not from just below.
            self.confirmed = if size > BASE_BYTES { BASE_BYTES } else { LEAST_BYTES };
            self.raise_ns = FIRST_RAISE_NS;
            self.bound = self.bound.min(size - 1).max(self.confirmed);
        }
        self.exclude_size(size, now_ns);
    }

    /// The MTU of the interface has changed, or the route uses another interface.
    pub fn set_largest(&mut self, largest: u16, now_ns: u64) {
        if largest == self.largest {
            return;
        }
        self.largest = largest;
        self.confirmed = self.confirmed.min(largest);
        self.search(now_ns);
    }

    /// A regular probe without padding was answered.
    pub fn small_answered(&mut self) {
        if self.full_lost > 0 {
            self.small_answered = self.small_answered.saturating_add(1);
        }
    }

    /// A regular probe of the confirmed size was lost. Returns whether the path is a black hole for
    /// it.
    pub fn full_lost(&mut self, size: u16, now_ns: u64) -> bool {
        if size != self.confirmed {
            return false;
        }
        self.full_lost = self.full_lost.saturating_add(1);
        if self.full_lost < TRIES || self.small_answered < ANSWERED {
            return false;
        }
        if self.confirmed > BASE_BYTES {
            self.confirmed = BASE_BYTES;
            self.raise_ns = FIRST_RAISE_NS;
            self.search(now_ns);
        } else if self.confirmed > LEAST_BYTES {
            self.bound = self.confirmed - 1;
            self.confirmed = LEAST_BYTES;
            self.raise_ns = FIRST_RAISE_NS;
            self.search_below(self.bound, now_ns);
        } else {
            (self.full_lost, self.small_answered) = (0, 0);
            return false;
        }
        true
    }

    /// Whether full-size probes were lost recently: then regular ones come faster.
    pub fn suspects(&self) -> bool {
        self.full_lost > 0
    }

    /// Begins anew for another path.
    pub fn restart(&mut self, now_ns: u64) {
        self.confirmed = BASE_BYTES.min(self.largest);
        self.raise_ns = RAISE_NS;
        self.search(now_ns);
    }

    fn search(&mut self, now_ns: u64) {
        self.search_below(self.largest, now_ns);
    }

    fn search_below(&mut self, bound: u16, now_ns: u64) {
        self.bound = bound;
        (self.probing, self.tried) = (None, (0, 0));
        (self.full_lost, self.small_answered) = (0, 0);
        self.raise_at_ns = u64::MAX;
        self.settle_size(now_ns);
    }

    fn next_candidate(&self) -> u16 {
        if self.bound == self.largest {
            self.bound
        } else if self.confirmed < COMMON_BYTES && COMMON_BYTES <= self.bound {
            COMMON_BYTES
        } else {
            self.confirmed + (self.bound - self.confirmed).div_ceil(2)
        }
    }

    fn exclude_size(&mut self, size: u16, now_ns: u64) {
        self.tried = (0, 0);
        self.probing = self.probing.filter(|probing| *probing < size);
        if size <= self.bound {
            self.bound = (size - 1).max(self.confirmed);
        }
        self.settle_size(now_ns);
    }

    /// Schedules the next search if no size is left to try.
    fn settle_size(&mut self, now_ns: u64) {
        if self.confirmed >= self.bound && self.raise_at_ns == u64::MAX {
            self.raise_at_ns = now_ns.saturating_add(self.raise_ns);
        } else if self.confirmed < self.bound {
            self.raise_at_ns = u64::MAX;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs the search on a path that takes `path` bytes; returns the probes it took.
    fn search(mtu: &mut PathMtu, path: u16, now_ns: u64) -> u32 {
        for probes in 0..200 {
            match mtu.next_probe(now_ns) {
                None => return probes,
                Some(size) if size <= path => mtu.note_answered(size, now_ns),
                Some(size) => mtu.note_lost(size, now_ns),
            }
        }
        panic!("no end: {mtu:?}");
    }

    proptest! {
        #[test]
        fn the_path_mtu_is_found_exactly(largest in 1280..=9216_u16, path in 1280..=9216_u16) {
            let mut mtu = PathMtu::new(largest);
            let probes = search(&mut mtu, path, 0);
            prop_assert_eq!(mtu.bytes(), path.min(largest));
            prop_assert!(probes <= 3 * 15, "{} probes", probes);
        }

        #[test]
        fn any_events_keep_it_within_its_bounds(
            mut largest in 68..=9216_u16,
            events in proptest::collection::vec((0..8, any::<u16>()), 0..300),
        ) {
            let mut mtu = PathMtu::new(largest);
            for (now_ns, (event, size)) in events.into_iter().enumerate() {
                let now_ns = now_ns as u64 * RAISE_NS / 4;
                match event {
                    0 => mtu.note_answered(size, now_ns),
                    1 => mtu.note_lost(mtu.probing.unwrap_or(size), now_ns),
                    2 => mtu.too_big(size, now_ns),
                    3 => mtu.small_answered(),
                    4 => { mtu.full_lost(mtu.bytes(), now_ns); }
                    5 => mtu.restart(now_ns),
                    6 => {
                        largest = size.clamp(68, 9216);
                        mtu.set_largest(largest, now_ns);
                    }
                    _ => {
                        let size = mtu.next_probe(now_ns);
                        prop_assert!(size.is_none_or(|s| s > mtu.bytes() && s <= largest));
                    }
                }
                prop_assert!(mtu.bytes() <= largest.max(LEAST_BYTES), "{:?}", mtu);
            }
        }
    }

    #[test]
    fn the_whole_is_tried_first_and_one_answer_ends_the_search() {
        let mut mtu = PathMtu::new(9000);
        assert_eq!(search(&mut mtu, 9000, 0), 1);
        assert_eq!((mtu.bytes(), mtu.deadline_ns()), (9000, u64::MAX));
    }

    #[test]
    fn one_or_two_losses_prove_nothing() {
        let mut mtu = PathMtu::new(1500);
        for _ in 0..2 {
            assert_eq!(mtu.next_probe(0), Some(1500));
            mtu.note_lost(1500, 0);
        }
        assert_eq!(mtu.next_probe(0), Some(1500));
        mtu.note_answered(1500, 0);
        assert_eq!(mtu.bytes(), 1500);
    }

    #[test]
    fn a_black_hole_is_left_and_the_new_size_found() {
        let mut mtu = PathMtu::new(1500);
        search(&mut mtu, 1500, 0);
        assert!(!mtu.full_lost(1500, 0) && !mtu.full_lost(1500, 0));
        mtu.small_answered();
        assert!(!mtu.full_lost(1500, 0), "one small answer is too little");
        mtu.small_answered();
        assert!(mtu.full_lost(1500, 0));
        assert_eq!(mtu.bytes(), BASE_BYTES);
        search(&mut mtu, 1400, 0);
        assert_eq!(mtu.bytes(), 1400);
    }

    #[test]
    fn a_cut_line_is_no_black_hole() {
        let mut mtu = PathMtu::new(1500);
        search(&mut mtu, 1500, 0);
        assert!((0..50).all(|_| !mtu.full_lost(1500, 0)));
        assert_eq!(mtu.bytes(), 1500);
    }

    #[test]
    fn a_path_below_the_base_is_found_too() {
        let mut mtu = PathMtu::new(1500);
        search(&mut mtu, 1000, 0);
        assert_eq!(mtu.bytes(), BASE_BYTES);
        for black_hole in [false, false, true] {
            assert_eq!(mtu.full_lost(BASE_BYTES, 0), black_hole);
            mtu.small_answered();
        }
        search(&mut mtu, 1000, 0);
        assert_eq!(mtu.bytes(), 1000);
    }

    #[test]
    fn a_larger_path_is_found_after_a_while() {
        let mut mtu = PathMtu::new(1500);
        search(&mut mtu, 1400, 0);
        assert_eq!(search(&mut mtu, 1500, RAISE_NS - 1), 0);
        assert_eq!(mtu.deadline_ns(), RAISE_NS);
        search(&mut mtu, 1500, RAISE_NS);
        assert_eq!(mtu.bytes(), 1500);
    }

    #[test]
    fn a_path_that_has_fallen_is_tried_again_after_a_minute_and_then_less_often() {
        let mut mtu = PathMtu::new(1500);
        search(&mut mtu, 1500, 0);
        (0..ANSWERED).for_each(|_| {
            mtu.full_lost(1500, 0);
            mtu.small_answered();
        });
        assert!(mtu.full_lost(1500, 0));
        let (mut now_ns, mut waits_s) = (0, Vec::new());
        for _ in 0..6 {
            search(&mut mtu, 1400, now_ns);
            waits_s.push((mtu.deadline_ns() - now_ns) / 1_000_000_000);
            now_ns = mtu.deadline_ns();
        }
        assert_eq!(waits_s, [60, 120, 240, 480, 600, 600]);
        search(&mut mtu, 1500, now_ns);
        assert_eq!((mtu.bytes(), mtu.deadline_ns()), (1500, u64::MAX));
    }

    #[test]
    fn what_the_system_refuses_is_not_tried_again() {
        let mut mtu = PathMtu::new(1500);
        assert_eq!(mtu.next_probe(0), Some(1500));
        mtu.too_big(1500, 0);
        let size = mtu.next_probe(0).unwrap();
        assert!(size < 1500);
        search(&mut mtu, 1400, 0);
        mtu.note_lost(size, 0);
        search(&mut mtu, 1400, 0);
        assert_eq!(mtu.bytes(), 1400);
        mtu.too_big(1400, 0);
        search(&mut mtu, 1300, 0);
        assert_eq!(mtu.bytes(), 1300);
    }

    #[test]
    fn a_refused_first_probe_is_no_end_of_the_search() {
        let mut mtu = PathMtu::new(1500);
        assert_eq!(mtu.next_probe(0), Some(1500));
        mtu.too_big(1500, 0);
        search(&mut mtu, 1492, 0);
        assert_eq!(mtu.bytes(), 1492);
    }

    #[test]
    fn late_refusals_of_what_is_not_sent_any_more_change_nothing() {
        let mut mtu = PathMtu::new(9000);
        search(&mut mtu, 9000, 0);
        for size in [9000, 9000, 8000, 9000] {
            mtu.too_big(size, 0);
            assert_eq!(mtu.bytes(), BASE_BYTES);
        }
        assert!(!mtu.full_lost(9000, 0) && !mtu.suspects());
        search(&mut mtu, 8999, 0);
        assert_eq!(mtu.bytes(), 8999);
    }

    #[test]
    fn an_interface_that_takes_less_than_the_base_is_found_quickly() {
        let mut mtu = PathMtu::new(1500);
        search(&mut mtu, 1500, 0);
        let mut refused = 0;
        while mtu.bytes() > 1000 {
            mtu.too_big(mtu.bytes(), 0);
            refused += 1;
        }
        assert_eq!(refused, 2);
        search(&mut mtu, 1000, 0);
        assert_eq!(mtu.bytes(), 1000);
    }

    #[test]
    fn what_is_known_stays_when_the_interface_takes_more() {
        let mut mtu = PathMtu::new(BASE_BYTES);
        assert_eq!(mtu.next_probe(0), None);
        mtu.set_largest(9000, 0);
        assert_eq!(search(&mut mtu, 9000, 0), 1);
        mtu.set_largest(9000, 0);
        assert_eq!((mtu.bytes(), mtu.next_probe(0)), (9000, None));
        mtu.set_largest(1500, 0);
        assert_eq!((mtu.bytes(), mtu.next_probe(0)), (1500, None));
    }
}
