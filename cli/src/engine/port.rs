//! One port: the `PortAccess` of the engine's loop (accel/vsnoop-hold).

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use vsnoop_bpf::types::{hold, seq};
use vsnoop_bpf::{Hold, HoldMaps, Reserve};
use vsnoop_hold::reset::ResetOutcome;
use vsnoop_hold::{
    Clock, Engine, PortAccess, Reason, Reclaimed, RunTime, Sent, Slice, Urgency, Waited,
};
use vsnoop_host::orphan::{self, Orphan};
use vsnoop_host::port_resets::reset_held_flow;
use vsnoop_host::ports::Attached;
use vsnoop_host::system::bridge::BridgeEvents;
use vsnoop_host::system::clock::monotonic_ns;
use vsnoop_host::system::netns::Netns;
use vsnoop_host::vm::Vm;

use super::device::{Device, Part};
use super::moved::MovedVms;

/// Before each frame.
const VNET_HEADER_BYTES: usize = 10;
/// Longer than replacing a VMM takes.
const ALONE: Duration = Duration::from_secs(5);
/// Between two complaints about the same want of memory.
const SAID_AGAIN: Duration = Duration::from_secs(60);

/// Time that the helper needs beyond its own patience to take off a port whose pins were removed.
const FOR_THE_HELPER: Duration = Duration::from_secs(5);

/// A port, and the engine's work on it.
pub struct EnginePort {
    engine: Engine,
    surroundings: Surroundings,
    /// Its pins were removed.
    orphan: Option<Orphan>,
}

/// Implements the traits of vsnoop-hold.
struct Surroundings {
    attached: Attached,
    memory: HoldMaps,
    device: Device,
    moved: MovedVms,
    netns_path: Option<PathBuf>,
    /// Since when no process reads the tap, and its network namespace cannot be found.
    alone_since: Option<Instant>,
    vm: Vm,
    looked_at: Instant,
    now_ns: u64,
    trouble: Option<String>,
    /// When it was last said that there is no memory.
    short_since: Option<Instant>,
}

impl EnginePort {
    pub fn new(attached: Attached, mut memory: HoldMaps, reserve: &Reserve) -> Result<Self> {
        memory.adopt(reserve)?;
        let mut netns_path = None;
        let netns = Netns::find_again(attached.meta.netns, &mut netns_path)
            .context("its network namespace cannot be found")?;
        let device = netns.run(|| Device::open(attached.meta.ifindex))?;
        let vm = Vm::behind(&attached.name, attached.meta.netns);
        let mut surroundings = Surroundings {
            attached,
            memory,
            device,
            moved: MovedVms::default(),
            netns_path,
            alone_since: None,
            vm,
            looked_at: Instant::now(),
            now_ns: monotonic_ns()?,
            trouble: None,
            short_since: None,
        };
        Ok(Self { engine: Engine::new(&mut surroundings), surroundings, orphan: None })
    }

    /// Has the engine still work on a port that is not listed any more, because another program has
    /// removed the pins? The helper takes the port off; this does so if the helper has ended.
    pub fn is_needed_without_pins(&mut self) -> bool {
        let Surroundings { attached, memory, netns_path, .. } = &mut self.surroundings;
        if self.orphan.is_none() {
            self.orphan = Orphan::find_orphan(attached, orphan::PATIENCE + FOR_THE_HELPER);
        }
        let Some(orphan) = &self.orphan else { return false };
        let netns = Netns::find_again(attached.meta.netns, netns_path);
        !orphan.reset_silent(attached, netns.as_ref(), |number| memory.read(number))
    }

    /// See [`Device::reaches_the_tap`].
    pub fn reaches_its_tap(&self) -> bool {
        self.surroundings.device.reaches_the_tap()
    }

    /// Is it this port's socket alone that keeps the tap's network namespace alive? It has had no
    /// name, no process, and no process that reads the tap, for [`ALONE`] then.
    pub fn keeps_its_netns_alive(&mut self) -> bool {
        let Surroundings { attached, device, netns_path, alone_since, .. } = &mut self.surroundings;
        if device.has_reader() || Netns::find_again(attached.meta.netns, netns_path).is_some() {
            *alone_since = None;
            return false;
        }
        alone_since.get_or_insert_with(Instant::now).elapsed() >= ALONE
    }

    /// Looks for VMs that are behind another port of the bridge.
    pub fn follow_vms(&mut self) {
        let Surroundings { attached, memory, moved, netns_path, .. } = &mut self.surroundings;
        let netns = Netns::find_again(attached.meta.netns, netns_path);
        if let Err(error) = moved.find_moved(attached, netns.as_ref(), memory) {
            tracing::debug!("port {}: where its VM is: {error:#}", attached.name);
        }
    }

