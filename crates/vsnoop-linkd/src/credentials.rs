//! Keys and certificates of the configuration's files.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem;
use vsnoop_link::identity::{Authority, Identity, IdentityError, Pem};

use crate::key_file::{self, KeyFileError};

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
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

/// The authority whose certificates are in `file`.
pub fn authority(file: &Path) -> Result<Arc<Authority>> {
    Ok(Authority::new(CertificateFile::read(file)?.pem())?)
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
        assert!(authority(&none).is_err());
    }
}
