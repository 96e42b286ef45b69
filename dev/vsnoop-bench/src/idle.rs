//! Measures the kernel memory of attached ports without traffic.
//!
//! The figures are the growth of the kernel's own counters (/proc/meminfo: slab that cannot be
//! reclaimed, vmalloc, per-CPU memory): of all ports, with what they have in common and the
//! engine's reserve, and of each port after the first. Other work on the machine changes these
//! counters, too, so the second is the mean of many ports.

use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use vsnoop_bpf::types::port_run;
use vsnoop_bpf::{AttachSpec, Port, Reserve};
use vsnoop_lab::results::Figure;
use vsnoop_testbed::net::{Net, TapOptions};

use crate::figures::{figure, say};
use crate::stage::PREFIX;

const PORTS: usize = 200;
/// The kernel frees what it no longer uses some time later.
const SETTLED: Duration = Duration::from_secs(2);
/// The port's quota in chunks; a port takes no memory for it before it is used.
const HOLD_CHUNKS: u32 = 16384;

pub fn measure() -> Result<Vec<Figure>> {
    let netns = Net::new(PREFIX).host("memory")?;
    let names: Vec<_> = (0..PORTS).map(|number| format!("vsb-m{number}")).collect();
    let taps = names.iter().map(|name| netns.tap(name, &TapOptions::default()));
    let _taps = taps.collect::<Result<Vec<_>>>()?;
    let (all, others) = netns.run(|| {
        thread::sleep(SETTLED);
        let before = kernel_bytes()?;
        let reserve = Reserve::default();
        while reserve.refill()? {}
        // The first one loads what all have in common.
        let mut ports = vec![attach(&names[0])?];
        thread::sleep(SETTLED);
        let with_one = kernel_bytes()?;
        for name in &names[1..] {
            ports.push(attach(name)?);
        }
        thread::sleep(SETTLED);
        let with_all = kernel_bytes()?;
        ports.into_iter().try_for_each(Port::detach)?;
        Ok((with_all.saturating_sub(before), with_all.saturating_sub(with_one)))
    })?;
    let (each, all_mib) = (others / (PORTS as u64 - 1), all as f64 / f64::from(1 << 20));
    say(&format!("an attached idle port takes {each} bytes, {PORTS} take {all_mib:.1} MiB"));
    Ok(vec![
        figure("attached_idle_port_bytes", each as f64, "bytes", "lower"),
        figure("attached_idle_200_ports_mib", all_mib, "MiB", "lower"),
    ])
}

fn attach(name: &str) -> Result<Port> {
    let ifindex = nix::net::if_::if_nametoindex(name).context("index of the tap")?;
    let inode = std::fs::metadata("/proc/thread-self/ns/net").context("this namespace")?.ino();
    let mut spec = AttachSpec::new(ifindex, name, inode);
    spec.policy.run = port_run::PORT_PAUSED;
    spec.policy.hold_chunks = HOLD_CHUNKS;
    Ok(Port::attach(&spec)?)
}

/// Memory that the kernel cannot reclaim: slabs, vmalloc, per-CPU memory.
pub fn kernel_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
    let kib = |name: &str| -> Result<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.with_context(|| format!("/proc/meminfo does not tell {name}"))
    };
    Ok((kib("SUnreclaim")? + kib("VmallocUsed")? + kib("Percpu")?) * 1024)
}
