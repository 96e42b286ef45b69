//! Frames that one data thread reads and another sends.
//!
//! A link with several pairs of threads has frames for a peer that another pair serves, and a hub
//! relays frames between peers that its configuration names (`relay`). The thread that has read
//! such a frame copies it once for each pair, whatever number of peers it goes to. A batch of
//! frames is one message to the other thread. The bytes that wait are bounded for each sender, by
//! source and in all. Beyond the bounds frames are dropped, as at any full queue.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::frames::frame::Frame;
use crate::io::wake;
use crate::threads::pairs::{PairSlot, Pairs};
use crate::threads::slots::BySlot;
use vsnoop_link::slots::{FrameSource, PeerSlot};
use vsnoop_link::wire::item::Way;
use vsnoop_packet::headers::Headers;
use vsnoop_packet::offload::state::OffloadState;

/// Most bytes of one source: a peer's budget of a round, decompressed ([`crate::ingress`]).
const SOURCE_BYTES: usize = 4 << 20;
const ALL_BYTES: usize = 16 << 20;

/// A frame for peers.
pub struct HandoffFrame {
    pub source: FrameSource,
    /// The peers that get it.
    pub to: Vec<PeerSlot>,
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
    fn take_bytes(waiting: &Arc<AtomicUsize>, bytes: usize, most: usize) -> Option<Self> {
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
pub struct HandoffSender {
    pairs: Pairs,
    pair_channels: BySlot<PairSlot, PairChannel>,
    waiting: Arc<AtomicUsize>,
    waiting_by_source: HashMap<FrameSource, Arc<AtomicUsize>>,
}

/// The way to the thread of one pair that sends.
struct PairChannel {
    batch: Vec<HandoffFrame>,
    channel: wake::Sender<Vec<HandoffFrame>>,
}

/// The end of the thread that sends: its descriptor is readable while there may be frames.
pub struct HandoffReceiver(wake::Receiver<Vec<HandoffFrame>>);

/// A receiver for each pair, and a sender to all of them.
pub fn channels(pairs: Pairs) -> std::io::Result<(HandoffSender, Vec<HandoffReceiver>)> {
    let (mut pair_channels, mut receivers) = (BySlot::default(), Vec::new());
    for _ in pairs.all() {
        let (channel, receiver) = wake::channel()?;
        pair_channels.push(PairChannel { batch: Vec::new(), channel });
        receivers.push(HandoffReceiver(receiver));
    }
    let (waiting, waiting_by_source) = (Arc::default(), HashMap::new());
    Ok((HandoffSender { pairs, pair_channels, waiting, waiting_by_source }, receivers))
}

impl HandoffSender {
    /// For another thread.
    pub fn another(&self) -> Self {
        let pair_channel =
            |own: &PairChannel| PairChannel { batch: Vec::new(), channel: own.channel.clone() };
        Self {
            pairs: self.pairs,
            pair_channels: self.pair_channels.values().map(pair_channel).collect(),
            waiting: Arc::default(),
            waiting_by_source: HashMap::new(),
        }
    }

    /// Takes a frame along with the next [`flush`](Self::flush). Returns the peers that do not get
    /// it, because too much waits.
    pub fn push(
        &mut self,
        source: FrameSource,
        to: Vec<PeerSlot>,
        frame: &Frame<'_>,
    ) -> Vec<PeerSlot> {
        let mut refused = Vec::new();
        for (pair, to) in self.pairs.divide_peers(to) {
            match self.copy_frame(source, to, frame) {
                Ok(copy) => self.pair_channels[pair].batch.push(copy),
                Err(mut to) => refused.append(&mut to),
            }
        }
        refused
    }

    fn copy_frame(
        &mut self,
        source: FrameSource,
        to: Vec<PeerSlot>,
        frame: &Frame<'_>,
    ) -> Result<HandoffFrame, Vec<PeerSlot>> {
        let own = self.waiting_by_source.entry(source).or_default();
        let Some(by_source) = Reservation::take_bytes(own, frame.bytes, SOURCE_BYTES) else {
            return Err(to);
        };
        let Some(in_all) = Reservation::take_bytes(&self.waiting, frame.bytes, ALL_BYTES) else {
            return Err(to);
        };
        let mut bytes = Vec::with_capacity(frame.bytes);
        frame.gather_into(&mut bytes);
        let Frame { offload, headers, way, .. } = *frame;
        Ok(HandoffFrame {
            source,
            to,
            way,
            offload,
            headers,
            bytes,
            _reservations: [by_source, in_all],
        })
    }

    /// Hands over what was pushed.
    pub fn flush(&mut self) {
        for PairChannel { batch, channel } in self.pair_channels.values_mut() {
            if !batch.is_empty() {
                channel.send(std::mem::take(batch));
            }
        }
    }
}

impl HandoffReceiver {
    /// All frames that are there.
    pub fn drain(&self) -> impl Iterator<Item = HandoffFrame> + '_ {
        self.0.drain().flatten()
    }
}

impl AsFd for HandoffReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use vsnoop_link::slots::DivertTapSlot;

    use super::*;

    fn push(sender: &mut HandoffSender, source: FrameSource) -> bool {
        let bytes = [7; 64 << 10];
        sender
            .push(source, vec![PeerSlot(1)], &Frame::whole(OffloadState::default(), &[&bytes]))
            .is_empty()
    }

    #[test]
    fn what_waits_is_bounded_for_each_source_and_for_all_until_it_is_taken() {
        let (mut sender, receivers) = channels(Pairs::new(1)).unwrap();
        let mut fill = |peer: u16| {
            let mut pushed = 0;
            while push(&mut sender, FrameSource::Peer(PeerSlot(peer))) {
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
        assert_eq!(got[0].source, FrameSource::Peer(PeerSlot(0)));
        assert_eq!((&got[0].to[..], got[0].bytes[0]), (&[PeerSlot(1)][..], 7));
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
        let source = FrameSource::DivertTap(DivertTapSlot(9));
        assert!(sender.push(source, [0, 1, 3, 7].map(PeerSlot).to_vec(), &frame).is_empty());
        sender.flush();
        let got = receivers.iter().map(|receiver| {
            let copies = receiver.drain().map(|copy| (copy.source, copy.to.clone(), copy.way));
            copies.collect::<Vec<_>>()
        });
        let to = |to: [u16; 2]| vec![(source, to.map(PeerSlot).to_vec(), Way::Diverted)];
        assert_eq!(got.collect::<Vec<_>>(), [to([0, 3]), to([1, 7]), vec![]]);
    }
}
