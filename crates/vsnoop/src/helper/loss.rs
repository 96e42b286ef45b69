//! Loss in the guest that no packet reveals.
//!
//! The last bytes of a burst were acknowledged early and handed to the VM, and the guest dropped them
//! (its firewall, its memory pressure). The sender has nothing to send again, the VM nothing to
//! complain of: the connection would hang. What gives it away is that the VM has run and has still not
//! acknowledged them, although nothing waits in the tap's ring.
//!
//! So time counts only while the VM demonstrably could have answered ([`Chance`]) and the monitor has
//! emptied the ring. A stopped, paused or starved VM is therefore never suspected. Where it cannot be
//! told whether a VM runs, time on the clock counts instead, and more of it is needed.
//!
//! On the way to the verdict the VM is asked twice how far it has got (`question`), because its own ACK
//! may be what was lost, and it has time to answer after the second question too. Only one that could
//! not be asked, because its device takes nothing, is judged without: twice as late.

use std::collections::HashMap;

use vsnoop_bpf::types::{flow, flow_key};
use vsnoop_bpf::{Record, bytes_owed};

use super::chance::Chance;

const MILLISECOND_NS: u64 = 1_000_000;

/// Time on a CPU after which the VM must have answered.
const OWN_RUN_NS: u64 = 1000 * MILLISECOND_NS;
/// Or periods in which it ran: 2 s of a VM that is mostly idle.
const PERIODS: u64 = 8;
/// Time on the clock where it cannot be told whether the VM runs.
const WALL_NS: u64 = 5000 * MILLISECOND_NS;

/// The questions are due after these quarters of that.
const QUESTIONS: [u64; 2] = [1, 3];
/// Looks from one question to the next, three quarters of a second: Linux answers old segments without
/// data every 500 ms at most (tcp_invalid_ratelimit).
const LOOKS_APART: u32 = 3;
/// Quarters after which the verdict falls, if the VM was asked, and one of them after the last question.
const VERDICT: u64 = 4;
/// Quarters after which it falls if the VM could not be asked.
const VERDICT_UNASKED: u64 = 2 * VERDICT;
/// ... as often as this at least.
const REFUSALS: u32 = 2;

/// A flow as it was read.
pub type Entry = (flow_key, flow);

/// What one look comes to.
#[derive(Debug, Default)]
pub struct Judgement<'a> {
    /// Their VM is to be asked; [`Suspects::asked`] wants to know when that was done.
    pub ask: Vec<&'a Entry>,
    /// Their data is lost for certain.
    pub lost: Vec<&'a Entry>,
}

/// The suspects of one port.
#[derive(Debug, Default)]
pub struct Suspects {
    stalled: HashMap<Vec<u8>, Stall>,
}

/// A VM that stands still.
#[derive(Debug, Default)]
struct Stall {
    vm_seq: u32,
    progress_ns: u64,
    chances: Chances,
    questions: usize,
    /// Questions that the device has not taken since it took one.
    refused: u32,
    chances_since: Chances,
    looks_since: u32,
}

/// What the VM had, all in all.
#[derive(Debug, Default)]
struct Chances {
    run_ns: u64,
    periods: u64,
    wall_ns: u64,
}

enum Next {
    Wait,
    Ask,
    Lost,
}

impl Suspects {
    /// Takes one period's look at the flows.
    pub fn judge<'a>(&mut self, flows: &'a [Entry], chance: Chance) -> Judgement<'a> {
        let mut earlier = std::mem::take(&mut self.stalled);
        let mut judgement = Judgement::default();
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
            match stall.look(chance) {
                Next::Wait => {}
                Next::Ask => judgement.ask.push(entry),
                Next::Lost => judgement.lost.push(entry),
            }
            self.stalled.insert(key, stall);
        }
        judgement
    }

    /// The VM's device has taken the question.
    pub fn asked(&mut self, key: &flow_key) {
        if let Some(stall) = self.stalled.get_mut(key.as_bytes()) {
            stall.questions += 1;
            stall.refused = 0;
            stall.chances_since = Chances::default();
            stall.looks_since = 0;
        }
    }

    /// The VM's device has not taken the question.
    pub fn refused(&mut self, key: &flow_key) {
        if let Some(stall) = self.stalled.get_mut(key.as_bytes()) {
            stall.refused += 1;
        }
    }
}

impl Stall {
    fn look(&mut self, chance: Chance) -> Next {
        self.looks_since += 1;
        if chance == Chance::None {
            return Next::Wait;
        }
        self.chances.add(chance);
        self.chances_since.add(chance);
        let quarters = self.chances.quarters();
        match QUESTIONS.get(self.questions) {
            _ if quarters >= VERDICT_UNASKED && self.refused >= REFUSALS => Next::Lost,
            None if quarters >= VERDICT && self.chances_since.quarters() >= 1 => Next::Lost,
            Some(due)
                if quarters >= *due && (self.questions == 0 || self.looks_since >= LOOKS_APART) =>
            {
                Next::Ask
            }
            _ => Next::Wait,
        }
    }
}

impl Chances {
    fn add(&mut self, chance: Chance) {
        match chance {
            Chance::None => {}
            // A look that comes late leaves no less time for questions and answers.
            Chance::Ran { ns } => {
                self.run_ns += ns.min(OWN_RUN_NS / 4);
                self.periods += 1;
            }
            Chance::Wall { ns } => self.wall_ns += ns.min(WALL_NS / 4),
        }
    }

