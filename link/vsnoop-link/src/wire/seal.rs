//! Sealing and opening records under keys that both ends exported from their handshake.
//!
//! ```text
//! | session: u32 | number: u64 = epoch (8 bits), stream (8), counter (48) | sealed item | tag |
//! '---------------- additional data: 12 bytes, big-endian ---------------'               16 bytes
//! ```
//! A hub adds the label of a peer to the session's number ([`crate::introduction`]).
//!
//! The AEAD is the one that TLS agreed on (RFC 8446, 5.3: the nonce is the number, padded, XOR a
//! secret base). Each direction and each sending thread (*stream*) has its own key, so that no
//! number is ever used twice with one key: the counter only rises, a session ends before it is used
//! up, and a new session has new keys. The plain form, for measurement, has the header and no tag.

use aws_lc_rs::aead::{self, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use zeroize::{Zeroize, Zeroizing};

use super::replay::{Fresh, ReplayWindow};

/// Bytes before the item.
pub const HEADER_BYTES: usize = 12;
/// Bytes after it, if it is sealed.
pub const TAG_BYTES: usize = 16;
/// Counters end here; a session must have been renewed long before.
const COUNTER_BITS: u32 = 48;
/// The counter in a number.
pub const COUNTER: u64 = (1 << COUNTER_BITS) - 1;

/// Records under one key. RFC 9001, section 6.6 and appendix B.1: 2^28 of AES-GCM for packets of up
/// to 2^11 bytes.
pub const MOST_RECORDS: u64 = 1 << 28;
/// Bytes under one key, likewise: 2^23 packets of up to 2^16 bytes.
pub const MOST_BYTES: u64 = 1 << 39;

/// How records of a session are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    Aes128Gcm,
    ChaCha20Poly1305,
    /// Not at all: for measurement, asked for by name.
    Plain,
}

impl Suite {
    fn algorithm(self) -> Option<&'static aead::Algorithm> {
        match self {
            Self::Aes128Gcm => Some(&aead::AES_128_GCM),
            Self::ChaCha20Poly1305 => Some(&aead::CHACHA20_POLY1305),
            Self::Plain => None,
        }
    }

    /// Bytes that a record has beside its item.
    pub fn overhead_bytes(self) -> usize {
        HEADER_BYTES + if self == Self::Plain { 0 } else { TAG_BYTES }
    }
}

/// Key material of one direction and stream, as exported; longer than some suites need.
///
/// It is zeroed when dropped.
#[derive(Clone)]
pub struct Material {
    pub key: [u8; 32],
    pub nonce: [u8; NONCE_LEN],
}

impl Drop for Material {
    fn drop(&mut self) {
        self.key.zeroize();
        self.nonce.zeroize();
    }
}

/// The AEAD's library zeroes its own copy of the key.
struct RecordKey {
    /// Bytes of records so far.
    used_bytes: u64,
    key: Option<LessSafeKey>,
    nonce: Zeroizing<[u8; NONCE_LEN]>,
}

impl RecordKey {
    fn new(suite: Suite, material: &Material) -> Self {
        let key = suite.algorithm().map(|algorithm| {
            let unbound = UnboundKey::new(algorithm, &material.key[..algorithm.key_len()])
                .expect("the slice is as long as the algorithm wants");
            LessSafeKey::new(unbound)
        });
        Self { used_bytes: 0, key, nonce: Zeroizing::new(material.nonce) }
    }

    /// Whether a record with this counter may be under this key; of those without a key any.
    fn may_take(&self, counter: u64, bytes: usize) -> bool {
        self.key.is_none()
            || (counter < MOST_RECORDS
                && self.used_bytes.saturating_add(bytes as u64) <= MOST_BYTES)
    }

    fn make_nonce(&self, number: u64) -> Nonce {
        let mut nonce = *self.nonce;
        for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        Nonce::assume_unique_for_key(nonce)
    }
}

/// The sending side of one stream of records.
pub struct Sealer {
    key: RecordKey,
    session: u32,
    /// Epoch and stream; the counter is added.
    prefix: u64,
    counter: u64,
    suite: Suite,
}

impl Sealer {
    /// `session`: the number by which the receiver knows the session.
    pub fn new(suite: Suite, material: &Material, session: u32, epoch: u8, stream: u8) -> Self {
        let prefix = (u64::from(epoch) << 56) | (u64::from(stream) << COUNTER_BITS);
        Self { key: RecordKey::new(suite, material), session, prefix, counter: 0, suite }
    }

    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Makes `record` one: the item stands from [`HEADER_BYTES`] to [`TAG_BYTES`] before its end
    /// (to its end in the plain form). `false`: the key or its numbers are used up, nothing was
    /// sealed.
    #[must_use]
    pub fn seal(&mut self, record: &mut [u8]) -> bool {
        self.seal_labelled(record, 0)
    }

