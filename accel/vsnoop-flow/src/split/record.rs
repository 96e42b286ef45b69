//! Records that the hooks put into their ring for the splitter.

use std::mem::offset_of;

use crate::types::{
    flow_key, split_ask, split_change, split_flow, split_kind, split_place, split_record,
};

/// The key with the VM's MAC address, which that of a split connection does not have.
pub fn full_key((key, flow): &(flow_key, split_flow)) -> flow_key {
    flow_key { vm_mac: flow.vm_mac, ..*key }
}

/// The key of a split connection.
pub fn split_key(key: &flow_key) -> flow_key {
    flow_key { vm_mac: [0; 6], ..*key }
}

/// A record of the ring.
#[derive(Clone, Debug)]
pub enum Record {
    /// Bytes that the VM has sent, and the hooks have let pass.
    Copied(Copied),
    /// The connection is to be split.
    Wanted(flow_key),
}

/// A part of a segment.
#[derive(Clone, Debug)]
pub struct Copied {
    pub key: flow_key,
    /// SEQ of the first byte.
    pub seq: u32,
    pub bytes: Vec<u8>,
    /// When it was sent, CLOCK_MONOTONIC.
    pub sent_ns: u64,
}

impl Record {
    /// Reads a record of the ring, of which one that asks has no bytes. `None` if it is cut short.
    pub fn from_bytes(record: &[u8]) -> Option<Self> {
        const BYTES: usize = offset_of!(split_record, bytes);
        let word = |at: usize| {
            let word = record.get(at..at + 4)?.first_chunk::<4>()?;
            Some(u32::from_ne_bytes(*word))
        };
        let key = record.get(offset_of!(split_record, key)..)?.get(..size_of::<flow_key>())?;
        // SAFETY: as many bytes as a key has, and any bytes are one.
        let key = unsafe { key.as_ptr().cast::<flow_key>().read_unaligned() };
        if word(offset_of!(split_record, kind))? == split_kind::SPLIT_WANTS {
            return Some(Self::Wanted(key));
        }
        let at = offset_of!(split_record, ns);
        let sent_ns = u64::from_ne_bytes(*record.get(at..at + 8)?.first_chunk::<8>()?);
        let len = word(offset_of!(split_record, len))? as usize;
        let bytes = record.get(BYTES..BYTES + len)?.to_vec();
        let seq = word(offset_of!(split_record, seq))?;
        Some(Self::Copied(Copied { key, seq, bytes, sent_ns }))
    }
}

/// The question by which the hooks learn where the VM of a split connection is.
pub fn at_place(key: &flow_key, place: split_place::Type) -> split_change {
    let flow = split_flow { moved: place, ..Default::default() };
    split_change { key: *key, flow, ask: split_ask::SPLIT_PLACE, ..Default::default() }
}
