//! Limits on the resources that unauthenticated callers may use.
//!
//! Any host that reaches the listener can start a handshake: it costs some hundred microseconds of
//! CPU time, a thread, and seconds of waiting for a silent caller. So handshakes are bounded:
//!
//! - *Known* callers come from addresses of peers, configured or proved before. Their slots and
//!   accounts are apart from those of *unknown sources*, which cannot use them up.
//! - Each source has a rate and a share of the slots. An IPv6 source is a /64, within which a host
//!   may choose its address. A handshake that proves a peer costs its source nothing.
//! - All unknown sources together have a rate. Beyond it a caller gets a
//!   [challenge](super::challenge) before anything is computed with keys, and those that answer
//!   have a rate of their own.
//! - An unknown source that finds no slot displaces the oldest call of the source with the most: to
//!   keep others out, a host needs as many sources as there are slots.
//!
//! To refuse costs an accept and a close. Accounts of unknown sources are a table of fixed size, by
//! a hash with a secret key: calls of other sources remove no account, and a source cannot choose
//! the one that it shares an account with.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::DEADLINE;
use crate::rate::{Rate, RateLimit};

/// Most addresses that are taken from the DNS name of a configured peer.
const PEER_ADDRESSES: usize = 16;

/// Limits for unknown sources.
#[derive(Clone, Copy, Debug)]
pub struct GuardLimits {
    /// Handshakes under way, of all sources.
    pub slots: usize,
    /// Those of them that only known sources get.
    pub reserved: usize,
    /// Handshakes under way of one source.
    pub source_slots: usize,
    /// Handshakes of one source that fail.
    pub source: RateLimit,
    /// Handshakes of all unknown sources that fail, without a challenge.
    pub unknown: RateLimit,
    /// Challenges.
    pub challenges: RateLimit,
    /// Handshakes of unknown sources that fail after an answered challenge.
    pub answered: RateLimit,
    /// Accounts that unknown sources share.
    pub accounts: usize,
    /// Addresses of authenticated peers that are remembered.
    pub proved: usize,
    /// Time limit of an unknown caller's handshake while half of the slots are taken.
    pub hurried: Duration,
}

impl Default for GuardLimits {
    fn default() -> Self {
        Self {
            slots: 64,
            reserved: 16,
            // A session opens several data connections at the same time.
            source_slots: 16,
            source: RateLimit::per_second(8, 32),
            // A handshake computes for half a millisecond: together at most 3% of a CPU.
            unknown: RateLimit::per_second(32, 64),
            answered: RateLimit::per_second(32, 64),
            // A thread, and no computing.
            challenges: RateLimit::per_second(512, 512),
            accounts: 4096,
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
    /// Too many handshakes of its source have failed.
    SourceRate,
    /// Unknown sources have had too many.
    TotalRate,
}

impl fmt::Display for CallRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "too many handshakes are under way",
            Self::SourceSlots => "too many handshakes of this source are under way",
            Self::SourceRate => "too many handshakes of this source have failed",
            Self::TotalRate => "too many handshakes of unknown sources have failed",
        })
    }
}

/// Results of calls since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardCounts {
    pub admitted: u64,
    pub authenticated: u64,
    /// Admitted calls that were sent a challenge.
    pub challenged: u64,
    /// Ended for another unknown source, or a peer.
    pub displaced: u64,
    pub refused_full: u64,
    pub refused_source_slots: u64,
    pub refused_source_rate: u64,
    pub refused_total_rate: u64,
}

impl GuardCounts {
    /// Callers that were turned away before they had said anything, or could say more.
    pub fn turned_away(&self) -> u64 {
        self.displaced
            + self.refused_full
            + self.refused_source_slots
            + self.refused_source_rate
            + self.refused_total_rate
    }
}

/// Stands before a listener. Clones are the same guard.
#[derive(Clone, Debug)]
pub struct Guard(Arc<Mutex<Book>>);

/// A handshake under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(u64);

/// An admitted caller.
#[derive(Debug)]
pub struct Admitted {
    pub permit: Permit,
    /// This call has lost its slot: its connection is to be closed.
    pub displaced: Option<CallId>,
}

