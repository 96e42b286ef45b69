//! Uploads through a VM that forwards to a slow path, which is late for another reason than the
//! CPU: with vsnoop they should be as without. Every other round the path has a smaller MTU, too.
//!
//! ```text
//! [client]--[host with the attached tap]--[VM]--10 Mb/s, 100 ms--[server]
//! ```

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use vsnoop_guest::transfer::Direction::Upload;
use vsnoop_lab::results::Figure;
use vsnoop_testbed::client::{self, Outcome, Request};
use vsnoop_testbed::interrupt;
use vsnoop_testbed::leg::{self, Leg, LegOptions};
use vsnoop_testbed::net::{Net, Netns};
use vsnoop_testbed::topology::{Family, PORT, Side, Topology, TopologyOptions, address};
use vsnoop_testbed::vsnoop::Vsnoop;

use crate::figures::{figure, median, say};
use crate::stage::PREFIX;

const MB: u64 = 1_000_000;
const DEVICE: &str = "leg";
const MTU_BYTES: [usize; 2] = [1500, 1400];
const SLOW: LegOptions =
    LegOptions { rate_mbit: 10, queue_bytes: 64 << 10, rtt: Duration::from_millis(100) };
/// An upload that takes this multiple of the time without vsnoop is given up, and counts with that
/// time.
const GIVEN_UP: u32 = 5;
const PATIENCE: Duration = Duration::from_secs(120);
/// `detach` resets given-up uploads of which the hold still has bytes.
const DETACH: [&str; 2] = ["--timeout", "1"];

pub fn measure() -> Result<Vec<Figure>> {
    let options = TopologyOptions { prefix: PREFIX.into(), ..TopologyOptions::default() };
    let topology = Topology::build(&options)?;
    let (vm, client) = (&topology.vm, &topology.client);
    let leg = Leg::lay(&Net::new(PREFIX), vm, DEVICE, &SLOW)?;
    vm.up_with(DEVICE, &[(leg::NEAR.into(), leg::PREFIX_LENGTH)])?;
    vm.set_forwarding(true)?;
    client.ip(&format!("route add {} via {}", leg::NETWORK, address(Side::Vm, Family::V4)))?;
    let vsnoop = Vsnoop::find()?.in_netns(topology.host.name());
    let stage = Stage { topology: &topology, leg: &leg, vsnoop: &vsnoop };
    let mut sent = Pair::<Carried>::default();
    let two = stage.measure(&TWO, &mut sent)?;
    let large = stage.measure(&LARGE, &mut sent)?;
    let eight = stage.measure(&EIGHT, &mut sent)?;
    let ratio = |name, value, better| figure(name, value, "ratio", better);
    Ok(vec![
        ratio("router_sent_over_received", sent.attached.ratio(), "lower"),
        ratio("router_off_sent_over_received", sent.off.ratio(), "lower"),
        ratio("router_upload_over_off", two.uploads.ratio(), "lower"),
        ratio("router_10mb_upload_over_off", large.uploads.ratio(), "lower"),
        ratio("router_eight_uploads_over_off", eight.uploads.ratio(), "lower"),
        ratio("router_own_stream_time_over_off", eight.own.ratio(), "lower"),
    ])
}

/// Uploads at once, and a stream of the VM's own beside them.
struct Load {
    uploads: usize,
    bytes: u64,
    has_own_stream: bool,
    rounds: usize,
}

const TWO: Load = Load { uploads: 2, bytes: MB, has_own_stream: false, rounds: 4 };
const LARGE: Load = Load { uploads: 1, bytes: 10 * MB, has_own_stream: false, rounds: 2 };
const EIGHT: Load = Load { uploads: 8, bytes: MB, has_own_stream: true, rounds: 4 };

/// Without vsnoop, and with it.
#[derive(Default)]
struct Pair<T> {
    off: T,
    attached: T,
}

impl Pair<Vec<f64>> {
    fn ratio(&self) -> f64 {
        median(self.attached.clone()) / median(self.off.clone())
    }
}

