//! Forwards frames in one direction of a relay: reads, retags, applies faults, delays, writes.
//!
//! Without faults a frame goes from tap to tap through one buffer, untouched. With faults it may
//! become none or several packets; those that must wait stand in a heap ordered by their time, then
//! by their arrival.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vsnoop_packet::edit;
use vsnoop_packet::format::{ECE, SYN, Tag};
use vsnoop_packet::headers::Headers;
use vsnoop_packet::packet::{Packet, Pool};
use vsnoop_packet::segment;

use super::bottleneck::{Queue, Verdict};
use super::control::Control;
use super::counters::{add, count};
use super::faults::{Faults, Freeze};
use super::forgery::{self, Source};
use super::queues::Queues;

/// Frames, and bytes, read before the other direction is served: no answer waits for longer than
/// some 0.1 ms behind data.
const BATCH_FRAMES: usize = 64;
const BATCH_BYTES: usize = 256 * 1024;
/// Frames that may wait for their time: 64 MB of the largest.
const WAITING_FRAMES: usize = 1024;
/// The least time from the latest possible datagram to its forgery.
const BEHIND: Duration = Duration::from_millis(1);
/// Bytes before the IP header, without tags.
const ETHERNET_BYTES: usize = 14;
/// A unicast address that no device of a testbed has.
const NOBODY: [u8; 6] = [2, 0x76, 0x73, 0xff, 0xff, 0xff];

pub(super) struct Forwarder {
    pub control: Arc<Control>,
    pub from_tags: Vec<Tag>,
    pub to_tags: Vec<Tag>,
    pub random: fastrand::Rng,
    faults: Faults,
    generation: u64,
    started: Instant,
    pool: Pool,
    cut: Vec<Packet>,
    whole: Vec<Packet>,
    waiting: BinaryHeap<Reverse<Waiting>>,
    arrivals: u64,
    queue: Queue,
}

struct Waiting {
    until: Instant,
    arrival: u64,
    packet: Packet,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.until, self.arrival).cmp(&(other.until, other.arrival))
    }
}

/// The next events of a forwarder.
pub(super) struct Next {
    /// The tap it reads may be polled.
    pub readable: bool,
    /// More frames may wait already.
    pub busy: bool,
    /// A frame is due at this time.
    pub at: Option<Instant>,
}

impl Forwarder {
    pub fn new(control: Arc<Control>, from_tags: &[Tag], to_tags: &[Tag], seed: u64) -> Self {
        Self {
            control,
            from_tags: from_tags.to_vec(),
            to_tags: to_tags.to_vec(),
            random: fastrand::Rng::with_seed(seed),
            faults: Faults::default(),
            generation: 0,
            started: Instant::now(),
            pool: Pool::default(),
            cut: Vec::new(),
            whole: Vec::new(),
            waiting: BinaryHeap::new(),
            arrivals: 0,
            queue: Queue::default(),
        }
    }

    /// Forwards the frames that can be moved now.
    pub fn forward(&mut self, from: &Queues, to: &Queues) -> std::io::Result<Next> {
        self.control.refresh(&mut self.generation, &mut self.faults);
        let (frozen, change) = self.frozen(Instant::now());
        if frozen {
            return Ok(Next { readable: false, busy: false, at: change });
        }
        self.release(to);
        let mut busy = false;
        for queue in 0..from.count() {
            busy |= self.read(from, queue, to)?;
        }
        let due = self.waiting.peek().map(|Reverse(first)| first.until);
        let at = [due, change].into_iter().flatten().min();
        Ok(Next { readable: true, busy, at })
    }

    /// Moves a batch of one queue; returns whether more frames may wait.
    fn read(&mut self, from: &Queues, queue: usize, to: &Queues) -> std::io::Result<bool> {
        let (mut read, mut bytes) = (0, 0);
        while read < BATCH_FRAMES && bytes < BATCH_BYTES {
            let mut packet = self.pool.take();
            if !from.read(queue, &mut packet)? {
                self.pool.give_back(packet);
                return Ok(false);
            }
            read += 1;
            bytes += packet.frame().len();
            if queue > 0 {
                count(&self.control.counters.other_queues);
            }
            self.pass(packet, to);
        }
        Ok(true)
    }

