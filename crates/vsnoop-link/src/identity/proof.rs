//! What a peer has shown in a handshake, kept to be verified again while its session lasts.

use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};

use super::trust::Presents;
use super::verify::Verifier;
use super::{Acceptor, Dialer};

/// No session lasts longer; what is valid until then never ends.
const FAR_AHEAD_S: u64 = 100 * 365 * 86_400;

/// The certificates of a peer, whose key it has proved to have.
#[derive(Clone, Debug)]
pub struct Proof {
    chain: Vec<CertificateDer<'static>>,
    presents: Presents,
    until_s: Option<u64>,
}

impl Proof {
    /// Of what the peer that `dialer` has called presented.
    pub(crate) fn of_acceptor(dialer: &Dialer, chain: &[CertificateDer<'static>]) -> Self {
        Self::new(Presents::Acceptor, chain, &dialer.verifier)
    }

    /// Of what a peer that has called `acceptor` presented.
    pub(crate) fn of_dialler(acceptor: &Acceptor, chain: &[CertificateDer<'static>]) -> Self {
        Self::new(Presents::Dialler, chain, &acceptor.verifier)
    }

    fn new(presents: Presents, chain: &[CertificateDer<'static>], verifier: &Verifier) -> Self {
        let mut proof = Self { chain: chain.to_vec(), presents, until_s: None };
        proof.until_s = proof.holds_until(verifier);
        proof
    }

    /// Until when it holds, in seconds since the epoch; `None`: for longer than any session.
    pub fn until_s(&self) -> Option<u64> {
        self.until_s
    }

    fn verify(&self, verifier: &Verifier, at: UnixTime) -> Result<(), rustls::Error> {
        let (first, others) =
            self.chain.split_first().ok_or(rustls::Error::NoCertificatesPresented)?;
        verifier.identify_as(self.presents, first, others, at).map(drop)
    }

    /// The verifier itself says so, asked for later times: the whole path to the authority counts.
    fn holds_until(&self, verifier: &Verifier) -> Option<u64> {
        let now_s = UnixTime::now().as_secs();
        let holds = |at_s| {
            let at = UnixTime::since_unix_epoch(Duration::from_secs(at_s));
            self.verify(verifier, at).is_ok()
        };
        let (mut valid_s, mut invalid_s) = (now_s, now_s.saturating_add(FAR_AHEAD_S));
        if holds(invalid_s) {
            return None;
        }
        while invalid_s - valid_s > 1 {
            let middle_s = valid_s.midpoint(invalid_s);
            if holds(middle_s) {
                valid_s = middle_s;
            } else {
                invalid_s = middle_s;
            }
        }
        Some(valid_s)
    }
}

impl Dialer {
    /// Verifies that the proof still shows that it is this dialer's peer. Its key may not be pinned
    /// any more, its certificate may have expired or been revoked.
    pub fn verify_again(&self, proof: &mut Proof) -> Result<(), rustls::Error> {
        proof.verify(&self.verifier, UnixTime::now())?;
        proof.until_s = proof.holds_until(&self.verifier);
        Ok(())
    }
}
