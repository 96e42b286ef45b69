//! How the samples differ from the figure of the vSnoop report that is repeated.

use crate::experiment::spent::{self, RAN};
use crate::results::statistics::{ACKED, DELIVERED, Metric, TOTAL, percentile};
use crate::results::statistics::{ratio_of_medians, values};
use crate::results::table::milliseconds;
use crate::results::{Group, Results, size_text};

/// The gain of the report's rule and of holding, near and with the longest path.
pub fn sentence(results: &Results) -> Option<String> {
    const SIZE_BYTES: u64 = 100_000;
    let all: Vec<_> =
        results.groups().into_iter().filter(|group| group.size_bytes == SIZE_BYTES).collect();
    let times = |group: &Group, name: &str, metric: &Metric| {
        let of = |name: &str| values(results, name, group, metric);
        Some(ratio_of_medians(&of("off"), &of(name))?.text())
    };
    let part = |group: &Group| {
        Some(format!(
            "{}: acknowledged {} within the VM's window, {} beyond it, delivered {}{}",
            group.cell,
            times(group, "ahead-0", &ACKED)?,
            times(group, "vsnoop", &ACKED)?,
            times(group, "vsnoop", &DELIVERED)?,
            bound(results, group).unwrap_or_default(),
        ))
    };
    let parts: Vec<_> = all.iter().filter_map(part).collect();
    (!parts.is_empty()).then(|| {
        format!(
            "how many times sooner than off {} are acknowledged and delivered: {}.",
            size_text(SIZE_BYTES),
            parts.join("; ")
        )
    })
}

/// What the VM did until its answer, and how long it takes when it never waits for its turn.
fn bound(results: &Results, group: &Group) -> Option<String> {
    let total = |name: &str| percentile(&values(results, name, group, &TOTAL), 50.0);
    let favoured = total("priority").map_or(String::new(), |ms| {
        format!("; with priority it never waits: {} ms", milliseconds(ms))
    });
    Some(format!(
        " ({} ms with the handshake, in which the VM ran {} and waited {} for its CPU{favoured})",
        milliseconds(total("vsnoop")?),
        milliseconds(spent::median(results, "vsnoop", group, RAN)?),
        milliseconds(spent::waited(results, "vsnoop", group)?),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::spent::QUEUED;
    use crate::results::Sample;
    use crate::results::testing::{results, sample};

    #[test]
    fn the_difference_is_that_of_100_kb_in_each_cell_where_it_was_measured() {
        let mut samples = vec![sample("off", 90.0), sample("ahead-0", 30.0), sample("vsnoop", 9.0)];
        assert_eq!(sentence(&results(samples.clone())), None, "10 KB");
        samples.iter_mut().for_each(|sample| sample.size_bytes = 100_000);
        let text = sentence(&results(samples.clone())).unwrap();
        assert!(text.contains("3.00 within") && text.contains("10 beyond"), "{text}");
        assert!(!text.contains("for its CPU"), "it was not measured: {text}");
        samples[2].values = [(RAN.into(), 18.0), (QUEUED.into(), 31.0)].into();
        samples.push(Sample {
            size_bytes: 100_000,
            delivered_ms: Some(7.0),
            ..sample("priority", 6.0)
        });
        let text = sentence(&results(samples)).unwrap();
        let bound = "(51.0 ms with the handshake, in which the VM ran 18.0 and waited 31.0 for its \
                     CPU; with priority it never waits: 8.0 ms)";
        assert!(text.contains(bound), "{text}");
    }
}