    /// Seals a record as [`Self::seal`] does, with the label of an item that a hub relays (module
    /// [`introduction`](crate::introduction)); 0: without a label.
    #[must_use]
    pub fn seal_labelled(&mut self, record: &mut [u8], label: u16) -> bool {
        if self.counter >> COUNTER_BITS != 0
            || record.len() < self.suite.overhead_bytes()
            || !self.key.may_take(self.counter, record.len())
        {
            return false;
        }
        self.key.used_bytes += record.len() as u64;
        let number = self.prefix | self.counter;
        self.counter += 1;
        let (header, rest) = record.split_at_mut(HEADER_BYTES);
        let session = self.session.wrapping_add(label.into());
        header[..4].copy_from_slice(&session.to_be_bytes());
        header[4..].copy_from_slice(&number.to_be_bytes());
        let Some(key) = &self.key.key else { return true };
        let (item, tag) = rest.split_at_mut(rest.len() - TAG_BYTES);
        match key.seal_in_place_separate_tag(self.key.make_nonce(number), Aad::from(&*header), item)
        {
            Ok(sealed) => {
                tag.copy_from_slice(sealed.as_ref());
                true
            }
            Err(_) => false,
        }
    }
}

/// The receiving side of one stream of records.
pub struct Opener {
    key: RecordKey,
    suite: Suite,
    prefix: u64,
    window: ReplayWindow,
}

/// Why a record was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// Too short, or of another epoch or stream.
    Malformed,
    /// Seen before, or too old.
    Replayed,
    /// Not sealed by the peer.
    Forged,
    /// More than the key may be used for.
    UsedUp,
}

impl Opener {
    pub fn new(suite: Suite, material: &Material, epoch: u8, stream: u8) -> Self {
        let prefix = (u64::from(epoch) << 56) | (u64::from(stream) << COUNTER_BITS);
        let key = RecordKey::new(suite, material);
        Self { key, suite, prefix, window: ReplayWindow::default() }
    }

    /// Opens a record in place and returns its item.
    pub fn open<'r>(&mut self, record: &'r mut [u8]) -> Result<(&'r mut [u8], Fresh), OpenError> {
        let bytes = record.len();
        let (item, counter) = self.decrypt_record(record)?;
        let fresh = self.window.take(counter).ok_or(OpenError::Replayed)?;
        self.key.used_bytes += bytes as u64;
        Ok((item, fresh))
    }

    /// Whether [`open`](Self::open) would open a record, which stays as it is.
    pub fn opens(&self, record: &[u8]) -> bool {
        self.decrypt_record(&mut record.to_vec()).is_ok()
    }

    /// The item of a record, in place, and the record's counter.
    fn decrypt_record<'r>(&self, record: &'r mut [u8]) -> Result<(&'r mut [u8], u64), OpenError> {
        let (_, number) = header_of(record).ok_or(OpenError::Malformed)?;
        if number >> COUNTER_BITS != self.prefix >> COUNTER_BITS
            || record.len() < self.suite.overhead_bytes()
        {
            return Err(OpenError::Malformed);
        }
        let counter = number ^ self.prefix;
        if !self.window.may_be_new(counter) {
            return Err(OpenError::Replayed);
        }
        let bytes = record.len();
        if !self.key.may_take(counter, bytes) {
            return Err(OpenError::UsedUp);
        }
        let (header, rest) = record.split_at_mut(HEADER_BYTES);
        let item = match &self.key.key {
            None => rest,
            Some(key) => key
                .open_in_place(self.key.make_nonce(number), Aad::from(&*header), rest)
                .map_err(|_| OpenError::Forged)?,
        };
        Ok((item, counter))
    }
}

/// Session and number of what may be a record.
pub fn header_of(record: &[u8]) -> Option<(u32, u64)> {
    let session = record.get(..4)?.try_into().ok()?;
    let number = record.get(4..HEADER_BYTES)?.try_into().ok()?;
    Some((u32::from_be_bytes(session), u64::from_be_bytes(number)))
}

