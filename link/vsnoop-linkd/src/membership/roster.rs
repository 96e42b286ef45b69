//! Decides which hosts of etcd and of the file are peers. No input or output.
//!
//! | what etcd says | what becomes of the peer |
//! |---|---|
//! | an entry that is in order | it is one, with these keys and addresses |
//! | invalid entry | refused and named; an existing peer stays unchanged |
//! | it has expired, or is missing after a time without etcd | it stays while its session is up |
//! | an operator has deleted the entry of a live host | it is gone |
//!
//! A host that stays for its session does so for `grace` at most. A peer of the file has precedence
//! over an entry of its name, and the first host with a key over later ones with the same key.
//!
//! Each new address is called at once, and an entry may name any. So an entry is taken at a bounded
//! rate ([`CHANGES`]), also a new one of the same name: more changes wait, and the last one counts.

use std::collections::BTreeMap;

use tracing::{info, warn};
use vsnoop_etcd::{Change, ENTRIES, Entry, make_printable};
use vsnoop_link::identity::PublicKey;
use vsnoop_link::rate::{Rate, RateLimit};

use super::document::{DocumentError, HostDocument};
use crate::config::{self, Config, EtcdConfig, PeerConfig, PeerTemplate, TrustConfig, ValueError};

/// How often an entry of a name may say something else. A host that is started again and again by
/// an operator is within it.
const CHANGES: RateLimit = RateLimit { each_ns: 10_000_000_000, burst: 8 };
/// Names of which it is known how often they have changed: those of all hosts, and as many that
/// have gone.
const NAMES: usize = 2 * ENTRIES;

/// Why an entry is not taken.
#[derive(Debug, thiserror::Error)]
pub enum EntryRefusal {
    #[error("its name cannot be that of a host: {0}")]
    Name(ValueError),
    #[error(transparent)]
    HostDocument(#[from] DocumentError),
    #[error("the file has a [[peer]] of this name, which counts")]
    InFile,
    #[error("it has the key of this host")]
    OwnKey,
    #[error("it has a key of {0}")]
    SameKey(String),
    #[error("there are more than {ENTRIES} hosts")]
    TooMany,
    #[error("it changes more often than once in 10 s; it is taken later")]
    TooOften,
}

/// A host that is a peer.
#[derive(Clone, Debug)]
struct Host {
    document: HostDocument,
    /// The entry that it was read from, to check it again.
    value: Option<Vec<u8>>,
    created: i64,
    /// Time at which its entry left etcd.
    gone_ns: Option<u64>,
}

struct Refused {
    entry: Entry,
    why: String,
    /// Because of others, or of the time; it may be in order later.
    waits: bool,
    /// It changes too often.
    is_late: bool,
}

/// The parts of the configuration file that decide which hosts may be peers.
struct FileRules {
    template: PeerTemplate,
    /// Names and keys of its peers.
    peers: Vec<(String, Vec<PublicKey>)>,
    grace_ns: u64,
}

pub struct Roster {
    rules: FileRules,
    own_name: String,
    own_key: PublicKey,
    hosts: BTreeMap<String, Host>,
    refused: BTreeMap<String, Refused>,
    /// How often an entry of a name has changed.
    changes: BTreeMap<String, Rate>,
    /// The time of the last call that has told it.
    now_ns: u64,
    /// Entries are left out.
    pub more: bool,
}

impl EntryRefusal {
    /// Whether the same entry may be in order later.
    fn may_pass(&self) -> bool {
        !matches!(self, Self::Name(_) | Self::HostDocument(_))
    }
}

impl FileRules {
    fn new(file: &Config, etcd: &EtcdConfig) -> Self {
        let keys = |peer: &PeerConfig| match &peer.trust {
            TrustConfig::Keys(keys) => keys.clone(),
            TrustConfig::Subject(_) => Vec::new(),
        };
        let peers = file.peers.iter().map(|peer| (peer.name.clone(), keys(peer))).collect();
        let (template, grace_ns) = (etcd.template.clone(), etcd.grace.as_nanos() as u64);
        Self { template, peers, grace_ns }
    }
}

impl Roster {
    /// An empty roster. `own_name`: the name of this host in etcd.
    pub fn new(file: &Config, etcd: &EtcdConfig, own_name: &str, own_key: PublicKey) -> Self {
        Self {
            rules: FileRules::new(file, etcd),
            own_name: own_name.to_owned(),
            own_key,
            hosts: BTreeMap::new(),
            refused: BTreeMap::new(),
            changes: BTreeMap::new(),
            now_ns: 0,
            more: false,
        }
    }

