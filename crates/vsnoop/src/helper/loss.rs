//! Loss in the guest that no packet reveals.
//!
//! The last bytes of a burst were acknowledged early and handed to the VM, and the guest dropped them
//! (its firewall, its memory pressure). The sender has nothing to send again, the VM nothing to
//! complain of: the connection would hang. What gives it away is that the VM has run and has still not
//! acknowledged them, although nothing waits in the tap's ring.
//!
//! So time counts only while the VM demonstrably could have answered: some vCPU has run, none wanted to
//! run and could not (the one that takes the interrupt may be the one that starves), and the monitor
//! has emptied the ring. A stopped, paused or starved VM is therefore never suspected. Where no VM is
//! behind the tap (a sandbox, a test), time on the clock counts instead, and more of it is needed.

use std::collections::HashMap;

use vsnoop_bpf::Record;
use vsnoop_bpf::types::{self, flow, flow_key, flow_mode};

use crate::system::vcpu::Tick;

const MILLISECOND_NS: u64 = 1_000_000;

/// A vCPU that ran for less in a period has not really run.
const RAN_NS: u64 = MILLISECOND_NS / 10;
/// Time on a CPU after which the VM must have answered.
const OWN_RUN_NS: u64 = 1000 * MILLISECOND_NS;
/// Or periods in which it ran: 2 s of a VM that is mostly idle.
const PERIODS: u32 = 8;
/// Time on the clock where no VM is behind the tap.
const WALL_NS: u64 = 5000 * MILLISECOND_NS;

/// What one period says about the VM's chance to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chance {
    /// It did not run, or could not have seen its packets.
    None,
    /// It ran for so long.
    Ran { ns: u64 },
    /// No VM is behind the tap; so much time passed.
    Wall { ns: u64 },
}

/// The chance that a VM had between two looks at its vCPU threads; `before` and `now` are not empty.
pub fn chance_of_vm(before: &[Tick], now: &[Tick]) -> Chance {
    let mut least_ns = None;
    for tick in now {
        let Some(earlier) = before.iter().find(|earlier| earlier.tid == tick.tid) else {
            return Chance::None;
        };
        let ran_ns = tick.run_ns.saturating_sub(earlier.run_ns);
        if ran_ns >= RAN_NS {
            least_ns = Some(least_ns.map_or(ran_ns, |least: u64| least.min(ran_ns)));
        } else if tick.state != 'S' {
            return Chance::None;
        }
    }
    least_ns.map_or(Chance::None, |ns| Chance::Ran { ns })
}

/// The suspects of one port.
#[derive(Debug, Default)]
pub struct Suspects {
    stalled: HashMap<Vec<u8>, Stall>,
}

#[derive(Debug, Default)]
struct Stall {
    vm_seq: u32,
    progress_ns: u64,
    run_ns: u64,
    periods: u32,
    wall_ns: u64,
}

impl Suspects {
    /// Takes one period's look at the flows; returns those whose data is lost for certain.
    pub fn judge<'a>(
        &mut self,
        flows: &'a [(flow_key, flow)],
        chance: Chance,
    ) -> Vec<&'a (flow_key, flow)> {
        let mut earlier = std::mem::take(&mut self.stalled);
        let mut lost = Vec::new();
        for entry @ (key, flow) in flows.iter().filter(|(_, flow)| is_behind(flow)) {
            let key = key.as_bytes().to_vec();
            let stall = earlier.remove(&key).filter(|stall| {
                stall.vm_seq == flow.vm_seq.v && stall.progress_ns == flow.progress_ns
            });
            // Seen for the first time: the period that ends now began before it was behind.
            let Some(mut stall) = stall else {
                let (vm_seq, progress_ns) = (flow.vm_seq.v, flow.progress_ns);
                self.stalled.insert(key, Stall { vm_seq, progress_ns, ..Stall::default() });
                continue;
            };
            stall.add(chance);
            if stall.is_lost() {
                lost.push(entry);
            }
            self.stalled.insert(key, stall);
        }
        lost
    }
}

impl Stall {
    fn add(&mut self, chance: Chance) {
        match chance {
            Chance::None => {}
            Chance::Ran { ns } => {
                self.run_ns += ns;
                self.periods += 1;
            }
            Chance::Wall { ns } => self.wall_ns += ns,
        }
    }

