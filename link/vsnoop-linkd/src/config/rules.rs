//! Which traffic is compressed, and how: rules in order, of which the first that fits counts.
//!
//! `vsnoop link set` puts a rule in front of all others, in the place of an earlier one with the
//! same selector; an empty selector matches all traffic: it shadows all rules behind it and
//! removes earlier ones of `set` ([`RuleChange`]). The length of the list is bounded.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::peer::{PeerConfig, Transport};
use vsnoop_link::compress::Method;
use vsnoop_link::forwarding::Mac;

/// More rules than anybody writes.
const MOST: usize = 256;

/// The rules in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rules {
    /// In order; those of `set` first.
    rules: Vec<Compress>,
    /// How many of them came from `set`.
    set: usize,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compress {
    pub selector: Selector,
    pub method: Method,
    /// Nothing is shared between owners: neither contexts nor dictionaries. `None`: each VM is its
    /// own.
    pub owner: Option<String>,
    /// Window of the dictionary that all flows of the rule and owner share, bytes; `None`: no
    /// sharing.
    pub dictionary_bytes: Option<u32>,
}

impl Compress {
    /// Can there be a dictionary, if the rule has one? Otherwise why not.
    pub fn check_dictionary(&self, peers: &[PeerConfig]) -> Result<(), RuleError> {
        let concerned =
            |peer: &&PeerConfig| self.selector.peer.as_ref().is_none_or(|name| *name == peer.name);
        let mut transports = peers.iter().filter(concerned).map(|peer| peer.transport);
        if self.dictionary_bytes.is_none() {
            Ok(())
        } else if !matches!(self.method, Method::Zstd { .. } | Method::Auto) {
            Err(RuleError::DictionaryMethod(self.method))
        } else if !transports.any(Transport::is_ordered) {
            Err(RuleError::DictionaryTransport)
        } else {
            Ok(())
        }
    }
}

/// A rule asks for what cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("link {link} has no {kind} {wanted}; it has {names}")]
    NoSuch { link: String, kind: &'static str, wanted: String, names: String },
    #[error("a dictionary goes with zstd and auto, and not with {0}")]
    DictionaryMethod(Method),
    #[error("a dictionary goes with the transport tls: over udp each datagram stands alone")]
    DictionaryTransport,
}

/// Which traffic a rule is for: all that is given must fit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Selector {
    /// Name of a peer.
    pub peer: Option<String>,
    /// Name of a port.
    pub port: Option<String>,
    /// A VM at either end.
    pub vm: Option<Vm>,
    /// Either end is in one of these; empty: any.
    pub prefixes: Vec<IpNet>,
}

/// A VM, by one of its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Vm {
    Mac(Mac),
    Ip(IpAddr),
}

/// A text that is neither address of a VM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no VM: give its MAC such as 52:54:00:00:00:01, or its IP address")]
pub struct BadVm(String);

/// Fields of a frame that a [`Selector`] matches.
#[derive(Clone, Copy, Debug)]
pub struct FrameFields<'a> {
    pub peer: &'a str,
    pub port: &'a str,
    /// Source and destination.
    pub macs: [Mac; 2],
    /// Source and destination; `None` of frames that are not IP.
    pub ips: Option<[IpAddr; 2]>,
}

/// How a new rule of `set` changed the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuleChange {
    /// Rules of `set` that were replaced.
    pub replaced: Vec<Compress>,
}

/// The list is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there are {MOST} compression rules already; `vsnoop link set` without selector replaces those \
     of earlier ones"
)]
pub struct TooManyRules;

impl Rules {
    /// Takes the rules of the configuration.
    pub fn new(rules: Vec<Compress>) -> Result<Self, TooManyRules> {
        if rules.len() > MOST { Err(TooManyRules) } else { Ok(Self { rules, set: 0 }) }
    }

    /// The largest dictionary that frames to a peer may have, bytes.
    pub fn largest_dictionary(&self, peer: &str) -> Option<u32> {
        let concerned =
            |rule: &&Compress| rule.selector.peer.as_ref().is_none_or(|own| own == peer);
        self.rules.iter().filter(concerned).filter_map(|rule| rule.dictionary_bytes).max()
    }

    /// In the order in which they are tried.
    pub fn iter(&self) -> impl Iterator<Item = &Compress> {
        self.rules.iter()
    }

    /// The rules of `set`.
    pub fn of_set(&self) -> &[Compress] {
        &self.rules[..self.set]
    }

