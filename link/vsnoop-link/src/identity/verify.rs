//! Which peer a certificate belongs to: asked by TLS during the handshake, and again afterwards.
//!
//! This module decides only whether the certificate is a peer's. TLS itself verifies that the
//! presenter has the private key: rustls does, with the provider's algorithms.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, PeerMisbehaved,
    SignatureScheme,
};

use super::host::key_of;
use super::provider::crypto_provider;
use super::trust::{Presents, has_name};
use super::{Authority, PeerId, PublicKey, Trust};

/// Why a certificate is no peer's, where TLS has no error for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Untrusted {
    /// It was to be that of one peer, whose pinned keys are others.
    OtherKey { presented: PublicKey, pinned: Vec<PublicKey> },
    /// It has the key of no peer.
    UnknownKey { presented: PublicKey },
    /// The authority has signed it, but it has the name of no peer.
    UnknownName { presented: PublicKey },
    /// The presenter does not have the certificate's private key.
    WithoutItsKey { presented: PublicKey },
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherKey { presented, pinned } => {
                let pinned: Vec<_> = pinned.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "presented key {presented}, not the pinned {}; is the configuration of one of the \
                     hosts old? compare with `vsnoop link keygen --show FILE` on the peer's host",
                    pinned.join(" or ")
                )
            }
            Self::UnknownKey { presented } => write!(
                f,
                "presented key {presented}, which is no peer's; if it is to be one, give its [[peer]] \
                 this key"
            ),
            Self::UnknownName { presented } => write!(
                f,
                "presented a certificate of the authority (key {presented}) with the name of no peer; \
                 compare the names in it with those of the peers"
            ),
            Self::WithoutItsKey { presented } => write!(
                f,
                "presented the certificate of key {presented} without having that key; somebody else \
                 uses it, or the network changes what is sent"
            ),
        }
    }
}

impl std::error::Error for Untrusted {}

impl From<Untrusted> for Error {
    fn from(why: Untrusted) -> Self {
        CertificateError::Other(OtherError(Arc::new(why))).into()
    }
}

/// The peers that a certificate may belong to.
#[derive(Debug)]
pub(super) struct Verifier {
    peers: Vec<(PeerId, Trust)>,
    presents: Presents,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    /// `presents` is the role in which these peers present their certificates.
    pub(super) fn new(peers: Vec<(PeerId, Trust)>, presents: Presents) -> Self {
        let algorithms = crypto_provider().signature_verification_algorithms;
        Self { peers, presents, algorithms }
    }

    /// Which peer presents this certificate.
    pub(super) fn identify_certificate(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<&PeerId, Error> {
        self.identify_as(self.presents, certificate, intermediates, now)
    }

    /// Which peer presents this certificate in that role.
    pub(super) fn identify_as(
        &self,
        presents: Presents,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<&PeerId, Error> {
        let presented = key_of(certificate)?;
        let pinned = |t: &Trust| matches!(t, Trust::Keys(keys) if keys.contains(&presented));
        if let Some((peer, _)) = self.peers.iter().find(|(_, trust)| pinned(trust)) {
            return Ok(peer);
        }
        let mut why = match &self.peers[..] {
            [(_, Trust::Keys(pinned))] if presents == Presents::Acceptor => {
                Untrusted::OtherKey { presented, pinned: pinned.clone() }.into()
            }
            _ => Untrusted::UnknownKey { presented }.into(),
        };
        // Peers share an authority: a signature is verified once for all of them.
        let mut asked = Vec::new();
        for (peer, trust) in &self.peers {
            let Trust::Named(authority, name) = trust else { continue };
            // An acceptor's is verified for the name of one peer.
            let known = asked
                .iter()
                .find(|(a, _)| presents == Presents::Initiator && Arc::ptr_eq(a, authority));
            let signed = match known {
                Some((_, signed)) => *signed,
                None => {
                    let signed =
                        authority.has_signed(presents, name, certificate, intermediates, now);
                    asked.push((Arc::clone(authority), signed.is_ok()));
                    // With pinned peers, too, "unknown key" explains more than "wrong authority".
                    match signed {
                        Err(e) if self.only_named() => why = e,
                        _ => (),
                    }
                    asked.last().is_some_and(|(_, signed)| *signed)
                }
            };
            if signed {
                match has_name(certificate, name) {
                    Ok(()) => return Ok(peer),
                    Err(e) if presents == Presents::Acceptor => why = e,
                    Err(_) => why = Untrusted::UnknownName { presented }.into(),
                }
            }
        }
        Err(why)
    }

    /// When a certificate of the path to an authority has expired, if one has at `at_s`; both in
    /// seconds since the epoch.
    pub(super) fn find_expired(
        &self,
        presents: Presents,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        at_s: u64,
    ) -> Option<u64> {
        let at = UnixTime::since_unix_epoch(Duration::from_secs(at_s));
        let mut asked: Vec<&Arc<Authority>> = Vec::new();
        let mut last_s = None;
        for (_, trust) in &self.peers {
            let Trust::Named(authority, name) = trust else { continue };
            if asked.iter().any(|known| Arc::ptr_eq(known, authority)) {
                continue;
            }
            asked.push(authority);
            // The name is compared last.
            if let Err(Error::InvalidCertificate(CertificateError::ExpiredContext {
                not_after,
                ..
            })) = authority.has_signed(presents, name, certificate, intermediates, at)
            {
                last_s = last_s.max(Some(not_after.as_secs()));
            }
        }
        last_s
    }

    fn only_named(&self) -> bool {
        self.peers.iter().all(|(_, trust)| matches!(trust, Trust::Named(..)))
    }

    fn verify_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms).map_err(
            |e| match (&e, key_of(certificate)) {
                (Error::InvalidCertificate(CertificateError::BadSignature), Ok(presented)) => {
                    Untrusted::WithoutItsKey { presented }.into()
                }
                _ => e,
            },
        )
    }
}

/// TLS 1.2 is never offered.
fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into())
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.identify_certificate(end_entity, intermediates, now)
            .map(|_| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    /// Empty: a caller is not told which authorities are believed.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.identify_certificate(end_entity, intermediates, now)
            .map(|_| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