    /// The file, or the key of this host, is another one: all entries are looked at again.
    pub fn reload(&mut self, file: &Config, etcd: &EtcdConfig, own_name: &str, own_key: PublicKey) {
        self.rules = FileRules::new(file, etcd);
        self.own_name = own_name.to_owned();
        self.own_key = own_key;
        self.hosts.remove(own_name);
        let wrong: Vec<_> = self
            .hosts
            .iter()
            .filter_map(|(name, host)| {
                Some((name.clone(), self.find_conflict(name, &host.document)?))
            })
            .collect();
        for (name, why) in wrong {
            let Some(Host { value, created, .. }) = self.hosts.remove(&name) else { continue };
            self.refuse_entry(Entry { name, value, created }, &why);
        }
        self.look_again();
    }

    /// All that there is now in etcd.
    pub fn replace_entries(&mut self, mut entries: Vec<Entry>, more: bool, now_ns: u64) {
        (self.more, self.now_ns) = (more, now_ns);
        self.refused.clear();
        for host in self.hosts.values_mut() {
            host.gone_ns.get_or_insert(now_ns);
        }
        entries.sort_by_key(|entry| entry.created);
        entries.into_iter().for_each(|entry| self.put_entry(entry));
        self.look_again();
    }

    pub fn apply_change(&mut self, change: Change, now_ns: u64) {
        self.now_ns = now_ns;
        match change {
            Change::Put(entry) => self.put_entry(entry),
            Change::Expired { name } => {
                self.refused.remove(&name);
                if let Some(host) = self.hosts.get_mut(&name) {
                    host.gone_ns.get_or_insert(now_ns);
                }
            }
            Change::Deleted { name } => {
                self.refused.remove(&name);
                if self.hosts.remove(&name).is_some() {
                    info!("host {name}: its entry was deleted in etcd");
                    self.look_again();
                }
            }
        }
    }

    fn put_entry(&mut self, entry: Entry) {
        if entry.name == self.own_name {
            return;
        }
        match self.check_entry(&entry) {
            Ok(document) => {
                self.note_change(&entry.name, &document);
                let Entry { name, value, created } = entry;
                self.refused.remove(&name);
                let keys = document.keys.clone();
                let host = Host { document, value, created, gone_ns: None };
                let before = self.hosts.insert(name, host);
                if before.is_some_and(|before| before.document.keys != keys) {
                    self.look_again();
                }
            }
            Err(why) => {
                // What it said before counts.
                if let Some(host) = self.hosts.get_mut(&entry.name) {
                    host.gone_ns = None;
                }
                self.refuse_entry(entry, &why);
            }
        }
    }

    fn check_entry(&self, entry: &Entry) -> Result<HostDocument, EntryRefusal> {
        config::parse_name(&entry.name).map_err(EntryRefusal::Name)?;
        let document = HostDocument::read(entry.value.as_deref())?;
        if let Some(why) = self.find_conflict(&entry.name, &document) {
            return Err(why);
        }
        if self.hosts.len() >= ENTRIES && !self.hosts.contains_key(&entry.name) {
            return Err(EntryRefusal::TooMany);
        }
        if self.is_news(&entry.name, &document)
            && let Some(changes) = self.changes.get(&entry.name)
            && !changes.allows(CHANGES, self.now_ns)
        {
            return Err(EntryRefusal::TooOften);
        }
        Ok(document)
    }

