//! The two threads that move frames, and when one of them is enough.
//!
//! Under load each thread waits for one half of the link and works on it. But a sleeping thread
//! takes long to wake: on a virtual machine longer than all other work for a frame, and the longer
//! the more cores sleep. So while there is little to do the ingress thread waits for both halves
//! and the egress thread sleeps: an answer that a VM gives at once is taken by the thread that
//! delivered the request. When more than a few frames wait at a time, or a pass takes long, the
//! work is divided; it is united again after a moment in which the egress thread had next to
//! nothing to do.
//!
//! The thread that wakes this one is usually about to sleep; this one yields once, so that it can.
//! Then one thread runs on the core, and the kernel wakes the next thread on a frame's way on this
//! core, not on a sleeping one. (Measured in dev/vsnoop-lab/notes/2026-11.md, "Links".)

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use tracing::warn;

use crate::egress::Egress;
use crate::ingress::Ingress;
use crate::io::poll::{Half, Poll, Token, of_both};

/// More frames than these in one pass are a stream.
const FEW_FRAMES: usize = 4;
/// A longer pass would keep the other half waiting.
const LONG_PASS: Duration = Duration::from_millis(1);
/// Time over which the egress thread measures its share of work.
const MOMENT: Duration = Duration::from_millis(20);
/// The egress thread is not needed if its work takes less than 1/`SHARE` of the time.
const SHARE: u32 = 10;
/// The token of [`Crew::bell`] among those of the ingress half.
const BELL: Token = Token(u64::MAX);

/// Both halves of a link, and the state of the two threads.
pub struct Crew {
    both: Arc<Poll>,
    egress: Mutex<Egress>,
    ingress: Mutex<Ingress>,
    /// The egress thread has its half. Set by the ingress thread, cleared by the egress thread.
    divided: AtomicBool,
    /// The egress half was told to stop.
    egress_over: AtomicBool,
    ingress_over: AtomicBool,
    egress_thread: Mutex<Option<Thread>>,
    /// Wakes the ingress thread when the work is united again.
    bell: EventFd,
}

impl Crew {
    /// `both` polls both halves together.
    pub fn new(both: Arc<Poll>, egress: Egress, ingress: Ingress) -> std::io::Result<Self> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        ingress.poll().watch(&bell, BELL)?;
        Ok(Self {
            both,
            egress: Mutex::new(egress),
            ingress: Mutex::new(ingress),
            divided: AtomicBool::new(false),
            egress_over: AtomicBool::new(false),
            ingress_over: AtomicBool::new(false),
            egress_thread: Mutex::new(None),
            bell,
        })
    }

    /// Moves frames from ports to peers while the work is divided, until it is told to stop.
    pub fn run_egress(&self) {
        *lock_half(&self.egress_thread) = Some(std::thread::current());
        let poll = lock_half(&self.egress).poll();
        loop {
            if self.egress_over.load(Ordering::Acquire) {
                return;
            }
            if !self.is_divided() {
                std::thread::park();
                continue;
            }
            if !self.egress_alone(&poll) {
                self.egress_over.store(true, Ordering::Release);
                return;
            }
            self.divided.store(false, Ordering::Release);
            // It fails only when the counter is full; then it rings already.
            let _ = self.bell.write(1);
        }
    }

    /// If the ingress thread has ended, the egress thread runs until it is told to stop, too.
    fn is_divided(&self) -> bool {
        self.divided.load(Ordering::Acquire) || self.ingress_over.load(Ordering::Acquire)
    }

    /// Works on the egress half until there is little to do; `false`: to stop.
    fn egress_alone(&self, poll: &Poll) -> bool {
        let (mut since, mut busy) = (Instant::now(), Duration::ZERO);
        loop {
            let ready = wait_for_events(poll, Some(MOMENT));
            let begun = Instant::now();
            let mut half = lock_half(&self.egress);
            if !ready.into_iter().all(|token| half.handle_token(token)) {
                return false;
            }
            drop(half);
            let now = Instant::now();
            busy += now - begun;
            if now - since < MOMENT {
                continue;
            }
            if busy < (now - since) / SHARE && !self.ingress_over.load(Ordering::Acquire) {
                return true;
            }
            (since, busy) = (now, Duration::ZERO);
        }
    }

    /// Moves frames from peers to ports, and in both directions while there is little to do, until
    /// it is told to stop.
    pub fn run_ingress(&self) {
        let poll = lock_half(&self.ingress).poll();
        let goes_on = || {
            if self.is_divided() || self.egress_over.load(Ordering::Acquire) {
                self.ingress_alone(&poll)
            } else {
                self.both_halves()
            }
        };
        while goes_on() {}
        self.ingress_over.store(true, Ordering::Release);
        self.call_other();
    }

    /// One pass over the ingress half; `false`: to stop.
    fn ingress_alone(&self, poll: &Poll) -> bool {
        let ready = wait_for_events(poll, None);
        let mut half = lock_half(&self.ingress);
        half.begin_round();
        for token in ready {
            if token == BELL {
                // Nothing rang since: fine too.
                let _ = self.bell.read();
            } else if !half.handle_token(token) {
                return false;
            }
        }
        true
    }

    /// One pass of one thread over both halves; `false`: the ingress half is to stop.
    fn both_halves(&self) -> bool {
        let ready = wait_for_events(&self.both, None);
        std::thread::yield_now();
        let begun = Instant::now();
        let (mut egress, mut ingress) = (lock_half(&self.egress), lock_half(&self.ingress));
        // Frames moved while the work was divided do not count for this pass.
        egress.take_count();
        ingress.take_count();
        ingress.begin_round();
        for token in ready {
            match of_both(token) {
                (Half::Ingress, token) => {
                    if !ingress.handle_token(token) {
                        return false;
                    }
                }
                (Half::Egress, token) => {
                    if !egress.handle_token(token) {
                        self.egress_over.store(true, Ordering::Release);
                        self.call_other();
                        return true;
                    }
                }
            }
        }
        let frames = egress.take_count() + ingress.take_count();
        if frames > FEW_FRAMES || begun.elapsed() > LONG_PASS {
            self.divided.store(true, Ordering::Release);
            self.call_other();
        }
        true
    }

    /// Wakes the egress thread.
    fn call_other(&self) {
        if let Some(thread) = &*lock_half(&self.egress_thread) {
            thread.unpark();
        }
    }
}

