//! `vsnoop stats`: counters and histograms of each port.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::Result;
use serde::Serialize;
use vsnoop_bpf::types::port_stats;
use vsnoop_host::failures::BypassedVmPort;
use vsnoop_host::holds::{Holds, PortHold};
use vsnoop_host::incast::{UplinkControl, UplinkState};
use vsnoop_host::system::netns;
use vsnoop_host::units;
use vsnoop_metrics::split::SplitState;

use crate::chosen::read_each;
use crate::cli::{self, Cli};
use crate::counters::{self, Counters, Resets};
use crate::identity::PortIdentity;
use crate::output::fold::fold_text;
use crate::output::table::NOTHING;
use crate::output::{bars, histogram::Histogram, table, watch};

#[derive(Serialize)]
struct StatsDocument<'a> {
    ports: Vec<PortStats<'a>>,
}

#[derive(Serialize)]
struct PortStats<'a> {
    #[serde(flatten)]
    identity: PortIdentity,
    #[serde(flatten)]
    counters: Counters<'a>,
    resets: Resets,
    /// Segments that the tap's ring refused.
    ring_full: u64,
    /// VM ports whose new connections are left to the VM now, because some failed.
    bypassed_vm_ports: Vec<BypassedVmPort>,
    /// The hold as it is now; null without one.
    hold: Option<PortHold>,
    /// The uplink as it is now; null without incast control.
    incast: Option<UplinkState>,
    /// Split connections since downloads are on; null without them.
    split: Option<SplitState>,
}

struct Sample {
    identity: PortIdentity,
    stats: port_stats,
    resets: Resets,
    ring_full: u64,
    bypassed_vm_ports: Vec<BypassedVmPort>,
    hold: Option<PortHold>,
    incast: Option<UplinkState>,
    split: Option<SplitState>,
}

/// Counters that are compared with the next sample.
#[derive(Clone, Copy)]
struct Earlier {
    stats: port_stats,
    split: Option<SplitState>,
}

/// How much is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Detail {
    All,
    /// For a low screen: no counter that is 0, and percentiles without bars.
    Used,
}

pub fn run(cli: &Cli, arguments: &cli::Watched) -> Result<u8> {
    let mut before: HashMap<(u64, u32), Earlier> = HashMap::new();
    let mut before_at = Instant::now();
    watch::run_every(arguments.refresh.watch, cli.json, || {
        let samples = read(cli, arguments)?;
        if cli.json {
            return render_json(&samples);
        }
        let seconds = before_at.elapsed().as_secs_f64();
        before_at = Instant::now();
        let is_watched = arguments.refresh.watch.is_some();
        let earlier: Vec<_> = samples
            .iter()
            .map(|sample| {
                let key = (sample.identity.netns, sample.identity.ifindex);
                before.insert(key, sample.earlier()).filter(|_| is_watched)
            })
            .collect();
        let text = |detail| {
            let pairs = samples.iter().zip(&earlier);
            let blocks =
                pairs.map(|(sample, earlier)| render_block(sample, *earlier, seconds, detail));
            blocks.collect::<Vec<_>>().join("\n\n")
        };
        Ok(match text(Detail::All) {
            none if none.is_empty() => NOTHING.to_owned(),
            all if is_watched && !watch::has_room(&all) => text(Detail::Used),
            all => all,
        })
    })?;
    Ok(0)
}

fn read(cli: &Cli, arguments: &cli::Watched) -> Result<Vec<Sample>> {
    let names = netns::names();
    read_each(&arguments.ports, cli.netns.as_deref(), |attached| {
        Ok(Sample {
            identity: PortIdentity::from_attached(attached, &names),
            stats: attached.port.stats()?,
            resets: Resets::count_resets(&attached.meta, &attached.port.stats()?),
            ring_full: attached.port.state()?.ring_full,
            bypassed_vm_ports: BypassedVmPort::list_bypassed(&attached.port)?,
            hold: Holds::open(&attached.port)?.port(&attached.port, &attached.port.flows()?)?,
            incast: UplinkState::of_port(attached)?,
            split: SplitState::read_state(&attached.port)?,
        })
    })
}

impl Sample {
    fn earlier(&self) -> Earlier {
        Earlier { stats: self.stats, split: self.split }
    }
}

fn render_json(samples: &[Sample]) -> Result<String> {
    let ports = samples
        .iter()
        .map(|sample| PortStats {
            identity: sample.identity.clone(),
            counters: Counters(&sample.stats),
            resets: sample.resets,
            ring_full: sample.ring_full,
            bypassed_vm_ports: sample.bypassed_vm_ports.clone(),
            hold: sample.hold.clone(),
            incast: sample.incast.clone(),
            split: sample.split,
        })
        .collect();
    Ok(serde_json::to_string(&StatsDocument { ports })?)
}

