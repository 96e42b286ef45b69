//! A link that is out of file descriptors.

use std::fs;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::{transfer, trial};
use vsnoop_testbed::hosts::{Host, Network, Plan, inner_v4, socket};

pub fn trials() -> Vec<Trial> {
    vec![trial("descriptors::a_link_without_them_carries_answers_and_does_not_spin", without)]
}

/// Long enough that a process which spins is seen.
const LOOK: Duration = Duration::from_secs(3);
/// More than are accepted at once.
const CLIENTS: usize = 4;

fn without() -> Result<()> {
    let mut network = Network::up(Plan::default())?;
    let [a, b] = &mut network.hosts[..] else { unreachable!("two hosts") };
    let before = take_descriptors(a)?;
    // The first takes the last descriptor, and is silent; the others wait for one.
    let silent = (0..CLIENTS).map(|_| UnixStream::connect(socket(a.name())).context("asking"));
    let silent = silent.collect::<Result<Vec<_>>>()?;
    let (since, used) = (Instant::now(), cpu_time(a)?);
    thread::sleep(LOOK);
    let busy = (cpu_time(a)? - used).as_secs_f64() / since.elapsed().as_secs_f64();
    // 0.003 here, and 0.36 of one that spins.
    ensure!(busy < 0.1, "it is busy {busy:.2} of the time: {}", a.words());
    drop(silent);
    a.until("it answers, and its port carries", |status| status["ports"][0]["up"] == true)?;
    let moved = AtomicU64::new(0);
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 4 << 20, &moved)?;
    let port = &a.status()?["ports"][0];
    ensure!(port["up"] == true, "{port}");
    ensure!(!port["reason"].as_str().unwrap_or_default().contains("deleted"), "{port}");
    ensure!(!a.words().contains("deleted"), "{}", a.words());
    set_limit(a, before)?;
    // With descriptors, all goes on by itself.
    b.kill();
    b.start()?;
    a.until_all_up()?;
    b.until_all_up()?;
    ensure!(a.status()?["ports"][0]["reason"].is_null(), "{}", a.status()?["ports"]);
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 4 << 20, &moved)
}

fn pid(host: &Host) -> Result<u32> {
    Ok(host.link.as_ref().context("no link runs")?.id())
}

/// Leaves no descriptor free in a running link. Returns the limit of before.
fn take_descriptors(host: &Host) -> Result<Rlimit> {
    let open = fs::read_dir(format!("/proc/{}/fd", pid(host)?)).context("listing what is open")?;
    let open: Vec<u64> =
        open.flatten().filter_map(|file| file.file_name().to_str()?.parse().ok()).collect();
    let free = (0..).find(|number| !open.contains(number));
    // It has inherited the hard limit.
    set_limit(host, Rlimit { current: free, ..getrlimit(Resource::Nofile) })
}

fn set_limit(host: &Host, limit: Rlimit) -> Result<Rlimit> {
    let pid = i32::try_from(pid(host)?).ok().and_then(Pid::from_raw).context("a process id")?;
    prlimit(Some(pid), Resource::Nofile, limit).context("limiting descriptors")
}

/// Sums the CPU time of all threads (proc(5): the 14th and 15th field of stat, in ticks of 10 ms).
fn cpu_time(host: &Host) -> Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{}/stat", pid(host)?)).context("reading stat")?;
    let (_, fields) = text.rsplit_once(") ").context("a name")?;
    let ticks = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>());
    let ticks: u64 = ticks.sum::<Result<_, _>>().context("numbers")?;
    Ok(Duration::from_millis(10 * ticks))
}
