//! Domains that move, are saved, or do not get that far, under an upload: with a monitor for the
//! service, and with libvirt's hook where there is none.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use vsnoop_testbed::topology::PORT;
use vsnoop_testbed::vsnoop::{PATIENTLY, Service, Vsnoop};
use vsnoop_testbed::wait::wait_until;

use super::daemon::Directory;
use super::hook::Calls;
use super::service;
use super::site::{DOMAIN, Domain, Host, PATIENCE, Site, is_active};
use super::upload::{ENDLESS_BYTES, LONG_BYTES, Upload};

/// MiB in a second: the copying of memory takes some seconds, as that of a large VM does.
const BANDWIDTH: &str = "16";
/// A migration at this bandwidth lasts longer than what cancels it.
const SLOW: &str = "1";
/// A transfer is a megabyte each way; nearly always the first one is acknowledged early.
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

/// For new connections: of those that came along the window scale is unknown
/// (docs/reference/limits.md).
pub fn until_accelerated(site: &Site, host: &Host) -> Result<()> {
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
    let upload = Upload::begin(&site.client, Site::server(), LONG_BYTES)?;
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

/// A domain that the service follows, on one host.
fn followed_alone() -> Result<(Site, Service)> {
    let site = Site::new(Directory::new()?)?;
    let service = serve(&[&site.host], &format!("qmp = \"{}\"\n", site.host.monitor()))?;
    site.create(&Domain { is_followed: true, ..Domain::default() })?;
    site.until_the_guest_serves()?;
    site.host.until_port("the domain's tap is attached", is_active)?;
    Ok((site, service))
}

/// libvirt saves the memory while the domain runs, and while it is stopped.
pub fn followed_snapshots() -> Result<()> {
    let _only = service();
    let (site, _service) = followed_alone()?;
    let host = &site.host;
    let upload = Upload::begin(&site.client, Site::server(), LONG_BYTES)?;
    let snapshots = [("live", &["--live"][..]), ("stopped", &[])];
    for (taken, (name, options)) in (1..).zip(snapshots) {
        host.until_accelerated()?;
        let memory = format!("file={}/{name},snapshot=external", host.libvirt.path().display());
        let snapshot = ["snapshot-create-as", DOMAIN, name, "--memspec", &memory];
        host.libvirt.virsh(&[&snapshot, options].concat())?;
        wait_until("the port was paused for it, and goes on", PATIENCE, || {
            let log = service_log(host)?;
            let said = |words: &str| log.matches(words).count() == taken;
            Ok(said("paused, its VM is being migrated or saved") && said("goes on, its VM is here"))
        })
        .with_context(|| service_log(host).unwrap_or_default())?;
        host.until_port("the port is active", is_active)?;
    }
    host.until_accelerated()?;
    upload.finish().with_context(|| service_log(host).unwrap_or_default())
}

/// An upload that is acknowledged early, and the file into which its domain will be saved.
fn begin_before_saving(site: &Site, size_bytes: u64) -> Result<(Upload, String)> {
    let upload = Upload::begin(&site.client, Site::server(), size_bytes)?;
    site.host.until_accelerated()?;
    Ok((upload, site.host.libvirt.path().join("saved").to_string_lossy().into_owned()))
}

/// Starts a saved domain by this command of virsh, until its new connections are accelerated.
fn come_back(site: &Site, command: &[&str]) -> Result<()> {
    site.host.libvirt.virsh(command)?;
    site.host.until_port("the tap is attached again", is_active)?;
    until_accelerated(site, &site.host)
}

pub fn saving() -> Result<()> {
    let _only = service();
    let (site, _service) = followed_alone()?;
    let host = &site.host;
    let (upload, file) = begin_before_saving(&site, LONG_BYTES)?;
    let ways: [(&[&str], &[&str]); 2] = [
        (&["save", DOMAIN, &file], &["restore", &file]),
        (&["managedsave", DOMAIN], &["start", DOMAIN]),
    ];
    for (save, restore) in ways {
        // libvirt stops the VM first: it would not get what is held then.
        host.vsnoop()?.pause_with(PORT, PATIENTLY)?;
        host.libvirt.virsh(save)?;
        host.until_port("the port is gone with its domain", Value::is_null)?;
        come_back(&site, restore)?;
    }
    upload.finish().with_context(|| service_log(host).unwrap_or_default())
}

/// libvirt stops the VM before it has taken all bytes: the rest is not delivered, and the sender
/// learns of it.
pub fn saving_without_a_pause() -> Result<()> {
    let _only = service();
    let (site, _service) = followed_alone()?;
    let host = &site.host;
    let (upload, file) = begin_before_saving(&site, ENDLESS_BYTES)?;
    thread::scope(|scope| {
        // Without pauses from now on.
        let sending = scope.spawn(|| upload.end());
        host.until_port("much is outstanding", |port| {
            port["outstanding_bytes"].as_u64() > Some(100_000)
        })?;
        host.libvirt.virsh(&["save", DOMAIN, &file])?;
        let sent = sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let error = sent.err().context("the upload went on")?;
        let kind = error.root_cause().downcast_ref::<io::Error>().map(io::Error::kind);
        let is_told = [Some(ErrorKind::ConnectionReset), Some(ErrorKind::BrokenPipe)];
        ensure!(is_told.contains(&kind), "instead of a reset: {error:#}");
        Ok(())
    })?;
    host.until_port("the port is gone with its domain", Value::is_null)?;
    wait_until("the undelivered bytes are logged", PATIENCE, || {
        Ok(service_log(host)?.contains("its VM has left without"))
    })
    .with_context(|| service_log(host).unwrap_or_default())?;
    wait_until("it is counted", PATIENCE, || {
        Ok(counter("vsnoop_migrations_undelivered_bytes_total")? > 0.0)
    })?;
    come_back(&site, &["restore", &file])
}

/// The service's counter of this name.
fn counter(name: &str) -> Result<f64> {
    let mut stream = TcpStream::connect("127.0.0.1:19755")?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let value = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(value.with_context(|| format!("no {name}: {answer}"))?.parse()?)
}

pub fn hooked_migrations() -> Result<()> {
    let _only = service();
    let [here, there] = [Directory::new()?, Directory::new()?];
    let calls = [Calls::install(&here)?, Calls::install(&there)?];
    let site = Site::new(here)?;
    let other = Host::beside(&site.host, there)?;
    let _service = serve(&[&site.host, &other], "")?;
    site.create(&Domain { is_movable: true, ..Domain::default() })?;
    site.until_the_guest_serves()?;
    site.host.until_port("the domain's tap is attached", is_active)?;
    let upload = Upload::begin(&site.client, Site::server(), LONG_BYTES)?;
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
