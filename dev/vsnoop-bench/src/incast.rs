//! Measures the cost of incast control per packet: both hooks on the same packets with and without
//! it, and the uplink's hook, which counts.
//!
//! Packets are runs of the real programs by system calls of their own (see
//! [`crate::conversation`]), so that caches are about as cold as under traffic; the time is the
//! kernel's own accounting. The hook verifies checksums, with and without incast control. Rounds
//! with and without alternate, and a figure is the median over the differences of neighbours.
//!
//! The cases, for 1, 64 and 10,000 flows:
//! - *far*: there is credit for everybody, and the VM's own windows are smaller;
//! - *near*: there is credit for everybody, and each ACK of the VM is rewritten to the window that
//!   the flow was granted;
//! - *queued*: of a link of 200 Mb/s with a queue of 8 KB there is credit for a few segments; each
//!   segment closes its flow's window, and its ACK brings along one for the next flow in the grant
//!   queue;
//! - *early queued*: the same where segments are acknowledged early, and the early ACK brings along
//!   one for the next flow in the queue.
//!
//! In the first two flows come in trains, as windows let them go. With the queue each flow sends
//! one segment and waits; the rounds without have flows at random, one segment at a time.
//!
//! With 64 flows all is measured a second time with the VM's packets on another core than its
//! senders', as a VM's thread is: what is written by one of the cores and read by the other costs
//! more then.

use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use anyhow::{Context, Result};
use vsnoop_bpf::types::{SLAB_CHUNKS, SLAB_HOLDS, port_run};
use vsnoop_bpf::{
    AttachSpec, EmptyProgram, Hook, Port, ProgramInfo, TableLimits, Uplink, UplinkSettings,
    account_run_time,
};
use vsnoop_host::lock::CommandLock;
use vsnoop_lab::results::Figure;
use vsnoop_testbed::bulk::pin;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::net::{Net, Netns, Tap, TapOptions, checked};

use crate::conversation::{Conversation, Datapath, FromVm, Hooks, IN_FLIGHT};
use crate::figures::{figure, median, median_ratio, say};
use crate::flows::{MSS, SCALE};
use crate::memory::Growing;
use crate::stage::{PREFIX, SENDER_CORE, VM_CORE};

const FLOWS: [u32; 3] = [1, 64, 10_000];
/// With this number of flows the hooks also run on two cores.
const TWO_CORES: u32 = 64;
const ROUNDS: usize = 11;
/// Segments of a round, each with its ACK.
const EXCHANGES: u32 = 2048;
/// Segments of one flow that are sent one after the other.
const TRAIN: u32 = 16;

const PLENTY: UplinkSettings =
    UplinkSettings { bits_per_second: 100_000_000_000, buffer_bytes: 1 << 30 };
const LAST_HOP: UplinkSettings =
    UplinkSettings { bits_per_second: 200_000_000, buffer_bytes: 8 << 10 };
/// A window that limits the sender to the segments it has under way.
const NARROW: u32 = IN_FLIGHT as u32 * MSS;
const WIDE: u32 = 0xffff << SCALE;

/// Chooses the flow that sends the next segment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Trains of flows at random.
    Trains,
    /// One segment of a flow at random.
    Single,
    /// The flow that was granted a window first.
    Granted,
}

struct Variant {
    name: &'static str,
    /// None: without incast control, rate 0.
    uplink: Option<UplinkSettings>,
    /// The VM's window, and what senders were shown of it in the handshake.
    window: u32,
    shown: u32,
    /// Paused: all is left to the VM. Active: acknowledged early.
    run: port_run::Type,
    order: Order,
    /// The index of the case that it is compared with.
    without: usize,
}

use port_run::{PORT_ACCELERATE, PORT_PAUSED};

#[rustfmt::skip]
const VARIANTS: [Variant; 7] = [
    Variant { name: "off", uplink: None, window: NARROW, shown: NARROW,
        run: PORT_PAUSED, order: Order::Trains, without: 0 },
    Variant { name: "far", uplink: Some(PLENTY), window: NARROW, shown: NARROW,
        run: PORT_PAUSED, order: Order::Trains, without: 0 },
    Variant { name: "near", uplink: Some(PLENTY), window: WIDE, shown: NARROW,
        run: PORT_PAUSED, order: Order::Trains, without: 0 },
    Variant { name: "off_single", uplink: None, window: WIDE, shown: MSS,
        run: PORT_PAUSED, order: Order::Single, without: 3 },
    Variant { name: "queued", uplink: Some(LAST_HOP), window: WIDE, shown: MSS,
        run: PORT_PAUSED, order: Order::Granted, without: 3 },
    Variant { name: "off_early", uplink: None, window: WIDE, shown: MSS,
        run: PORT_ACCELERATE, order: Order::Single, without: 5 },
    Variant { name: "early_queued", uplink: Some(LAST_HOP), window: WIDE, shown: MSS,
        run: PORT_ACCELERATE, order: Order::Granted, without: 5 },
];
/// Slabs of the hold for cases with early acknowledgement: a chunk for each flow.
const SLABS: u32 = 10_000 / SLAB_HOLDS + 1;
/// One flow alone never waits for credit.
const FOR_ONE_FLOW: usize = 3;

