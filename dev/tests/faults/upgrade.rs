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
        let mut now = process.next(Some(process.kill()?))?;
        // The command and the helper may each have started one before, of which one waits for the
        // lock (`Process::kill_all()`).
        if program_of(now)? != program {
            now = process.next(Some(process.kill()?))?;
        }
        ensure!(program_of(now)? == program, "{process:?} {now} runs the old program");
    }
    scene::ends_exact(&topology, attached, pair)
}
