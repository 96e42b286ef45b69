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
use vsnoop_testbed::net::Net;
use vsnoop_testbed::topology::{Family, PORT, Side, Topology, TopologyOptions, address};
use vsnoop_testbed::vsnoop::Vsnoop;

use crate::figures::{figure, median, say};
use crate::stage::PREFIX;

const ROUNDS: usize = 4;
const UPLOADS: usize = 2;
const BYTES: u64 = 1_000_000;
const DEVICE: &str = "leg";
const MTU_BYTES: [usize; 2] = [1500, 1400];
const SLOW: LegOptions =
    LegOptions { rate_mbit: 10, queue_bytes: 64 << 10, rtt: Duration::from_millis(100) };
/// An upload that takes this multiple of the time without vsnoop is given up, and counts with that
/// time.
const GIVEN_UP: u32 = 5;
const PATIENCE: Duration = Duration::from_secs(120);
/// What is still held of uploads that were given up is reset.
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
    let (mut off, mut attached) = (Vec::new(), Vec::new());
    let (mut carried_off, mut carried) = (Carried::default(), Carried::default());
    for round in 1..=ROUNDS {
        interrupt::check()?;
        vm.set_mtu(DEVICE, MTU_BYTES[round % MTU_BYTES.len()])?;
        let without = carried_off.during(&leg, || uploads(&topology, &leg, PATIENCE))?;
        vsnoop.attach(PORT)?;
        let with = carried.during(&leg, || uploads(&topology, &leg, without * GIVEN_UP));
        vsnoop.detach_with(PORT, &DETACH)?;
        let with = with?;
        say(&format!(
            "through a VM that forwards, round {round} of {ROUNDS}: {:.2} s without vsnoop, \
             {:.2} s with it",
            without.as_secs_f64(),
            with.as_secs_f64()
        ));
        off.push(without.as_secs_f64());
        attached.push(with.as_secs_f64());
    }
    let upload_over_off = median(attached) / median(off);
    Ok(vec![
        figure("router_sent_over_received", carried.ratio(), "ratio", "lower"),
        figure("router_off_sent_over_received", carried_off.ratio(), "ratio", "lower"),
        figure("router_upload_over_off", upload_over_off, "ratio", "lower"),
    ])
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

/// Some at once; the time until the last one has ended, at most the limit.
fn uploads(topology: &Topology, leg: &Leg, limit: Duration) -> Result<Duration> {
    // Each round learns the MTU of the path anew.
    topology.client.ip("route flush cache")?;
    let since = Instant::now();
    let upload = || {
        let request = Request {
            server: leg.server(),
            direction: Upload,
            size_bytes: BYTES,
            seed: fastrand::u64(..),
            congestion_control: "cubic",
            timeout: limit,
        };
        client::transfer(&topology.client, &request)
    };
    let outcomes = std::thread::scope(|scope| -> Result<Vec<Outcome>> {
        let jobs: Vec<_> = (0..UPLOADS).map(|_| scope.spawn(upload)).collect();
        let joined = jobs.into_iter().map(|job| job.join().ok().context("an upload panicked")?);
        joined.collect()
    })?;
    for outcome in outcomes {
        match outcome {
            Outcome::Exact(_) | Outcome::Hung => (),
            other => bail!("an upload through a VM that forwards: {other:?}"),
        }
    }
    Ok(since.elapsed().min(limit))
}
