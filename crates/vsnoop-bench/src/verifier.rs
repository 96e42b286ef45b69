//! How many instructions the running kernel's verifier walks before it accepts
//! each hook. The kernel's bound is a million; how far a program is from it
//! changes with the compiler and with the kernel.

use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result};
use vsnoop_bpf::{AttachSpec, Port};
use vsnoop_lab::results::Figure;
use vsnoop_lab::testbed::net::{Netns, TapOptions, owned_name};

use crate::{PREFIX, figure, say};

const TAP: &str = "vsb-verifier";

pub fn measure() -> Result<Vec<Figure>> {
    let netns = Netns::create(&owned_name(PREFIX, "verifier"))?;
    let _tap = netns.tap(TAP, &TapOptions::default())?;
    let programs = netns.run(|| {
        let ifindex = nix::net::if_::if_nametoindex(TAP).context("index of the tap")?;
        let inode = std::fs::metadata("/proc/thread-self/ns/net").context("this namespace")?.ino();
        let port = Port::attach(&AttachSpec::new(ifindex, TAP, inode))?;
        let programs = port.programs();
        port.detach()?;
        Ok(programs?)
    })?;
    let mut figures = Vec::new();
    for program in programs {
        let instructions = program.verified_instructions;
        say(&format!("the verifier walks {} {instructions} instructions", program.name));
        let name = format!("verified_instructions_{}", program.name);
        figures.push(figure(&name, instructions.into(), "instructions", "lower"));
    }
    Ok(figures)
}
