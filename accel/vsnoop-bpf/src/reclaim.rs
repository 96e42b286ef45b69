//! Runs the program that reclaims the memory of a hold (bpf/hold_memory.h).

use std::path::Path;

use vsnoop_flow::hold::Reclaimed;
use vsnoop_flow::types::{reclaim as why, reclaimed};

use crate::error::{Error, Result};
use crate::inject::Runner;
use crate::maps::SharedProgram;

/// Stops sending for a flow that was reset, whose record names this hold.
pub(crate) fn end(dir: &Path, number: u32) -> Result<()> {
    reclaim(&Runner::open(dir, SharedProgram::Reclaim)?, number, why::RECLAIM_RESET).map(drop)
}

pub(crate) fn reclaim(program: &Runner, number: u32, why: why::Type) -> Result<Reclaimed> {
    let run = program
        .run(0, [number, why], &[0; 64])
        .map_err(Error::bpf(format!("reclaim hold {number}")))?;
    Ok(Reclaimed::new(run.verdict as reclaimed::Type))
}
