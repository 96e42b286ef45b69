//! `vsnoop doctor`: what is true of the host, from wherever it is asked.

use std::fs;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;

use crate::sandbox::{TapHost, vsnoop_under};

pub fn trials() -> Vec<Trial> {
    trials![
        the_jit_is_known_in_a_network_namespace_of_its_own_too,
        a_configured_uplink_that_does_not_exist_is_told,
    ]
}

/// The kernel shows its setting in the initial network namespace only.
fn the_jit_is_known_in_a_network_namespace_of_its_own_too() -> Result<()> {
    let json = vsnoop_under(&["unshare", "--net"], &["doctor", "--json"])?.json()?;
    let check = check(&json, "BPF JIT")?;
    ensure!(check["level"] == "ok" && check["detail"] == "on", "{check}");
    Ok(())
}

fn a_configured_uplink_that_does_not_exist_is_told() -> Result<()> {
    let host = TapHost::new("uplink")?;
    let file = format!("/run/{}.toml", host.netns.name());
    fs::write(&file, "[incast]\nuplink = \"eth9\"\n")?;
    let doctor = || host.vsnoop(["--config", &file, "doctor", "--json"])?.json();
    let missing = check(&doctor()?, "incast control")?;
    let text = missing["detail"].as_str().context("a text")?;
    ensure!(missing["level"] == "warn", "{missing}");
    for word in ["eth9", "does not exist", host.netns.name(), "incast.uplink", &file] {
        ensure!(text.contains(word), "{word:?} is not in: {text}");
    }
    host.netns.ip("link add eth9 type veth peer name other")?;
    ensure!(check(&doctor()?, "incast control").is_err(), "{}", doctor()?);
    Ok(())
}

fn check(doctor: &Value, name: &str) -> Result<Value> {
    let mut checks = doctor["host"].as_array().context("a list")?.iter();
    let found = checks.find(|check| check["name"] == name);
    found.cloned().with_context(|| format!("no {name} in {doctor}"))
}