fn render_block(sample: &Sample, earlier: Option<Earlier>, seconds: f64, detail: Detail) -> String {
    let mut text = format!(
        "{} ({}, network namespace {})\n",
        sample.identity.port,
        sample.identity.state,
        sample.identity.netns_label()
    );
    text.push_str(&counter_rows(sample, earlier, seconds, detail));
    for left in &sample.bypassed_vm_ports {
        text.push_str(&format!("\n\n{}", left.describe_failure()));
    }
    if let Some(hold) = &sample.hold {
        text.push_str(&format!("\n\n{}", hold_lines(hold).join("\n")));
    }
    if let Some(uplink) = &sample.incast {
        text.push_str(&format!("\n\n{}", uplink_lines(uplink).join("\n")));
    }
    for (title, buckets) in [
        (
            "ACK delay of the VM (hand-over of a byte to the VM's own ACK)",
            &sample.stats.ack_delay_ns,
        ),
        (
            "masked from the sender (the same, of bytes acknowledged early, without their time in the hold)",
            &sample.stats.masked_ns,
        ),
        ("round trip to the other end (handshakes)", &sample.stats.round_trip_ns),
    ] {
        let percentiles = describe_percentiles(&Histogram::new(buckets));
        text.push_str(&match detail {
            Detail::All => {
                format!("\n\n{title}{percentiles}\n{}", bars::render_bars(buckets).join("\n"))
            }
            Detail::Used if percentiles.is_empty() => String::new(),
            Detail::Used => format!("\n{title}{percentiles}"),
        });
    }
    fold_text(&text)
}

/// The counters, in a table.
fn counter_rows(sample: &Sample, earlier: Option<Earlier>, seconds: f64, detail: Detail) -> String {
    let is_left_out = |value: u64| value == 0 && detail == Detail::Used;
    let mut headings = vec!["counter", ">total"];
    if earlier.is_some() {
        headings.push(">per second");
    }
    headings.push("meaning");
    let mut rows = table::new(&headings);
    let earlier_values = earlier.as_ref().map(|earlier| counters::list_counters(&earlier.stats));
    for (i, (name, meaning, value)) in
        counters::list_counters(&sample.stats).into_iter().enumerate()
    {
        let is_foreign = sample.hold.is_none() && counters::OF_THE_HOLD.contains(&name);
        if is_foreign || is_left_out(value) {
            continue;
        }
        let number = if name.ends_with("_bytes") { units::bytes } else { units::count };
        let mut row = vec![name.to_owned(), number(value)];
        if let Some(earlier) = &earlier_values {
            let grown = value.saturating_sub(earlier[i].2);
            row.push(number((grown as f64 / seconds.max(1e-3)) as u64));
        }
        row.push(meaning.to_owned());
        rows.add_row(row);
    }
    if let Some(split) = &sample.split {
        let before = earlier.map(|earlier| earlier.split.unwrap_or_default());
        let growth = before.map(|before| (before, seconds));
        for row in split_rows(split, growth).filter(|row| !is_left_out(row.value)) {
            rows.add_row(row.cells);
        }
    }
    let resets = sample.resets.by_reason().map(|reset| {
        let name = format!("resets.{}", reset.reason);
        (name, reset.count, reset.meaning)
    });
    let ring_full = ("ring_full".to_owned(), sample.ring_full, "segments that the ring refused");
    let others = resets.into_iter().chain([ring_full]);
    for (name, value, meaning) in others.filter(|(_, value, _)| !is_left_out(*value)) {
        let mut row = vec![name, units::count(value)];
        row.extend(earlier.is_some().then(String::new));
        row.push(meaning.to_owned());
        rows.add_row(row);
    }
    let text = table::render_table(&rows);
    match detail {
        Detail::All => text,
        Detail::Used => format!("{text}\n(the screen is low: counters that are 0 are left out)"),
    }
}

/// A row of the table of counters.
struct CounterRow {
    value: u64,
    cells: Vec<String>,
}

/// Rows of the splitter's counters; with an earlier count, by seconds, also their rates.
fn split_rows(
    split: &SplitState,
    earlier: Option<(SplitState, f64)>,
) -> impl Iterator<Item = CounterRow> {
    let list = |split: &SplitState| {
        let refused = split
            .refused
            .by_reason()
            .map(|(name, meaning, value)| (format!("split.refused.{name}"), meaning, value));
        let totals =
            split.totals().map(|(name, meaning, value)| (format!("split.{name}"), meaning, value));
        totals.into_iter().chain(refused).collect::<Vec<_>>()
    };
    let before = earlier.map(|(earlier, seconds)| (list(&earlier), seconds));
    let row = move |(i, (name, meaning, value)): (usize, (String, &str, u64))| {
        let number = if name.ends_with("_bytes") { units::bytes } else { units::count };
        let mut cells = vec![name, number(value)];
        if let Some((earlier, seconds)) = &before {
            let grown = value.saturating_sub(earlier[i].2);
            cells.push(number((grown as f64 / seconds.max(1e-3)) as u64));
        }
        cells.push(meaning.to_owned());
        CounterRow { value, cells }
    };
    list(split).into_iter().enumerate().map(row)
}

