//! Configuration of TLS: version 1.3, without features that a link does not use.
//!
//! No tickets and no early data: every handshake is a full one, in which both ends prove their
//! identity, with new ephemeral keys. The key exchange is hybrid (X25519 and
//! ML-KEM-768), so that traffic recorded today stays secret from the quantum computers of tomorrow.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::sign::SingleCertAndKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

use super::host::key_of;
use super::provider::{cpu_has_aes, crypto_provider};
use super::trust::Presents;
use super::verify::Verifier;
use super::{Identity, IdentityError, PeerId, PublicKey, Trust};

/// The protocol's name in TLS (ALPN): nothing else that speaks TLS is mistaken for a link.
pub(crate) const ALPN: &[u8] = b"vsnoop-link/1";

/// Calls one peer.
#[derive(Clone, Debug)]
pub struct Initiator {
    peer: PeerId,
    pub(super) tls: Arc<ClientConfig>,
    pub(super) verifier: Arc<Verifier>,
    ours: PublicKey,
}

/// The accepting role, for any of several peers.
#[derive(Clone, Debug)]
pub struct Acceptor {
    tls: Arc<ServerConfig>,
    pub(super) verifier: Arc<Verifier>,
    ours: PublicKey,
}

impl Identity {
    /// Makes the initiator by which this host calls `peer`.
    pub fn make_initiator(&self, peer: &PeerId, trust: &Trust) -> Result<Initiator, IdentityError> {
        self.check_trust(peer, trust)?;
        let peers = vec![(peer.clone(), trust.clone())];
        let verifier = Arc::new(Verifier::new(peers, Presents::Acceptor));
        let mut tls = ClientConfig::builder_with_provider(crypto_provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(IdentityError::NoTls13)?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&self.own))));
        tls.alpn_protocols = vec![ALPN.to_vec()];
        tls.resumption = Resumption::disabled();
        // It is sent in clear.
        tls.enable_sni = false;
        Ok(Initiator { peer: peer.clone(), tls: Arc::new(tls), verifier, ours: self.public_key() })
    }

    /// Makes the acceptor by which any of `peers` calls this host.
    pub fn make_acceptor(&self, peers: &[(PeerId, Trust)]) -> Result<Acceptor, IdentityError> {
        for (i, (peer, trust)) in peers.iter().enumerate() {
            self.check_trust(peer, trust)?;
            if let Some((other, _)) = peers[..i].iter().find(|(_, t)| is_same(t, trust)) {
                let (other, peer) = (other.clone(), peer.clone());
                return Err(IdentityError::SamePeer { other, peer });
            }
        }
        let verifier = Arc::new(Verifier::new(peers.to_vec(), Presents::Initiator));
        let mut tls = ServerConfig::builder_with_provider(crypto_provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(IdentityError::NoTls13)?
            .with_client_cert_verifier(verifier.clone())
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&self.own))));
        tls.alpn_protocols = vec![ALPN.to_vec()];
        tls.session_storage = Arc::new(NoServerSessionStorage {});
        tls.send_tls13_tickets = 0;
        // The end whose CPU is without AES has its way, be it the one or the other.
        tls.ignore_client_order = !cpu_has_aes();
        Ok(Acceptor { tls: Arc::new(tls), verifier, ours: self.public_key() })
    }

    fn check_trust(&self, peer: &PeerId, trust: &Trust) -> Result<(), IdentityError> {
        if matches!(trust, Trust::Keys(keys) if keys.contains(&self.public_key())) {
            return Err(IdentityError::OwnKey { peer: peer.clone() });
        }
        Ok(())
    }
}

impl Initiator {
    /// The peer that it calls.
    pub fn peer(&self) -> &PeerId {
        &self.peer
    }

    pub(crate) fn start_client(&self) -> Result<ClientConnection, rustls::Error> {
        // TLS wants a name; it is neither sent nor compared.
        let nobody = ServerName::from(std::net::Ipv4Addr::UNSPECIFIED);
        ClientConnection::new(Arc::clone(&self.tls), nobody)
    }

    /// The key that this host presents.
    pub(crate) fn ours(&self) -> PublicKey {
        self.ours
    }

    /// Which peer presented these certificates, and its key.
    pub(crate) fn peer_of(
        &self,
        chain: &[CertificateDer<'_>],
    ) -> Result<(PeerId, PublicKey), rustls::Error> {
        peer_of(&self.verifier, chain)
    }
}

impl Acceptor {
    pub(crate) fn start_server(&self) -> Result<ServerConnection, rustls::Error> {
        ServerConnection::new(Arc::clone(&self.tls))
    }

    /// The key that this host presents.
    pub(crate) fn ours(&self) -> PublicKey {
        self.ours
    }

    /// Which peer presented these certificates, and its key.
    pub(crate) fn peer_of(
        &self,
        chain: &[CertificateDer<'_>],
    ) -> Result<(PeerId, PublicKey), rustls::Error> {
        peer_of(&self.verifier, chain)
    }
}

fn peer_of(
    verifier: &Verifier,
    chain: &[CertificateDer<'_>],
) -> Result<(PeerId, PublicKey), rustls::Error> {
    let (first, others) = chain.split_first().ok_or(rustls::Error::NoCertificatesPresented)?;
    let peer = verifier.identify_certificate(first, others, UnixTime::now())?;
    Ok((peer.clone(), key_of(first)?))
}

fn is_same(a: &Trust, b: &Trust) -> bool {
    match (a, b) {
        (Trust::Keys(a), Trust::Keys(b)) => a.iter().any(|key| b.contains(key)),
        (Trust::Named(a, x), Trust::Named(b, y)) => {
            x == y && (Arc::ptr_eq(a, b) || a.is_same_as(b))
        }
        _ => false,
    }
}