fn wait_for_events(poll: &Poll, timeout: Option<Duration>) -> Vec<Token> {
    poll.wait(timeout).unwrap_or_else(|error| {
        warn!("waiting for frames: {error}");
        // Whatever the error is, polling in a busy loop does not help.
        std::thread::sleep(Duration::from_millis(10));
        Vec::new()
    })
}

/// A panic of a thread ends the link; the other thread runs until then.
fn lock_half<T>(half: &Mutex<T>) -> MutexGuard<'_, T> {
    half.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::config::Rules;
    use crate::frames::compression_policy::{Policies, RuleSet};
    use crate::io::poll::Watch;
    use crate::io::udp_port::UdpPort;
    use crate::io::wake;
    use crate::ports::own_packets::Own;
    use crate::threads::event::ControlEvent;
    use crate::threads::handoff;
    use crate::threads::shared::Shared;
    use crate::{egress, ingress};
    use vsnoop_link::forwarding;

    struct Running {
        crew: Arc<Crew>,
        egress: wake::Sender<egress::Order>,
        ingress: wake::Sender<ingress::Order>,
        ended: mpsc::Receiver<()>,
        _events: wake::Receiver<ControlEvent>,
    }

    fn running() -> Running {
        let udp = UdpPort::bind("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let table = forwarding::TableSettings::default();
        let shared = Arc::new(Shared::new(table, Vec::new(), None, 0, udp, Own::default()));
        let (events, told) = wake::channel().unwrap();
        let (egress, egress_orders) = wake::channel().unwrap();
        let (ingress, ingress_orders) = wake::channel().unwrap();
        let both = Arc::new(Poll::new().unwrap());
        let watch = |half| Watch::new(&both, half).unwrap();
        let (out, back) = (watch(Half::Egress), watch(Half::Ingress));
        let policies = Policies::new(
            RuleSet::new(Rules::default()),
            Arc::default(),
            Arc::default(),
            Arc::default(),
        );
        let (handoff, mut handed) = handoff::channels(shared.pairs).unwrap();
        let inputs = egress::Inputs { orders: egress_orders, handed: handed.remove(0) };
        let (view, of_egress) = (shared.clone(), handoff.another());
        let out = Egress::new(view, inputs, of_egress, events.clone(), policies, out).unwrap();
        let back = Ingress::new(shared, ingress_orders, events, handoff, back).unwrap();
        let crew = Arc::new(Crew::new(both, out, back).unwrap());
        let (end, ended) = mpsc::channel();
        for run in [Crew::run_egress, Crew::run_ingress] {
            let (crew, end) = (crew.clone(), end.clone());
            std::thread::spawn(move || {
                run(&crew);
                end.send(())
            });
        }
        Running { crew, egress, ingress, ended, _events: told }
    }

    #[test]
    fn both_threads_end_whoever_is_told_first_and_whoever_does_the_work() {
        for divided in [false, true] {
            for ingress_first in [false, true] {
                for pause in [Duration::ZERO, 2 * MOMENT] {
                    let running = running();
                    if divided {
                        running.crew.divided.store(true, Ordering::Release);
                        running.crew.call_other();
                    }
                    if ingress_first {
                        running.ingress.send(ingress::Order::Stop);
                        std::thread::sleep(pause);
                        running.egress.send(egress::Order::Stop);
                    } else {
                        running.egress.send(egress::Order::Stop);
                        std::thread::sleep(pause);
                        running.ingress.send(ingress::Order::Stop);
                    }
                    for _ in 0..2 {
                        let ended = running.ended.recv_timeout(Duration::from_secs(120));
                        assert!(ended.is_ok(), "divided {divided}, ingress first {ingress_first}");
                    }
                }
            }
        }
    }
}
