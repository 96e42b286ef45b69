//! Clients that upload one file after the other, each byte verified by the guest.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use vsnoop_guest::transfer::Direction;
use vsnoop_testbed::client::{self, Outcome, Request};
use vsnoop_testbed::interrupt;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::stage::CONGESTION_CONTROL;

use crate::results::Ending;

/// A client gives a request up after this time, counted from its beginning.
pub const LIMIT: Duration = Duration::from_secs(60);
/// A client that saw an error waits before it tries again.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// One upload; times are since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Upload {
    pub begin: Duration,
    pub end: Duration,
    pub ending: Ending,
}

/// One client, until it is told to stop; the last upload is completed.
pub fn upload_steadily(
    client: &Netns,
    server: SocketAddr,
    size_bytes: u64,
    stop: &AtomicBool,
) -> Result<Vec<Upload>> {
    let mut uploads = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let begin = now()?;
        let request = Request {
            server,
            direction: Direction::Upload,
            size_bytes,
            seed: fastrand::u64(..),
            congestion_control: CONGESTION_CONTROL,
            timeout: LIMIT,
        };
        let ending = match client::transfer(client, &request)? {
            Outcome::Exact(_) => Ending::Exact,
            Outcome::Broken(why) => {
                tracing::info!("an upload failed: {why}");
                Ending::Broken
            }
            Outcome::Hung => Ending::Hung,
            Outcome::Wrong(verdict) => bail!("the guest received something else: {verdict:?}"),
        };
        uploads.push(Upload { begin, end: now()?, ending });
        interrupt::check()?;
        if ending != Ending::Exact {
            std::thread::sleep(AFTER_ERROR);
        }
    }
    Ok(uploads)
}

fn now() -> Result<Duration> {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("read the clock")
}
