//! Finds out which taps there are, and who attached them.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use vsnoop_bpf::ServiceMark;
use vsnoop_host::config::port::{PortPattern, Tap};
use vsnoop_host::detached_by_operator::{Found, Mark, Marks};
use vsnoop_host::error::with_causes;
use vsnoop_host::ports::{self, AttachmentState};
use vsnoop_host::system::holder::{self, Behind};
use vsnoop_host::system::netdev;
use vsnoop_host::system::netns::Netns;
use vsnoop_host::system::process::{self, Process};
use vsnoop_netdev::Device;

use crate::act::LEAVING;
use crate::control::FailedPort;
use crate::error::Result;
use crate::namespaces::Namespaces;
use crate::reconcile::{Attachment, PortKey, Present, VmPlace};

/// Management software that opens a tap, sets it up, its limit of bandwidth too, and passes it on
/// to the monitor that it starts. To attach meanwhile would be in its way: a queue discipline that
/// comes between its commands makes them fail, and the VM does not start.
const MANAGERS: [&str; 2] = ["libvirtd", "virtqemud"];
/// No event tells that a tap was passed on: rtnetlink reports changes of the device, which has its
/// carrier while any process holds it; /proc, where holders are found, has no inotify; and the
/// process connector reports every process of the host. So taps whose holder is not a VM yet are
/// looked at again, each for this time at most.
const PASSED_ON_WITHIN: Duration = Duration::from_secs(60);
/// A process that held a tap is known for this long after its end, or the tap's.
const EARLIER: Duration = Duration::from_secs(60);
/// Interval of looks at taps whose holder is no VM: it may pass the tap on later.
const NO_VM_AGAIN: Duration = Duration::from_secs(30);
/// Between two looks until then.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The process that holds a tap, and the name of its VM.
struct Holder {
    process: Process,
    vm: Option<String>,
    behind: Behind,
    /// Why the tap is left alone.
    why: Option<String>,
    /// When the first process was found that holds this tap.
    since: Instant,
    found_at: Instant,
}

impl Holder {
    fn new(found: holder::Holder, before: Option<&Self>) -> Self {
        let now = Instant::now();
        Self {
            vm: process::vm_name(found.process.pid),
            behind: found.behind(),
            why: found.why_no_vm(),
            process: found.process,
            since: before.map_or(now, |before| before.since),
            found_at: now,
        }
    }

    fn may_pass_it_on(&self) -> bool {
        let is_no_vm = self.vm.is_none() || self.behind != Behind::Vm;
        is_no_vm && self.since.elapsed() < PASSED_ON_WITHIN
    }

    /// Is the tap still being set up?
    fn sets_it_up(&self) -> bool {
        MANAGERS.contains(&&*self.process.name) && self.may_pass_it_on()
    }
}

/// Ports and taps that the survey has found.
pub struct Seen {
    pub present: Vec<Present>,
    /// All ports of the service, those as well that are being detached, or whose tap was deleted.
    pub pinned: HashMap<PortKey, Attachment>,
}

#[derive(Default)]
pub struct Survey {
    /// Does a table ask which process holds a tap?
    asks: bool,
    /// Looking for them takes a pass over all processes; they seldom change.
    holders: HashMap<PortKey, Holder>,
    /// Process ids of holders that have ended, or whose taps are gone, and when that was seen.
    earlier: HashMap<PortKey, (i32, Instant)>,
    /// The last complaint about marks of detached taps that was logged.
    complaint: Option<String>,
}

