//! The way of each segment of a transfer through the host, from a capture on all of its devices.
//!
//! Data come in at the uplink and go out at the VM's tap; ACKs come in at the tap and go out at the
//! uplink. When the VM made an ACK says the timestamp in it (RFC 7323, milliseconds of the VM's
//! clock), which the smallest difference to the arrivals at the tap translates into the host's
//! time: the fastest ACK of a transfer counts as one that took no time, and all others are relative
//! to it.

use std::time::Duration;

use vsnoop_testbed::capture::CapturedSegment;

use crate::results::{Label, Sample};

/// Milliseconds: in the host, and between tap and VM.
#[derive(Debug, Default, PartialEq)]
pub struct Passed {
    /// Times of each segment with data.
    pub received: Vec<[f64; 2]>,
    /// Times of each ACK.
    pub sent: Vec<[f64; 2]>,
}

impl Passed {
    /// A sample for each segment that the VM received (`rx`) and sent (`tx`).
    pub fn samples(&self) -> Vec<Sample> {
        let sample = |what: &str, [host_ms, vm_ms]: [f64; 2]| Sample {
            what: Label::from(what).ok(),
            ..Sample::with([("host_ms", host_ms), ("vm_ms", vm_ms)])
        };
        let received = self.received.iter().map(|times| sample("rx", *times));
        received.chain(self.sent.iter().map(|times| sample("tx", *times))).collect()
    }
}

/// An ACK of the VM at its tap, and when it was made.
struct Acknowledgement {
    offset: i64,
    made_ms: f64,
}

/// The only connection among the segments; nothing if there is none.
pub fn match_up(segments: &[CapturedSegment]) -> Option<Passed> {
    let syn = segments.iter().find(|one| one.syn && one.ack.is_none())?;
    let (port, begin) = (syn.source_port, syn.at);
    // Wrapping, as sequence numbers do.
    let offset = |number: u32| i64::from(number.wrapping_sub(syn.seq.wrapping_add(1)) as i32);
    let ms = |at: Duration| at.saturating_sub(begin).as_secs_f64() * 1e3;
    let acks_at = |outgoing: bool| {
        let is_ack = move |one: &&CapturedSegment| {
            one.destination_port == port && !one.syn && one.outgoing == outgoing
        };
        segments.iter().filter(is_ack)
    };
    // The VM's clock, in the host's time.
    let clock = |one: &CapturedSegment| Some(ms(one.at) - f64::from(one.timestamp?));
    let shift = acks_at(false).filter_map(clock).fold(f64::INFINITY, f64::min);
    let made = |one: &CapturedSegment| Some(f64::from(one.timestamp?) + shift);
    let acks: Vec<_> = acks_at(false)
        .filter_map(|one| Some(Acknowledgement { offset: offset(one.ack?), made_ms: made(one)? }))
        .collect();
    let mut passed = Passed::default();
    let data_at = |outgoing: bool| {
        let is_data = move |one: &&CapturedSegment| {
            one.source_port == port && one.payload_bytes > 0 && one.outgoing == outgoing
        };
        segments.iter().filter(is_data)
    };
    for tap in data_at(true) {
        let same = |one: &&CapturedSegment| one.seq == tap.seq && one.at <= tap.at;
        let end = offset(tap.seq) + i64::from(tap.payload_bytes);
        let ack = acks.iter().find(|ack| ack.offset >= end);
        if let (Some(uplink), Some(ack)) = (data_at(false).rfind(same), ack) {
            let vm_ms = (ack.made_ms - ms(tap.at)).max(0.0);
            passed.received.push([ms(tap.at) - ms(uplink.at), vm_ms]);
        }
    }
    for tap in acks_at(false) {
        let same = |one: &&CapturedSegment| {
            (one.ack, one.timestamp) == (tap.ack, tap.timestamp) && one.at >= tap.at
        };
        if let (Some(uplink), Some(made_ms)) = (acks_at(true).find(same), made(tap)) {
            passed.sent.push([ms(uplink.at) - ms(tap.at), ms(tap.at) - made_ms]);
        }
    }
    Some(passed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::segments::segment;

    fn data(at_us: u64, outgoing: bool, seq: u32) -> CapturedSegment {
        let at = Duration::from_micros(at_us);
        CapturedSegment { outgoing, ..segment(at, [7, 80], seq, 1000) }
    }

    fn ack(at_us: u64, outgoing: bool, ack: u32, timestamp: u32) -> CapturedSegment {
        let (ack, timestamp) = (Some(ack), Some(timestamp));
        let other = segment(Duration::from_micros(at_us), [80, 7], 0, 0);
        CapturedSegment { ack, timestamp, outgoing, ..other }
    }

    #[test]
    fn times_are_split_at_the_tap_and_by_the_clock_of_the_vm() {
        let syn = CapturedSegment { syn: true, ack: None, payload_bytes: 0, ..data(0, false, 99) };
        let segments = [
            syn,
            data(1_000, false, 100),
            data(1_250, true, 100),
            // The VM made it 30 ms later by its clock, and it took no time to the tap.
            ack(31_250, false, 1100, 5030),
            ack(31_500, true, 1100, 5030),
            data(40_000, false, 1100),
            data(40_500, true, 1100),
            // Made 10 ms after the first one, at the tap 20 ms after it.
            ack(51_250, false, 2100, 5040),
            ack(52_250, true, 2100, 5040),
        ];
        let passed = match_up(&segments).unwrap();
        let near = |found: &[[f64; 2]], expected: &[[f64; 2]]| {
            let pairs = found.iter().flatten().zip(expected.iter().flatten());
            found.len() == expected.len()
                && pairs.fold(true, |ok, (a, b)| ok && (a - b).abs() < 1e-6)
        };
        assert!(near(&passed.received, &[[0.25, 30.0], [0.5, 0.75]]), "{passed:?}");
        assert!(near(&passed.sent, &[[0.25, 0.0], [1.0, 10.0]]), "{passed:?}");
        assert!(match_up(&segments[1..]).is_none());
    }
}
