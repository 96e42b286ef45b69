//! Events of split connections.

use vsnoop_flow::testing::clock::MS;

use super::{ConnectionState, Event, MachineState, World};
use crate::checks;
use crate::downloads::Downloads;
use crate::scenario::Act;

/// Longest time from the death of a splitter to the start of the next, ms.
const ABSENCE_MS: u64 = 300;
/// How long a detach waits for the splitter (vsnoop_host::split::PATIENCE).
const PATIENCE_NS: u64 = 3_000_000_000;

impl MachineState {
    /// Are there split connections for which a detach waits that began at `since`?
    pub(super) fn are_any_split(&mut self, since: u64) -> bool {
        let is_patient = self.served.vm.now - since < PATIENCE_NS;
        self.downloads.is_some() && is_patient && self.served.vm.port.split_port().splits > 0
    }

    pub(super) fn detach_downloads(&mut self) {
        self.served.vm.port.has_downloads = false;
        if let Some(downloads) = &mut self.downloads {
            downloads.end();
        }
    }
}

impl World {
    /// The port was attached.
    pub(super) fn attach_downloads(&mut self, m: usize) {
        let MachineState { served, downloads, .. } = &mut self.machines[m];
        let vm = &mut served.vm;
        if downloads.is_none() {
            return;
        }
        Downloads::attach(vm);
        self.events.at(self.now, Event::SplitterStarts(m));
    }

    /// The ends of what is split are shown a window of 0 after a while.
    pub(super) fn show_no_room(&mut self, m: usize) {
        for c in self.connections.iter_mut().filter(|c| c.vm == m) {
            c.told.keeps_its_edge = false;
        }
    }

    /// Was an end of a split connection reset when both had received all? There is no TIME-WAIT
    /// behind it: if the last ACK is lost, what is sent again gets a RST
    /// (docs/reference/limits.md).
    pub(super) fn is_reset_after_all(&self, c: usize) -> bool {
        let ConnectionState { sender, vm, .. } = &self.connections[c];
        let guest = &self.sc.connections[c].guest;
        self.machines[*vm].downloads.is_some()
            && self.progress(c).accepted == sender.cfg.bytes + 2
            && sender.rcv_nxt == guest.bytes + 2
    }

    pub(super) fn has_lost_sockets(&self, m: usize) -> bool {
        self.machines[m].downloads.as_ref().is_some_and(|downloads| downloads.has_lost)
    }

    pub(super) fn splitter_starts(&mut self, m: usize) {
        let MachineState { served, downloads, .. } = &mut self.machines[m];
        let vm = &mut served.vm;
        let Some(downloads) = downloads.as_mut().filter(|_| vm.port.has_downloads) else { return };
        if !downloads.start(vm) {
            self.splitter_died(m);
        }
    }

    pub(super) fn splitter_runs(&mut self, m: usize) {
        let machine = &mut self.machines[m];
        // An earlier event has replaced it.
        if machine.splitter_event > self.now {
            return;
        }
        machine.splitter_event = u64::MAX;
        let MachineState { served, downloads, .. } = machine;
        let vm = &mut served.vm;
        let Some(downloads) = downloads else { return };
        if downloads.at <= self.now && !downloads.work(vm) {
            self.splitter_died(m);
        }
    }

    /// The helper starts another one.
    fn splitter_died(&mut self, m: usize) {
        self.crashes += 1;
        let absence = self.rng.u64(0..=ABSENCE_MS) * MS;
        self.events.at(self.now + absence, Event::SplitterStarts(m));
    }

    pub(super) fn kill_splitting(&mut self, m: usize, act: Act) {
        let Some(downloads) = &mut self.machines[m].downloads else { return };
        if act == Act::KillKeeper {
            return downloads.kill_keeper();
        }
        downloads.kill(act == Act::KillSplitting);
        self.splitter_died(m);
    }

    pub(super) fn socket_timer(&mut self, m: usize) {
        let machine = &mut self.machines[m];
        if machine.socket_timer > self.now {
            return;
        }
        machine.socket_timer = u64::MAX;
        if let Some(downloads) = &mut machine.downloads {
            downloads.namespace.timers(self.now);
        }
    }

    /// Moves segments to the sockets and from them, and has splitter and sockets woken.
    pub(super) fn flush_sockets(&mut self, m: usize) {
        let machine = &mut self.machines[m];
        let MachineState { served, downloads, .. } = machine;
        let vm = &mut served.vm;
        let Some(downloads) = downloads else { return };
        let (connections, sc) = (&mut self.connections, &self.sc);
        downloads.exchange(vm, |sockets, c, s| {
            let ConnectionState { told, sender, .. } = &mut connections[c];
            checks::told_vm(told, sockets, c, s, sender, sc.connections[c].guest.bytes);
        });
        // A record without a hold shows the VM's own window from then on.
        if vm.port.split_port().totals.joined > 0 {
            let of_vm = self.connections.iter_mut().filter(|c| c.vm == m);
            of_vm.for_each(|c| c.told.keeps_its_edge = false);
        }
        downloads.hear(vm);
        if downloads.at < machine.splitter_event {
            machine.splitter_event = downloads.at;
            self.events.at(downloads.at.max(self.now), Event::SplitterRuns(m));
        }
        if let Some(at) = downloads.namespace.next_timer(self.now)
            && at < machine.socket_timer
        {
            machine.socket_timer = at;
            self.events.at(at, Event::SocketTimer(m));
        }
    }
}
