//! The engine's work on one hold that is due.

use vsnoop_flow::hold::Reclaimed;
use vsnoop_flow::types::{HOLD_OVER, LATE_ACKS, LATE_LOSSES, hold, seq};

use super::{Course, END_NS, Engine, HOLD_FRAMES, IDLE_LONG_NS, IDLE_NS, Phase, WATCH_NS};
use crate::chain::{Chain, Chunks};
use crate::flow::Flow;
use crate::frame::headers;
use crate::giving_up::Reason;
use crate::hold_frame::{HoldFrame, Kind};
use crate::late::{DueAcks, Lateness};
use crate::listeners::Listener;
use crate::port_access::{Memory, PortAccess, Sent};
use crate::time::TICK_NS;
use crate::view::View;

/// The fate of a frame.
enum HandOver {
    Taken,
    /// The ring is full.
    Refused,
    /// Not sent: the VM has acknowledged its bytes meanwhile, the connection is over, or the device
    /// had an error.
    Later,
}

struct Links<'a, H> {
    host: &'a mut H,
    number: u32,
}

impl<H: Memory> Chunks for Links<'_, H> {
    fn front(&mut self) -> (seq, u32) {
        self.host.front(self.number)
    }

    fn next(&mut self, chunk: u32) -> u32 {
        self.host.next(chunk)
    }
}

impl Engine {
    /// Serves a hold; true if it has more to send.
    pub(super) fn serve(&mut self, host: &mut impl PortAccess, number: u32) -> bool {
        // First of all: changes after this ring again.
        host.clear_woken(number);
        let is_inherited = self.inherited.remove(&number);
        for _ in 0..HOLD_FRAMES {
            let hold = host.read(number);
            if hold.used == 0 {
                return self.is_taken_again(host, number);
            }
            if u32::from(hold.flags) & HOLD_OVER != 0 {
                self.reclaim(host, number, false);
                return false;
            }
            let mut view = View::new(&hold);
            view.super_packets = self.super_packets;
            if !view.unconfirmed {
                self.note_confirmed(number);
            }
            if view.is_done() && !view.ack_waits {
                self.rest(host, number, &hold);
                return false;
            }
            let (time, clock) = (self.time, self.wait_clock);
            let course = self.course(number, &view, &hold, is_inherited);
            let due = due_acks(&hold).and(course.flow.due_acks());
            let is_late = course.lateness.compare_waits(due, clock);
            let frame = course.flow.poll(&view, time);
            let is_lossy = course.flow.is_lost_on_a_path(&view);
            if hold.late == 0 && (is_late || is_lossy) {
                host.set_late(number, if is_lossy { LATE_LOSSES } else { LATE_ACKS });
            }
            if let Some(reason) = course.flow.reason_to_reset() {
                return self.reset_held_flow(host, number, &hold, reason);
            }
            let Some(frame) = frame else {
                let flow = &course.flow;
                let (deadline, wants) = (flow.deadline(&view), (flow.wants_acks(), flow.portion()));
                self.set_timers(number, deadline);
                // An ACK may have come before the hooks knew.
                return set_wants(host, number, &hold, wants)
                    && host.read(number).vm_acks != hold.vm_acks;
            };
            match self.send(host, number, &view, &frame) {
                HandOver::Taken => {}
                HandOver::Refused => {
                    self.ring_is_full = true;
                    return true;
                }
                HandOver::Later => {
                    self.set_clock_timer(number, time.now_ns + TICK_NS);
                    return false;
                }
            }
        }
        true
    }

    /// The [`Course`] of a hold whose VM has not acknowledged everything.
    fn course(&mut self, number: u32, view: &View, hold: &hold, inherited: bool) -> &mut Course {
        let held = self.held.entry(number).or_default();
        held.state = Phase::Busy;
        let waiting = &mut self.waiting;
        let (time, clock) = (self.time, self.wait_clock);
        held.course.get_or_insert_with(|| {
            *waiting += 1;
            let flow = if inherited { Flow::resumed } else { Flow::new }(view, time);
            let lateness = Lateness::since(due_acks(hold), clock);
            let listener = Listener::of(&hold.key);
            Course { flow, listener, chain: Chain::default(), marked: hold.marked, lateness }
        })
    }

    /// Notes it if the VM had not confirmed the connection of this hold at the last look.
    fn note_confirmed(&mut self, number: u32) {
        let course = self.held.get(&number).and_then(|held| held.course.as_ref());
        if let Some(course) = course.filter(|course| course.flow.is_unconfirmed()) {
            self.confirmed.note(course.listener);
        }
    }

    /// Resets the connection of a hold that is given up. True if the VM has acknowledged something
    /// meanwhile, and the hold must be looked at again.
    fn reset_held_flow(
        &mut self,
        host: &mut impl PortAccess,
        number: u32,
        hold: &hold,
        why: Reason,
    ) -> bool {
        self.forget(number);
        if !host.reset_held_flow(hold, why) {
            return true;
        }
        self.reclaim(host, number, false);
        false
    }

