//! The panic switch.

use anyhow::{Result, ensure};
use libtest_mimic::Trial;

use crate::sandbox::{PORT, TapHost, vsnoop};

pub fn trials() -> Vec<Trial> {
    trials![off_takes_everything_off_in_all_namespaces, off_with_nothing_attached_says_so,]
}

fn off_takes_everything_off_in_all_namespaces() -> Result<()> {
    let hosts = [TapHost::new("off1")?, TapHost::new("off2")?];
    let before: Vec<_> = hosts.iter().map(TapHost::state).collect::<Result<_>>()?;
    for host in &hosts {
        host.vsnoop(["attach", PORT])?.ok()?;
    }
    std::fs::remove_file(hosts[1].pins()?.join("stats"))?;
    let json = vsnoop(["off", "--all", "--json"])?.json()?;
    let count = |what: &str| json[what].as_array().map_or(0, Vec::len);
    ensure!(count("removed") == 1 && count("damaged_removed") == 1, "{json}");
    ensure!(count("qdiscs_restored") == 2 && count("failed") == 0, "{json}");
    for (host, before) in hosts.iter().zip(before) {
        ensure!(host.state()? == before, "something was left: {:?}", host.state()?);
    }
    Ok(())
}

fn off_with_nothing_attached_says_so() -> Result<()> {
    let ran = vsnoop(["off", "--all"])?.ok()?;
    ensure!(ran.out.contains("nothing was attached"), "{ran:?}");
    Ok(())
}
