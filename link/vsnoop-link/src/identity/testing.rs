//! Hosts and their keys for tests, also of the daemon: always compiled, so that tests and the
//! command share one build of this crate.

use super::{Identity, IdentityError, PeerId, Pem, Trust, generate_key};

/// The identity of a host with the files `key` and, with a certificate, `cert`.
pub fn load(key: &str, certificates: Option<&str>) -> Result<Identity, IdentityError> {
    let certificates = certificates.map(|text| Pem { bytes: text.as_bytes(), file: "cert" });
    Identity::new(Pem { bytes: key.as_bytes(), file: "key" }, certificates)
}

/// A host with a new key and no certificate.
pub fn host() -> Identity {
    load(&generate_key().unwrap(), None).unwrap()
}

/// A peer by its name.
pub fn peer(name: &str) -> PeerId {
    PeerId::new(name)
}

/// Trusts the holder of this host's key.
pub fn pinned(host: &Identity) -> Trust {
    Trust::key(host.public_key())
}
