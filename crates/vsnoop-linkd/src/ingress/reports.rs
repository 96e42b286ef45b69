//! Reports to the control thread about the session items of peers, at a bounded rate per peer.
//!
//! A message costs that thread far more than it costs the peer, and takes memory until the thread
//! handles it.

use crate::event::{ControlEvent, ReceivedMessage};
use crate::fault::ReceiveError;
use crate::io::udp::Endpoints;
use crate::io::wake;
use crate::stats::PeerStats;

/// Most reports of one peer in a second. A session needs a few: probes and their answers.
const MOST: u32 = 256;
const SECOND_NS: u64 = 1_000_000_000;

pub struct Reports {
    events: wake::Sender<ControlEvent>,
    /// For each peer: when its present second began, and the number of reports since.
    told: Vec<(u64, u32)>,
}

impl Reports {
    pub fn new(events: wake::Sender<ControlEvent>, peers: usize) -> Self {
        Self { events, told: vec![(0, 0); peers] }
    }

    /// A reload has changed the number of peer slots to `peers`.
    pub fn set_peers(&mut self, peers: usize) {
        self.told.resize(peers, (0, 0));
    }

    /// Reports an item of the session itself. Beyond the rate it is dropped and counted.
    pub fn message(&mut self, message: ReceivedMessage, stats: &PeerStats, now_ns: u64) {
        if self.may(message.peer, now_ns) {
            let _ = self.events.send(ControlEvent::Message(message));
        } else {
            stats.excess_in.add(1);
        }
    }

    /// Reports that a peer's newest datagram has another source than those before. Returns `false`
    /// beyond the rate: the caller repeats it.
    pub fn moved(&mut self, peer: usize, session: u64, ends: Endpoints, now_ns: u64) -> bool {
        let may = self.may(peer, now_ns);
        if may {
            let _ = self.events.send(ControlEvent::Moved { peer, session, ends });
        }
        may
    }

    /// Reports that the ingress thread has given up a session.
    pub fn ended(&self, peer: usize, session: u64, stats: &PeerStats, error: ReceiveError) {
        if matches!(error, ReceiveError::NotAccepted(_)) {
            stats.not_accepted_in.add(1);
        }
        let _ = self.events.send(ControlEvent::Incoming { peer, session, error });
    }

    fn may(&mut self, peer: usize, now_ns: u64) -> bool {
        let Some((since_ns, count)) = self.told.get_mut(peer) else { return false };
        if now_ns.saturating_sub(*since_ns) >= SECOND_NS {
            (*since_ns, *count) = (now_ns, 0);
        }
        let may = *count < MOST;
        *count += u32::from(may);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::MessageKind;

    fn message(peer: usize) -> ReceivedMessage {
        let kind = MessageKind::Session;
        ReceivedMessage { peer, session: 1, kind, item: vec![0; 20], datagram: None }
    }

    #[test]
    fn a_peer_that_talks_for_ever_is_heard_so_often_in_a_second_and_others_are_heard() {
        let (sender, receiver) = wake::channel().unwrap();
        let mut reports = Reports::new(sender, 2);
        let stats = [PeerStats::default(), PeerStats::default()];
        for number in 0..1_000_000u64 {
            // Ten seconds of it.
            reports.message(message(0), &stats[0], number * 10_000);
        }
        reports.message(message(1), &stats[1], 0);
        let heard = receiver.drain().count() as u64;
        assert_eq!(heard, 10 * u64::from(MOST) + 1);
        assert_eq!(stats.map(|stats| stats.excess_in.get()), [1_000_000 - (heard - 1), 0]);
    }

    #[test]
    fn a_peer_that_comes_from_everywhere_is_followed_as_often() {
        let (sender, receiver) = wake::channel().unwrap();
        let mut reports = Reports::new(sender, 1);
        let from = |port| Endpoints { peer: ([192, 0, 2, 1], port).into(), local: None };
        let told = (0..10_000).filter(|port| reports.moved(0, 1, from(*port), 0)).count();
        assert_eq!((told, receiver.drain().count()), (MOST as usize, MOST as usize));
        assert!(reports.moved(0, 1, from(1), SECOND_NS));
    }
}
