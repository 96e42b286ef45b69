//! A log that is not read: the pipe of a container's driver, or of a journal that hangs.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, pipe};

use crate::trial;
use vsnoop_testbed::hosts::{Network, Plan, fill_pipe, start_all};

pub fn trials() -> Vec<Trial> {
    vec![trial("stuck_log::a_link_whose_log_is_not_read_does_all_that_it_does_else", stuck)]
}

fn stuck() -> Result<()> {
    let (reader, writer) = pipe().context("a pipe")?;
    fill_pipe(&writer)?;
    let mut network = Network::configured(Plan { link: "rekey = \"5s\"", ..Plan::default() })?;
    network.hosts[0].stderr = Some(writer.try_clone().context("another descriptor")?);
    start_all(&mut network.hosts)?;
    let [a, b] = &mut network.hosts[..] else { unreachable!("two hosts") };
    a.until("keys change again and again", |status| {
        status["peers"][0]["rekeys"].as_u64() > Some(2)
    })?;
    a.until("the link says how many lines were lost", |status| {
        status["log_lines_lost"].as_u64() > Some(0)
    })?;
    b.kill();
    b.start()?;
    b.until_all_up()?;
    a.until_all_up()?;
    let reader = said(reader)?;
    fill_pipe(&writer)?;
    let mut link = a.link.take().context("no link runs")?;
    kill(Pid::from_raw(link.id() as i32), Signal::SIGTERM).context("telling it to end")?;
    let ended = link.wait().context("waiting for its end")?;
    ensure!(ended.success(), "{ended}");
    drop(reader);
    Ok(())
}

/// Reads what there is, until it is said how many lines were lost.
fn said(reader: OwnedFd) -> Result<File> {
    let (mut reader, mut text) = (File::from(reader), Vec::new());
    let mut bytes = [0; 4096];
    while !String::from_utf8_lossy(&text).contains("lines lost\n") {
        match reader.read(&mut bytes).context("reading the log")? {
            0 => bail!("the link has ended"),
            count => text.extend_from_slice(&bytes[..count]),
        }
    }
    Ok(reader)
}