pub fn measure() -> Result<Vec<Figure>> {
    // A helper of another part may still run, and would remove an uplink that has no port yet.
    let _no_sweep = CommandLock::take()?;
    let _accounting = account_run_time()?;
    let mut figures = Vec::new();
    for flows in FLOWS {
        let netns = Net::new(PREFIX).host("incast")?;
        // A thread of its own, which is pinned.
        figures.extend(netns.run(|| among(&netns, flows))?);
    }
    Ok(figures)
}

fn among(netns: &Netns, flows: u32) -> Result<Vec<Figure>> {
    pin(SENDER_CORE)?;
    let cases = &VARIANTS[..if flows == 1 { FOR_ONE_FLOW } else { VARIANTS.len() }];
    let mut scenes: Vec<_> =
        cases.iter().map(|case| Scene::set(netns, case, flows)).collect::<Result<_>>()?;
    let empty = EmptyProgram::attach(scenes[0].site.ifindex, Hook::ToVm)?;
    for scene in &mut scenes {
        scene.exchanges(EXCHANGES.max(2 * flows), 1)?;
        scene.forget();
    }
    let mut figures = figures(&mut scenes, &empty, flows, 1)?;
    if flows == TWO_CORES {
        figures.extend(self::figures(&mut scenes, &empty, flows, 2)?);
    }
    scenes.iter().for_each(Scene::check);
    Ok(figures)
}

/// The time that the kernel accounts to a program that returns at once, run as the hooks are, in
/// nanoseconds.
fn floor_of(empty: &EmptyProgram) -> Result<f64> {
    let before = empty.info()?.run_time_ns;
    for _ in 0..EXCHANGES {
        empty.run(&[0; 64])?;
    }
    Ok((empty.info()?.run_time_ns - before) as f64 / f64::from(EXCHANGES))
}

/// Nanoseconds for each segment and its ACK, in one round of a case.
#[derive(Clone, Copy)]
struct Cost {
    /// Nanoseconds per packet, in the order of [`HOOKS`].
    hooks: [f64; 3],
    /// Nanoseconds per packet of the uplink's hook.
    count: Option<f64>,
}

/// Where a queue is long, what one hook finds in no cache the other one has just used: then only
/// both together can be compared.
const HOOKS: [&str; 3] = ["to_vm", "from_vm", "both"];

fn figures(
    scenes: &mut [Scene],
    empty: &EmptyProgram,
    flows: u32,
    cores: usize,
) -> Result<Vec<Figure>> {
    let mut costs = vec![Vec::new(); scenes.len()];
    let mut floor = Vec::new();
    for round in 0..ROUNDS {
        interrupt::check()?;
        for step in 0..scenes.len() {
            let at = (round + step) % scenes.len();
            costs[at].push(scenes[at].round(cores)?);
        }
        floor.push(floor_of(empty)?);
    }
    let is_quoted = flows == TWO_CORES && cores == 1;
    let mut ratios = Vec::new();
    let on = if cores == 1 { "" } else { "_two_cores" };
    let flows = format!("{flows}_flow{}{on}", if flows == 1 { "" } else { "s" });
    let mut figures = Vec::new();
    let mut note = |name: String, value: f64| figures.push(figure(&name, value, "ns", "lower"));
    for (at, case) in VARIANTS[..scenes.len()].iter().enumerate() {
        let name = case.name;
        let mut line = Vec::new();
        for (hook, hook_name) in HOOKS.iter().enumerate() {
            let with = costs[at].iter().map(|cost| cost.hooks[hook]);
            if case.uplink.is_none() {
                let cost = median(with.collect());
                note(format!("incast_{name}_{hook_name}_ns_{flows}"), cost);
                line.push(format!("{hook_name} {cost:.0} ns"));
                continue;
            }
            let without: Vec<_> = costs[case.without].iter().map(|cost| cost.hooks[hook]).collect();
            if is_quoted && name == "far" {
                let with: Vec<_> = with.clone().collect();
                ratios
                    .push((format!("incast_{hook_name}_over_off"), median_ratio(&with, &without)));
            }
            let more = median(with.zip(without).map(|(with, without)| with - without).collect());
            note(format!("incast_{name}_{hook_name}_more_ns_{flows}"), more);
            line.push(format!("{hook_name} {more:+.0} ns"));
        }
        say(&format!("incast control, {flows}, {name}: {}", line.join(", ")));
    }
    let counts = costs.iter().flatten().filter_map(|cost| cost.count).collect();
    note(format!("incast_count_ns_{flows}"), median(counts));
    note(format!("incast_empty_program_ns_{flows}"), median(floor));
    figures.extend(ratios.into_iter().map(|(name, ratio)| figure(&name, ratio, "ratio", "lower")));
    Ok(figures)
}

