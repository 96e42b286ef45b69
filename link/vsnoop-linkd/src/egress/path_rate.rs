//! The delivery rate of a connection's path.
//!
//! It can be measured only while the path is the bottleneck: while the socket is full, or the round
//! trip shows that packets are queued on the path. The bytes acknowledged between two such moments,
//! close to each other, are what the path carried. The first moment takes the kernel's estimate
//! (`tcpi_delivery_rate`, of about one round trip).
//!
//! A path that is not busy may have become faster, while compression for a slow path keeps it idle.
//! After ten seconds in which more was carried than the path could have carried uncompressed, the
//! rate is unknown again, and uncompressed data soon show it. A mere pause leaves the rate valid.

use crate::io::tcp::Sending;

/// Shortest interval between two looks at the socket.
const LOOK_NS: u64 = 3_000_000;
/// Moments further apart than this are not compared.
const APART_NS: u64 = 40_000_000;
/// Least time over which a rate is measured; the first sample may take less.
const SPAN_NS: u64 = 20_000_000;
const FIRST_SPAN_NS: u64 = 5_000_000;
/// How long a rate is believed while the path is not busy, and in how many seconds' bytes.
const KEPT_NS: u64 = 10_000_000_000;
const KEPT_S: u64 = 10;
/// A round trip shows a queue if it is so much longer than the shortest ..
const QUEUE_US: u32 = 1000;
/// .. and if this number of packets is in flight: a single one may wait for a delayed ACK.
const QUEUE_PACKETS: u32 = 16;

#[derive(Debug, Default)]
pub struct PathRate {
    bytes_per_s: Option<u64>,
    /// Whether the rate was measured here, and is not the kernel's estimate.
    measured: bool,
    /// A busy moment, and what had been acknowledged then.
    mark: Option<(u64, u64)>,
    looked_ns: u64,
    /// The last busy moment, and what was carried since then, before compression.
    busy_ns: u64,
    carried_bytes: u64,
}

impl PathRate {
    /// Bytes per second; `None`: unknown.
    pub fn bytes_per_s(&self) -> Option<u64> {
        self.bytes_per_s
    }

    /// Another connection of the same path has learned its rate; 0 if none has. It is taken where
    /// nothing is known; `true`: it was.
    pub fn suppose_rate(&mut self, bytes_per_s: u64) -> bool {
        let taken = self.bytes_per_s.is_none() && bytes_per_s > 0;
        if taken {
            self.bytes_per_s = Some(bytes_per_s);
        }
        taken
    }

    /// Notes `bytes` as queued for the path, compressed or not.
    pub fn note_carried(&mut self, bytes: u64) {
        self.carried_bytes = self.carried_bytes.saturating_add(bytes);
    }

    /// It is time to [`take_sample`](Self::take_sample) again.
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.looked_ns.saturating_add(LOOK_NS)
    }

    /// Looks at a connection while it sends; `full`: its socket takes no more. `true`: the rate is
    /// another than before.
    pub fn take_sample(&mut self, full: bool, sending: Option<Sending>, now_ns: u64) -> bool {
        let apart =
            now_ns.saturating_sub(std::mem::replace(&mut self.looked_ns, now_ns)) > APART_NS;
        let before = self.bytes_per_s;
        let long_ago = now_ns >= self.busy_ns.saturating_add(KEPT_NS);
        if long_ago && self.carried_bytes / KEPT_S > before.unwrap_or(0) {
            (self.bytes_per_s, self.measured) = (None, false);
        }
        match sending {
            Some(sending) if full || waits_on_the_way(&sending) => {
                self.busy(apart, &sending, now_ns)
            }
            _ => self.mark = None,
        }
        self.bytes_per_s != before
    }

    fn busy(&mut self, apart: bool, sending: &Sending, now_ns: u64) {
        (self.busy_ns, self.carried_bytes) = (now_ns, 0);
        let mark = self.mark.filter(|_| !apart);
        let (since_ns, acked) = *self.mark.insert(mark.unwrap_or((now_ns, sending.acked_bytes)));
        let span_ns = now_ns.saturating_sub(since_ns);
        if span_ns >= if self.measured { SPAN_NS } else { FIRST_SPAN_NS } {
            self.mark = Some((now_ns, sending.acked_bytes));
            let bytes = u128::from(sending.acked_bytes.saturating_sub(acked));
            let now = (bytes * 1_000_000_000 / u128::from(span_ns)) as u64;
            // The kernel's estimate may have been of a burst.
            let before = self.bytes_per_s.filter(|_| self.measured).unwrap_or(now);
            self.measured = true;
            // A path that stood still for a moment is not one without end.
            self.bytes_per_s = Some((before - before / 4 + now / 4).max(1));
        } else if self.bytes_per_s.is_none() {
            self.bytes_per_s = (sending.rate_bytes_per_s > 0).then_some(sending.rate_bytes_per_s);
        }
    }
}