impl Survey {
    pub fn survey_taps(
        &mut self,
        namespaces: &Namespaces,
        patterns: &[PortPattern],
    ) -> Result<Seen> {
        self.asks = patterns.iter().any(PortPattern::asks_for_process);
        let attached = attachments()?;
        // Before the taps are listed: a mark of a tap that is not listed then is of one that is
        // gone.
        let detached_by_operator = self.detached_by_operator();
        let mut present = Vec::new();
        for watched in namespaces.all() {
            let devices = match watched.netns.run(netdev::list) {
                Ok(devices) => devices,
                Err(error) => {
                    let label = watched.netns.label();
                    tracing::warn!("the taps of network namespace {label} are unknown: {error}");
                    continue;
                }
            };
            forget_gone(&detached_by_operator, watched.cookie, &devices);
            for device in devices.iter().filter(|device| device.tap.is_some()) {
                let ifindex = device.index;
                let key = PortKey { netns: watched.netns.inode, ifindex };
                present.push(Present {
                    key,
                    tap: tap(device, &devices, &watched.netns),
                    is_ready: device.up && (!self.asks || device.carrier),
                    is_held: device.carrier,
                    vm: VmPlace::NotFollowed,
                    attachment: attached.get(&key).cloned(),
                    is_detached_by_operator: detached_by_operator.contains(&watched.mark(ifindex)),
                });
            }
        }
        self.forget_holders(&present);
        self.find_holders(&mut present);
        let is_of_service = |attachment: &Attachment| *attachment != Attachment::ByCommand;
        let pinned = attached.into_iter().filter(|(_, attachment)| is_of_service(attachment));
        Ok(Seen { present, pinned: pinned.collect() })
    }

    /// The marks of taps that operators have detached. What is ignored is said once.
    fn detached_by_operator(&mut self) -> HashSet<Mark> {
        let Found { marks, complaint, .. } = Marks::of_host().find();
        if let Some(text) = complaint.as_ref().filter(|_| complaint != self.complaint) {
            tracing::warn!("{text}: ignored");
        }
        self.complaint = complaint;
        marks
    }

    /// Forgets holders of taps that have gone, and processes that have ended.
    fn forget_holders(&mut self, present: &[Present]) {
        let now = Instant::now();
        self.earlier.retain(|_, (_, since)| now - *since < EARLIER);
        self.holders.retain(|key, holder| {
            let is_present = present.iter().any(|port| port.key == *key);
            let is_kept = is_present && holder.process.is_alive();
            if !is_kept {
                self.earlier.insert(*key, (holder.process.pid, now));
            }
            is_kept
        });
    }

    /// The process that holds a tap, or did until lately, if it is known.
    pub fn pid(&self, key: PortKey) -> Option<i32> {
        let earlier = || self.earlier.get(&key).map(|(pid, _)| *pid);
        self.holders.get(&key).map(|holder| holder.process.pid).or_else(earlier)
    }

    /// The longest time until the next look, while the process that holds a tap may change.
    pub fn pause(&self) -> Option<Duration> {
        self.holders.values().filter_map(|holder| self.look_again(holder)).min()
    }

    /// How long after a search this tap is looked at again; `None`: when its holder has ended.
    fn look_again(&self, holder: &Holder) -> Option<Duration> {
        let is_no_vm = holder.behind != Behind::Vm;
        if holder.sets_it_up() || ((self.asks || is_no_vm) && holder.may_pass_it_on()) {
            return Some(LOOK_AGAIN);
        }
        is_no_vm.then_some(NO_VM_AGAIN)
    }

