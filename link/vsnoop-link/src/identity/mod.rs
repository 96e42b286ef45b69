//! Identity of a host: its key, and the peers that it trusts.
//!
//! A host has one private key ([`generate_key`]). Its peers know it by the key's [`PublicKey`],
//! which they have pinned, or by a name in a certificate that a private authority has signed
//! ([`Trust`]). Either way the host proves in a TLS 1.3 handshake that it has the key
//! ([`Initiator`], [`Acceptor`]).
//!
//! Both kinds of trust are met with X.509 certificates: a host without a certificate of an
//! authority presents one that it has signed itself, of which nothing but the key is looked at. So
//! one listener serves peers of both kinds, which raw public keys (RFC 7250) would not allow: there
//! the kind is chosen for all callers of a listener, before the caller is known.

mod config;
mod error;
mod host;
mod proof;
mod provider;
mod public_key;
mod trust;
mod verify;

#[cfg(test)]
pub(crate) mod test_authority;
pub mod testing;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

pub(crate) use config::ALPN;
pub use config::{Acceptor, Initiator};
pub use error::IdentityError;
pub use host::{Identity, Pem, generate_key, public_key_of};
pub use proof::Proof;
pub use public_key::{BadPublicKey, PublicKey};
pub use trust::{Authority, Trust};
pub use verify::Untrusted;

/// A peer, by the name that the configuration gives it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(Arc<str>);

impl PeerId {
    /// The peer with this name.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
