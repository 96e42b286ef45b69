//! How the samples differ from the figures of the papers on VNET and on the packet compression
//! service that the comparisons of carriers repeat.

use super::values::{Values, deviation, has_content, mean, of};
use crate::results::link::Content;
use crate::results::table::{milliseconds, ratio};
use crate::results::{Cell, Results};

pub fn lan(results: &Results) -> Option<String> {
    let with_offloads = |cell: &Cell| cell.link.is_some_and(|link| link.offloads);
    let [bare, udp, tls] =
        ["bare", "vsnoop-udp", "vsnoop-tls"].map(|carrier| of(results, carrier, with_offloads));
    let (bare, udp, tls) = (bare?, udp?, tls?);
    let percent = |mbps: f64| format!("{:.0} %", mbps / bare.median_mbps() * 100.0);
    let [idle, through] = [&bare, &udp].map(|values| mean(&values.idle_pings_ms()));
    let cores = |values: &Values| {
        values.cores().map_or("an unknown number of".into(), |cores| format!("{cores:.1}"))
    };
    let of_machine = results.environment.get("cpus");
    Some(format!(
        "over a veth, encrypted, udp carries {} of the path ({:.1} Gb/s) and tls {}; a round trip of {} \
         ms takes {} ms through udp. No path of 100 Mb/s is the bound here: the processes of udp keep {} \
         CPUs busy, those of tls {} (`cores`; the kernel's own work is not in it){}.",
        percent(udp.median_mbps()),
        udp.median_mbps() / 1000.0,
        percent(tls.median_mbps()),
        milliseconds(idle?),
        milliseconds(through?),
        cores(&udp),
        cores(&tls),
        of_machine.map_or(String::new(), |cpus| format!(", of {cpus}")),
    ))
}

pub fn wan(results: &Results) -> Option<String> {
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
pub fn compress(results: &Results) -> Option<String> {
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
                carried.cores = Some(1.5);
            }
            sample
        };
        carriers.map(with_echoes).into()
    }

    #[test]
    fn differences_relate_the_carriers_to_the_path() {
        let text = lan(&results(streams(false))).unwrap();
        assert!(text.contains("80 % of the path") && text.contains("0.20 ms"), "{text}");
        assert!(text.contains("udp keep 1.5 CPUs busy, those of tls 1.5 ("), "{text}");
        let text = wan(&results(streams(true))).unwrap();
        assert!(text.contains("0.80 times") && text.contains("4.00 times"), "{text}");
        assert_eq!(wan(&results(streams(false))), None, "no loss was measured");
        let digits = [sample("vsnoop-tls", 90.0), sample("vsnoop-tls-auto", 360.0)];
        let text = compress(&results(digits.into())).unwrap();
        assert!(text.contains("4.00 times") && !text.contains("iperf's 200 MB"), "{text}");
    }
}
