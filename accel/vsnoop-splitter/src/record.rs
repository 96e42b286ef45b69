//! Records by which the next splitter takes up a split connection.

use std::io;

use vsnoop_flow::types::flow_key;
use vsnoop_split::{Facing, Pair, Parts, Side};

/// Network namespace and index of the tap, ids of the attachment and of the pins of its downloads,
/// which may be switched off and on again between two looks.
pub type PortKey = (u64, u32, u64, u64);

/// The numbers of what a socket receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    pub seq: u32,
    pub bytes: u64,
}

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
pub struct Left<S: Facing> {
    pub id: u64,
    pub record: Record,
    pub parts: Parts<S>,
}

impl<S: Facing> Left<S> {
    /// Ends it here without a word: its ends talk to each other, or its port is gone. Returns
    /// whether bytes that an end was acknowledged are lost by that.
    pub fn drop_silently(self) -> bool {
        let Ok(split) = Pair::take_up(self.parts) else { return true };
        let is_lost = loses(&split, &self.record).unwrap_or(true);
        // Best effort: its segments reach no end.
        let _ = split.join();
        is_lost
    }
}

/// Would bytes be lost with this connection, which the hooks do not know? Not if they have never
/// known it. Else both ends were about to be joined: one socket is closed, or both are empty,
/// unless a segment has come just before that.
fn loses<S: Facing>(split: &Pair<S>, record: &Record) -> io::Result<bool> {
    let (vm, peer) = (split.info(Side::Vm)?, split.info(Side::Peer)?);
    let is_untouched = [(vm, record.vm), (peer, record.peer)]
        .iter()
        .all(|(info, at)| info.bytes_acknowledged == 0 && info.bytes_received == at.bytes);
    let is_closed = vm.state.is_closed() || peer.state.is_closed();
    Ok(!is_untouched && !is_closed && !split.is_drained()?)
}
