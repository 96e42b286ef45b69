//! Limits on the resources that unauthenticated callers may use.
//!
//! Whoever reaches the listener can make it do a handshake: some hundred microseconds of computing,
//! a thread, and seconds of waiting for one that says nothing more. So the number of handshakes is
//! bounded by slots. A part of them is reserved for callers from addresses of peers, configured or
//! proved before; and each source has a rate and a share of its own. An IPv6 source is a /64,
//! within which a host may choose its address. A handshake that proves a peer costs its source
//! nothing.
//!
//! To refuse costs an accept and a close. What is remembered is bounded, too: when too many sources
//! call, all of them that have nothing under way are forgotten, and begin with a full allowance
//! again.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::DEADLINE;

/// Addresses that count of what the name of a configured peer stands for.
const PEER_ADDRESSES: usize = 16;

/// What unknown callers may use up.
#[derive(Clone, Copy, Debug)]
pub struct GuardLimits {
    /// Handshakes under way, of all sources.
    pub slots: usize,
    /// Those of them that only known sources get.
    pub reserved: usize,
    /// Handshakes under way of one source.
    pub source_slots: usize,
    /// Handshakes of one source that fail, per second.
    pub source_per_s: u32,
    /// Those it may have at once, after a pause.
    pub source_burst: u32,
    /// Sources that are remembered.
    pub sources: usize,
    /// Addresses of authenticated peers that are remembered.
    pub proved: usize,
    /// What an unknown caller may take for its handshake while half of the slots are taken.
    pub hurried: Duration,
}

impl Default for GuardLimits {
    fn default() -> Self {
        Self {
            slots: 64,
            reserved: 16,
            // A session opens several data connections at the same time.
            source_slots: 16,
            source_per_s: 8,
            source_burst: 32,
            sources: 4096,
            proved: 256,
            hurried: Duration::from_secs(1),
        }
    }
}

/// Why a caller is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallRefused {
    /// All slots that it could have are taken.
    Full,
    /// Its source has all it may have at a time.
    SourceSlots,
    /// Its source has had too many handshakes that failed.
    SourceRate,
}

impl fmt::Display for CallRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "too many handshakes are under way",
            Self::SourceSlots => "too many handshakes of this source are under way",
            Self::SourceRate => "too many handshakes of this source have failed",
        })
    }
}

/// What has come of calls so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardCounts {
    pub admitted: u64,
    pub authenticated: u64,
    pub refused_full: u64,
    pub refused_source_slots: u64,
    pub refused_source_rate: u64,
}

/// Stands before a listener. Clones are the same guard.
#[derive(Clone, Debug)]
pub struct Guard(Arc<Mutex<Book>>);

/// A slot for one handshake; free again when this is dropped.
#[derive(Debug)]
pub struct Permit {
    guard: Guard,
    from: IpAddr,
    allowance: Duration,
    authenticated: bool,
}

impl Guard {
    /// A guard with nobody before it yet.
    pub fn new(limits: GuardLimits) -> Self {
        Self(Arc::new(Mutex::new(Book::new(limits))))
    }

    /// The addresses of a configured peer, by its number, instead of those given before; only so
    /// many count.
    pub fn set_peer(&self, peer: usize, addresses: impl IntoIterator<Item = IpAddr>) {
        let addresses = addresses.into_iter().map(|a| a.to_canonical()).take(PEER_ADDRESSES);
        self.book().configured.insert(peer, addresses.collect());
    }

    /// May a caller from this address have a handshake, now?
    pub fn admit(&self, from: IpAddr, now_ns: u64) -> Result<Permit, CallRefused> {
        let from = from.to_canonical();
        let allowance = self.book().admit(from, now_ns)?;
        Ok(Permit { guard: self.clone(), from, allowance, authenticated: false })
    }

    /// What has come of calls so far.
    pub fn counts(&self) -> GuardCounts {
        self.book().counts
    }

    /// Handshakes under way.
    #[cfg(test)]
    pub fn under_way(&self) -> usize {
        self.book().under_way
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Nothing in here leaves the book half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// What the handshake may take.
    pub fn allowance(&self) -> Duration {
        self.allowance
    }

    /// The handshake has proved a peer: its address is remembered, and nothing is charged.
    pub fn authenticated(mut self) {
        self.authenticated = true;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.guard.book().leave(self.from, self.authenticated);
    }
}

/// A source: an IPv4 address or the /64 of an IPv6 address.
type Source = IpAddr;

fn source_of(address: IpAddr) -> Source {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(a) => {
            let prefix = u128::from(a) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(prefix))
        }
    }
}

