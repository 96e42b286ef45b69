//! Which frames are compressed how: the rules of the configuration, remembered per flow.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use super::config::{Mac, Rules, Traffic};
use super::egress::outlet::Frame;
use super::stats::ClassStats;
use crate::compress::{Class, Decision, Method};

/// Flows whose treatment is remembered; beyond them all are looked up again.
const FLOWS: usize = 4096;

/// The rules, each with what was counted of it; the last of `counted` is of what no rule fits.
#[derive(Clone)]
pub struct Ruled {
    pub rules: Rules,
    pub counted: Vec<Arc<ClassStats>>,
}

impl Ruled {
    pub fn new(rules: Rules) -> Self {
        let counted = (0..=rules.len()).map(|_| Arc::default()).collect();
        Self { rules, counted }
    }

    /// Other rules; those that stay as they were go on counting.
    pub fn replace(&mut self, rules: Rules) {
        let last = self.counted.last().cloned().unwrap_or_default();
        let before = |rule| {
            let at = self.rules.iter().position(|old| old == rule)?;
            self.counted.get(at).cloned()
        };
        self.counted = rules.iter().map(|rule| before(rule).unwrap_or_default()).collect();
        self.counted.push(last);
        self.rules = rules;
    }
}

/// What becomes of the frames of a flow.
#[derive(Clone)]
pub struct Treatment {
    /// How they are compressed; `None`: not at all.
    pub class: Option<Class>,
    pub counted: Arc<ClassStats>,
}

pub struct Classes {
    ruled: Ruled,
    peers: Arc<[String]>,
    ports: Arc<[String]>,
    known: HashMap<(usize, usize, u64), Treatment>,
}

impl Classes {
    /// `peers` and `ports`: their names, by index.
    pub fn new(ruled: Ruled, peers: Arc<[String]>, ports: Arc<[String]>) -> Self {
        Self { ruled, peers, ports, known: HashMap::new() }
    }

    /// Whether anything may be compressed.
    pub fn any(&self) -> bool {
        self.ruled.rules.iter().any(|rule| rule.method != Method::Off)
    }

    /// What becomes of a frame from a port to a peer.
    pub fn of(&mut self, peer: usize, port: usize, frame: &Frame<'_>) -> Treatment {
        if self.ruled.rules.is_empty() {
            return self.untouched();
        }
        let key = (peer, port, frame.flow());
        if let Some(treatment) = self.known.get(&key) {
            return treatment.clone();
        }
        let treatment = self.look_up(peer, port, frame).unwrap_or_else(|| self.untouched());
        if self.known.len() >= FLOWS {
            self.known.clear();
        }
        self.known.insert(key, treatment.clone());
        treatment
    }

    /// Counts for each rule what becomes of its flows, as `decision` says of a peer's flow; `None`: it
    /// is not in use.
    pub fn survey(&self, decision: impl Fn(usize, u64, &Class) -> Option<Decision>) {
        let mut found: Vec<BTreeMap<String, u64>> = vec![BTreeMap::new(); self.ruled.counted.len()];
        for ((peer, _, flow), treatment) in &self.known {
            let Some(decided) = treatment.class.and_then(|class| decision(*peer, *flow, &class))
            else {
                continue;
            };
            let of = |counted: &Arc<ClassStats>| Arc::ptr_eq(counted, &treatment.counted);
            if let Some(rule) = self.ruled.counted.iter().position(of) {
                *found[rule].entry(decided.to_string()).or_default() += 1;
            }
        }
        for (counted, flows) in self.ruled.counted.iter().zip(found) {
            *counted.flows.lock().unwrap_or_else(PoisonError::into_inner) = flows;
        }
    }

    /// No rule fits.
    fn untouched(&self) -> Treatment {
        Treatment { class: None, counted: self.ruled.counted.last().cloned().unwrap_or_default() }
    }

    fn look_up(&self, peer: usize, port: usize, frame: &Frame<'_>) -> Option<Treatment> {
        let start = frame.start();
        let mac = |at: usize| -> Option<Mac> { Some(Mac(start.get(at..at + 6)?.try_into().ok()?)) };
        let macs = [mac(6)?, mac(0)?];
        let ips = frame.headers.as_ref().and_then(|headers| addresses(headers.addresses(start)));
        let traffic =
            Traffic { peer: self.peers.get(peer)?, port: self.ports.get(port)?, macs, ips };
        let (index, rule) = self.ruled.rules.first_match(&traffic)?;
        // Whom the sending VM belongs to, by name, or the VM itself.
        let mut owner = DefaultHasher::new();
        match &rule.owner {
            Some(name) => name.hash(&mut owner),
            None => (port, macs[0].0).hash(&mut owner),
        }
        let owner = owner.finish() as u32;
        let class = Class { method: rule.method, owner, dictionary: rule.dictionary_bytes };
        let class = (rule.method != Method::Off).then_some(class);
        Some(Treatment { class, counted: self.ruled.counted.get(index)?.clone() })
    }
}

/// Source and destination, from both as they stand in an IP header.
fn addresses(both: &[u8]) -> Option<[IpAddr; 2]> {
    let (source, destination) = both.split_at_checked(both.len() / 2)?;
    let address = |bytes: &[u8]| -> Option<IpAddr> {
        match bytes.len() {
            4 => Some(<[u8; 4]>::try_from(bytes).ok()?.into()),
            16 => Some(<[u8; 16]>::try_from(bytes).ok()?.into()),
            _ => None,
        }
    };
    Some([address(source)?, address(destination)?])
}
