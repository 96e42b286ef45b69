//! The load generator: a share of each period is burnt, the rest is slept.
//!
//! The load burns a number of iterations, calibrated while the guest has the CPU for itself, not
//! a stretch of wall-clock time: a guest that loses the CPU in the middle of its burn still owes
//! the rest of it, as a program with work to do would. The sleep begins when the burn is done.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Iterations between two looks at the stop flag.
const BATCH: u64 = 1 << 14;

pub struct Load {
    iterations_per_ms: u64,
    running: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Load {
    pub fn new() -> Self {
        Self { iterations_per_ms: 0, running: None }
    }

    /// The fastest of many short burns: an interruption only ever makes a burn slower.
    pub fn calibrate(&mut self) -> u64 {
        let batches = 8;
        let fastest = (0..40)
            .map(|_| {
                let begin = Instant::now();
                burn(BATCH * batches);
                begin.elapsed()
            })
            .min()
            .unwrap_or(Duration::from_millis(1));
        let per_ms = BATCH * batches * 1_000_000 / (fastest.as_nanos() as u64).max(1);
        self.iterations_per_ms = per_ms.max(1);
        self.iterations_per_ms
    }

    pub fn start(&mut self, share: f64, period_ms: u32) -> Result<()> {
        if !(0.0..=1.0).contains(&share) || period_ms == 0 {
            bail!("a load of {share} in periods of {period_ms} ms is not possible");
        }
        if self.iterations_per_ms == 0 && share > 0.0 {
            bail!("the load is not calibrated");
        }
        self.stop();
        if share == 0.0 {
            return Ok(());
        }
        let busy = (self.iterations_per_ms as f64 * f64::from(period_ms) * share) as u64;
        let idle = Duration::from_secs_f64(f64::from(period_ms) / 1e3 * (1.0 - share));
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("load".into())
            .spawn(move || {
                while !told.load(Ordering::Relaxed) {
                    let mut left = busy;
                    while left > 0 && !told.load(Ordering::Relaxed) {
                        burn(left.min(BATCH));
                        left -= left.min(BATCH);
                    }
                    if !idle.is_zero() {
                        thread::sleep(idle);
                    }
                }
            })
            .context("start the load thread")?;
        self.running = Some((stop, thread));
        Ok(())
    }

    pub fn stop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            stop.store(true, Ordering::Relaxed);
            // The thread only panics with the whole guest.
            let _ = thread.join();
        }
    }
}

fn burn(iterations: u64) {
    let mut x = 1u64;
    for i in 0..iterations {
        x = black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i));
    }
    black_box(x);
}
