//! The hooks are attached in a mode that only measures; the qdisc stays. At the end everything is
//! removed again.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use vsnoop_bpf::Port;
use vsnoop_host::attach::{refuse_attached, refuse_too_many, spec};
use vsnoop_host::lock::CommandLock;
use vsnoop_host::ports;
use vsnoop_host::sweep;
use vsnoop_host::system::netns::Netns;
use vsnoop_host::system::process::Process;
use vsnoop_host::system::vcpu::{self, Shares, Vcpu};
use vsnoop_host::system::{holder, kernel, netdev};
use vsnoop_host::units;

use crate::cli::{self, Cli};
use crate::helper;
use crate::output::gain::Gain;
use crate::output::histogram::Histogram;
use crate::output::table;
use crate::output::watch::{Interrupt, print_text, refresh_screen};

/// One observed port; detached when dropped, also after an error.
struct Observed {
    name: String,
    port: Option<Port>,
    process: Option<Process>,
    started_at: Instant,
    vcpus_before: Vec<Vcpu>,
}

#[derive(Serialize)]
struct ObserveDocument {
    seconds: f64,
    ports: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    port: String,
    pid: Option<i32>,
    process: Option<String>,
    vcpus: usize,
    /// Shares of the time on the clock, 0 to 1; null without vCPUs.
    ran_share: Option<f64>,
    waited_share: Option<f64>,
    throttled_share: Option<f64>,
    flows: u64,
    /// Connections that the VM was seen to forward.
    forwarded: u64,
    /// From the hand-over of a byte to the VM's own ACK.
    ack_delay_ns: Histogram,
    /// Bytes of packets that the VM has received, and sent.
    received_bytes: u64,
    sent_bytes: u64,
    /// How much sooner what it receives, or sends, may be over; null without ACKs that were timed.
    gain: Option<Gain>,
}

pub fn run(cli: &Cli, arguments: &cli::Observe) -> Result<u8> {
    kernel::require()?;
    kernel::require_features()?;
    let netns = Netns::chosen(cli.netns.as_deref())?;
    let interrupt = Interrupt::catch_signals()?;
    let observed = start_observing(&arguments.ports, &netns)?;
    helper::ensure_running();

    let start = Instant::now();
    let end = arguments.duration.map(|seconds| start + Duration::from_secs_f64(seconds));
    let period = Duration::from_secs_f64(arguments.watch.max(0.05));
    loop {
        let now = Instant::now();
        let over = interrupt.is_set() || end.is_some_and(|end| now >= end);
        let document = ObserveDocument {
            seconds: start.elapsed().as_secs_f64(),
            ports: observed.iter().map(Observed::read_row).collect::<Result<_>>()?,
        };
        if !cli.json {
            refresh_screen(&render_text(&document, over), over)?;
        } else if over {
            print_text(&serde_json::to_string(&document)?)?;
        }
        if over {
            return Ok(0);
        }
        let next = now + period;
        interrupt.sleep_until(end.map_or(next, |end| end.min(next)));
    }
}

fn start_observing(names: &[String], netns: &Netns) -> Result<Vec<Observed>> {
    let lock = CommandLock::take()?;
    sweep::sweep(&lock)?;
    ports::once_each(names)
        .into_iter()
        .map(|name| {
            let port = netns.run(|| {
                let device = netdev::find_tap(name, netns.label())?;
                refuse_attached(&device, netns)?;
                let spec = spec(&device, netns)?;
                refuse_too_many(&spec, "detach a port")?;
                Ok::<_, anyhow::Error>(Port::attach(&spec)?)
            })?;
            let process = holder::of_tap(name, netns.inode).map(|holder| holder.process);
            let vcpus = process.as_ref().map_or(Vec::new(), |p| vcpu::of_process(p.pid));
            Ok(Observed {
                name: name.clone(),
                port: Some(port),
                process,
                started_at: Instant::now(),
                vcpus_before: vcpus,
            })
        })
        .collect()
}

