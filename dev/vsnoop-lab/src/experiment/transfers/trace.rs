//! How far a transfer has come at each moment, from a capture of the client.

use std::time::Duration;

use vsnoop_testbed::capture::CapturedSegment;

use crate::results::Sample;
use crate::results::statistics::{ascending, percentile};

/// Milliseconds since the SYN, and bytes of the stream.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The end of each segment that the sender sent.
    sent: Vec<(f64, f64)>,
    /// Each acknowledgement that the sender received.
    acked: Vec<(f64, f64)>,
}

/// The client's progress since its SYN.
pub fn trace(segments: &[CapturedSegment]) -> Option<Trace> {
    let syn = segments.iter().find(|one| one.syn && one.ack.is_none())?;
    let port = syn.source_port;
    // Wrapping, as sequence numbers do.
    let offset = |number: u32| f64::from(number.wrapping_sub(syn.seq.wrapping_add(1)) as i32);
    let ms = |at: Duration| at.saturating_sub(syn.at).as_secs_f64() * 1e3;
    let mut trace = Trace::default();
    for one in segments {
        if one.source_port == port && one.payload_bytes > 0 {
            let end = offset(one.seq) + f64::from(one.payload_bytes);
            trace.sent.push((ms(one.at), end));
        }
        if one.destination_port == port && !one.syn {
            trace.acked.extend(one.ack.map(|ack| (ms(one.at), offset(ack))));
        }
    }
    Some(trace)
}

impl Trace {
    pub fn add_to(self, sample: &mut Sample) {
        sample.values.extend(self.wait_ms().map(|wait_ms| ("wait_ms".to_owned(), wait_ms)));
        sample.traces = [("sent".to_owned(), self.sent), ("acked".into(), self.acked)].into();
    }

    /// The median of the times from what was sent to the first acknowledgement of all of it.
    fn wait_ms(&self) -> Option<f64> {
        let wait = |&(sent_ms, end): &(f64, f64)| {
            let acked = self.acked.iter().filter(|(ms, acked)| *acked >= end && *ms >= sent_ms);
            acked.map(|(ms, _)| ms - sent_ms).reduce(f64::min)
        };
        percentile(&ascending(self.sent.iter().filter_map(wait)), 50.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::segments::segment;

    #[test]
    fn a_trace_counts_from_the_syn_also_when_numbers_wrap() {
        let at = |ms, source_port, seq: u32, ack, payload_bytes, syn| {
            let ports = [source_port, if source_port == 7 { 80 } else { 7 }];
            let other = segment(Duration::from_millis(ms), ports, seq, payload_bytes);
            CapturedSegment { ack, syn, ..other }
        };
        let first = u32::MAX - 99;
        let segments = [
            at(5, 7, first.wrapping_sub(1), None, 0, true),
            at(6, 80, 0, Some(first), 0, true),
            at(7, 7, first, Some(1), 1000, false),
            at(9, 80, 1, Some(first.wrapping_add(1000)), 0, false),
        ];
        let trace = trace(&segments).unwrap();
        assert_eq!(trace.sent, [(2.0, 1000.0)]);
        assert_eq!(trace.acked, [(4.0, 1000.0)]);
        assert_eq!(trace.wait_ms(), Some(2.0));
    }
}
