//! Private authorities, and hosts with certificates of them, for the tests of this crate.

use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, date_time_ymd,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use super::testing::load;
use super::{Authority, Identity, Initiator, Pem, Trust, generate_key};

impl Initiator {
    /// Presents the certificates of `other`, with nothing but the key of `own`.
    pub fn with_certificates_of(mut self, other: &Identity, own: &Identity) -> Self {
        let stolen = CertifiedKey::new(other.own.cert.clone(), Arc::clone(&own.own.key));
        let mut tls = (*self.tls).clone();
        tls.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(stolen));
        self.tls = Arc::new(tls);
        self
    }
}

/// When a certificate is valid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    Now,
    /// To this time, seconds since the epoch.
    Until(u64),
    Past,
    Future,
}

/// A private authority.
pub struct TestAuthority {
    issuer: Issuer<'static, KeyPair>,
    pub trusted: Arc<Authority>,
}

impl TestAuthority {
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let certificate = params.self_signed(&key).unwrap().pem();
        let trusted =
            Authority::new(Pem { bytes: certificate.as_bytes(), file: name }, &[]).unwrap();
        Self { issuer: Issuer::new(params, key), trusted }
    }

    /// Trusts a certificate with this name.
    pub fn trust(&self, name: &str) -> Trust {
        Trust::named(&self.trusted, name).unwrap()
    }

    /// A certificate for the private key `key`.
    pub fn sign(
        &self,
        key: &str,
        name: &str,
        validity: Validity,
        purposes: &[ExtendedKeyUsagePurpose],
    ) -> String {
        let key_pair = KeyPair::from_pem(key).unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.extended_key_usages = purposes.to_vec();
        (params.not_before, params.not_after) = match validity {
            Validity::Now => (date_time_ymd(2001, 1, 1), date_time_ymd(2999, 1, 1)),
            Validity::Until(end_s) => {
                (date_time_ymd(2001, 1, 1), date_time_ymd(1970, 1, 1) + Duration::from_secs(end_s))
            }
            Validity::Past => (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1)),
            Validity::Future => (date_time_ymd(2998, 1, 1), date_time_ymd(2999, 1, 1)),
        };
        params.signed_by(&key_pair, &self.issuer).unwrap().pem()
    }

    /// A revocation list with nothing on it.
    pub fn list(&self) -> String {
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2001, 1, 1),
            next_update: date_time_ymd(2999, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    /// A host with a new key and a certificate.
    pub fn host(&self, name: &str, validity: Validity) -> Identity {
        let key = generate_key().unwrap();
        load(&key, Some(&self.sign(&key, name, validity, &[]))).unwrap()
    }
}
