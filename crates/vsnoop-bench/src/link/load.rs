//! What is carried, and how much of it is under way.
//!
//! A TCP connection inside a link has a window. Its stand-in is a [`Meter`] that sender and receiver
//! share: no more than [`WINDOW`] datagrams are under way, without any ACKs that would have to be
//! carried. Datagrams are numbered: one that is lost makes room when a later one arrives, as with
//! selective acknowledgements. So a carrier is measured at the pace of its slower end, as a connection inside would see
//! it, and not by how it fares when flooded.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Of a guest, in each datagram.
pub const PAYLOAD_BYTES: usize = 1400;

/// Datagrams that a super-packet is cut into: as many as a send of 64 KB takes, headers included.
pub const UNIT: usize = 45;
pub const UNIT_BYTES: usize = UNIT * PAYLOAD_BYTES;

/// Datagrams under way: 1 MB.
pub const WINDOW: u64 = 16 * UNIT as u64;

/// Of a small datagram that the receiver sends back.
pub const PING_BYTES: usize = 64;

/// Without any news for so long, what is under way is lost. Longer than a process that shares its core
/// has to wait for it.
pub const STALL: Duration = Duration::from_millis(20);

/// The sender waits so long for what is under way at the end.
pub const DRAIN: Duration = Duration::from_millis(50);

/// A receiver looks so often whether the round is over.
pub const LOOK: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug)]
pub enum Load {
    /// Super-packets, until the meter says stop.
    Bulk,
    /// So many small datagrams, one at a time, with a pause after each.
    Pings { count: usize, pause: Duration },
}

/// Shared by the two ends and by who watches them.
#[derive(Debug, Default)]
pub struct Meter {
    /// Datagrams.
    pub sent: AtomicU64,
    pub received: AtomicU64,
    /// One more than the highest number that was received, or given up.
    passed: AtomicU64,
    /// Tells the sender to end.
    pub stop: AtomicBool,
    /// Tells the receiver that the sender has ended.
    pub ended: AtomicBool,
    pub round_trips: Mutex<Vec<Duration>>,
    waiting: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Meter {
    pub fn stopped(&self) -> bool {
        self.stop.load(SeqCst)
    }

    pub fn ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    /// Fills `unit` with the next datagrams to be sent. The sender counts them when they are sent.
    pub fn fill(&self, unit: &mut [u8]) {
        let first = self.sent.load(SeqCst);
        for (datagram, number) in unit.chunks_mut(PAYLOAD_BYTES).zip(first..) {
            datagram[..8].copy_from_slice(&number.to_be_bytes());
        }
    }

    pub fn add_sent(&self, datagrams: usize) {
        self.sent.fetch_add(datagrams as u64, SeqCst);
    }

    /// Counts what was received together, and wakes the sender when half of its window is free:
    /// waking has its price.
    pub fn add_received(&self, arrivals: Arrivals) {
        self.received.fetch_add(arrivals.datagrams, SeqCst);
        self.passed.fetch_max(arrivals.passed, SeqCst);
        if self.waiting.load(SeqCst) && self.under_way() <= WINDOW / 2 {
            self.waiting.store(false, SeqCst);
            if let Some(waker) = self.waker.lock().expect("no holder panics").take() {
                waker.wake();
            }
        }
    }

    fn under_way(&self) -> u64 {
        self.sent.load(SeqCst).saturating_sub(self.passed.load(SeqCst))
    }

    /// Ready when half of the window is free.
    pub fn poll_room(&self, context: &Context<'_>) -> Poll<()> {
        *self.waker.lock().expect("no holder panics") = Some(context.waker().clone());
        self.waiting.store(true, SeqCst);
        if self.under_way() <= WINDOW / 2 || self.stopped() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// Datagrams that are received together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrivals {
    datagrams: u64,
    passed: u64,
}

impl Arrivals {
    pub fn add(&mut self, payload: &[u8]) {
        let Some(number) = payload.first_chunk() else { return };
        self.datagrams += 1;
        self.passed = self.passed.max(u64::from_be_bytes(*number).saturating_add(1));
    }
}

/// The sender's side of the window.
pub struct Pace<'a> {
    meter: &'a Meter,
    /// What had passed when the window was last seen to be shut, and since when it has been that.
    shut: Option<(u64, Instant)>,
}

impl<'a> Pace<'a> {
    pub fn new(meter: &'a Meter) -> Self {
        Self { meter, shut: None }
    }

    /// Whether there is room for a super-packet. What does not arrive makes room in time.
    pub fn may_send(&mut self) -> bool {
        if self.meter.under_way() + UNIT as u64 <= WINDOW {
            self.shut = None;
            return true;
        }
        let passed = self.meter.passed.load(SeqCst);
        match self.shut {
            Some((before, since)) if before == passed => {
                if since.elapsed() <= STALL {
                    return false;
                }
                self.meter.passed.fetch_max(self.meter.sent.load(SeqCst), SeqCst);
                self.shut = None;
                true
            }
            _ => {
                self.shut = Some((passed, Instant::now()));
                false
            }
        }
    }

    /// Sleeps until there may be room.
    pub fn wait(&self) {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        if self.meter.poll_room(&Context::from_waker(&waker)).is_pending() {
            std::thread::park_timeout(STALL);
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill_window(meter: &Meter) -> Vec<u8> {
        let mut pace = Pace::new(meter);
        let mut sent = Vec::new();
        while pace.may_send() {
            let mut unit = vec![0; UNIT_BYTES];
            meter.fill(&mut unit);
            meter.add_sent(UNIT);
            sent.extend(unit);
        }
        assert_eq!(sent.len(), WINDOW as usize * PAYLOAD_BYTES);
        sent
    }

    fn arrive<'a>(meter: &Meter, datagrams: impl Iterator<Item = &'a [u8]>) {
        let mut arrivals = Arrivals::default();
        datagrams.for_each(|datagram| arrivals.add(datagram));
        meter.add_received(arrivals);
    }

    #[test]
    fn the_window_opens_with_what_is_received() {
        let meter = Meter::default();
        let sent = fill_window(&meter);
        arrive(&meter, sent.chunks(PAYLOAD_BYTES).take(UNIT - 1));
        assert!(!Pace::new(&meter).may_send());
        arrive(&meter, sent.chunks(PAYLOAD_BYTES).skip(UNIT - 1).take(1));
        assert!(Pace::new(&meter).may_send());
        assert_eq!(meter.received.load(SeqCst), UNIT as u64);
    }

    #[test]
    fn a_later_datagram_makes_room_for_those_lost_before_it() {
        let meter = Meter::default();
        let sent = fill_window(&meter);
        arrive(&meter, sent.chunks(PAYLOAD_BYTES).skip(UNIT).take(1));
        assert_eq!(meter.under_way(), WINDOW - UNIT as u64 - 1);
        assert_eq!(meter.received.load(SeqCst), 1);
    }

    #[test]
    fn a_window_that_is_lost_does_not_stay_shut() {
        let meter = Meter::default();
        fill_window(&meter);
        let mut pace = Pace::new(&meter);
        while !pace.may_send() {
            pace.wait();
        }
        assert_eq!(meter.under_way(), 0);
    }
}
