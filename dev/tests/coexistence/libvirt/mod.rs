//! libvirt itself, with a guest that QEMU emulates: its network filter, its limit of bandwidth,
//! migration and saving, and our hook for domains whose monitor is taken.

mod daemon;
mod hook;
mod moves;
mod shared_memory;
mod site;
mod upload;

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use vsnoop_testbed::guest::installed;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::topology::{Family, PORT, Side, address};
use vsnoop_testbed::vm;
use vsnoop_testbed::wait::wait_until;

use crate::{bandwidth, ebtables, trial};
use daemon::Directory;
use site::{DOMAIN, Domain, PATIENCE, Site, is_active};

/// One service runs in a `/run`.
static SERVICE: Mutex<()> = Mutex::new(());

pub fn trials() -> Vec<Trial> {
    vec![
        trial("libvirt::a_domain_with_clean_traffic_is_accelerated", clean_traffic),
        trial("libvirt::a_domain_with_bandwidth_keeps_its_limit", keeps_its_limit),
        trial("libvirt::a_domain_without_a_monitor_is_paused_by_the_hook", hook::snapshots),
        trial("libvirt::uploads_go_on_when_a_followed_domain_migrates", moves::followed_migrations),
        trial(
            "libvirt::an_upload_goes_on_in_snapshots_of_a_followed_domain",
            moves::followed_snapshots,
        ),
        trial("libvirt::uploads_go_on_when_a_domain_is_saved_after_a_pause", moves::saving),
        trial(
            "libvirt::a_domain_that_is_saved_without_a_pause_resets_its_upload",
            moves::saving_without_a_pause,
        ),
        trial("libvirt::uploads_go_on_when_a_hooked_domain_migrates", moves::hooked_migrations),
    ]
}

pub fn probe(_: &Netns) -> Result<()> {
    for (program, package) in
        [("libvirtd", "libvirt-daemon"), ("virsh", "libvirt-clients"), ("ebtables", "iptables")]
    {
        installed(program, package)?;
    }
    let filter = "/etc/libvirt/nwfilter/clean-traffic.xml";
    ensure!(fs::exists(filter)?, "no {filter}: install libvirt-daemon-config-nwfilter");
    let file_systems = fs::read_to_string("/proc/filesystems")?;
    ensure!(file_systems.contains("\toverlay\n"), "this kernel has no overlayfs");
    vm::require_qemu()
}

fn service() -> MutexGuard<'static, ()> {
    SERVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn clean_traffic() -> Result<()> {
    let site = Site::new(Directory::new()?)?;
    let vsnoop = site.host.vsnoop()?;
    let _only = service();
    let config = site.host.libvirt.path().join("vsnoop.toml");
    // libvirtd opens the tap, and passes it on to the QEMU that has the name.
    fs::write(&config, "[[port]]\nname = \"domains\"\nvm = \"vst-dom*\"\npassive = false\n")?;
    let service = vsnoop.serve(&config, &site.host.libvirt.path().join("service.log"))?;
    let of_interface = format!(
        "<filterref filter='clean-traffic'><parameter name='IP' value='{}'/></filterref>",
        address(Side::Vm, Family::V4)
    );
    site.create(&Domain { of_interface: &of_interface, ..Domain::default() })?;
    let port = site.host.until_port("the domain's tap is attached", is_active)?;
    ensure!(port["table"] == "domains" && port["attached_by"] == "service", "{port}");
    site.until_the_guest_serves()?;
    moves::until_accelerated(&site, &site.host)?;
    let early = site.host.early_acks()?;
    let own = format!("--ip-src {} -j RETURN", address(Side::Vm, Family::V4));
    let passed = ebtables::frames(&site.host.netns, &format!("I-{PORT}-ipv4-ip"), &own)?;
    ensure!(passed > early, "{early} early ACKs, and {passed} frames passed libvirt's chain");
    for part in ["mac", "ipv4-ip", "arp-mac", "arp-ip"] {
        let dropped = ebtables::frames(&site.host.netns, &format!("I-{PORT}-{part}"), "-j DROP")?;
        ensure!(dropped == 0, "{dropped} frames dropped: {part}");
    }
    site.host.libvirt.virsh(&["destroy", DOMAIN])?;
    site.host.until_port("the port is gone with its domain", Value::is_null)?;
    drop(service);
    Ok(())
}

/// libvirt's limits need sfq, a filter by mark and a policer. A kernel without them gets the rest:
/// HTB, through whose default class all goes in any case. The commands of libvirt are those of
/// [`bandwidth::commands`], which other tests run on a kernel that has all of it.
fn keeps_its_limit() -> Result<()> {
    let directory = Directory::new()?;
    let asked = directory.0.join("tc.log");
    let log_and_run = format!(
        "#!/bin/sh\n\
         echo \"$*\" >>{}\n\
         /sbin/tc \"$@\" && exit\n\
         case \" $* \" in *' sfq '* | *' fw '* | *' ingress '* | *' police '*) exit 0 ;; esac\n\
         exit 2\n",
        asked.display()
    );
    directory.program("tc", &log_and_run)?;
    let site = Site::new(directory)?;
    let vsnoop = site.host.vsnoop()?;
    let _only = service();
    let config = site.host.libvirt.path().join("vsnoop.toml");
    fs::write(&config, format!("[[port]]\ninterface = \"{PORT}\"\n"))?;
    let _service = vsnoop.serve(&config, &site.host.libvirt.path().join("service.log"))?;
    site.create(&Domain { of_interface: bandwidth::LIMITS, ..Domain::default() })?;
    let asked = fs::read_to_string(asked)?;
    // A tap begins without a queue.
    let is_limit = |command: &&str| command.contains(" add ") && !command.ends_with(" noqueue");
    let added: Vec<_> = asked.lines().filter(is_limit).collect();
    ensure!(added == bandwidth::commands(), "libvirt's commands are: {added:#?}");
    site.until_the_guest_serves()?;
    let limits = || site.host.netns.tc(&format!("class show dev {PORT}"));
    let before = limits()?;
    let qdiscs = site.host.netns.tc(&format!("qdisc show dev {PORT}"))?;
    ensure!(before.contains("htb 1:1"), "libvirt's limit is not there: {before}{qdiscs}");
    // The service is there before the tap, and waits until libvirt has set it up.
    let mut said = Value::Null;
    wait_until("the service says why nothing is acknowledged early", PATIENCE, || {
        said = vsnoop.status_of_all()?;
        let refused = &said["service"]["failed"][0];
        let reason = refused["reason"].as_str().unwrap_or_default();
        let is_refused = reason.contains("htb 1:") && reason.contains("<bandwidth>");
        Ok(refused["port"] == PORT && is_refused)
    })
    .with_context(|| said.to_string())?;
    site.exact_transfers()?;
    ensure!(limits()? == before, "the limit was {before}, and is {}", limits()?);
    Ok(())
}
