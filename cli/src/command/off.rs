//! `vsnoop off --all`: the panic switch.
//!
//! It does not wait for VMs, and waits for the lock of commands only a few seconds. All attachments
//! of the host are removed, whatever the state of their pins; then default qdiscs are restored,
//! within a limit of two seconds and 50 ms for each. Bytes that were acknowledged early and handed
//! over are in the taps' rings or in the VMs; connections with held bytes are reset first. For
//! damaged pins these are not known.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use vsnoop_bpf::types::port_meta;
use vsnoop_bpf::{Damaged, Listed, Port, UplinkId};
use vsnoop_hold::detach_resets::Ended;
use vsnoop_host::detached_by_operator::{Mark, Marks, Until};
use vsnoop_host::error::{Error, with_causes};
use vsnoop_host::holds::amount;
use vsnoop_host::lock::CommandLock;
use vsnoop_host::port_removal;
use vsnoop_host::split;
use vsnoop_host::system::netns::{self, Netns};
use vsnoop_host::system::{kernel, netdev, qdisc};
use vsnoop_host::units;
use vsnoop_service::control;

use crate::background::{self, Role};
use crate::cli::Cli;
use crate::error::{EXIT_RUNTIME, usage_error};
use crate::output::watch::print_text;
use crate::splitter;

/// Limits of time for all default qdiscs together, also for the lock of commands, and for each: a
/// lock of the kernel that is not free by then may never be.
const LIMIT: Duration = Duration::from_secs(2);
const LIMIT_EACH: Duration = Duration::from_millis(50);
/// Pause between tries to take the lock of commands.
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

#[derive(Default, Serialize)]
struct OffDocument {
    /// Names of removed directories of pins.
    removed: Vec<String>,
    damaged_removed: Vec<String>,
    failed: Vec<Failed>,
    qdiscs_restored: Vec<String>,
    /// Ports that still have noqueue in the place of their default.
    qdiscs_left: Vec<String>,
    /// Connections that were reset because of held bytes, and these bytes.
    reset_flows: u64,
    reset_bytes: u64,
}

#[derive(Serialize)]
struct Failed {
    path: String,
    error: String,
}

impl OffDocument {
    fn note_failure(&mut self, path: &Path, error: &anyhow::Error) {
        let path = path.display().to_string();
        self.failed.push(Failed { path, error: error.to_string() });
    }
}

/// A default qdisc to restore.
struct Replaced {
    /// Name of the port, or of its pins where no record gives it.
    name: String,
    netns: u64,
    ifindex: u32,
    /// Otherwise the qdisc itself shows whether vsnoop has set it.
    is_recorded: bool,
}

pub fn run(cli: &Cli) -> Result<u8> {
    if let Some(netns) = &cli.netns {
        return Err(usage_error(format!(
            "`off --all` takes all ports of the host off; `vsnoop --netns {netns} detach --all` those \
             of one network namespace"
        )));
    }
    kernel::require()?;
    let mut document = OffDocument::default();
    let mut replaced = Vec::new();
    let mut left = Vec::new();
    let mut ended = Ended::default();
    let mut damaged = Vec::new();
    let all: Vec<_> = Port::list()?.into_iter().chain(Port::unfinished()?).collect();
    // With the service stopped, everything is off until that starts.
    if control::is_served() {
        mark_detached(&all);
    }
    end_downloads();
    for listed in all {
        match listed {
            Listed::Port(port) => {
                let path = port.dir().to_owned();
                replaced.extend(port.meta().ok().and_then(|meta| replaced_qdisc(&meta)));
                match take_off(*port, &mut left, &mut ended) {
                    Ok(()) => document.removed.push(file_name(&path)),
                    Err(error) => document.note_failure(&path, &error),
                }
            }
            Listed::Damaged(found) => damaged.push(found),
        }
    }
    for damaged in damaged {
        replaced.extend(match damaged.meta() {
            Some(meta) => replaced_qdisc(&meta),
            None => unrecorded_qdisc(&damaged),
        });
        match damaged.remove() {
            Ok(()) if damaged.is_arriving() => document.removed.push(file_name(&damaged.path)),
            Ok(()) => document.damaged_removed.push(file_name(&damaged.path)),
            Err(error) => document.note_failure(&damaged.path, &error.into()),
        }
    }
    left.into_iter().for_each(|port| finish_port(port, &mut ended));
    (document.reset_flows, document.reset_bytes) = (ended.flows, ended.held_bytes);
    vsnoop_bpf::sweep();
    if let Err(error) = vsnoop_bpf::Uplink::sweep(&[]) {
        eprintln!("vsnoop: uplinks: {error}");
    }
    restore_replaced(replaced, &mut document);
    forget_downloads();

    if cli.json {
        print_text(&serde_json::to_string(&document)?)?;
    } else {
        print_text(&render_text(&document))?;
    }
    for failed in &document.failed {
        eprintln!("vsnoop: {}: {}; remove it with rm -r", failed.path, failed.error);
    }
    if ended.flows > 0 {
        eprintln!(
            "vsnoop: {} had not been handed to VMs: they were lost with the holds, and these \
             connections were reset at both ends",
            amount(ended.held_bytes, ended.flows)
        );
    }
    for port in &document.qdiscs_left {
        eprintln!(
            "vsnoop: port {port} still has noqueue in the place of its default qdisc; \
             restore it with `tc qdisc del dev {port} root`"
        );
    }
    Ok(if document.failed.is_empty() { 0 } else { EXIT_RUNTIME })
}