    /// For epoll: the bridge has learned an address.
    pub fn bridge_events(&self) -> Option<&BridgeEvents> {
        self.surroundings.moved.bridge_events()
    }

    /// Looks for VMs of split connections that the bridge has learned elsewhere.
    pub fn notice_moves(&mut self) {
        let Surroundings { attached, moved, netns_path, .. } = &mut self.surroundings;
        let netns = Netns::find_again(attached.meta.netns, netns_path);
        if let Err(error) = moved.notice_announced(attached, netns.as_ref()) {
            tracing::debug!("port {}: where its VM is: {error:#}", attached.name);
        }
    }

    /// Notes the tap's present name.
    pub fn is_called(&mut self, name: &str) {
        let surroundings = &mut self.surroundings;
        if surroundings.vm.tap() != name {
            surroundings.vm.tap_is_called(name.to_owned());
            surroundings.attached.name = name.to_owned();
        }
    }

    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.surroundings.memory.doorbell()
    }

    pub fn urgency(&self) -> Urgency {
        // The kernel does not notify the engine that the hooks can use an added slab.
        let Surroundings { memory, moved, .. } = &self.surroundings;
        let memory =
            if memory.is_growing() || moved.are_any() { Urgency::Soon } else { Urgency::None };
        self.engine.urgency().max(memory)
    }

    /// Sends a sign of life, and serves timers.
    pub fn tick(&mut self) {
        self.engine.tick(&mut self.surroundings);
    }

    /// Serves due holds within a bound, so that other ports are not delayed.
    pub fn work(&mut self) {
        match self.surroundings.memory.settle() {
            Ok(false) => {}
            // A hook that asked for memory during the change does not ring again.
            Ok(true) => vsnoop_hold::Memory::grow(&mut self.surroundings),
            Err(error) => {
                self.surroundings.complain_once(format!("memory for what it holds: {error:#}"))
            }
        }
        self.surroundings.hear_announcements();
        self.engine.work(&mut self.surroundings);
    }
}

impl vsnoop_hold::Memory for Surroundings {
    fn hold_count(&mut self) -> u32 {
        self.memory.hold_count()
    }

    fn read(&mut self, number: u32) -> Hold {
        self.memory.read(number)
    }

    fn front(&mut self, number: u32) -> (seq, u32) {
        self.memory.front(number)
    }

    fn next(&mut self, chunk: u32) -> u32 {
        self.memory.next(chunk)
    }

    fn take_woken(&mut self) -> Vec<u32> {
        self.memory.take_woken()
    }

    fn set_looks(&mut self, looks: bool) {
        self.memory.set_looks(looks);
    }

    fn clear_woken(&mut self, number: u32) {
        self.memory.clear_woken(number);
    }

    fn busy(&mut self, group: u32) -> u32 {
        self.memory.busy(group)
    }

    fn clear_busy(&mut self, number: u32) {
        self.memory.clear_busy(number);
    }

    fn set_sending(&mut self, number: u32, now_ns: Option<u64>) {
        self.memory.set_sending(number, now_ns);
    }

    fn set_ack_waits(&mut self, number: u32, waits: bool) {
        self.memory.set_ack_waits(number, waits);
    }

    fn heartbeat(&mut self, now_ns: u64) {
        self.memory.heartbeat(now_ns);
    }

    fn starves(&mut self, now_ns: u64) {
        self.memory.starves(now_ns);
    }

    fn set_handed(&mut self, number: u32, handed: seq) {
        self.memory.set_handed(number, handed);
    }

    fn set_handed_ns(&mut self, number: u32, now_ns: u64) {
        self.memory.set_handed_ns(number, now_ns);
    }

    fn set_wants_acks(&mut self, number: u32, wants: bool) {
        self.memory.set_wants_acks(number, wants);
    }

    fn set_portion(&mut self, number: u32, bytes: u32) {
        self.memory.set_portion(number, bytes);
    }

    fn set_late(&mut self, number: u32, why: u32) {
        self.memory.set_late(number, why);
    }

    fn set_handed_tsval(&mut self, number: u32, tsval: u32) {
        self.memory.set_handed_tsval(number, tsval);
    }

    fn count_handover(&mut self, number: u32) {
        self.memory.count_handover(number);
    }

    fn count_resend(&mut self, number: u32, bytes: u32) {
        self.memory.count_resend(number, bytes);
    }

    fn count_probe(&mut self, number: u32) {
        self.memory.count_probe(number);
    }

    fn reclaim(&mut self, number: u32, end: bool) -> Reclaimed {
        self.memory.reclaim(number, end).unwrap_or_else(|error| {
            tracing::debug!("port {}: {error:#}", self.attached.name);
            Reclaimed::Used
        })
    }

