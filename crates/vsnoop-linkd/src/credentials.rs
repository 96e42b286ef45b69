//! Keys and certificates of the configuration's files.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem;
use tracing::warn;
use vsnoop_link::identity::{
    Acceptor, Authority, Dialer, Identity, IdentityError, PeerId, Pem, Trust,
};

use crate::config::{AuthorityConfig, Config, PeerConfig, TrustConfig};
use crate::key_file::{self, KeyFileError};

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
    #[error("peer {peer} needs a `ca`")]
    NoAuthority { peer: String },
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

type Result<T> = std::result::Result<T, CredentialsError>;

/// The host with the private key in the file `key`. `certificate` is a file with the certificate
/// that an authority has signed for this key, and those between it and the authority.
pub fn identity(key: &Path, certificate: Option<&Path>) -> Result<Identity> {
    let Some(file) = certificate else {
        return Ok(key_file::with_key(key, |key| Identity::new(key, None))?);
    };
    let certificates = CertificateFile::read(file)?;
    Ok(key_file::with_key(key, |key| Identity::new(key, Some(certificates.pem())))?)
}

/// What a link shows to its peers, and how it knows them.
pub struct Credentials {
    pub identity: Identity,
    pub acceptor: Acceptor,
    /// In the order of the configuration.
    pub dialers: Vec<Dialer>,
}

impl Credentials {
    pub fn read(config: &Config) -> Result<Self> {
        let certificate = config.authority.as_ref().map(|authority| authority.cert.as_path());
        Self::with(config, identity(&config.key, certificate)?)
    }

    /// Like [`Credentials::read`]; where this user may not read the key file, the host keeps the
    /// key that it has.
    pub fn read_again(config: &Config, before: &Identity) -> Result<Self> {
        let denied = match Self::read(config) {
            Err(CredentialsError::KeyFile(error)) if error.is_denied() => error,
            other => return other,
        };
        warn!("{denied}; the key stays as it is");
        let certificate = config.authority.as_ref().map(|authority| authority.cert.as_path());
        let certificate = certificate.map(CertificateFile::read).transpose()?;
        let certificate = certificate.as_ref().map(CertificateFile::pem);
        Self::with(config, before.with_certificates(certificate)?)
    }

    fn with(config: &Config, identity: Identity) -> Result<Self> {
        let trusts = trusts(config)?;
        let dialers = trusts.iter().map(|(peer, trust)| identity.dialer(peer, trust));
        Ok(Self {
            acceptor: identity.acceptor(&trusts)?,
            dialers: dialers.collect::<std::result::Result<_, _>>()?,
            identity,
        })
    }
}

fn trusts(config: &Config) -> Result<Vec<(PeerId, Trust)>> {
    let authority = config.authority.as_ref().map(authority).transpose()?;
    let trust = |peer: &PeerConfig| {
        let trust = match (&peer.trust, &authority) {
            (TrustConfig::Keys(keys), _) => Trust::Keys(keys.clone()),
            (TrustConfig::Subject(name), Some(authority)) => Trust::named(authority, name)?,
            (TrustConfig::Subject(_), None) => {
                return Err(CredentialsError::NoAuthority { peer: peer.name.clone() });
            }
        };
        Ok((PeerId::new(&peer.name), trust))
    };
    config.peers.iter().map(trust).collect()
}

/// The authority with these files.
pub fn authority(files: &AuthorityConfig) -> Result<Arc<Authority>> {
    let certificates = CertificateFile::read(&files.ca)?;
    let lists = files.lists.iter().map(|file| CertificateFile::read_list(file));
    let lists = lists.collect::<std::result::Result<Vec<_>, _>>()?;
    let lists: Vec<_> = lists.iter().map(CertificateFile::pem).collect();
    Ok(Authority::new(certificates.pem(), &lists)?)
}

struct CertificateFile {
    name: String,
    bytes: Vec<u8>,
}

impl CertificateFile {
    fn read(file: &Path) -> std::result::Result<Self, IdentityError> {
        let name = file.display().to_string();
        match fs::read(file) {
            Ok(bytes) => Ok(Self { name, bytes }),
            Err(error) => {
                Err(IdentityError::Certificates { file: name, error: pem::Error::Io(error) })
            }
        }
    }

    fn read_list(file: &Path) -> std::result::Result<Self, IdentityError> {
        let name = file.display().to_string();
        match fs::read(file) {
            Ok(bytes) => Ok(Self { name, bytes }),
            Err(error) => Err(IdentityError::Lists { file: name, error: pem::Error::Io(error) }),
        }
    }

    fn pem(&self) -> Pem<'_> {
        Pem { bytes: &self.bytes, file: &self.name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_file_that_is_missing_is_named() {
        let files = tempfile::tempdir().unwrap();
        let (key, none) = (files.path().join("key"), files.path().join("none"));
        key_file::keygen(&key).unwrap();
        let error = identity(&key, Some(&none)).unwrap_err().to_string();
        assert!(error.contains("cannot read the certificate file"), "{error}");
        let lists = Vec::new();
        assert!(authority(&AuthorityConfig { cert: key, ca: none, lists }).is_err());
    }
}
