//! The `vsnoop` command on the port of a topology, and the proof that it left nothing there.

use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;
use vsnoop_testbed::net::{Netns, check};
use vsnoop_testbed::topology::{Family, PORT, Topology};
use vsnoop_testbed::vsnoop::PATIENTLY;
use vsnoop_testbed::{wait, workspace};

use crate::pair::Pair;

/// Far longer than a VM takes to acknowledge what waits in its ring, or a guest without KVM, on a
/// busy machine, to start an engine.
const PATIENCE: Duration = Duration::from_secs(600);

/// Whether tests attach at all; the streams alone prove the network.
pub fn is_wanted() -> bool {
    std::env::var_os("VSNOOP_NETNS_DETACHED").is_none_or(|value| value != "1")
}

/// Fields of `resets` in `vsnoop stats --json` that count connections.
const RESET_REASONS: [&str; 8] =
    ["refused", "silent", "engine_gone", "detached", "no_reader", "rolled_back", "moved", "by_vm"];
/// Commands that take the lock of `/run/vsnoop`, some for long. Another waits 20 s for it, which is
/// not enough on a busy machine where several do.
const LOCKING: [&str; 4] = ["attach", "detach", "incast", "set"];
/// Held while one of them runs: tests run side by side.
static LOCK: Mutex<()> = Mutex::new(());
/// Option of `attach`: acknowledge nothing early.
const OBSERVE: &str = "--observe";

/// An attachment; dropping it detaches, also if the test failed.
pub struct Attached<'a> {
    host: &'a Netns,
    hold: Option<&'static str>,
    options: &'static [&'static str],
    queueing_before: String,
    attached: bool,
}

impl<'a> Attached<'a> {
    /// Attaches, unless tests of the bare network are wanted, and waits until the port holds.
    pub fn new(topology: &'a Topology) -> Result<Self> {
        let this = Self::with(topology, None, &[])?;
        this.until_it_holds(topology)?;
        Ok(this)
    }