/// Without splitter and keeper the kernel resets both ends of what is split, while the programs are
/// still there to let them know.
fn end_downloads() {
    // A helper may start a splitter meanwhile, which takes up what the keeper has.
    for role in [Role::Splitter, Role::Keeper, Role::Splitter] {
        background::kill_running(role);
    }
}

/// Removes the devices of downloads, and their network namespace. The helper has the lock for
/// moments; after a command that has it for longer, the next one does this.
fn forget_downloads() {
    let forget = || -> Result<()> {
        if !split::namespace::path().exists() {
            return Ok(());
        }
        let until = Instant::now() + LIMIT;
        let lock = loop {
            match CommandLock::try_take()? {
                Some(lock) => break lock,
                None if Instant::now() >= until => return Ok(()),
                None => thread::sleep(BETWEEN_TRIES),
            }
        };
        split::sweep(&lock)?;
        splitter::forget_unused(&lock);
        Ok(())
    };
    if let Err(error) = forget() {
        eprintln!("vsnoop: downloads: {error:#}; the next command tries again");
    }
}

/// Keeps the service from attaching these ports again. Best effort.
fn mark_detached(all: &[Listed]) {
    let metas = all.iter().filter_map(|listed| match listed {
        Listed::Port(port) => port.meta().ok(),
        Listed::Damaged(damaged) => damaged.meta(),
    });
    let metas: Vec<_> = metas.collect();
    let say = |error: &Error| {
        let error = with_causes(error);
        eprintln!("vsnoop: the service may attach a port again: {error}");
    };
    let mut marks = Vec::new();
    for (inode, path) in netns_paths(metas.iter().map(|meta| meta.netns)) {
        match Netns::open(&path.to_string_lossy()).and_then(|netns| netns.cookie()) {
            Ok(netns_cookie) => {
                let of_netns = metas.iter().filter(|meta| meta.netns == inode);
                marks.extend(of_netns.map(|meta| Mark { netns_cookie, ifindex: meta.ifindex }));
            }
            Err(error) => say(&error),
        }
    }
    if let Err(error) = Marks::of_host().add_all(&marks, Until::Reload) {
        say(&error);
    }
}

/// Resets connections with held bytes, and takes the hooks off; the rest can wait.
fn take_off(mut port: Port, left: &mut Vec<Port>, ended: &mut Ended) -> Result<()> {
    match port_removal::end_held_of(&port) {
        Ok(others) => ended.add(others),
        // Tried again once the hooks are off.
        Err(error) => eprintln!("vsnoop: resetting what is held: {}", with_causes(&error)),
    }
    match port.leave() {
        Ok(true) => left.push(port),
        Ok(false) => {}
        Err(error) => {
            // Removes the pins all the same: the kernel then takes the hooks off.
            port.detach()?;
            return Err(error.into());
        }
    }
    Ok(())
}

