//! The record by which the next splitter takes up a split connection, as bytes: the keeper has it
//! beside the descriptors.

use vsnoop_bpf::Record as _;
use vsnoop_bpf::types::flow_key;
use vsnoop_split::{Socket, Split, parts_of};
use vsnoop_splitter::{Received, Record};

use crate::keeper::Kept;

pub type Left = vsnoop_splitter::Left<Socket>;

/// Raised with the layout of a record.
const VERSION: u32 = 1;

/// Takes a connection over from the keeper. One of a splitter of another version is reset.
pub fn left_of(kept: Kept) -> Option<Left> {
    let Kept { id, record, parts } = kept;
    let Some(record) = from_bytes(&record) else {
        tracing::warn!("a split connection of a splitter of another version is reset");
        // If the sockets cannot be taken up, they are reset by that.
        let _ = Split::from_parts(parts).map(Split::reset);
        return None;
    };
    Some(Left { id, record, parts: parts_of(parts) })
}

pub fn to_bytes(record: &Record) -> Vec<u8> {
    let (netns, ifindex, attachment, downloads) = record.port;
    let mut bytes = Vec::new();
    bytes.extend(VERSION.to_ne_bytes());
    bytes.extend(netns.to_ne_bytes());
    bytes.extend(ifindex.to_ne_bytes());
    bytes.extend(attachment.to_ne_bytes());
    bytes.extend(downloads.to_ne_bytes());
    for received in [record.vm, record.peer] {
        bytes.extend(received.seq.to_ne_bytes());
        bytes.extend(received.bytes.to_ne_bytes());
    }
    bytes.extend(record.ahead.to_ne_bytes());
    bytes.extend(record.key.as_bytes());
    bytes
}

fn from_bytes(mut bytes: &[u8]) -> Option<Record> {
    let from = &mut bytes;
    if u32::from_ne_bytes(take_bytes(from)?) != VERSION {
        return None;
    }
    let port = (
        u64::from_ne_bytes(take_bytes(from)?),
        u32::from_ne_bytes(take_bytes(from)?),
        u64::from_ne_bytes(take_bytes(from)?),
        u64::from_ne_bytes(take_bytes(from)?),
    );
    let (vm, peer) = (decode_received(from)?, decode_received(from)?);
    let ahead = u32::from_ne_bytes(take_bytes(from)?);
    let key = flow_key::from_bytes(from)?;
    Some(Record { port, key, vm, peer, ahead })
}

fn decode_received(bytes: &mut &[u8]) -> Option<Received> {
    Some(Received {
        seq: u32::from_ne_bytes(take_bytes(bytes)?),
        bytes: u64::from_ne_bytes(take_bytes(bytes)?),
    })
}

fn take_bytes<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
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
        let mut bytes = to_bytes(&record);
        assert_eq!(from_bytes(&bytes), Some(record));
        assert_eq!(from_bytes(&bytes[..bytes.len() - 1]), None);
        bytes[0] ^= 0xff;
        assert_eq!(from_bytes(&bytes), None);
    }
}
