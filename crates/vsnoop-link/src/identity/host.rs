//! This host: its private key and the certificate that it presents.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ParsedCertificate;

use super::{PublicKey, key_file};

/// Who this host is.
#[derive(Debug)]
pub struct Identity {
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) chain: Vec<CertificateDer<'static>>,
    public: PublicKey,
}

impl Identity {
    /// The host with the private key in the file `key`. `certificate` is a file with the
    /// certificate that an authority has signed for this key, and those between it and the
    /// authority.
    pub fn load(key: &Path, certificate: Option<&Path>) -> Result<Self> {
        let (der, signer) = key_file::read(key)?;
        let public = key_file::public_key(&*signer)?;
        let chain = match certificate {
            Some(file) => {
                let chain = read_certificates(file)?;
                let theirs = key_of(&chain[0])
                    .with_context(|| {
                        let file = file.display();
                        format!("{file} is not usable (is the name of the host in it? docs/link.md has the commands)")
                    })?;
                ensure!(
                    theirs == public,
                    "the certificate {} is for another key ({theirs}) than that in {} ({public})",
                    file.display(),
                    key.display()
                );
                chain
            }
            None => vec![self_signed(&der)?],
        };
        Ok(Self { key: der, chain, public })
    }

    /// What peers pin.
    pub fn public(&self) -> PublicKey {
        self.public
    }
}

/// All certificates in a file, at least one.
pub(super) fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let shown = file.display();
    let certificates = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("cannot read the certificate file {shown}"))?;
    ensure!(!certificates.is_empty(), "{shown} has no certificate in PEM");
    Ok(certificates)
}

/// The key that a certificate is for.
pub(super) fn key_of(certificate: &CertificateDer<'_>) -> Result<PublicKey, rustls::Error> {
    let parsed = ParsedCertificate::try_from(certificate)?;
    Ok(PublicKey::of_spki(&parsed.subject_public_key_info()))
}

/// A certificate that says nothing but the key.
fn self_signed(key: &PrivateKeyDer<'static>) -> Result<CertificateDer<'static>> {
    let pair =
        rcgen::KeyPair::try_from(key).context("this kind of private key is not supported")?;
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "vsnoop link");
    let certificate = params.self_signed(&pair).context("cannot sign a certificate")?;
    Ok(certificate.der().clone())
}