#[derive(Debug)]
struct Account {
    under_way: usize,
    /// What it may still spend, in time: a handshake costs a second divided by the rate.
    credit_ns: u64,
    as_of_ns: u64,
}

#[derive(Debug)]
struct Book {
    limits: GuardLimits,
    under_way: usize,
    /// Addresses of the configured peers, by number.
    configured: HashMap<usize, Vec<IpAddr>>,
    /// Addresses that peers have authenticated from, the latest last.
    proved: VecDeque<IpAddr>,
    accounts: HashMap<Source, Account>,
    counts: GuardCounts,
}

impl Book {
    fn new(limits: GuardLimits) -> Self {
        Self {
            limits,
            under_way: 0,
            configured: HashMap::new(),
            proved: VecDeque::new(),
            accounts: HashMap::new(),
            counts: GuardCounts::default(),
        }
    }

    fn cost_ns(&self) -> u64 {
        1_000_000_000 / u64::from(self.limits.source_per_s.max(1))
    }

    fn most_credit_ns(&self) -> u64 {
        self.cost_ns() * u64::from(self.limits.source_burst.max(1))
    }

    fn admit(&mut self, from: IpAddr, now_ns: u64) -> Result<Duration, CallRefused> {
        let configured = self.configured.values().any(|addresses| addresses.contains(&from));
        let known = configured || self.proved.contains(&from);
        let slots = if known { self.limits.slots } else { self.limits.slots - self.reserved() };
        if self.under_way >= slots {
            self.counts.refused_full += 1;
            return Err(CallRefused::Full);
        }
        let (cost, most) = (self.cost_ns(), self.most_credit_ns());
        let most_under_way = self.limits.source_slots;
        let account = self.account(source_of(from), now_ns);
        let passed = now_ns.saturating_sub(account.as_of_ns);
        account.credit_ns = account.credit_ns.saturating_add(passed).min(most);
        account.as_of_ns = account.as_of_ns.max(now_ns);
        if account.under_way >= most_under_way {
            self.counts.refused_source_slots += 1;
            return Err(CallRefused::SourceSlots);
        }
        if account.credit_ns < cost {
            self.counts.refused_source_rate += 1;
            return Err(CallRefused::SourceRate);
        }
        account.credit_ns -= cost;
        account.under_way += 1;
        self.under_way += 1;
        self.counts.admitted += 1;
        let hurry = !known && self.under_way * 2 > self.limits.slots;
        Ok(if hurry { self.limits.hurried } else { DEADLINE })
    }

    fn leave(&mut self, from: IpAddr, authenticated: bool) {
        let (cost, most) = (self.cost_ns(), self.most_credit_ns());
        self.under_way -= 1;
        // It is there: an account with something under way is not forgotten.
        if let Some(account) = self.accounts.get_mut(&source_of(from)) {
            account.under_way -= 1;
            if authenticated {
                account.credit_ns = (account.credit_ns + cost).min(most);
            }
        }
        if authenticated {
            self.counts.authenticated += 1;
            self.proved.retain(|a| *a != from);
            self.proved.push_back(from);
            if self.proved.len() > self.limits.proved {
                self.proved.pop_front();
            }
        }
    }

    fn reserved(&self) -> usize {
        self.limits.reserved.min(self.limits.slots)
    }

