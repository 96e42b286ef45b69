//! What is carried, and how much of it is under way.
//!
//! A TCP connection inside a link has a window. Its stand-in is a [`Meter`] that sender and receiver
//! share: no more than [`WINDOW`] datagrams are under way, without any ACKs that would have to be
//! carried. So a carrier is measured at the pace of its slower end, as a connection inside would see
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

/// Without any news for so long, what is under way is lost.
pub const STALL: Duration = Duration::from_millis(2);

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
    lost: AtomicU64,
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

    pub fn add_sent(&self, datagrams: usize) {
        self.sent.fetch_add(datagrams as u64, SeqCst);
    }

    /// Wakes the sender when half of its window is free: waking has its price.
    pub fn add_received(&self, datagrams: usize) {
        self.received.fetch_add(datagrams as u64, SeqCst);
        if self.waiting.load(SeqCst) && self.under_way() <= WINDOW / 2 {
            self.waiting.store(false, SeqCst);
            if let Some(waker) = self.waker.lock().expect("no holder panics").take() {
                waker.wake();
            }
        }
    }

    fn under_way(&self) -> u64 {
        let accounted = self.received.load(SeqCst) + self.lost.load(SeqCst);
        self.sent.load(SeqCst).saturating_sub(accounted)
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

/// The sender's side of the window.
pub struct Pace<'a> {
    meter: &'a Meter,
    seen: u64,
    since: Instant,
}

impl<'a> Pace<'a> {
    pub fn new(meter: &'a Meter) -> Self {
        Self { meter, seen: 0, since: Instant::now() }
    }

    /// Whether there is room for a super-packet. What does not arrive makes room in time.
    pub fn may_send(&mut self) -> bool {
        let under_way = self.meter.under_way();
        if under_way + UNIT as u64 <= WINDOW {
            return true;
        }
        let received = self.meter.received.load(SeqCst);
        if received != self.seen {
            (self.seen, self.since) = (received, Instant::now());
            return false;
        }
        let stalled = self.since.elapsed() > STALL;
        if stalled {
            self.meter.lost.fetch_add(under_way, SeqCst);
            self.since = Instant::now();
        }
        stalled
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

    #[test]
    fn the_window_is_whole_super_packets_and_opens_with_what_is_received() {
        let meter = Meter::default();
        let mut pace = Pace::new(&meter);
        let mut units = 0;
        while pace.may_send() {
            meter.add_sent(UNIT);
            units += 1;
        }
        assert_eq!(units * UNIT as u64, WINDOW);
        meter.add_received(UNIT - 1);
        assert!(!pace.may_send());
        meter.add_received(1);
        assert!(pace.may_send());
    }

    #[test]
    fn what_is_lost_does_not_close_the_window_for_good() {
        let meter = Meter::default();
        let mut pace = Pace::new(&meter);
        meter.add_sent(WINDOW as usize);
        while !pace.may_send() {
            pace.wait();
        }
        assert_eq!(meter.under_way(), 0);
    }
}
