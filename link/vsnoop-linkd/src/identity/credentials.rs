//! Keys and certificates of the configuration's files.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem;
use tracing::warn;
use vsnoop_link::identity::{
    Acceptor, Authority, Identity, IdentityError, Initiator, PeerId, Pem, Trust,
};

use crate::causes::with_causes;
use crate::config::{AuthorityConfig, Config, PeerConfig, TrustConfig};
use crate::identity::key_file::{self, KeyFileError};

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
pub fn read_identity(key: &Path, certificate: Option<&Path>) -> Result<Identity> {
    let Some(file) = certificate else {
        return Ok(key_file::with_key(key, |key| Identity::new(key, None))?);
    };
    let certificates = CertificateFile::read(file)?;
    Ok(key_file::with_key(key, |key| Identity::new(key, Some(certificates.pem())))?)
}

/// The identity of a link, and its means to authenticate peers.
pub struct Credentials {
    pub identity: Arc<Identity>,
    /// Why the key is not that of the file.
    pub key_trouble: Option<String>,
    /// The authority of peers with a `subject`.
    pub authority: Option<Arc<Authority>>,
    pub acceptor: Acceptor,
    /// In the order of the configuration.
    pub initiators: Vec<Initiator>,
}

impl Credentials {
    pub fn read(config: &Config) -> Result<Self> {
        let certificate = config.authority.as_ref().map(|authority| authority.cert.as_path());
        let identity = read_identity(&config.key, certificate)?;
        let authority = config.authority.as_ref().map(read_authority).transpose()?;
        Self::with(config, identity.into(), authority)
    }

    /// Like [`Credentials::read`]; where this user may not read the key file, the host keeps the
    /// key that it has.
    pub fn read_again(config: &Config, before: &Identity) -> Result<Self> {
        let denied = match Self::read(config) {
            Err(CredentialsError::KeyFile(error)) if error.is_denied() => error,
            other => return other,
        };
        let trouble = format!("{}; the key stays as it is", with_causes(&denied));
        warn!("{trouble}");
        let certificate = config.authority.as_ref().map(|authority| authority.cert.as_path());
        let certificate = certificate.map(CertificateFile::read).transpose()?;
        let certificate = certificate.as_ref().map(CertificateFile::pem);
        let authority = config.authority.as_ref().map(read_authority).transpose()?;
        let identity = before.with_certificates(certificate)?.into();
        Ok(Self { key_trouble: Some(trouble), ..Self::with(config, identity, authority)? })
    }

    /// With the revocation lists that the files have now; all else stays, whatever its files have.
    pub fn with_lists_again(
        config: &Config,
        identity: Arc<Identity>,
        authority: Option<&Authority>,
    ) -> Result<Self> {
        let (Some(files), Some(authority)) = (&config.authority, authority) else {
            return Self::with(config, identity, None);
        };
        let authority = with_lists(files, |lists| authority.with_lists(lists))?;
        Self::with(config, identity, Some(authority))
    }

    /// With what was read before, for the peers of now.
    pub fn with(
        config: &Config,
        identity: Arc<Identity>,
        authority: Option<Arc<Authority>>,
    ) -> Result<Self> {
        if let Some(authority) = &authority {
            authority.check_lists(&identity)?;
        }
        let trusts = list_trusts(config, authority.as_ref())?;
        let initiators = trusts.iter().map(|(peer, trust)| identity.make_initiator(peer, trust));
        Ok(Self {
            acceptor: identity.make_acceptor(&trusts)?,
            initiators: initiators.collect::<std::result::Result<_, _>>()?,
            identity,
            key_trouble: None,
            authority,
        })
    }
}

fn list_trusts(
    config: &Config,
    authority: Option<&Arc<Authority>>,
) -> Result<Vec<(PeerId, Trust)>> {
    let trust = |peer: &PeerConfig| {
        let trust = match (&peer.trust, authority) {
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
pub fn read_authority(files: &AuthorityConfig) -> Result<Arc<Authority>> {
    let certificates = CertificateFile::read(&files.ca)?;
    with_lists(files, |lists| Authority::new(certificates.pem(), lists))
}

fn with_lists(
    files: &AuthorityConfig,
    authority: impl FnOnce(&[Pem<'_>]) -> std::result::Result<Arc<Authority>, IdentityError>,
) -> Result<Arc<Authority>> {
    let lists = files.lists.iter().map(|file| CertificateFile::read_list(file));
    let lists = lists.collect::<std::result::Result<Vec<_>, _>>()?;
    let lists: Vec<_> = lists.iter().map(CertificateFile::pem).collect();
    Ok(authority(&lists)?)
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
        key_file::write_new_key(&key).unwrap();
        let error = read_identity(&key, Some(&none)).unwrap_err().to_string();
        assert!(error.contains("cannot read the certificate file"), "{error}");
        let lists = Vec::new();
        assert!(read_authority(&AuthorityConfig { cert: key, ca: none, lists }).is_err());
    }
}
