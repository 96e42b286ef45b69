//! Warnings to the operator about refused callers: peers, and hosts that present a certificate that
//! is not trusted. Callers without a certificate cause no warning.
//!
//! Callers call again and again, so there is one warning an hour for each caller and reason. Any
//! host can present a certificate, from any address: at most `MOST` warnings are remembered, and
//! beyond them there are none.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use vsnoop_link::handshake::{Error, ErrorKind};

const QUIET_NS: u64 = Duration::from_secs(3600).as_nanos() as u64;
const MOST: usize = 64;

/// The warnings of one link.
#[derive(Default)]
pub struct Complaints {
    /// Caller and reason, and when the warning was given.
    said: HashMap<(String, ErrorKind), u64>,
}

impl Complaints {
    /// Whether it is worth a warning, this time.
    pub fn is_due(&mut self, from: IpAddr, error: &Error, now_ns: u64) -> bool {
        let who = match error.peer() {
            Some(peer) => peer.to_string(),
            None if error.is_of_certificate() => from.to_string(),
            None => return false,
        };
        self.is_due_of(who, error.kind(), now_ns)
    }

    fn is_due_of(&mut self, who: String, why: ErrorKind, now_ns: u64) -> bool {
        self.said.retain(|_, said_ns| now_ns.saturating_sub(*said_ns) < QUIET_NS);
        let key = (who, why);
        if self.said.len() >= MOST || self.said.contains_key(&key) {
            return false;
        }
        self.said.insert(key, now_ns);
        true
    }
}

#[cfg(test)]
mod tests {
    use rustls::CertificateError;

    use super::*;
    use vsnoop_link::identity::{PeerId, PublicKey};

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn presented(why: CertificateError) -> Error {
        Error::Tls {
            with: None,
            proved: false,
            ours: PublicKey::of_spki(b"ours"),
            error: why.into(),
        }
    }

    #[test]
    fn each_is_warned_of_once_an_hour_for_each_reason() {
        let mut complaints = Complaints::default();
        let (old, young) =
            (presented(CertificateError::Expired), presented(CertificateError::NotValidYet));
        assert!(complaints.is_due(HERE, &old, 0));
        assert!(!complaints.is_due(HERE, &old, QUIET_NS - 1));
        assert!(complaints.is_due(HERE, &young, 1));
        assert!(complaints.is_due("192.0.2.1".parse().unwrap(), &old, 1));
        assert!(complaints.is_due(HERE, &old, QUIET_NS));
    }

    #[test]
    fn a_peer_is_the_same_at_any_address_and_an_unknown_source_has_no_name() {
        let mut complaints = Complaints::default();
        let cut = |with| Error::Cut { with, proved: false, waited_for: "hello" };
        let peer = || Some(PeerId::new("b"));
        assert!(complaints.is_due(HERE, &cut(peer()), 0));
        assert!(!complaints.is_due("192.0.2.1".parse().unwrap(), &cut(peer()), 0));
        assert!(!complaints.is_due(HERE, &cut(None), 0));
        let none = Error::Tls {
            with: None,
            proved: false,
            ours: PublicKey::of_spki(b"ours"),
            error: rustls::Error::NoCertificatesPresented,
        };
        assert!(!complaints.is_due(HERE, &none, 0));
    }

    #[test]
    fn many_callers_neither_fill_the_log_nor_the_memory() {
        let mut complaints = Complaints::default();
        let expired = presented(CertificateError::Expired);
        let warned = (0..1000u32)
            .filter(|n| complaints.is_due(IpAddr::V4((*n).into()), &expired, 0))
            .count();
        assert_eq!((warned, complaints.said.len()), (MOST, MOST));
        assert!(complaints.is_due(HERE, &expired, QUIET_NS));
    }
}
