//! The file with a host's private key: PEM, PKCS#8, for nobody but its owner.
//!
//! New keys are Ed25519: TLS 1.3 libraries know it in both roles, its signatures need no random
//! numbers (a bad generator gives the key away with ECDSA), and the key is the smallest. Keys of
//! other kinds are read, too: an authority may have been given one.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use aws_lc_rs::signature::Ed25519KeyPair;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::SigningKey;
use zeroize::Zeroizing;

use super::PublicKey;

/// A key file is a few lines.
const MOST_BYTES: u64 = 64 << 10;

/// Makes a new private key in the file `path`, which must not exist. Returns what peers pin.
pub fn keygen(path: &Path) -> Result<PublicKey> {
    let pkcs8 = Ed25519KeyPair::generate()
        .and_then(|pair| pair.to_pkcs8v1())
        .map_err(|_| anyhow!("the random number generator gave no key"))?;
    let pair = rcgen::KeyPair::try_from(pkcs8.as_ref()).context("cannot read the new key")?;
    let pem = Zeroizing::new(pair.serialize_pem());
    write_new(path, pem.as_bytes())?;
    public(path)
}

/// The public key of the private key in the file `path`.
pub fn public(path: &Path) -> Result<PublicKey> {
    public_key(&*read(path)?.1)
}

/// The private key in the file `path`, as bytes and as something that signs.
pub(super) fn read(path: &Path) -> Result<(PrivateKeyDer<'static>, Arc<dyn SigningKey>)> {
    let pem = read_private(path)?;
    let der = PrivateKeyDer::from_pem_slice(&pem).map_err(|e| {
        anyhow!("{} has no private key in PEM ({e}); {}", path.display(), how_to_make(path))
    })?;
    let signer = rustls::crypto::aws_lc_rs::sign::any_supported_type(&der)
        .map_err(|e| anyhow!("the private key in {} cannot be used: {e}", path.display()))?;
    Ok((der, signer))
}

pub(super) fn public_key(signer: &dyn SigningKey) -> Result<PublicKey> {
    let spki = signer.public_key().context("the private key has no public key")?;
    Ok(PublicKey::of_spki(&spki))
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

/// The bytes of a file that nobody else can read.
fn read_private(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    let shown = path.display();
    // Not to wait for a writer, should it be a pipe.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let mut file = file.map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => anyhow!("no key file {shown}; {}", how_to_make(path)),
        _ => anyhow!("cannot open the key file {shown}: {e}"),
    })?;
    let meta = file.metadata().with_context(|| format!("cannot examine {shown}"))?;
    ensure!(meta.is_file(), "the key file {shown} is not a file");
    let mode = meta.mode() & 0o7777;
    if mode & 0o077 != 0 {
        bail!(
            "others than its owner may use the key file {shown} (mode {mode:04o}); \
             do `chmod 600 {shown}`, and make a new key if somebody may have read it"
        );
    }
    let us = nix::unistd::geteuid().as_raw();
    let owner = meta.uid();
    ensure!(
        owner == us || owner == 0,
        "the key file {shown} belongs to user {owner}, who can read and replace it; \
         do `chown {us} {shown}`"
    );
    ensure!(meta.len() <= MOST_BYTES, "the key file {shown} is too large for a key");
    let mut bytes = Zeroizing::new(Vec::with_capacity(meta.len() as usize + 1));
    (&mut file)
        .take(MOST_BYTES)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read the key file {shown}"))?;
    Ok(bytes)
}

/// Writes a file that does not exist yet: all of it, or, whatever happens meanwhile, nothing.
fn write_new(path: &Path, bytes: &[u8]) -> Result<()> {
    let shown = path.display();
    let name = path.file_name().with_context(|| format!("{shown} does not name a file"))?;
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
    written.map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound if !directory.exists() => anyhow!(
            "there is no directory {} for the key file; make it with `{}`",
            directory.display(),
            how_to_make_directory(directory)
        ),
        _ => anyhow!("cannot write a key file in {}: {e}", directory.display()),
    })?;
    // Unlike a rename, this refuses when the file exists.
    fs::hard_link(&unfinished.0, path).map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => anyhow!(
            "{shown} exists and is not overwritten; `vsnoop link keygen --show {shown}` prints its \
             public key, remove it if a new key is wanted"
        ),
        _ => anyhow!("cannot make {shown}: {e}"),
    })?;
    drop(unfinished);
    File::open(directory)
        .and_then(|d| d.sync_all())
        .with_context(|| format!("cannot make {shown} durable"))
}

/// A file that goes away with this.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
