//! The figures of the experiment: how much sooner `hold` is, by cell and size.
//!
//! Names end with the size in bytes and the cell
//! (`acked_p50_off_over_hold_100000_5vms_load100_rtt5`). Figures of the first measured cell have a
//! second name without the cell. In the names `hold` is the configuration `vsnoop`, because
//! published names do not change.

use crate::results::statistics::{ACKED, DELIVERED, Metric, TOTAL};
use crate::results::{Figure, Group, Results};

const HOLD: &str = "vsnoop";
const COMPARED: [(Metric, &[&str]); 3] = [
    (ACKED, &["off", "tuned", "ahead-0", "proxy", "priority"]),
    (DELIVERED, &["off", "tuned", "ahead-0", "proxy", "priority"]),
    (TOTAL, &["proxy"]),
];

pub fn figures(results: &Results) -> Vec<Figure> {
    let first = results.cells().first().copied();
    let mut figures = Vec::new();
    for group in results.groups() {
        for figure in of_group(results, &group) {
            if Some(group.cell) == first {
                figures.push(figure.clone());
            }
            let name = format!("{}_{}", figure.name, group.cell.suffix());
            figures.push(Figure { name, ..figure });
        }
    }
    figures
}

fn of_group(results: &Results, group: &Group) -> Vec<Figure> {
    let size = group.size_bytes;
    let p50 = |name: &str, metric: &Metric| {
        results.summary_of(name, group, metric.name).map(|line| line.p50)
    };
    let figure = |name: String, value, unit: &str, better: &str| Figure {
        name,
        value,
        unit: unit.into(),
        better: better.into(),
    };
    let mut figures = Vec::new();
    for (metric, others) in &COMPARED {
        let word = metric.name.trim_end_matches("_ms");
        for other in *others {
            let (Some(over), Some(hold)) = (p50(other, metric), p50(HOLD, metric)) else {
                continue;
            };
            let other = other.replace('-', "");
            let name = format!("{word}_p50_{other}_over_hold_{size}");
            figures.push(figure(name, over / hold, "times", "higher"));
        }
    }
    if let (Some(hold), Some(host)) = (p50(HOLD, &ACKED), p50("host", &ACKED)) {
        figures.push(figure(format!("hold_over_host_{size}"), hold / host, "times", "lower"));
        figures.push(figure(format!("hold_minus_host_ms_{size}"), hold - host, "ms", "lower"));
    }
    if p50(HOLD, &ACKED).is_some() {
        let samples = results.of(HOLD, group);
        let retransmissions: u32 = samples.map(|sample| sample.retransmissions).sum();
        let name = format!("hold_retransmissions_{size}");
        figures.push(figure(name, f64::from(retransmissions), "segments", "lower"));
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Sample;
    use crate::results::statistics::summarise;
    use crate::results::testing::{results, sample};

    #[test]
    fn figures_compare_hold_with_the_others_and_with_the_limit() {
        let far = |sample: Sample| {
            let mut far = sample;
            far.cell.path_rtt_ms = 5.0;
            far
        };
        let mut results = results(vec![
            sample("off", 40.0),
            sample("vsnoop", 2.0),
            sample("host", 0.5),
            far(sample("vsnoop", 4.0)),
            far(sample("proxy", 8.0)),
        ]);
        summarise(&mut results);
        let figures = figures(&results);
        let value = |name: &str| figures.iter().find(|f| f.name == name).map(|f| f.value);
        assert_eq!(value("acked_p50_off_over_hold_10000"), Some(20.0));
        assert_eq!(value("acked_p50_off_over_hold_10000_3vms_load60"), Some(20.0));
        assert_eq!(value("delivered_p50_off_over_hold_10000"), Some(1.0));
        assert_eq!(value("hold_over_host_10000"), Some(4.0));
        assert_eq!(value("hold_minus_host_ms_10000"), Some(1.5));
        assert_eq!(value("hold_retransmissions_10000"), Some(1.0));
        assert_eq!(value("acked_p50_proxy_over_hold_10000_3vms_load60_rtt5"), Some(2.0));
        assert_eq!(value("acked_p50_proxy_over_hold_10000"), None, "the first cell had no proxy");
    }
}
