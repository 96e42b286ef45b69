//! How the samples differ from Fig. 5 and 6 of the vSnoop report, and what bounds them.

use super::report::{AT_ONCE, HOST_BESIDE, OFF, SENDER, TUNED, VSNOOP};
use super::report::{busy, gain, paper};
use crate::results::statistics::{ACKED, CONNECT, DELIVERED, Metric, Ratio};
use crate::results::statistics::{percentile, ratio_of_medians, values};
use crate::results::table::{milliseconds, ratio};
use crate::results::{Group, Results, size_text};

/// The size at which scenarios are compared.
const SIZE_BYTES: u64 = 100_000;

/// Of one size against the paper's medians, else what more VMs, load and bytes change.
pub fn sentence(results: &Results) -> Option<String> {
    let first = results.groups().into_iter().next()?;
    cdf(results, &first).or_else(|| sizes(results))
}

fn times(results: &Results, other: &str, group: &Group, metric: &Metric) -> String {
    gain(results, other, group, metric).map_or("-".into(), |gain| gain.text())
}

fn cdf(results: &Results, group: &Group) -> Option<String> {
    let (off, vsnoop) = (paper(results, OFF, group)?, paper(results, VSNOOP, group)?);
    let handshake = |name: &str| {
        let ms = percentile(&values(results, name, group, &CONNECT), 50.0)?;
        let [ran, waited] = busy(results, name, group)?;
        Some(format!(
            "with {name} the handshake takes {} ms, and until the receiver's answer its VM runs for \
             {ran:.0} % of the time and waits for its CPU for {waited:.0} %",
            milliseconds(ms)
        ))
    };
    let mut text = format!(
        "by medians tuned-vsnoop is {} times as fast as off until all is acknowledged ({} in the \
         paper), {} times until it is delivered; noise means that the samples show no difference",
        times(results, OFF, group, &ACKED),
        ratio(vsnoop.value / off.value),
        times(results, OFF, group, &DELIVERED),
    );
    for part in [tuned(results, group), handshake(OFF), handshake(VSNOOP)].into_iter().flatten() {
        text += &format!("; {part}");
    }
    Some(text + ".")
}

/// What longer queues alone gain, and whether the shorter ones have lost packets.
fn tuned(results: &Results, group: &Group) -> Option<String> {
    let acked = |name: &str| values(results, name, group, &ACKED);
    let faster = ratio_of_medians(&acked(OFF), &acked(TUNED))?;
    let (off, tuned) = (paper(results, OFF, group)?, paper(results, TUNED, group)?);
    let drops: u64 = results.of(OFF, group).map(|sample| sample.tap_drops).sum();
    let drops = match drops {
        0 => "no packet was lost at the VM's queue with off, so that a longer one keeps no more"
            .into(),
        _ => format!("{drops} packets were lost at the VM's queue with off"),
    };
    Some(format!(
        "tuned over off until acknowledged: {} ({} in the paper), {drops}",
        faster.text(),
        ratio(tuned.value / off.value)
    ))
}

/// Gains of a row of groups, and whether each is more than the one before beyond the noise.
fn row(gains: &[(String, Ratio)], what: &str) -> Option<String> {
    gains.first()?;
    let names: Vec<_> = gains.iter().map(|(name, _)| name.as_str()).collect();
    let texts: Vec<_> = gains.iter().map(|(_, gain)| gain.text()).collect();
    let more = gains.windows(2).all(|pair| pair[0].1.high < pair[1].1.low);
    let less = gains.windows(2).all(|pair| pair[0].1.low > pair[1].1.high);
    let verdict = match (gains.len(), more, less) {
        (1, ..) => "",
        (_, true, _) => ", more with each",
        (_, _, true) => ", less with each",
        _ if gains.iter().all(|(_, gain)| gain.is_noise()) => ", all noise",
        _ => ", neither more nor less with each beyond the noise",
    };
    Some(format!("with {} {what}: {}{verdict}", names.join(", "), texts.join(", ")))
}

fn sizes(results: &Results) -> Option<String> {
    let groups = results.groups();
    let near_usual = |group: &&Group| group.what.is_none() && group.cell.vms == 3;
    let load = |group: &Group| (group.cell.load * 100.0).round();
    let of = |name: String, group: &Group| Some((name, gain(results, OFF, group, &ACKED)?));
    let mut vms: Vec<_> = groups
        .iter()
        .filter(|group| group.size_bytes == SIZE_BYTES && group.what.is_none())
        .filter(|group| load(group) == 60.0)
        .collect();
    vms.sort_by_key(|group| group.cell.vms);
    let mut loads: Vec<_> =
        groups.iter().filter(near_usual).filter(|group| group.size_bytes == SIZE_BYTES).collect();
    loads.sort_by(|a, b| a.cell.load.total_cmp(&b.cell.load));
    let by_size = groups.iter().filter(near_usual).filter(|group| load(group) == 60.0);
    let gains_of = |groups: Vec<(String, &Group)>| -> Vec<(String, Ratio)> {
        groups.into_iter().filter_map(|(name, group)| of(name, group)).collect()
    };
    let vms = gains_of(vms.iter().map(|group| (group.cell.vms.to_string(), *group)).collect());
    let loads = gains_of(loads.iter().map(|group| (load(group).to_string(), *group)).collect());
    let by_size = gains_of(by_size.map(|group| (size_text(group.size_bytes), group)).collect());
    let special =
        groups.iter().filter(|group| group.size_bytes == SIZE_BYTES).filter_map(|group| {
            let what = group.what?;
            let is_known =
                what.ends_with(AT_ONCE) || [HOST_BESIDE, SENDER].contains(&what.as_str());
            let (name, gain) = of(what.to_string(), group).filter(|_| is_known)?;
            Some(format!("{name}: {}", gain.text()))
        });
    let size = size_text(SIZE_BYTES);
    let mut parts: Vec<_> = [
        row(&vms, &format!("VMs at 60 % ({size})")),
        row(&loads, &format!("% load of 3 VMs ({size})")),
        row(&by_size, "to 3 VMs at 60 %"),
    ]
    .into_iter()
    .flatten()
    .chain(special)
    .collect();
    if parts.is_empty() {
        return None;
    }
    parts.push(until_delivered(results, &groups));
    Some(format!("tuned-vsnoop over off, acknowledged, {}.", parts.join("; ")))
}