fn hold_lines(hold: &PortHold) -> [String; 4] {
    let oldest = hold
        .oldest_ns
        .map_or(String::new(), |ns| format!(", the oldest for {}", units::duration(ns)));
    [
        format!(
            "hold: {} used by {}",
            units::bytes_part(hold.used_bytes, hold.size_bytes),
            units::plural(hold.flows, "connection")
        ),
        format!(
            "held now: {} of {}{oldest}",
            units::bytes(hold.held_bytes),
            units::plural(hold.held_flows, "connection")
        ),
        format!(
            "of these connections: {} handed over, {} again ({})",
            units::plural(hold.handovers, "frame"),
            units::count(hold.resends),
            units::bytes(hold.resent_bytes)
        ),
        format!("engine: {}", hold.engine_text()),
    ]
}

fn uplink_lines(uplink: &UplinkState) -> [String; 3] {
    let name = match uplink.state {
        UplinkControl::On => {
            format!("{}, {}", uplink.name, units::bit_rate(uplink.rate_bits_per_second))
        }
        UplinkControl::Off => format!("{} (off: nothing is shaped)", uplink.name),
        UplinkControl::Gone => format!("{} (gone: nothing is shaped)", uplink.name),
        UplinkControl::Unhooked => {
            format!("{} (its hook was taken off: nothing is shaped)", uplink.name)
        }
    };
    let rate = |bits: Option<u64>| bits.map_or("-".into(), units::bit_rate);
    let bandwidth = &uplink.bandwidth;
    [
        format!(
            "uplink: {name}, with {} of queue before it",
            units::bytes(uplink.buffer_bytes.into())
        ),
        format!(
            "comes in: {}; may be granted beside it: {}, of which {} are left now",
            rate(bandwidth.total_bits_per_second),
            rate(bandwidth.available_bits_per_second),
            rate(bandwidth.quota_bits_per_second)
        ),
        format!(
            "shaped: {}, {} of them queued; windows of {} are open",
            units::plural(uplink.flows, "connection"),
            units::count(uplink.waiting),
            units::bytes(uplink.granted_bytes)
        ),
    ]
}

fn describe_percentiles(histogram: &Histogram) -> String {
    match (histogram.p50, histogram.p90, histogram.p99) {
        (Some(p50), Some(p90), Some(p99)) => format!(
            "\np50 {}, p90 {}, p99 {}",
            units::duration(p50),
            units::duration(p90),
            units::duration(p99)
        ),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::longest;

    fn sample(stats: port_stats) -> Sample {
        Sample {
            identity: longest::identity(),
            stats,
            resets: Resets { refused: u64::MAX, ..Resets::default() },
            ring_full: u64::MAX,
            bypassed_vm_ports: vec![BypassedVmPort {
                vm_port: u16::MAX,
                failures: 0,
                remaining_ns: u64::MAX,
            }],
            hold: Some(longest::hold()),
            incast: Some(longest::uplink(UplinkControl::On)),
            split: Some(SplitState { to_peer_bytes: u64::MAX, ..SplitState::default() }),
        }
    }

    fn earlier() -> Earlier {
        Earlier { stats: port_stats::default(), split: None }
    }

    #[test]
    fn the_counters_of_a_port_stay_narrow_whatever_their_values() {
        let most = u64::MAX / 64;
        let stats = port_stats {
            to_vm_packets: most,
            to_vm_bytes: most,
            early_bytes: most,
            masked_ns: [most; 40],
            ..Default::default()
        };
        longest::assert_narrow(&render_block(&sample(stats), Some(earlier()), 1e-3, Detail::All));
    }

    #[test]
    fn bytes_have_units_and_packets_have_none() {
        let stats = port_stats { to_vm_packets: 4096, to_vm_bytes: 3 << 20, ..Default::default() };
        let text = render_block(&sample(stats), Some(earlier()), 2.0, Detail::All);
        let row = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).expect(name);
            line.split_whitespace().skip(1).take(4).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(row("to_vm_bytes"), "3 MiB 1.50 MiB");
        assert_eq!(row("to_vm_packets"), "4,096 2,048 packets to");
    }
    #[test]
    fn a_port_fits_on_a_low_screen() {
        let mut sample = sample(port_stats { to_vm_packets: 7, ..Default::default() });
        (sample.resets, sample.ring_full) = (Resets::default(), 0);
        let lines = |detail| render_block(&sample, Some(earlier()), 1.0, detail).lines().count();
        assert!(lines(Detail::All) > 40, "{}", lines(Detail::All));
        assert!(lines(Detail::Used) <= 22, "{}", lines(Detail::Used));
    }
}
