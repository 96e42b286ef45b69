//! Reports to the control thread about what peers say, at a bounded rate per peer.
//!
//! A message costs that thread far more than it costs the peer, and takes memory until the thread
//! handles it. What a peer says about the peers of a hub takes nothing from what it says about its
//! own session: probes and their answers come in any case.

use vsnoop_link::introduction;

use crate::counters::stats::PeerStats;
use crate::io::udp::Endpoints;
use crate::io::wake;
use crate::threads::event::{ControlEvent, MessageKind, ReceivedMessage};
use crate::threads::fault::ReceiveError;
use crate::threads::slots::BySlot;
use vsnoop_link::session::SessionId;
use vsnoop_link::slots::PeerSlot;

/// Most reports of one peer in a second about its session. It needs a few: probes, their answers.
const MOST: u32 = 256;
const SECOND_NS: u64 = 1_000_000_000;

/// The reports of one peer.
#[derive(Clone, Default)]
struct Told {
    session: PresentSecond,
    introduction: PresentSecond,
}

/// When the present second began, and the reports since.
#[derive(Clone, Copy, Default)]
struct PresentSecond {
    since_ns: u64,
    count: u32,
}

impl PresentSecond {
    /// Whether there may be one more.
    fn take(&mut self, most: u32, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.since_ns) >= SECOND_NS {
            *self = Self { since_ns: now_ns, count: 0 };
        }
        let may = self.count < most;
        self.count += u32::from(may);
        may
    }
}

pub struct Reports {
    events: wake::Sender<ControlEvent>,
    told: BySlot<PeerSlot, Told>,
}

impl Reports {
    pub fn new(events: wake::Sender<ControlEvent>, peers: usize) -> Self {
        Self { events, told: (0..peers).map(|_| Told::default()).collect() }
    }

    /// A reload has changed the number of peer slots to `peers`.
    pub fn set_peers(&mut self, peers: usize) {
        self.told.resize_with(peers, Told::default);
    }

    /// Reports a message. Beyond the rate it is dropped and counted.
    pub fn report_message(&mut self, message: ReceivedMessage, stats: &PeerStats, now_ns: u64) {
        let told = self.told.get_mut(message.peer);
        let may = told.is_some_and(|told| match message.kind {
            MessageKind::Session => told.session.take(MOST, now_ns),
            MessageKind::Introduction => {
                told.introduction.take(introduction::MESSAGES_PER_S, now_ns)
            }
        });
        if may {
            let _ = self.events.send(ControlEvent::Message(message));
        } else {
            stats.excess_in.add(1);
        }
    }

    /// Reports that a peer's newest datagram has another source than those before. Returns `false`
    /// beyond the rate: the caller repeats it.
    pub fn report_move(
        &mut self,
        peer: PeerSlot,
        session: SessionId,
        ends: Endpoints,
        now_ns: u64,
    ) -> bool {
        let told = self.told.get_mut(peer);
        let may = told.is_some_and(|told| told.session.take(MOST, now_ns));
        if may {
            let _ = self.events.send(ControlEvent::Moved { peer, session, ends });
        }
        may
    }

    /// Reports that the ingress thread has given up a session.
    pub fn report_end(
        &self,
        peer: PeerSlot,
        session: SessionId,
        stats: &PeerStats,
        error: ReceiveError,
    ) {
        if matches!(error, ReceiveError::NotAccepted(_)) {
            stats.not_accepted_in.add(1);
        }
        let _ = self.events.send(ControlEvent::Incoming { peer, session, error });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(peer: PeerSlot) -> ReceivedMessage {
        message_of(MessageKind::Session, peer)
    }

    fn message_of(kind: MessageKind, peer: PeerSlot) -> ReceivedMessage {
        ReceivedMessage { peer, session: SessionId(1), kind, item: vec![0; 20], datagram: None }
    }

    #[test]
    fn a_peer_that_talks_for_ever_is_heard_so_often_in_a_second_and_others_are_heard() {
        let (sender, receiver) = wake::channel().unwrap();
        let mut reports = Reports::new(sender, 2);
        let stats = [PeerStats::default(), PeerStats::default()];
        for number in 0..1_000_000u64 {
            // Ten seconds of it.
            reports.report_message(message(PeerSlot(0)), &stats[0], number * 10_000);
        }
        reports.report_message(message(PeerSlot(1)), &stats[1], 0);
        let heard = receiver.drain().count() as u64;
        assert_eq!(heard, 10 * u64::from(MOST) + 1);
        assert_eq!(stats.map(|stats| stats.excess_in.get()), [1_000_000 - (heard - 1), 0]);
    }

    #[test]
    fn a_hub_that_talks_for_ever_of_others_is_heard_about_its_own_session() {
        let (sender, receiver) = wake::channel().unwrap();
        let mut reports = Reports::new(sender, 1);
        let stats = PeerStats::default();
        for _ in 0..10_000 {
            reports.report_message(message_of(MessageKind::Introduction, PeerSlot(0)), &stats, 0);
        }
        let heard = receiver.drain().count();
        assert_eq!(heard, introduction::MESSAGES_PER_S as usize);
        reports.report_message(message(PeerSlot(0)), &stats, 0);
        assert_eq!(receiver.drain().count(), 1, "its probe is lost");
    }

    #[test]
    fn a_peer_that_comes_from_everywhere_is_followed_as_often() {
        let (sender, receiver) = wake::channel().unwrap();
        let mut reports = Reports::new(sender, 1);
        let from = |port| Endpoints { peer: ([192, 0, 2, 1], port).into(), local: None };
        let told = (0..10_000)
            .filter(|port| reports.report_move(PeerSlot(0), SessionId(1), from(*port), 0))
            .count();
        assert_eq!((told, receiver.drain().count()), (MOST as usize, MOST as usize));
        assert!(reports.report_move(PeerSlot(0), SessionId(1), from(1), SECOND_NS));
    }
}
