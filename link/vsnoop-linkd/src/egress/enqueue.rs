//! Stages `clamp` and `enqueue`: frames for a peer that this pair serves, and the end of a batch.

use super::Egress;
use super::send_context::SendContext;
use super::token::{EgressToken, SocketNumber};
use crate::frames::frame::Frame;
use crate::threads::event::ControlEvent;
use vsnoop_link::slots::{FrameSource, PeerSlot};
use vsnoop_packet::mss;

/// Without options: the MSS counts them as payload.
const TCP_HEADER_BYTES: usize = 20;

impl Egress {
    /// Enqueues a frame; the MSS of a SYN is lowered, so that TCP makes no frames that are longer
    /// than a datagram to this peer.
    pub(super) fn clamp(
        &mut self,
        source: FrameSource,
        peer: PeerSlot,
        frame: &Frame<'_>,
        now_ns: u64,
    ) {
        let Some(limit_bytes) = self.shared.frame_limit(peer).filter(|_| frame.is_syn()) else {
            return self.enqueue(source, peer, frame, now_ns);
        };
        let mut syn = std::mem::take(&mut self.syn);
        frame.gather_into(&mut syn);
        if let Some(headers) = &frame.headers {
            let mss = limit_bytes.saturating_sub(usize::from(headers.l4) + TCP_HEADER_BYTES);
            mss::clamp(&frame.offload, headers, &mut syn, mss.min(u16::MAX.into()) as u16);
        }
        let part = [&syn[..]];
        let lowered = Frame::parsed(frame.offload, frame.headers, &part).labelled(frame.label);
        self.enqueue(source, peer, &lowered.by(frame.way), now_ns);
        self.syn = syn;
    }

    /// Gives a frame to the peer's sender.
    fn enqueue(&mut self, source: FrameSource, peer: PeerSlot, frame: &Frame<'_>, now_ns: u64) {
        let (Some(sender), Some(stats)) = (self.senders.get_mut(peer), self.shared.peers.get(peer))
        else {
            return;
        };
        let compression = self.policies.find_compression(peer, source, frame);
        let context = SendContext { udp: &self.shared.udp, stats, now_ns };
        sender.send_frame(context, frame, &compression, &mut self.scratch);
    }

    /// Sends what other threads have for peers that this one serves.
    pub(super) fn send_handed(&mut self) {
        let now_ns = self.shared.now_ns();
        let frames: Vec<_> = self.inputs.handed.drain().collect();
        self.frames += frames.len();
        for handed in &frames {
            let part = [&handed.bytes[..]];
            for &to in &handed.to {
                let label = match handed.source {
                    FrameSource::Peer(from) => {
                        self.senders.get(to).and_then(|sender| sender.label_of(from))
                    }
                    FrameSource::Port(_) | FrameSource::DivertTap(_) => None,
                };
                let frame = Frame::parsed(handed.offload, handed.headers, &part);
                let frame = frame.by(handed.way).labelled(label);
                self.clamp(handed.source, to, &frame, now_ns);
            }
        }
        self.flush(now_ns);
    }

    /// Sends what waits for the end of a batch.
    pub(super) fn flush(&mut self, now_ns: u64) {
        self.senders.for_each_used(&self.shared.peers, |_, sender, stats| {
            sender.flush(SendContext { udp: &self.shared.udp, stats, now_ns });
        });
        self.handoff.flush();
        self.follow_transports();
    }

    /// Goes on with a session: its socket has room, or a connection has something to read.
    pub(super) fn resume_session(&mut self, peer: PeerSlot, socket: SocketNumber) {
        let now_ns = self.shared.now_ns();
        if let (Some(sender), Some(stats)) =
            (self.senders.get_mut(peer), self.shared.peers.get(peer))
        {
            let token = EgressToken::Socket { peer, socket };
            sender.go_on(token, SendContext { udp: &self.shared.udp, stats, now_ns });
        }
        self.follow_transports();
    }

    /// Watches blocked sockets for room, and reports faults of those that were used.
    pub(super) fn follow_transports(&mut self) {
        self.senders.for_each_used(&self.shared.peers, |peer, sender, stats| {
            sender.follow_transports(&self.watch, stats, &mut |session, fault| {
                let _ = self.events.send(ControlEvent::Outgoing { peer, session, fault });
            });
        });
        self.senders.settle();
    }
}