    pub fn len(&self) -> usize {
        self.rules.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The number and the rule that counts; without one nothing is compressed.
    pub fn first_match(&self, traffic: &FrameFields) -> Option<(usize, &Compress)> {
        self.rules.iter().enumerate().find(|(_, rule)| rule.selector.fits(traffic))
    }

    /// Puts a rule in front. `owner` of the rule that it replaces, or that stood for the same, is
    /// kept.
    pub fn set_rule(&mut self, mut rule: Compress) -> Result<RuleChange, TooManyRules> {
        if rule.owner.is_none() {
            let same = self.rules.iter().find(|old| old.selector == rule.selector);
            rule.owner = same.and_then(|old| old.owner.clone());
        }
        let gone = |old: &Compress| rule.selector.is_empty() || old.selector == rule.selector;
        let (replaced, kept): (Vec<_>, Vec<_>) =
            self.rules[..self.set].iter().cloned().partition(gone);
        if kept.len() + 1 + self.rules.len() - self.set > MOST {
            return Err(TooManyRules);
        }
        let configured = self.rules.split_off(self.set);
        self.set = kept.len() + 1;
        self.rules = std::iter::once(rule).chain(kept).chain(configured).collect();
        Ok(RuleChange { replaced })
    }
}

impl Selector {
    /// It stands for everything.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn fits(&self, traffic: &FrameFields) -> bool {
        let among = |ip: &IpAddr| self.prefixes.iter().any(|prefix| prefix.contains(ip));
        self.peer.as_ref().is_none_or(|peer| peer == traffic.peer)
            && self.port.as_ref().is_none_or(|port| port == traffic.port)
            && self.vm.is_none_or(|vm| match vm {
                Vm::Mac(mac) => traffic.macs.contains(&mac),
                Vm::Ip(ip) => traffic.ips.is_some_and(|ips| ips.contains(&ip)),
            })
            && (self.prefixes.is_empty() || traffic.ips.is_some_and(|ips| ips.iter().any(among)))
    }
}

/// "peer b, prefix 10.0.0.0/8", or "all".
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.peer.iter().map(|peer| format!("peer {peer}")));
        parts.extend(self.port.iter().map(|port| format!("port {port}")));
        parts.extend(self.vm.iter().map(|vm| format!("vm {vm}")));
        parts.extend(self.prefixes.iter().map(|prefix| format!("prefix {prefix}")));
        f.write_str(if parts.is_empty() { "all".into() } else { parts.join(", ") }.as_str())
    }
}

impl FromStr for Vm {
    type Err = BadVm;

    fn from_str(text: &str) -> Result<Self, BadVm> {
        let mac = text.parse().map(Self::Mac);
        mac.or_else(|_| text.parse().map(Self::Ip)).map_err(|_| BadVm(text.to_owned()))
    }
}

impl fmt::Display for Vm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mac(mac) => mac.fmt(f),
            Self::Ip(ip) => ip.fmt(f),
        }
    }
}

impl TryFrom<String> for Vm {
    type Error = BadVm;

    fn try_from(text: String) -> Result<Self, BadVm> {
        text.parse()
    }
}

impl From<Vm> for String {
    fn from(vm: Vm) -> Self {
        vm.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AcceptConfig, OuterConfig, PeerSource, TrustConfig};
    use super::*;

    fn rule(peer: Option<&str>, prefix: Option<&str>, method: &str) -> Compress {
        let prefixes = prefix.iter().map(|prefix| prefix.parse().unwrap()).collect();
        Compress {
            selector: Selector { peer: peer.map(str::to_owned), prefixes, ..Selector::default() },
            method: method.parse().unwrap(),
            owner: None,
            dictionary_bytes: None,
        }
    }