    /// Whether the relay must not read now, and until when.
    fn frozen(&self, now: Instant) -> (bool, Option<Instant>) {
        match self.faults.freeze {
            Freeze::Never => (false, None),
            Freeze::Now => (true, None),
            Freeze::Periodic { frozen, period } => {
                let running = period.saturating_sub(frozen);
                let period_ns = period.as_nanos().max(1);
                let into = now.duration_since(self.started).as_nanos() % period_ns;
                let into = Duration::from_nanos(into as u64);
                if into < running {
                    (false, Some(now + (running - into)))
                } else {
                    (true, Some(now + (period - into)))
                }
            }
        }
    }

    fn pass(&mut self, mut packet: Packet, to: &Queues) {
        let counters = &self.control.counters;
        count(&counters.frames);
        add(&counters.bytes, packet.frame().len() as u64);
        add(&counters.payload_bytes, payload_bytes(packet.frame()));
        if packet.header.is_super_packet() {
            count(&counters.super_packets);
        }
        if !self.retag(&mut packet) {
            count(&self.control.counters.untagged);
            self.pool.give_back(packet);
        } else if self.faults.leave_frames_alone() {
            self.write(packet, to);
        } else {
            self.harm(packet, to);
        }
    }

    fn retag(&mut self, packet: &mut Packet) -> bool {
        self.from_tags.iter().all(|tag| edit::pop_tag(packet, *tag))
            && self.to_tags.iter().rev().all(|tag| edit::push_tag(packet, *tag))
    }

    fn harm(&mut self, packet: Packet, to: &Queues) {
        if self.faults.data_only && !carries_data(packet.frame()) {
            return self.send(packet, to);
        }
        let mut packets = std::mem::take(&mut self.whole);
        if self.hits(self.faults.corrupt) {
            segment::segment_as_named(packet, &mut self.pool, &mut packets);
            let victim = self.random.usize(..packets.len());
            self.flip_a_bit(&mut packets[victim]);
        } else if let Some(segment_bytes) = self.faults.segment_bytes {
            segment::segment(packet, segment_bytes, &mut self.pool, &mut packets);
        } else if self.faults.cut_super_packets() {
            segment::segment_as_named(packet, &mut self.pool, &mut packets);
        } else if self.faults.segment_loss > 0.0 {
            self.lose_segments(packet, &mut packets);
        } else {
            packets.push(packet);
        }
        for packet in packets.drain(..) {
            self.harm_one(packet, to);
        }
        self.whole = packets;
    }

    /// Drops some segments of a packet and appends the others to `left`; an intact super-packet
    /// stays whole.
    fn lose_segments(&mut self, packet: Packet, left: &mut Vec<Packet>) {
        let segments = segments_of(&packet);
        let lost: Vec<_> = (0..segments).map(|_| self.hits(self.faults.segment_loss)).collect();
        if !lost.contains(&true) {
            return left.push(packet);
        }
        let mut cut = std::mem::take(&mut self.cut);
        segment::segment_as_named(packet, &mut self.pool, &mut cut);
        for (number, packet) in cut.drain(..).enumerate() {
            if lost.get(number).is_some_and(|lost| *lost) {
                count(&self.control.counters.lost);
                self.pool.give_back(packet);
            } else {
                left.push(packet);
            }
        }
        self.cut = cut;
    }

