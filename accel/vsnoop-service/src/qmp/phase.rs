//! The phase of a VM's migration, as QEMU's events tell it. No input or output.
//!
//! Saving a VM to a file, and a snapshot with memory, are migrations to QEMU: the VM may go on here
//! after `completed`. The events of an *incoming* migration say nothing of a VM that is here.
//!
//! | event or answer | phase after it |
//! |---|---|
//! | `MIGRATION` `setup`, `active`, every other status | leaving |
//! | `MIGRATION` `failed`, `cancelled`, `none` | here |
//! | `MIGRATION` `completed`, the VM is stopped | gone |
//! | `MIGRATION` `completed`, the VM runs | here |
//! | `RESUME` of a VM that was gone | here: a snapshot, or its management took it back |
//! | any status of an incoming migration | here |
//! | answer `completed` without such an event, the VM is not in `postmigrate` | here |
//!
//! QEMU says `completed` for ever of a VM that came by migration, was restored, or of which a
//! snapshot was taken, also while it is paused.

use std::time::Instant;

use serde_json::Value;

/// Where a VM is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Here,
    /// A migration is under way.
    Leaving,
    /// A migration is completed, and the VM does not run.
    Gone {
        since: Instant,
    },
}

/// A VM, as its events and answers tell.
#[derive(Debug)]
pub struct Vm {
    is_running: bool,
    /// QEMU waits for a VM, or gets one.
    is_incoming: bool,
    /// By its run state a migration has taken it away.
    is_away: bool,
    phase: Phase,
}

impl Default for Vm {
    fn default() -> Self {
        Self { is_running: true, is_incoming: false, is_away: false, phase: Phase::Here }
    }
}

impl Vm {
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// An event of this name.
    pub fn event(&mut self, name: &str, data: &Value, now: Instant) {
        match name {
            "STOP" => self.is_running = false,
            "RESUME" => {
                self.is_running = true;
                if matches!(self.phase, Phase::Gone { .. }) {
                    self.phase = Phase::Here;
                }
            }
            "MIGRATION" => {
                if let Some(status) = data["status"].as_str() {
                    self.migration(status, now);
                }
            }
            _ => {}
        }
    }

    /// The answer to `query-status`.
    pub fn run_state(&mut self, answer: &Value) {
        self.is_running = answer["running"].as_bool().unwrap_or(self.is_running);
        self.is_incoming |= answer["status"] == "inmigrate";
        self.is_away = answer["status"] == "postmigrate" || answer["status"] == "finish-migrate";
    }

    /// The status in the answer to `query-migrate`, "none" before the first migration; after
    /// [`Vm::run_state`].
    pub fn migration_answer(&mut self, status: &str, now: Instant) {
        let is_old = status == "completed" && self.phase == Phase::Here && !self.is_away;
        if !is_old || self.is_incoming {
            self.migration(status, now);
        }
    }

    /// A status of `MIGRATION`.
    fn migration(&mut self, status: &str, now: Instant) {
        let is_over = matches!(status, "completed" | "failed" | "cancelled" | "none");
        if self.is_incoming {
            // The run state says when it is the VM's own.
            self.is_incoming = !is_over || status == "none";
            self.phase = Phase::Here;
            return;
        }
        self.phase = match (status, self.phase) {
            ("completed", Phase::Gone { since }) if !self.is_running => Phase::Gone { since },
            ("completed", _) if !self.is_running => Phase::Gone { since: now },
            _ if is_over => Phase::Here,
            _ => Phase::Leaving,
        };
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The phase after each of these, `STATUS` of `MIGRATION` or another event.
    fn phases(vm: &mut Vm, events: &[&str]) -> Vec<&'static str> {
        let now = Instant::now();
        let phase = |event: &&str| {
            match *event {
                "STOP" | "RESUME" | "RTC_CHANGE" => vm.event(event, &Value::Null, now),
                status => vm.event("MIGRATION", &json!({ "status": status }), now),
            }
            match vm.phase() {
                Phase::Here => "here",
                Phase::Leaving => "leaving",
                Phase::Gone { .. } => "gone",
            }
        };
        events.iter().map(phase).collect()
    }

    #[test]
    fn a_migration_that_is_completed_takes_the_vm_away_and_one_that_fails_does_not() {
        let mut vm = Vm::default();
        let left = phases(&mut vm, &["setup", "active", "STOP", "device", "completed"]);
        assert_eq!(left, ["leaving", "leaving", "leaving", "leaving", "gone"]);
        assert_eq!(phases(&mut vm, &["RTC_CHANGE", "RESUME"]), ["gone", "here"], "taken back");
        for end in ["failed", "cancelled"] {
            let events = ["setup", "active", "cancelling", end];
            let stays = phases(&mut Vm::default(), &events);
            assert_eq!(stays, ["leaving", "leaving", "leaving", "here"]);
        }
        let unknown = phases(&mut Vm::default(), &["a status of a later QEMU"]);
        assert_eq!(unknown, ["leaving"]);
    }

    #[test]
    fn a_snapshot_ends_with_the_vm_here() {
        let snapshot = phases(&mut Vm::default(), &["STOP", "setup", "completed", "RESUME"]);
        assert_eq!(snapshot, ["here", "leaving", "gone", "here"]);
    }

    #[test]
    fn a_vm_that_comes_is_here_whatever_the_status_of_its_migration() {
        let mut vm = Vm::default();
        vm.run_state(&json!({ "status": "inmigrate", "running": false }));
        let came = phases(&mut vm, &["none", "setup", "active", "RESUME", "completed"]);
        assert_eq!(came, ["here"; 5]);
        assert_eq!(phases(&mut vm, &["setup"]), ["leaving"], "the next one is its own");
    }

    #[test]
    fn a_vm_stays_gone_since_its_migration_was_completed() {
        let mut vm = Vm::default();
        let first = Instant::now();
        vm.run_state(&json!({ "status": "postmigrate", "running": false }));
        vm.migration_answer("completed", first);
        vm.migration_answer("completed", first + std::time::Duration::from_secs(3));
        assert_eq!(vm.phase(), Phase::Gone { since: first });
    }

    #[test]
    fn a_vm_that_came_or_was_saved_once_and_is_paused_is_here() {
        let now = Instant::now();
        for state in ["paused", "io-error", "internal-error"] {
            let mut vm = Vm::default();
            vm.run_state(&json!({ "status": state, "running": false }));
            vm.migration_answer("completed", now);
            assert_eq!(vm.phase(), Phase::Here, "{state}");
            // It leaves now, and the answer comes before the last event.
            vm.event("MIGRATION", &json!({ "status": "active" }), now);
            vm.migration_answer("completed", now);
            assert_eq!(vm.phase(), Phase::Gone { since: now }, "{state}");
        }
    }
}
