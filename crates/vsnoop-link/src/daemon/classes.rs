//! Which frames are compressed how: the rules of the configuration, remembered per flow.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use super::config::{Mac, Rules, Traffic};
use super::egress::outlet::Frame;
use crate::compress::{Class, Method};

/// Flows whose class is remembered; beyond them all are looked up again.
const FLOWS: usize = 4096;

pub struct Classes {
    rules: Arc<Rules>,
    peers: Arc<[String]>,
    ports: Arc<[String]>,
    known: HashMap<(usize, usize, u64), Option<Class>>,
}

impl Classes {
    /// `peers` and `ports`: their names, by index.
    pub fn new(rules: Arc<Rules>, peers: Arc<[String]>, ports: Arc<[String]>) -> Self {
        Self { rules, peers, ports, known: HashMap::new() }
    }

    /// Whether anything may be compressed.
    pub fn any(&self) -> bool {
        self.rules.iter().any(|rule| rule.method != Method::Off)
    }

    /// How a frame from a port to a peer is compressed; `None`: not at all.
    pub fn of(&mut self, peer: usize, port: usize, frame: &Frame<'_>) -> Option<Class> {
        if self.rules.is_empty() {
            return None;
        }
        let key = (peer, port, frame.flow());
        if let Some(class) = self.known.get(&key) {
            return *class;
        }
        let class = self.look_up(peer, port, frame);
        if self.known.len() >= FLOWS {
            self.known.clear();
        }
        self.known.insert(key, class);
        class
    }

    fn look_up(&self, peer: usize, port: usize, frame: &Frame<'_>) -> Option<Class> {
        let start = frame.start();
        let mac = |at: usize| -> Option<Mac> { Some(Mac(start.get(at..at + 6)?.try_into().ok()?)) };
        let macs = [mac(6)?, mac(0)?];
        let addresses =
            frame.headers.as_ref().and_then(|headers| addresses(headers.addresses(start)));
        let traffic = Traffic {
            peer: self.peers.get(peer)?,
            port: self.ports.get(port)?,
            macs,
            ips: addresses,
        };
        let (_, rule) = self.rules.first_match(&traffic)?;
        // Whom the sending VM belongs to, by name, or the VM itself.
        let mut owner = DefaultHasher::new();
        match &rule.owner {
            Some(name) => name.hash(&mut owner),
            None => (port, macs[0].0).hash(&mut owner),
        }
        let owner = owner.finish() as u32;
        let class = Class { method: rule.method, owner, dictionary: rule.dictionary_bytes };
        (rule.method != Method::Off).then_some(class)
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
