//! A tap that an operator has detached stays off, whatever happens to the service.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::Value;
use vsnoop_testbed::net::{Netns, Tap, TapOptions};

use crate::hold::ConfigFile;
use crate::sandbox::{PORT, Ran, TapHost, pins, vsnoop, vsnoop_in, wait_until};
use crate::service::{Service, ports};

const MARKS: &str = "/run/vsnoop/detached";

pub fn trials() -> Vec<Trial> {
    trials![
        what_an_operator_detaches_stays_off_when_the_service_starts_again_or_was_killed,
        what_is_detached_while_the_service_is_stopped_stays_off_if_it_is_named,
        a_mark_goes_with_its_tap_and_with_a_reload,
        what_is_no_mark_is_ignored_with_a_warning,
        a_port_whose_pins_are_removed_stays_off,
    ]
}

/// A host with a tap that a table wants, and others to see that the service has looked at all.
struct Scene {
    netns: Netns,
    tap: Tap,
    config: ConfigFile,
    others: Vec<Tap>,
}

impl Scene {
    fn new(role: &str) -> Result<Self> {
        let TapHost { netns, tap } = TapHost::new(role)?;
        // Those of other tests' taps stay until a service looks.
        let _ = fs::remove_dir_all(MARKS);
        let config = ConfigFile::for_netns(&netns, "[[port]]\nhold = \"1M\"\n")?;
        Ok(Self { netns, tap, config, others: Vec::new() })
    }

    fn start(&self) -> Result<Service> {
        Service::start(&self.netns, Some(&self.config))
    }

    fn vsnoop<const N: usize>(&self, arguments: [&str; N]) -> Result<Ran> {
        vsnoop_in(self.netns.name(), arguments)
    }

    fn is_attached(&self, name: &str) -> Result<bool> {
        Ok(ports(&self.netns)?.iter().any(|port| port["port"] == name))
    }

    fn until_attached(&self) -> Result<()> {
        wait_until("the tap is attached", || self.is_attached(PORT))
    }

    /// Returns once the service has attached a tap that came after what was done before.
    fn until_looked(&mut self) -> Result<()> {
        let name = format!("vnet{}", self.others.len());
        self.others.push(self.netns.tap(&name, &TapOptions::default())?);
        self.netns.up(&name)?;
        wait_until("the next tap is attached", || self.is_attached(&name))
    }

    /// The tap stays as it is, and `status` says why.
    fn expect_detached(&mut self) -> Result<()> {
        self.until_looked()?;
        ensure!(!self.is_attached(PORT)?, "what an operator has detached came back");
        self.until_detached()
    }

    fn until_detached(&self) -> Result<()> {
        wait_until("status says that the tap stays off", || {
            let json = vsnoop(["status", "--service", "--json"])?.json()?;
            Ok(json["detached_by_operator"][0]["port"] == PORT)
        })
    }
}

fn marks() -> usize {
    fs::read_dir(MARKS).map_or(0, Iterator::count)
}

fn what_an_operator_detaches_stays_off_when_the_service_starts_again_or_was_killed() -> Result<()> {
    let mut scene = Scene::new("again")?;
    let mut service = scene.start()?;
    scene.until_attached()?;
    let ran = scene.vsnoop(["detach", PORT])?.ok()?;
    ensure!(ran.unfolded().contains("the service leaves it off until `vsnoop reload`"), "{ran:?}");
    // It has had no event that makes it look.
    scene.until_detached()?;
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        service.end(signal)?;
        service = scene.start()?;
        scene.expect_detached()?;
    }
    // An operator attaches it again, and takes it off again, with everything else.
    let ran = scene.vsnoop(["attach", PORT, "--hold", "1M"])?.ok()?;
    let words = "a service runs, and leaves what a command has attached as it is";
    ensure!(ran.unfolded().contains(words), "{ran:?}");
    ensure!(marks() == 0, "an attached port has a mark");
    let ran = scene.vsnoop(["detach", PORT, "--json"])?.json()?;
    ensure!(ran["service_running"] == true, "{ran}");
    ensure!(ran["ports"][0]["detached_until"] == "reload", "{ran}");
    let ran = scene.vsnoop(["attach", PORT, "--hold", "1M", "--json"])?.json()?;
    ensure!(ran["service_running"] == true, "{ran}");
    vsnoop(["off", "--all"])?.ok()?;
    service.end(Signal::SIGKILL)?;
    let service = scene.start()?;
    scene.expect_detached()?;
    service.end(Signal::SIGTERM)?;
    vsnoop(["off", "--all"])?.ok().map(drop)
}

