//! `link-lan`: hosts on a veth, so that only the carrier and the machine limit the throughput.

use std::borrow::Cow;
use std::time::Duration;

use anyhow::Result;

use super::rig::{Task, cell};
use super::series::{Series, progress_of, rounds};
use super::stream::{Load, Until};
use super::values::{self, best_peer, figure, has_offloads, mean};
use super::{papers, plots, tables};
use crate::experiment::definition::{Experiment, Options, Takes, chosen};
use crate::experiment::goals::{self, Bound, Goal};
use crate::peers::link::Kind;
use crate::results::link::{Content, LinkCell};
use crate::results::record::Record;
use crate::results::report::Words;
use crate::results::{Cell, Figure, Results};

const CARRIERS: [&str; 19] = [
    "bare",
    "bridged",
    "vxlan",
    "wireguard",
    "nat",
    "vtun",
    "vpncloud-plain",
    "tinc-plain",
    "fastd-plain",
    "vpncloud",
    "openvpn-udp",
    "openvpn-tcp",
    "tinc",
    "fastd",
    "wireguard-go",
    "ssh",
    "vsnoop-udp-plain",
    "vsnoop-udp",
    "vsnoop-tls",
];

/// Carriers that are measured also with the offloads of their devices switched off.
const WITHOUT_OFFLOADS: [&str; 9] = [
    "bare",
    "vxlan",
    "wireguard",
    "vtun",
    "vpncloud-plain",
    "vpncloud",
    "openvpn-udp",
    "wireguard-go",
    "vsnoop-udp",
];

const ROUNDS: usize = 4;
const ROUNDS_WITHOUT_OFFLOADS: usize = 3;
const STREAM: Duration = Duration::from_secs(3);
const QUICK_STREAM: Duration = Duration::from_millis(800);
const ECHOES: usize = 60;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "link-lan",
    about: "two hosts on a veth: what tunnels of all kinds carry, and what they add to a round trip",
    words: Words {
        title: "Links on a LAN: one TCP stream and an echo between two hosts",
        what_to_see: "Of each carrier the goodput of one TCP stream, the CPUs that its processes kept \
            busy (the kernel's own work for it is not in them), and the round trip of an echo over the \
            idle carrier. The machine is all that limits: both ends of the stream and both ends of the \
            tunnel share its CPUs. Without offloads the ends hand over packets of the MTU with finished \
            checksums, as guests with simple devices do.",
        method: METHOD,
        command: "make lab RUN=link-lan",
        tables: tables::paths,
        figures,
        goals: Some(&|results| goals::render(&GOALS, results)),
        papers: &[papers::LAN],
        plots: plots::vnet,
    },
    takes: Takes { full_min: 9, quick_min: 1 },
    run,
};

const METHOD: &str = "Two network namespaces stand for the hosts, joined by a veth (MTU 1500). Every \
carrier has a device with an address in both, where a guest's tap would be; `bridged` has guests of its \
own, and `nat` one. All carriers run at the same time and are idle but for the one that is measured; measurements \
are in random order in each round. A measurement is 60 echoes (ICMP, 5 to 20 ms apart, answers timed by \
the kernel), then a TCP connection that sends for 3 s. Its goodput is what the receiver has read, from the \
first write to the last byte. Both ends choose cubic; before the first round `ss -ti` must say so, or the \
carrier counts as missing. No metrics are cached (tcp_no_metrics_save); tunnels over TCP have cubic \
outside, unless they choose for themselves. Everything else is as the kernel and the programs have it by \
default, but for fastd's MTU (1426, so that nothing is fragmented) and ssh's cipher (aes128-gcm). \
`best_peer` figures are the best medians of all user-space tunnels of the table that are not vsnoop's, \
plain or encrypted; VXLAN and WireGuard of the kernel, and NAT, are not among them.";

const GOALS: [Goal; 9] = [
    Goal { figure: Cow::Borrowed("stream_gbps_udp_plain"), bound: Bound::AtLeast(11.0) },
    Goal { figure: Cow::Borrowed("stream_gbps_udp_aead"), bound: Bound::AtLeast(6.0) },
    Goal { figure: Cow::Borrowed("stream_gbps_tls"), bound: Bound::AtLeast(8.0) },
    Goal {
        figure: Cow::Borrowed("stream_gbps_udp_plain"),
        bound: Bound::Times(5.0, Cow::Borrowed("best_peer_gbps_plain")),
    },
    Goal {
        figure: Cow::Borrowed("stream_gbps_udp_aead"),
        bound: Bound::Times(5.0, Cow::Borrowed("stream_gbps_vpncloud")),
    },
    Goal {
        figure: Cow::Borrowed("stream_gbps_udp_aead"),
        bound: Bound::Times(5.0, Cow::Borrowed("stream_gbps_openvpn_udp")),
    },
    Goal {
        figure: Cow::Borrowed("stream_gbps_udp_aead"),
        bound: Bound::Times(2.5, Cow::Borrowed("stream_gbps_wireguard_go")),
    },
    Goal {
        figure: Cow::Borrowed("stream_gbps_udp_aead_no_offloads"),
        bound: Bound::Times(1.5, Cow::Borrowed("best_peer_gbps_no_offloads")),
    },
    Goal { figure: Cow::Borrowed("ping_ms_idle"), bound: Bound::AtMost(0.15) },
];

fn run(options: &Options, record: &mut Record) -> Result<()> {
    let carriers = chosen(&CARRIERS, &options.configurations)?;
    let mut series = Series::begin(record, options, None, &carriers)?;
    let mut measurements = Vec::new();
    for name in carriers.into_iter().filter(|name| series.rig.link(name).is_some()) {
        measurements.push(((name, true), rounds(options, ROUNDS)));
        if WITHOUT_OFFLOADS.contains(&name) {
            measurements.push(((name, false), rounds(options, ROUNDS_WITHOUT_OFFLOADS)));
        }
    }
    let mut progress = progress_of(&[&measurements]);
    let stream = if options.quick { QUICK_STREAM } else { STREAM };
    series.interleave(&mut progress, &measurements, |(name, offloads)| {
        let about = LinkCell { rate_mbit: None, offloads, content: Content::Digits };
        let task = Task {
            cell: cell(about, 0.0, 0.0),
            load: Load { data: b"0123456789", until: Until::Time(stream), verify: false },
            idle_echoes: if offloads { ECHOES } else { 0 },
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
