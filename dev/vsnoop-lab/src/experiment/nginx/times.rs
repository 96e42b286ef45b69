//! When a request, its acknowledgement and its response passed the client's device.
//!
//! Times begin with the client's SYN, or on an open connection with the request, and end with the
//! last byte of the response (the server has confirmed, or all of a file has arrived), and with the
//! acknowledgement of the request's last byte.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use vsnoop_testbed::capture::CapturedSegment;

use crate::results::{ACKED, CONNECT, DELIVERED, RETRANSMISSIONS, Sample, ms};

/// Payload of a segment on a path of 1500 bytes, with timestamps.
const SEGMENT_BYTES: u32 = 1448;

/// Times of a request, from the client's SYN or, on an open connection, from the request on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The arrival of the SYN-ACK; zero on an open connection.
    pub connected: Duration,
    /// The arrival of the response's first byte: the VM had its turn.
    pub responded: Duration,
    /// The moment when all bytes of the response have arrived.
    pub confirmed: Duration,
    /// The arrival of the ACK of the request's last byte.
    pub acked: Duration,
    /// Segments that the client sent more than once.
    pub retransmissions: u32,
}

impl Times {
    /// All but `connect_ms` begin with the SYN-ACK.
    pub fn sample(&self) -> Sample {
        Sample::with([
            (CONNECT, ms(self.connected)),
            ("first_byte_ms", ms(self.responded.saturating_sub(self.connected))),
            (ACKED, ms(self.acked - self.connected)),
            (DELIVERED, ms(self.confirmed - self.connected)),
            (RETRANSMISSIONS, f64::from(self.retransmissions)),
        ])
    }
}

/// The requests to a server's port among the client's captured segments, in the order of their
/// connections, which were opened meanwhile.
pub fn times(segments: &[CapturedSegment], server_port: u16) -> Result<Vec<Times>> {
    let opened = segments.iter().filter(|one| one.destination_port == server_port && one.syn);
    let mut ports: Vec<u16> = opened.map(|syn| syn.source_port).collect();
    ports.dedup();
    ports.into_iter().map(|port| times_of(segments, port, server_port)).collect()
}

/// The only request, on a connection that was open before.
pub fn times_when_open(segments: &[CapturedSegment], server_port: u16) -> Result<Times> {
    let is_request =
        |one: &&CapturedSegment| one.destination_port == server_port && one.payload_bytes > 0;
    let request = segments.iter().find(is_request).context("no request was seen")?;
    times_of(segments, request.source_port, server_port)
}

/// The times of the request on the connection from this port of the client.
fn times_of(segments: &[CapturedSegment], port: u16, server_port: u16) -> Result<Times> {
    let ports = |one: &CapturedSegment| (one.source_port, one.destination_port);
    let sent = |one: &&CapturedSegment| ports(one) == (port, server_port);
    let received = |one: &&CapturedSegment| ports(one) == (server_port, port);
    let with_payload = |one: &&CapturedSegment| one.payload_bytes > 0;
    let syn = segments.iter().find(|one| sent(one) && one.syn);
    let syn_ack = segments.iter().find(|one| received(one) && one.syn);
    let request = segments.iter().find(|one| sent(one) && with_payload(one));
    let request = request.context("no request was seen")?;
    let begin = syn.unwrap_or(request).at;
    // Offsets in both streams; wrapping, as sequence numbers do.
    let offset = |number: u32| number.wrapping_sub(request.seq) as i32;
    let response_seq = request.ack.context("a request without an ACK")?;
    let (mut end, mut retransmitted_bytes) = (0, Vec::new());
    for one in segments.iter().filter(sent).filter(with_payload) {
        let begin = offset(one.seq);
        let again = (end - begin).clamp(0, one.payload_bytes as i32);
        retransmitted_bytes.push(again as u32);
        end = end.max(begin + one.payload_bytes as i32);
    }
    let acked = segments
        .iter()
        .filter(received)
        .find(|one| one.ack.is_some_and(|ack| offset(ack) >= end))
        .context("the request was not acknowledged")?;
    let is_new = |one: &&CapturedSegment| one.seq.wrapping_sub(response_seq) as i32 >= 0;
    let response = segments.iter().filter(received).filter(with_payload);
    let responded = response.clone().find(is_new).context("there was no response")?.at;
    let response = response.map(|one| {
        let begin = one.seq.wrapping_sub(response_seq) as i32;
        (one.at, begin, begin + one.payload_bytes as i32)
    });
    let confirmed = completed(response).context("there was no whole response")?;
    let connected = match syn {
        Some(_) => syn_ack.context("no SYN-ACK was seen")?.at,
        None => begin,
    };
    Ok(Times {
        connected: connected.saturating_sub(begin),
        responded: responded.saturating_sub(begin),
        confirmed: confirmed.saturating_sub(begin),
        acked: acked.at.saturating_sub(begin),
        retransmissions: retransmitted_bytes.iter().map(|n| n.div_ceil(SEGMENT_BYTES)).sum(),
    })
}

