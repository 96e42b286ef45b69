//! The figures of the papers on VNET and on the packet compression service that the comparisons of
//! carriers repeat, and what is different here.

use std::borrow::Cow;

use super::values::{deviation, has_content, mean, of};
use crate::results::link::Content;
use crate::results::report::{Against, Paper, PaperValue};
use crate::results::table::{milliseconds, ratio};
use crate::results::{Cell, Results};

pub const LAN: Against = Against { paper: &VNET_LAN, difference: &lan, plot: None };
pub const WAN: Against = Against { paper: &VNET_WAN, difference: &wan, plot: None };
pub const COMPRESS: Against = Against { paper: &COMPRESSION, difference: &compress, plot: None };

const fn value(name: &'static str, value: f64, unit: &'static str) -> PaperValue {
    PaperValue { name: Cow::Borrowed(name), x: None, value, unit: Cow::Borrowed(unit) }
}

static VNET_LAN: Paper = Paper {
    figure: Cow::Borrowed("VNET, Fig. 4(a), 5(a) and 6(a)"),
    shape: Cow::Borrowed(
        "On a LAN of 100 Mb/s the overlay (TCP) adds 60 % to a round trip and carries 60 % of the \
         path; with SSL ten times the round trip and a sixth of the throughput.",
    ),
    values: Cow::Borrowed(&[
        value("round trip, physical network", 1.078, "ms"),
        value("round trip, VNET", 1.742, "ms"),
        value("round trip, VNET with SSL", 11.393, "ms"),
        value("throughput, physical network", 11.18, "MB/s"),
        value("throughput, VNET", 6.76, "MB/s"),
        value("throughput, VNET with SSL", 1.85, "MB/s"),
    ]),
};

static VNET_WAN: Paper = Paper {
    figure: Cow::Borrowed("VNET, Fig. 4(b), 5(b) and 6(b)"),
    shape: Cow::Borrowed(
        "Over a WAN that loses 7 % the overlay (TCP) adds nothing to the mean round trip, loses \
         nothing, makes the deviation 2 to 4 times as high, and carries 63 % of the path (49 % with \
         SSL).",
    ),
    values: Cow::Borrowed(&[
        value("round trip, physical network", 37.527, "ms"),
        value("round trip, VNET", 37.535, "ms"),
        value("deviation, physical network", 19.902, "ms"),
        value("deviation, VNET", 77.287, "ms"),
        value("throughput, physical network", 1.93, "MB/s"),
        value("throughput, VNET", 1.22, "MB/s"),
        value("throughput, VNET with SSL", 0.94, "MB/s"),
    ]),
};

static COMPRESSION: Paper = Paper {
    figure: Cow::Borrowed("Packet compression service, Fig. 3 and Table 1"),
    shape: Cow::Borrowed(
        "Each packet's payload is compressed alone: iperf over 100 Mb/s is about 25 % faster in all \
         three tests.",
    ),
    values: Cow::Borrowed(&[
        value("throughput with compression, more", 25.0, "%"),
        value("saved, iperf for 10 s", 9.61, "MB"),
        value("saved, iperf for 30 s", 18.3, "MB"),
        value("saved, iperf of 200 MB", 32.31, "MB"),
    ]),
};

fn lan(results: &Results) -> Option<String> {
    let with_offloads = |cell: &Cell| cell.link.is_some_and(|link| link.offloads);
    let [bare, udp, tls] =
        ["bare", "vsnoop-udp", "vsnoop-tls"].map(|carrier| of(results, carrier, with_offloads));
    let (bare, udp, tls) = (bare?, udp?, tls?);
    let percent = |mbps: f64| format!("{:.0} %", mbps / bare.median_mbps() * 100.0);
    let [idle, through] = [&bare, &udp].map(|values| mean(&values.idle_pings_ms()));
    Some(format!(
        "over a veth, encrypted, udp carries {} of the path ({:.1} Gb/s) and tls {}; a round trip of {} \
         ms takes {} ms through udp. The path is no LAN of 100 Mb/s: the CPUs are the bound.",
        percent(udp.median_mbps()),
        udp.median_mbps() / 1000.0,
        percent(tls.median_mbps()),
        milliseconds(idle?),
        milliseconds(through?),
    ))
}

fn wan(results: &Results) -> Option<String> {
    let lossy = |cell: &Cell| cell.path_loss_percent > 0.0;
    let [bare, udp, tls] =
        ["bare", "vsnoop-udp", "vsnoop-tls"].map(|carrier| of(results, carrier, lossy));
    let (bare, udp, tls) = (bare?, udp?, tls?);
    let over = |mbps: f64| ratio(mbps / bare.mean_mbps());
    let [path, through] = [&bare, &tls].map(|values| deviation(&values.idle_pings_ms()));
    Some(format!(
        "with 1 % loss udp carries {} times what the path does ({:.1} Mb/s) and tls, which hides the \
         loss, {} times; idle echoes deviate by {} ms on the path and by {} ms through tls.",
        over(udp.mean_mbps()),
        bare.mean_mbps(),
        over(tls.mean_mbps()),
        milliseconds(path?),
        milliseconds(through?),
    ))
}

/// Of iperf's digits, and of the longest of its tests where they were run.
fn compress(results: &Results) -> Option<String> {
    let carried = |carrier: &str, content| of(results, carrier, has_content(content));
    let [off, auto] =
        ["vsnoop-tls", "vsnoop-tls-auto"].map(|carrier| carried(carrier, Content::Digits));
    let (off, auto) = (off?, auto?);
    let saved = carried("vsnoop-tls-auto", Content::Iperf200mb)
        .map(|test| format!(" and saves {:.0} MB of iperf's 200 MB", test.saved_bytes() / 1e6));
    Some(format!(
        "over tls compression makes iperf's digits {} times as fast{}; a stream is compressed as a \
         whole here, not each packet alone.",
        ratio(auto.median_mbps() / off.median_mbps()),
        saved.unwrap_or_default(),
    ))
}

#[cfg(test)]
mod tests {
    use super::super::values::testing::sample;
    use super::*;
    use crate::results::Sample;
    use crate::results::testing::results;

    fn streams(lossy: bool) -> Vec<Sample> {
        let carriers = [("bare", 10.0), ("vsnoop-udp", 8.0), ("vsnoop-tls", 40.0)];
        let with_echoes = |(carrier, mbps)| {
            let mut sample = sample(carrier, mbps);
            sample.cell.path_loss_percent = f64::from(u8::from(lossy));
            if let Some(carried) = &mut sample.carried {
                carried.idle_pings_ms = vec![0.1, 0.3];
            }
            sample
        };
        carriers.map(with_echoes).into()
    }

    #[test]
    fn differences_relate_the_carriers_to_the_path() {
        let text = lan(&results(streams(false))).unwrap();
        assert!(text.contains("80 % of the path") && text.contains("0.20 ms"), "{text}");
        let text = wan(&results(streams(true))).unwrap();
        assert!(text.contains("0.80 times") && text.contains("4.00 times"), "{text}");
        assert_eq!(wan(&results(streams(false))), None, "no loss was measured");
        let digits = [sample("vsnoop-tls", 90.0), sample("vsnoop-tls-auto", 360.0)];
        let text = compress(&results(digits.into())).unwrap();
        assert!(text.contains("4.00 times") && !text.contains("iperf's 200 MB"), "{text}");
    }
}
