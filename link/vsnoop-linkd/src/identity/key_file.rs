//! The file with a host's private key: PEM, PKCS#8, readable only by its owner.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use vsnoop_link::identity::{IdentityError, Pem, PublicKey, generate_key, public_key_of};
use zeroize::Zeroizing;

/// Errors of a key file. `file` is its name.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("{error}; {remedy}")]
    NoKey { error: Box<IdentityError>, remedy: String },
    #[error(transparent)]
    Key(IdentityError),
    #[error("no key file {file}; {remedy}")]
    Missing { file: String, remedy: String },
    #[error("cannot open the key file {file}: {error}")]
    Open { file: String, error: io::Error },
    #[error("cannot examine {file}")]
    Examine {
        file: String,
        #[source]
        error: io::Error,
    },
    #[error("the key file {file} is not a file")]
    NotAFile { file: String },
    #[error(
        "others than its owner may use the key file {file} (mode {mode:04o}); do `chmod 600 \
         {file}`, and make a new key if somebody may have read it"
    )]
    OpenToOthers { file: String, mode: u32 },
    #[error(
        "the key file {file} belongs to user {owner}, who can read and replace it; do `chown {us} \
         {file}`"
    )]
    OfAnother { file: String, owner: u32, us: u32 },
    #[error("the key file {file} is too large for a key")]
    TooLarge { file: String },
    #[error("cannot read the key file {file}")]
    Read {
        file: String,
        #[source]
        error: io::Error,
    },
    #[error("{file} does not name a file")]
    NoName { file: String },
    #[error("there is no directory {directory} for the key file; make it with `{remedy}`")]
    NoDirectory { directory: String, remedy: String },
    #[error("cannot write a key file in {directory}: {error}")]
    Write { directory: String, error: io::Error },
    #[error(
        "{file} exists and is not overwritten; if it is a private key, `vsnoop link keygen --show \
         {file}` prints its public key; for a new key name another file"
    )]
    Exists { file: String },
    #[error("cannot make {file}: {error}")]
    Make { file: String, error: io::Error },
    #[error("cannot make {file} durable")]
    Durable {
        file: String,
        #[source]
        error: io::Error,
    },
}

impl KeyFileError {
    /// This user may not read the file.
    pub fn is_denied(&self) -> bool {
        let denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        match self {
            Self::Open { error, .. } => denied(error),
            Self::OfAnother { .. } => true,
            _ => false,
        }
    }
}

type Result<T> = std::result::Result<T, KeyFileError>;

/// A key file is a few lines.
const MOST_BYTES: u64 = 64 << 10;

/// Makes a new private key in the file `path`, which must not exist. Returns what peers pin.
pub fn write_new_key(path: &Path) -> Result<PublicKey> {
    let pem = generate_key().map_err(KeyFileError::Key)?;
    write_new(path, pem.as_bytes())?;
    read_public_key(path)
}

/// The public key of the private key in the file `path`.
pub fn read_public_key(path: &Path) -> Result<PublicKey> {
    with_key(path, public_key_of)
}

/// Applies `read` to the private key in the file `path`.
pub(crate) fn with_key<T>(
    path: &Path,
    read: impl FnOnce(Pem<'_>) -> std::result::Result<T, IdentityError>,
) -> Result<T> {
    let bytes = read_private(path)?;
    let file = path.display().to_string();
    read(Pem { bytes: &bytes, file: &file }).map_err(|error| match error {
        IdentityError::NoKey { .. } => {
            KeyFileError::NoKey { error: Box::new(error), remedy: how_to_make(path) }
        }
        error => KeyFileError::Key(error),
    })
}

fn how_to_make(path: &Path) -> String {
    let keygen = format!("`vsnoop link keygen {}`", path.display());
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() && !directory.exists() => {
            format!("make one with `{}` and {keygen}", how_to_make_directory(directory))
        }
        _ => format!("make one with {keygen}"),
    }
}

fn how_to_make_directory(directory: &Path) -> String {
    format!("mkdir -p {}", directory.display())
}

/// The bytes of a file that only its owner can read.
pub(crate) fn read_private(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    let name = || path.display().to_string();
    // Not to wait for a writer, should it be a pipe.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let mut file = file.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            KeyFileError::Missing { file: name(), remedy: how_to_make(path) }
        }
        _ => KeyFileError::Open { file: name(), error },
    })?;
    let meta = file.metadata().map_err(|error| KeyFileError::Examine { file: name(), error })?;
    if !meta.is_file() {
        return Err(KeyFileError::NotAFile { file: name() });
    }
    let mode = meta.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeyFileError::OpenToOthers { file: name(), mode });
    }
    let us = nix::unistd::geteuid().as_raw();
    let owner = meta.uid();
    if owner != us && owner != 0 {
        return Err(KeyFileError::OfAnother { file: name(), owner, us });
    }
    if meta.len() > MOST_BYTES {
        return Err(KeyFileError::TooLarge { file: name() });
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(meta.len() as usize + 1));
    (&mut file)
        .take(MOST_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|error| KeyFileError::Read { file: name(), error })?;
    Ok(bytes)
}

