//! Frames on their way to a thread that sends: from peers to other peers, and from threads that
//! send to others.
//!
//! A hub relays between peers that its configuration names (`relay`). A link with several pairs of
//! threads has frames for a peer that another pair serves. The thread that has read such a frame
//! copies it once for each pair, whatever number of peers it goes to; a batch of frames is one
//! message to the other thread. What waits there is bounded for each thread that hands over, by
//! source and in all: beyond that frames are dropped, as at any queue that is full.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::frame::Frame;
use super::io::wake;
use super::pairs::Pairs;
use vsnoop_link::wire::item::Way;
use vsnoop_packet::headers::Headers;
use vsnoop_packet::offload::state::OffloadState;

/// Of one source: the budget of decompressed data that a peer has in a round ([`crate::ingress`]).
const SOURCE_BYTES: usize = 4 << 20;
const ALL_BYTES: usize = 16 << 20;

/// A frame for peers.
pub struct RelayedFrame {
    /// Where it was read: a number as compression policies have it.
    pub source: usize,
    /// Slots of the peers that get it.
    pub to: Vec<u16>,
    pub way: Way,
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

/// The end of a thread that hands over.
pub struct RelaySender {
    pairs: Pairs,
    /// By pair.
    pair_channels: Vec<PairChannel>,
    waiting: Arc<AtomicUsize>,
    waiting_of: HashMap<usize, Arc<AtomicUsize>>,
}

/// The way to the thread of one pair that sends.
struct PairChannel {
    batch: Vec<RelayedFrame>,
    channel: wake::Sender<Vec<RelayedFrame>>,
}

/// The end of the thread that sends: its descriptor is readable while there may be frames.
pub struct RelayReceiver(wake::Receiver<Vec<RelayedFrame>>);

/// A receiver for each pair, and a sender to all of them.
pub fn channels(pairs: Pairs) -> std::io::Result<(RelaySender, Vec<RelayReceiver>)> {
    let (mut pair_channels, mut receivers) = (Vec::new(), Vec::new());
    for _ in pairs.all() {
        let (channel, receiver) = wake::channel()?;
        pair_channels.push(PairChannel { batch: Vec::new(), channel });
        receivers.push(RelayReceiver(receiver));
    }
    let (waiting, waiting_of) = (Arc::default(), HashMap::new());
    Ok((RelaySender { pairs, pair_channels, waiting, waiting_of }, receivers))
}

impl RelaySender {
    /// For another thread.
    pub fn another(&self) -> Self {
        let pair_channel =
            |of: &PairChannel| PairChannel { batch: Vec::new(), channel: of.channel.clone() };
        Self {
            pairs: self.pairs,
            pair_channels: self.pair_channels.iter().map(pair_channel).collect(),
            waiting: Arc::default(),
            waiting_of: HashMap::new(),
        }
    }

    /// Takes a frame along with the next [`flush`](Self::flush). Returns the peers that do not get
    /// it, because too much waits.
    pub fn push(&mut self, source: usize, to: Vec<u16>, frame: &Frame<'_>) -> Vec<u16> {
        let mut refused = Vec::new();
        for (pair, to) in self.pairs.divide(to) {
            match self.copy(source, to, frame) {
                Ok(copy) => self.pair_channels[pair].batch.push(copy),
                Err(mut to) => refused.append(&mut to),
            }
        }
        refused
    }

    fn copy(
        &mut self,
        source: usize,
        to: Vec<u16>,
        frame: &Frame<'_>,
    ) -> Result<RelayedFrame, Vec<u16>> {
        let own = self.waiting_of.entry(source).or_default();
        let Some(of_source) = Reservation::take(own, frame.bytes, SOURCE_BYTES) else {
            return Err(to);
        };
        let Some(of_all) = Reservation::take(&self.waiting, frame.bytes, ALL_BYTES) else {
            return Err(to);
        };
        let mut bytes = Vec::with_capacity(frame.bytes);
        frame.gather_into(&mut bytes);
        let Frame { offload, headers, way, .. } = *frame;
        Ok(RelayedFrame {
            source,
            to,
            way,
            offload,
            headers,
            bytes,
            _reservations: [of_source, of_all],
        })
    }

    /// Hands over what was pushed.
    pub fn flush(&mut self) {
        for PairChannel { batch, channel } in &mut self.pair_channels {
            if !batch.is_empty() {
                channel.send(std::mem::take(batch));
            }
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

    fn push(sender: &mut RelaySender, source: usize) -> bool {
        let bytes = [7; 64 << 10];
        sender.push(source, vec![1], &Frame::whole(OffloadState::default(), &[&bytes])).is_empty()
    }

    #[test]
    fn what_waits_is_bounded_for_each_source_and_for_all_until_it_is_taken() {
        let (mut sender, receivers) = channels(Pairs::new(1)).unwrap();
        let mut fill = |source: usize| {
            let mut pushed = 0;
            while push(&mut sender, source) {
                pushed += 1;
            }
            sender.flush();
            pushed
        };
        let each = SOURCE_BYTES / (64 << 10);
        assert_eq!(fill(0), each);
        assert_eq!(fill(0), 0);
        assert_eq!([fill(1), fill(2), fill(3)], [each; 3]);
        assert_eq!(fill(4), 0, "all have what they may");
        let got: Vec<_> = receivers[0].drain().collect();
        assert_eq!(got.len(), 4 * each);
        assert_eq!((got[0].source, &got[0].to[..], got[0].bytes[0]), (0, &[1][..], 7));
        assert_eq!(fill(4), 0, "they are not sent yet");
        drop(got);
        assert_eq!(fill(4), each);
    }

    #[test]
    fn a_frame_goes_once_to_each_pair_that_serves_one_of_its_peers() {
        let (sender, receivers) = channels(Pairs::new(3)).unwrap();
        let mut sender = sender.another();
        let part = [&[7; 100][..]];
        let frame = Frame::whole(OffloadState::default(), &part).by(Way::Diverted);
        assert!(sender.push(9, vec![0, 1, 3, 7], &frame).is_empty());
        sender.flush();
        let got = receivers.iter().map(|receiver| {
            let copies = receiver.drain().map(|copy| (copy.source, copy.to.clone(), copy.way));
            copies.collect::<Vec<_>>()
        });
        let to = |to: &[u16]| vec![(9, to.to_vec(), Way::Diverted)];
        assert_eq!(got.collect::<Vec<_>>(), [to(&[0, 3]), to(&[1, 7]), vec![]]);
    }
}
