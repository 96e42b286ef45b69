//! How the samples differ from the figure of the vSnoop poster that the demo stands for.

use crate::experiment::spent::{self, QUEUED, RAN, THROTTLED};
use crate::results::statistics::{TOTAL, by_turn, percentile, ratio_of_medians, values};
use crate::results::table::milliseconds;
use crate::results::{Group, Results, size_text};

/// How many times sooner the server confirms, of each upload.
pub fn sentence(results: &Results) -> Option<String> {
    let times = |group: &Group| {
        let [off, vsnoop] = ["off", "vsnoop"].map(|name| by_turn(results, name, group, &TOTAL));
        let ratio = ratio_of_medians(&off, &vsnoop)?.text();
        let path = match group.cell.path_rtt_ms {
            0.0 => "near".to_owned(),
            rtt => format!("{rtt} ms away"),
        };
        Some(format!("{} {path}: {ratio}", size_text(group.size_bytes)))
    };
    let groups = results.groups();
    // The poster has no downloads.
    let uploads = groups.iter().filter(|group| group.what.is_none());
    let all: Vec<_> = uploads.filter_map(times).collect();
    (!all.is_empty()).then(|| {
        format!(
            "until the server has confirmed, not only until all is acknowledged, vsnoop is by medians \
             so many times sooner: {}; a client near has sent most of its data by the VM's next \
             turn, so that only one some milliseconds away, whose window has to grow, gains{}.",
            all.join(", "),
            near(results).unwrap_or_default()
        )
    })
}

/// What the VM did during the near upload, which is what bounds it.
fn near(results: &Results) -> Option<String> {
    let is_near = |group: &&Group| {
        group.what.is_none()
            && group.cell.path_rtt_ms == 0.0
            && spent::median(results, "off", group, RAN).is_some()
    };
    let groups = results.groups();
    let group = groups.iter().find(is_near)?;
    let of = |name: &str| {
        let spent = |value| spent::median(results, name, group, value).map(milliseconds);
        let total = percentile(&values(results, name, group, &TOTAL), 50.0)?;
        Some(format!(
            "of {} ms with {name} the VM ran for {}, had used up its quota for {}, and waited while \
             others ran for {}",
            milliseconds(total),
            spent(RAN)?,
            spent(THROTTLED)?,
            spent(QUEUED)?,
        ))
    };
    let all: Vec<_> = ["off", "vsnoop"].into_iter().filter_map(of).collect();
    Some(format!(
        "; of the near upload of {} (medians of each, which need not add up), {}",
        size_text(group.size_bytes),
        all.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::testing::{results, sample};

    #[test]
    fn the_difference_names_each_upload_with_its_path() {
        let mut samples = Vec::new();
        for (name, ms) in [("off", 99.0), ("vsnoop", 49.0)] {
            let mut far = sample(name, 1.0);
            far.cell.path_rtt_ms = 20.0;
            (far.connect_ms, far.delivered_ms) = (Some(1.0), Some(ms));
            samples.push(far);
        }
        let text = sentence(&results(samples)).unwrap();
        assert!(text.contains("10 KB 20 ms away: 2.00"), "{text}");
        assert!(!text.contains("quota"), "it was not measured: {text}");
        assert_eq!(sentence(&results(Vec::new())), None);
    }

    #[test]
    fn the_near_upload_says_what_the_vm_did() {
        // 51 ms.
        let mut near = sample("off", 1.0);
        near.values = [(RAN, 9.0), (THROTTLED, 40.0), (QUEUED, 0.5)]
            .map(|(name, ms)| (name.to_owned(), ms))
            .into();
        let text = sentence(&results(vec![near, sample("vsnoop", 1.0)])).unwrap();
        let part = "of the near upload of 10 KB (medians of each, which need not add up), of 51.0 ms \
                    with off the VM ran for 9.0, had used up its quota for 40.0, and waited while \
                    others ran for 0.50.";
        assert!(text.contains(part), "{text}");
    }
}