    fn grow(&mut self) {
        match self.memory.grow() {
            Ok(()) => {}
            Err(error @ vsnoop_bpf::Error::NoRoom) => self.is_short_of_memory(&error),
            Err(error) => self.complain_once(format!("memory for what it holds: {error:#}")),
        }
    }

    fn shrink(&mut self) {
        if let Err(error) = self.memory.shrink() {
            self.complain_once(format!("memory of what it held: {error:#}"));
        }
    }
}

impl vsnoop_hold::Device for Surroundings {
    fn mtu(&mut self) -> u32 {
        self.device.mtu()
    }

    fn takes_super_packets(&mut self) -> bool {
        self.device.takes_super_packets()
    }

    fn send(&mut self, headers: &[u8], payload: &[Slice]) -> Sent {
        let mut parts = Vec::with_capacity(payload.len() + 1);
        parts.push(Part::from_bytes(headers));
        for slice in payload {
            // Freed meanwhile: then the VM has acknowledged it.
            let Some(start) = self.memory.bytes(slice.chunk) else { return Sent::Failed };
            parts.push(Part::from_start(
                start.wrapping_add(slice.offset as usize),
                slice.len as usize,
            ));
        }
        // Behind the virtio_net_hdr.
        let macs = headers.get(VNET_HEADER_BYTES..VNET_HEADER_BYTES + 12).unwrap_or(&[0; 12]);
        let (to, from) = macs.split_at(6);
        let device = self.moved.device_to(to, from).unwrap_or(&self.device);
        match device.send(&parts) {
            Ok(sent) => {
                self.trouble = None;
                sent
            }
            Err(error) => {
                self.complain_once(format!("hand a frame over: {error:#}"));
                Sent::Failed
            }
        }
    }
}

impl Clock for Surroundings {
    fn now_ns(&mut self) -> u64 {
        // The last value if the clock cannot be read.
        self.now_ns = monotonic_ns().unwrap_or(self.now_ns);
        self.now_ns
    }

    fn run_time(&mut self) -> RunTime {
        let elapsed = self.looked_at.elapsed();
        self.looked_at = Instant::now();
        let ran = self.vm.run_time(elapsed);
        // Neither the tap's ring nor its reader says what a VM elsewhere has read.
        if self.moved.are_any() { RunTime::wall(elapsed) } else { ran }
    }

    fn forget_run_time(&mut self) {
        self.looked_at = Instant::now();
        self.vm.forget();
    }

    fn waited(&mut self) -> Option<Waited> {
        self.vm.waited().map(|(vcpu_ns, process_ns)| Waited { vcpu_ns, process_ns })
    }
}

impl PortAccess for Surroundings {
    fn reset_held_flow(&mut self, hold: &hold, reason: Reason) -> bool {
        self.try_to_reset(hold, reason).unwrap_or_else(|error| {
            self.complain_once(format!("reset a connection: {error:#}"));
            false
        })
    }
}

impl Surroundings {
    /// Hears announcements of VMs that are behind another port.
    fn hear_announcements(&mut self) {
        if !self.moved.are_any() {
            return;
        }
        let netns = Netns::find_again(self.attached.meta.netns, &mut self.netns_path);
        if let Err(error) = self.moved.hear_bridges(netns.as_ref()) {
            self.complain_once(format!("hear its VM at another port: {error:#}"));
        }
    }

    fn try_to_reset(&mut self, hold: &hold, reason: Reason) -> Result<bool> {
        let port = &self.attached.port;
        let netns = Netns::find_again(self.attached.meta.netns, &mut self.netns_path);
        let why = match reason {
            Reason::Refused => "its VM has room, answers, and refuses the same bytes",
            Reason::Silent => "its VM had long enough and answered nothing",
            Reason::RolledBack => "its VM takes back what it has acknowledged",
        };
        let outcome = reset_held_flow(port, netns.as_ref(), hold, reason)?;
        if outcome == ResetOutcome::Reset {
            tracing::warn!("port {}: a connection was reset: {why}", self.attached.name);
        }
        Ok(outcome != ResetOutcome::VmAdvanced)
    }

    /// Says so now and then: the hooks ask again and again.
    fn is_short_of_memory(&mut self, error: &vsnoop_bpf::Error) {
        if self.short_since.is_none_or(|since| since.elapsed() >= SAID_AGAIN) {
            self.short_since = Some(Instant::now());
            tracing::warn!(
                "port {}: memory for what it holds: {error}; its VM answers what finds no room",
                self.attached.name
            );
        }
    }

    fn complain_once(&mut self, text: String) {
        if self.trouble.as_ref() != Some(&text) {
            tracing::warn!(
                "port {}: {text}; what is held for its VM waits, and is tried again",
                self.attached.name
            );
            self.trouble = Some(text);
        }
    }
}