/// Seconds of each round.
#[derive(Default)]
struct Times {
    uploads: Pair<Vec<f64>>,
    own: Pair<Vec<f64>>,
}

/// Seconds until the last upload has ended, and until the VM's own has.
struct Round {
    uploads: f64,
    own: f64,
}

struct Stage<'a> {
    topology: &'a Topology,
    leg: &'a Leg,
    vsnoop: &'a Vsnoop,
}

impl Stage<'_> {
    fn measure(&self, load: &Load, sent: &mut Pair<Carried>) -> Result<Times> {
        let mut times = Times::default();
        for round in 1..=load.rounds {
            interrupt::check()?;
            self.topology.vm.set_mtu(DEVICE, MTU_BYTES[round % MTU_BYTES.len()])?;
            let off = sent.off.during(self.leg, || self.round(load, PATIENCE))?;
            self.vsnoop.attach(PORT)?;
            let limit = Duration::from_secs_f64(off.uploads.max(off.own)) * GIVEN_UP;
            let with = sent.attached.during(self.leg, || self.round(load, limit));
            self.vsnoop.detach_with(PORT, &DETACH)?;
            let with = with?;
            say(&format!(
                "through a VM that forwards, {} of {} bytes, round {round} of {}: {:.2} s without \
                 vsnoop, {:.2} s with it; the VM's own stream {:.2}, {:.2} s",
                load.uploads, load.bytes, load.rounds, off.uploads, with.uploads, off.own, with.own
            ));
            times.uploads.off.push(off.uploads);
            times.uploads.attached.push(with.uploads);
            times.own.off.push(off.own);
            times.own.attached.push(with.own);
        }
        Ok(times)
    }

    /// All uploads at once; each takes the limit at most.
    fn round(&self, load: &Load, limit: Duration) -> Result<Round> {
        let Self { topology, leg, .. } = *self;
        // Each round learns the MTU of the path anew.
        topology.client.ip("route flush cache")?;
        std::thread::scope(|scope| {
            let upload = |from| scope.spawn(move || upload(from, leg, load.bytes, limit));
            let own = load.has_own_stream.then(|| upload(&topology.vm));
            let jobs: Vec<_> = (0..load.uploads).map(|_| upload(&topology.client)).collect();
            let joined = |job: std::thread::ScopedJoinHandle<'_, Result<f64>>| {
                job.join().ok().context("an upload panicked")?
            };
            let uploads = jobs.into_iter().try_fold(0.0, |longest: f64, job| {
                Ok::<_, anyhow::Error>(longest.max(joined(job)?))
            })?;
            let own = own.map_or(Ok(0.0), joined)?;
            Ok(Round { uploads, own })
        })
    }
}

/// Payload that the VM has put on the leg, and that the server has read.
#[derive(Default)]
struct Carried {
    sent: u64,
    received: u64,
}

impl Carried {
    fn during<T>(&mut self, leg: &Leg, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let (sent, received) = (leg.sent_bytes(), leg.received_bytes());
        let result = work();
        self.sent += leg.sent_bytes() - sent;
        self.received += leg.received_bytes() - received;
        result
    }

    /// Where nothing arrives, one byte did.
    fn ratio(&self) -> f64 {
        self.sent as f64 / self.received.max(1) as f64
    }
}

/// Seconds that it takes, the limit at most.
fn upload(from: &Netns, leg: &Leg, size_bytes: u64, limit: Duration) -> Result<f64> {
    let request = Request {
        server: leg.server(),
        direction: Upload,
        size_bytes,
        seed: fastrand::u64(..),
        congestion_control: "cubic",
        timeout: limit,
    };
    let since = Instant::now();
    match client::transfer(from, &request)? {
        Outcome::Exact(_) | Outcome::Hung => Ok(since.elapsed().min(limit).as_secs_f64()),
        other => bail!("an upload through a VM that forwards: {other:?}"),
    }
}
