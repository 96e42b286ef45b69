//! A peer's proof of identity, kept to be verified again while its session lasts.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};

use super::trust::Presents;
use super::verify::Verifier;
use super::{Acceptor, Initiator};

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
    /// The proof of the peer that `initiator` has called. `ends`: its end is asked for.
    pub(crate) fn of_acceptor(
        initiator: &Initiator,
        chain: &[CertificateDer<'static>],
        ends: bool,
    ) -> Self {
        Self::new(Presents::Acceptor, chain, ends.then_some(&initiator.verifier))
    }

    /// The proof of a peer that has called `acceptor`. `ends`: its end is asked for.
    pub(crate) fn of_initiator(
        acceptor: &Acceptor,
        chain: &[CertificateDer<'static>],
        ends: bool,
    ) -> Self {
        Self::new(Presents::Initiator, chain, ends.then_some(&acceptor.verifier))
    }

    fn new(
        presents: Presents,
        chain: &[CertificateDer<'static>],
        verifier: Option<&Arc<Verifier>>,
    ) -> Self {
        let mut proof = Self { chain: chain.to_vec(), presents, until_s: None };
        proof.until_s = verifier.and_then(|verifier| proof.holds_until(verifier));
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
        let mut at_s = now_s.saturating_add(FAR_AHEAD_S);
        if holds(at_s) {
            return None;
        }
        let (first, others) = self.chain.split_first()?;
        // Each time another certificate of the path has expired.
        while let Some(end_s) = verifier.find_expired(self.presents, first, others, at_s)
            && end_s < at_s
        {
            at_s = end_s;
            if holds(at_s) {
                return Some(at_s);
            }
        }
        Some(now_s)
    }
}

impl Initiator {
    /// Verifies that the proof still shows that it is this initiator's peer. Its key may not be
    /// pinned any more, its certificate may have expired or been revoked.
    pub fn verify_again(&self, proof: &mut Proof) -> Result<(), rustls::Error> {
        proof.verify(&self.verifier, UnixTime::now())?;
        proof.until_s = proof.holds_until(&self.verifier);
        Ok(())
    }
}