    /// The VM has acknowledged everything: watches the hold.
    fn rest(&mut self, host: &mut impl PortAccess, number: u32, hold: &hold) {
        let held = self.held.entry(number).or_default();
        if held.course.take().is_some() {
            self.waiting -= 1;
        }
        held.run_timer.stop();
        if hold.portion != 0 {
            // The window may have become smaller when the VM is held for again.
            host.set_portion(number, 0);
        }
        set_wants_acks(host, number, hold, false);
        let (vm_acks, tail) = (hold.vm_acks, hold.tail);
        let next = match held.state {
            Phase::Watched { vm_acks: before, tail: end } if (before, end) == (vm_acks, tail) => {
                Phase::Leaving { vm_acks, tail }
            }
            Phase::Leaving { vm_acks: before, tail: end } if (before, end) == (vm_acks, tail) => {
                Phase::Quiet
            }
            _ => Phase::Watched { vm_acks, tail },
        };
        held.state = next;
        match next {
            Phase::Leaving { .. } => self.clear_busy(host, number),
            Phase::Quiet => return self.set_clock_timer(number, self.time.now_ns + IDLE_NS),
            _ => {}
        }
        self.set_clock_timer(number, self.time.now_ns + WATCH_NS);
    }

    /// The hold is free. A hook sets the busy bit for the next flow only if it is clear: true if
    /// a flow has it already, whose copies may have left the bit as it was.
    fn is_taken_again(&mut self, host: &mut impl PortAccess, number: u32) -> bool {
        self.forget(number);
        self.clear_busy(host, number);
        host.read(number).used != 0
    }

    fn send(
        &mut self,
        host: &mut impl PortAccess,
        number: u32,
        view: &View,
        frame: &HoldFrame,
    ) -> HandOver {
        let course = self.held.get_mut(&number).and_then(|held| held.course.as_mut());
        let Some(course) = course else { return HandOver::Later };
        let mut payload = Vec::new();
        if frame.len > 0 {
            let mut links = Links { host: &mut *host, number };
            let found = course.chain.find(&mut links, frame.seq, frame.len);
            let Some(found) = found else { return HandOver::Later };
            payload = found;
        }
        if frame.kind == Kind::Probe {
            host.count_probe(number);
        }
        // As late as possible, so that the frame has the sender's latest ACK and window.
        let newest = host.read(number);
        if newest.used == 0 || u32::from(newest.flags) & HOLD_OVER != 0 {
            return HandOver::Later;
        }
        let marked = frame.kind == Kind::Handover && newest.marked != course.marked;
        // Before the frame is sent: ACKs that the hooks forward must not have a later TSval (RFC
        // 7323).
        host.set_handed_tsval(number, newest.tsval);
        if frame.kind == Kind::Resend {
            set_wants_acks(host, number, &newest, true);
        }
        if newest.ack_waits != 0 {
            host.set_ack_waits(number, false);
        }
        host.set_sending(number, Some(self.time.now_ns));
        let mut sent = host.send(&headers(&newest, frame, marked, self.mtu), &payload);
        if sent == Sent::TooLarge {
            self.mtu = host.mtu();
            sent = host.send(&headers(&newest, frame, marked, self.mtu), &payload);
        }
        host.set_sending(number, None);
        if sent != Sent::Taken {
            if newest.ack_waits != 0 {
                host.set_ack_waits(number, true);
            }
            course.flow.refused();
            return if sent == Sent::Refused { HandOver::Refused } else { HandOver::Later };
        }
        if marked {
            course.marked = newest.marked;
        }
        course.flow.sent(view, frame);
        match frame.kind {
            Kind::Handover => {
                if view.handed == view.vm_seq {
                    host.set_handed_ns(number, self.time.now_ns);
                }
                host.set_handed(number, frame.end());
                host.count_handover(number);
            }
            Kind::Resend => host.count_resend(number, frame.len),
            Kind::Ack | Kind::Probe => {}
        }
        HandOver::Taken
    }

    /// Reclaims the memory of a hold whose flow is over, or whose VM has acknowledged everything.
    pub(super) fn reclaim(&mut self, host: &mut impl PortAccess, number: u32, end: bool) {
        let was_quiet = self.held.get(&number).is_some_and(|held| held.state == Phase::Quiet);
        let reclaimed = host.reclaim(number, end);
        if reclaimed == Reclaimed::Free {
            if self.is_taken_again(host, number) {
                self.queue(number);
            }
            return;
        }
        let held = self.held.entry(number).or_default();
        if held.course.take().is_some() {
            self.waiting -= 1;
        }
        held.run_timer.stop();
        let (state, wait) = match reclaimed {
            Reclaimed::Over => (Phase::Ending, END_NS),
            _ if was_quiet => (Phase::Quiet, IDLE_LONG_NS),
            _ => (Phase::Quiet, IDLE_NS),
        };
        held.state = state;
        self.set_clock_timer(number, self.time.now_ns + wait);
    }
}

/// Tells the hooks for which ACKs of the VM to ring ([`Flow::wants_acks`], [`Flow::portion`]); true
/// if they may ring for more than before. `seen`: the hold as last read.
fn set_wants(
    host: &mut impl Memory,
    number: u32,
    seen: &hold,
    (acks, portion): (bool, u32),
) -> bool {
    let is_new = set_wants_acks(host, number, seen, acks);
    if seen.portion != portion {
        host.set_portion(number, portion);
    }
    (is_new && acks) || portion < seen.portion
}

/// Tells the hooks whether to ring for each ACK of the VM; true if that is new to them.
fn set_wants_acks(host: &mut impl Memory, number: u32, seen: &hold, wants: bool) -> bool {
    let is_new = (seen.wants_acks != 0) != wants;
    if is_new {
        host.set_wants_acks(number, wants);
    }
    is_new
}

fn due_acks(hold: &hold) -> DueAcks {
    DueAcks { acks: hold.due_acks, ns: hold.due_ns }
}
