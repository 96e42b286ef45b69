//! How long `vsnoop attach` takes, and how many instructions the running kernel's
//! verifier walks before it accepts each hook. The kernel's bound is a million; how
//! far a program is from it changes with the compiler and with the kernel.

use std::os::unix::fs::MetadataExt;
use std::time::Instant;

use anyhow::{Context, Result};
use vsnoop_bpf::types::SLAB_CHUNKS;
use vsnoop_bpf::{AttachSpec, Port};
use vsnoop_lab::results::Figure;
use vsnoop_testbed::net::{Net, Netns, TapOptions};
use vsnoop_testbed::{interrupt, vsnoop::Vsnoop};

use crate::figures::{figure, median, say};
use crate::stage::PREFIX;

const TAP: &str = "vsb-verifier";
const ATTACHES: usize = 11;
/// A hold of 16 MiB, as of a port that is attached without options.
const SLABS: u32 = 64;

pub fn measure() -> Result<Vec<Figure>> {
    let netns = Net::new(PREFIX).host("verifier")?;
    let _tap = netns.tap(TAP, &TapOptions::default())?;
    let programs = netns.run(|| {
        let ifindex = nix::net::if_::if_nametoindex(TAP).context("index of the tap")?;
        let inode = std::fs::metadata("/proc/thread-self/ns/net").context("this namespace")?.ino();
        let mut spec = AttachSpec::new(ifindex, TAP, inode);
        spec.policy.hold_chunks = SLABS * SLAB_CHUNKS;
        let port = Port::attach(&spec)?;
        let programs = port.programs();
        port.detach()?;
        Ok(programs?)
    })?;
    let mut figures = vec![figure("attach_ms", attach_ms(&netns)?, "ms", "lower")];
    for program in programs {
        let instructions = program.verified_instructions;
        say(&format!("the verifier walks {} {instructions} instructions", program.name));
        let name = format!("verified_instructions_{}", program.name);
        figures.push(figure(&name, instructions.into(), "instructions", "lower"));
    }
    Ok(figures)
}

/// The command, from its start to its end. The first one starts helper and engine, too.
fn attach_ms(netns: &Netns) -> Result<f64> {
    let vsnoop = Vsnoop::find()?.in_netns(netns.name());
    let mut times = Vec::new();
    for _ in 0..ATTACHES {
        interrupt::check()?;
        let since = Instant::now();
        vsnoop.attach(TAP)?;
        times.push(since.elapsed().as_secs_f64() * 1e3);
        vsnoop.detach(TAP)?;
    }
    let middle = median(times);
    say(&format!("attaching takes {middle:.0} ms"));
    Ok(middle)
}