fn waits_on_the_way(sending: &Sending) -> bool {
    let least_us = sending.least_round_trip_us;
    let queued_us = sending.round_trip_us.saturating_sub(least_us);
    sending.in_flight_packets >= QUEUE_PACKETS && queued_us >= QUEUE_US.max(least_us / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const IDLE: Sending = Sending {
        acked_bytes: 0,
        rate_bytes_per_s: 0,
        in_flight_packets: 100,
        round_trip_us: 1100,
        least_round_trip_us: 1000,
    };

    /// Looks each millisecond while `bytes` of each are acknowledged.
    fn busy(rate: &mut PathRate, from_ms: u64, to_ms: u64, bytes: u64) {
        for ms in from_ms..=to_ms {
            rate.take_sample(true, Some(Sending { acked_bytes: ms * bytes, ..IDLE }), ms * MS);
        }
    }

    #[test]
    fn what_is_acknowledged_while_the_socket_is_full_is_what_the_path_takes() {
        let mut rate = PathRate::default();
        busy(&mut rate, 0, 4, 12_500);
        assert_eq!(rate.bytes_per_s(), None);
        busy(&mut rate, 5, 100, 12_500);
        assert_eq!(rate.bytes_per_s(), Some(12_500_000));
    }

    #[test]
    fn packets_that_wait_on_the_way_are_as_good_as_a_full_socket() {
        let mut rate = PathRate::default();
        for ms in 0..100 {
            let sending = Sending { acked_bytes: ms * 1000, round_trip_us: 3000, ..IDLE };
            rate.take_sample(false, Some(sending), ms * MS);
        }
        assert_eq!(rate.bytes_per_s(), Some(1_000_000));
    }

    #[test]
    fn a_lonely_packet_that_is_acknowledged_late_says_nothing() {
        let mut rate = PathRate::default();
        for ms in 0..100 {
            let sending = Sending {
                acked_bytes: ms,
                rate_bytes_per_s: 1000,
                in_flight_packets: 2,
                round_trip_us: 40_000,
                ..IDLE
            };
            rate.take_sample(false, Some(sending), ms * MS);
        }
        assert_eq!(rate.bytes_per_s(), None);
    }

    #[test]
    fn what_is_sent_while_nothing_waits_says_nothing() {
        let mut rate = PathRate::default();
        for ms in 0..1000 {
            rate.take_sample(
                ms % 10 == 0,
                Some(Sending { acked_bytes: ms * 100, ..IDLE }),
                ms * MS,
            );
        }
        assert_eq!(rate.bytes_per_s(), None);
    }

    #[test]
    fn what_was_between_busy_moments_that_are_far_apart_is_not_known() {
        let mut rate = PathRate::default();
        for ms in (0..1000).step_by(100) {
            rate.take_sample(true, Some(Sending { acked_bytes: ms * 100, ..IDLE }), ms * MS);
        }
        assert_eq!(rate.bytes_per_s(), None);
    }

    #[test]
    fn the_kernel_is_believed_until_there_is_a_measurement() {
        let mut rate = PathRate::default();
        assert!(rate.take_sample(
            true,
            Some(Sending { acked_bytes: 1000, rate_bytes_per_s: 7, ..IDLE }),
            MS
        ));
        assert_eq!(rate.bytes_per_s(), Some(7));
        busy(&mut rate, 2, 40, 1000);
        let measured = rate.bytes_per_s().expect("busy for 40 ms");
        assert!((900_000..1_100_000).contains(&measured), "{measured}");
    }

    #[test]
    fn a_path_that_became_slower_is_noticed() {
        let mut rate = PathRate::default();
        busy(&mut rate, 0, 200, 10_000);
        for ms in 200..1000 {
            let sending = Sending { acked_bytes: 2_000_000 + ms * 100, ..IDLE };
            rate.take_sample(true, Some(sending), ms * MS);
        }
        let measured = rate.bytes_per_s().expect("busy");
        assert!(measured < 110_000, "{measured}");
    }

    #[test]
    fn what_was_long_enough_for_more_than_the_path_takes_is_forgotten() {
        let mut rate = PathRate::default();
        busy(&mut rate, 0, 100, 1000);
        rate.note_carried(12_000_000);
        assert!(!rate.take_sample(false, Some(IDLE), 9000 * MS));
        assert!(rate.take_sample(false, Some(IDLE), 10_200 * MS));
        assert_eq!(rate.bytes_per_s(), None);
    }

    #[test]
    fn after_a_pause_the_path_is_believed_to_be_as_before() {
        let mut rate = PathRate::default();
        busy(&mut rate, 0, 100, 1000);
        rate.note_carried(1_000_000);
        assert!(!rate.take_sample(false, Some(IDLE), 1_000_000 * MS));
        assert_eq!(rate.bytes_per_s(), Some(1_000_000));
    }
}
