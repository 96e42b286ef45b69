//! Hosts, keys and authorities for tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tempfile::TempDir;

use super::{Authority, Dialer, Identity, PeerId, Trust, keygen};

/// A directory with the files of some hosts.
pub(crate) struct Files(TempDir);

impl Files {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A host with a key and no certificate.
    pub(crate) fn host(&self, name: &str) -> Identity {
        let file = self.path(name);
        keygen(&file).unwrap();
        Identity::load(&file, None).unwrap()
    }
}

impl Dialer {
    /// Presents the certificates of `other`, with nothing but the key of `own`.
    pub(crate) fn with_certificates_of(mut self, other: &Identity, own: &Identity) -> Self {
        let signer = any_supported_type(&own.key).unwrap();
        let stolen = CertifiedKey::new(other.chain.clone(), signer);
        let mut tls = (*self.tls).clone();
        tls.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(stolen));
        self.tls = Arc::new(tls);
        self
    }
}

/// When a certificate is valid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Validity {
    Now,
    Past,
    Future,
}

/// A private authority.
pub(crate) struct TestAuthority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) trusted: Arc<Authority>,
}

impl TestAuthority {
    pub(crate) fn new(files: &Files, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let certificate = params.self_signed(&key).unwrap();
        let file = files.path(name);
        fs::write(&file, certificate.pem()).unwrap();
        let trusted = Authority::load(&file).unwrap();
        Self { issuer: Issuer::new(params, key), trusted }
    }

    /// Trusts whoever has this name.
    pub(crate) fn trust(&self, name: &str) -> Trust {
        Trust::named(&self.trusted, name).unwrap()
    }

    /// A file with a certificate for the key in `key`.
    pub(crate) fn sign(
        &self,
        key: &Path,
        name: &str,
        validity: Validity,
        purposes: &[ExtendedKeyUsagePurpose],
    ) -> PathBuf {
        let key_pair = KeyPair::from_pem(&fs::read_to_string(key).unwrap()).unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.extended_key_usages = purposes.to_vec();
        (params.not_before, params.not_after) = match validity {
            Validity::Now => (date_time_ymd(2001, 1, 1), date_time_ymd(2999, 1, 1)),
            Validity::Past => (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1)),
            Validity::Future => (date_time_ymd(2998, 1, 1), date_time_ymd(2999, 1, 1)),
        };
        let certificate = params.signed_by(&key_pair, &self.issuer).unwrap();
        let file = key.with_extension("cert");
        fs::write(&file, certificate.pem()).unwrap();
        file
    }

    /// A host with a new key and a certificate.
    pub(crate) fn host(&self, files: &Files, name: &str, validity: Validity) -> Identity {
        let key = files.path(&format!("{name}-{}", fastrand::u64(..)));
        keygen(&key).unwrap();
        let certificate = self.sign(&key, name, validity, &[]);
        Identity::load(&key, Some(&certificate)).unwrap()
    }
}

/// A peer by its name.
pub(crate) fn peer(name: &str) -> PeerId {
    PeerId::new(name)
}

/// Whoever has this host's key.
pub(crate) fn pinned(host: &Identity) -> Trust {
    Trust::Key(host.public())
}
