//! The check of slices: what a VM that alone has a load uses of its core, as the environment has
//! it, by the number of VMs.

use super::Results;

pub const LOAD_PERCENT: f64 = 60.0;
const TOLERANCE_PERCENT: f64 = 5.0;
const PREFIX: &str = "alone_cpu_percent_";

/// In the environment.
pub fn name(vms: usize) -> String {
    format!("{PREFIX}{vms}vms")
}

pub fn is_off(percent: f64) -> bool {
    (percent - LOAD_PERCENT).abs() > TOLERANCE_PERCENT
}

/// Where a VM used too little or too much; it stands in every report.
pub fn warning(results: &Results) -> Option<String> {
    let off = |(name, value): (&String, &serde_json::Value)| {
        let vms = name.strip_prefix(PREFIX)?.strip_suffix("vms")?;
        let percent = value.as_f64().filter(|percent| is_off(*percent))?;
        Some(format!("{percent:.1} % (before the measurements with {vms} VMs)"))
    };
    let off: Vec<_> = results.environment.iter().filter_map(off).collect();
    (!off.is_empty()).then(|| {
        format!(
            "A VM that alone has a load of {LOAD_PERCENT} % used {} of its core, more than \
             {TOLERANCE_PERCENT} points off: the machine was busy with other work, or the loads are \
             not quite what the cells say.",
            off.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::results;
    use super::*;

    #[test]
    fn only_a_load_that_is_off_by_more_than_the_tolerance_is_said() {
        let mut results = results(vec![]);
        results.environment.insert(name(3), 64.9.into());
        assert_eq!(warning(&results), None);
        results.environment.insert(name(5), 49.9.into());
        let text = warning(&results).unwrap();
        assert!(text.contains("used 49.9 % (before the measurements with 5 VMs) of"), "{text}");
        assert!(!text.contains("64.9"), "{text}");
    }
}
