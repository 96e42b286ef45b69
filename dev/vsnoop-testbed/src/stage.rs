//! The stage of an experiment: virtual machines on a bridge, and a client.
//!
//! ```text
//!   namespace vslab-PID-0-client           namespace vslab-PID-0-host
//!     client ──── path ─────────────────── bridge ── tap 0 ── VM 0
//!                                                 └─ tap 1 ── VM 1 ...
//! ```
//! Bridge, taps and QEMU live in a namespace of their own, so that nothing appears among the
//! machine's own devices; vsnoop reaches the taps with `--netns`. The [`path`] is a veth, or a
//! relay between two taps. A machine may have a second, *tuned* device on the
//! bridge, with longer queues and an address of its own, so that both kinds can be compared on the
//! same machine. Dropping the stage detaches the ports, ends the machines and deletes the
//! namespaces.

pub mod path;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use vsnoop_guest::control::{Command, Reply};
use vsnoop_guest::transfer;

use crate::guest::Image;
use crate::net::{Net, Netns, TapOptions};
use crate::relay::Relay;
use crate::session::{PREFIX, Session};
use crate::vm::{Accelerator, Begin, GUEST_CORE, HOST_CORE, Hogs, Nic, Share, Slices, Vm};
use crate::vsnoop::Vsnoop;

/// All taps and the path are in it.
pub const BRIDGE: &str = "vslab-br";
/// The prefix length of the addresses of host and machines.
pub const PREFIX_LENGTH: u8 = 24;
const BOOT_TIMEOUT: Duration = Duration::from_secs(600);
/// An emulated VM on a busy machine may take longer than the default.
const DETACH: [&str; 2] = ["--timeout", "60"];
/// The client's congestion control: the host's default may be another.
pub const CONGESTION_CONTROL: &str = "cubic";

/// Frames that the queues of a tuned device hold: the tap's ring on the host (the kernel's default
/// is 1000), and the receive queue of the device (QEMU's default is 256, its limit 1024).
pub const TUNED_RING: usize = 10_000;
pub const TUNED_RX_QUEUE: u16 = 1024;

/// Options of a stage.
#[derive(Clone, Copy, Debug)]
pub struct StageOptions {
    pub vms: usize,
    /// Every machine has a tuned device as well.
    pub tuned: bool,
}

#[derive(Debug)]
pub struct Stage {
    // In the order of their end: machines before the namespaces that they are in.
    sharing: Sharing,
    vms: Vec<Vm>,
    path: CurrentPath,
    client: Netns,
    host: Netns,
    ports: Vec<Ports>,
    tuned: bool,
    vsnoop: Option<Vsnoop>,
    /// Taps.
    attached: Mutex<BTreeSet<String>>,
}

/// Who decides which machine runs.
#[derive(Debug)]
enum Sharing {
    Kernel,
    /// The kernel, and these threads are beside the machines.
    Beside(#[expect(dead_code, reason = "they run until they are dropped")] Hogs),
    Slices(Slices),
}

/// The present path (`path`).
#[derive(Debug)]
enum CurrentPath {
    None,
    Veth,
    Relayed(Relay),
}

/// The taps of one machine.
#[derive(Debug)]
struct Ports {
    plain: String,
    tuned: Option<String>,
}

impl Stage {
    /// Boots `count` machines and waits for all of them; `vsnoop`, if it is given, will attach to
    /// their taps.
    pub fn build(
        session: &mut Session,
        image: &Image,
        accelerator: Accelerator,
        count: usize,
        vsnoop: Option<&Vsnoop>,
    ) -> Result<Self> {
        let options = StageOptions { vms: count, tuned: false };
        Self::build_with(session, image, accelerator, options, vsnoop)
    }

    /// Like [`Stage::build`]. The path is a veth at first.
    pub fn build_with(
        session: &mut Session,
        image: &Image,
        accelerator: Accelerator,
        options: StageOptions,
        vsnoop: Option<&Vsnoop>,
    ) -> Result<Self> {
        session.claim_guest_core()?;
        let net = Net::new(PREFIX);
        let (host, client) = (net.host("host")?, net.host("client")?);
        host.bridge(BRIDGE)?;
        host.add_address(BRIDGE, HOST.into(), PREFIX_LENGTH)?;
        let vsnoop = vsnoop.map(|vsnoop| vsnoop.in_netns(host.name()));
        let mut stage = Self {
            sharing: Sharing::Kernel,
            vms: Vec::new(),
            path: CurrentPath::None,
            client,
            host,
            ports: Vec::new(),
            tuned: options.tuned,
            vsnoop,
            attached: Mutex::default(),
        };
        stage.lay_veth()?;
        for index in 0..options.vms {
            stage.start_vm(session, image, accelerator, index)?;
        }
        for vm in &mut stage.vms {
            vm.wait_ready(BOOT_TIMEOUT)?;
        }
        Ok(stage)
    }

