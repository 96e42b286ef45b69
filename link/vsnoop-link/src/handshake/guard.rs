//! Limits on the resources that unauthenticated callers may use.
//!
//! Any host that reaches the listener can start a handshake: it costs some hundred microseconds of
//! CPU time, a thread, and seconds of waiting for a silent caller. So handshakes are bounded:
//!
//! - *Known* callers come from addresses of peers, configured or proved before. Their slots and
//!   accounts are apart from those of *unknown sources*, which cannot use them up.
//! - Each source has a rate and a share of the slots. An IPv6 source is a /64, within which a host
//!   may choose its address. A handshake that proves a peer costs its source nothing, unless the
//!   peer has had too many of them; then it counts as a failed one.
//! - All handshakes that prove peers have a rate together. Beyond it known callers are refused.
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
use crate::identity::PeerId;
use crate::rate::{Rate, RateLimit};
use crate::slots::PeerSlot;

/// Most addresses that are taken from the DNS name of a configured peer.
const PEER_ADDRESSES: usize = 16;

/// Limits for unknown sources.
#[derive(Clone, Copy, Debug)]
pub struct GuardLimits {
    /// Handshakes under way, of all sources.
    pub slots: usize,
    /// Slots that only known sources get.
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
    /// Handshakes that prove one peer, at no cost for its source.
    pub peer: RateLimit,
    /// Handshakes that prove any peer.
    pub peers: RateLimit,
    /// Accounts that unknown sources share; peers have as many.
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
            // A session over TLS makes up to 33, and may fail a few times.
            peer: RateLimit::per_second(4, 128),
            // A quarter of a CPU. At once a fleet of a thousand peers, each with 16 connections:
            // they come when their hub was started again.
            peers: RateLimit::per_second(512, 36_000),
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
    /// Peers have had too many.
    PeersRate,
}

impl fmt::Display for CallRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "too many handshakes are under way",
            Self::SourceSlots => "too many handshakes of this source are under way",
            Self::SourceRate => "too many handshakes of this source have failed",
            Self::TotalRate => "too many handshakes of unknown sources have failed",
            Self::PeersRate => "peers have made too many handshakes",
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
    pub refused_peers_rate: u64,
}

impl GuardCounts {
    /// Callers that were turned away before they had said anything, or could say more.
    pub fn turned_away(&self) -> u64 {
        self.displaced
            + self.refused_full
            + self.refused_source_slots
            + self.refused_source_rate
            + self.refused_total_rate
            + self.refused_peers_rate
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
    proof: Option<CallProof>,
}

/// The peer that a handshake has proved.
#[derive(Debug)]
struct CallProof {
    peer: PeerId,
    at_ns: u64,
}

impl Guard {
    /// A guard without calls.
    pub fn new(limits: GuardLimits) -> Self {
        Self(Arc::new(Mutex::new(Book::new(limits))))
    }

    /// Replaces the addresses of a configured peer. The guard takes the first [`PEER_ADDRESSES`].
    pub fn set_peer(&self, peer: PeerSlot, addresses: impl IntoIterator<Item = IpAddr>) {
        let addresses = addresses.into_iter().map(|a| a.to_canonical()).take(PEER_ADDRESSES);
        self.lock_book().configured.insert(peer, addresses.collect());
    }

    /// May a caller from this address have a handshake, now?
    pub fn admit_caller(&self, from: IpAddr, now_ns: u64) -> Result<Admitted, CallRefused> {
        let mut book = self.lock_book();
        let decision = book.admit_call(from.to_canonical(), now_ns);
        let Admission { id, allowance, challenged, displaced } =
            decision.inspect_err(|refused| book.count_refusal(*refused))?;
        let guard = self.clone();
        let permit = Permit { guard, id, allowance, challenged, proof: None };
        Ok(Admitted { permit, displaced })
    }

    /// Results of calls since the start.
    pub fn counts(&self) -> GuardCounts {
        self.lock_book().counts
    }

    /// Handshakes under way.
    #[cfg(test)]
    pub fn under_way(&self) -> usize {
        self.lock_book().calls.len()
    }

    fn lock_book(&self) -> MutexGuard<'_, Book> {
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
    pub fn note_answered(&self, now_ns: u64) -> Result<(), CallRefused> {
        let mut book = self.guard.lock_book();
        let rate = book.limits.answered;
        let taken = book.answered.take(rate, now_ns);
        if taken { Ok(()) } else { Err(CallRefused::TotalRate) }
            .inspect_err(|refused| book.count_refusal(*refused))
    }

