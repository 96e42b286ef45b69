//! How long a link takes to say how it is while its log is not read: the pipe is full before the
//! link starts. Half a second and more would be a link that waits for its log.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::unistd::pipe;
use vsnoop_lab::results::Figure;
use vsnoop_testbed::hosts::{Network, Plan, fill_pipe, start_all};

use crate::figures::{figure, median, say};
use crate::stage::PREFIX;

const ROUNDS: usize = 20;
/// Sessions are made anew meanwhile, and lines about them are logged.
const PAUSE: Duration = Duration::from_millis(250);

pub fn measure() -> Result<Vec<Figure>> {
    let (_reader, writer) = pipe().context("a pipe")?;
    fill_pipe(&writer)?;
    let link = "rekey = \"5s\"";
    let mut network =
        Network::configured(Plan { prefix: PREFIX, dead_after: None, link, ..Plan::default() })?;
    network.hosts[0].stderr = Some(writer);
    start_all(&mut network.hosts)?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        std::thread::sleep(PAUSE);
        let since = Instant::now();
        network.hosts[0].status()?;
        times.push(since.elapsed().as_secs_f64());
    }
    let answered = median(times);
    say(&format!("a link whose log is stuck says how it is in {answered:.3} s"));
    Ok(vec![figure("stuck_log_status_s", answered, "s", "lower")])
}
