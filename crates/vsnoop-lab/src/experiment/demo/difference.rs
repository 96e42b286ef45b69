//! How the samples differ from the figure of the vSnoop poster that the demo stands for.

use crate::results::statistics::{TOTAL, by_turn, ratio_of_medians};
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
    let all: Vec<_> = results.groups().iter().filter_map(times).collect();
    (!all.is_empty()).then(|| {
        format!(
            "until the server has confirmed, not only until all is acknowledged, vsnoop is by medians \
             so many times sooner: {}; a client near has sent most of its data by the VM's next \
             turn, so that only one some milliseconds away, whose window has to grow, gains.",
            all.join(", ")
        )
    })
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
        assert_eq!(sentence(&results(Vec::new())), None);
    }
}