    fn harm_one(&mut self, mut packet: Packet, to: &Queues) {
        if is_echo(packet.frame()) {
            count(&self.control.counters.echoes);
        }
        if self.hits(self.faults.mark_ce) && edit::mark_ce(&mut packet) {
            count(&self.control.counters.marked);
        }
        if self.hits(self.faults.misdirect) {
            if let Some(destination) = packet.frame_mut().get_mut(..NOBODY.len()) {
                destination.copy_from_slice(&NOBODY);
            }
            count(&self.control.counters.misdirected);
        }
        if packet.header.needs_checksum() && self.hits(self.faults.falsify) {
            self.falsify(&mut packet);
        }
        let mut parts = std::mem::take(&mut self.cut);
        match self.faults.fragment_bytes {
            Some(bytes) => {
                let identification = self.random.u32(..);
                edit::fragment(packet, bytes, identification, &mut self.pool, &mut parts);
                if parts.len() > 1 {
                    count(&self.control.counters.fragmented);
                }
            }
            None => parts.push(packet),
        }
        for mut packet in parts.drain(..) {
            let bytes = packet.frame().len().saturating_sub(ETHERNET_BYTES);
            let too_long = self.faults.longest_bytes.is_some_and(|longest| bytes > longest);
            if too_long || self.hits(self.faults.loss) {
                count(&self.control.counters.lost);
                self.pool.give_back(packet);
                continue;
            }
            if self.hits(self.faults.damage)
                && forgery::rewrite(&mut packet, Source::Itself, true, &mut self.random)
            {
                count(&self.control.counters.damaged);
            } else if self.hits(self.faults.forge) {
                // Forge only a copy of a frame that arrives unchanged: the copy of a damaged one
                // would be the first to carry these bytes, and the receiver would rightly accept
                // it.
                self.forge(&packet, to);
            }
            if self.hits(self.faults.duplicate) {
                count(&self.control.counters.duplicated);
                let copy = self.pool.copy_of(&packet);
                self.send(copy, to);
            }
            self.send(packet, to);
        }
        self.cut = parts;
    }

    /// Sends a forgery of a datagram; it is never before the datagram.
    fn forge(&mut self, packet: &Packet, to: &Queues) {
        let mut copy = self.pool.copy_of(packet);
        let damaged = self.random.bool();
        if forgery::rewrite(&mut copy, Source::Elsewhere, damaged, &mut self.random) {
            count(&self.control.counters.forged);
            let longest = self.faults.delay + self.faults.reorder_by;
            self.send_at(copy, Instant::now() + longest + BEHIND, to);
        } else {
            self.pool.give_back(copy);
        }
    }

    /// Writes a packet, or lets it wait.
    fn send(&mut self, mut packet: Packet, to: &Queues) {
        let now = Instant::now();
        let Some(left) = self.go_through_bottleneck(&mut packet, now) else {
            return self.pool.give_back(packet);
        };
        let mut wait = self.faults.delay;
        if self.hits(self.faults.reorder) {
            count(&self.control.counters.reordered);
            wait += self.faults.reorder_by.mul_f64(self.random.f64());
        }
        self.send_at(packet, left + wait, to);
    }

    fn send_at(&mut self, packet: Packet, until: Instant, to: &Queues) {
        if until <= Instant::now() {
            self.write(packet, to);
        } else if self.waiting.len() >= WAITING_FRAMES {
            count(&self.control.counters.overflowed);
            self.pool.give_back(packet);
        } else {
            self.arrivals += 1;
            self.waiting.push(Reverse(Waiting { until, arrival: self.arrivals, packet }));
        }
    }

    /// The time at which a packet has left the bottleneck, which may mark it: now without a
    /// bottleneck, `None` if it is dropped.
    fn go_through_bottleneck(&mut self, packet: &mut Packet, now: Instant) -> Option<Instant> {
        let Some(link) = &self.faults.bottleneck else { return Some(now) };
        let bytes = packet.frame().len() as u64;
        let counters = &self.control.counters;
        match self.queue.offer(link, bytes, now) {
            Verdict::Leaves { at, mark } => {
                count(&counters.queued);
                add(&counters.queued_bytes, bytes);
                if mark && edit::mark_ce(packet) {
                    count(&counters.marked);
                }
                Some(at)
            }
            Verdict::Dropped => {
                count(&counters.dropped);
                None
            }
        }
    }

