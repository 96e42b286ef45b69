//! Threads that run handshakes. Their number has a bound, and a thread that has ended a handshake
//! waits for the next one.
//!
//! The guard bounds the calls that are under way, but the thread of a displaced call runs until it
//! reads that its connection was shut down. On a busy machine a flood displaces calls sooner than
//! their threads get a CPU, and a thread that has nothing more to do takes a while to end. So no
//! thread ends, and the one that accepts calls waits while all are busy.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

type Handshake = Box<dyn FnOnce() + Send>;

/// Clones share the threads, which live as long as the process.
#[derive(Clone)]
pub struct HandshakeThreads(Arc<Shared>);

struct Shared {
    most: usize,
    state: Mutex<State>,
    /// A handshake waits for a thread.
    came: Condvar,
    /// A thread waits for a handshake.
    freed: Condvar,
}

#[derive(Default)]
struct State {
    started: usize,
    idle: usize,
    /// Each has an idle thread, which has yet to run.
    waiting: VecDeque<Handshake>,
}

impl HandshakeThreads {
    pub fn new(most: usize) -> Self {
        let (came, freed) = (Condvar::new(), Condvar::new());
        Self(Arc::new(Shared { most, state: Mutex::default(), came, freed }))
    }

    /// Gives `handshake` to a thread. The caller waits while `most` threads run other handshakes.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn run(&self, handshake: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let shared = &self.0;
        let must_wait = |state: &mut State| state.is_busy() && state.started >= shared.most;
        let state = shared.freed.wait_while(shared.lock_state(), must_wait);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.is_busy() {
            shared.start_thread(Box::new(handshake))?;
            state.started += 1;
        } else {
            state.waiting.push_back(Box::new(handshake));
            shared.came.notify_one();
        }
        Ok(())
    }
}

impl State {
    fn is_busy(&self) -> bool {
        self.idle <= self.waiting.len()
    }
}

impl Shared {
    fn start_thread(self: &Arc<Self>, first: Handshake) -> io::Result<()> {
        let this = Arc::clone(self);
        let work = move || {
            let mut handshake = first;
            loop {
                // The hook has printed a panic; the thread is there for the next call.
                let _ = catch_unwind(AssertUnwindSafe(handshake));
                handshake = this.next_handshake();
            }
        };
        thread::Builder::new().name("accept".into()).spawn(work).map(drop)
    }

    fn next_handshake(&self) -> Handshake {
        let mut state = self.lock_state();
        state.idle += 1;
        self.freed.notify_one();
        loop {
            if let Some(handshake) = state.waiting.pop_front() {
                state.idle -= 1;
                return handshake;
            }
            state = self.came.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_call_waits_until_one_of_the_most_threads_is_free() {
        const MOST: usize = 3;
        const CALLS: usize = 20 * MOST;
        let threads = HandshakeThreads::new(MOST);
        let (ended, ends) = channel();
        for _ in 0..CALLS {
            let ended = ended.clone();
            threads
                .run(move || {
                    thread::yield_now();
                    ended.send(thread::current().id()).unwrap();
                })
                .unwrap();
        }
        let used: HashSet<_> = ends.iter().take(CALLS).collect();
        assert!((1..=MOST).contains(&used.len()));
    }

    #[test]
    fn calls_that_come_together_have_the_threads_of_those_before() {
        const MOST: usize = 8;
        let threads = HandshakeThreads::new(MOST);
        let (ended, ends) = channel();
        for _ in 0..20 {
            for _ in 0..2 {
                let ended = ended.clone();
                threads.run(move || ended.send(thread::current().id()).unwrap()).unwrap();
            }
            let used: HashSet<_> = ends.iter().take(2).collect();
            assert!(used.len() <= 2);
            // All wait for a handshake again.
            let all_are_idle = || {
                let state = threads.0.lock_state();
                assert!(state.started <= 2);
                state.idle == state.started
            };
            while !all_are_idle() {
                thread::yield_now();
            }
        }
    }

    #[test]
    fn a_handshake_that_panics_takes_no_thread_away() {
        let threads = HandshakeThreads::new(1);
        threads.run(|| panic!("as this test wants it")).unwrap();
        let (ended, ends) = channel();
        threads.run(move || ended.send(()).unwrap()).unwrap();
        ends.recv().unwrap();
    }
}