    /// The handshake has proved a peer: its address is remembered, and nothing is charged if the
    /// peer has not had too many.
    pub fn note_authenticated(mut self, peer: &PeerId, now_ns: u64) {
        self.proof = Some(CallProof { peer: peer.clone(), at_ns: now_ns });
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.guard.lock_book().end_call(self.id, self.proof.as_ref());
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

/// The position of an account in the table of unknown sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct UnknownIndex(usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum AccountKey {
    Known(CallSource),
    Unknown(UnknownIndex),
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
    /// Addresses of the configured peers.
    configured: HashMap<PeerSlot, Vec<IpAddr>>,
    /// Addresses that peers have authenticated from, the latest last.
    proved: VecDeque<IpAddr>,
    known: HashMap<CallSource, Account>,
    unknown: Vec<Account>,
    hasher: RandomState,
    /// The calls of all unknown sources together.
    total: Rate,
    challenges: Rate,
    answered: Rate,
    /// Handshakes that have proved peers: of each, and of all.
    by_peer: HashMap<PeerId, Rate>,
    peers: Rate,
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
            by_peer: HashMap::new(),
            peers: Rate::default(),
            counts: GuardCounts::default(),
        }
    }

    fn admit_call(&mut self, from: IpAddr, now_ns: u64) -> Result<Admission, CallRefused> {
        let key = self.account_key(from);
        let limits = self.limits;
        let is_unknown = matches!(key, AccountKey::Unknown(_));
        if !is_unknown && self.known_under_way() >= limits.slots {
            return Err(CallRefused::Full);
        }
        if !is_unknown && !self.peers.allows(limits.peers, now_ns) {
            return Err(CallRefused::PeersRate);
        }
        let slots = limits.slots - if is_unknown { limits.reserved.min(limits.slots) } else { 0 };
        let displaced =
            if self.calls.len() < slots { None } else { Some(self.find_displaceable()?) };
        let account = self.find_account(key);
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
            self.end_call(id, None);
            self.counts.displaced += 1;
        }
        self.find_account(key).under_way += 1;
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
    fn find_displaceable(&self) -> Result<CallId, CallRefused> {
        let unknown = self.calls.iter().filter(|(_, call)| call.is_unknown());
        let share = |call: &Call| match call.account {
            AccountKey::Unknown(at) => self.unknown[at.0].under_way,
            AccountKey::Known(_) => 0,
        };
        let most = unknown.max_by_key(|(id, call)| (share(call), std::cmp::Reverse(**id)));
        most.map(|(id, _)| *id).ok_or(CallRefused::Full)
    }

    /// Does nothing for a call that was displaced before, except that it remembers no peer: that
    /// one has lost its connection.
    fn end_call(&mut self, id: CallId, proof: Option<&CallProof>) {
        let Some(Call { from, account: key, challenged }) = self.calls.remove(&id) else { return };
        let limits = self.limits;
        self.find_account(key).under_way -= 1;
        let Some(proof) = proof else { return };
        if self.is_free(proof) {
            self.find_account(key).failed.give_back(limits.source);
            match (key, challenged) {
                (AccountKey::Known(_), _) => {}
                (AccountKey::Unknown(_), false) => self.total.give_back(limits.unknown),
                (AccountKey::Unknown(_), true) => {
                    self.challenges.give_back(limits.challenges);
                    self.answered.give_back(limits.answered);
                }
            }
        }
        self.counts.authenticated += 1;
        self.proved.retain(|a| *a != from);
        self.proved.push_back(from);
        if self.proved.len() > limits.proved {
            self.proved.pop_front();
        }
    }

    /// Takes a handshake that has proved a peer from what the peer, and all of them, may have.
    /// `false`: it had too many, or all had.
    fn is_free(&mut self, proof: &CallProof) -> bool {
        let CallProof { peer, at_ns } = proof;
        let limits = self.limits;
        let is_in_rate = self.peers.take(limits.peers, *at_ns);
        if self.by_peer.len() >= limits.accounts && !self.by_peer.contains_key(peer) {
            self.by_peer.retain(|_, rate| !rate.is_unused(*at_ns));
            if self.by_peer.len() >= limits.accounts {
                return false;
            }
        }
        self.by_peer.entry(peer.clone()).or_default().take(limits.peer, *at_ns) && is_in_rate
    }

    fn known_under_way(&self) -> usize {
        self.calls.values().filter(|call| !call.is_unknown()).count()
    }

    fn is_known(&self, from: IpAddr) -> bool {
        self.configured.values().any(|addresses| addresses.contains(&from))
            || self.proved.contains(&from)
    }

    fn account_key(&mut self, from: IpAddr) -> AccountKey {
        let source = source_of(from);
        if !self.is_known(from) {
            let hash = self.hasher.hash_one(source);
            let index = (hash % self.unknown.len() as u64) as usize;
            return AccountKey::Unknown(UnknownIndex(index));
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

    fn find_account(&mut self, key: AccountKey) -> &mut Account {
        match key {
            AccountKey::Unknown(at) => &mut self.unknown[at.0],
            AccountKey::Known(source) => self.known.entry(source).or_default(),
        }
    }

    fn count_refusal(&mut self, refused: CallRefused) {
        *match refused {
            CallRefused::Full => &mut self.counts.refused_full,
            CallRefused::SourceSlots => &mut self.counts.refused_source_slots,
            CallRefused::SourceRate => &mut self.counts.refused_source_rate,
            CallRefused::TotalRate => &mut self.counts.refused_total_rate,
            CallRefused::PeersRate => &mut self.counts.refused_peers_rate,
        } += 1;
    }
}

#[cfg(test)]
mod tests;