    /// Writes frames whose delay is over.
    fn release(&mut self, to: &Queues) {
        let now = Instant::now();
        while self.waiting.peek().is_some_and(|Reverse(first)| first.until <= now) {
            if let Some(Reverse(first)) = self.waiting.pop() {
                self.write(first.packet, to);
            }
        }
    }

    fn write(&mut self, packet: Packet, to: &Queues) {
        let counters = &self.control.counters;
        // A frame that the kernel refuses as malformed, or because the device is down, is lost.
        match to.write(&packet) {
            Ok(true) => count(&counters.delivered),
            Ok(false) | Err(_) => count(&counters.refused),
        }
        self.pool.give_back(packet);
    }

    fn hits(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.random.f64() < probability
    }

    fn falsify(&mut self, packet: &mut Packet) {
        let frame = packet.frame_mut();
        let payload = Headers::parse(frame)
            .filter(Headers::tcp)
            .map(|headers| headers.payload.into()..headers.end as usize)
            .filter(|payload| !payload.is_empty());
        if let Some(payload) = payload {
            frame[self.random.usize(payload)] ^= 1;
            count(&self.control.counters.falsified);
        }
    }

    fn flip_a_bit(&mut self, packet: &mut Packet) {
        packet.header.settle();
        let frame = packet.frame_mut();
        let found = Headers::parse(frame);
        let begin = found.map_or(0, |headers| headers.ip.into());
        // Headers are short and payload is long: aim at headers half of the time.
        let headers =
            found.filter(Headers::tcp).map_or(frame.len(), |headers| headers.payload.into());
        let end = if self.random.bool() { headers } else { frame.len() };
        if begin < end {
            let byte = self.random.usize(begin..end);
            frame[byte] ^= 1 << self.random.u8(..8);
            count(&self.control.counters.corrupted);
        }
    }
}

/// Number of segments of a packet on the wire.
fn segments_of(packet: &Packet) -> usize {
    let payload = tcp_payload_bytes(packet.frame());
    let size = usize::from(packet.header.gso_size.get());
    if packet.header.is_super_packet() && size > 0 { payload.div_ceil(size).max(1) } else { 1 }
}

fn carries_data(frame: &[u8]) -> bool {
    tcp_payload_bytes(frame) > 0
}

fn tcp_payload_bytes(frame: &[u8]) -> usize {
    Headers::parse(frame).filter(Headers::tcp).map_or(0, |headers| headers.payload_bytes())
}

/// Whether a segment echoes a CE mark (RFC 3168, section 6.1.3).
fn is_echo(frame: &[u8]) -> bool {
    let tcp = Headers::parse(frame).filter(Headers::tcp);
    let flags = tcp.and_then(|headers| frame.get(usize::from(headers.l4) + 13));
    flags.is_some_and(|flags| flags & (ECE | SYN) == ECE)
}

/// TCP payload of a frame.
fn payload_bytes(frame: &[u8]) -> u64 {
    let headers = Headers::parse(frame).filter(Headers::tcp);
    headers.map_or(0, |headers| headers.payload_bytes() as u64)
}

#[cfg(test)]
mod tests {
    use vsnoop_packet::testing::SegmentBuilder;

    use super::*;

    #[test]
    fn a_super_packet_counts_as_the_segments_that_it_will_be() {
        let segments = |payload: usize, gso_size: u16| {
            let gso_size = Some(gso_size).filter(|size| *size > 0);
            let (header, frame) =
                SegmentBuilder { payload, ..SegmentBuilder::default() }.partial(gso_size);
            let mut packet = Pool::default().take();
            packet.fill(header, &frame);
            segments_of(&packet)
        };
        assert_eq!(segments(0, 0), 1);
        assert_eq!(segments(1448, 0), 1);
        assert_eq!(segments(14_480, 1448), 10);
        assert_eq!(segments(14_481, 1448), 11);
    }
}
