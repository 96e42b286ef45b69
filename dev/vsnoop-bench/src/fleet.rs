//! How long a new host of a fleet takes: from `link up` there until it and all others are up with
//! each other. Twenty hosts know each other by etcd, three nodes of it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use vsnoop_lab::results::Figure;
use vsnoop_testbed::hosts::{EtcdOptions, Host, Network, Plan};

use crate::figures::{figure, median, say};
use crate::stage::PREFIX;

const HOSTS: usize = 20;
const NODES: usize = 3;
const ROUNDS: usize = 5;
const LOOK: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(120);

pub fn measure() -> Result<Vec<Figure>> {
    let plan =
        Plan { prefix: PREFIX, dead_after: None, hosts: HOSTS, vms_per_host: 0, ..Plan::default() };
    let mut network = Network::configured(plan)?;
    let etcd = network.etcd(NODES, EtcdOptions::default())?;
    (0..HOSTS).try_for_each(|host| network.announce(host, &etcd, "ttl = \"5s\""))?;
    let (others, new) = network.hosts.split_at_mut(HOSTS - 1);
    let new = &mut new[0];
    others.iter_mut().try_for_each(Host::start)?;
    others.iter().try_for_each(|host| until_up(host, HOSTS - 2))?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let since = Instant::now();
        new.start()?;
        until_up(new, HOSTS - 1)?;
        others.iter().try_for_each(|host| until_up(host, HOSTS - 1))?;
        times.push(since.elapsed().as_secs_f64());
        new.command(&["down", new.name()])?;
        new.kill();
        others.iter().try_for_each(|host| until_up(host, HOSTS - 2))?;
    }
    let joined = median(times);
    say(&format!("a host joins {} others, which etcd names, in {joined:.2} s", HOSTS - 1));
    Ok(vec![figure("fleet_join_s", joined, "s", "lower")])
}

/// Waits until a host has this number of peers, all of them up.
fn until_up(host: &Host, wanted: usize) -> Result<()> {
    let since = Instant::now();
    loop {
        let status = host.status()?;
        let peers = status["peers"].as_array().map_or(&[][..], Vec::as_slice);
        if peers.len() == wanted && peers.iter().all(|peer| peer["state"] == "up") {
            return Ok(());
        }
        ensure!(since.elapsed() < PATIENCE, "{} has no {wanted} peers: {status}", host.name());
        std::thread::sleep(LOOK);
    }
}
