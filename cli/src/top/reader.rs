//! The thread that reads.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::sample::{FlowsSample, PortId, Sample};
use super::source::Source;

/// Between two readings it rests this many times as long as the one before took, at least.
const REST: u32 = 3;

/// Result of reading.
#[derive(Debug)]
pub enum Reading {
    Ports(Sample),
    Flows(FlowsSample),
    /// The reason.
    Failed(String),
}

/// An order of the model to the reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    pub flows_of: Option<PortId>,
    pub is_paused: bool,
}

/// The thread, which ends when this is dropped.
pub struct Reader {
    wishes: Sender<Wish>,
    pub readings: Receiver<Reading>,
    sent: Wish,
}

impl Reader {
    /// Reads all ports every `interval`, and the flows that are wished.
    pub fn start(source: Source, interval: Duration) -> Result<Self> {
        let (wishes, wanted) = mpsc::channel();
        // A sample and the flows beside it: what follows waits until they are taken, so that no
        // readings pile up before a terminal that is stuck.
        let (read, readings) = mpsc::sync_channel(2);
        let wish = Wish::default();
        let mut work =
            Work { source, interval, readings: read, wish, flows_at: None, spent: Duration::ZERO };
        thread::Builder::new()
            .name("reader".into())
            .spawn(move || work.run(&wanted))
            .context("start the thread that reads")?;
        Ok(Self { wishes, readings, sent: Wish::default() })
    }

    /// Tells the thread what is wished now.
    pub fn wish(&mut self, wish: Wish) {
        if wish != self.sent {
            self.sent = wish;
            // It has ended: the loop finds that by the readings.
            let _ = self.wishes.send(wish);
        }
    }
}

struct Work {
    source: Source,
    interval: Duration,
    readings: SyncSender<Reading>,
    wish: Wish,
    /// When flows were last read.
    flows_at: Option<Instant>,
    /// Time that reading took since the last tick began.
    spent: Duration,
}

impl Work {
    /// Until the other side is gone.
    fn run(&mut self, wanted: &Receiver<Wish>) {
        let mut next = Instant::now();
        loop {
            let wait = next.saturating_duration_since(Instant::now());
            let is_sent = match wanted.recv_timeout(wait) {
                Ok(wish) => self.change_wish(wish),
                Err(RecvTimeoutError::Timeout) => {
                    let start = Instant::now();
                    self.spent = Duration::ZERO;
                    let is_sent = self.send_reading();
                    next = (start + self.interval).max(Instant::now() + self.spent * REST);
                    is_sent
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if !is_sent {
                return;
            }
        }
    }

    /// Another wish: new flows are read at once. False if nothing is taken any more.
    fn change_wish(&mut self, wish: Wish) -> bool {
        let is_new = wish.flows_of != self.wish.flows_of;
        self.wish = wish;
        !is_new || self.send_flows()
    }

    /// False if nothing is taken any more.
    fn send_reading(&mut self) -> bool {
        if self.wish.is_paused {
            return true;
        }
        let reading = self.read(|source| source.take_sample().map(Reading::Ports));
        // Flows that were just read would have a rate of a very short time.
        let is_due = self.flows_at.is_none_or(|at| at.elapsed() * 2 > self.interval);
        self.send(reading) && (!is_due || self.send_flows())
    }

    fn send_flows(&mut self) -> bool {
        let Some(port) = self.wish.flows_of else { return true };
        self.flows_at = Some(Instant::now());
        let reading = self.read(|source| source.sample_flows(port).map(Reading::Flows));
        self.send(reading)
    }

    fn read(&mut self, read: impl FnOnce(&mut Source) -> Result<Reading>) -> Reading {
        let start = Instant::now();
        let reading = read(&mut self.source);
        self.spent += start.elapsed();
        reading.unwrap_or_else(|error| Reading::Failed(format!("{error:#}")))
    }

    fn send(&self, reading: Reading) -> bool {
        self.readings.send(reading).is_ok()
    }
}
