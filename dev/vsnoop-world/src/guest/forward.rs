//! A VM that forwards: its far end is a host one hop behind it, at a link with a rate, a queue and
//! a delay.

use std::collections::VecDeque;

use fastrand::Rng;
use vsnoop_packet::headers::Headers;
use vsnoop_packet::offload::{OffloadState, Split};

use super::tcp::{Guest, Progress};
use crate::frame::{Frame, Summed};
use crate::too_big;

/// The link behind the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub mbps: u64,
    /// Length of the queue before it, bytes.
    pub queue: u64,
    /// One way.
    pub delay_ns: u64,
    /// A longer IP packet is dropped and reported (RFC 1191); none: any fits.
    pub mtu: Option<u16>,
}

/// Offset of TTL or hop limit in the IP header, and of the header checksum of IPv4.
const TTL4: usize = 8;
const CHECKSUM4: usize = 10;
const HOP_LIMIT: usize = 7;

#[derive(Clone, Debug)]
pub struct Forwarder {
    link: Link,
    far: Box<dyn Guest>,
    /// Frames on their way to the far end, with the times at which they have left the queue and at
    /// which they arrive.
    there: VecDeque<(u64, u64, Frame)>,
    /// Frames on their way back.
    back: VecDeque<(u64, Frame)>,
    busy_until: u64,
    /// TCP payload that the VM has put on the link, lost bytes too.
    sent: u64,
    out: Vec<Frame>,
}

impl Forwarder {
    pub fn new(link: Link, far: Box<dyn Guest>) -> Self {
        let (there, back) = Default::default();
        Self { link, far, there, back, busy_until: 0, sent: 0, out: Vec::new() }
    }

    /// A frame, or one segment of a super-packet, comes to the queue.
    fn carry(&mut self, now: u64, frame: Frame) {
        if let Some(report) = self.link.mtu.and_then(|mtu| too_big::report(&frame, mtu)) {
            self.out.push(report);
            return;
        }
        self.sent += payload_bytes(&frame);
        let waits = self.there.iter().filter(|(left, ..)| *left > now);
        let queued: u64 = waits.map(|(_, _, frame)| frame.bytes.len() as u64).sum();
        let bytes = frame.bytes.len() as u64;
        if queued > 0 && queued + bytes > self.link.queue {
            return;
        }
        self.busy_until = self.busy_until.max(now) + bytes * 8_000 / self.link.mbps;
        let arrives = self.busy_until + self.link.delay_ns;
        self.there.push_back((self.busy_until, arrives, frame));
    }

    /// Sends the far end's output on its way.
    fn hear(&mut self, now: u64) {
        let arrives = now + self.link.delay_ns;
        self.back.extend(self.far.output().into_iter().map(|frame| (arrives, one_hop_on(frame))));
    }
}

impl Guest for Forwarder {
    fn open(&mut self, c: usize, now: u64) {
        self.far.open(c, now);
        self.hear(now);
    }

    fn abort(&mut self, c: usize) {
        self.far.abort(c);
    }

    fn input(&mut self, now: u64, frame: &Frame, _rng: &mut Rng) {
        for segment in segments(frame) {
            self.carry(now, segment);
        }
    }

    fn timers(&mut self, now: u64, rng: &mut Rng) {
        while self.there.front().is_some_and(|(_, arrives, _)| *arrives <= now) {
            if let Some((_, _, frame)) = self.there.pop_front() {
                self.far.input(now, &frame, rng);
            }
        }
        self.far.timers(now, rng);
        self.hear(now);
        while self.back.front().is_some_and(|(arrives, _)| *arrives <= now) {
            self.out.extend(self.back.pop_front().map(|(_, frame)| frame));
        }
    }

    fn next_timer(&mut self, now: u64) -> Option<u64> {
        let there = self.there.front().map(|(_, arrives, _)| *arrives);
        let back = self.back.front().map(|(arrives, _)| *arrives);
        let next = [there, back, self.far.next_timer(now)].into_iter().flatten().min();
        // After a roll-back frames are on their way whose time is over.
        next.map(|at| at.max(now))
    }

    fn output(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.out)
    }

    fn progress(&self, c: usize) -> Progress {
        self.far.progress(c)
    }

    fn leg_bytes(&self) -> u64 {
        self.sent
    }

    fn copy(&self) -> Box<dyn Guest> {
        Box::new(self.clone())
    }
}

fn payload_bytes(frame: &Frame) -> u64 {
    Headers::parse(&frame.bytes).map_or(0, |headers| headers.payload_bytes() as u64)
}

/// The segments of a super-packet; any other frame is whole.
fn segments(frame: &Frame) -> Vec<Frame> {
    let whole = || vec![frame.clone()];
    let Some(headers) = Headers::parse(&frame.bytes).filter(|_| frame.gso_size > 0) else {
        return whole();
    };
    let offload =
        OffloadState { needs_checksum: frame.summed == Summed::Partial, ..Split::OFFLOAD };
    let size = frame.gso_size as usize;
    let Some(mut split) = Split::of_size(offload, &headers, &frame.bytes, size) else {
        return whole();
    };
    let mut out = vec![0; split.piece_bytes()];
    let pieces = std::iter::from_fn(|| {
        let bytes = split.next(&mut out)?;
        let mut piece = Frame { gso_size: 0, summed: Summed::Partial, ..frame.clone() };
        piece.bytes = out[..bytes].to_vec();
        piece.linear = bytes as u32;
        Some(piece)
    });
    pieces.collect()
}

/// The frame after a router.
fn one_hop_on(mut frame: Frame) -> Frame {
    let Some(headers) = Headers::parse(&frame.bytes) else { return frame };
    let ip = usize::from(headers.ip);
    if headers.v6 {
        frame.bytes[ip + HOP_LIMIT] -= 1;
        return frame;
    }
    frame.bytes[ip + TTL4] -= 1;
    // The word with TTL and protocol changes the checksum (RFC 1141).
    let at = ip + CHECKSUM4;
    let sum = u32::from(u16::from_be_bytes([frame.bytes[at], frame.bytes[at + 1]])) + 0x100;
    let sum = (sum & 0xffff) + (sum >> 16);
    frame.bytes[at..at + 2].copy_from_slice(&(sum as u16).to_be_bytes());
    frame
}
