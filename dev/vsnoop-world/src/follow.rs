//! The engine follows a VM to another port, as cli/src/engine/moved.rs does.

use std::collections::BTreeSet;

use vsnoop_flow::testing::segment::ACK;
use vsnoop_flow::types::*;
use vsnoop_hold::Sent;
use vsnoop_hold::moves::{Elsewhere, LOOK_NS, VmRoute};
use vsnoop_hold::outstanding_bytes;
use vsnoop_hold::overheard::{ack_of_sender, pure_ack};
use vsnoop_hold::reset::reset;

use crate::away::{PORT, Speaker};
use crate::frame::{Frame, Summed};
use crate::host::{Vm, described, tell};
use crate::native::Program;
use crate::wire;

impl Vm {
    /// A frame of a sender's comes to a VM that has moved.
    pub fn arrives_elsewhere(&mut self, c: usize, mut frame: Frame) {
        frame.mark = 0;
        if let Some(segment) = wire::decode(&frame).filter(|segment| segment.has(ACK)) {
            self.acked(c, &segment);
        }
        self.away.is_heard(Speaker::Sender, &frame);
        self.away.ring.push_back(frame);
    }

    /// The engine sends a frame by the other port; `None`: by the tap.
    pub fn send_elsewhere(&mut self, frame: &Frame) -> Option<Sent> {
        self.away.moves.port(&frame.bytes[..6], &frame.bytes[6..12])?;
        self.note(|| format!("  by the other port: {}", described(frame)));
        self.away.ring.push_back(Frame { mark: 0, ..frame.clone() });
        Some(Sent::Taken)
    }

    /// One round of the engine.
    pub fn follow(&mut self) {
        if self.now >= self.away.look_at {
            self.away.look_at = self.now + LOOK_NS;
            self.look_for_vm();
        }
        while let Some((speaker, frame)) = self.away.heard.pop_front() {
            let now = self.now;
            let (program, ack) = match speaker {
                Speaker::Vm => {
                    self.away.moves.heard(mac_at(&frame, 6), now);
                    (Program::FromVm, pure_ack(&frame.bytes))
                }
                Speaker::Sender => (Program::ToVm, ack_of_sender(&frame.bytes)),
            };
            let Some(ack) = ack else { continue };
            let mut frame = Frame::new(ack);
            frame.summed = Summed::None;
            self.port.now = now;
            self.port.test_run(program, &mut frame, &mut |_, _| {});
        }
    }

    fn look_for_vm(&mut self) {
        let waiting = self.waiting();
        self.away.moves.keep(&waiting);
        let to = self.away.has_moved.then_some(Elsewhere { port: PORT, can_follow: true });
        for route in waiting {
            if self.away.moves.found(route, to, self.now) {
                self.note(|| "the engine finds the VM behind another port".into());
            }
        }
        for route in self.away.moves.lost(self.now) {
            self.give_up_moved(&route);
        }
    }

    fn waiting(&mut self) -> BTreeSet<VmRoute> {
        let mut waiting = BTreeSet::new();
        for number in 1..=self.state().slabs * SLAB_HOLDS {
            let Some(hold) = self.hold(number).filter(|hold| hold.used != 0) else { continue };
            if hold.tail.diff(hold.vm_seq) > 0 {
                let (mac, next_hop) = (hold.key.vm_mac, hold.next_hop);
                waiting.insert(VmRoute { mac, vlan: 0, next_hop });
            }
        }
        waiting
    }

    fn give_up_moved(&mut self, route: &VmRoute) {
        for (key, flow) in self.flows() {
            let is_lost = key.vm_mac == route.mac && flow.next_hop == route.next_hop;
            if is_lost && outstanding_bytes(&flow) > 0 {
                self.note(|| "the engine gives up a VM that has moved".into());
                let (why, now) = (reset_reason::RESET_MOVED, self.now);
                let Ok(_) = reset(self, &key, &flow, why, now, tell);
            }
        }
    }
}

fn mac_at(frame: &Frame, at: usize) -> [u8; 6] {
    let mut mac = [0; 6];
    mac.copy_from_slice(&frame.bytes[at..at + 6]);
    mac
}