fn what_is_detached_while_the_service_is_stopped_stays_off_if_it_is_named() -> Result<()> {
    let mut scene = Scene::new("stopped")?;
    let service = scene.start()?;
    scene.until_attached()?;
    service.end(Signal::SIGTERM)?;
    let ran = scene.vsnoop(["detach", PORT])?.ok()?;
    ensure!(ran.unfolded().contains("the service leaves it off until `vsnoop reload`"), "{ran:?}");
    let service = scene.start()?;
    scene.expect_detached()?;
    vsnoop(["reload"])?.ok()?;
    scene.until_attached()?;
    service.end(Signal::SIGTERM)?;
    // As a package does before an upgrade to another layout: the next service attaches them.
    let ran = vsnoop(["detach", "--all"])?.ok()?;
    ensure!(ran.unfolded().contains("no service runs: the next one may attach it"), "{ran:?}");
    ensure!(ports(&scene.netns)?.is_empty() && marks() == 0, "{} marks", marks());
    let service = scene.start()?;
    scene.until_attached()?;
    // As a pod does before it ends, with its service still there: the next pod's attaches them.
    let ran = vsnoop(["detach", "--all", "--until-start", "--json"])?.json()?;
    ensure!(ran["service_running"] == true, "{ran}");
    let ports = ran["ports"].as_array().context("no ports")?;
    ensure!(!ports.is_empty(), "{ran}");
    ensure!(ports.iter().all(|port| port["detached_until"] == "start"), "{ran}");
    scene.expect_detached()?;
    service.end(Signal::SIGTERM)?;
    let service = scene.start()?;
    scene.until_attached()?;
    ensure!(marks() == 0, "{} marks", marks());
    service.end(Signal::SIGTERM)?;
    vsnoop(["off", "--all"])?.ok()?;
    // What a command has attached and taken off without a service is like any other tap.
    let ran = scene.vsnoop(["attach", PORT])?.ok()?;
    ensure!(ran.unfolded().contains("no service runs: a tap that is deleted"), "{ran:?}");
    let status = scene.vsnoop(["status"])?.ok()?;
    ensure!(status.unfolded().contains("no service runs: taps that come"), "{status:?}");
    let ran = scene.vsnoop(["detach", PORT, "--json"])?.json()?;
    ensure!(ran["service_running"] == false, "{ran}");
    ensure!(ran["ports"][0]["detached_until"].is_null(), "{ran}");
    ensure!(marks() == 0, "{} marks", marks());
    Ok(())
}

fn a_mark_goes_with_its_tap_and_with_a_reload() -> Result<()> {
    let mut scene = Scene::new("gone")?;
    let service = scene.start()?;
    scene.until_attached()?;
    scene.vsnoop(["detach", PORT])?.ok()?;
    scene.expect_detached()?;
    service.end(Signal::SIGKILL)?;
    // Another tap of that name, while no service runs.
    drop(scene.tap);
    scene.tap = scene.netns.tap(PORT, &TapOptions::default())?;
    scene.netns.up(PORT)?;
    let service = scene.start()?;
    scene.until_attached()?;
    ensure!(marks() == 0, "the mark of a tap that is gone stays");
    scene.vsnoop(["detach", PORT])?.ok()?;
    scene.expect_detached()?;
    service.signal(Signal::SIGHUP)?;
    scene.until_attached()?;
    ensure!(marks() == 0, "a reload has left a mark");
    let json: Value = vsnoop(["status", "--service", "--json"])?.json()?;
    ensure!(json["detached_by_operator"].as_array().is_some_and(Vec::is_empty), "{json}");
    service.end(Signal::SIGTERM)?;
    vsnoop(["off", "--all"])?.ok().map(drop)
}

fn what_is_no_mark_is_ignored_with_a_warning() -> Result<()> {
    let scene = Scene::new("foreign")?;
    let marks = Path::new(MARKS);
    fs::create_dir_all(marks)?;
    fs::write(marks.join("1-2-3"), [0xff; 1 << 16])?;
    fs::create_dir(marks.join("7-7"))?;
    let service = scene.start()?;
    scene.until_attached()?;
    service.until_logged("is no mark of a detached tap: ignored")?;
    service.end(Signal::SIGTERM)?;
    vsnoop(["off", "--all"])?.ok()?;
    // Not even a directory.
    fs::remove_dir_all(marks)?;
    fs::write(marks, "")?;
    let service = scene.start()?;
    scene.until_attached()?;
    service.until_logged("read /run/vsnoop/detached")?;
    // A port is detached all the same.
    let ran = scene.vsnoop(["detach", PORT])?.ok()?;
    ensure!(ran.err.contains("the service may attach it again"), "{ran:?}");
    service.end(Signal::SIGTERM)?;
    fs::remove_file(marks)?;
    vsnoop(["off", "--all"])?.ok().map(drop)
}

/// By hand, as with a damaged port.
fn a_port_whose_pins_are_removed_stays_off() -> Result<()> {
    let mut scene = Scene::new("pins")?;
    let service = scene.start()?;
    scene.until_attached()?;
    let pins = pins(&scene.netns)?;
    fs::remove_dir_all(&pins).with_context(|| format!("remove {}", pins.display()))?;
    scene.expect_detached()?;
    service.until_logged("was taken off by another program")?;
    service.end(Signal::SIGTERM)?;
    vsnoop(["off", "--all"])?.ok().map(drop)
}