/// Best effort, since the hooks are off. Resets the senders of a deleted tap.
fn finish_port(port: Port, ended: &mut Ended) {
    match port_removal::finish_one(port) {
        Ok(others) => ended.add(others),
        Err(error) => {
            let error = with_causes(&error);
            eprintln!("vsnoop: cleaning up: {error}; the next command tries again");
        }
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn replaced_qdisc(meta: &port_meta) -> Option<Replaced> {
    if meta.qdisc[0] == 0 {
        return None;
    }
    let name = meta.ifname.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8 as char);
    let (name, netns, ifindex) = (name.collect(), meta.netns, meta.ifindex);
    Some(Replaced { name, netns, ifindex, is_recorded: true })
}

/// The default qdisc of a port whose record is missing.
fn unrecorded_qdisc(damaged: &Damaged) -> Option<Replaced> {
    let UplinkId { netns, ifindex } = UplinkId::from_directory(&damaged.path)?;
    Some(Replaced { name: file_name(&damaged.path), netns, ifindex, is_recorded: false })
}

/// On a thread of its own, so that a kernel lock cannot delay the switch.
fn restore_replaced(replaced: Vec<Replaced>, document: &mut OffDocument) {
    let recorded = replaced.iter().filter(|port| port.is_recorded);
    document.qdiscs_left = recorded.map(|port| port.name.clone()).collect();
    let until = Instant::now() + LIMIT + LIMIT_EACH * replaced.len() as u32;
    let (done, results) = mpsc::channel();
    let restorer = thread::Builder::new().spawn(move || {
        let paths = netns_paths(replaced.iter().map(|port| port.netns));
        for port in replaced {
            let netns = paths.get(&port.netns);
            let is_restored = match netns.and_then(|path| Netns::open(&path.to_string_lossy()).ok())
            {
                Some(netns) => netns.run(|| restore_one(&port)),
                // A namespace that is gone has no taps.
                None => Ok(port.is_recorded),
            };
            if done.send((port.name, is_restored.ok())).is_err() {
                return;
            }
        }
    });
    if let Err(error) = restorer {
        eprintln!("vsnoop: no thread to restore default qdiscs: {error}");
    }
    while let Ok((name, is_restored)) =
        results.recv_timeout(until.saturating_duration_since(Instant::now()))
    {
        let Some(is_restored) = is_restored else { continue };
        document.qdiscs_left.retain(|left| *left != name);
        if is_restored {
            document.qdiscs_restored.push(name);
        }
    }
}

/// False if there was nothing to restore.
fn restore_one(port: &Replaced) -> Result<bool, Error> {
    let Some(device) = netdev::find_index(port.ifindex)? else { return Ok(port.is_recorded) };
    if !port.is_recorded && !qdisc::is_of_vsnoop(&device)? {
        return Ok(false);
    }
    qdisc::restore_default(&device)?;
    Ok(true)
}

/// Paths of the network namespaces with these inodes, found in one pass over the host.
fn netns_paths(inodes: impl Iterator<Item = u64>) -> HashMap<u64, PathBuf> {
    let inodes: HashSet<u64> = inodes.collect();
    let mut places = netns::paths();
    places.retain(|inode, _| inodes.contains(inode));
    places
}

fn render_text(document: &OffDocument) -> String {
    let count = document.removed.len() + document.damaged_removed.len();
    if count == 0 && document.failed.is_empty() {
        return "nothing was attached".into();
    }
    let mut text = format!("{} taken off", units::plural(count as u64, "port"));
    if !document.damaged_removed.is_empty() {
        text.push_str(&format!(", {} of them damaged", document.damaged_removed.len()));
    }
    text.push_str(&format!(
        "; {} restored",
        units::plural(document.qdiscs_restored.len() as u64, "default qdisc")
    ));
    if document.reset_flows > 0 {
        text.push_str(&format!("; {} reset", units::plural(document.reset_flows, "connection")));
    }
    text
}