/// A slot for one handshake; free again when this is dropped.
#[derive(Debug)]
pub struct Permit {
    guard: Guard,
    id: CallId,
    allowance: Duration,
    challenged: bool,
    authenticated: bool,
}

impl Guard {
    /// A guard without calls.
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
    pub fn admit(&self, from: IpAddr, now_ns: u64) -> Result<Admitted, CallRefused> {
        let mut book = self.book();
        let decision = book.admit(from.to_canonical(), now_ns);
        let Admission { id, allowance, challenged, displaced } =
            decision.inspect_err(|refused| book.count(*refused))?;
        let guard = self.clone();
        let permit = Permit { guard, id, allowance, challenged, authenticated: false };
        Ok(Admitted { permit, displaced })
    }

    /// Results of calls since the start.
    pub fn counts(&self) -> GuardCounts {
        self.book().counts
    }

    /// Handshakes under way.
    #[cfg(test)]
    pub fn under_way(&self) -> usize {
        self.book().calls.len()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // A poisoned lock is no error: no panic can leave the accounts inconsistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    pub fn id(&self) -> CallId {
        self.id
    }

    /// Time limit of the handshake.
    pub fn allowance(&self) -> Duration {
        self.allowance
    }

    /// Whether the caller has to answer a challenge first.
    pub fn is_challenged(&self) -> bool {
        self.challenged
    }

    /// The caller has answered its challenge: may it have the handshake?
    pub fn answered(&self, now_ns: u64) -> Result<(), CallRefused> {
        let mut book = self.guard.book();
        let rate = book.limits.answered;
        let taken = book.answered.take(rate, now_ns);
        if taken { Ok(()) } else { Err(CallRefused::TotalRate) }
            .inspect_err(|refused| book.count(*refused))
    }

    /// The handshake has proved a peer: its address is remembered, and nothing is charged.
    pub fn authenticated(mut self) {
        self.authenticated = true;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.guard.book().leave(self.id, self.authenticated);
    }
}

/// A source: an IPv4 address or the /64 of an IPv6 address.
type CallSource = IpAddr;

fn source_of(address: IpAddr) -> CallSource {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(a) => {
            let prefix = u128::from(a) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(prefix))
        }
    }
}

#[derive(Debug, Default)]
struct Account {
    under_way: usize,
    /// Handshakes that have failed or are under way.
    failed: Rate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum AccountKey {
    Known(CallSource),
    /// Index in the table of unknown sources.
    Unknown(usize),
}

#[derive(Debug)]
struct Call {
    from: IpAddr,
    account: AccountKey,
    challenged: bool,
}

impl Call {
    fn is_unknown(&self) -> bool {
        matches!(self.account, AccountKey::Unknown(_))
    }
}

struct Admission {
    id: CallId,
    allowance: Duration,
    challenged: bool,
    displaced: Option<CallId>,
}

#[derive(Debug)]
struct Book {
    limits: GuardLimits,
    next: u64,
    /// Handshakes under way, the oldest first.
    calls: BTreeMap<CallId, Call>,
    /// Addresses of the configured peers, by number.
    configured: HashMap<usize, Vec<IpAddr>>,
    /// Addresses that peers have authenticated from, the latest last.
    proved: VecDeque<IpAddr>,
    known: HashMap<CallSource, Account>,
    unknown: Vec<Account>,
    hasher: RandomState,
    /// Of all unknown sources together.
    total: Rate,
    challenges: Rate,
    answered: Rate,
    counts: GuardCounts,
}

impl Book {
    fn new(limits: GuardLimits) -> Self {
        Self {
            limits,
            next: 0,
            calls: BTreeMap::new(),
            configured: HashMap::new(),
            proved: VecDeque::new(),
            known: HashMap::new(),
            unknown: (0..limits.accounts.max(1)).map(|_| Account::default()).collect(),
            hasher: RandomState::new(),
            total: Rate::default(),
            challenges: Rate::default(),
            answered: Rate::default(),
            counts: GuardCounts::default(),
        }
    }

