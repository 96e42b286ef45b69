//! Captured segments, for tests.

use std::time::Duration;

use vsnoop_testbed::capture::CapturedSegment;

/// A segment between these ports that acknowledges the first byte.
pub fn segment(
    at: Duration,
    [source_port, destination_port]: [u16; 2],
    seq: u32,
    payload_bytes: u32,
) -> CapturedSegment {
    let ack = Some(1);
    let other = CapturedSegment::default();
    CapturedSegment { at, source_port, destination_port, seq, ack, payload_bytes, ..other }
}
