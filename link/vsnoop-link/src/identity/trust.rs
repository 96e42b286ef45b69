//! Certificates and keys that this host accepts from peers.

use std::net::Ipv4Addr;
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{VerifierBuilderError, WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, Error, RootCertStore};

use super::host::{Pem, read_certificates, read_lists};
use super::provider::crypto_provider;
use super::{Identity, IdentityError, PublicKey};

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
    Initiator,
    Acceptor,
}

/// A private certificate authority.
#[derive(Debug)]
pub struct Authority {
    /// The file with its certificates.
    file: String,
    roots: RootCertStore,
    initiators: Arc<dyn ClientCertVerifier>,
    acceptors: Arc<WebPkiServerVerifier>,
    /// The files of the lists.
    lists: String,
    /// Certificate revocation lists (RFC 5280) of the authority.
    revoked: Vec<CertificateRevocationListDer<'static>>,
}

impl Authority {
    /// The authority whose certificates these are: several while one replaces another.
    ///
    /// `lists`: its revocation lists, and those of all authorities between it and the hosts.
    /// Without any nothing is revoked; with some, a certificate of an authority without a list is
    /// refused. A list counts until there is a newer one.
    pub fn new(certificates: Pem<'_>, lists: &[Pem<'_>]) -> Result<Arc<Self>, IdentityError> {
        let file = certificates.file.to_owned();
        let mut roots = RootCertStore::empty();
        for certificate in read_certificates(certificates)? {
            roots
                .add(certificate)
                .map_err(|error| IdentityError::NoAuthority { file: file.clone(), error })?;
        }
        Self::with_revoked(file, roots, lists)
    }

    /// Makes an authority with these certificates and other revocation lists.
    pub fn with_lists(&self, lists: &[Pem<'_>]) -> Result<Arc<Self>, IdentityError> {
        Self::with_revoked(self.file.clone(), self.roots.clone(), lists)
    }

    fn with_revoked(
        file: String,
        roots: RootCertStore,
        lists: &[Pem<'_>],
    ) -> Result<Arc<Self>, IdentityError> {
        let names = lists.iter().map(|list| list.file).collect::<Vec<_>>().join(", ");
        let all = Arc::new(roots.clone());
        let revoked = lists.iter().map(|list| read_lists(*list)).collect::<Result<Vec<_>, _>>()?;
        let revoked = revoked.concat();
        let unusable = |error| match error {
            VerifierBuilderError::InvalidCrl(error) => {
                IdentityError::BadList { files: names.clone(), error: error.into() }
            }
            error => IdentityError::UnusableAuthority { file: file.clone(), error },
        };
        let initiators =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&all), crypto_provider())
                .with_crls(revoked.clone())
                .build()
                .map_err(unusable)?;
        let acceptors = WebPkiServerVerifier::builder_with_provider(all, crypto_provider())
            .with_crls(revoked.clone())
            .build()
            .map_err(unusable)?;
        Ok(Arc::new(Self { file, roots, initiators, acceptors, lists: names, revoked }))
    }

    /// Checks the lists by the certificates of this host: what is found only when a certificate is
    /// verified (a wrong signature, a list of another authority) would cut off all peers.
    pub fn check_lists(&self, own: &Identity) -> Result<(), IdentityError> {
        let Some((certificate, others)) = own.own.cert.split_first() else { return Ok(()) };
        // Names are compared last.
        let name = ServerName::from(Ipv4Addr::UNSPECIFIED);
        for presents in [Presents::Initiator, Presents::Acceptor] {
            let files = || self.lists.clone();
            match self.has_signed(presents, &name, certificate, others, UnixTime::now()) {
                Err(Error::InvalidCertificate(CertificateError::UnknownRevocationStatus)) => {
                    return Err(IdentityError::NoListOfOwn { files: files() });
                }
                Err(error @ Error::InvalidCertRevocationList(_)) => {
                    return Err(IdentityError::BadList { files: files(), error });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether the other has the same certificates and lists.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        self.roots.roots == other.roots.roots && self.revoked == other.revoked
    }

    /// Whether it has signed this certificate, for this role, and for now; that of an acceptor for
    /// this name.
    pub(super) fn has_signed(
        &self,
        presents: Presents,
        name: &ServerName<'_>,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        match presents {
            Presents::Initiator => {
                self.initiators.verify_client_cert(certificate, intermediates, now).map(|_| ())
            }
            Presents::Acceptor => {
                let verified =
                    self.acceptors.verify_server_cert(certificate, intermediates, name, &[], now);
                verified.map(|_| ())
            }
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
