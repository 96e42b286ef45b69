//! Says in words which tables of a configuration are the service's.

use vsnoop_host::units;

/// `names`: of its tables `[[port]]`, in their order.
pub fn render_table(names: &[&str]) -> String {
    if names.is_empty() {
        return "without a [[port]] all taps are observed, none accelerated".to_owned();
    }
    let count = units::plural(names.len() as u64, "table");
    format!("{count} [[port]]: {}", names.join(", "))
}
