//! The program is replaced while the host holds data.

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::background::Process::{Engine, Helper};
use crate::background::program_of;
use crate::host;
use crate::scene;
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![trial("upgrade::the_new_program_hands_over_what_the_old_one_held", upgraded)]
}

fn upgraded() -> Result<()> {
    let topology = scene::still().build()?;
    let attached = scene::still().attach(&topology)?;
    let pair = scene::held(&topology, &attached)?;
    host::install(&host::original()?)?;
    let program = fs::metadata(host::program())?.ino();
    for process in [Engine, Helper] {
        ensure!(program_of(process.next(None)?)? != program, "{process:?} runs it already");
        let before = process.kill()?;
        let now = process.next(Some(before))?;
        ensure!(program_of(now)? == program, "{process:?} {now} runs the old program");
    }
    scene::ends_exact(&topology, attached, pair)
}