/// A case, under way.
struct Scene {
    case: &'static Variant,
    site: Site,
    conversation: Conversation,
    exchanged: u32,
    random: fastrand::Rng,
}

impl Scene {
    /// The calling thread is in the namespace.
    fn set(netns: &Netns, case: &'static Variant, flows: u32) -> Result<Self> {
        let site = Site::attach(netns, case, flows)?;
        let conversation = Conversation::begin(&site.datapath(), flows, case.window, case.shown)?;
        Ok(Self { case, site, conversation, exchanged: 0, random: fastrand::Rng::with_seed(1) })
    }

    fn round(&mut self, cores: usize) -> Result<Cost> {
        self.conversation.look_at_all(&self.site.datapath())?;
        let before = self.site.accounts()?;
        self.exchanges(EXCHANGES, cores)?;
        let after = self.site.accounts()?;
        let cost = |hook: usize| {
            let (before, after) = (before.get(hook)?, after.get(hook)?);
            Some((after.run_time_ns - before.run_time_ns) as f64 / f64::from(EXCHANGES))
        };
        let hook = |hook| cost(hook).context("a hook without an account");
        let (to_vm, from_vm) = (hook(0)?, hook(1)?);
        Ok(Cost { hooks: [to_vm, from_vm, to_vm + from_vm], count: cost(2) })
    }

    /// The VM's packets go through the hook here, or on another core.
    fn exchanges(&mut self, number: u32, cores: usize) -> Result<()> {
        let Self { case, site, conversation, random, .. } = self;
        let hook = &site.hooks().from_vm;
        let from_vm = |frame: Vec<u8>| Ok(hook.run(&frame, 1)?);
        if cores == 1 {
            talk(case, &site.datapath(), conversation, random, number, &mut { from_vm })?;
        } else {
            std::thread::scope(|scope| {
                let (request, requests) = sync_channel(1);
                let (reply, replies) = sync_channel(1);
                scope.spawn(move || {
                    let pinned = pin(VM_CORE);
                    while let Some(frame) = next(&requests) {
                        let ran = if pinned.is_ok() { from_vm(frame) } else { break };
                        if reply.send(ran).is_err() {
                            break;
                        }
                    }
                    pinned
                });
                let mut from_vm = |frame| {
                    request.send(frame).context("the VM's core has stopped")?;
                    next(&replies).context("the VM's core has stopped")?
                };
                talk(case, &site.datapath(), conversation, random, number, &mut from_vm)
            })?;
        }
        self.exchanged += number;
        Ok(())
    }

    /// Clears the counters, to measure from here on.
    fn forget(&mut self) {
        (self.exchanged, self.conversation.narrowed, self.conversation.grants) = (0, 0, 0);
    }

    /// Was it what its name says?  A machine that is too busy makes round trips long, and incast
    /// control leaves such flows alone: then it says so.
    fn check(&self) {
        let Conversation { narrowed, grants, .. } = self.conversation;
        let (name, all) = (self.case.name, self.exchanged);
        let (few, most) = (all / 10, all / 4 * 3);
        let (is_narrow, is_queued) = (name == "near", self.case.order == Order::Granted);
        if !(is_queued || if is_narrow { narrowed > most } else { narrowed < few }) {
            say(&format!("{name}: {narrowed} of {all} windows were smaller than the VM's"));
        }
        if !(if is_queued { grants > most } else { grants == 0 }) {
            say(&format!("{name}: {grants} of {all} segments brought a grant for another flow"));
        }
    }
}

