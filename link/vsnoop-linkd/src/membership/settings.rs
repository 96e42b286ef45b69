//! Reads the files by which etcd is reached.

use std::path::Path;
use std::{fs, io};

use vsnoop_etcd::{Login, Settings, Tls};
use zeroize::Zeroizing;

use crate::config::{Config, EtcdConfig, ValueError, parse_name};
use crate::identity::key_file::{KeyFileError, read_private};

/// Where the kernel says what the host is called.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("cannot read the certificates {file} (etcd.ca, etcd.cert): {error}")]
    Certificates { file: String, error: io::Error },
    #[error("for etcd")]
    Private(#[from] KeyFileError),
    #[error("the password in {file} is no text in UTF-8")]
    Password { file: String },
    #[error("etcd cannot have this host by the name {said:?}: set etcd.name ({error})")]
    HostName { said: String, error: ValueError },
}

impl SettingsError {
    /// This user may not read a file.
    pub fn is_denied(&self) -> bool {
        match self {
            Self::Certificates { error, .. } => error.kind() == io::ErrorKind::PermissionDenied,
            Self::Private(error) => error.is_denied(),
            _ => false,
        }
    }
}

type Result<T> = std::result::Result<T, SettingsError>;

/// Settings of the client of etcd, for the link of this configuration.
pub fn read(config: &Config, etcd: &EtcdConfig) -> Result<Settings> {
    let tls = etcd.ca.as_ref().map(|ca| read_tls(ca, etcd)).transpose()?;
    let login = etcd.login.as_ref().map(|(user, file)| -> Result<Login> {
        let text = read_private(file)?;
        let text = std::str::from_utf8(&text)
            .map_err(|_| SettingsError::Password { file: file.display().to_string() })?;
        let password = Zeroizing::new(text.trim_end_matches(['\r', '\n']).to_owned());
        Ok(Login { user: user.clone(), password })
    });
    Ok(Settings {
        endpoints: etcd.endpoints.clone(),
        tls,
        login: login.transpose()?,
        directory: format!("{}{}/", etcd.prefix, config.network),
        name: own_name(etcd)?,
        ttl: etcd.ttl,
    })
}

fn read_tls(ca: &Path, etcd: &EtcdConfig) -> Result<Tls> {
    let identity = etcd.identity.as_ref().map(|(certificate, key)| -> Result<_> {
        Ok((read_certificates(certificate)?, read_private(key)?))
    });
    Ok(Tls { authority: read_certificates(ca)?, identity: identity.transpose()? })
}

fn read_certificates(file: &Path) -> Result<Vec<u8>> {
    let wrong = |error| SettingsError::Certificates { file: file.display().to_string(), error };
    fs::read(file).map_err(wrong)
}

/// The host's configured name, or its host name without the domain.
fn own_name(etcd: &EtcdConfig) -> Result<String> {
    if let Some(name) = &etcd.name {
        return Ok(name.clone());
    }
    let said = fs::read_to_string(HOST_NAME).unwrap_or_default();
    let said = said.trim().split('.').next().unwrap_or_default().to_owned();
    parse_name(&said).map_err(|error| SettingsError::HostName { said, error })
}
