//! Packets delivered and lost, and the delivery rate of the path.
//!
//! With each answer the far end reports how many packets it has received and how many must have
//! been sent to it; the difference is lost or in flight. The report has a time of the far end's
//! clock, so that the rate between two answers does not depend on their delay. A rate is that of
//! the *path* only while the path is congested: while packets were lost or queued. The highest
//! such rate of the last minutes is the estimate of the path's capacity.

use super::message::Counters;

/// Shortest interval over which a rate is measured.
const INTERVAL_NS: u64 = 500_000_000;
/// Window of the maximum filter: the path's rate is the highest of this window and the one before.
const WINDOW_NS: u64 = 60_000_000_000;
/// A loss rate above 1 / this is congestion. Below it, losses may be reordered packets.
const LOSS: u64 = 200;
/// Fewer packets in an interval do not show the path's rate.
const LEAST_PACKETS: u64 = 16;

/// Sums over all sessions with a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// Packets of this end that arrived.
    pub delivered_packets: u64,
    /// Bytes of those.
    pub delivered_bytes: u64,
    /// Packets of this end that did not arrive; an estimate: some may still arrive.
    pub lost_out_packets: u64,
    /// Packets of the peer that arrived.
    pub received_packets: u64,
    /// Bytes of those.
    pub received_bytes: u64,
    /// Packets of the peer that did not arrive.
    pub lost_in_packets: u64,
    /// The last measured rate of delivery to the peer.
    pub rate_bytes_per_s: u64,
    /// The path's rate; unknown while it was never congested.
    pub path_bytes_per_s: Option<u64>,
}

/// The counters of both ends of a session, summed up over sessions.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    /// Sums of former sessions.
    former: Delivery,
    out: Counters,
    arrived: Counters,
    /// The far end's clock and counters at the beginning of the interval.
    mark: Option<(u64, Counters)>,
    rate_bytes_per_s: u64,
    /// The highest congested rates of this window and of the one before.
    highest: [Option<u64>; 2],
    window_since_ns: u64,
}

impl Meter {
    /// Another session: counters begin anew.
    pub fn begin(&mut self) {
        self.former = self.delivery();
        (self.out, self.arrived, self.mark) = Default::default();
    }

    /// Updates the counters of packets received in the session.
    pub fn note_received(&mut self, counters: Counters) {
        self.arrived = latest_counters(self.arrived, counters);
    }

    /// Handles the counters that the peer reports, at `their_ns` of its clock; `queued`: the round
    /// trip shows a queue.
    pub fn note_told(&mut self, counters: Counters, their_ns: u64, queued: bool, now_ns: u64) {
        self.out = latest_counters(self.out, counters);
        let Some((mark_ns, mark)) = self.mark else {
            self.mark = Some((their_ns, self.out));
            return;
        };
        let span_ns = their_ns.saturating_sub(mark_ns);
        if span_ns < INTERVAL_NS {
            // A clock that went back is another clock.
            if their_ns < mark_ns {
                self.mark = Some((their_ns, self.out));
            }
            return;
        }
        self.mark = Some((their_ns, self.out));
        let bytes = u128::from(self.out.received_bytes - mark.received_bytes);
        let rate = bytes.saturating_mul(1_000_000_000) / u128::from(span_ns);
        self.rate_bytes_per_s = u64::try_from(rate).unwrap_or(u64::MAX);
        let packets = self.out.received_packets - mark.received_packets;
        let lost = count_missing(&self.out).saturating_sub(count_missing(&mark));
        if (queued || lost.saturating_mul(LOSS) > packets) && packets >= LEAST_PACKETS {
            self.note_congested(self.rate_bytes_per_s, now_ns);
        }
    }

    fn note_congested(&mut self, rate: u64, now_ns: u64) {
        if now_ns.saturating_sub(self.window_since_ns) >= WINDOW_NS {
            self.highest = [None, self.highest[0]];
            self.window_since_ns = now_ns;
        }
        self.highest[0] = self.highest[0].max(Some(rate));
    }

    /// Forgets the path's rate, because the path has changed.
    pub fn forget_path(&mut self) {
        self.highest = [None; 2];
    }

