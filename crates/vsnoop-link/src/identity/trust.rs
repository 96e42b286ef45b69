//! Whom this host believes to be a peer.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};

use super::host::{Pem, read_certificates};
use super::provider::provider;
use super::{IdentityError, PublicKey};

/// The proof that makes a host a certain peer.
#[derive(Clone, Debug)]
pub enum Trust {
    /// It has the private key of one of these public keys: several while one replaces another.
    /// Nothing else is looked at; this never expires.
    Keys(Vec<PublicKey>),
    /// It has a certificate of this authority, valid today, with this name.
    Named(Arc<Authority>, ServerName<'static>),
}

impl Trust {
    /// The host that has the private key of `key`.
    pub fn key(key: PublicKey) -> Self {
        Self::Keys(vec![key])
    }

    /// The host for which `authority` has signed a certificate with `name`, a DNS name or an
    /// address.
    pub fn named(authority: &Arc<Authority>, name: &str) -> Result<Self, IdentityError> {
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| IdentityError::BadName { name: name.to_owned() })?;
        Ok(Self::Named(Arc::clone(authority), name))
    }
}

/// In which role a certificate is presented: it may be for one of them only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presents {
    Dialler,
    Acceptor,
}

/// A private certificate authority.
#[derive(Debug)]
pub struct Authority {
    roots: RootCertStore,
    diallers: Arc<dyn ClientCertVerifier>,
}

impl Authority {
    /// The authority whose certificates these are: several while one replaces another.
    pub fn new(certificates: Pem<'_>) -> Result<Arc<Self>, IdentityError> {
        let file = || certificates.file.to_owned();
        let mut roots = RootCertStore::empty();
        for certificate in read_certificates(certificates)? {
            roots
                .add(certificate)
                .map_err(|error| IdentityError::NoAuthority { file: file(), error })?;
        }
        let all = Arc::new(roots.clone());
        let diallers = WebPkiClientVerifier::builder_with_provider(all, provider())
            .build()
            .map_err(|error| IdentityError::UnusableAuthority { file: file(), error })?;
        Ok(Arc::new(Self { roots, diallers }))
    }

    /// Whether the other has the same certificates.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.roots.roots == other.roots.roots
    }

    /// Whether it has signed this certificate, for this role, and for now.
    pub(super) fn has_signed(
        &self,
        presents: Presents,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        match presents {
            Presents::Dialler => {
                self.diallers.verify_client_cert(certificate, intermediates, now).map(|_| ())
            }
            Presents::Acceptor => verify_server_cert_signed_by_trust_anchor(
                &ParsedCertificate::try_from(certificate)?,
                &self.roots,
                intermediates,
                now,
                provider().signature_verification_algorithms.all,
            ),
        }
    }
}

/// Whether the certificate has this name.
pub(super) fn has_name(
    certificate: &CertificateDer<'_>,
    name: &ServerName<'_>,
) -> Result<(), rustls::Error> {
    verify_server_name(&ParsedCertificate::try_from(certificate)?, name)
}
