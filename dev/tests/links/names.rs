//! Peers by names that have several addresses.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use nix::sched::{CloneFlags, unshare};

use crate::trial;
use vsnoop_testbed::hosts::{Host, Network, PORT, Plan, outer};
use vsnoop_testbed::net::{check, checked};

/// Less than the time after which an address is given up, and far more than a call to a live one
/// takes.
const AT_ONCE: Duration = Duration::from_millis(2500);
/// Most starts. A busy machine may make one slow; one that waits for the dead address always is.
const STARTS: usize = 8;
/// The name of host 1.
const NAME: &str = "h1.example";

pub fn trials() -> Vec<Trial> {
    vec![trial("names::a_dead_address_does_not_keep_from_a_live_one", dead)]
}

/// The first address of the name is one at which nothing answers.
fn dead() -> Result<()> {
    let mut network = Network::configured(Plan::default())?;
    network.let_wait(1, 0)?;
    network
        .edit_config(0, |text| text.replace(&format!("\"{}:", outer(1)), &format!("\"{NAME}:")))?;
    ensure!(network.config(0)?.contains(&format!("\"{NAME}:{PORT}\"")), "no name");
    let hosts = network.file("hosts");
    let (dead, live) = (outer(2), outer(1));
    fs::write(&hosts, format!("{dead} {NAME}\n{live} {NAME}\n")).context("writing names")?;
    let [a, b] = &mut network.hosts[..] else { unreachable!("two hosts") };
    // A static neighbour entry prevents EHOSTUNREACH.
    a.netns.ip(&format!("neigh add {dead} lladdr 02:00:00:00:ff:01 dev uplink"))?;
    b.start()?;
    let mut slow = Vec::new();
    for _ in 0..STARTS {
        start(a, &hosts, dead)?;
        let since = Instant::now();
        a.until_all_up()?;
        if since.elapsed() < AT_ONCE {
            return Ok(());
        }
        slow.push(since.elapsed());
        a.kill();
    }
    bail!("up after {slow:?}: {}", a.words())
}

/// Starts a link that resolves names by this file, where `first` is first.
fn start(host: &mut Host, hosts: &Path, first: IpAddr) -> Result<()> {
    // The names are of this thread and its children alone.
    std::thread::scope(|scope| {
        let start = scope.spawn(|| -> Result<()> {
            unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).context("own mounts")?;
            checked("mount", ["--make-rprivate", "/"])?;
            let hosts = hosts.to_str().context("a path")?;
            checked("mount", ["--bind", hosts, "/etc/hosts"])?;
            let resolved = check(host.netns.command("getent").args(["ahostsv4", NAME]))?;
            ensure!(resolved.starts_with(&first.to_string()), "another order: {resolved}");
            host.start()
        });
        start.join().map_err(|_| anyhow::anyhow!("the start panicked"))?
    })
}
