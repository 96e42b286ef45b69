//! Keys for what is carried beside TLS.
//!
//! TLS exports one secret per session (RFC 8446, section 7.5) under a label of ours, with the epoch
//! as its context; HKDF (RFC 5869) expands it into a key and a nonce for each stream of records,
//! one sender each: a direction and a number, such as that of a thread. Only the two ends can
//! derive them.

use std::fmt;

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk};
use rustls::{CipherSuite, Connection};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Label of the exporter (RFC 8446, section 7.5).
const LABEL: &[u8] = b"EXPORTER-vsnoop-link records";
/// Labels of HKDF's outputs.
const KEY: u8 = 0;
const NONCE: u8 = 1;
/// Bytes of a key, of which a cipher may use the first 16.
const KEY_BYTES: usize = 32;
/// Bytes of a nonce.
const NONCE_BYTES: usize = 12;

/// Direction of a session's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// From the end that dialled.
    ToAcceptor,
    /// From the end that was called.
    ToInitiator,
}

/// The cipher of the handshake, which is also that of the records: AES where both CPUs have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    Aes128Gcm,
    ChaCha20Poly1305,
}

impl Cipher {
    pub(super) fn negotiated(tls: &Connection) -> Option<Self> {
        match tls.negotiated_cipher_suite()?.suite() {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => Some(Self::Aes128Gcm),
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Some(Self::ChaCha20Poly1305),
            _ => None,
        }
    }
}

/// The secret from which the keys of one session are derived. It is zeroed when dropped.
#[derive(Clone)]
pub struct Secrets {
    secret: Zeroizing<[u8; KEY_BYTES]>,
    epoch: u16,
}

impl Secrets {
    /// The secret of a complete handshake.
    pub(super) fn export(tls: &Connection, epoch: u16) -> Result<Self, rustls::Error> {
        let mut secret = Zeroizing::new([0; KEY_BYTES]);
        tls.export_keying_material(&mut secret[..], LABEL, Some(&epoch.to_be_bytes()))?;
        Ok(Self { secret, epoch })
    }

    /// The epoch of these keys.
    #[cfg(test)]
    pub fn epoch(&self) -> u16 {
        self.epoch
    }

    /// The key of the records of one sender.
    pub fn derive_key(&self, direction: Direction, stream: u8) -> Zeroizing<[u8; KEY_BYTES]> {
        self.expand_key(KEY, direction, stream)
    }

    /// The value that is combined with a record's counter to make its nonce.
    pub fn nonce_base(&self, direction: Direction, stream: u8) -> Zeroizing<[u8; NONCE_BYTES]> {
        self.expand_key(NONCE, direction, stream)
    }

    fn expand_key<const N: usize>(
        &self,
        purpose: u8,
        direction: Direction,
        stream: u8,
    ) -> Zeroizing<[u8; N]> {
        struct Bytes(usize);
        impl KeyType for Bytes {
            fn len(&self) -> usize {
                self.0
            }
        }
        let direction = match direction {
            Direction::ToAcceptor => 0,
            Direction::ToInitiator => 1,
        };
        let mut bytes = Zeroizing::new([0; N]);
        Prk::new_less_safe(HKDF_SHA256, &self.secret[..])
            .expand(&[&[purpose, direction, stream]], Bytes(N))
            .and_then(|okm| okm.fill(&mut bytes[..]))
            // HKDF gives up to 255 hashes.
            .expect("a key or a nonce is shorter than 8160 bytes");
        bytes
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets {{ epoch: {} }}", self.epoch)
    }
}
