//! Between the thread that talks to etcd and the link.

use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tracing::{info, warn};
use vsnoop_etcd::{Announcement, Event, Member, Settings, make_printable};
use vsnoop_link::identity::PublicKey;

use super::document::HostDocument;
use super::roster::Roster;
use super::settings::{self, SettingsError};
use crate::causes::with_causes;
use crate::config::{Address, Config, EtcdConfig, PeerConfig};
use crate::control::{MembershipStatus, RefusedEntry};
use crate::io::wake;

/// Changes that come within this time of each other are applied together.
const BATCH: Duration = Duration::from_millis(100);
/// Time from a write to etcd until all other hosts know the new key.
const KEY_KNOWN: Duration = Duration::from_secs(1);
/// The old key is announced beside the new one for this long.
const KEYS_OVERLAP: Duration = Duration::from_secs(60);
/// The end of the lease is waited for, so that others hear of the end of the link.
const LAST_WORD: Duration = Duration::from_secs(3);
/// Entries that a status names.
const REFUSED_SHOWN: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("making an eventfd for etcd")]
    Channel(#[source] std::io::Error),
    #[error("starting the thread for etcd")]
    Thread(#[source] std::io::Error),
}

/// A key of this host that is replaced.
struct OldKey {
    key: PublicKey,
    /// Since when etcd has the new one.
    known: Option<Instant>,
    /// Whether sessions are to be made anew with the new one.
    is_due: bool,
}

/// State of the connection to etcd, for the status.
#[derive(Default)]
struct State {
    endpoint: Option<String>,
    is_connected: bool,
    /// Seconds since the epoch.
    since: u64,
    reason: Option<String>,
    revision: i64,
    is_announced: bool,
    not_announced: Option<String>,
}

/// The hosts of etcd.
pub struct Membership {
    pub roster: Roster,
    member: Member,
    pub settings: Settings,
    etcd: EtcdConfig,
    listen: std::net::SocketAddr,
    key: PublicKey,
    old_key: Option<OldKey>,
    local: Option<IpAddr>,
    state: State,
    /// There is something to apply.
    is_changed: bool,
    /// When it was applied last.
    applied: Option<Instant>,
}

impl Membership {
    /// Reads files; `None` without `[etcd]`.
    pub fn etcd_settings(config: &Config) -> Result<Option<Settings>, SettingsError> {
        config.etcd.as_ref().map(|etcd| settings::read(config, etcd)).transpose()
    }

    /// Starts the thread. Called after privileges were given up. `before`: the hosts that are known
    /// already.
    pub fn start(
        file: &Config,
        (etcd, settings): (&EtcdConfig, Settings),
        key: PublicKey,
        before: Option<Roster>,
        events: wake::Sender<Event>,
    ) -> Result<Self, MembershipError> {
        let mut roster = before.unwrap_or_else(|| Roster::new(file, etcd, &settings.name, key));
        roster.reload(file, etcd, &settings.name, key);
        let member = vsnoop_etcd::start_member(settings.clone(), move |event| events.send(event))
            .map_err(MembershipError::Thread)?;
        let state = State { since: now_s(), ..State::default() };
        let (etcd, listen) = (etcd.clone(), file.listen);
        let mut this = Self {
            roster,
            member,
            settings,
            etcd,
            listen,
            key,
            old_key: None,
            local: None,
            state,
            is_changed: false,
            applied: None,
        };
        this.announce_host();
        Ok(this)
    }

    /// Ends the thread, which ends the lease; what is known of the hosts stays.
    pub fn into_roster(self) -> Roster {
        self.roster
    }

    /// Whether other hosts cannot know the key of this one now.
    pub fn has_unknown_key(&self) -> bool {
        !self.state.is_connected && self.old_key.as_ref().is_some_and(|old| old.known.is_none())
    }

    /// Goes on with another configuration, or another key.
    pub fn reload(&mut self, file: &Config, etcd: &EtcdConfig, key: PublicKey) {
        if key != self.key {
            let old = std::mem::replace(&mut self.key, key);
            self.old_key = Some(OldKey { key: old, known: None, is_due: true });
        }
        self.roster.reload(file, etcd, &self.settings.name, key);
        self.is_changed = true;
        let is_other = self.etcd.addresses != etcd.addresses;
        self.etcd = etcd.clone();
        if is_other || self.old_key.as_ref().is_some_and(|old| old.known.is_none()) {
            self.announce_host();
        }
    }

    /// This host's entry. Without an address it is not written yet.
    fn find_addresses(&self) -> Option<Vec<Address>> {
        if !self.etcd.addresses.is_empty() {
            return Some(self.etcd.addresses.clone());
        }
        let listens = Some(self.listen.ip()).filter(|ip| !ip.is_unspecified());
        let ip = listens.or(self.local)?.to_canonical();
        let address = Address { host: ip.to_string(), port: self.listen.port() };
        (!ip.is_loopback()).then(|| vec![address])
    }

    fn announce_host(&mut self) {
        let Some(addresses) = self.find_addresses() else {
            if let Some(local) = self.local {
                self.not_announced(format!(
                    "this host reaches etcd by {local}, which is no address for other hosts: set \
                     etcd.address"
                ));
            }
            return;
        };
        let old = self.old_key.as_ref().map(|old| old.key);
        let keys: Vec<_> = [self.key].into_iter().chain(old).collect();
        let value = HostDocument { keys: keys.clone(), addresses }.write();
        // An earlier process of this host may have left it.
        let is_ours = move |value: &[u8]| {
            HostDocument::read(Some(value))
                .is_ok_and(|there| there.keys.iter().any(|key| keys.contains(key)))
        };
        self.member.announce(Announcement { value, is_ours: Box::new(is_ours) });
    }

    fn not_announced(&mut self, why: String) {
        if self.state.not_announced.as_ref() != Some(&why) {
            warn!("this host is not announced in etcd: {why}");
        }
        self.state.is_announced = false;
        self.state.not_announced = Some(why);
    }

    /// Takes what the thread tells.
    pub fn handle_event(&mut self, event: Event, now_ns: u64) {
        match event {
            Event::Connected { endpoint, local } => {
                info!("etcd: connected to {endpoint}");
                let endpoint = Some(endpoint);
                let (is_connected, since) = (true, now_s());
                let State { is_announced, not_announced, revision, .. } =
                    std::mem::take(&mut self.state);
                self.state = State {
                    endpoint,
                    is_connected,
                    since,
                    revision,
                    is_announced,
                    not_announced,
                    ..State::default()
                };
                if self.local != local {
                    self.local = local;
                    self.announce_host();
                }
            }
            Event::Away { endpoint, error } => {
                let why = format!("{endpoint}: {}", with_causes(&error));
                let is_news = self.state.reason.as_ref() != Some(&why);
                if std::mem::take(&mut self.state.is_connected) {
                    self.state.since = now_s();
                }
                if is_news {
                    warn!("etcd is away, what is known goes on: {}", make_printable(&why));
                }
                self.state.reason = Some(why);
            }
            Event::Entries { revision, entries, more } => {
                self.state.revision = revision;
                self.roster.replace_entries(entries, more, now_ns);
                self.is_changed = true;
            }
            Event::Changed { revision, changes } => {
                self.state.revision = revision;
                changes.into_iter().for_each(|change| self.roster.apply_change(change, now_ns));
                self.is_changed = true;
            }
            Event::Announced => {
                self.state.is_announced = true;
                self.state.not_announced = None;
                if let Some(old) = &mut self.old_key {
                    old.known.get_or_insert_with(Instant::now);
                }
            }
            Event::NotAnnounced { error } => self.not_announced(with_causes(&error)),
        }
    }

    /// When [`Self::take_due`] has something to do at last.
    pub fn next_wait(&self) -> Option<Duration> {
        let left = |since: Instant, wait: Duration| wait.saturating_sub(since.elapsed());
        let batch =
            self.is_changed.then(|| self.applied.map_or(Duration::ZERO, |at| left(at, BATCH)));
        let known = self.old_key.as_ref().and_then(|old| {
            let wait = if old.is_due { KEY_KNOWN } else { KEYS_OVERLAP };
            Some(left(old.known?, wait))
        });
        batch.into_iter().chain(known).min()
    }

    /// Whether the peers may be others now. `is_up`: whether the peer of this name has a session.
    pub fn take_due(&mut self, now_ns: u64, is_up: impl Fn(&str) -> bool) -> bool {
        if self.roster.is_unsettled() && self.roster.settle_peers(now_ns, is_up) {
            self.is_changed = true;
        }
        let is_due = self.applied.is_none_or(|at| at.elapsed() >= BATCH);
        let is_changed = is_due && std::mem::take(&mut self.is_changed);
        if is_changed {
            self.applied = Some(Instant::now());
        }
        is_changed
    }

    /// Whether sessions are to be made anew, because other hosts know a new key of this one.
    pub fn is_renewal_due(&mut self) -> bool {
        let Some(old) = &mut self.old_key else { return false };
        let Some(known) = old.known else { return false };
        if known.elapsed() >= KEYS_OVERLAP {
            self.old_key = None;
            self.announce_host();
            return false;
        }
        let is_due = old.is_due && known.elapsed() >= KEY_KNOWN;
        if is_due {
            old.is_due = false;
        }
        is_due
    }

    /// The peers of the file, and those of etcd that are none of these.
    pub fn peers(&self, file: &Config) -> Vec<PeerConfig> {
        let mut peers = file.peers.clone();
        let is_other = |peer: &PeerConfig| {
            file.peers.iter().all(|known| known.name != peer.name && !known.shares_key(peer))
        };
        peers.extend(self.roster.peers().filter(is_other).map(|mut peer| {
            if !self.etcd.template.says_dictionary {
                peer.accept.dictionary_bytes = file.compress.largest_dictionary(&peer.name);
            }
            peer
        }));
        peers
    }

    pub fn status(&self) -> MembershipStatus {
        let state = &self.state;
        let refused = self.roster.refused();
        let refused = refused.map(|(name, reason)| RefusedEntry { name, reason: reason.into() });
        MembershipStatus {
            source: "etcd".into(),
            name: Some(self.settings.name.clone()),
            key: Some(format!("{}{}", self.settings.directory, self.settings.name)),
            endpoint: state.endpoint.clone(),
            connected: state.is_connected,
            since: state.since,
            reason: state.reason.as_deref().map(make_printable),
            revision: state.revision,
            hosts: self.roster.count_peers() as u64,
            more: self.roster.more,
            announced: state.is_announced,
            not_announced: state.not_announced.clone(),
            leaving: self.roster.list_leaving().map(str::to_owned).collect(),
            refused: refused.take(REFUSED_SHOWN).collect(),
        }
    }

    /// Others hear that this host has left.
    pub fn end(self) {
        self.member.end(LAST_WORD);
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
