//! The compression policy of each flow: the first rule of the configuration that matches, cached
//! per flow.
//!
//! Two flows may have the same hash. So an entry of the cache also has all fields that a rule or an
//! owner depends on, and a frame with other fields is looked up anew.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use crate::config::{Compress, FrameFields, Mac, Rules};
use crate::counters::stats::RuleStats;
use crate::frames::frame::Frame;
use crate::threads::slots::Names;
use vsnoop_link::compress::{Decision, Method, Owner, Policy};
use vsnoop_link::slots::{DivertTapSlot, FrameSource, PeerSlot, PortSlot};
use vsnoop_packet::format::{MACS_BYTES, TAG_BYTES, is_tag};
use vsnoop_packet::headers::FlowHash;

/// Entries of the cache; a full cache is emptied.
const FLOWS: usize = 4096;

/// Flows by how they are compressed.
pub type FlowCounts = BTreeMap<String, u64>;

/// The compression rules with their counters. The last of `stats` counts frames that no rule
/// matches.
#[derive(Clone)]
pub struct RuleSet {
    pub rules: Rules,
    pub stats: Vec<Arc<RuleStats>>,
    /// Names of owners. Contexts refer to an owner by its index here, so a name never moves.
    owners: Vec<String>,
}

impl RuleSet {
    pub fn new(rules: Rules) -> Self {
        let stats = (0..=rules.len()).map(|_| Arc::default()).collect();
        let mut this = Self { rules, stats, owners: Vec::new() };
        this.number_owners();
        this
    }

    /// Replaces the rules; one that was there before keeps its counters.
    pub fn replace_rules(&mut self, rules: Rules) {
        let last = self.stats.last().cloned().unwrap_or_default();
        let before = |rule| {
            let at = self.rules.iter().position(|old| old == rule)?;
            self.stats.get(at).cloned()
        };
        self.stats = rules.iter().map(|rule| before(rule).unwrap_or_default()).collect();
        self.stats.push(last);
        self.rules = rules;
        self.number_owners();
    }

    /// Sets the flows in use of each rule: the sums of what the threads have found, each by rule.
    pub fn set_flows(&self, found: Vec<Vec<FlowCounts>>) {
        let mut sums = vec![FlowCounts::new(); self.stats.len()];
        for by_rule in found {
            for (sum, flows) in sums.iter_mut().zip(by_rule) {
                flows.into_iter().for_each(|(how, count)| *sum.entry(how).or_default() += count);
            }
        }
        for (stats, flows) in self.stats.iter().zip(sums) {
            *stats.flows.lock().unwrap_or_else(PoisonError::into_inner) = flows;
        }
    }

    /// Only the configuration gives names, so they are few.
    fn number_owners(&mut self) {
        for name in self.rules.iter().filter_map(|rule| rule.owner.as_ref()) {
            if !self.owners.contains(name) {
                self.owners.push(name.clone());
            }
        }
    }

    /// The owner of a frame that `rule` matches: the rule's name, or else the sending VM itself.
    fn choose_owner(
        &self,
        rule: &Compress,
        source: FrameSource,
        fields: &RuleFields,
    ) -> Option<Owner> {
        let RuleFields { vlans, macs: [mac, _], .. } = *fields;
        let Some(name) = &rule.owner else {
            return Some(Owner::Vm { source, vlans, mac: mac.0 });
        };
        let number = self.owners.iter().position(|known| known == name)?;
        Some(Owner::Named(number as u32))
    }
}

/// How the frames of a flow are compressed and counted.
#[derive(Clone)]
pub struct Compression {
    /// `None`: they are not compressed.
    pub policy: Option<Policy>,
    pub rule_stats: Arc<RuleStats>,
}

/// The rules, and a cache of what they say of each flow.
pub struct Policies {
    rule_set: RuleSet,
    peers: Names<PeerSlot>,
    ports: Names<PortSlot>,
    divert_taps: Names<DivertTapSlot>,
    /// The cache.
    known: HashMap<CacheKey, CachedCompression>,
}

/// `flow`: the hash of the frame's flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct CacheKey {
    peer: PeerSlot,
    source: FrameSource,
    flow: FlowHash,
}