/// The arrival of the last byte that was missing of a stream, of whose segments come the times,
/// begins and ends; repeated ones, and those that overtake others, are among them.
fn completed(segments: impl Iterator<Item = (Duration, i32, i32)>) -> Option<Duration> {
    let (mut next, mut last) = (0, 0);
    let (mut ahead, mut at) = (BTreeMap::new(), None);
    for (time, begin, end) in segments {
        last = last.max(end);
        let known = ahead.entry(begin).or_insert(end);
        *known = end.max(*known);
        let before = next;
        while let Some(entry) = ahead.first_entry().filter(|entry| *entry.key() <= next) {
            next = next.max(entry.remove());
        }
        if next > before {
            at = Some(time);
        }
    }
    at.filter(|_| next == last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::segments::segment;

    const CLIENT: u16 = 40_000;
    const PORT: u16 = 80;

    fn sent(at_ms: u64, seq: u32, payload_bytes: u32) -> CapturedSegment {
        segment(Duration::from_millis(at_ms), [CLIENT, PORT], seq, payload_bytes)
    }

    /// The first of the response, unless it is changed.
    fn received(at_ms: u64, ack: u32, payload_bytes: u32) -> CapturedSegment {
        let other = sent(at_ms, 1, payload_bytes);
        CapturedSegment { source_port: PORT, destination_port: CLIENT, ack: Some(ack), ..other }
    }

    #[test]
    fn times_begin_with_the_syn_and_repeated_segments_are_counted() {
        // The numbers wrap within the request.
        let first = u32::MAX - 1000;
        let syn = CapturedSegment { syn: true, ack: None, ..sent(10, first.wrapping_sub(1), 0) };
        let second = first.wrapping_add(2000);
        let segments = [
            syn,
            CapturedSegment { syn: true, seq: 0, ..received(30, first, 0) },
            sent(31, first, 2000),
            sent(32, second, 4000),
            received(52, second, 0),
            sent(60, second, 2000),
            received(80, second.wrapping_add(4000), 0),
            received(90, second.wrapping_add(4000), 100),
            CapturedSegment { seq: 101, ..received(91, second.wrapping_add(4000), 50) },
            CapturedSegment { seq: 101, ..received(300, second.wrapping_add(4000), 50) },
        ];
        let expected = Times {
            connected: Duration::from_millis(20),
            responded: Duration::from_millis(80),
            confirmed: Duration::from_millis(81),
            acked: Duration::from_millis(70),
            retransmissions: 2,
        };
        assert_eq!(times(&segments, PORT).unwrap(), [expected]);
        assert!(times(&segments[..6], PORT).is_err());
    }

    #[test]
    fn on_an_open_connection_times_begin_with_the_request() {
        let segments = [
            // The server sends the end of the response before once more.
            CapturedSegment { seq: 5, ..received(5, 700, 95) },
            CapturedSegment { ack: Some(100), ..sent(10, 700, 50) },
            CapturedSegment { seq: 100, ..received(30, 750, 1000) },
            CapturedSegment { seq: 1100, ..received(31, 750, 500) },
        ];
        let expected = Times {
            connected: Duration::ZERO,
            responded: Duration::from_millis(20),
            confirmed: Duration::from_millis(21),
            acked: Duration::from_millis(20),
            retransmissions: 0,
        };
        assert_eq!(times_when_open(&segments, PORT).unwrap(), expected);
        assert!(times_when_open(&segments[..1], PORT).is_err());
    }

    #[test]
    fn a_response_is_complete_with_the_last_byte_that_was_missing() {
        let at = Duration::from_millis;
        let lost = [(at(1), 0, 10), (at(2), 20, 30), (at(3), 0, 10), (at(9), 10, 20)];
        assert_eq!(completed(lost.into_iter()), Some(at(9)));
        let again = lost.into_iter().chain([(at(12), 5, 25)]);
        assert_eq!(completed(again), Some(at(9)));
        assert_eq!(completed(lost[..3].iter().copied()), None);
        assert_eq!(completed(std::iter::empty()), None);
    }
}