    /// Attaches with a hold of this size, or the default one, and with these options.
    pub fn with(
        topology: &'a Topology,
        hold: Option<&'static str>,
        options: &'static [&'static str],
    ) -> Result<Self> {
        Self::on(&topology.host, hold, options)
    }

    /// Like [`Attached::with`], to the port of this host.
    pub fn on(
        host: &'a Netns,
        hold: Option<&'static str>,
        options: &'static [&'static str],
    ) -> Result<Self> {
        let queueing_before = queueing(host)?;
        let mut this = Self { host, hold, options, queueing_before, attached: false };
        this.attach()?;
        Ok(this)
    }

    /// Does the port acknowledge early, and so hold copies?
    pub fn has_hold(&self) -> bool {
        self.attached && !self.options.contains(&OBSERVE)
    }

    pub fn attach(&mut self) -> Result<()> {
        self.attach_with(&[])
    }

    /// Attaches with more arguments.
    pub fn attach_with(&mut self, arguments: &[&str]) -> Result<()> {
        if is_wanted() {
            // Set first: an attach that failed halfway is to be detached as well.
            self.attached = true;
            let hold = self.hold.map_or(vec![], |size| vec!["--hold", size]);
            vsnoop(self.host, &[&["attach", PORT], self.options, arguments, &hold].concat())?;
            if self.has_hold() {
                // The hooks hold no segment before an engine runs that can hand it over.
                self.wait_until("an engine is there", || Ok(self.hold_text("engine")? == "alive"))?;
            }
        }
        Ok(())
    }

    /// The port's counter of this name.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let stats = self.stats()?;
        find(&stats, name).with_context(|| format!("vsnoop stats has no counter {name}: {stats}"))
    }

    /// The field of this name in the present state of the port's hold.
    pub fn hold(&self, name: &str) -> Result<u64> {
        let stats = self.stats()?;
        stats["ports"][0]["hold"][name]
            .as_u64()
            .with_context(|| format!("vsnoop stats has no {name} of a hold: {stats}"))
    }

    /// Mode of the connection from this port number.
    pub fn mode_of(&self, sender: u16) -> Result<String> {
        let text = vsnoop(self.host, &["flows", PORT, "--json"])?;
        let flows: Value = serde_json::from_str(&text).context("vsnoop flows printed no JSON")?;
        let flows = flows["ports"][0]["flows"].as_array().context("no connections")?;
        let is_it = |flow: &&Value| {
            flow["sender"].as_str().is_some_and(|it| it.ends_with(&format!(":{sender}")))
        };
        let flow = flows.iter().find(is_it).with_context(|| format!("no {sender}: {text}"))?;
        Ok(flow["mode"].as_str().context("no mode")?.to_owned())
    }

    /// Like [`Attached::hold`], for a field that is a word.
    pub fn hold_text(&self, name: &str) -> Result<String> {
        let stats = self.stats()?;
        let word = stats["ports"][0]["hold"][name].as_str();
        Ok(word
            .with_context(|| format!("vsnoop stats has no {name} of a hold: {stats}"))?
            .to_owned())
    }

    /// The port's uplink, as incast control sees it: the field of this name.
    pub fn uplink(&self, name: &str) -> Result<u64> {
        let stats = self.stats()?;
        stats["ports"][0]["incast"][name]
            .as_u64()
            .with_context(|| format!("vsnoop stats has no {name} of an uplink: {stats}"))
    }

    fn stats(&self) -> Result<Value> {
        let text = vsnoop(self.host, &["stats", PORT, "--json"])?;
        serde_json::from_str(&text).context("vsnoop stats printed no JSON")
    }

    /// Waits until this holds, which looks at the port.
    pub fn wait_until(&self, what: &str, done: impl FnMut() -> Result<bool>) -> Result<()> {
        wait::wait_until(what, PATIENCE, done)
            .map_err(|error| anyhow!("{error:#}\n{}", self.describe()))
    }

    /// Sends over connections of their own until the host acknowledges one: memory for copies comes
    /// with the first connection of a port, and near as these ends are, their data may come before
    /// it.
    pub fn until_it_holds(&self, topology: &Topology) -> Result<()> {
        const BYTES: u64 = 1000;
        if !self.has_hold() {
            return Ok(());
        }
        self.wait_until("the host acknowledges early", || {
            let mut pair = Pair::connect(topology, Family::V4)?;
            pair.client.send(BYTES)?;
            pair.vm.receive(BYTES)?;
            pair.client.finish()?;
            pair.vm.expect_end()?;
            pair.vm.finish()?;
            pair.client.expect_end()?;
            Ok(self.counter("early_acks")? > 0)
        })
    }

    /// Waits until the port has no record of any connection, as after their end.
    pub fn until_memory_is_free(&self) -> Result<()> {
        self.wait_until("the hold's memory is free", || Ok(self.hold("used_bytes")? == 0))
    }

    /// The hold was used.
    pub fn ensure_held(&self) -> Result<()> {
        ensure!(!is_wanted() || self.counter("held_bytes")? > 0, "nothing was ever held");
        Ok(())
    }

    /// Connections that were reset on account of vsnoop for this reason.
    pub fn resets(&self, reason: &str) -> Result<u64> {
        let stats = self.stats()?;
        stats["ports"][0]["resets"][reason]
            .as_u64()
            .with_context(|| format!("vsnoop stats knows no reset for {reason}: {stats}"))
    }

    /// No connection was reset on account of vsnoop.
    pub fn ensure_no_reset(&self) -> Result<()> {
        for reason in RESET_REASONS {
            let count = self.resets(reason)?;
            ensure!(count == 0, "{count} resets: {reason}\n{}", self.describe());
        }
        Ok(())
    }

    /// Waits until the VM itself has acknowledged everything.
    pub fn until_nothing_is_outstanding(&self) -> Result<()> {
        self.wait_until("the VM acknowledges everything", || {
            let text = vsnoop(self.host, &["status", PORT, "--json"])?;
            let status: Value =
                serde_json::from_str(&text).context("vsnoop status printed no JSON")?;
            let bytes = find(&status, "outstanding_bytes");
            Ok(bytes.with_context(|| format!("no outstanding bytes: {status}"))? == 0)
        })
    }

    /// All output of the command's reports, for the message of a failed test.
    pub fn describe(&self) -> String {
        if !self.attached {
            return "not attached".to_owned();
        }
        ["stats", "flows"]
            .map(|what| {
                vsnoop(self.host, &[what, PORT, "--json"])
                    .map(|text| shorten(&text))
                    .unwrap_or_else(|error| format!("{error:#}"))
            })
            .join("\n")
    }

    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        if self.attached { vsnoop(self.host, arguments) } else { Ok(String::new()) }
    }

    /// `off` for the whole host.
    pub fn turn_all_off(&mut self) -> Result<()> {
        if std::mem::take(&mut self.attached) {
            let program = workspace::vsnoop_command()?;
            check(Command::new(program).args(["off", "--all"]))?;
        }
        Ok(())
    }

    /// The test deletes the port, and its pins with it.
    pub fn forget(&mut self) {
        self.attached = false;
    }

    /// Waits until the port, whose pins were removed, is as it was before it was attached.
    pub fn until_taken_off(&mut self) -> Result<()> {
        self.forget();
        wait::wait_until("the port has its queueing discipline back", PATIENCE, || {
            Ok(queueing(self.host)? == self.queueing_before)
        })
    }

    /// Detaches, and verifies that the port is as it was.
    pub fn detach(&mut self) -> Result<()> {
        if !self.attached {
            return Ok(());
        }
        vsnoop(self.host, &[&["detach", PORT], PATIENTLY].concat())?;
        self.attached = false;
        let queueing_after = queueing(self.host)?;
        ensure!(
            queueing_after == self.queueing_before,
            "detached, the queueing of {PORT} is '{queueing_after}', not '{}'",
            self.queueing_before
        );
        let status = vsnoop(self.host, &["status", "--json"])?;
        let status: Value =
            serde_json::from_str(&status).context("vsnoop status printed no JSON")?;
        ensure!(
            !mentions(&status, self.host.name()),
            "detached, vsnoop status still lists the port: {status}"
        );
        Ok(())
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        if self.attached
            && let Err(error) = vsnoop(self.host, &["detach", PORT])
        {
            eprintln!("cleaning up: {error:#}");
        }
    }
}