    fn is_lost(&self) -> bool {
        self.run_ns >= OWN_RUN_NS || self.periods >= PERIODS || self.wall_ns >= WALL_NS
    }
}

/// Does the VM owe an acknowledgement of bytes that the sender believes delivered?
pub fn is_behind(flow: &flow) -> bool {
    flow.next_seq.diff(flow.vm_seq) > 0
        && u32::from(flow.mode) != flow_mode::FLOW_RESET
        && u32::from(flow.flags) & types::FLOW_F_CLOSED == 0
}

#[cfg(test)]
mod tests {
    use vsnoop_bpf::types::seq;

    use super::*;

    fn tick(tid: i32, state: char, run_ns: u64) -> Tick {
        Tick { tid, state, run_ns }
    }

    fn behind() -> Vec<(flow_key, flow)> {
        let flow = flow { next_seq: seq::new(2000), vm_seq: seq::new(1000), ..Default::default() };
        vec![(flow_key::default(), flow)]
    }

    const MS: u64 = MILLISECOND_NS;

    #[test]
    fn a_vm_that_ran_a_second_of_its_own_has_lost_the_data() {
        let flows = behind();
        let mut suspects = Suspects::default();
        let ran = Chance::Ran { ns: 250 * MS };
        for _ in 0..4 {
            assert!(suspects.judge(&flows, ran).is_empty());
        }
        assert_eq!(suspects.judge(&flows, ran).len(), 1);
    }

    #[test]
    fn a_vm_that_hardly_runs_has_eight_periods() {
        let flows = behind();
        let mut suspects = Suspects::default();
        let ran = Chance::Ran { ns: MS };
        for _ in 0..8 {
            assert!(suspects.judge(&flows, ran).is_empty());
        }
        assert_eq!(suspects.judge(&flows, ran).len(), 1);
    }

    #[test]
    fn a_stopped_vm_is_never_suspected() {
        let flows = behind();
        let mut suspects = Suspects::default();
        for _ in 0..1000 {
            assert!(suspects.judge(&flows, Chance::None).is_empty());
        }
    }

    #[test]
    fn progress_acquits() {
        let mut flows = behind();
        let mut suspects = Suspects::default();
        let ran = Chance::Ran { ns: 900 * MS };
        for step in 0..100 {
            assert!(suspects.judge(&flows, ran).is_empty());
            assert!(suspects.judge(&flows, ran).is_empty());
            flows[0].1.vm_seq = seq::new(1001 + step);
        }
    }

    #[test]
    fn without_a_vm_the_clock_decides_later() {
        let flows = behind();
        let mut suspects = Suspects::default();
        let wall = Chance::Wall { ns: 1000 * MS };
        for _ in 0..5 {
            assert!(suspects.judge(&flows, wall).is_empty());
        }
        assert_eq!(suspects.judge(&flows, wall).len(), 1);
    }

    #[test]
    fn reset_and_ended_flows_owe_nothing() {
        let mut flow = behind()[0].1;
        assert!(is_behind(&flow));
        flow.mode = flow_mode::FLOW_RESET as u8;
        assert!(!is_behind(&flow));
    }

    #[test]
    fn a_halted_vcpu_does_not_excuse_but_a_starved_one_does() {
        let before = [tick(1, 'R', 0), tick(2, 'S', 0)];
        assert_eq!(
            chance_of_vm(&before, &[tick(1, 'R', 5 * MS), tick(2, 'S', 0)]),
            Chance::Ran { ns: 5 * MS }
        );
        for state in ['R', 'T', 'D'] {
            let now = [tick(1, 'R', 5 * MS), tick(2, state, 0)];
            assert_eq!(chance_of_vm(&before, &now), Chance::None, "{state}");
        }
        assert_eq!(chance_of_vm(&before, &[tick(1, 'S', 0), tick(2, 'S', 0)]), Chance::None);
    }

    #[test]
    fn the_vcpu_that_ran_least_counts() {
        let before = [tick(1, 'R', 0), tick(2, 'R', 0)];
        let now = [tick(1, 'R', 100 * MS), tick(2, 'R', 3 * MS)];
        assert_eq!(chance_of_vm(&before, &now), Chance::Ran { ns: 3 * MS });
    }
}
