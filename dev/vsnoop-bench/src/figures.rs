//! Common parts of all measurements: figures, their median, and the progress report.

use vsnoop_lab::results::Figure;

/// A figure of the results.
pub fn figure(name: &str, value: f64, unit: &str, better: &str) -> Figure {
    Figure { name: name.into(), value, unit: unit.into(), better: better.into() }
}

/// The middle of an odd number of values, the mean of the middle two otherwise.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// The median over the ratios of neighbours, so that a drifting machine cancels out.
pub fn median_ratio(values: &[f64], to: &[f64]) -> f64 {
    median(values.iter().zip(to).map(|(value, to)| value / to).collect())
}

/// Progress on standard error, one line for each step.
pub fn say(text: &str) {
    eprintln!("bench: {text}");
}
