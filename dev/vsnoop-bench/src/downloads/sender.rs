//! Compares the sockets of split connections with Linux on the host itself: the same kernel sends
//! the same bytes from the VM's stand-in, split and not, in turn, over paths with loss, reordering,
//! and queues of several lengths.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use vsnoop_lab::results::Figure;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::wait::wait_until;

use super::{Connection, PATIENCE, Path, Rig};
use crate::figures::{figure, median, median_ratio, say};

const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_millis(2500);
/// Connections beside each other run this long.
const BESIDE: Duration = Duration::from_secs(5);
const PLAIN: usize = 8;
const MOST_TRIES: usize = 40;
/// A connection that is not split until then is given up.
const SOON: Duration = Duration::from_millis(300);

/// Returns the paths that differ most; they take less than three minutes.
fn some_paths() -> Vec<Path> {
    let (near, middle, far) = (Path::new(5), Path::new(20), Path::new(100));
    vec![
        near,
        Path { queue: 0.25, ..middle },
        Path { loss: 0.01, ..middle },
        Path { reorder: 0.01, ..middle },
        far,
        Path { loss: 0.001, ..far },
    ]
}

fn all_paths() -> Vec<Path> {
    let mut grid = Vec::new();
    for path in [5, 20, 100].map(Path::new) {
        grid.extend([0.25, 1.0, 4.0].map(|queue| Path { queue, ..path }));
        grid.extend([0.001, 0.01, 0.03].map(|loss| Path { loss, ..path }));
        grid.push(Path { reorder: 0.01, ..path });
    }
    grid
}

/// The bytes that one connection has carried.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    received: f64,
    /// Bytes that entered the path.
    sent: f64,
}

impl Carried {
    fn goodput_mbit(&self, time: Duration) -> f64 {
        self.received * 8.0 / 1e6 / time.as_secs_f64()
    }
}

/// Over some paths.
pub fn measure() -> Result<Vec<Figure>> {
    Rig::measure(|rig| Sender { rig }.measure(&some_paths()))
}

/// Over the whole grid: three times as long.
pub fn measure_all() -> Result<Vec<Figure>> {
    Rig::measure(|rig| Sender { rig }.measure(&all_paths()))
}

struct Sender<'a> {
    rig: &'a Rig,
}

impl Sender<'_> {
    fn measure(&self, paths: &[Path]) -> Result<Vec<Figure>> {
        let mut least = f64::INFINITY;
        let (mut off, mut on) = (Carried::default(), Carried::default());
        for path in paths {
            path.lay(&self.rig.topology);
            let mut goodputs = [const { Vec::new() }; 2];
            for _ in 0..ROUNDS {
                for (is_split, sum) in [(false, &mut off), (true, &mut on)] {
                    interrupt::check()?;
                    let carried = self.one(is_split)?;
                    goodputs[usize::from(is_split)].push(carried.goodput_mbit(ROUND));
                    sum.received += carried.received;
                    sum.sent += carried.sent;
                }
            }
            let ratio = median_ratio(&goodputs[1], &goodputs[0]);
            let [off, on] = goodputs.map(median);
            say(&format!("{path:?}: Linux {off:.1}, split {on:.1} Mb/s, {ratio:.2}"));
            least = least.min(ratio);
        }
        let again = |sum: Carried| sum.sent / sum.received - 1.0;
        say(&format!("sent again: Linux {:.4}, split {:.4} of a byte", again(off), again(on)));
        let jain = self.fairness()?;
        Ok(vec![
            figure("sender_goodput_over_linux", least, "ratio", "higher"),
            figure("sender_retransmitted_over_linux", again(on) / again(off), "ratio", "lower"),
            figure("sender_jain_beside_8_plain", jain, "index", "higher"),
        ])
    }

    /// One connection, which sends for a round.
    fn try_one(&self, is_split: bool) -> Result<Option<Carried>> {
        let before = (self.rig.entered(), self.rig.split.counters().from_sockets);
        let went_by_sockets = || self.rig.split.counters().from_sockets > before.1;
        let connection = self.rig.connect(is_split)?;
        let mut received = connection.receive(SOON)?;
        if went_by_sockets() == is_split {
            received += connection.receive(ROUND - SOON)?;
        }
        let (sent, went_by_sockets) = (self.rig.entered() - before.0, went_by_sockets());
        connection.end()?;
        wait_until("it is over", PATIENCE, || Ok(self.rig.split.split_flows().is_empty()))?;
        // A VM that sends without a pause may send more whenever it could be split.
        Ok((went_by_sockets == is_split)
            .then_some(Carried { received: received as f64, sent: sent as f64 }))
    }

    fn one(&self, is_split: bool) -> Result<Carried> {
        for _ in 0..MOST_TRIES {
            if let Some(carried) = self.try_one(is_split)? {
                return Ok(carried);
            }
        }
        bail!("of {MOST_TRIES} connections none was split")
    }

    /// Jain's index of a split connection beside plain ones.
    fn fairness(&self) -> Result<f64> {
        Path::new(20).lay(&self.rig.topology);
        let index = |last_is_split: bool| -> Result<f64> {
            let plain = (0..PLAIN).map(|_| self.rig.connect(false));
            let mut all = plain.collect::<Result<Vec<_>>>()?;
            all.push(self.rig.connect(last_is_split)?);
            let received = thread::scope(|scope| {
                let jobs: Vec<_> =
                    all.iter().map(|one| scope.spawn(|| one.receive(BESIDE))).collect();
                let joined = jobs.into_iter().map(|job| job.join().ok().context("panicked")?);
                joined.collect::<Result<Vec<u64>>>()
            })?;
            all.into_iter().try_for_each(Connection::end)?;
            say(&format!(
                "beside {PLAIN} plain ones (the last is split: {last_is_split}): {received:?}"
            ));
            let x: Vec<f64> = received.iter().map(|bytes| *bytes as f64).collect();
            let (sum, squares) = (x.iter().sum::<f64>(), x.iter().map(|x| x * x).sum::<f64>());
            Ok(sum * sum / (x.len() as f64 * squares))
        };
        let mut indices = [const { Vec::new() }; 2];
        for _ in 0..ROUNDS {
            for is_split in [false, true] {
                indices[usize::from(is_split)].push(index(is_split)?);
            }
        }
        let [off, on] = indices.map(median);
        say(&format!("Jain's index: {PLAIN} + 1 plain {off:.3}, + 1 split {on:.3}"));
        Ok(on)
    }
}