    fn admit(&mut self, from: IpAddr, now_ns: u64) -> Result<Admission, CallRefused> {
        let key = self.key(from);
        let limits = self.limits;
        let is_unknown = matches!(key, AccountKey::Unknown(_));
        if !is_unknown && self.known_under_way() >= limits.slots {
            return Err(CallRefused::Full);
        }
        let slots = limits.slots - if is_unknown { limits.reserved.min(limits.slots) } else { 0 };
        let displaced = if self.calls.len() < slots { None } else { Some(self.displaceable()?) };
        let account = self.account(key);
        if account.under_way >= limits.source_slots {
            return Err(CallRefused::SourceSlots);
        }
        if !account.failed.take(limits.source, now_ns) {
            return Err(CallRefused::SourceRate);
        }
        let challenged = is_unknown && !self.total.take(limits.unknown, now_ns);
        if challenged && !self.challenges.take(limits.challenges, now_ns) {
            return Err(CallRefused::TotalRate);
        }
        if let Some(id) = displaced {
            self.leave(id, false);
            self.counts.displaced += 1;
        }
        self.account(key).under_way += 1;
        let id = CallId(self.next);
        self.next += 1;
        self.calls.insert(id, Call { from, account: key, challenged });
        self.counts.admitted += 1;
        self.counts.challenged += u64::from(challenged);
        let hurry = is_unknown && self.calls.len() * 2 > limits.slots;
        let allowance = if hurry { limits.hurried } else { DEADLINE };
        Ok(Admission { id, allowance, challenged, displaced })
    }

    /// The call that has to go when there is no slot left: of the account with the most of them,
    /// the oldest. Calls of peers stay.
    fn displaceable(&self) -> Result<CallId, CallRefused> {
        let unknown = self.calls.iter().filter(|(_, call)| call.is_unknown());
        let share = |call: &Call| match call.account {
            AccountKey::Unknown(at) => self.unknown[at].under_way,
            AccountKey::Known(_) => 0,
        };
        let most = unknown.max_by_key(|(id, call)| (share(call), std::cmp::Reverse(**id)));
        most.map(|(id, _)| *id).ok_or(CallRefused::Full)
    }

    /// Does nothing for a call that was displaced before, except that it remembers no peer: that
    /// one has lost its connection.
    fn leave(&mut self, id: CallId, authenticated: bool) {
        let Some(Call { from, account: key, challenged }) = self.calls.remove(&id) else { return };
        let limits = self.limits;
        let account = self.account(key);
        account.under_way -= 1;
        if !authenticated {
            return;
        }
        account.failed.give_back(limits.source);
        match (key, challenged) {
            (AccountKey::Known(_), _) => {}
            (AccountKey::Unknown(_), false) => self.total.give_back(limits.unknown),
            (AccountKey::Unknown(_), true) => {
                self.challenges.give_back(limits.challenges);
                self.answered.give_back(limits.answered);
            }
        }
        self.counts.authenticated += 1;
        self.proved.retain(|a| *a != from);
        self.proved.push_back(from);
        if self.proved.len() > limits.proved {
            self.proved.pop_front();
        }
    }

    fn known_under_way(&self) -> usize {
        self.calls.values().filter(|call| !call.is_unknown()).count()
    }

    fn is_known(&self, from: IpAddr) -> bool {
        self.configured.values().any(|addresses| addresses.contains(&from))
            || self.proved.contains(&from)
    }

    fn key(&mut self, from: IpAddr) -> AccountKey {
        let source = source_of(from);
        if !self.is_known(from) {
            let hash = self.hasher.hash_one(source);
            return AccountKey::Unknown((hash % self.unknown.len() as u64) as usize);
        }
        // One for each peer, and the same number of former ones.
        let most = 2 * (self.proved.len() + self.configured.len() * PEER_ADDRESSES);
        if self.known.len() > most {
            let mut sources: Vec<_> = self.proved.iter().copied().map(source_of).collect();
            sources.extend(self.configured.values().flatten().copied().map(source_of));
            self.known.retain(|at, account| account.under_way > 0 || sources.contains(at));
        }
        AccountKey::Known(source)
    }