fn vsnoop(host: &Netns, arguments: &[&str]) -> Result<String> {
    let program = workspace::vsnoop_command()?;
    let is_locking = arguments.first().is_some_and(|verb| LOCKING.contains(verb));
    let _lock = is_locking.then(|| LOCK.lock().unwrap_or_else(PoisonError::into_inner));
    let output = Command::new(&program)
        .args(["--netns", host.name()])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {}", program.display()))?;
    ensure!(
        output.status.success(),
        "vsnoop {} failed ({}): {}",
        arguments.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    String::from_utf8(output.stdout).context("vsnoop printed something that is not text")
}

/// The root qdisc of the port.
fn queueing(host: &Netns) -> Result<String> {
    let links: Value = serde_json::from_str(&host.ip(&format!("-j link show {PORT}"))?)
        .context("ip printed no JSON")?;
    Ok(links[0]["qdisc"].as_str().unwrap_or_default().to_owned())
}

/// The first number of this name, at any depth.
fn find(value: &Value, name: &str) -> Option<u64> {
    match value {
        Value::Object(fields) => fields
            .get(name)
            .and_then(Value::as_u64)
            .or_else(|| fields.values().find_map(|field| find(field, name))),
        Value::Array(items) => items.iter().find_map(|item| find(item, name)),
        _ => None,
    }
}

fn mentions(value: &Value, name: &str) -> bool {
    match value {
        Value::String(text) => text == name,
        Value::Array(items) => items.iter().any(|item| mentions(item, name)),
        Value::Object(fields) => fields.values().any(|field| mentions(field, name)),
        _ => false,
    }
}

/// Histograms are long and mostly zeroes.
fn shorten(json: &str) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(json) else { return json.to_owned() };
    fn drop_arrays(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|_, field| {
                    field.as_u64() != Some(0)
                        && !field.as_array().is_some_and(|items| items.iter().all(Value::is_number))
                });
                fields.values_mut().for_each(drop_arrays);
            }
            Value::Array(items) => items.iter_mut().for_each(drop_arrays),
            _ => {}
        }
    }
    drop_arrays(&mut value);
    value.to_string()
}
