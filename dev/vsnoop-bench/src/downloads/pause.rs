//! How long what is held for peers takes to leave after `pause`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use vsnoop_lab::results::Figure;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::net::check;
use vsnoop_testbed::topology::PORT;
use vsnoop_testbed::vsnoop::PATIENTLY;
use vsnoop_testbed::wait::wait_until;

use super::{Connection, PATIENCE, Path, Rig};
use crate::figures::{figure, say};

/// On each path.
const PAUSES: usize = 6;
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub fn measure() -> Result<Vec<Figure>> {
    Rig::measure(|rig| {
        let p99 = Pause { rig }.p99()?;
        Ok(vec![figure("pause_split_p99_over_bound", p99, "ratio", "lower")])
    })
}

struct Pause<'a> {
    rig: &'a Rig,
}

impl Pause<'_> {
    /// How long what is held takes to leave after `pause`, p99, over what it may: a second and two
    /// round trips of the path.
    fn p99(&self) -> Result<f64> {
        let mut all = Vec::new();
        for (rate_mbit, rtt_ms, at_once) in [(10, 20, 1), (50, 20, 1), (50, 100, 1), (50, 20, 8)] {
            Path::new(rtt_ms).lay_with(&self.rig.topology, rate_mbit);
            let bound = Duration::from_secs(1) + 2 * Duration::from_millis(rtt_ms);
            let mut times = Vec::new();
            while times.len() < PAUSES {
                interrupt::check()?;
                times.extend(self.once(at_once)?);
            }
            let ratio = |time: Duration| time.as_secs_f64() / bound.as_secs_f64();
            let mut times: Vec<_> = times.into_iter().map(ratio).collect();
            times.sort_by(f64::total_cmp);
            let (middle, most) = (times[times.len() / 2], times[times.len() - 1]);
            say(&format!(
                "pause, {at_once} at once, {rate_mbit} Mb/s, {rtt_ms} ms: p50 {middle:.2}, most \
                 {most:.2} of {bound:?}"
            ));
            all.extend(times);
        }
        all.sort_by(f64::total_cmp);
        Ok(all[(all.len() * 99).div_ceil(100) - 1])
    }

    /// The time that the command takes; `None` if nothing was split.
    fn once(&self, at_once: usize) -> Result<Option<Duration>> {
        let opened = (0..at_once).map(|_| self.rig.connect(true)).collect::<Result<Vec<_>>>()?;
        let goes_on = AtomicBool::new(true);
        let receive = |one: &Connection| {
            while goes_on.load(Ordering::Relaxed) {
                // A failure ends the connection, which is not looked at.
                let _ = one.receive(LOOK_EVERY);
            }
        };
        let (split, took) = thread::scope(|scope| {
            for one in &opened {
                scope.spawn(|| receive(one));
            }
            thread::sleep(Duration::from_millis(fastrand::u64(300..2500)));
            let (split, began) = (self.rig.split.split_flows().len(), Instant::now());
            let paused = self.rig.vsnoop.pause_with(PORT, PATIENTLY);
            goes_on.store(false, Ordering::Relaxed);
            paused.map(|()| (split, began.elapsed()))
        })?;
        opened.into_iter().try_for_each(Connection::end)?;
        check(self.rig.vsnoop.command().args(["resume", PORT]))?;
        wait_until("the splitter works", PATIENCE, || {
            Ok(self.rig.split.counters().is_on == 1 && self.rig.split.split_flows().is_empty())
        })?;
        Ok((split > 0).then_some(took))
    }
}