/// Writes a file that does not exist yet: all of it, or, whatever happens meanwhile, nothing.
fn write_new(path: &Path, bytes: &[u8]) -> Result<()> {
    let shown = || path.display().to_string();
    let name = path.file_name().ok_or_else(|| KeyFileError::NoName { file: shown() })?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut unfinished = name.to_os_string();
    unfinished.push(format!(".{}.{:08x}", std::process::id(), fastrand::u32(..)));
    let unfinished = Unfinished(directory.join(unfinished));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished.0)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    written.map_err(|error| {
        let remedy = how_to_make_directory(directory);
        let is_missing = error.kind() == io::ErrorKind::NotFound && !directory.exists();
        let directory = directory.display().to_string();
        if is_missing {
            KeyFileError::NoDirectory { directory, remedy }
        } else {
            KeyFileError::Write { directory, error }
        }
    })?;
    // Unlike a rename, this refuses when the file exists.
    fs::hard_link(&unfinished.0, path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => KeyFileError::Exists { file: shown() },
        _ => KeyFileError::Make { file: shown(), error },
    })?;
    drop(unfinished);
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| KeyFileError::Durable { file: shown(), error })
}

/// A file that goes away with this.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

    use super::*;
    use crate::identity::credentials;

    /// A key that `openssl genpkey -algorithm ed25519` has written.
    const OPENSSL_KEY: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f
-----END PRIVATE KEY-----
";

    fn path(files: &TempDir, name: &str) -> PathBuf {
        files.path().join(name)
    }

    fn write_key(files: &TempDir, text: &str, mode: u32) -> PathBuf {
        let file = path(files, "key");
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn a_new_key_is_its_owners_alone() {
        let files = tempfile::tempdir().unwrap();
        let file = path(&files, "key");
        let made = write_new_key(&file).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(read_public_key(&file).unwrap(), made);
        assert_eq!(credentials::read_identity(&file, None).unwrap().public_key(), made);
        assert_ne!(write_new_key(&path(&files, "other")).unwrap(), made);
    }

    #[test]
    fn a_key_file_is_never_overwritten() {
        let files = tempfile::tempdir().unwrap();
        let file = path(&files, "key");
        write_new_key(&file).unwrap();
        let before = fs::read(&file).unwrap();
        let error = write_new_key(&file).unwrap_err().to_string();
        assert!(error.contains("exists and is not overwritten"), "{error}");
        assert_eq!(fs::read(&file).unwrap(), before);
        let left = fs::read_dir(file.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "an unfinished file is left");
    }

    #[test]
    fn a_directory_that_is_missing_is_said_how_to_make() {
        let files = tempfile::tempdir().unwrap();
        let file = path(&files, "not/there/key");
        let mkdir = format!("`mkdir -p {}`", file.parent().unwrap().display());
        for error in [write_new_key(&file), read_public_key(&file)]
            .map(|result| result.unwrap_err().to_string())
        {
            assert!(error.contains(&mkdir), "{error}");
        }
        let error = read_public_key(&path(&files, "key")).unwrap_err().to_string();
        assert!(error.contains("vsnoop link keygen") && !error.contains("mkdir"), "{error}");
    }

    #[test]
    fn a_key_that_others_could_read_is_refused() {
        let files = tempfile::tempdir().unwrap();
        for mode in [0o640, 0o604, 0o620, 0o677] {
            let error =
                read_public_key(&write_key(&files, OPENSSL_KEY, mode)).unwrap_err().to_string();
            assert!(error.contains("chmod 600"), "{error}");
        }
        assert!(read_public_key(&write_key(&files, OPENSSL_KEY, 0o400)).is_ok());
    }

    #[test]
    fn a_key_file_that_is_none_says_what_to_do() {
        let files = tempfile::tempdir().unwrap();
        let missing = read_public_key(&path(&files, "none")).unwrap_err().to_string();
        assert!(missing.contains("vsnoop link keygen"), "{missing}");
        let directory =
            read_public_key(path(&files, "x").parent().unwrap()).unwrap_err().to_string();
        assert!(directory.contains("not a file"), "{directory}");
        for text in ["", "hello", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
        {
            assert!(read_public_key(&write_key(&files, text, 0o600)).is_err());
        }
    }
}