    /// Why these taps are left alone, which meet the conditions of a table.
    pub fn no_vms<'a>(
        &'a self,
        present: &'a [Present],
        patterns: &'a [PortPattern],
    ) -> impl Iterator<Item = (&'a Present, &'a str)> {
        present
            .iter()
            .filter(|port| port.attachment.is_none() && lacks_vm(&port.tap, patterns))
            .filter_map(|port| Some((port, self.holders.get(&port.key)?.why.as_deref()?)))
    }

    /// Finds the holders of all taps if a table asks for it, else of those that it attaches.
    fn find_holders(&mut self, present: &mut [Present]) {
        let is_due = |holder: &Holder| {
            self.look_again(holder).is_some_and(|again| holder.found_at.elapsed() >= again)
        };
        let is_known = |key: &PortKey| self.holders.get(key).is_some_and(|it| !is_due(it));
        let is_wanted =
            |port: &Present| self.asks || port.attachment != Some(Attachment::ByCommand);
        let is_unknown = |port: &&Present| {
            port.is_ready && port.is_held && is_wanted(port) && !is_known(&port.key)
        };
        let unknown: Vec<_> = present.iter().filter(is_unknown).collect();
        let mut found = if unknown.is_empty() { HashMap::new() } else { holder::of_all_taps() };
        for port in unknown {
            let name = (port.tap.interface.clone(), port.key.netns);
            let before = self.holders.remove(&port.key);
            if let Some(found) = found.remove(&name) {
                self.holders.insert(port.key, Holder::new(found, before.as_ref()));
            }
        }
        for port in present {
            if let Some(holder) = self.holders.get(&port.key) {
                port.tap.process = Some(holder.process.name.clone());
                port.tap.vm.clone_from(&holder.vm);
                port.is_ready &= !holder.sets_it_up();
                // A monitor that has just taken the place of another may have no vCPUs yet.
                if port.attachment.is_none() || !holder.may_pass_it_on() {
                    port.tap.behind = holder.behind;
                }
            }
        }
    }
}

/// Would a table have the tap if a VM were behind it?
fn lacks_vm(tap: &Tap, patterns: &[PortPattern]) -> bool {
    let is_met = |pattern: &PortPattern| pattern.meets(tap);
    patterns.iter().any(is_met) && !patterns.iter().any(|pattern| pattern.matches(tap))
}

/// The taps of a network namespace that a service there, with these tables, would leave alone
/// because no VM is behind them.
pub fn no_vms_of(netns: &Netns, patterns: &[PortPattern]) -> Result<Vec<FailedPort>> {
    let devices = netns.run(netdev::list)?;
    let mut holders = holder::of_all_taps();
    let no_vm = |device: &Device| {
        let found = holders.remove(&(device.name.clone(), netns.inode))?;
        let known = Tap {
            process: Some(found.process.name.clone()),
            vm: process::vm_name(found.process.pid),
            behind: found.behind(),
            // That of the service has no name.
            netns: None,
            ..tap(device, &devices, netns)
        };
        let reason = found.why_no_vm().filter(|_| lacks_vm(&known, patterns))?;
        Some(FailedPort { port: known.interface, netns: netns.inode, reason })
    };
    Ok(devices.iter().filter(|device| device.tap.is_some()).filter_map(no_vm).collect())
}

/// Removes the marks of taps that are not among the devices of their network namespace.
fn forget_gone(marks: &HashSet<Mark>, netns_cookie: u64, devices: &[Device]) {
    let of_netns = marks.iter().filter(|mark| mark.netns_cookie == netns_cookie);
    for mark in of_netns.filter(|mark| devices.iter().all(|it| it.index != mark.ifindex)) {
        if let Err(error) = Marks::of_host().remove(*mark) {
            tracing::debug!("{}", with_causes(&error));
        }
    }
}

fn tap(device: &Device, devices: &[Device], netns: &Netns) -> Tap {
    let bridge =
        devices.iter().find(|other| Some(other.index) == device.master && other.kind == "bridge");
    Tap {
        interface: device.name.clone(),
        bridge: bridge.map(|bridge| bridge.name.clone()),
        netns: netns.name.clone(),
        ..Tap::default()
    }
}

fn attachments() -> Result<HashMap<PortKey, Attachment>> {
    let ports = ports::inventory()?.ports;
    let attachment = ports.into_iter().map(|port| {
        let meta = &port.meta;
        let key = PortKey { netns: meta.netns, ifindex: meta.ifindex };
        let is_paused = port.state == AttachmentState::Paused;
        let attachment = match ServiceMark::from_meta(meta) {
            None => Attachment::ByCommand,
            Some(mark) if mark.settings == LEAVING => Attachment::Leaving,
            Some(mark) => Attachment::ByService { mark, is_paused, is_migrating: port.migrating },
        };
        (key, attachment)
    });
    Ok(attachment.collect())
}