struct CachedCompression {
    /// Fields of the frame that it was looked up for.
    endpoints: RuleFields,
    compression: Compression,
}

/// Fields of a frame that its rule and owner depend on, beside peer and port. Source first.
#[derive(Clone, Copy, PartialEq, Eq)]
struct RuleFields {
    /// Numbers of the two outermost VLAN tags, 0 without; two VLANs may have VMs of one address.
    vlans: [u16; 2],
    macs: [Mac; 2],
    /// `None`: the frame is not IP.
    ips: Option<[IpAddr; 2]>,
}

impl RuleFields {
    fn parse(frame: &Frame<'_>) -> Option<Self> {
        let start = frame.start();
        let (destination, rest) = start.split_first_chunk()?;
        let macs = [Mac(*rest.first_chunk()?), Mac(*destination)];
        let ips = frame.headers.as_ref().and_then(|headers| headers.ips(start));
        Some(Self { vlans: parse_vlans(start), macs, ips })
    }
}

/// Numbers of the two outermost VLAN tags.
fn parse_vlans(frame: &[u8]) -> [u16; 2] {
    let mut tags = frame.get(MACS_BYTES..).unwrap_or_default().chunks_exact(TAG_BYTES);
    let mut number = || match tags.next() {
        Some(&[a, b, c, d]) if is_tag(u16::from_be_bytes([a, b])) => {
            Some(u16::from_be_bytes([c, d]) & 0xfff)
        }
        _ => None,
    };
    let outer = number();
    [outer.unwrap_or(0), outer.and_then(|_| number()).unwrap_or(0)]
}

impl Policies {
    /// Names by number; of divert taps those of the VMs' taps.
    pub fn new(
        rule_set: RuleSet,
        peers: Names<PeerSlot>,
        ports: Names<PortSlot>,
        divert_taps: Names<DivertTapSlot>,
    ) -> Self {
        Self { rule_set, peers, ports, divert_taps, known: HashMap::new() }
    }

    /// Whether anything may be compressed.
    pub fn has_any(&self) -> bool {
        self.rule_set.rules.iter().any(|rule| rule.method != Method::Off)
    }

    /// Finds how a frame to a peer is compressed.
    pub fn find_compression(
        &mut self,
        peer: PeerSlot,
        source: FrameSource,
        frame: &Frame<'_>,
    ) -> Compression {
        if self.rule_set.rules.is_empty() {
            return self.uncompressed();
        }
        let Some(endpoints) = RuleFields::parse(frame) else { return self.uncompressed() };
        let key = CacheKey { peer, source, flow: frame.flow() };
        if let Some(known) = self.known.get(&key).filter(|known| known.endpoints == endpoints) {
            return known.compression.clone();
        }
        let compression =
            self.look_up(peer, source, &endpoints).unwrap_or_else(|| self.uncompressed());
        if self.known.len() >= FLOWS {
            self.known.clear();
        }
        let known = CachedCompression { endpoints, compression: compression.clone() };
        self.known.insert(key, known);
        compression
    }

    /// Counts the flows in use of each rule by how they are compressed.
    ///
    /// `decision` returns that for a flow to a peer; `None`: the flow is not in use.
    pub fn survey_flows(
        &self,
        decision: impl Fn(PeerSlot, FlowHash, &Policy) -> Option<Decision>,
    ) -> Vec<FlowCounts> {
        let mut found = vec![FlowCounts::new(); self.rule_set.stats.len()];
        for (CacheKey { peer, flow, .. }, CachedCompression { compression, .. }) in &self.known {
            let Some(decided) =
                compression.policy.and_then(|policy| decision(*peer, *flow, &policy))
            else {
                continue;
            };
            let is_same = |stats: &Arc<RuleStats>| Arc::ptr_eq(stats, &compression.rule_stats);
            if let Some(rule) = self.rule_set.stats.iter().position(is_same) {
                *found[rule].entry(decided.to_string()).or_default() += 1;
            }
        }
        found
    }

    /// For a frame that no rule matches.
    fn uncompressed(&self) -> Compression {
        Compression {
            policy: None,
            rule_stats: self.rule_set.stats.last().cloned().unwrap_or_default(),
        }
    }

