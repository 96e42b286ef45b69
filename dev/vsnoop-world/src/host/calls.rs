//! The engine sends packets, reads clocks and gives connections up.

use std::time::Duration;

use vsnoop_flow::testing::segment::brief;
use vsnoop_flow::types::*;
use vsnoop_hold::reset::{self, ResetOutcome};
use vsnoop_hold::{Clock, Device, PortAccess, Reason, RunTime, Sent, Slice, Waited};
use vsnoop_packet::vnet::VNET_BYTES;

use super::{ETHERNET, Vcpus, Vm, described, tell};
use crate::frame::{Frame, Summed};
use crate::kernel::Fate;
use crate::wire;

/// Mark of the engine's frames (accel/bpf/reply.h).
const MARK_ENGINE: u32 = 0x5e30_0000;

impl Device for Vm {
    fn mtu(&mut self) -> u32 {
        self.mtu
    }

    fn takes_super_packets(&mut self) -> bool {
        self.fortune.super_packets
    }

    fn send(&mut self, headers: &[u8], payload: &[Slice]) -> Sent {
        if !self.step() {
            return Sent::Refused;
        }
        let (vnet, headers) = headers.split_at(VNET_BYTES);
        let mut bytes = headers.to_vec();
        for slice in payload {
            let Some((_, chunk)) = self.chunk(slice.chunk) else { return Sent::Failed };
            bytes.extend_from_slice(&chunk[slice.offset as usize..][..slice.len as usize]);
        }
        let mut frame = Frame::new(bytes);
        frame.summed = Summed::Partial;
        frame.mark = MARK_ENGINE;
        frame.gso_size = u16::from_le_bytes([vnet[4], vnet[5]]).into();
        if frame.gso_size == 0 && frame.bytes.len() > self.mtu as usize + ETHERNET + 4 {
            return Sent::TooLarge;
        }
        let c = self.connection(&frame.bytes, true).expect("a connection of this VM");
        self.note(|| format!("{c}  engine > {}", described(&frame)));
        if let Some(sent) = self.send_elsewhere(&frame) {
            return sent;
        }
        let before = self.port.ring.len();
        match self.egress(frame) {
            Fate::Taken => {
                if self.port.ring.len() > before
                    && !self.away.has_moved
                    && let Some(frame) = self.port.ring.back()
                {
                    let sent = wire::decode(frame).expect("what the engine sends is whole");
                    if let Some(newest) = self.acked[c] {
                        let is_old = (sent.ack.wrapping_sub(newest) as i32) < 0;
                        assert!(
                            !is_old,
                            "the engine's ACK is older than {newest}: {}",
                            brief(&sent)
                        );
                    }
                }
                Sent::Taken
            }
            Fate::Passed | Fate::Redirected => Sent::Taken,
            Fate::Refused | Fate::Dropped => Sent::Refused,
        }
    }
}

impl Clock for Vm {
    fn now_ns(&mut self) -> u64 {
        self.step();
        self.now
    }

    fn run_time(&mut self) -> RunTime {
        self.step();
        let elapsed = Duration::from_nanos(self.now - self.looked_at);
        self.looked_at = self.now;
        let now = self.sample();
        let before = std::mem::replace(&mut self.threads, now);
        if self.away.is_followed() {
            return RunTime::wall(elapsed);
        }
        let is_empty = self.port.ring.is_empty();
        RunTime::between(&before, &mut self.threads, Some(is_empty), elapsed)
    }

    fn forget_run_time(&mut self) {
        self.looked_at = self.now;
        self.threads = self.sample();
    }

    /// Counts every stop as a wait for a CPU.
    fn waited(&mut self) -> Option<Waited> {
        self.step();
        let from = std::mem::replace(&mut self.waited_at, self.now);
        let ran = if self.calm {
            self.now - from
        } else {
            self.fortune.schedule.run_time(from, self.now)
        };
        if self.fortune.vcpus == Vcpus::Unnamed {
            return None;
        }
        let ns = self.now - from - ran;
        Some(Waited { vcpu_ns: ns, process_ns: ns })
    }
}

impl PortAccess for Vm {
    fn reset_held_flow(&mut self, hold: &hold, reason: Reason) -> bool {
        if !self.step() {
            return false;
        }
        let now = self.now;
        let Ok(outcome) = reset::reset_held_flow(self, hold, reason, now, tell);
        if outcome == ResetOutcome::Reset {
            let port = u16::from_be(hold.key.sender_port);
            let found = self.paths.iter().find(|(_, path)| path.sender.1 == port);
            let c = found.map_or(0, |(c, _)| *c);
            self.note(|| format!("{c}  the engine gives up: {reason:?}"));
            self.resets.push((c, reason));
        }
        outcome != ResetOutcome::VmAdvanced
    }
}