/// Sends this number of segments and their ACKs.
fn talk(
    case: &Variant,
    datapath: &Datapath,
    conversation: &mut Conversation,
    random: &mut fastrand::Rng,
    number: u32,
    from_vm: FromVm,
) -> Result<()> {
    let mut flow = 0;
    for at in 0..number {
        match case.order {
            Order::Trains if at % TRAIN != 0 => {}
            Order::Trains | Order::Single => flow = random.u32(0..conversation.flows()),
            Order::Granted => flow = conversation.next_granted(datapath)?,
        }
        conversation.exchange(datapath, flow, from_vm)?;
        if case.order == Order::Granted {
            conversation.look(datapath, flow)?;
        }
    }
    Ok(())
}

/// Receives the next message. It spins instead of sleeping, since a core that wakes up has cold
/// caches.
fn next<T>(from: &Receiver<T>) -> Option<T> {
    loop {
        match from.try_recv() {
            Ok(found) => return Some(found),
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
            Err(TryRecvError::Disconnected) => return None,
        }
    }
}

/// A port and its uplink, attached as long as this lives.
struct Site {
    ifindex: u32,
    port: Option<Port>,
    hooks: Option<Hooks>,
    growing: Option<Growing>,
    uplink: Option<Uplink>,
    tap: Tap,
    _uplink_device: Tap,
}

impl Site {
    fn attach(netns: &Netns, case: &Variant, flows: u32) -> Result<Self> {
        let device = |name: &str| -> Result<(Tap, u32)> {
            let options = TapOptions { nonblocking: true, ..TapOptions::default() };
            let tap = Tap::open(name, &options)?;
            netns.up(name)?;
            Ok((tap, nix::net::if_::if_nametoindex(name).context("index of a tap")?))
        };
        let (name, uplink_name) = (format!("p-{}", case.name), format!("u-{}", case.name));
        let (tap, ifindex) = device(&name)?;
        let (_uplink_device, uplink_ifindex) = device(&uplink_name)?;
        // Else no hand-over is exact.
        let queueing = ["qdisc", "replace", "dev", &name, "root", "noqueue"];
        checked("tc", ["-n", netns.name()].into_iter().chain(queueing))?;

        let inode = std::fs::metadata("/proc/thread-self/ns/net").context("this namespace")?.ino();
        let mut spec = AttachSpec::new(ifindex, &name, inode);
        spec.policy.run = case.run;
        spec.policy.passive = 0;
        let is_early = case.run == PORT_ACCELERATE;
        if is_early {
            spec.policy.hold_chunks = SLABS * SLAB_CHUNKS;
        }
        spec.limits = TableLimits { max_flows: flows + flows / 4 + 1, ..TableLimits::default() };
        let mut site = Self {
            ifindex,
            port: None,
            hooks: None,
            growing: None,
            uplink: None,
            tap,
            _uplink_device,
        };
        if let Some(settings) = &case.uplink {
            spec.uplink = uplink_ifindex;
            site.uplink = Some(Uplink::attach(inode, uplink_ifindex, &uplink_name, settings)?);
        }
        let port = site.port.insert(Port::attach(&spec)?);
        site.hooks = Some(Hooks {
            to_vm: port.open_hook(Hook::ToVm)?,
            from_vm: port.open_hook(Hook::FromVm)?,
            count: site.uplink.as_ref().map(Uplink::open_hook).transpose()?,
        });
        if is_early {
            site.growing = Some(Growing::start(inode, ifindex)?);
        }
        Ok(site)
    }

    fn port(&self) -> &Port {
        self.port.as_ref().expect("a site that is whole has a port")
    }

    fn hooks(&self) -> &Hooks {
        self.hooks.as_ref().expect("a site that is whole has its hooks open")
    }

    fn datapath(&self) -> Datapath<'_> {
        Datapath { port: self.port(), hooks: self.hooks(), tap: &self.tap }
    }

    /// The kernel's accounts of `to_vm`, `from_vm` and the uplink's hook.
    fn accounts(&self) -> Result<Vec<ProgramInfo>> {
        let mut programs = self.port().programs()?;
        if let Some(uplink) = &self.uplink {
            programs.push(uplink.program()?);
        }
        Ok(programs)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.growing = None;
        let port = self.port.take().map_or(Ok(()), Port::detach);
        let uplink = self.uplink.take().map_or(Ok(()), Uplink::remove);
        if let Err(error) = port.and(uplink) {
            say(&format!("not taken off: {error}"));
        }
    }
}