    fn account(&mut self, source: Source, now_ns: u64) -> &mut Account {
        if self.accounts.len() >= self.limits.sources && !self.accounts.contains_key(&source) {
            self.accounts.retain(|_, account| account.under_way > 0);
        }
        let credit_ns = self.most_credit_ns();
        self.accounts.entry(source).or_insert(Account { under_way: 0, credit_ns, as_of_ns: now_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const SECOND_NS: u64 = 1_000_000_000;

    fn unknown(n: u32) -> IpAddr {
        Ipv4Addr::from(0x0a00_0000 + n).into()
    }

    fn peer() -> IpAddr {
        "192.0.2.1".parse().unwrap()
    }

    #[test]
    fn unknown_sources_cannot_take_the_slots_of_peers() {
        let guard = Guard::new(GuardLimits::default());
        guard.set_peer(0, [peer()]);
        let taken: Vec<_> = (0..1000).filter_map(|n| guard.admit(unknown(n), 0).ok()).collect();
        assert_eq!(taken.len(), 48);
        assert_eq!(guard.admit(unknown(2000), 0).unwrap_err(), CallRefused::Full);
        let peers: Vec<_> = (0..100).map_while(|_| guard.admit(peer(), 0).ok()).collect();
        assert_eq!(peers.len(), 16);
        drop(taken);
        assert_eq!(guard.under_way(), 16);
        assert!(guard.admit(unknown(2000), 0).is_ok());
    }

    #[test]
    fn a_peer_whose_name_stands_for_other_addresses_now_is_known_by_those_and_not_by_a_thousand() {
        let guard = Guard::new(GuardLimits { slots: 1, reserved: 1, ..GuardLimits::default() });
        let is_known = |address| guard.admit(address, 0).is_ok();
        guard.set_peer(0, [unknown(1), unknown(2)]);
        guard.set_peer(1, [peer()]);
        assert!(is_known(unknown(1)) && is_known(unknown(2)) && is_known(peer()));
        guard.set_peer(0, (3..1003).map(unknown));
        assert!(!is_known(unknown(1)) && is_known(unknown(3)) && is_known(peer()));
        assert_eq!((3..1003).filter(|n| is_known(unknown(*n))).count(), PEER_ADDRESSES);
    }

    #[test]
    fn a_caller_is_in_a_hurry_only_when_it_is_unknown_and_slots_are_scarce() {
        let guard = Guard::new(GuardLimits::default());
        guard.set_peer(0, [peer()]);
        let taken: Vec<_> = (0..40).map(|n| guard.admit(unknown(n), 0).unwrap()).collect();
        assert_eq!(taken[0].allowance(), DEADLINE);
        assert_eq!(taken[39].allowance(), GuardLimits::default().hurried);
        assert_eq!(guard.admit(peer(), 0).unwrap().allowance(), DEADLINE);
    }

    #[test]
    fn one_source_is_held_to_its_rate_and_its_share() {
        let limits = GuardLimits::default();
        let guard = Guard::new(limits);
        let held: Vec<_> = (0..100).map_while(|_| guard.admit(unknown(1), 0).ok()).collect();
        assert_eq!(held.len(), limits.source_slots);
        assert_eq!(guard.admit(unknown(1), 0).unwrap_err(), CallRefused::SourceSlots);
        drop(held);
        let in_ten_seconds =
            (0..10_000).filter(|ms| guard.admit(unknown(1), ms * SECOND_NS / 1000).is_ok()).count();
        let most = (limits.source_burst + 10 * limits.source_per_s) as usize;
        assert!(in_ten_seconds + limits.source_slots <= most, "{in_ten_seconds}");
        assert!(in_ten_seconds + limits.source_slots + 2 > most, "{in_ten_seconds}");
        assert!(guard.admit(unknown(2), 0).is_ok());
    }

    #[test]
    fn a_host_cannot_evade_its_rate_by_other_addresses_of_its_ipv6_prefix() {
        let guard = Guard::new(GuardLimits::default());
        let admitted = |prefix: u128| {
            (0..500u128)
                .filter(|n| {
                    let address = Ipv6Addr::from((0x2001_0db8 << 96) | (prefix << 64) | *n);
                    guard.admit(address.into(), 0).is_ok()
                })
                .count()
        };
        assert_eq!(admitted(1), 32);
        assert_eq!(admitted(2), 32);
    }

    #[test]
    fn an_ipv4_address_is_the_same_one_on_an_ipv6_listener() {
        let guard = Guard::new(GuardLimits { slots: 1, reserved: 1, ..GuardLimits::default() });
        guard.set_peer(0, [peer()]);
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
        assert!(guard.admit(mapped, 0).is_ok());
        assert!(guard.admit(unknown(1), 0).is_err());
    }

    #[test]
    fn a_peer_that_has_proved_itself_is_known_and_not_charged() {
        let guard = Guard::new(GuardLimits::default());
        for _ in 0..1000 {
            guard.admit(unknown(1), 0).unwrap().authenticated();
        }
        let _others: Vec<_> = (100..1100).filter_map(|n| guard.admit(unknown(n), 0).ok()).collect();
        assert!(guard.admit(unknown(1), 0).is_ok());
        assert_eq!(guard.counts().authenticated, 1000);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let limits = GuardLimits::default();
        let guard = Guard::new(limits);
        let held: Vec<_> = (0..40).map(|n| guard.admit(unknown(n), 0).unwrap()).collect();
        for n in 0..100_000 {
            guard.admit(unknown(1000 + n), 0).unwrap().authenticated();
        }
        let book = guard.book();
        assert!(book.accounts.len() <= limits.sources);
        assert_eq!(book.proved.len(), limits.proved);
        drop(book);
        drop(held);
        assert_eq!(guard.under_way(), 0);
    }

    #[test]
    fn a_clock_that_goes_back_gives_no_credit() {
        let guard = Guard::new(GuardLimits::default());
        let admitted =
            (0..1000).filter(|n| guard.admit(unknown(1), SECOND_NS * (n % 2)).is_ok()).count();
        assert!(admitted <= 40, "{admitted}");
    }
}
