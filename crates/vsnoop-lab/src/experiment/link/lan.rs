//! `link-lan`: hosts on a veth, so that only the carrier and the machine limit the throughput.

use std::sync::LazyLock;

use anyhow::Result;
use serde::Deserialize;

use super::rig::{Task, cell};
use super::series::{QuickStreams, Series, names, progress_of, rounds};
use super::stream::Load;
use super::values::{self, best_peer, figure, has_offloads, mean};
use super::{differences, plots, tables};
use crate::experiment::declared::{Own, OwnRunner};
use crate::experiment::definition::{Experiment, Options, chosen};
use crate::peers::link::Kind;
use crate::results::link::{Content, LinkCell};
use crate::results::record::Record;
use crate::results::{Cell, Figure, Results};

/// Of experiments/link-lan.toml.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Plan {
    carriers: Vec<String>,
    rounds: usize,
    /// Carriers that are measured also with the offloads of their devices switched off.
    without_offloads: Vec<String>,
    rounds_without_offloads: usize,
    stream_ms: u64,
    /// Before each stream.
    echoes: usize,
    quick: QuickStreams,
}

static DECLARED: LazyLock<Own<Plan>> =
    LazyLock::new(|| Own::read(include_str!("../../../experiments/link-lan.toml")));

static RUNNER: OwnRunner = OwnRunner {
    name: "link-lan",
    run,
    tables: tables::paths,
    figures,
    goals: None,
    plots: plots::vnet,
    difference: differences::lan,
};

pub fn experiment() -> Experiment {
    DECLARED.experiment(&RUNNER)
}

fn run(options: &Options, record: &mut Record) -> Result<()> {
    let Own { plan, .. } = &*DECLARED;
    let carriers = chosen(&names(&plan.carriers), &options.configurations)?;
    let mut series = Series::begin(record, options, None, &carriers)?;
    let rounds = |usual| rounds(options, usual, plan.quick.rounds);
    let mut measurements = Vec::new();
    for name in carriers.into_iter().filter(|name| series.rig.link(name).is_some()) {
        measurements.push(((name, true), rounds(plan.rounds)));
        if plan.without_offloads.iter().any(|one| one == name) {
            measurements.push(((name, false), rounds(plan.rounds_without_offloads)));
        }
    }
    let mut progress = progress_of(&[&measurements]);
    let until = plan.quick.until(options, plan.stream_ms);
    series.interleave(&mut progress, &measurements, |(name, offloads)| {
        let about = LinkCell { rate_mbit: None, offloads, content: Content::Digits };
        let task = Task {
            cell: cell(about, 0.0, 0.0),
            load: Load { data: b"0123456789", until, verify: false },
            idle_echoes: if offloads { plan.echoes } else { 0 },
            loaded_echoes: false,
        };
        (name, task)
    })?;
    Ok(())
}

fn figures(results: &Results) -> Vec<Figure> {
    let gbps = |carrier: &str, offloads: bool| {
        let values = values::of(results, carrier, |cell: &Cell| has_offloads(cell) == offloads)?;
        Some(values.median_mbps() / 1000.0)
    };
    let mut figures = Vec::new();
    let mut add = |name: &str, value: Option<f64>, unit: &str, better: &str| {
        figures.extend(value.map(|value| figure(name, value, unit, better)));
    };
    for (name, carrier, offloads) in [
        ("stream_gbps_udp_plain", "vsnoop-udp-plain", true),
        ("stream_gbps_udp_aead", "vsnoop-udp", true),
        ("stream_gbps_tls", "vsnoop-tls", true),
        ("stream_gbps_udp_aead_no_offloads", "vsnoop-udp", false),
        ("stream_gbps_bare", "bare", true),
        ("stream_gbps_vxlan", "vxlan", true),
        ("stream_gbps_wireguard", "wireguard", true),
        ("stream_gbps_vtun", "vtun", true),
        ("stream_gbps_vpncloud", "vpncloud", true),
        ("stream_gbps_openvpn_udp", "openvpn-udp", true),
        ("stream_gbps_wireguard_go", "wireguard-go", true),
    ] {
        add(name, gbps(carrier, offloads), "Gb/s", "higher");
    }
    let best = |kinds: &[Kind], offloads: bool| {
        let wanted = |cell: &Cell| has_offloads(cell) == offloads;
        best_peer(results, kinds, wanted).map(|(_, mbps)| mbps / 1000.0)
    };
    add("best_peer_gbps_plain", best(&[Kind::Plain], true), "Gb/s", "higher");
    add("best_peer_gbps_aead", best(&[Kind::Sealed], true), "Gb/s", "higher");
    let both = [Kind::Plain, Kind::Sealed];
    add("best_peer_gbps_no_offloads", best(&both, false), "Gb/s", "higher");
    for (name, carrier) in [
        ("ping_ms_idle", "vsnoop-udp"),
        ("ping_ms_idle_tls", "vsnoop-tls"),
        ("ping_ms_idle_bare", "bare"),
        ("ping_ms_idle_vxlan", "vxlan"),
    ] {
        let values = values::of(results, carrier, has_offloads);
        let pings = values.and_then(|values| mean(&values.idle_pings_ms()));
        add(name, pings, "ms", "lower");
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::values::testing::sample;
    use super::*;
    use crate::experiment::goals::found;
    use crate::results::testing::results;

    #[test]
    fn samples_without_offloads_make_figures_of_their_own() {
        let mut without = sample("vsnoop-udp", 2000.0);
        if let Some(link) = &mut without.cell.link {
            link.offloads = false;
        }
        let mut results =
            results(vec![sample("vsnoop-udp", 7000.0), without, sample("vtun", 1300.0)]);
        results.figures = figures(&results);
        assert_eq!(found(&results, "stream_gbps_udp_aead"), Some(7.0));
        assert_eq!(found(&results, "stream_gbps_udp_aead_no_offloads"), Some(2.0));
        assert_eq!(found(&results, "best_peer_gbps_plain"), Some(1.3));
        assert_eq!(found(&results, "best_peer_gbps_no_offloads"), None);
        assert_eq!(found(&results, "ping_ms_idle"), None, "no echoes");
    }
}
