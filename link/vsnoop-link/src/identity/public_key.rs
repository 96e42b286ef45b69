//! A public key as people copy it from host to host: one short line.
//!
//! It is the SHA-256 of the key's SubjectPublicKeyInfo in base64, 44 characters for every kind of
//! key, and what other tools compute for the same file:
//! `openssl pkey -in FILE -pubout -outform der | openssl dgst -sha256 -binary | base64`.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest;
use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Bytes of a SHA-256.
const BYTES: usize = 32;

/// Written with padding; read with or without, because a mouse often leaves the `=` behind.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The identifier of a public key: SHA-256 of its SubjectPublicKeyInfo in DER. Ordered, so that two
/// hosts can agree on which of them is the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; BYTES]);

impl PublicKey {
    /// The identifier of a SubjectPublicKeyInfo in DER.
    pub fn of_spki(spki: &[u8]) -> Self {
        let mut bytes = [0; BYTES];
        bytes.copy_from_slice(digest::digest(&digest::SHA256, spki).as_ref());
        Self(bytes)
    }

    /// The identifier that these bytes are.
    pub fn of_bytes(bytes: [u8; BYTES]) -> Self {
        Self(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; BYTES] {
        &self.0
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why some text is no public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadPublicKey {
    /// A private key, or something else in PEM.
    Pem,
    /// Not base64: this character.
    Character(char),
    /// Not as many bytes as a public key has.
    Length(usize),
    /// Base64 that no encoder makes.
    Encoding,
}

impl fmt::Display for BadPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pem => write!(f, "this is the text of a key file, not a public key")?,
            Self::Character(c) => write!(f, "a public key is base64, which has no {c:?}")?,
            Self::Length(n) => write!(f, "this is base64 of {n} bytes, not of {BYTES}")?,
            Self::Encoding => write!(f, "the last character of the public key is mistyped")?,
        }
        write!(f, "; print it with `vsnoop link keygen --show FILE` on the peer's host")
    }
}

impl std::error::Error for BadPublicKey {}

impl FromStr for PublicKey {
    type Err = BadPublicKey;

    fn from_str(text: &str) -> Result<Self, BadPublicKey> {
        let text = text.trim();
        if text.contains("-----") {
            return Err(BadPublicKey::Pem);
        }
        let foreign = |c: &char| !c.is_ascii_alphanumeric() && !"+/=".contains(*c);
        if let Some(character) = text.chars().find(foreign) {
            return Err(BadPublicKey::Character(character));
        }
        let bytes = BASE64.decode(text).map_err(|e| match e {
            base64::DecodeError::InvalidLength(n) => BadPublicKey::Length(n * 3 / 4),
            _ => BadPublicKey::Encoding,
        })?;
        let bytes = <[u8; BYTES]>::try_from(bytes).map_err(|b| BadPublicKey::Length(b.len()))?;
        Ok(Self(bytes))
    }
}
