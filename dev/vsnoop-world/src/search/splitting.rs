//! Events of a connection that is split.

use vsnoop_flow::testing::tcp::TcpState;
use vsnoop_flow::types::{flow_key, port_run, split_candidate};

use super::Action::{self, *};
use super::{MSS, SearchState, rng};
use crate::bytes::bytes_of;
use crate::checks;
use crate::downloads::Downloads;
use crate::maps;

impl SearchState {
    /// Attaches the programs of downloads, and starts a splitter. The VM is late from now on.
    pub(super) fn split(&mut self, joins_early: bool) {
        let vm = &mut self.served.vm;
        vm.now = self.now;
        Downloads::attach(vm);
        vm.port.split_port().late_until_ns = u64::MAX;
        let mut downloads = Downloads::new(vm.paths.clone(), 1);
        downloads.namespace.lies = joins_early;
        downloads.start(vm);
        self.downloads = Some(downloads);
    }

    /// SYNs say an MSS that is larger than what the ends send (wire.rs). With a smaller one two
    /// segments in flight are worth a split.
    fn say_mss(&mut self) {
        let port = &mut self.served.vm.port;
        let all = port.entries::<flow_key, split_candidate>("split_candidates");
        let is_other = |one: &(flow_key, split_candidate)| one.1.peer_mss != MSS / 5;
        for (key, mut candidate) in all.into_iter().filter(is_other) {
            (candidate.vm_mss, candidate.peer_mss) = (MSS / 5, MSS / 5);
            port.update("split_candidates", bytes_of(&key), bytes_of(&candidate), maps::ANY);
        }
    }

    /// Has the engine nothing to do, because the sender has nothing for the VM?
    pub(super) fn is_split_only(&self) -> bool {
        self.downloads.is_some() && self.sender.cfg.bytes == 0
    }

    pub(super) fn is_split(&self) -> bool {
        self.downloads.as_ref().is_some_and(|downloads| downloads.namespace.are_any(0))
    }

    pub(super) fn was_joined(&self) -> bool {
        self.downloads.is_some() && self.served.vm.port.split_port_now().totals.joined > 0
    }

    pub(super) fn split_actions(&self, all: &mut Vec<Action>) {
        let Some(downloads) = &self.downloads else { return };
        let b = &self.budget;
        let mut allow = |action, is_possible: bool| {
            if is_possible {
                all.push(action);
            }
        };
        let lives = downloads.has_splitter();
        allow(SplitterRuns, lives);
        allow(SplitterTicks, lives && b.splitter_ticks > 0);
        allow(SplitterDies, lives && b.splitter_kills > 0);
        allow(SplitterStarts, !lives);
        if b.splitter_kills > 0 {
            for call in 1..=self.calls() {
                allow(if lives { SplitterDiesAt(call) } else { SplitterDiesAtStart(call) }, true);
            }
        }
        allow(KeeperDies, b.keeper_kills > 0);
        allow(SplittingDies, lives && b.splitting_kills > 0);
        allow(SocketsWait, !self.sockets_wait && b.socket_waits > 0);
        allow(SocketsGoOn, self.sockets_wait);
        let is_paused = self.served.vm.port.shared_now().policy.run == port_run::PORT_PAUSED;
        allow(PortPauses, !is_paused && b.pauses > 0);
        allow(PortResumes, is_paused);
        let is_open = matches!(self.sender.state, TcpState::Open);
        allow(SenderAborts, is_open && b.aborts > 0);
        allow(VmAborts, self.served.vm.guest.progress(0).is_open && b.aborts > 0);
    }

    /// Calls of the splitter's next run, or of its start.
    fn calls(&self) -> u64 {
        let mut copy = self.clone();
        let Some(downloads) = &mut copy.downloads else { return 0 };
        let before = downloads.namespace.calls;
        if downloads.has_splitter() {
            downloads.work(&mut copy.served.vm);
        } else {
            downloads.start(&mut copy.served.vm);
        }
        downloads.namespace.calls - before
    }