    fn traffic<'a>(peer: &'a str, to: &str) -> FrameFields<'a> {
        let mac = |last| Mac([0x52, 0x54, 0, 0, 0, last]);
        let ips = [IpAddr::from([192, 0, 2, 1]), to.parse().unwrap()];
        FrameFields { peer, port: "vsl0", macs: [mac(1), mac(2)], ips: Some(ips) }
    }

    fn method(rules: &Rules, traffic: &FrameFields) -> Option<String> {
        rules.first_match(traffic).map(|(_, rule)| rule.method.to_string())
    }

    #[test]
    fn the_first_rule_that_fits_counts() {
        let rules =
            vec![rule(Some("b"), Some("10.0.0.0/8"), "lz4"), rule(Some("b"), None, "zstd:3")];
        let rules = Rules::new(rules).unwrap();
        assert_eq!(method(&rules, &traffic("b", "10.1.1.1")).unwrap(), "lz4");
        assert_eq!(method(&rules, &traffic("b", "172.16.0.1")).unwrap(), "zstd:3");
        assert_eq!(method(&rules, &traffic("c", "10.1.1.1")), None);
        let arp = FrameFields { ips: None, ..traffic("b", "10.1.1.1") };
        assert_eq!(method(&rules, &arp).unwrap(), "zstd:3");
    }

    #[test]
    fn a_vm_is_found_at_either_end_by_either_address() {
        for (vm, fits) in [
            ("52:54:00:00:00:02", true),
            ("52:54:00:00:00:03", false),
            ("192.0.2.1", true),
            ("10.1.1.1", true),
            ("10.1.1.2", false),
        ] {
            let selector = Selector { vm: Some(vm.parse().unwrap()), ..Selector::default() };
            assert_eq!(selector.fits(&traffic("b", "10.1.1.1")), fits, "{vm}");
        }
    }

    #[test]
    fn what_was_set_stands_before_what_was_configured_and_replaces_its_like() {
        let mut rules = Rules::new(vec![rule(Some("b"), None, "lz4")]).unwrap();
        rules.set_rule(rule(None, Some("10.0.0.0/8"), "zstd")).unwrap();
        rules.set_rule(rule(None, Some("10.0.0.0/8"), "auto")).unwrap();
        assert_eq!(rules.len(), 2);
        assert_eq!(method(&rules, &traffic("b", "10.1.1.1")).unwrap(), "auto");
        assert_eq!(method(&rules, &traffic("b", "172.16.0.1")).unwrap(), "lz4");
        rules.set_rule(rule(None, None, "off")).unwrap();
        assert_eq!(rules.len(), 2, "what was set before counts no more");
        assert_eq!(method(&rules, &traffic("b", "10.1.1.1")).unwrap(), "off");
        rules.set_rule(rule(Some("b"), None, "zstd")).unwrap();
        assert_eq!(method(&rules, &traffic("b", "10.1.1.1")).unwrap(), "zstd");
        assert_eq!(method(&rules, &traffic("c", "10.1.1.1")).unwrap(), "off");
    }

    #[test]
    fn what_a_new_rule_replaces_is_told() {
        let mut rules = Rules::new(vec![rule(Some("b"), Some("10.1.2.0/24"), "lz4")]).unwrap();
        let narrow = rule(Some("b"), Some("10.1.0.0/16"), "zstd");
        assert_eq!(rules.set_rule(narrow.clone()).unwrap(), RuleChange::default());
        assert_eq!(rules.set_rule(rule(Some("b"), None, "auto")).unwrap(), RuleChange::default());
        // The same once more.
        let told = rules.set_rule(rule(Some("b"), None, "lz4")).unwrap();
        assert_eq!(told.replaced, [rule(Some("b"), None, "auto")]);
        let told = rules.set_rule(rule(None, None, "off")).unwrap();
        assert_eq!(told.replaced, [rule(Some("b"), None, "lz4"), narrow]);
    }

    #[test]
    fn changing_a_method_does_not_change_whose_the_traffic_is() {
        let configured =
            Compress { owner: Some("tenant-1".into()), ..rule(Some("b"), None, "lz4") };
        let mut rules = Rules::new(vec![configured]).unwrap();
        rules.set_rule(rule(Some("b"), None, "zstd")).unwrap();
        let (_, now) = rules.first_match(&traffic("b", "10.1.1.1")).unwrap();
        assert_eq!(now.owner.as_deref(), Some("tenant-1"));
    }

    #[test]
    fn setting_rules_for_ever_ends_at_a_bound() {
        let mut rules = Rules::new(vec![rule(None, None, "lz4")]).unwrap();
        let set = (0..1000u32).map(|n| {
            let prefix = format!("10.{}.{}.0/24", n / 256, n % 256);
            rules.set_rule(rule(None, Some(&prefix), "lz4"))
        });
        assert_eq!(set.filter(Result::is_ok).count(), MOST - 1);
        assert_eq!(rules.len(), MOST);
        rules.set_rule(rule(None, None, "off")).unwrap();
        assert_eq!(rules.len(), 2);
    }

    #[test]
    fn a_dictionary_is_for_a_stream_that_a_peer_it_is_for_has() {
        let peer = |name: &str, transport| PeerConfig {
            name: name.into(),
            trust: TrustConfig::Subject(name.into()),
            source: PeerSource::File,
            addresses: Vec::new(),
            transport,
            connections: 4,
            accept: AcceptConfig {
                codecs: vsnoop_link::compress::Codecs::ALL,
                dictionary_bytes: None,
            },
            outer: OuterConfig::default(),
            relay: false,
            via: None,
        };
        let peers = [peer("b", Transport::Udp), peer("c", Transport::Tls)];
        for (method, peer_name, fits) in [
            ("zstd", None, true),
            ("auto", Some("c"), true),
            ("zstd:3", Some("b"), false),
            ("lz4", Some("c"), false),
            ("off", None, false),
        ] {
            let rule =
                Compress { dictionary_bytes: Some(1 << 20), ..rule(peer_name, None, method) };
            assert_eq!(rule.check_dictionary(&peers).is_ok(), fits, "{method} of {peer_name:?}");
            let rule = Compress { dictionary_bytes: None, ..rule };
            assert_eq!(rule.check_dictionary(&peers), Ok(()));
        }
    }
}