impl Observed {
    fn read_row(&self) -> Result<Row> {
        let (flows, stats) = match &self.port {
            Some(port) => (port.flows()?.len() as u64, port.stats()?),
            None => Default::default(),
        };
        let now = self.process.as_ref().map_or(Vec::new(), |p| vcpu::of_process(p.pid));
        let shares =
            vcpu::shares(&self.vcpus_before, &now, self.started_at.elapsed().as_nanos() as u64);
        let share = |part: fn(Shares) -> f64| (!now.is_empty()).then(|| part(shares));
        let ack_delay_ns = Histogram::new(&stats.ack_delay_ns);
        Ok(Row {
            port: self.name.clone(),
            pid: self.process.as_ref().map(|process| process.pid),
            process: self.process.as_ref().map(|process| process.name.clone()),
            vcpus: now.len(),
            ran_share: share(|shares| shares.ran),
            waited_share: share(|shares| shares.waited),
            throttled_share: share(|shares| shares.throttled),
            flows,
            forwarded: stats.forwarded,
            received_bytes: stats.to_vm_bytes,
            sent_bytes: stats.from_vm_bytes,
            gain: ack_delay_ns.p50.map(Gain::from_delay),
            ack_delay_ns,
        })
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        if let Some(port) = self.port.take()
            && let Err(error) = port.detach()
        {
            eprintln!(
                "vsnoop: port {}: {error}; `vsnoop off --all` removes what is left",
                self.name
            );
        }
        vsnoop_bpf::sweep();
    }
}

fn render_text(document: &ObserveDocument, over: bool) -> String {
    let mut rows = table::new(&[
        "port",
        ">flows",
        ">forwarded",
        ">ACKs timed",
        ">p50",
        ">p90",
        ">p99",
        ">vCPU waits",
        ">throttled",
    ]);
    for row in &document.ports {
        let delay = |value: Option<u64>| value.map_or("-".into(), units::duration);
        let share = |value: Option<f64>| value.map_or("-".into(), units::percent);
        rows.add_row([
            row.port.clone(),
            units::count(row.flows),
            units::count(row.forwarded),
            units::count(row.ack_delay_ns.count),
            delay(row.ack_delay_ns.p50),
            delay(row.ack_delay_ns.p90),
            delay(row.ack_delay_ns.p99),
            share(row.waited_share),
            share(row.throttled_share),
        ]);
    }
    format!(
        "{} the ACK delay of VMs for {} (no packet is changed{})\n{}{}",
        if over { "observed" } else { "observing" },
        units::seconds(document.seconds),
        if over { "" } else { "; Ctrl-C ends" },
        table::render_table(&rows),
        gain_text(&document.ports)
    )
}

/// A table of each VM's gain by direction; empty if nothing is known.
fn gain_text(ports: &[Row]) -> String {
    let mut rows = table::new(&[
        "may gain",
        ">received",
        ">sent",
        ">each round",
        ">100 KB sooner by",
        ">1 MB sooner by",
    ]);
    let gains = ports.iter().filter_map(|row| Some((row, row.gain?)));
    let mut is_any = false;
    for (row, gain) in gains {
        is_any = true;
        rows.add_row([
            row.port.clone(),
            units::bytes(row.received_bytes),
            units::bytes(row.sent_bytes),
            units::duration(gain.round_ns),
            units::duration(gain.of_100_kb_ns),
            units::duration(gain.of_1_mb_ns),
        ]);
    }
    if !is_any {
        return String::new();
    }
    format!(
        "\n{}\nestimates, at most, of transfers that begin (slow start): a round is the VM's ACK delay, \
         p50;\nwhat it receives gains with `vsnoop attach`, what it sends with `--downloads on`",
        table::render_table(&rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::longest;

    #[test]
    fn the_table_of_observed_ports_stays_narrow() {
        let mut buckets = [0; 40];
        buckets[39] = u64::MAX;
        let row = Row {
            port: longest::INTERFACE.into(),
            pid: None,
            process: None,
            vcpus: 1,
            ran_share: Some(1.0),
            waited_share: Some(1.0),
            throttled_share: Some(1.0),
            flows: u64::MAX,
            forwarded: u64::MAX,
            ack_delay_ns: Histogram::new(&buckets),
            received_bytes: u64::MAX,
            sent_bytes: u64::MAX,
            gain: Some(Gain::from_delay(u64::MAX)),
        };
        longest::assert_narrow(&render_text(
            &ObserveDocument { seconds: 1e9, ports: vec![row] },
            false,
        ));
    }

    #[test]
    fn the_time_of_the_first_table_is_no_number_of_nanoseconds() {
        let first = |seconds, over| {
            let text = render_text(&ObserveDocument { seconds, ports: Vec::new() }, over);
            text.lines().next().map(str::to_owned)
        };
        assert_eq!(
            first(802e-9, false).as_deref(),
            Some("observing the ACK delay of VMs for 0.0 s (no packet is changed; Ctrl-C ends)")
        );
        assert_eq!(
            first(3.26, true).as_deref(),
            Some("observed the ACK delay of VMs for 3.3 s (no packet is changed)")
        );
    }
}