    pub(super) fn act_on_split(&mut self, action: Action) {
        let Self { served, downloads, budget, .. } = self;
        let vm = &mut served.vm;
        let Some(downloads) = downloads else { return };
        vm.now = self.now;
        downloads.namespace.now = self.now;
        match action {
            SplitterRuns => _ = downloads.work(vm),
            SplitterTicks => {
                budget.splitter_ticks -= 1;
                downloads.tick_soon();
                downloads.work(vm);
            }
            SplitterStarts => _ = downloads.start(vm),
            SplitterDies => {
                budget.splitter_kills -= 1;
                downloads.kill(false);
            }
            SplitterDiesAt(call) | SplitterDiesAtStart(call) => {
                budget.splitter_kills -= 1;
                downloads.namespace.crash_at = Some(downloads.namespace.calls + call);
                let lives = match action {
                    SplitterDiesAt(_) => downloads.work(vm),
                    _ => downloads.start(vm),
                };
                assert!(!lives, "it has made fewer than {call} calls");
                downloads.namespace.crash_at = None;
            }
            KeeperDies => {
                budget.keeper_kills -= 1;
                downloads.kill_keeper();
            }
            SplittingDies => {
                budget.splitting_kills -= 1;
                downloads.kill(true);
            }
            SocketsWait => {
                budget.socket_waits -= 1;
                self.sockets_wait = true;
            }
            SocketsGoOn => self.sockets_wait = false,
            PortPauses => {
                budget.pauses -= 1;
                vm.policy().run = port_run::PORT_PAUSED;
                // The ends of what is split are shown a window of 0 after a while.
                self.told.keeps_its_edge = false;
            }
            PortResumes => vm.policy().run = port_run::PORT_ACCELERATE,
            VmAborts => {
                budget.aborts -= 1;
                self.was_aborted = true;
                vm.guest.abort(0);
            }
            SenderAborts => {
                budget.aborts -= 1;
                self.was_aborted = true;
                self.sender.abort();
            }
            other => unreachable!("{other:?} is no event of a split connection"),
        }
    }

    /// When sockets and splitter have something to do next.
    pub(super) fn split_timers(&self) -> (Option<u64>, Option<u64>) {
        let Some(downloads) = &self.downloads else { return (None, None) };
        let splitter = downloads.next_tick().map(|at| at.max(self.now + 1_000));
        (downloads.namespace.next_timer(self.now), splitter)
    }

    pub(super) fn serve_sockets(&mut self) {
        if let Some(downloads) = &mut self.downloads {
            downloads.namespace.timers(self.now);
        }
    }

    /// Moves segments to the sockets and from them.
    pub(super) fn flush_sockets(&mut self) {
        if self.downloads.is_none() {
            return;
        }
        self.say_mss();
        let Self { downloads, served, told, sender, vm_bytes, .. } = self;
        let Some(downloads) = downloads else { return };
        let vm = &mut served.vm;
        downloads.namespace.rng = rng();
        let waiting = self.sockets_wait.then(|| std::mem::take(&mut vm.port.to_sockets));
        downloads.exchange(vm, |sockets, c, s| {
            checks::told_vm(told, sockets, c, s, sender, *vm_bytes);
        });
        if let Some(waiting) = waiting {
            vm.port.to_sockets = waiting;
        }
        // A record without a hold shows the VM's own window from then on.
        if vm.port.split_port().totals.joined > 0 {
            told.keeps_its_edge = false;
        }
        downloads.hear(vm);
    }

    /// Checks that the sockets have all that an end was told of and the other has not received.
    pub(super) fn check_sockets(&self) {
        let Some(downloads) = self.downloads.as_ref().filter(|_| self.is_split()) else { return };
        let progress = self.served.vm.guest.progress(0);
        if self.sender.state == TcpState::Open && progress.is_open && !downloads.has_lost {
            let (vm, sender) = (progress.accepted, &self.sender);
            checks::are_on_their_way(
                &self.told,
                &downloads.namespace,
                0,
                vm,
                sender,
                self.vm_bytes,
            );
        }
    }

    /// Was an end reset when both had received all? There is no TIME-WAIT behind a split connection
    /// (docs/reference/limits.md).
    pub(super) fn is_reset_after_all(&self) -> bool {
        self.downloads.is_some()
            && self.served.vm.guest.progress(0).accepted == self.sender.cfg.bytes + 2
            && self.sender.rcv_nxt == self.vm_bytes + 2
    }

    pub(super) fn continue_split(&mut self) {
        let Some(downloads) = &self.downloads else { return };
        if !downloads.has_splitter() {
            self.act(SplitterStarts);
        }
        self.act(SplitterRuns);
    }

    pub(super) fn split_waits(&self) -> bool {
        self.downloads.as_ref().is_none_or(Downloads::waits)
    }

    /// May the connection end in a reset: has an end wished it, or is it counted?
    pub(super) fn has_reason(&mut self) -> bool {
        let Some(downloads) = &self.downloads else { return true };
        let has_lost = downloads.has_lost;
        let vm = &mut self.served.vm;
        let is_counted = vm.helper.counted.iter().any(|count| *count > 0);
        self.was_aborted || has_lost || is_counted || vm.port.split_port().totals.reset > 0
    }

    pub(super) fn digest_split(&self, into: &mut Vec<u8>) {
        let Some(downloads) = &self.downloads else { return };
        downloads.digest(into);
        let port = &self.served.vm.port;
        for frame in &port.to_sockets {
            into.extend(&frame.bytes);
        }
        // Without counters, but for the reasons of a reset.
        let split = port.split_port_now();
        let counted = (split.totals.reset > 0, split.totals.joined > 0);
        let state = (split.is_on, split.splits, split.late_until_ns, split.epoch, split.moves);
        into.extend(format!("{state:?} {counted:?}").bytes());
    }
}