    fn start_vm(
        &mut self,
        session: &mut Session,
        image: &Image,
        accelerator: Accelerator,
        index: usize,
    ) -> Result<()> {
        let tuned = self.tuned.then(|| format!("vslab-wide{index}"));
        let ports = Ports { plain: format!("vslab-tap{index}"), tuned };
        let mut nics = Vec::new();
        for (name, is_tuned) in [(Some(&ports.plain), false), (ports.tuned.as_ref(), true)] {
            let Some(name) = name else { continue };
            // Made here, so that vsnoop can be attached before and after QEMU holds it.
            self.host.tap(name, &TapOptions { persistent: true, ..TapOptions::default() })?;
            if is_tuned {
                self.host.set_txqueuelen(name, TUNED_RING)?;
            }
            self.host.add_port(BRIDGE, name)?;
            nics.push(Nic {
                netns: &self.host,
                tap: name.clone(),
                mac: format!("52:54:00:76:{:02x}:{index:02x}", 0x73 + u8::from(is_tuned)),
                address: format!("{}/{PREFIX_LENGTH}", vm_address(index, is_tuned)),
                rx_queue_size: is_tuned.then_some(TUNED_RX_QUEUE),
            });
        }
        let name = format!("vslab-vm{index}");
        let dir = session.scratch().join(&name);
        let vm = Vm::start(&name, image, accelerator, &nics, &dir)?;
        session.note_process(vm.pid())?;
        for tap in std::iter::once(&ports.plain).chain(&ports.tuned) {
            session.note_port(self.host.name(), tap)?;
        }
        self.ports.push(ports);
        self.vms.push(vm);
        Ok(())
    }

    /// Makes the machines share a core, as they do until the stage ends. Calibrates their load
    /// before, which needs the core for itself.
    pub fn share(&mut self, share: Share) -> Result<()> {
        for vm in &self.vms {
            vm.place()?;
        }
        // One after the other.
        for vm in &self.vms {
            let reply = vm.command(&Command::Calibrate)?;
            if let Reply::Calibrated { iterations_per_ms } = reply {
                tracing::debug!(vm = vm.name(), iterations_per_ms, "calibrated");
            }
        }
        match share {
            Share::Quota { percent } => self.vms.iter().try_for_each(|vm| vm.limit(percent)),
            Share::Fair { hogs } => {
                self.sharing = Sharing::Beside(Hogs::start(hogs)?);
                Ok(())
            }
            Share::Slices => {
                let vcpus = self.vms.iter().map(Vm::vcpu_threads).collect::<Result<Vec<_>>>()?;
                self.sharing = Sharing::Slices(Slices::start(&vcpus)?);
                Ok(())
            }
        }
    }

    /// Puts the host's packet work on the machines' core: QEMU's threads, and bridge, taps and
    /// vsnoop's programs for what comes from the client. With `false` on the host's core again.
    /// The path must be the shortest.
    pub fn host_work_beside(&self, beside: bool) -> Result<()> {
        self.vms.iter().try_for_each(|vm| vm.beside_vcpus(beside))?;
        self.steer(beside.then_some(GUEST_CORE), beside.then_some(HOST_CORE))
    }

    /// Has the host's core process what comes by the path, whichever core the path itself is on.
    pub fn receive_on_host_core(&self) -> Result<()> {
        self.steer(Some(HOST_CORE), None)
    }

    /// The share of the core that a machine uses which alone has a load, of `share`, over `time`: a
    /// check of the calibration, and of slices that leave the core to a VM that is alone.
    pub fn use_alone(&self, share: f64, period_ms: u32, time: Duration) -> Result<f64> {
        let vm = self.vms.first().context("a stage without machines")?;
        vm.command(&Command::Load { share, period_ms })?;
        let (before, begin) = (vm.vcpu_time()?, Instant::now());
        std::thread::sleep(time);
        let (used, passed) = (vm.vcpu_time()? - before, begin.elapsed());
        vm.command(&Command::Load { share: 0.0, period_ms })?;
        Ok(used.as_secs_f64() / passed.as_secs_f64())
    }