    fn is_news(&self, name: &str, document: &HostDocument) -> bool {
        self.hosts.get(name).is_none_or(|known| known.document != *document)
    }

    fn note_change(&mut self, name: &str, document: &HostDocument) {
        if !self.is_news(name, document) {
            return;
        }
        if self.changes.len() >= NAMES && !self.changes.contains_key(name) {
            let (hosts, now_ns) = (&self.hosts, self.now_ns);
            self.changes
                .retain(|name, changes| hosts.contains_key(name) || !changes.is_unused(now_ns));
            // More have come and gone of late than are kept: the first by name are forgotten.
            while self.changes.len() >= NAMES {
                self.changes.pop_first();
            }
        }
        let changes = self.changes.entry(name.to_owned()).or_default();
        changes.charge(1, CHANGES, self.now_ns);
    }

    /// Each key belongs to one peer, and none to this host.
    fn find_conflict(&self, name: &str, document: &HostDocument) -> Option<EntryRefusal> {
        let shares = |keys: &[PublicKey]| keys.iter().any(|key| document.keys.contains(key));
        if self.rules.peers.iter().any(|(peer, _)| peer == name) {
            return Some(EntryRefusal::InFile);
        }
        if shares(&[self.own_key]) {
            return Some(EntryRefusal::OwnKey);
        }
        let of_file = self.rules.peers.iter().map(|(peer, keys)| (peer, &keys[..]));
        let of_hosts = self.hosts.iter().map(|(host, known)| (host, &known.document.keys[..]));
        let mut others = of_file.chain(of_hosts).filter(|(other, _)| *other != name);
        let other = others.find(|(_, keys)| shares(keys))?.0;
        Some(EntryRefusal::SameKey(other.clone()))
    }

    /// Reports a refused entry, and keeps it: it may become valid later.
    fn refuse_entry(&mut self, entry: Entry, why: &EntryRefusal) {
        let is_late = matches!(why, EntryRefusal::TooOften);
        let (waits, why) = (why.may_pass(), why.to_string());
        let known = self.refused.get(&entry.name);
        if known.is_none() && self.refused.len() >= ENTRIES {
            self.more = true;
            return;
        }
        if known.is_none_or(|known| known.why != why) {
            warn!("the entry {} in etcd is not taken: {why}", make_printable(&entry.name));
        }
        self.refused.insert(entry.name.clone(), Refused { entry, why, waits, is_late });
    }

    /// Takes what was refused because of another that is gone.
    fn look_again(&mut self) {
        let waiting: Vec<_> = self
            .refused
            .values()
            .filter(|refused| refused.waits && self.check_entry(&refused.entry).is_ok())
            .map(|refused| refused.entry.clone())
            .collect();
        waiting.into_iter().for_each(|entry| self.put_entry(entry));
    }

    /// Lets those go that are not in etcd any more and whose session is not up, or was for as long
    /// as it may be, and takes the entries that have waited. Whether any has.
    pub fn settle_peers(&mut self, now_ns: u64, is_up: impl Fn(&str) -> bool) -> bool {
        self.now_ns = now_ns;
        let waiting = self.list_waiting().count();
        if waiting > 0 {
            self.look_again();
        }
        let is_taken = self.list_waiting().count() != waiting;
        let (before, grace_ns) = (self.hosts.len(), self.rules.grace_ns);
        self.hosts.retain(|name, host| {
            let Some(gone_ns) = host.gone_ns else { return true };
            let stays = is_up(name) && now_ns.saturating_sub(gone_ns) < grace_ns;
            if !stays {
                info!("host {name} is gone from etcd");
            }
            stays
        });
        let is_other = self.hosts.len() != before;
        if is_other {
            self.look_again();
        }
        is_other || is_taken
    }

    /// Entries that change too often.
    fn list_waiting(&self) -> impl Iterator<Item = &Refused> {
        self.refused.values().filter(|refused| refused.is_late)
    }

    /// Whether [`settle_peers`](Self::settle_peers) may have something to do.
    pub fn is_unsettled(&self) -> bool {
        self.hosts.values().any(|host| host.gone_ns.is_some())
            || self.list_waiting().next().is_some()
    }