/// How many gain and lose, and of those that lose what their VM did.
fn until_delivered(results: &Results, groups: &[Group]) -> String {
    let gain = |group| gain(results, OFF, group, &DELIVERED);
    let all: Vec<_> = groups.iter().filter_map(|group| Some((group, gain(group)?))).collect();
    let gained = all.iter().filter(|(_, gain)| gain.has_interval() && gain.low > 1.0).count();
    let lost: Vec<_> =
        all.iter().filter(|(_, gain)| gain.has_interval() && gain.high < 1.0).collect();
    let loser = |(group, gain): &&(&Group, Ratio)| {
        let of = |name: &str| {
            let [ran, waited] = busy(results, name, group)?;
            Some(format!(", its VM ran {ran:.0} % and waited {waited:.0} % of it with {name}"))
        };
        let spent: String = [OFF, VSNOOP].into_iter().filter_map(of).collect();
        let what = group.what.map_or(String::new(), |what| format!(", {what}"));
        let size = size_text(group.size_bytes);
        format!("{size} to {}{what}: {}{spent}", group.cell, gain.text())
    };
    let losers: Vec<_> = lost.iter().map(loser).collect();
    let losers =
        if losers.is_empty() { String::new() } else { format!(" ({})", losers.join("; ")) };
    format!(
        "until delivered, which waits for the VM's turn, {gained} of {} scenarios and sizes gain \
         beyond the noise, {} lose{losers}",
        all.len(),
        lost.len(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::spent::{QUEUED, RAN};
    use crate::results::testing::{results, sample};
    use crate::results::{Cell, Label, Sample};

    fn of_size(name: &str, ms: f64) -> Sample {
        Sample { size_bytes: SIZE_BYTES, ..sample(name, ms) }
    }

    #[test]
    fn one_size_stands_beside_the_papers_and_says_why_longer_queues_gain_nothing() {
        let mut samples = Vec::new();
        for (name, ms) in [(OFF, 500.0), (TUNED, 400.0), (VSNOOP, 20.0)] {
            // In 51 ms.
            let values = [(RAN.into(), 20.4), (QUEUED.into(), 25.5)].into();
            samples.push(Sample { values, ..of_size(name, ms) });
        }
        let mut results = results(samples);
        results.experiment = "transfer-cdf".into();
        let text = sentence(&results).unwrap();
        assert!(text.contains("is 25 times") && text.contains("31 in"), "{text}");
        assert!(text.contains("tuned over off until acknowledged: 1.25 (4.05 in"), "{text}");
        assert!(text.contains("no packet was lost at the VM's queue with off"), "{text}");
        for name in [OFF, VSNOOP] {
            let part = format!(
                "with {name} the handshake takes 1.0 ms, and until the receiver's answer its VM runs \
                 for 40 % of the time and waits for its CPU for 50 %"
            );
            assert!(text.contains(&part), "{text}");
        }
        results.samples[0].tap_drops = 7;
        assert!(sentence(&results).unwrap().contains("7 packets were lost"));
    }

    #[test]
    fn several_scenarios_say_whether_more_vms_and_load_gain_more() {
        let mut samples = Vec::new();
        let mut add = |cell: Cell, what: Option<&str>, times: f64| {
            for (name, ms) in [(OFF, times), (VSNOOP, 1.0)] {
                let what = what.and_then(|what| Label::from(what).ok());
                let one = Sample { cell, what, ..of_size(name, ms) };
                samples.extend(vec![one; 6]);
            }
        };
        let cell = |vms, load| Cell { vms, load, ..Cell::default() };
        add(cell(3, 0.6), None, 20.0);
        add(cell(3, 0.6), Some(SENDER), 2.0);
        add(cell(1, 0.6), None, 4.0);
        add(cell(5, 0.6), None, 40.0);
        add(cell(3, 0.4), None, 30.0);
        add(cell(3, 0.8), None, 25.0);
        let mut results = results(samples);
        results.experiment = "transfer-sizes".into();
        let text = sentence(&results).unwrap();
        let vms = "with 1, 3, 5 VMs at 60 % (100 KB): 4.00 (4.00-4.00), 20 (20-20), 40 (40-40), more \
                   with each;";
        assert!(text.contains(vms), "{text}");
        assert!(
            text.contains("with 40, 60, 80 % load of 3 VMs") && text.contains("neither"),
            "{text}"
        );
        assert!(text.contains("sender in a VM: 2.00 ("), "{text}");
        let times = |over: [f64; 6]| ratio_of_medians(&over, &[1.0; 6]).unwrap();
        let near = [2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
        let gains = [("1", times(near)), ("3", times(near.map(|one| one + 1.0)))];
        let text_of = row(&gains.map(|(name, gain)| (name.to_owned(), gain)), "VMs").unwrap();
        assert!(text_of.ends_with("neither more nor less with each beyond the noise"), "{text_of}");
        assert!(
            text.ends_with("0 of 6 scenarios and sizes gain beyond the noise, 0 lose."),
            "{text}"
        );
    }
}
