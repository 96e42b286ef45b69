//! What the next splitter has to know of a split connection: the keeper has it beside the
//! descriptors.

use std::io;
use std::os::fd::OwnedFd;

use vsnoop_bpf::Record as _;
use vsnoop_bpf::types::flow_key;
use vsnoop_split::{PARTS, Side, Split};

use crate::keeper::Kept;

/// Network namespace and index of the tap, ids of the attachment and of the pins of its downloads,
/// which may be switched off and on again between two looks.
pub type PortKey = (u64, u32, u64, u64);

/// The numbers of what a socket receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    pub seq: u32,
    pub bytes: u64,
}

/// Raised with the layout of a record.
const VERSION: u32 = 1;

/// A split connection, when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub port: PortKey,
    pub key: flow_key,
    pub vm: Received,
    pub peer: Received,
    pub ahead: u32,
}

/// A connection that an earlier splitter has left.
pub struct Left {
    pub id: u64,
    pub record: Record,
    pub parts: [OwnedFd; PARTS],
}

impl Left {
    /// What the keeper has. One of a splitter of another version is reset.
    pub fn of(kept: Kept) -> Option<Self> {
        let Kept { id, record, parts } = kept;
        let Some(record) = Record::from_bytes(&record) else {
            tracing::warn!("a split connection of a splitter of another version is reset");
            // If the sockets cannot be taken up, they are reset by that.
            let _ = Split::from_parts(parts).map(Split::reset);
            return None;
        };
        Some(Self { id, record, parts })
    }

    /// Ends it here without a word: its ends talk to each other, or its port is gone. Returns
    /// whether bytes that an end was acknowledged are lost by that.
    pub fn drop_silently(self) -> bool {
        let Ok(split) = Split::from_parts(self.parts) else { return true };
        let is_lost = loses(&split, &self.record).unwrap_or(true);
        // Best effort: its segments reach no end.
        let _ = split.join();
        is_lost
    }
}

/// Would bytes be lost with this connection, which the hooks do not know? Not if they have never
/// known it. Else both ends were about to be joined: one socket is closed, or both are empty,
/// unless a segment has come just before that.
fn loses(split: &Split, record: &Record) -> io::Result<bool> {
    let (vm, peer) = (split.info(Side::Vm)?, split.info(Side::Peer)?);
    let is_untouched = [(vm, record.vm), (peer, record.peer)]
        .iter()
        .all(|(info, at)| info.bytes_acknowledged == 0 && info.bytes_received == at.bytes);
    let is_closed = vm.state.is_closed() || peer.state.is_closed();
    Ok(!is_untouched && !is_closed && !split.is_drained()?)
}

impl Record {
    pub fn to_bytes(self) -> Vec<u8> {
        let (netns, ifindex, attachment, downloads) = self.port;
        let mut bytes = Vec::new();
        bytes.extend(VERSION.to_ne_bytes());
        bytes.extend(netns.to_ne_bytes());
        bytes.extend(ifindex.to_ne_bytes());
        bytes.extend(attachment.to_ne_bytes());
        bytes.extend(downloads.to_ne_bytes());
        for received in [self.vm, self.peer] {
            bytes.extend(received.seq.to_ne_bytes());
            bytes.extend(received.bytes.to_ne_bytes());
        }
        bytes.extend(self.ahead.to_ne_bytes());
        bytes.extend(self.key.as_bytes());
        bytes
    }

    pub fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let from = &mut bytes;
        if u32::from_ne_bytes(take(from)?) != VERSION {
            return None;
        }
        let port = (
            u64::from_ne_bytes(take(from)?),
            u32::from_ne_bytes(take(from)?),
            u64::from_ne_bytes(take(from)?),
            u64::from_ne_bytes(take(from)?),
        );
        let (vm, peer) = (received(from)?, received(from)?);
        let ahead = u32::from_ne_bytes(take(from)?);
        let key = flow_key::from_bytes(from)?;
        Some(Self { port, key, vm, peer, ahead })
    }
}

fn received(bytes: &mut &[u8]) -> Option<Received> {
    Some(Received {
        seq: u32::from_ne_bytes(take(bytes)?),
        bytes: u64::from_ne_bytes(take(bytes)?),
    })
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    bytes.split_off(..N)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_what_it_was_and_another_version_is_refused() {
        let record = Record {
            port: (1 << 40, 7, 1 << 50, 1 << 51),
            key: flow_key { vm_port: 80, vm_mac: [1, 2, 3, 4, 5, 6], ..Default::default() },
            vm: Received { seq: u32::MAX, bytes: 1 << 33 },
            peer: Received { seq: 3, bytes: 4 },
            ahead: 5,
        };
        let mut bytes = record.to_bytes();
        assert_eq!(Record::from_bytes(&bytes), Some(record));
        assert_eq!(Record::from_bytes(&bytes[..bytes.len() - 1]), None);
        bytes[0] ^= 0xff;
        assert_eq!(Record::from_bytes(&bytes), None);
    }
}
