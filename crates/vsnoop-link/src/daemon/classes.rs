//! Which frames are compressed how: the rules of the configuration, remembered per flow.
//!
//! A flow is remembered by its hash, and a hash may be that of another flow, too: all that a rule or an owner
//! can depend on stands beside it, and a frame of which it is not true is looked up anew.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use super::config::{Compress, Mac, Rules, Traffic};
use super::frame::Frame;
use super::stats::ClassStats;
use crate::compress::{Class, Decision, Method, Owner};

/// Flows whose treatment is remembered; beyond them all are looked up again.
const FLOWS: usize = 4096;

/// The rules, each with what was counted of it; the last of `counted` is of what no rule fits.
#[derive(Clone)]
pub struct Ruled {
    pub rules: Rules,
    pub counted: Vec<Arc<ClassStats>>,
    /// Names that rules have given to owners. Contexts know them by their numbers, so each keeps its own.
    owners: Vec<String>,
}

impl Ruled {
    pub fn new(rules: Rules) -> Self {
        let counted = (0..=rules.len()).map(|_| Arc::default()).collect();
        let mut this = Self { rules, counted, owners: Vec::new() };
        this.number_owners();
        this
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
        self.number_owners();
    }

    /// Only the configuration gives names, so they are few.
    fn number_owners(&mut self) {
        for name in self.rules.iter().filter_map(|rule| rule.owner.as_ref()) {
            if !self.owners.contains(name) {
                self.owners.push(name.clone());
            }
        }
    }

    /// Whom the sending VM belongs to, by a rule: to a name, or to itself.
    fn owner(&self, rule: &Compress, port: usize, source: Mac) -> Option<Owner> {
        let Some(name) = &rule.owner else { return Some(Owner::Vm { port, mac: source.0 }) };
        let number = self.owners.iter().position(|known| known == name)?;
        Some(Owner::Named(number as u32))
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
    /// By peer, port and the flow's hash.
    known: HashMap<(usize, usize, u64), (Ends, Treatment)>,
}

/// What a frame's rule and owner depend on beside peer and port. Source first.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Ends {
    macs: [Mac; 2],
    /// `None` of frames that are not IP.
    ips: Option<[IpAddr; 2]>,
}