    /// How many quarters of what proves a loss.
    fn quarters(&self) -> u64 {
        let run = self.run_ns * 4 / OWN_RUN_NS;
        run.max(self.periods * 4 / PERIODS).max(self.wall_ns * 4 / WALL_NS)
    }
}

/// Does the VM owe an acknowledgement of bytes that the sender believes delivered?
pub fn is_behind(flow: &flow) -> bool {
    bytes_owed(flow) > 0
}

#[cfg(test)]
mod tests {
    use vsnoop_bpf::types::{flow_mode, seq};

    use super::*;

    const MS: u64 = MILLISECOND_NS;
    /// More than any verdict needs.
    const MANY: usize = 1000;

    fn behind() -> Vec<Entry> {
        let flow = flow { next_seq: seq::new(2000), vm_seq: seq::new(1000), ..Default::default() };
        vec![(flow_key::default(), flow)]
    }

    /// The looks, counted from the first with a chance, at which the VM was asked, and the one of the
    /// verdict.
    fn course(mut chance: impl FnMut(usize) -> Chance, takes: bool) -> (Vec<usize>, Option<usize>) {
        let flows = behind();
        let mut suspects = Suspects::default();
        let mut asked = Vec::new();
        for look in 0..MANY {
            let judgement = suspects.judge(&flows, chance(look));
            if !judgement.lost.is_empty() {
                assert!(judgement.ask.is_empty());
                return (asked, Some(look));
            }
            for (key, _) in judgement.ask {
                asked.push(look);
                if takes {
                    suspects.asked(key);
                } else {
                    suspects.refused(key);
                }
            }
        }
        (asked, None)
    }

    #[test]
    fn a_vm_that_is_busy_is_asked_twice_and_has_time_for_both_answers() {
        let ran = Chance::Ran { ns: 250 * MS };
        assert_eq!(course(|_| ran, true), (vec![1, 4], Some(5)));
    }

    #[test]
    fn a_vm_that_hardly_runs_has_eight_periods() {
        let ran = Chance::Ran { ns: MS };
        assert_eq!(course(|_| ran, true), (vec![2, 6], Some(8)));
    }

    #[test]
    fn the_clock_decides_later() {
        let wall = Chance::Wall { ns: 250 * MS };
        assert_eq!(course(|_| wall, true), (vec![5, 15], Some(20)));
    }

    #[test]
    fn a_look_that_comes_late_leaves_out_no_question() {
        for ms in [250, 500, 2000, 100_000] {
            let (asked, lost) = course(|_| Chance::Ran { ns: ms * MS }, true);
            assert_eq!((asked.len(), lost), (2, Some(5)), "looks of {ms} ms");
            let (asked, lost) = course(|_| Chance::Wall { ns: 5 * ms * MS }, true);
            assert_eq!((asked.len(), lost), (2, Some(5)), "looks of {} ms", 5 * ms);
        }
    }

    #[test]
    fn a_vm_that_had_no_turn_to_be_asked_is_not_judged() {
        let flows = behind();
        let mut suspects = Suspects::default();
        for _ in 0..MANY {
            assert!(suspects.judge(&flows, Chance::Ran { ns: 250 * MS }).lost.is_empty());
        }
    }

    #[test]
    fn a_vm_that_cannot_be_asked_has_twice_the_time() {
        let (asked, verdict) = course(|_| Chance::Ran { ns: MS }, false);
        assert_eq!((asked[0], verdict), (2, Some(16)));
    }

    #[test]
    fn a_stopped_vm_is_neither_asked_nor_suspected() {
        assert_eq!(course(|_| Chance::None, true), (vec![], None));
    }

    #[test]
    fn a_vm_that_stops_after_the_questions_is_not_lost_until_it_runs_again() {
        let stops_at = 6;
        let ran = Chance::Ran { ns: MS };
        let stopped = |look| if look > stops_at { Chance::None } else { ran };
        assert_eq!(course(stopped, true), (vec![2, 6], None));
        let goes_on = |look| if (7..100).contains(&look) { Chance::None } else { ran };
        assert_eq!(course(goes_on, true), (vec![2, 6], Some(101)));
    }

    #[test]
    fn an_answer_that_makes_progress_acquits() {
        let mut flows = behind();
        let mut suspects = Suspects::default();
        let ran = Chance::Ran { ns: 250 * MS };
        for step in 0..100 {
            let mut questions = 0;
            while questions < 2 {
                let judgement = suspects.judge(&flows, ran);
                assert!(judgement.lost.is_empty());
                for (key, _) in judgement.ask {
                    suspects.asked(key);
                    questions += 1;
                }
            }
            flows[0].1.vm_seq = seq::new(1001 + step);
        }
    }

    #[test]
    fn an_answer_of_everything_ends_the_suspicion() {
        let mut flows = behind();
        let mut suspects = Suspects::default();
        let ran = Chance::Ran { ns: 250 * MS };
        while suspects.judge(&flows, ran).ask.is_empty() {}
        suspects.asked(&flows[0].0);
        flows[0].1.vm_seq = flows[0].1.next_seq;
        for _ in 0..MANY {
            let judgement = suspects.judge(&flows, ran);
            assert!(judgement.ask.is_empty() && judgement.lost.is_empty());
        }
    }

    #[test]
    fn reset_and_ended_flows_owe_nothing() {
        let mut flow = behind()[0].1;
        assert!(is_behind(&flow));
        flow.mode = flow_mode::FLOW_RESET as u8;
        assert!(!is_behind(&flow));
    }
}
