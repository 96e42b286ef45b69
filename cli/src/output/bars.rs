//! A histogram as bars of text.

use vsnoop_host::units;

const WIDTH: usize = 40;

/// One line per bucket between the first and the last that counted anything.
pub fn render_bars(buckets: &[u64]) -> Vec<String> {
    let used = |count: &&u64| **count > 0;
    let Some(first) = buckets.iter().position(|count| *count > 0) else {
        return vec!["nothing measured yet".into()];
    };
    let last = buckets.len() - buckets.iter().rev().take_while(|count| !used(count)).count();
    let most = buckets.iter().copied().max().unwrap_or(1).max(1);
    buckets[first..last]
        .iter()
        .enumerate()
        .map(|(offset, &count)| {
            let low = 1u64 << (first + offset);
            let filled = (count as f64 / most as f64 * WIDTH as f64).ceil() as usize;
            format!(
                "{:>8} - {:<8} {:<WIDTH$} {:>11}",
                units::duration(low),
                units::duration(low * 2),
                "#".repeat(filled),
                units::count(count)
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_span_the_used_buckets_and_fit_the_terminal() {
        let mut buckets = [0; 40];
        buckets[10] = 1;
        buckets[12] = 1000;
        let lines = render_bars(&buckets);
        assert_eq!(lines.len(), 3);
        assert!(lines[0].contains(" # "), "{}", lines[0]);
        assert!(!lines[1].contains('#'));
        assert!(lines[2].contains(&"#".repeat(WIDTH)));
        assert!(lines.iter().all(|line| line.len() <= 80));
    }
}