    /// The peers that etcd adds to those of the file, by name.
    pub fn peers(&self) -> impl Iterator<Item = PeerConfig> {
        self.hosts.iter().map(|(name, host)| {
            let HostDocument { keys, addresses } = host.document.clone();
            self.rules.template.make_peer(name, keys, addresses)
        })
    }

    /// Hosts that are in etcd now.
    pub fn count_peers(&self) -> usize {
        self.hosts.values().filter(|host| host.gone_ns.is_none()).count()
    }

    /// Hosts that are gone, and stay while their session does.
    pub fn list_leaving(&self) -> impl Iterator<Item = &str> {
        let gone = self.hosts.iter().filter(|(_, host)| host.gone_ns.is_some());
        gone.map(|(name, _)| name.as_str())
    }

    /// Names and reasons.
    pub fn refused(&self) -> impl Iterator<Item = (String, &str)> {
        self.refused.iter().map(|(name, refused)| (make_printable(name), refused.why.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;
    const GRACE_NS: u64 = 60 * SECOND_NS;

    fn key(letter: char) -> String {
        // A key of 32 equal bytes.
        match letter {
            'b' => "YmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmI=",
            'c' => "Y2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2M=",
            'd' => "ZGRkZGRkZGRkZGRkZGRkZGRkZGRkZGRkZGRkZGRkZGQ=",
            _ => "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=",
        }
        .to_owned()
    }

    fn roster(peers: &str) -> Roster {
        let text = format!(
            "[link]\n[[port]]\nbridge = \"br0\"\n[etcd]\nendpoints = \"http://192.0.2.1\"\n\
             grace = \"60s\"\n{peers}"
        );
        let file = Config::parse(Path::new("/office.toml"), &text).unwrap();
        let etcd = file.etcd.clone().unwrap();
        Roster::new(&file, &etcd, "a", key('a').parse().unwrap())
    }

    fn entry(name: &str, key_of: char, created: i64) -> Entry {
        let value = format!(r#"{{"version":1,"keys":["{}"]}}"#, key(key_of));
        Entry { name: name.to_owned(), value: Some(value.into()), created }
    }

    fn peers(roster: &Roster) -> Vec<String> {
        roster.peers().map(|peer| peer.name).collect()
    }

    fn refused(roster: &Roster) -> Vec<String> {
        roster.refused().map(|(name, _)| name).collect()
    }

    #[test]
    fn the_first_who_has_a_key_counts_and_the_next_when_it_is_gone() {
        let mut roster = roster("");
        // In the order in which they were made, whatever their names.
        roster.replace_entries(vec![entry("b", 'b', 7), entry("x", 'b', 3)], false, 0);
        assert_eq!((peers(&roster), refused(&roster)), (vec!["x".into()], vec!["b".into()]));
        // One that is known stays, whatever comes.
        roster.replace_entries(vec![entry("x", 'b', 9), entry("b", 'b', 1)], false, 0);
        assert_eq!(peers(&roster), ["x"]);
        roster.apply_change(Change::Deleted { name: "x".into() }, 0);
        assert_eq!((peers(&roster), refused(&roster)), (vec!["b".into()], vec![]));
    }

    #[test]
    fn nobody_is_this_host_or_a_peer_of_the_file() {
        let mut roster = roster(&format!("[[peer]]\nname = \"b\"\nkey = \"{}\"\n", key('b')));
        let entries = [("a", 'd'), ("b", 'c'), ("mine", 'a'), ("thief", 'b'), ("c", 'c')];
        let entries = entries.map(|(name, key_of)| entry(name, key_of, 1)).to_vec();
        roster.replace_entries(entries, false, 0);
        assert_eq!(peers(&roster), ["c"]);
        assert_eq!(refused(&roster), ["b", "mine", "thief"]);
    }

    #[test]
    fn who_is_gone_stays_while_its_session_does_and_not_for_ever() {
        let mut roster = roster("");
        let all = || vec![entry("b", 'b', 1), entry("c", 'c', 1)];
        roster.replace_entries(all(), false, 0);
        roster.apply_change(Change::Expired { name: "b".into() }, 0);
        assert!(!roster.settle_peers(GRACE_NS - 1, |_| true));
        assert_eq!((roster.count_peers(), peers(&roster).len()), (1, 2));
        // It comes back: all is as it was, and its time begins anew.
        roster.apply_change(Change::Put(entry("b", 'b', 2)), GRACE_NS);
        roster.apply_change(Change::Expired { name: "b".into() }, GRACE_NS);
        assert!(!roster.settle_peers(2 * GRACE_NS - 1, |_| true));
        assert!(roster.settle_peers(2 * GRACE_NS, |_| true));
        assert_eq!(peers(&roster), ["c"]);
        // A peer without a session is removed at once.
        roster.replace_entries(all(), false, 0);
        roster.replace_entries(vec![entry("c", 'c', 1)], false, 5);
        assert_eq!(roster.list_leaving().collect::<Vec<_>>(), ["b"]);
        assert!(roster.settle_peers(5, |name| name != "b"));
        assert_eq!(peers(&roster), ["c"]);
    }

    #[test]
    fn a_value_that_is_wrong_leaves_the_peer_as_it_was() {
        let mut roster = roster("");
        roster.replace_entries(vec![entry("b", 'b', 1)], false, 0);
        let before: Vec<_> = roster.peers().collect();
        let bad = Entry { name: "b".into(), value: Some(b"{".to_vec()), created: 1 };
        roster.apply_change(Change::Put(bad), 0);
        assert_eq!(
            (roster.peers().collect::<Vec<_>>(), refused(&roster)),
            (before, vec!["b".into()])
        );
        roster.apply_change(Change::Put(entry("b", 'c', 1)), 0);
        assert_eq!(refused(&roster), Vec::<String>::new());
    }

    #[test]
    fn an_entry_that_changes_all_the_time_is_taken_every_ten_seconds() {
        let calls = |deletes: bool| {
            let mut roster = roster("");
            let (mut last, mut taken) = (None, 0);
            // Ten times a second.
            for tick in 0..600 {
                let now_ns = tick * SECOND_NS / 10;
                if deletes {
                    roster.apply_change(Change::Deleted { name: "b".into() }, now_ns);
                }
                let value = format!(
                    r#"{{"version":1,"keys":["{}"],"addresses":["192.0.2.{}"]}}"#,
                    key('b'),
                    tick % 250
                );
                let entry = Entry { name: "b".into(), value: Some(value.into()), created: 1 };
                roster.apply_change(Change::Put(entry), now_ns);
                roster.settle_peers(now_ns, |_| false);
                let now = roster.peers().next().map(|peer| peer.addresses);
                taken += usize::from(now.is_some() && now != last);
                last = now;
            }
            // The last word counts in the end.
            assert_eq!(refused(&roster), ["b"]);
            assert!(roster.is_unsettled() && roster.settle_peers(100 * SECOND_NS, |_| false));
            assert_eq!(refused(&roster), Vec::<String>::new());
            let last = roster.peers().next().expect("it is one").addresses;
            assert_eq!(last, ["192.0.2.99".parse().unwrap()]);
            taken
        };
        assert_eq!(calls(false), 8 + 5);
        assert_eq!(calls(true), 8 + 5);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut roster = roster("");
        for number in 0..3 * ENTRIES {
            let name = format!("x{number}");
            roster.apply_change(Change::Put(Entry { name, value: None, created: 1 }), 0);
        }
        assert!(roster.more && refused(&roster).len() == ENTRIES);
        for number in 0..3 * NAMES {
            let name = format!("x{number}");
            roster.apply_change(Change::Put(entry(&name, 'b', 1)), 0);
            roster.apply_change(Change::Deleted { name }, 0);
        }
        assert_eq!(roster.changes.len(), NAMES);
    }
}