impl Ends {
    fn of(frame: &Frame<'_>) -> Option<Self> {
        let start = frame.start();
        let (destination, rest) = start.split_first_chunk()?;
        let macs = [Mac(*rest.first_chunk()?), Mac(*destination)];
        let ips = frame.headers.as_ref().and_then(|headers| headers.ips(start));
        Some(Self { macs, ips })
    }
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
        let Some(ends) = Ends::of(frame) else { return self.untouched() };
        let key = (peer, port, frame.flow());
        if let Some((_, treatment)) = self.known.get(&key).filter(|(known, _)| *known == ends) {
            return treatment.clone();
        }
        let treatment = self.look_up(peer, port, &ends).unwrap_or_else(|| self.untouched());
        if self.known.len() >= FLOWS {
            self.known.clear();
        }
        self.known.insert(key, (ends, treatment.clone()));
        treatment
    }

    /// Counts for each rule what becomes of its flows, as `decision` says of a peer's flow; `None`: it
    /// is not in use.
    pub fn survey(&self, decision: impl Fn(usize, u64, &Class) -> Option<Decision>) {
        let mut found: Vec<BTreeMap<String, u64>> = vec![BTreeMap::new(); self.ruled.counted.len()];
        for ((peer, _, flow), (_, treatment)) in &self.known {
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

    fn look_up(&self, peer: usize, port: usize, ends: &Ends) -> Option<Treatment> {
        let Ends { macs, ips } = *ends;
        let traffic =
            Traffic { peer: self.peers.get(peer)?, port: self.ports.get(port)?, macs, ips };
        let (index, rule) = self.ruled.rules.first_match(&traffic)?;
        let owner = self.ruled.owner(rule, port, macs[0])?;
        let class = Class { method: rule.method, owner, dictionary: rule.dictionary_bytes };
        let class = (rule.method != Method::Off).then_some(class);
        Some(Treatment { class, counted: self.ruled.counted.get(index)?.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::Selector;
    use super::*;
    use crate::compress::{Encoded, Encoder, Limits};
    use crate::offload::state::OffloadState;
    use crate::offload::testing::Segment;

    const PEER: usize = 0;
    const PORT: usize = 0;

    /// `owners` of rules, each for a prefix of the destination.
    fn classes(owners: &[(&str, Option<&str>)], dictionary_bytes: Option<u32>) -> Classes {
        let rule = |(prefix, owner): &(&str, Option<&str>)| Compress {
            selector: Selector { prefixes: vec![prefix.parse().unwrap()], ..Selector::default() },
            method: Method::Zstd { level: 1 },
            owner: owner.map(str::to_owned),
            dictionary_bytes,
        };
        let rules = Rules::new(owners.iter().map(rule).collect()).unwrap();
        let names = |names: [&str; 2]| names.map(str::to_owned).into();
        Classes::new(Ruled::new(rules), names(["b", "c"]), names(["vsl0", "vsl1"]))
    }

    fn class(classes: &mut Classes, port: usize, frame: &[u8]) -> Class {
        let frame = &[frame];
        let frame = Frame::whole(OffloadState::default(), frame);
        classes.of(PEER, port, &frame).class.expect("a rule fits")
    }

    /// The same connection as another VM would have it: only the source address differs.
    fn of_another(frame: &[u8]) -> Vec<u8> {
        let mut other = frame.to_vec();
        other[11] ^= 1;
        other
    }

    #[test]
    fn two_vms_with_the_same_connection_share_nothing() {
        let secret = Segment { payload: 9000, ..Segment::default() }.build();
        let guess = of_another(&secret);
        for dictionary in [None, Some(1 << 20)] {
            let mut classes = classes(&[("0.0.0.0/0", None)], dictionary);
            let whole = [&secret[..]];
            let flow = Frame::whole(OffloadState::default(), &whole).flow();
            let mut encoder = Encoder::new(Limits::default());
            let mut length = |class: Class, frame: &[u8]| {
                let mut body = Vec::new();
                // Behind the addresses, the same bytes, of letters: little is gained but by repetition.
                let letters: Vec<_> = frame[12..].iter().map(|byte| b'A' + byte % 32).collect();
                let encoded = encoder.encode(flow, &class, &[&letters], 0, &mut body);
                assert_eq!(encoded, Encoded::Compressed);
                body.len()
            };
            let first = length(class(&mut classes, PORT, &secret), &secret);
            let other = length(class(&mut classes, PORT, &guess), &guess);
            let again = length(class(&mut classes, PORT, &secret), &secret);
            assert!(other + 8 > first, "{other} bytes after {first} tell what the other VM sent");
            assert!(again < first / 10, "{again} of {first}: its own it does remember");
        }
    }

    #[test]
    fn a_vm_is_known_by_its_port_too() {
        let mut classes = classes(&[("0.0.0.0/0", None)], None);
        let frame = Segment::default().build();
        assert_ne!(class(&mut classes, 0, &frame).owner, class(&mut classes, 1, &frame).owner);
    }

    #[test]
    fn a_hash_that_two_flows_have_joins_no_owners() {
        let mut classes =
            classes(&[("10.0.0.2/32", Some("one")), ("0.0.0.0/0", Some("two"))], None);
        let frame = Segment::default().build();
        let one = class(&mut classes, PORT, &frame).owner;
        // What is remembered becomes that of another connection, as if the hash were the same.
        for (ends, _) in classes.known.values_mut() {
            ends.ips = Some([[10, 0, 0, 1].into(), [10, 0, 0, 3].into()]);
        }
        for (_, treatment) in classes.known.values_mut() {
            treatment.class.as_mut().expect("a rule fits").owner = Owner::Named(7);
        }
        assert_eq!(class(&mut classes, PORT, &frame).owner, one);
        assert_eq!(class(&mut classes, PORT, &frame).owner, one);
        assert_eq!(classes.known.len(), 1);
    }

    #[test]
    fn names_are_owners_whoever_sends_and_each_keeps_its_number() {
        let frame = Segment::default().build();
        let mut classes =
            classes(&[("192.0.2.0/24", Some("other")), ("0.0.0.0/0", Some("one"))], None);
        let one = class(&mut classes, PORT, &frame).owner;
        assert_eq!(class(&mut classes, PORT, &of_another(&frame)).owner, one);
        assert_ne!(one, Owner::Named(0), "the other one has that");
        // A rule of `set` stands before the others, and takes over the name.
        let mut rules = classes.ruled.rules.clone();
        let selector = rules.iter().nth(1).unwrap().selector.clone();
        let method = Method::Lz4;
        rules.set(Compress { selector, method, owner: None, dictionary_bytes: None }).unwrap();
        classes.ruled.replace(rules);
        classes.known.clear();
        let now = class(&mut classes, PORT, &frame);
        assert_eq!((now.method, now.owner), (method, one));
    }
}
