//! The settings with which a port is attached, whether options of the command or a configuration
//! says them.

use std::hash::Hasher;
use std::net::IpAddr;

use fnv::FnvHasher;
use vsnoop_bpf::{CongestionControl, ServiceMark, TableLimits};

use crate::incast::setting::Rate;

/// The behaviour of a port while it is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It is measured; no packet is changed.
    Observe,
    Accelerate,
}

/// Settings that a port is attached with; `None` is a default that is decided at that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub mode: Mode,
    /// Connections are left to a VM that answers promptly.
    pub passive: bool,
    /// Memory for its hold, bytes.
    pub hold: Option<u32>,
    /// Bytes that a sender may send beyond the VM's own window; `None`: as the hold allows.
    pub ahead: Option<u32>,
    /// Connections of a late VM are split; only with [`Mode::Accelerate`], without `incast`.
    pub downloads: bool,
    /// Congestion control of the sockets that send to peers.
    pub congestion_control: CongestionControl,
    /// Port number (of either end) and whether it is allowed.
    pub port_rules: Vec<(u16, bool)>,
    /// Prefix of the sender's address, its length, and whether it is allowed.
    pub prefix_rules: Vec<(IpAddr, u8, bool)>,
    /// Connections on record.
    pub max_flows: u32,
    pub incast: Option<Incast>,
}

/// The uplink that a port joins; a missing setting comes from the configuration's table
/// `[incast]`, or has a default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Incast {
    pub rate: Option<Rate>,
    pub uplink: Option<String>,
    pub buffer_bytes: Option<u32>,
}

impl Settings {
    /// Those of `mode` alone.
    pub fn from_mode(mode: Mode) -> Self {
        Self {
            mode,
            passive: true,
            hold: None,
            ahead: None,
            downloads: false,
            congestion_control: CongestionControl::default(),
            port_rules: Vec::new(),
            prefix_rules: Vec::new(),
            max_flows: TableLimits::default().max_flows,
            incast: None,
        }
    }
}

// A digest outlives the program that made it, so it is made of a text that does not depend on the
// compiler; a setting that is added later adds nothing to it while it has its default.
impl Settings {
    /// The mark of a port that the service attaches with these settings.
    pub fn mark(&self, table: &str) -> ServiceMark {
        ServiceMark {
            settings: self.digest(),
            bounds: self.digest_of_bounds(),
            table: table.to_owned(),
        }
    }

    /// Knows settings again that only attaching anew can change; never 0.
    fn digest(&self) -> u64 {
        let Self {
            mode,
            passive,
            hold: _,
            ahead: _,
            downloads: _,
            congestion_control: _,
            port_rules,
            prefix_rules,
            max_flows,
            incast,
        } = self;
        let mut text = match mode {
            Mode::Observe => "observe".to_owned(),
            Mode::Accelerate => "accelerate".to_owned(),
        };
        text += &format!(" passive={passive} max_flows={max_flows}");
        for (number, allowed) in port_rules {
            text += &format!(" {number}={allowed}");
        }
        for (prefix, bits, allowed) in prefix_rules {
            text += &format!(" {prefix}/{bits}={allowed}");
        }
        if let Some(Incast { rate, uplink, buffer_bytes }) = incast {
            let rate = match rate {
                None => "-".to_owned(),
                Some(Rate::Link) => "link".to_owned(),
                Some(Rate::BitsPerSecond(bits)) => bits.to_string(),
            };
            let uplink = uplink.as_deref().unwrap_or("-");
            text += &format!(" incast={rate},{uplink},{}", buffer_bytes.unwrap_or(0));
        }
        hash(&text).max(1)
    }

    /// Digest of the settings that change while packets flow.
    fn digest_of_bounds(&self) -> u32 {
        let number = |value: Option<u32>| value.map_or("-".to_owned(), |value| value.to_string());
        let downloads = if self.downloads { ",downloads" } else { "" };
        let control = self.congestion_control.name();
        let control = control.map_or(String::new(), |name| format!(",{name}"));
        let hash =
            hash(&format!("{},{}{downloads}{control}", number(self.hold), number(self.ahead)));
        (hash ^ (hash >> 32)) as u32
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = FnvHasher::default();
    hasher.write(text.as_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_tells_settings_apart_and_stays_the_same() {
        let plain = Settings::from_mode(Mode::Accelerate);
        let others = [
            Settings::from_mode(Mode::Observe),
            Settings { passive: false, ..plain.clone() },
            Settings { max_flows: 1, ..plain.clone() },
            Settings { port_rules: vec![(7, true)], ..plain.clone() },
            Settings { port_rules: vec![(7, false)], ..plain.clone() },
            Settings { incast: Some(Incast::default()), ..plain.clone() },
        ];
        let mut digests: Vec<_> = others.iter().map(Settings::digest).collect();
        digests.push(plain.digest());
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), others.len() + 1);
        // Another program must find the same, or it would attach every port anew.
        assert_eq!(plain.digest(), hash("accelerate passive=true max_flows=4096"));
        let bounded = Settings { hold: Some(1 << 20), ..plain.clone() };
        assert_eq!(bounded.digest(), plain.digest());
        assert_ne!(bounded.digest_of_bounds(), plain.digest_of_bounds());
        let with_downloads = Settings { downloads: true, ..plain.clone() };
        assert_eq!(with_downloads.digest(), plain.digest());
        assert_ne!(with_downloads.digest_of_bounds(), plain.digest_of_bounds());
        let congestion_control = CongestionControl::named("bbr").unwrap();
        let with_bbr = Settings { congestion_control, ..plain.clone() };
        assert_eq!(with_bbr.digest(), plain.digest());
        assert_ne!(with_bbr.digest_of_bounds(), plain.digest_of_bounds());
    }
}