    /// Under [`Share::Slices`], the turns that have begun since the last call.
    pub fn take_turns(&self) -> Vec<Begin> {
        match &self.sharing {
            Sharing::Slices(slices) => slices.take_turns(),
            Sharing::Kernel | Sharing::Beside(_) => Vec::new(),
        }
    }

    /// Under [`Share::Slices`], how long a machine with work has waited for its turns.
    pub fn waited_for_turns(&self, index: usize) -> Option<Duration> {
        match &self.sharing {
            Sharing::Slices(slices) => Some(slices.waited(index)),
            Sharing::Kernel | Sharing::Beside(_) => None,
        }
    }

    /// Lets a machine run whenever it has work, or as all others.
    pub fn favour(&self, index: usize, favoured: bool) -> Result<()> {
        match &self.sharing {
            Sharing::Slices(slices) => {
                slices.favour(favoured.then_some(index));
                Ok(())
            }
            Sharing::Kernel | Sharing::Beside(_) => self.vms[index].favour(favoured),
        }
    }

    /// Attaches vsnoop to a machine's tap.
    pub fn attach(&self, index: usize) -> Result<()> {
        self.attach_with(index, &[])
    }

    /// Attaches with further options of the command.
    pub fn attach_with(&self, index: usize, options: &[&str]) -> Result<()> {
        self.attach_tap(self.tap(index), options)
    }

    pub fn detach(&self, index: usize) -> Result<()> {
        self.detach_tap(self.tap(index))
    }

    /// Attaches to any tap of the stage.
    pub fn attach_tap(&self, tap: &str, options: &[&str]) -> Result<()> {
        // Noted first: an attachment that failed half-way is detached as well.
        self.attached().insert(tap.to_owned());
        self.vsnoop()?.attach_with(tap, options)
    }

    pub fn detach_tap(&self, tap: &str) -> Result<()> {
        self.vsnoop()?.detach_with(tap, &DETACH)?;
        self.attached().remove(tap);
        Ok(())
    }

    /// The command, for the namespace of the taps.
    pub fn vsnoop(&self) -> Result<&Vsnoop> {
        self.vsnoop.as_ref().context("this stage was built without vsnoop")
    }

    fn attached(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn client(&self) -> &Netns {
        &self.client
    }

    pub fn host(&self) -> &Netns {
        &self.host
    }

    pub fn tap(&self, index: usize) -> &str {
        &self.ports[index].plain
    }

    /// The tap of a machine's tuned device.
    pub fn tuned_tap(&self, index: usize) -> Result<&str> {
        self.ports[index].tuned.as_deref().context("this stage was built without tuned devices")
    }

    pub fn vm(&self, index: usize) -> &Vm {
        &self.vms[index]
    }

    pub fn vm_count(&self) -> usize {
        self.vms.len()
    }

    /// Address at which a machine serves transfers.
    pub fn server(&self, index: usize) -> SocketAddr {
        SocketAddr::from((vm_address(index, false), transfer::PORT))
    }

    /// Counters of the host's side of a machine's tap.
    pub fn tap_counts(&self, index: usize) -> Result<TapCounts> {
        self.counts_of(self.tap(index))
    }

    /// Counters of the host's side of any tap of the stage.
    pub fn counts_of(&self, tap: &str) -> Result<TapCounts> {
        let counters = self.host.device_counters(tap)?;
        let (to_vm_bytes, drops) = (counters.sent_bytes()?, counters.dropped_on_the_way_out()?);
        Ok(TapCounts { to_vm_bytes, drops })
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for tap in std::mem::take(&mut *self.attached()) {
            if let Err(error) = self.vsnoop().and_then(|vsnoop| vsnoop.detach(&tap)) {
                // No error of the run: the port may be half attached, or gone.
                tracing::info!("not detached: {error:#}");
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct TapCounts {
    pub to_vm_bytes: u64,
    /// Frames that the host could not put into the tap's ring.
    pub drops: u64,
}

/// The host's address on the bridge.
pub const HOST: Ipv4Addr = address(false, 2);

/// Where a machine is, by its plain or its tuned device.
pub fn vm_address(index: usize, tuned: bool) -> Ipv4Addr {
    address(tuned, 10 + index as u8)
}

/// Tuned devices are in a network of their own, so that machines answer by the device that was
/// asked.
const fn address(tuned: bool, last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77 + tuned as u8, 0, last)
}
