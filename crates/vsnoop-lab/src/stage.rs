//! The stage of an experiment: virtual machines on a bridge, and a client.
//!
//! ```text
//!   namespace vslab-PID-client             namespace vslab-PID-host
//!     client ── veth ───────────────────── bridge ── tap 0 ── VM 0
//!                                                 └─ tap 1 ── VM 1 ...
//! ```
//! Bridge, taps and QEMU live in a namespace of their own, so that nothing appears among the
//! machine's own devices; vsnoop reaches the taps with `--netns`. Dropping the stage detaches the
//! ports, ends the machines and deletes the namespaces.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use vsnoop_guest::control::{Command, Reply};
use vsnoop_guest::transfer;

use crate::guest::Image;
use crate::session::{PREFIX, Session};
use crate::testbed::net::{Netns, TapOptions, owned_name};
use crate::vm::{Accelerator, Network, Vm};
use crate::vsnoop::Vsnoop;

const BRIDGE: &str = "vslab-br";
const UPLINK: &str = "vslab-up";
const CLIENT_DEVICE: &str = "vslab-client";
const PREFIX_LENGTH: u8 = 24;
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);
/// As the credit scheduler of the paper's Xen.
pub const SLICE_MS: u32 = 30;

/// The client's congestion control: the host's default may be another.
pub const CONGESTION_CONTROL: &str = "cubic";

#[derive(Debug)]
pub struct Stage {
    // In the order of their end: machines before the namespaces that they are in.
    vms: Vec<Vm>,
    client: Netns,
    host: Netns,
    taps: Vec<String>,
    vsnoop: Option<Vsnoop>,
    attached: Mutex<BTreeSet<usize>>,
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
        let host = Netns::create(&owned_name(PREFIX, "host"))?;
        let client = Netns::create(&owned_name(PREFIX, "client"))?;
        host.bridge(BRIDGE)?;
        host.veth(UPLINK, &client, CLIENT_DEVICE)?;
        host.add_port(BRIDGE, UPLINK)?;
        client.add_address(CLIENT_DEVICE, address(1).into(), PREFIX_LENGTH)?;
        client.up(CLIENT_DEVICE)?;
        // What one connection learns must not change the next.
        client.set_sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
        let vsnoop = vsnoop.map(|vsnoop| vsnoop.in_netns(host.name()));
        let (vms, taps, attached) = (Vec::new(), Vec::new(), Mutex::default());
        let mut stage = Self { vms, client, host, taps, vsnoop, attached };
        for index in 0..count {
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
        let tap = format!("vslab-tap{index}");
        // Made here, so that vsnoop can be attached before and after QEMU holds it.
        self.host.tap(&tap, &TapOptions { persistent: true, ..TapOptions::default() })?;
        self.host.add_port(BRIDGE, &tap)?;
        let name = format!("vslab-vm{index}");
        let network = Network {
            netns: &self.host,
            tap: tap.clone(),
            mac: format!("52:54:00:76:73:{index:02x}"),
            address: format!("{}/{PREFIX_LENGTH}", vm_address(index)),
        };
        let dir = session.scratch().join(&name);
        let vm = Vm::start(&name, image, accelerator, Some(&network), &dir)?;
        session.note_process(vm.pid())?;
        session.note_port(self.host.name(), &tap)?;
        self.taps.push(tap);
        self.vms.push(vm);
        Ok(())
    }

    /// Makes the machines share one core in slices of 30 ms, each with a CPU load of `share`.
    pub fn load(&self, session: &mut Session, share: f64, period_ms: u32) -> Result<()> {
        // One after the other: a calibration needs the core for itself.
        for vm in &self.vms {
            let reply = vm.command(&Command::Calibrate)?;
            if let Reply::Calibrated { iterations_per_ms } = reply {
                tracing::debug!(vm = vm.name(), iterations_per_ms, "calibrated");
            }
        }
        session.set_sysctl("kernel.sched_rr_timeslice_ms", &SLICE_MS.to_string())?;
        for vm in &self.vms {
            vm.share_core()?;
        }
        for vm in &self.vms {
            vm.command(&Command::Load { share, period_ms })?;
        }
        Ok(())
    }

    /// Attaches vsnoop to a machine's tap.
    pub fn attach(&self, index: usize) -> Result<()> {
        // Noted first: an attachment that failed half-way is detached as well.
        self.attached().insert(index);
        self.vsnoop()?.attach(self.tap(index))
    }

    pub fn detach(&self, index: usize) -> Result<()> {
        self.vsnoop()?.detach(self.tap(index))?;
        self.attached().remove(&index);
        Ok(())
    }

    /// The command, for the namespace of the taps.
    pub fn vsnoop(&self) -> Result<&Vsnoop> {
        self.vsnoop.as_ref().context("this stage was built without vsnoop")
    }

    fn attached(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn client(&self) -> &Netns {
        &self.client
    }

    pub fn host(&self) -> &Netns {
        &self.host
    }

    pub fn tap(&self, index: usize) -> &str {
        &self.taps[index]
    }

    pub fn vm(&self, index: usize) -> &Vm {
        &self.vms[index]
    }

    pub fn vm_count(&self) -> usize {
        self.vms.len()
    }

    /// Where a machine serves transfers.
    pub fn server(&self, index: usize) -> SocketAddr {
        SocketAddr::from((vm_address(index), transfer::PORT))
    }

    /// What the host's side of a machine's tap has counted.
    pub fn tap_counts(&self, index: usize) -> Result<TapCounts> {
        let tap = self.tap(index);
        let text = self.host.ip(&format!("-s -j link show {tap}"))?;
        let links: serde_json::Value = serde_json::from_str(&text).context("parse ip's JSON")?;
        let count = |name: &str| {
            links[0]["stats64"]["tx"][name]
                .as_u64()
                .with_context(|| format!("ip shows no counter {name} of {tap}"))
        };
        Ok(TapCounts { to_vm_bytes: count("bytes")?, drops: count("dropped")? })
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for index in std::mem::take(&mut *self.attached()) {
            if let Err(error) = self.vsnoop().and_then(|vsnoop| vsnoop.detach(self.tap(index))) {
                // Not an error of the run: the port may be half attached, or gone.
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

fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, last)
}

fn vm_address(index: usize) -> Ipv4Addr {
    address(10 + index as u8)
}
