//! Progress of the clients' connections, from captured segments at their device.

use std::collections::HashMap;
use std::time::Duration;

use vsnoop_guest::transfer;
use vsnoop_testbed::capture::CapturedSegment;

/// Between two values of the progress.
const STEP: Duration = Duration::from_millis(50);
/// Progress that is kept, before and after the switch.
const BEFORE: Duration = Duration::from_secs(3);
const AFTER: Duration = Duration::from_secs(8);
/// Pauses that are kept.
const SHORTEST: Duration = Duration::from_millis(20);

/// Connections by the client's port. Times are since 1970.
#[derive(Debug, Default)]
pub struct Watch {
    connections: HashMap<u16, Connection>,
    acked: Vec<Acked>,
    pauses: Vec<Pause>,
}

#[derive(Debug)]
struct Connection {
    /// Next byte to send, and the highest acknowledged one.
    next: u32,
    acked: u32,
    /// Since when the oldest outstanding byte has waited.
    since: Duration,
    last_seen: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Acked {
    at: Duration,
    bytes: u64,
}

/// A time in which a connection had data outstanding and none of them was acknowledged.
#[derive(Clone, Copy, Debug)]
struct Pause {
    begin: Duration,
    end: Duration,
}

impl Watch {
    pub fn see(&mut self, segments: &[CapturedSegment]) {
        for segment in segments {
            let port = if segment.destination_port == transfer::PORT {
                self.sent(segment);
                segment.source_port
            } else if segment.source_port == transfer::PORT {
                self.received(segment);
                segment.destination_port
            } else {
                continue;
            };
            if segment.rst {
                self.close(port);
            }
        }
    }

    fn sent(&mut self, segment: &CapturedSegment) {
        let port = segment.source_port;
        if segment.syn {
            self.close(port);
            let first = segment.seq.wrapping_add(1);
            let (since, last_seen) = (segment.at, segment.at);
            let connection = Connection { next: first, acked: first, since, last_seen };
            self.connections.insert(port, connection);
            return;
        }
        // One that was open before is not watched.
        let Some(connection) = self.connections.get_mut(&port) else { return };
        connection.last_seen = segment.at;
        let end = segment.seq.wrapping_add(segment.payload_bytes);
        if is_after(end, connection.next) {
            if connection.next == connection.acked {
                connection.since = segment.at;
            }
            connection.next = end;
        }
    }

    fn received(&mut self, segment: &CapturedSegment) {
        let Some(connection) = self.connections.get_mut(&segment.destination_port) else { return };
        connection.last_seen = segment.at;
        let Some(ack) = segment.ack.filter(|ack| is_after(*ack, connection.acked)) else { return };
        // A FIN, which the ACK may cover as well, is no byte of the stream.
        let ack = if is_after(ack, connection.next) { connection.next } else { ack };
        let bytes = u64::from(ack.wrapping_sub(connection.acked));
        if bytes == 0 {
            return;
        }
        self.pauses.extend(connection.pause(segment.at));
        self.acked.push(Acked { at: segment.at, bytes });
        connection.acked = ack;
        connection.since = segment.at;
    }

    /// Data that were outstanding when a connection ended have waited until then.
    fn close(&mut self, port: u16) {
        let Some(connection) = self.connections.remove(&port) else { return };
        if connection.next != connection.acked {
            self.pauses.extend(connection.pause(connection.last_seen));
        }
    }

    /// The longest pause that has a moment between these two times.
    pub fn longest_pause(&mut self, from: Duration, to: Duration) -> Duration {
        let ports: Vec<_> = self.connections.keys().copied().collect();
        ports.into_iter().for_each(|port| self.close(port));
        let touching = self.pauses.iter().filter(|pause| pause.begin < to && pause.end > from);
        touching.map(|pause| pause.end - pause.begin).max().unwrap_or_default()
    }

    /// The progress around this time: milliseconds since, and bytes that host or guest have
    /// acknowledged to all clients together.
    pub fn progress(&self, around: Duration) -> Vec<(f64, f64)> {
        let mut total_bytes: u64 = 0;
        let mut acked = self.acked.iter().peekable();
        let begin = around.saturating_sub(BEFORE);
        while acked.next_if(|one| one.at < begin).is_some() {}
        let steps = (BEFORE + AFTER).as_millis() / STEP.as_millis();
        (0..=steps as u32)
            .map(|step| {
                let at = begin + STEP * step;
                while let Some(one) = acked.next_if(|one| one.at <= at) {
                    total_bytes += one.bytes;
                }
                let at_ms = (at.as_secs_f64() - around.as_secs_f64()) * 1e3;
                (at_ms.round(), total_bytes as f64)
            })
            .collect()
    }
}

impl Connection {
    fn pause(&self, end: Duration) -> Option<Pause> {
        let long = end.saturating_sub(self.since) >= SHORTEST;
        long.then_some(Pause { begin: self.since, end })
    }
}

/// Whether sequence number `a` is after `b`.
fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::segments::segment;

    const CLIENT: u16 = 40_000;

    fn sent(at_ms: u64, seq: u32, payload_bytes: u32) -> CapturedSegment {
        segment(Duration::from_millis(at_ms), [CLIENT, transfer::PORT], seq, payload_bytes)
    }

    fn acked(at_ms: u64, ack: u32) -> CapturedSegment {
        let other = segment(Duration::from_millis(at_ms), [transfer::PORT, CLIENT], 1, 0);
        CapturedSegment { ack: Some(ack), ..other }
    }

    fn watch(segments: &[CapturedSegment]) -> Watch {
        let mut watch = Watch::default();
        watch.see(&[CapturedSegment { syn: true, ..sent(10_000, u32::MAX, 0) }]);
        watch.see(segments);
        watch
    }

    #[test]
    fn a_pause_counts_only_where_data_is_outstanding_and_the_switch_falls_into_it() {
        let at = Duration::from_millis;
        let mut watch = watch(&[
            sent(10_100, 0, 1000),
            acked(10_400, 1000),
            // Nothing is outstanding for a second.
            sent(11_400, 1000, 1000),
            sent(11_500, 1000, 1000),
            acked(12_100, 2000),
        ]);
        assert_eq!(watch.longest_pause(at(10_000), at(13_000)), at(700));
        assert_eq!(watch.longest_pause(at(10_000), at(11_000)), at(300));
        assert_eq!(watch.longest_pause(at(10_500), at(11_000)), at(0));
        let progress = watch.progress(at(11_000));
        let at_switch = progress.iter().find(|(ms, _)| *ms == 0.0);
        let bytes = [at_switch, progress.last()].map(|point| point.map(|(_, bytes)| *bytes));
        assert_eq!(bytes, [Some(1000.0), Some(2000.0)]);
    }

    #[test]
    fn what_was_never_acknowledged_has_waited_until_the_connection_ended() {
        let at = Duration::from_millis;
        let reset = CapturedSegment { rst: true, ..acked(19_100, 0) };
        let mut watch = watch(&[sent(10_100, 0, 1000), reset, acked(25_000, 0)]);
        assert_eq!(watch.longest_pause(at(11_000), at(11_100)), at(9000));
    }
}
