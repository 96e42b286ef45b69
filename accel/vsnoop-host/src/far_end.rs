//! Connections whose far end is not the VM (flow/far_end.h), as far as they are on record.

use serde::Serialize;
use vsnoop_bpf::types::{self, flow, flow_key};

use crate::units;

/// Connections of a port that the VM forwards, and that are left to it. Each counts once, for the
/// first of these signs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Forwarded {
    /// All together.
    pub connections: u64,
    /// By the TTL of what the VM sends: two hops or more.
    pub path: u64,
    /// The VM has reported a smaller path MTU.
    pub mtu: u64,
    /// A path behind the VM loses what it is sent.
    pub loss: u64,
    /// The VM's ACKs are late for another reason than its CPU.
    pub late: u64,
    /// Not among them: the far end is one hop behind the VM, as a container in it is.
    pub neighbours: u64,
}

impl Forwarded {
    pub fn find_forwarded(flows: &[(flow_key, flow)]) -> Self {
        let mut seen = Self::default();
        for (_, flow) in flows {
            seen.add(flow.far.into());
        }
        seen
    }

    fn add(&mut self, far: u32) {
        let counts = [
            (types::FAR_PATH, &mut self.path),
            (types::FAR_TOO_BIG, &mut self.mtu),
            (types::FAR_LOSSY, &mut self.loss),
            (types::FAR_LATE, &mut self.late),
        ];
        if let Some((_, count)) = counts.into_iter().find(|(sign, _)| far & sign != 0) {
            *count += 1;
            self.connections += 1;
        } else if far & types::FAR_NEIGHBOUR != 0 {
            self.neighbours += 1;
        }
    }

    /// For people: by which sign how many; empty without any.
    pub fn signs(&self) -> String {
        let signs = [
            (self.path, "by the TTL of what the VM sends"),
            (self.mtu, "by its reports of a smaller path MTU"),
            (self.loss, "by losses behind it"),
            (self.late, "by late ACKs that no wait for a CPU explains"),
        ];
        let named = signs.into_iter().filter(|(count, _)| *count > 0);
        let texts: Vec<_> =
            named.map(|(count, sign)| format!("{} {sign}", units::count(count))).collect();
        texts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_counts_once_and_a_neighbour_is_not_forwarded() {
        let flow_of =
            |far: u32| (flow_key::default(), flow { far: far as u8, ..Default::default() });
        let flows = [
            flow_of(0),
            flow_of(types::FAR_PATH | types::FAR_LATE | types::FAR_LEFT),
            flow_of(types::FAR_LATE),
            flow_of(types::FAR_NEIGHBOUR),
            flow_of(types::FAR_NEIGHBOUR | types::FAR_LOSSY),
            flow_of(types::FAR_TOO_BIG),
        ];
        let seen = Forwarded::find_forwarded(&flows);
        let expected =
            Forwarded { connections: 4, path: 1, mtu: 1, loss: 1, late: 1, neighbours: 1 };
        assert_eq!(seen, expected);
        assert!(seen.signs().starts_with("1 by the TTL"), "{}", seen.signs());
        assert_eq!(Forwarded::default().signs(), "");
    }
}
