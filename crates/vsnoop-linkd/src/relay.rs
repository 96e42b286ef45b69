//! Frames from peers to other peers, on their way from the thread that receives to the one that
//! sends.
//!
//! A hub relays between peers that its configuration names (`relay`). The thread that receives
//! copies such a frame once, whatever number of peers it goes to; a batch of frames is one message
//! to the other thread. What waits there is bounded, for each peer and for all: beyond that frames
//! are dropped, as at any queue that is full, and counted for the peer that sent them.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::frame::Frame;
use super::io::wake;
use vsnoop_packet::headers::Headers;
use vsnoop_packet::offload::state::OffloadState;

/// Of one peer: its budget of decompressed data in a round ([`crate::ingress`]).
const PEER_BYTES: usize = 4 << 20;
const ALL_BYTES: usize = 16 << 20;

/// A frame for other peers.
pub struct RelayedFrame {
    /// The slot of the peer that sent it.
    pub from: usize,
    /// Slots of those that get it.
    pub to: Vec<u16>,
    pub offload: OffloadState,
    pub headers: Option<Headers>,
    pub bytes: Vec<u8>,
    _reservations: [Reservation; 2],
}

/// Bytes that count as waiting until this is dropped.
struct Reservation {
    waiting: Arc<AtomicUsize>,
    bytes: usize,
}

impl Reservation {
    fn take(waiting: &Arc<AtomicUsize>, bytes: usize, most: usize) -> Option<Self> {
        let reservation = Self { waiting: Arc::clone(waiting), bytes };
        let before = waiting.fetch_add(bytes, Ordering::Relaxed);
        (before + bytes <= most).then_some(reservation)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The end of the thread that receives.
pub struct RelaySender {
    batch: Vec<RelayedFrame>,
    channel: wake::Sender<Vec<RelayedFrame>>,
    waiting: Arc<AtomicUsize>,
    /// By the slot of the peer that sent it.
    waiting_of: HashMap<usize, Arc<AtomicUsize>>,
}

/// The end of the thread that sends: its descriptor is readable while there may be frames.
pub struct RelayReceiver(wake::Receiver<Vec<RelayedFrame>>);

pub fn channel() -> std::io::Result<(RelaySender, RelayReceiver)> {
    let (channel, receiver) = wake::channel()?;
    let (batch, waiting, waiting_of) = (Vec::new(), Arc::default(), HashMap::new());
    Ok((RelaySender { batch, channel, waiting, waiting_of }, RelayReceiver(receiver)))
}

impl RelaySender {
    /// Takes a frame along with the next [`flush`](Self::flush); `false` if too much waits.
    pub fn push(&mut self, from: usize, to: Vec<u16>, frame: &Frame<'_>) -> bool {
        let own = self.waiting_of.entry(from).or_default();
        let Some(of_peer) = Reservation::take(own, frame.bytes, PEER_BYTES) else { return false };
        let Some(of_all) = Reservation::take(&self.waiting, frame.bytes, ALL_BYTES) else {
            return false;
        };
        let mut bytes = Vec::with_capacity(frame.bytes);
        frame.gather_into(&mut bytes);
        let (offload, headers, _reservations) = (frame.offload, frame.headers, [of_peer, of_all]);
        self.batch.push(RelayedFrame { from, to, offload, headers, bytes, _reservations });
        true
    }

    /// Hands over what was pushed.
    pub fn flush(&mut self) {
        if !self.batch.is_empty() {
            self.channel.send(std::mem::take(&mut self.batch));
        }
    }
}

impl RelayReceiver {
    /// All frames that are there.
    pub fn drain(&self) -> impl Iterator<Item = RelayedFrame> + '_ {
        self.0.drain().flatten()
    }
}

impl AsFd for RelayReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(sender: &mut RelaySender, from: usize) -> bool {
        let bytes = [7; 64 << 10];
        sender.push(from, vec![1], &Frame::whole(OffloadState::default(), &[&bytes]))
    }

    #[test]
    fn what_waits_is_bounded_for_each_peer_and_for_all_until_it_is_taken() {
        let (mut sender, receiver) = channel().unwrap();
        let mut fill = |from: usize| {
            let mut pushed = 0;
            while push(&mut sender, from) {
                pushed += 1;
            }
            sender.flush();
            pushed
        };
        let each = PEER_BYTES / (64 << 10);
        assert_eq!(fill(0), each);
        assert_eq!(fill(0), 0);
        assert_eq!([fill(1), fill(2), fill(3)], [each; 3]);
        assert_eq!(fill(4), 0, "all have what they may");
        let got: Vec<_> = receiver.drain().collect();
        assert_eq!(got.len(), 4 * each);
        assert_eq!((got[0].from, &got[0].to[..], got[0].bytes[0]), (0, &[1][..], 7));
        assert_eq!(fill(4), 0, "they are not sent yet");
        drop(got);
        assert_eq!(fill(4), each);
    }
}