    /// The sums over all sessions.
    pub fn delivery(&self) -> Delivery {
        let former = self.former;
        Delivery {
            delivered_packets: former.delivered_packets.saturating_add(self.out.received_packets),
            delivered_bytes: former.delivered_bytes.saturating_add(self.out.received_bytes),
            lost_out_packets: former.lost_out_packets.saturating_add(count_missing(&self.out)),
            received_packets: former.received_packets.saturating_add(self.arrived.received_packets),
            received_bytes: former.received_bytes.saturating_add(self.arrived.received_bytes),
            lost_in_packets: former.lost_in_packets.saturating_add(count_missing(&self.arrived)),
            rate_bytes_per_s: self.rate_bytes_per_s,
            path_bytes_per_s: self.highest[0].max(self.highest[1]),
        }
    }
}

fn count_missing(counters: &Counters) -> u64 {
    counters.expected_packets.saturating_sub(counters.received_packets)
}

/// Counters never go back: an answer that was overtaken, or a peer that lies, changes nothing.
fn latest_counters(old: Counters, new: Counters) -> Counters {
    Counters {
        received_packets: old.received_packets.max(new.received_packets),
        received_bytes: old.received_bytes.max(new.received_bytes),
        expected_packets: old.expected_packets.max(new.expected_packets),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn counters(received_packets: u64, lost: u64) -> Counters {
        Counters {
            received_packets,
            received_bytes: received_packets * 1000,
            expected_packets: received_packets + lost,
        }
    }

    #[test]
    fn a_path_that_was_never_congested_has_no_rate() {
        let mut meter = Meter::default();
        (0..100).for_each(|i| meter.note_told(counters(i * 1000, 0), i * S, false, i * S));
        let delivery = meter.delivery();
        assert_eq!((delivery.rate_bytes_per_s, delivery.path_bytes_per_s), (1_000_000, None));
    }

    #[test]
    fn the_path_rate_is_the_highest_while_packets_are_lost_or_queued() {
        let mut meter = Meter::default();
        meter.note_told(counters(0, 0), 0, false, 0);
        meter.note_told(counters(9000, 0), S, false, S);
        meter.note_told(counters(10_000, 10), 2 * S, false, 2 * S);
        assert_eq!(meter.delivery().path_bytes_per_s, Some(1_000_000));
        meter.note_told(counters(15_000, 10), 3 * S, true, 3 * S);
        meter.note_told(counters(17_000, 12), 4 * S, true, 4 * S);
        assert_eq!(meter.delivery().path_bytes_per_s, Some(5_000_000));
    }

    #[test]
    fn a_path_that_became_slower_is_noticed() {
        let mut meter = Meter::default();
        for i in 0..300_u64 {
            let packets = i.min(60) * 10_000 + i.saturating_sub(60) * 1000;
            meter.note_told(counters(packets, i), i * S, true, i * S);
        }
        assert_eq!(meter.delivery().path_bytes_per_s, Some(1_000_000));
    }

    #[test]
    fn sums_go_on_over_sessions() {
        let mut meter = Meter::default();
        for _ in 0..3 {
            meter.note_told(counters(100, 5), S, false, S);
            meter.note_received(counters(50, 2));
            meter.begin();
        }
        let delivery = meter.delivery();
        assert_eq!((delivery.delivered_packets, delivery.lost_out_packets), (300, 15));
        assert_eq!((delivery.received_packets, delivery.lost_in_packets), (150, 6));
    }

    #[test]
    fn answers_out_of_order_and_lies_do_no_harm() {
        let mut meter = Meter::default();
        let lie = Counters { received_packets: 3, received_bytes: u64::MAX, expected_packets: 0 };
        let tellings =
            [(counters(100, 1), 5 * S), (counters(50, 0), 4 * S), (lie, u64::MAX), (lie, 0)];
        for (told, their_ns) in tellings {
            meter.note_told(told, their_ns, true, S);
            meter.begin();
            meter.note_told(told, their_ns, true, u64::MAX);
        }
        assert!(meter.delivery().delivered_packets >= 100);
    }
}
