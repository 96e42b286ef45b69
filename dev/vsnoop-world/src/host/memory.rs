//! The engine accesses the memory of a port. Each access is a step, at which another CPU may act or
//! the engine may be killed.

use vsnoop_flow::growth::{may_shrink_to, slab_quota, slabs_to_add};
use vsnoop_flow::types::*;
use vsnoop_hold::{Memory, Reclaimed};

use super::Vm;

impl Vm {
    /// A step of the engine that writes to a hold, if there is such a hold.
    fn change(&mut self, number: u32, write: impl FnOnce(&mut hold)) {
        if self.step()
            && let Some(hold) = self.hold(number)
        {
            write(hold);
        }
    }
}

impl Memory for Vm {
    fn hold_count(&mut self) -> u32 {
        self.state().slabs * SLAB_HOLDS
    }

    fn read(&mut self, number: u32) -> hold {
        self.step();
        let hold = self.hold(number).map(|hold| *hold).unwrap_or_default();
        let before = self.before.take_if(|before| before.number == number);
        before.map_or(hold, |before| before.torn(&hold, &mut self.rng))
    }

    fn front(&mut self, number: u32) -> (seq, u32) {
        self.step();
        let front = self.hold(number).map_or(0, |hold| hold.front);
        (seq::new((front >> 32) as u32), front as u32)
    }

    fn next(&mut self, chunk: u32) -> u32 {
        self.step();
        self.chunk(chunk).map_or(u32::MAX, |(chunk, _)| chunk.next)
    }

    fn take_woken(&mut self) -> Vec<u32> {
        if !self.step() {
            return Vec::new();
        }
        let records = self.port.map_mut("doorbell").take_records();
        records.iter().map(|r| u32::from_le_bytes(r[..4].try_into().expect("a number"))).collect()
    }

    fn set_looks(&mut self, looks: bool) {
        if self.step() {
            self.state().engine_looks = looks.into();
        }
    }

    fn clear_woken(&mut self, number: u32) {
        self.change(number, |hold| hold.woken = 0);
    }

    fn busy(&mut self, group: u32) -> u32 {
        self.step();
        self.slab(group).map_or(0, |slab| slab.busy)
    }

    fn clear_busy(&mut self, number: u32) {
        let at = number - 1;
        if self.step()
            && let Some(slab) = self.slab(at / SLAB_HOLDS)
        {
            slab.busy &= !(1 << (at % SLAB_HOLDS));
        }
    }

    fn set_sending(&mut self, number: u32, now_ns: Option<u64>) {
        self.change(number, |hold| {
            hold.sending = now_ns.map_or(0, vsnoop_flow::hold::sending_since)
        });
    }

    fn set_ack_waits(&mut self, number: u32, waits: bool) {
        self.change(number, |hold| hold.ack_waits = waits.into());
    }

    fn heartbeat(&mut self, now_ns: u64) {
        if self.step() {
            self.state().engine_ns = now_ns;
        }
    }

    fn starves(&mut self, now_ns: u64) {
        if self.step() {
            self.state().starved_ns = now_ns;
        }
    }

    fn set_handed(&mut self, number: u32, handed: seq) {
        self.change(number, |hold| hold.handed = handed);
    }

    fn set_handed_ns(&mut self, number: u32, now_ns: u64) {
        self.change(number, |hold| hold.handed_ns = now_ns);
    }

    fn set_wants_acks(&mut self, number: u32, wants: bool) {
        self.change(number, |hold| hold.wants_acks = wants.into());
    }

    fn set_portion(&mut self, number: u32, bytes: u32) {
        self.change(number, |hold| hold.portion = bytes);
    }

    fn set_handed_tsval(&mut self, number: u32, tsval: u32) {
        self.change(number, |hold| hold.handed_tsval = tsval);
    }

    fn set_late(&mut self, number: u32, why: u32) {
        self.change(number, |hold| hold.late = why);
    }

    fn count_handover(&mut self, number: u32) {
        self.change(number, |hold| hold.handovers += 1);
    }

    fn count_resend(&mut self, number: u32, bytes: u32) {
        self.change(number, |hold| {
            hold.resends += 1;
            hold.resent_bytes += u64::from(bytes);
        });
    }

    fn count_probe(&mut self, number: u32) {
        self.change(number, |hold| hold.probes += 1);
    }

    fn reclaim(&mut self, number: u32, end: bool) -> Reclaimed {
        if !self.step() {
            return Reclaimed::Used;
        }
        let why = if end { reclaim::RECLAIM_HOLD } else { reclaim::RECLAIM_CHUNKS };
        Reclaimed::new(self.run_reclaim(number, why))
    }

    fn grow(&mut self) {
        if !self.step() || self.state().wants_slabs == 0 {
            return;
        }
        let quota = slab_quota(self.policy().hold_chunks);
        let there = self.state().slabs;
        for index in there..there + slabs_to_add(there, quota) {
            self.port.add_slab(index);
            self.state().slabs = index + 1;
        }
        self.state().wants_slabs = 0;
    }

    fn shrink(&mut self) {
        if !self.step() {
            return;
        }
        let (there, used) = (self.state().slabs, self.state().chunks_used);
        let quota = slab_quota(self.policy().hold_chunks);
        for last in (0..there).rev() {
            if !may_shrink_to(last, there, quota, used) || !self.take_last(last) {
                break;
            }
        }
    }
}
