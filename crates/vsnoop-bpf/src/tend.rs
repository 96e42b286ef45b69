//! Runs the program that looks after a hold (bpf/hold.h).

use std::path::Path;

use vsnoop_flow::types::{tend as why, tended};

use crate::error::{Error, Result};
use crate::inject::Runner;

/// What became of a hold that was looked after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tended {
    /// Its flow is there.
    Used,
    /// Its flow is over: it can be ended when no hook can be at it any more.
    Over,
    /// It is free.
    Free,
}

/// Nothing more is to be sent of a flow that was reset, whose record names this hold.
pub(crate) fn end(dir: &Path, number: u32) -> Result<()> {
    tend(&Runner::open(dir, "tend")?, number, why::TEND_RESET).map(drop)
}

pub(crate) fn tend(program: &Runner, number: u32, why: why::Type) -> Result<Tended> {
    let run = program
        .run(0, [number, why], &[0; 64])
        .map_err(Error::bpf(format!("look after hold {number}")))?;
    Ok(match run.verdict as tended::Type {
        tended::TENDED_USED => Tended::Used,
        tended::TENDED_OVER => Tended::Over,
        _ => Tended::Free,
    })
}
