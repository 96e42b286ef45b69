//! Counters of `vsnoop stats` as values of a sample.

use serde_json::Value;

use crate::results::Values;

/// Names of values of a sample, and of counters of `vsnoop stats`: acknowledged before its
/// hand-over to the VM; segments that found no memory to be kept in.
pub const HELD: &str = "held_bytes";
pub const HOLD_FULL: &str = "hold_full";

/// What the hold of the only port did.
pub fn of_hold(stats: &Value) -> Values {
    let port = &stats["ports"][0];
    let value = |name: &str| Some((name.to_owned(), port[name].as_u64()? as f64));
    [HELD, HOLD_FULL].into_iter().filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_the_hold_are_those_of_the_only_port() {
        let stats =
            serde_json::json!({"ports": [{"held_bytes": 7000, "hold_full": 2, "hold": {}}]});
        let expected = [(HELD.to_owned(), 7000.0), (HOLD_FULL.to_owned(), 2.0)];
        assert_eq!(of_hold(&stats), expected.into());
        assert_eq!(of_hold(&serde_json::json!({"ports": []})), Values::new());
    }
}
