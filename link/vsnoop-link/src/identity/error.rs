//! Errors of keys and certificates.

use rustls::pki_types::pem;
use rustls::server::VerifierBuilderError;

use super::{PeerId, PublicKey};

/// `file` names where a text in PEM came from.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("the random number generator gave no key")]
    NoRandom,
    #[error("cannot read the new key")]
    NewKey(#[source] rcgen::Error),
    #[error("{file} has no private key in PEM ({error})")]
    NoKey { file: String, error: pem::Error },
    #[error("the private key in {file} cannot be used: {error}")]
    UnusableKey { file: String, error: rustls::Error },
    #[error("the private key has no public key")]
    NoPublicKey,
    #[error("this kind of private key is not supported")]
    KeyKind(#[source] rcgen::Error),
    #[error("cannot sign a certificate")]
    Sign(#[source] rcgen::Error),
    #[error("cannot read the certificate file {file}")]
    Certificates {
        file: String,
        #[source]
        error: pem::Error,
    },
    #[error("{file} has no certificate in PEM")]
    NoCertificate { file: String },
    #[error(
        "{file} is not usable (is the name of the host in it? docs/guide/links/configuration.md has the commands)"
    )]
    BadCertificate {
        file: String,
        #[source]
        error: rustls::Error,
    },
    #[error(
        "the certificate {certificate} is for another key ({theirs}) than that in {key} ({ours})"
    )]
    OtherKey { certificate: String, theirs: PublicKey, key: String, ours: PublicKey },
    #[error("{name:?} is neither a DNS name nor an IP address")]
    BadName { name: String },
    #[error("{file} has what is not a certificate of an authority")]
    NoAuthority {
        file: String,
        #[source]
        error: rustls::Error,
    },
    #[error("cannot use the authority in {file}")]
    UnusableAuthority {
        file: String,
        #[source]
        error: VerifierBuilderError,
    },
    #[error("cannot read the revocation list {file}")]
    Lists {
        file: String,
        #[source]
        error: pem::Error,
    },
    #[error("{file} has no revocation list in PEM (`openssl ca -gencrl` makes one)")]
    NoList { file: String },
    #[error("{files}: this is no revocation list that can be used")]
    BadList {
        files: String,
        #[source]
        error: rustls::Error,
    },
    #[error("{files}: no list is of the authority that has signed this host's certificate")]
    NoListOfOwn { files: String },
    #[error("TLS 1.3 is not available")]
    NoTls13(#[source] rustls::Error),
    #[error("peers {other} and {peer} have the same key or name: who calls?")]
    SamePeer { other: PeerId, peer: PeerId },
    #[error("the key of peer {peer} is that of this host itself; give the peer's own key")]
    OwnKey { peer: PeerId },
}
