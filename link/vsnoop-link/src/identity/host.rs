//! This host: its private key and the certificate that it presents.

use std::sync::Arc;

use aws_lc_rs::signature::Ed25519KeyPair;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SigningKey};
use zeroize::Zeroizing;

use super::{IdentityError, PublicKey};

/// A text in PEM.
#[derive(Clone, Copy)]
pub struct Pem<'a> {
    pub bytes: &'a [u8],
    /// Where it comes from; errors name it.
    pub file: &'a str,
}

/// Identity of this host.
#[derive(Debug)]
pub struct Identity {
    /// The chain of certificates, and what signs with the key, of which there is no other copy.
    pub(super) own: Arc<CertifiedKey>,
    public: PublicKey,
    /// An authority has signed its certificate.
    is_certified: bool,
}

impl Identity {
    /// The host with the private key `key`. `certificates`: the one that an authority has signed
    /// for this key, and those between it and the authority.
    pub fn new(key: Pem<'_>, certificates: Option<Pem<'_>>) -> Result<Self, IdentityError> {
        let (der, signer) = read_key(key)?;
        let public = public_key(&*signer)?;
        let is_certified = certificates.is_some();
        let chain = match certificates {
            Some(pem) => chain_of(pem, key.file, public)?,
            None => vec![self_signed(&der)?],
        };
        Ok(Self { own: Arc::new(CertifiedKey::new(chain, signer)), public, is_certified })
    }

    /// Makes an identity of this host with other certificates for its key, or without one.
    pub fn with_certificates(&self, certificates: Option<Pem<'_>>) -> Result<Self, IdentityError> {
        let signer = Arc::clone(&self.own.key);
        let (public, is_certified) = (self.public, certificates.is_some());
        let chain = match certificates {
            Some(pem) => chain_of(pem, "the present private key", self.public)?,
            // A self-signed certificate proves the key, and nothing else.
            None => self.own.cert.clone(),
        };
        Ok(Self { own: Arc::new(CertifiedKey::new(chain, signer)), public, is_certified })
    }

    /// Whether it shows the same to its peers: key, and certificates of an authority.
    pub fn shows_same(&self, other: &Self) -> bool {
        let is_certified = self.is_certified || other.is_certified;
        self.public == other.public && (!is_certified || self.own.cert == other.own.cert)
    }

    /// The public key that peers pin.
    pub fn public_key(&self) -> PublicKey {
        self.public
    }
}

/// A new private key in PEM, PKCS#8.
///
/// New keys are Ed25519: TLS 1.3 libraries know it in both roles, its signatures need no random
/// numbers (a bad generator gives the key away with ECDSA), and the key is the smallest.
pub fn generate_key() -> Result<Zeroizing<String>, IdentityError> {
    let pkcs8 = Ed25519KeyPair::generate()
        .and_then(|pair| pair.to_pkcs8v1())
        .map_err(|_| IdentityError::NoRandom)?;
    let pair = rcgen::KeyPair::try_from(pkcs8.as_ref()).map_err(IdentityError::NewKey)?;
    let pair = Zeroizing::new(pair);
    Ok(Zeroizing::new(pair.serialize_pem()))
}

/// The public key of a private key.
pub fn public_key_of(key: Pem<'_>) -> Result<PublicKey, IdentityError> {
    public_key(&*read_key(key)?.1)
}

/// The bytes of a private key, and what signs with it.
type ReadKey = (Zeroizing<PrivateKeyDer<'static>>, Arc<dyn SigningKey>);

fn read_key(key: Pem<'_>) -> Result<ReadKey, IdentityError> {
    let file = || key.file.to_owned();
    let der = PrivateKeyDer::from_pem_slice(key.bytes)
        .map_err(|error| IdentityError::NoKey { file: file(), error })?;
    let der = Zeroizing::new(der);
    let signer = rustls::crypto::aws_lc_rs::sign::any_supported_type(&der)
        .map_err(|error| IdentityError::UnusableKey { file: file(), error })?;
    Ok((der, signer))
}

fn public_key(signer: &dyn SigningKey) -> Result<PublicKey, IdentityError> {
    let spki = signer.public_key().ok_or(IdentityError::NoPublicKey)?;
    Ok(PublicKey::of_spki(&spki))
}

/// The chain of certificates for the public key `ours`, whose private key is in `key`.
fn chain_of(
    pem: Pem<'_>,
    key: &str,
    ours: PublicKey,
) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let chain = read_certificates(pem)?;
    let file = || pem.file.to_owned();
    let theirs =
        key_of(&chain[0]).map_err(|error| IdentityError::BadCertificate { file: file(), error })?;
    if theirs != ours {
        let (certificate, key) = (file(), key.to_owned());
        return Err(IdentityError::OtherKey { certificate, theirs, key, ours });
    }
    Ok(chain)
}

/// All certificates, at least one.
pub(super) fn read_certificates(
    pem: Pem<'_>,
) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    read_all(
        pem,
        |file, error| IdentityError::Certificates { file, error },
        |file| IdentityError::NoCertificate { file },
    )
}

/// All revocation lists, at least one.
pub(super) fn read_lists(
    pem: Pem<'_>,
) -> Result<Vec<CertificateRevocationListDer<'static>>, IdentityError> {
    read_all(
        pem,
        |file, error| IdentityError::Lists { file, error },
        |file| IdentityError::NoList { file },
    )
}

/// All items of a kind; `bad`: the text is not PEM, `none`: it has no such item.
fn read_all<T: PemObject>(
    pem: Pem<'_>,
    bad: impl Fn(String, pem::Error) -> IdentityError,
    none: impl Fn(String) -> IdentityError,
) -> Result<Vec<T>, IdentityError> {
    let file = || pem.file.to_owned();
    let items: Vec<T> = T::pem_slice_iter(pem.bytes)
        .collect::<Result<_, _>>()
        .map_err(|error| bad(file(), error))?;
    if items.is_empty() {
        return Err(none(file()));
    }
    Ok(items)
}

/// The key that a certificate is for.
pub(super) fn key_of(certificate: &CertificateDer<'_>) -> Result<PublicKey, rustls::Error> {
    let parsed = ParsedCertificate::try_from(certificate)?;
    Ok(PublicKey::of_spki(&parsed.subject_public_key_info()))
}

/// A certificate that says nothing but the key.
fn self_signed(key: &PrivateKeyDer<'static>) -> Result<CertificateDer<'static>, IdentityError> {
    let pair = Zeroizing::new(rcgen::KeyPair::try_from(key).map_err(IdentityError::KeyKind)?);
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "vsnoop link");
    let certificate = params.self_signed(&*pair).map_err(IdentityError::Sign)?;
    Ok(certificate.der().clone())
}