    fn look_up(
        &self,
        peer: PeerSlot,
        source: FrameSource,
        endpoints: &RuleFields,
    ) -> Option<Compression> {
        let RuleFields { macs, ips, .. } = *endpoints;
        let name = match source {
            FrameSource::Port(port) => self.ports.get(port)?,
            FrameSource::DivertTap(tap) => self.divert_taps.get(tap)?,
            FrameSource::Peer(_) => "",
        };
        let traffic = FrameFields { peer: self.peers.get(peer)?, port: name, macs, ips };
        let (index, rule) = self.rule_set.rules.first_match(&traffic)?;
        let owner = self.rule_set.choose_owner(rule, source, endpoints)?;
        let policy = Policy { method: rule.method, owner, dictionary: rule.dictionary_bytes };
        let policy = (rule.method != Method::Off).then_some(policy);
        Some(Compression { policy, rule_stats: self.rule_set.stats.get(index)?.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Selector;
    use crate::counters::cpu::coding_clock;
    use crate::threads::slots::BySlot;
    use vsnoop_link::compress::{CompressionLimits, Encoded, Encoder};
    use vsnoop_packet::offload::state::OffloadState;
    use vsnoop_packet::testing::SegmentBuilder;

    const PEER: PeerSlot = PeerSlot(0);
    const PORT: PortSlot = PortSlot(0);

    /// `owners` of rules, each for a prefix of the destination.
    fn policies(owners: &[(&str, Option<&str>)], dictionary_bytes: Option<u32>) -> Policies {
        let rule = |(prefix, owner): &(&str, Option<&str>)| Compress {
            selector: Selector { prefixes: vec![prefix.parse().unwrap()], ..Selector::default() },
            method: Method::Zstd { level: 1 },
            owner: owner.map(str::to_owned),
            dictionary_bytes,
        };
        let rules = Rules::new(owners.iter().map(rule).collect()).unwrap();
        let [peers, ports] = [["b", "c"], ["vsl0", "vsl1"]].map(|names| names.map(str::to_owned));
        let (peers, ports) = (BySlot::from_iter(peers), BySlot::from_iter(ports));
        Policies::new(RuleSet::new(rules), peers.into(), ports.into(), Arc::default())
    }

    fn policy(policies: &mut Policies, port: PortSlot, frame: &[u8]) -> Policy {
        let frame = &[frame];
        let frame = Frame::whole(OffloadState::default(), frame);
        policies
            .find_compression(PEER, FrameSource::Port(port), &frame)
            .policy
            .expect("a rule fits")
    }

    /// The frame from another VM: only the source address differs.
    fn of_another(frame: &[u8]) -> Vec<u8> {
        let mut other = frame.to_vec();
        other[11] ^= 1;
        other
    }

    #[test]
    fn two_vms_with_the_same_connection_share_nothing() {
        let secret = SegmentBuilder { payload: 9000, ..SegmentBuilder::default() }.build();
        let guess = of_another(&secret);
        for dictionary in [None, Some(1 << 20)] {
            let mut policies = policies(&[("0.0.0.0/0", None)], dictionary);
            let whole = [&secret[..]];
            let flow = Frame::whole(OffloadState::default(), &whole).flow();
            let mut encoder = Encoder::new(CompressionLimits::MOST, coding_clock());
            let mut length = |policy: Policy, frame: &[u8]| {
                let mut body = Vec::new();
                // Behind the addresses, the same bytes, of letters: little is gained but by
                // repetition.
                let letters: Vec<_> = frame[12..].iter().map(|byte| b'A' + byte % 32).collect();
                let encoded = encoder.encode(flow, &policy, &[&letters], 0, &mut body);
                assert_eq!(encoded, Encoded::Compressed);
                body.len()
            };
            let first = length(policy(&mut policies, PORT, &secret), &secret);
            let other = length(policy(&mut policies, PORT, &guess), &guess);
            let again = length(policy(&mut policies, PORT, &secret), &secret);
            assert!(other + 8 > first, "{other} bytes after {first} tell what the other VM sent");
            assert!(again < first / 10, "{again} of {first}: its own it does remember");
        }
    }

    /// A peer's limits are no rule.
    #[test]
    fn without_a_rule_of_this_host_nothing_is_compressed() {
        let mut policies = policies(&[("192.0.2.0/24", None)], None);
        let frame = SegmentBuilder { payload: 9000, ..SegmentBuilder::default() }.build();
        let parts = [&frame[..]];
        let frame = Frame::whole(OffloadState::default(), &parts);
        let source = FrameSource::Port(PORT);
        assert!(
            policies.find_compression(PEER, source, &frame).policy.is_none(),
            "no rule matches"
        );
        policies.rule_set.replace_rules(Rules::default());
        policies.known.clear();
        assert!(
            !policies.has_any() && policies.find_compression(PEER, source, &frame).policy.is_none()
        );
    }

    /// A trunk has VMs of several tenants, which choose their addresses themselves.
    #[test]
    fn two_vms_with_one_address_in_two_vlans_share_nothing() {
        let mut policies = policies(&[("0.0.0.0/0", None)], Some(1 << 20));
        let plain = SegmentBuilder::default().build();
        let tag = |kind: u16, vlan: u16| [kind.to_be_bytes(), vlan.to_be_bytes()].concat();
        let tagged = |tags: &[u8]| [&plain[..12], tags, &plain[12..]].concat();
        let frames = [
            tagged(&tag(0x8100, 7)),
            tagged(&tag(0x8100, 8)),
            // QinQ.
            tagged(&[tag(0x88a8, 7), tag(0x8100, 1)].concat()),
            tagged(&[tag(0x88a8, 7), tag(0x8100, 2)].concat()),
            plain.clone(),
        ];
        let owners = frames.each_ref().map(|frame| policy(&mut policies, PORT, frame).owner);
        for (index, owner) in owners.iter().enumerate() {
            assert!(!owners[..index].contains(owner), "frame {index}");
        }
        // A tag that only gives a priority is none.
        let priority = tagged(&tag(0x8100, 0xe000));
        assert_eq!(policy(&mut policies, PORT, &priority).owner, owners[4]);
    }

    #[test]
    fn a_vm_is_known_by_its_port_too() {
        let mut policies = policies(&[("0.0.0.0/0", None)], None);
        let frame = SegmentBuilder::default().build();
        let owner = |port| policy(&mut policies, PortSlot(port), &frame).owner;
        let [first, second] = [0, 1].map(owner);
        assert_ne!(first, second);
    }

    #[test]
    fn a_hash_that_two_flows_have_joins_no_owners() {
        let mut policies =
            policies(&[("10.0.0.2/32", Some("one")), ("0.0.0.0/0", Some("two"))], None);
        let frame = SegmentBuilder::default().build();
        let one = policy(&mut policies, PORT, &frame).owner;
        // What is remembered becomes that of another connection, as if the hash were the same.
        for known in policies.known.values_mut() {
            known.endpoints.ips = Some([[10, 0, 0, 1].into(), [10, 0, 0, 3].into()]);
        }
        for known in policies.known.values_mut() {
            known.compression.policy.as_mut().expect("a rule fits").owner = Owner::Named(7);
        }
        assert_eq!(policy(&mut policies, PORT, &frame).owner, one);
        assert_eq!(policy(&mut policies, PORT, &frame).owner, one);
        assert_eq!(policies.known.len(), 1);
    }

    #[test]
    fn names_are_owners_whoever_sends_and_each_keeps_its_number() {
        let frame = SegmentBuilder::default().build();
        let mut policies =
            policies(&[("192.0.2.0/24", Some("other")), ("0.0.0.0/0", Some("one"))], None);
        let one = policy(&mut policies, PORT, &frame).owner;
        assert_eq!(policy(&mut policies, PORT, &of_another(&frame)).owner, one);
        assert_ne!(one, Owner::Named(0), "the other one has that");
        // A rule of `set` stands before the others, and takes over the name.
        let mut rules = policies.rule_set.rules.clone();
        let selector = rules.iter().nth(1).unwrap().selector.clone();
        let method = Method::Lz4;
        rules.set_rule(Compress { selector, method, owner: None, dictionary_bytes: None }).unwrap();
        policies.rule_set.replace_rules(rules);
        policies.known.clear();
        let now = policy(&mut policies, PORT, &frame);
        assert_eq!((now.method, now.owner), (method, one));
    }
}
