//! Bytes that VMs have received and sent, as their taps count them.

use std::collections::HashMap;
use std::fs;

/// The devices of the network namespace of the calling thread.
const DEVICES: &str = "/proc/thread-self/net/dev";

/// Frames of a tap, in bytes, seen from its VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub received: u64,
    pub sent: u64,
}

impl Traffic {
    pub fn since(self, earlier: Self) -> Self {
        Self {
            received: self.received.saturating_sub(earlier.received),
            sent: self.sent.saturating_sub(earlier.sent),
        }
    }
}

/// By the names of the devices; empty if they cannot be read.
pub fn read() -> HashMap<String, Traffic> {
    fs::read_to_string(DEVICES).map_or_else(|_| HashMap::new(), |text| parse(&text))
}

/// `name: received bytes, 7 fields, sent bytes, ...`, seen from the host.
fn parse(text: &str) -> HashMap<String, Traffic> {
    let device = |line: &str| {
        let (name, fields) = line.split_once(':')?;
        let number = |at| fields.split_whitespace().nth(at)?.parse().ok();
        Some((name.trim().to_owned(), Traffic { received: number(8)?, sent: number(0)? }))
    };
    text.lines().filter_map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tap_receives_its_vm_has_sent() {
        let text = "Inter-| Receive | Transmit\n face |bytes packets |bytes\n\
                    tap0: 700 7 0 0 0 0 0 0 90 1 0 0 0 0 0 0\n";
        let tap0 = |found: &HashMap<String, Traffic>| found.get("tap0").copied();
        let found = parse(text);
        assert_eq!(tap0(&found), Some(Traffic { received: 90, sent: 700 }));
        assert_eq!(found.len(), 1);
    }
}
