//! Domains that move, are saved, or do not get that far, under an upload: with a monitor for the
//! service, and with libvirt's hook where there is none.

use std::fs;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use vsnoop_testbed::topology::PORT;
use vsnoop_testbed::vsnoop::{Service, Vsnoop};

use super::daemon::Directory;
use super::hook::Calls;
use super::service;
use super::site::{DOMAIN, Domain, Host, Site, is_active};
use super::upload::Upload;

/// MiB in a second: the copying of memory takes some seconds, as that of a large VM does.
const BANDWIDTH: &str = "16";
/// A migration at this bandwidth lasts longer than what cancels it.
const SLOW: &str = "1";
/// Of a megabyte each way, of which nearly always the first is acknowledged early.
const MOST_TRANSFERS: usize = 50;

/// How memory goes from host to host.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// From QEMU to QEMU.
    Direct,
    /// From libvirtd to libvirtd.
    Tunnelled,
}

/// Begins to migrate the domain to another host.
fn migrate(from: &Host, to: &Host, way: Way, bandwidth: &str) -> Result<()> {
    let socket = to.libvirt.socket();
    // With +unix the daemon, too, takes it for another one than itself.
    let to_daemon = format!("qemu+unix:///system?socket={}", socket.display());
    let mut arguments = vec!["migrate", "--live", "--bandwidth", bandwidth, DOMAIN, &to_daemon];
    let to_qemu = format!("tcp://{}", to.address());
    match way {
        Way::Direct => arguments.extend(["--migrateuri", &to_qemu]),
        Way::Tunnelled => arguments.extend(["--p2p", "--tunnelled"]),
    }
    from.libvirt.virsh(&arguments).map(drop).with_context(|| to.libvirt.log())
}

/// All hosts have a service, which is one process here.
fn serve(hosts: &[&Host], more: &str) -> Result<Service> {
    let path = hosts[0].libvirt.path();
    let names = hosts.iter().map(|host| format!("\"{}\"", host.netns.name()));
    let names = names.collect::<Vec<_>>().join(", ");
    let config = path.join("vsnoop.toml");
    let text =
        format!("[[port]]\nnetns = [{names}]\ninterface = \"{PORT}\"\npassive = false\n{more}");
    fs::write(&config, text)?;
    Vsnoop::find()?.serve(&config, &path.join("service.log"))
}

fn service_log(host: &Host) -> Result<String> {
    Ok(fs::read_to_string(host.libvirt.path().join("service.log"))?)
}

/// While a migration is under way: it is cancelled, or the destination gives up.
fn give_up(from: &Host, to: &Host, is_paused: impl Fn(&Value) -> bool) -> Result<()> {
    for is_cancelled in [true, false] {
        thread::scope(|scope| {
            let migrating = scope.spawn(|| migrate(from, to, Way::Direct, SLOW));
            from.until_port("the port is paused", &is_paused)?;
            match is_cancelled {
                true => from.libvirt.virsh(&["domjobabort", DOMAIN])?,
                false => to.libvirt.virsh(&["destroy", DOMAIN])?,
            };
            let ended = migrating.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            ensure!(ended.is_err(), "it was completed");
            from.until_port("the port goes on", is_active)?;
            from.until_accelerated()
        })?;
    }
    Ok(())
}

/// The port has gone with the domain, to a port that is accelerated.
fn ensure_moved(site: &Site, from: &Host, to: &Host) -> Result<()> {
    from.until_port("the port is gone with its domain", Value::is_null)?;
    to.until_port("the port at the destination is active", is_active)?;
    until_accelerated(site, to)
}

/// For new connections: of those that came along the window scale is unknown (docs/limits.md).
fn until_accelerated(site: &Site, host: &Host) -> Result<()> {
    for _ in 0..MOST_TRANSFERS {
        site.exact_transfers()?;
        if host.early_acks()? > 0 {
            return Ok(());
        }
    }
    let (port, log) = (host.port()?, service_log(&site.host).unwrap_or_default());
    bail!("no early ACK in {MOST_TRANSFERS} new connections each way: {port}\n{log}")
}

