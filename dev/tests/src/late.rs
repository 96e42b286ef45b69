//! When a transfer is late: judged by how long the same takes without vsnoop, on this machine and
//! within the same minute.

use std::time::Duration;

use serde_json::Value;

/// Ten times the longest is no noise of a busy machine. The rest is for a TCP that waits for its
/// timer, doubled three times, where by chance none did without vsnoop.
const TIMES: u32 = 10;
const TIMERS: Duration = Duration::from_secs(5);

/// After this time a transfer counts as hung. `longest`: of the same without vsnoop.
pub fn limit(longest: Duration) -> Duration {
    longest * TIMES + TIMERS
}

/// The sum of all numbers with this name, wherever in the document they are.
pub fn count(document: &Value, name: &str) -> u64 {
    match document {
        Value::Object(map) => {
            let own = map.get(name).and_then(Value::as_u64).unwrap_or(0);
            own + map.values().map(|value| count(value, name)).sum::<u64>()
        }
        Value::Array(items) => items.iter().map(|item| count(item, name)).sum(),
        _ => 0,
    }
}