/// The stream that a record's number names.
pub fn stream_of(number: u64) -> u8 {
    (number >> COUNTER_BITS) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [Suite; 3] = [Suite::Aes128Gcm, Suite::ChaCha20Poly1305, Suite::Plain];

    fn material() -> Material {
        Material { key: [7; 32], nonce: [9; NONCE_LEN] }
    }

    /// The memory of a dropped value.
    fn left_by<T, const N: usize>(value: T, secret: impl Fn(&T) -> &[u8; N]) -> [u8; N] {
        let mut value = std::mem::ManuallyDrop::new(value);
        let at = std::ptr::from_ref(secret(&value));
        // SAFETY: it is dropped once. Its memory is live until the end of this function, and any
        // bytes are a valid array.
        unsafe {
            std::mem::ManuallyDrop::drop(&mut value);
            at.read_volatile()
        }
    }

    #[test]
    fn keys_are_zeroed_when_they_are_dropped() {
        assert_eq!(left_by(material(), |material| &material.key), [0; 32]);
        assert_eq!(left_by(material(), |material| &material.nonce), [0; NONCE_LEN]);
        let key = RecordKey::new(Suite::Aes128Gcm, &material());
        assert_eq!(left_by(key, |key| &key.nonce), [0; NONCE_LEN]);
    }

    fn pair(suite: Suite) -> (Sealer, Opener) {
        (Sealer::new(suite, &material(), 77, 3, 1), Opener::new(suite, &material(), 3, 1))
    }

    fn record(sealer: &mut Sealer, item: &[u8]) -> Vec<u8> {
        let mut record = vec![0; HEADER_BYTES];
        record.extend_from_slice(item);
        record.resize(item.len() + sealer.suite().overhead_bytes(), 0);
        assert!(sealer.seal(&mut record));
        record
    }

    #[test]
    fn what_was_sealed_is_opened_once() {
        for suite in ALL {
            let (mut sealer, mut opener) = pair(suite);
            for item in [&b""[..], b"a", &[5; 1400]] {
                let sealed = record(&mut sealer, item);
                assert_eq!(header_of(&sealed).map(|(session, _)| session), Some(77));
                assert_eq!(opener.open(&mut sealed.clone()).unwrap().0, item);
                assert_eq!(opener.open(&mut sealed.clone()).unwrap_err(), OpenError::Replayed);
            }
        }
    }

    #[test]
    fn any_changed_bit_is_found_and_uses_up_no_number() {
        for suite in [Suite::Aes128Gcm, Suite::ChaCha20Poly1305] {
            let (mut sealer, mut opener) = pair(suite);
            let sealed = record(&mut sealer, b"item");
            // The session number only chooses the opener; the AEAD authenticates it, too.
            for bit in 0..sealed.len() * 8 {
                let mut changed = sealed.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert!(opener.open(&mut changed).is_err(), "bit {bit}");
            }
            for end in 0..sealed.len() {
                assert!(opener.open(&mut sealed[..end].to_vec()).is_err(), "cut at {end}");
            }
            assert_eq!(opener.open(&mut sealed.clone()).unwrap().0, b"item");
        }
    }

    #[test]
    fn streams_epochs_and_directions_do_not_mix() {
        let (mut sealer, _) = pair(Suite::Aes128Gcm);
        let sealed = record(&mut sealer, b"item");
        for (epoch, stream) in [(3, 0), (2, 1)] {
            let mut opener = Opener::new(Suite::Aes128Gcm, &material(), epoch, stream);
            assert_eq!(opener.open(&mut sealed.clone()).unwrap_err(), OpenError::Malformed);
        }
        let other = Material { key: [8; 32], ..material() };
        let mut opener = Opener::new(Suite::Aes128Gcm, &other, 3, 1);
        assert_eq!(opener.open(&mut sealed.clone()).unwrap_err(), OpenError::Forged);
    }

    #[test]
    fn a_sealer_stops_before_a_number_comes_twice() {
        let (mut sealer, _) = pair(Suite::Plain);
        sealer.counter = (1 << COUNTER_BITS) - 1;
        let mut bytes = [0; 40];
        assert!(sealer.seal(&mut bytes));
        assert!(!sealer.seal(&mut bytes));
    }

    #[test]
    fn a_key_is_used_for_so_many_records_and_bytes_only() {
        let mut bytes = [0; 40];
        let (mut sealer, mut opener) = pair(Suite::Aes128Gcm);
        sealer.counter = MOST_RECORDS - 1;
        assert!(sealer.seal(&mut bytes));
        assert!(opener.open(&mut bytes).is_ok());
        assert!(!sealer.seal(&mut bytes), "its records are used up");
        // From a peer that sends on beyond the bound.
        bytes[HEADER_BYTES - 8..HEADER_BYTES]
            .copy_from_slice(&(sealer.prefix | MOST_RECORDS).to_be_bytes());
        assert_eq!(opener.open(&mut bytes).err(), Some(OpenError::UsedUp));
        let (mut sealer, _) = pair(Suite::Aes128Gcm);
        sealer.key.used_bytes = MOST_BYTES - 40;
        assert!(sealer.seal(&mut bytes));
        assert!(!sealer.seal(&mut bytes), "its bytes are used up");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (_, mut opener) = pair(Suite::Aes128Gcm);
            prop_assert!(opener.open(&mut bytes.clone()).is_err());
        }
    }
}