/// A domain that the service follows.
fn followed() -> Result<(Site, Host, Service)> {
    let site = Site::new(Directory::new()?)?;
    let other = Host::beside(&site.host, Directory::new()?)?;
    let qmp = format!("qmp = [\"{}\", \"{}\"]\n", site.host.monitor(), other.monitor());
    let service = serve(&[&site.host, &other], &qmp)?;
    site.create(&Domain { is_followed: true, is_movable: true, ..Domain::default() })?;
    site.until_the_guest_serves()?;
    site.host.until_port("the domain's tap is attached", is_active)?;
    Ok((site, other, service))
}

pub fn followed_migrations() -> Result<()> {
    let _only = service();
    let (site, other, _service) = followed()?;
    let upload = Upload::begin(&site.client, Site::server())?;
    site.host.until_accelerated()?;
    let is_paused = |port: &Value| port["paused_by"] == "migration";
    give_up(&site.host, &other, is_paused)?;
    migrate(&site.host, &other, Way::Direct, BANDWIDTH)?;
    ensure_moved(&site, &site.host, &other)?;
    migrate(&other, &site.host, Way::Tunnelled, BANDWIDTH)?;
    ensure_moved(&site, &other, &site.host)?;
    upload.finish().with_context(|| service_log(&site.host).unwrap_or_default())?;
    let log = service_log(&site.host)?;
    ensure!(!log.contains("its VM has left without"), "{log}");
    Ok(())
}

pub fn saving() -> Result<()> {
    let _only = service();
    let site = Site::new(Directory::new()?)?;
    let host = &site.host;
    let _service = serve(&[host], &format!("qmp = \"{}\"\n", host.monitor()))?;
    site.create(&Domain { is_followed: true, ..Domain::default() })?;
    site.until_the_guest_serves()?;
    host.until_port("the domain's tap is attached", is_active)?;
    let upload = Upload::begin(&site.client, Site::server())?;
    host.until_accelerated()?;
    let file = host.libvirt.path().join("saved");
    let file = file.to_string_lossy();
    let ways: [(&[&str], &[&str]); 2] = [
        (&["save", DOMAIN, &file], &["restore", &file]),
        (&["managedsave", DOMAIN], &["start", DOMAIN]),
    ];
    for (save, restore) in ways {
        // libvirt stops the VM first: what is held then stays behind.
        host.vsnoop()?.pause(PORT)?;
        host.libvirt.virsh(save)?;
        host.until_port("the port is gone with its domain", Value::is_null)?;
        host.libvirt.virsh(restore)?;
        host.until_port("the tap is attached again", is_active)?;
        until_accelerated(&site, host)?;
    }
    upload.finish().with_context(|| service_log(host).unwrap_or_default())
}

pub fn hooked_migrations() -> Result<()> {
    let _only = service();
    let [here, there] = [Directory::new()?, Directory::new()?];
    let calls = [Calls::of(&here)?, Calls::of(&there)?];
    let site = Site::new(here)?;
    let other = Host::beside(&site.host, there)?;
    let _service = serve(&[&site.host, &other], "")?;
    site.create(&Domain { is_movable: true, ..Domain::default() })?;
    site.until_the_guest_serves()?;
    site.host.until_port("the domain's tap is attached", is_active)?;
    let upload = Upload::begin(&site.client, Site::server())?;
    site.host.until_accelerated()?;
    let is_paused = |port: &Value| port["paused_by"] == "operator";
    give_up(&site.host, &other, is_paused)?;
    let ways = [(&site.host, &other, Way::Direct), (&other, &site.host, Way::Tunnelled)];
    for ((from, to, way), calls) in ways.into_iter().zip(&calls) {
        calls.forget()?;
        migrate(from, to, way, BANDWIDTH)?;
        // Its status 0 says that everything was delivered.
        calls.until_made(&format!("pause {PORT} 0"))?;
        ensure_moved(&site, from, to)?;
    }
    upload.finish().with_context(|| service_log(&site.host).unwrap_or_default())
}