    fn account(&mut self, key: AccountKey) -> &mut Account {
        match key {
            AccountKey::Unknown(at) => &mut self.unknown[at],
            AccountKey::Known(source) => self.known.entry(source).or_default(),
        }
    }

    fn count(&mut self, refused: CallRefused) {
        *match refused {
            CallRefused::Full => &mut self.counts.refused_full,
            CallRefused::SourceSlots => &mut self.counts.refused_source_slots,
            CallRefused::SourceRate => &mut self.counts.refused_source_rate,
            CallRefused::TotalRate => &mut self.counts.refused_total_rate,
        } += 1;
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

    /// As many unknown sources in all as may be.
    fn without_total() -> GuardLimits {
        let rate = RateLimit::per_second(1000, u64::from(u32::MAX));
        GuardLimits { unknown: rate, ..GuardLimits::default() }
    }

    fn permit(guard: &Guard, from: IpAddr, now_ns: u64) -> Permit {
        guard.admit(from, now_ns).unwrap().permit
    }

    #[test]
    fn unknown_sources_cannot_take_the_slots_of_peers() {
        let guard = Guard::new(without_total());
        guard.set_peer(0, [peer()]);
        let taken: Vec<_> = (0..48).map(|n| guard.admit(unknown(n), 0).unwrap()).collect();
        assert!(taken.iter().all(|admitted| admitted.displaced.is_none()));
        let peers: Vec<_> = (0..16).map(|_| guard.admit(peer(), 0).unwrap()).collect();
        assert!(peers.iter().all(|admitted| admitted.displaced.is_none()));
        assert_eq!(guard.admit(peer(), 0).unwrap_err(), CallRefused::SourceSlots);
        drop(taken);
        assert_eq!(guard.under_way(), 16);
        assert!(guard.admit(unknown(2000), 0).is_ok());
    }

    #[test]
    fn a_peer_displaces_an_unknown_source_and_never_the_reverse() {
        let guard = Guard::new(GuardLimits { slots: 4, reserved: 1, ..without_total() });
        guard.set_peer(0, [peer()]);
        let callers: Vec<_> = (0..3).map(|n| permit(&guard, unknown(n), 0)).collect();
        let peers: Vec<_> = (0..4).map(|_| guard.admit(peer(), 0).unwrap()).collect();
        let displaced: Vec<_> = peers.iter().filter_map(|admitted| admitted.displaced).collect();
        assert_eq!(displaced, callers.iter().map(Permit::id).collect::<Vec<_>>());
        assert_eq!(guard.admit(peer(), 0).unwrap_err(), CallRefused::Full);
        assert_eq!(guard.admit(unknown(9), 0).unwrap_err(), CallRefused::Full);
        drop(callers);
        assert_eq!(guard.under_way(), 4, "what was displaced is not counted again");
    }

    #[test]
    fn the_source_with_the_most_calls_loses_its_oldest() {
        let guard = Guard::new(without_total());
        // Six sources, as many calls as they get: one with a single call is not displaced.
        let modest = permit(&guard, unknown(1000), 0);
        let mut held = Vec::new();
        for n in 0..96 {
            let Ok(admitted) = guard.admit(unknown(n % 6), 0) else { continue };
            assert_ne!(admitted.displaced, Some(modest.id()));
            held.push(admitted.permit);
        }
        let another = guard.admit(unknown(2000), 0).unwrap();
        let greedy: Vec<_> = held.iter().map(Permit::id).collect();
        assert!(greedy.contains(&another.displaced.unwrap()));
        for _ in 0..100 {
            let admitted = guard.admit(unknown(3), 0);
            let displaced = admitted.ok().and_then(|admitted| admitted.displaced);
            assert!(displaced.is_none_or(|id| id != modest.id() && id != another.permit.id()));
        }
        assert!(guard.under_way() <= 48);
    }

    #[test]
    fn beyond_the_rate_of_unknown_sources_they_are_challenged_and_then_refused() {
        let limits = GuardLimits::default();
        let guard = Guard::new(limits);
        guard.set_peer(0, [peer()]);
        let (mut open, mut challenged, mut refused) = (0, 0, 0_u64);
        // 20,000 calls within 2 s, each from another source. No account is evicted.
        for n in 0..20_000u32 {
            match guard.admit(unknown(n), u64::from(n) * SECOND_NS / 10_000) {
                Ok(admitted) if admitted.permit.is_challenged() => challenged += 1,
                Ok(_) => open += 1,
                Err(CallRefused::TotalRate) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
        let most = |rate: RateLimit| rate.burst + 2 * SECOND_NS / rate.each_ns;
        assert!(open <= most(limits.unknown) && open + 2 > limits.unknown.burst, "{open}");
        assert!(challenged <= most(limits.challenges), "{challenged}");
        assert!(refused > 18_000, "{refused}");
        let known = permit(&guard, peer(), 2 * SECOND_NS);
        assert!(!known.is_challenged());
    }

    #[test]
    fn those_that_answer_have_a_rate_which_a_peer_gives_back() {
        let rate = RateLimit::per_second(1, 1);
        let limits = GuardLimits { unknown: rate, ..GuardLimits::default() };
        let guard = Guard::new(limits);
        let _first = permit(&guard, unknown(0), 0);
        for n in 0..500 {
            let peer = permit(&guard, unknown(1000 + n), 0);
            assert!(peer.is_challenged() && peer.answered(0).is_ok());
            peer.authenticated();
        }
        let answered =
            (0..500).filter(|n| permit(&guard, unknown(9000 + n), 0).answered(0).is_ok());
        assert_eq!(answered.count(), limits.answered.burst as usize);
    }

    #[test]
    fn no_account_is_forgotten_because_others_call() {
        let guard = Guard::new(without_total());
        while guard.admit(unknown(1), 0).is_ok() {}
        for n in 0..100_000 {
            let _ = guard.admit(unknown(1000 + n), 0);
        }
        assert_eq!(guard.admit(unknown(1), 0).unwrap_err(), CallRefused::SourceRate);
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
        let taken: Vec<_> = (0..40).map(|n| permit(&guard, unknown(n), 0)).collect();
        assert_eq!(taken[0].allowance(), DEADLINE);
        assert_eq!(taken[39].allowance(), GuardLimits::default().hurried);
        assert_eq!(permit(&guard, peer(), 0).allowance(), DEADLINE);
    }

    #[test]
    fn one_source_is_held_to_its_rate_and_its_share() {
        let limits = without_total();
        let guard = Guard::new(limits);
        let held: Vec<_> = (0..100).map_while(|_| guard.admit(unknown(1), 0).ok()).collect();
        assert_eq!(held.len(), limits.source_slots);
        assert_eq!(guard.admit(unknown(1), 0).unwrap_err(), CallRefused::SourceSlots);
        drop(held);
        let in_ten_seconds =
            (0..10_000).filter(|ms| guard.admit(unknown(1), ms * SECOND_NS / 1000).is_ok()).count();
        let most = (limits.source.burst + 10 * SECOND_NS / limits.source.each_ns) as usize;
        assert!(in_ten_seconds + limits.source_slots <= most, "{in_ten_seconds}");
        assert!(in_ten_seconds + limits.source_slots + 2 > most, "{in_ten_seconds}");
        assert!(guard.admit(unknown(2), 0).is_ok());
    }

    #[test]
    fn a_host_cannot_evade_its_rate_by_other_addresses_of_its_ipv6_prefix() {
        let guard = Guard::new(without_total());
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
        let guard = Guard::new(without_total());
        for _ in 0..1000 {
            permit(&guard, unknown(1), 0).authenticated();
        }
        let _others: Vec<_> = (100..1100).filter_map(|n| guard.admit(unknown(n), 0).ok()).collect();
        assert!(guard.admit(unknown(1), 0).is_ok());
        assert_eq!(guard.counts().authenticated, 1000);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let limits = GuardLimits::default();
        let guard = Guard::new(limits);
        let held: Vec<_> = (0..40).map(|n| permit(&guard, unknown(n), 0)).collect();
        for n in 0..100_000 {
            permit(&guard, unknown(1000 + n), 0).authenticated();
        }
        let book = guard.book();
        assert_eq!(book.unknown.len(), limits.accounts);
        assert!(book.known.len() <= 2 * limits.proved + 1);
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
