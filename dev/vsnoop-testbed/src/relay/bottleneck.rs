//! A link of a certain rate with a queue before it, as a port of a switch has.
//!
//! The link computes, when a packet arrives, the time at which its last bit will have left: after
//! all packets before it, and then its own bits. So the rate is exact, also if timers are late.
//! Packets that have not left are in the queue, which counts their bytes. A packet that does not
//! fit is dropped; one that finds more than a threshold in the queue is marked, as DCTCP requires
//! (RFC 8257, section 3.1: by the instantaneous queue length).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Parameters of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bottleneck {
    pub rate_mbit: u64,
    /// The queue's limit. Packets count as in the kernel: from the Ethernet header on.
    pub limit_bytes: u64,
    /// ECN-capable packets that find more than this in the queue are marked CE.
    pub mark_bytes: Option<u64>,
    /// Overhead of each packet on the link, bytes.
    pub overhead_bytes: u64,
}

impl Bottleneck {
    /// A link that marks nothing, and on which packets have no overhead.
    pub const fn new(rate_mbit: u64, limit_bytes: u64) -> Self {
        Self { rate_mbit, limit_bytes, mark_bytes: None, overhead_bytes: 0 }
    }
}

/// Fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its last bit has left then.
    Leaves {
        at: Instant,
        mark: bool,
    },
    Dropped,
}

/// The packets that have not left yet.
#[derive(Debug, Default)]
pub(super) struct Queue {
    packets: VecDeque<(Instant, u64)>,
    bytes: u64,
}

impl Queue {
    /// A packet comes.
    pub fn offer(&mut self, link: &Bottleneck, bytes: u64, now: Instant) -> Verdict {
        while let Some((at, left)) = self.packets.front()
            && *at <= now
        {
            self.bytes -= left;
            self.packets.pop_front();
        }
        if self.bytes + bytes > link.limit_bytes {
            return Verdict::Dropped;
        }
        let mark = link.mark_bytes.is_some_and(|threshold| self.bytes > threshold);
        let begin = self.packets.back().map_or(now, |(at, _)| *at);
        let bits = (bytes + link.overhead_bytes) * 8;
        let at = begin + Duration::from_nanos(bits * 1000 / link.rate_mbit.max(1));
        self.packets.push_back((at, bytes));
        self.bytes += bytes;
        Verdict::Leaves { at, mark }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1000 bytes take 80 us.
    const LINK: Bottleneck = Bottleneck::new(100, 5000);

    struct TimedQueue {
        link: Bottleneck,
        queue: Queue,
        begin: Instant,
    }

    impl TimedQueue {
        fn new(link: Bottleneck) -> Self {
            Self { link, queue: Queue::default(), begin: Instant::now() }
        }

        /// Offers a packet `at_us` microseconds after the beginning.
        fn offer(&mut self, bytes: u64, at_us: u64) -> Verdict {
            let now = self.begin + Duration::from_micros(at_us);
            self.queue.offer(&self.link, bytes, now)
        }

        /// When such a packet leaves, in microseconds.
        fn leaves(&mut self, bytes: u64, at_us: u64) -> Option<u64> {
            match self.offer(bytes, at_us) {
                Verdict::Leaves { at, .. } => Some((at - self.begin).as_micros() as u64),
                Verdict::Dropped => None,
            }
        }

        fn is_marked(&mut self, bytes: u64, at_us: u64) -> bool {
            matches!(self.offer(bytes, at_us), Verdict::Leaves { mark: true, .. })
        }
    }

    #[test]
    fn packets_leave_at_the_rate_of_the_link_and_an_idle_link_saves_nothing_up() {
        let mut port = TimedQueue::new(LINK);
        assert_eq!([(); 3].map(|()| port.leaves(1000, 0)), [Some(80), Some(160), Some(240)]);
        assert_eq!(port.leaves(500, 200), Some(280), "behind those before it");
        assert_eq!(port.leaves(1000, 10_000), Some(10_080));
        assert_eq!(port.leaves(1000, 10_000), Some(10_160));
    }

    #[test]
    fn a_long_burst_that_never_overflows_goes_at_the_rate_exactly() {
        let mut port = TimedQueue::new(Bottleneck { rate_mbit: 7, overhead_bytes: 24, ..LINK });
        let (mut sent, mut last) = (0, 0);
        for n in 0..100_000 {
            // Twice as much as the link takes.
            if let Some(at) = port.leaves(1514, n * 1538 * 8 / 14) {
                (sent, last) = (sent + 1, at);
            }
        }
        let expected = sent * 1538 * 8 / 7;
        assert!(last.abs_diff(expected) <= expected / 1000, "{sent} packets in {last} us");
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_room_comes_back_as_packets_leave() {
        let mut port = TimedQueue::new(LINK);
        assert!((0..5).all(|_| port.leaves(1000, 0).is_some()));
        assert_eq!(port.leaves(1000, 0), None);
        assert_eq!(port.leaves(1, 79), None);
        assert_eq!(port.leaves(1000, 80), Some(480), "the first has left");
        assert_eq!(port.leaves(1, 80), None);
        assert!((0..5).all(|_| port.leaves(1000, 1000).is_some()), "all have left");
    }

    #[test]
    fn packets_that_find_more_than_the_threshold_are_marked() {
        let mut port = TimedQueue::new(Bottleneck { mark_bytes: Some(2000), ..LINK });
        let marks: Vec<_> = (0..5).map(|_| port.is_marked(1000, 0)).collect();
        assert_eq!(marks, [false, false, false, true, true]);
        assert!(!port.is_marked(1000, 240), "two are left");
        assert!(port.is_marked(1000, 240), "three are left");
        let mut never = TimedQueue::new(LINK);
        assert!((0..5).all(|_| !never.is_marked(1000, 0)));
    }

    #[test]
    fn what_a_packet_costs_besides_its_bytes_takes_time_and_no_room() {
        let mut port = TimedQueue::new(Bottleneck { overhead_bytes: 1000, ..LINK });
        let times: Vec<_> = (0..6).map(|_| port.leaves(1000, 0)).collect();
        assert_eq!(times, [Some(160), Some(320), Some(480), Some(640), Some(800), None]);
    }
}
