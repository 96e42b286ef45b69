//! Hosts with libvirt and a bridge, a client, and the domain whose guest it talks to.
//!
//! ```text
//!   client ──── bridge ─ tap ── domain      host
//!                 │
//!               bridge ─ tap                another host, where a test has one
//! ```

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use vsnoop_guest::control::ADDRESS_PARAMETER;
use vsnoop_guest::transfer::{self, Direction};
use vsnoop_testbed::client::{self, Outcome, Request};
use vsnoop_testbed::guest::{self, Image, KERNEL_COMMAND_LINE};
use vsnoop_testbed::net::{Net, Netns, mac_text};
use vsnoop_testbed::topology::{
    BRIDGE, CLIENT_DEVICE, CLIENT_MAC, Family, PORT, Side, UPLINK, VM_MAC, address,
};
use vsnoop_testbed::vm::{self, Accelerator};
use vsnoop_testbed::vsnoop::Vsnoop;
use vsnoop_testbed::wait::wait_until;
use vsnoop_tests::PREFIX;

use super::daemon::{Directory, Libvirt};
use super::shared_memory::SharedMemory;

pub const DOMAIN: &str = "vst-domain";
/// Printed by the guest's init.
const READY: &str = "vsnoop-guest: ready";
/// Each transfer has this size.
const BYTES: u64 = 1_000_000;
/// Far longer than an emulated guest takes on a busy host.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// The monitor of [`SharedMemory`].
const MEMORY: &str = "memory";
/// Port of a host's bridge that leads to another host.
const TRUNK: &str = "vst-trunk";

/// A host with libvirt and a bridge.
pub struct Host {
    // Declared first, to end before its namespace.
    pub libvirt: Libvirt,
    _shared_memory: SharedMemory,
    pub netns: Netns,
}

/// Options of a domain beside its tap on the bridge.
#[derive(Default)]
pub struct Domain<'a> {
    /// More of its interface.
    pub of_interface: &'a str,
    /// A monitor of its own for the service, at [`Host::monitor`].
    pub is_followed: bool,
    /// Its memory is a file, and it has memory that takes a migration some time.
    pub is_movable: bool,
}

/// The host on which the domain starts, and a client on its bridge.
pub struct Site {
    pub host: Host,
    image: Image,
    pub client: Netns,
}

impl Host {
    fn new(role: &str, directory: Directory) -> Result<Self> {
        let netns = Net::new(PREFIX).silent_host(role)?;
        netns.bridge(BRIDGE)?;
        let libvirt = Libvirt::start(&netns, role, directory)?;
        let shared_memory = SharedMemory::serve(libvirt.path().join("run/vms").join(MEMORY));
        Ok(Self { libvirt, _shared_memory: shared_memory, netns })
    }

    /// A host whose bridge is joined to that of `other`; both have an address.
    pub fn beside(other: &Self, directory: Directory) -> Result<Self> {
        let host = Self::new("other", directory)?;
        other.netns.veth_port(BRIDGE, TRUNK, &host.netns, TRUNK)?;
        host.netns.add_port(BRIDGE, TRUNK)?;
        other.netns.add_address(BRIDGE, other.address(), 24)?;
        host.netns.add_address(BRIDGE, host.address(), 24)?;
        Ok(host)
    }

    /// Where other hosts reach it.
    pub fn address(&self) -> IpAddr {
        let last = if self.netns.name().ends_with("other") { 2 } else { 1 };
        [10, 67, 0, last].into()
    }

    pub fn vsnoop(&self) -> Result<Vsnoop> {
        Ok(Vsnoop::find()?.in_netns(self.netns.name()))
    }

    /// Path of the monitor of a followed domain.
    pub fn monitor(&self) -> String {
        self.libvirt.path().join("run/vms").join(DOMAIN).to_string_lossy().into_owned()
    }

    /// The port in `vsnoop status`, or `null`.
    pub fn port(&self) -> Result<Value> {
        let status = self.vsnoop()?.status_of_all()?;
        let ports = status["ports"].as_array().context("no ports")?;
        let is_ours =
            |port: &&Value| port["port"] == PORT && port["netns_name"] == self.netns.name();
        Ok(ports.iter().find(is_ours).cloned().unwrap_or_default())
    }

    pub fn until_port(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut port = Value::Null;
        wait_until(what, PATIENCE, || {
            port = self.port()?;
            Ok(is_so(&port))
        })
        .with_context(|| format!("{port}\n{}", self.libvirt.log()))?;
        Ok(port)
    }

    pub fn early_acks(&self) -> Result<u64> {
        let port = self.port()?;
        port["early_acks"].as_u64().with_context(|| format!("no early_acks: {port}"))
    }

    /// Waits until more is acknowledged early than now.
    pub fn until_accelerated(&self) -> Result<()> {
        let before = self.early_acks()?;
        self.until_port("more is acknowledged early", |port| {
            port["early_acks"].as_u64() > Some(before)
        })
        .map(drop)
    }
}

impl Site {
    pub fn new(directory: Directory) -> Result<Self> {
        let image = guest::prepare(guest::Options {
            firewall: true,
            dctcp: true,
            ..guest::Options::default()
        })?;
        let host = Host::new("host", directory)?;
        let client = Net::new(PREFIX).host("client")?;
        host.netns.veth_port(BRIDGE, UPLINK, &client, CLIENT_DEVICE)?;
        client.set_mac(CLIENT_DEVICE, CLIENT_MAC)?;
        client.up_with(CLIENT_DEVICE, &[(address(Side::Client, Family::V4), 24)])?;
        Ok(Self { host, image, client })
    }

    /// Starts the domain.
    pub fn create(&self, domain: &Domain) -> Result<()> {
        let Image { kernel, initramfs, memory_mb, .. } = &self.image;
        let (kernel, initramfs) = (kernel.display(), initramfs.display());
        let (mac, ip) = (mac_text(VM_MAC), address(Side::Vm, Family::V4));
        let console = self.host.libvirt.path().join("console");
        let console = console.display();
        let of_interface = domain.of_interface;
        let arguments = self.arguments(domain)?;
        let arguments = arguments.iter().map(|one| format!("<qemu:arg value='{one}'/>"));
        let arguments = arguments.collect::<String>();
        let xml = format!(
            "<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
               <name>{DOMAIN}</name>
               <memory unit='MiB'>{memory_mb}</memory>
               <vcpu>1</vcpu>
               <features><acpi/><apic/></features>
               <os>
                 <type arch='x86_64' machine='pc'>hvm</type>
                 <kernel>{kernel}</kernel>
                 <initrd>{initramfs}</initrd>
                 <cmdline>{KERNEL_COMMAND_LINE} {ADDRESS_PARAMETER}={ip}/24</cmdline>
               </os>
               <devices>
                 <emulator>/usr/bin/qemu-system-x86_64</emulator>
                 <controller type='usb' model='none'/>
                 <memballoon model='none'/>
                 <serial type='file'><source path='{console}'/><target port='0'/></serial>
                 <serial type='null'><target port='1'/></serial>
                 <interface type='bridge'>
                   <mac address='{mac}'/>
                   <source bridge='{BRIDGE}'/>
                   <target dev='{PORT}'/>
                   <model type='virtio'/>
                   <rom enabled='no'/>
                   {of_interface}
                 </interface>
               </devices>
               <qemu:commandline>{arguments}</qemu:commandline>
             </domain>"
        );
        self.host.libvirt.create(DOMAIN, &xml)
    }

    /// Returns arguments of QEMU beside those of libvirt; paths in /run are those of the daemon.
    fn arguments(&self, domain: &Domain) -> Result<Vec<String>> {
        let monitor = |name: &str, wait: &str| {
            ["-qmp".to_owned(), format!("unix:/run/vms/{name},server=on,wait={wait}")]
        };
        let mut arguments = Vec::new();
        if domain.is_followed {
            arguments.extend(monitor(DOMAIN, "off"));
        }
        if domain.is_movable {
            let file = self.host.libvirt.path().join("ram");
            arguments.extend(monitor(MEMORY, "on"));
            arguments.extend(vm::movable_memory(&self.image, Accelerator::Tcg, &file)?);
        }
        Ok(arguments)
    }

    pub fn until_the_guest_serves(&self) -> Result<()> {
        let console = self.host.libvirt.path().join("console");
        let text = || fs::read_to_string(&console).unwrap_or_default();
        wait_until("the guest serves", PATIENCE, || Ok(text().contains(READY)))
            .with_context(|| format!("{}\n{}", text(), self.host.libvirt.log()))
    }

    pub fn server() -> SocketAddr {
        (address(Side::Vm, Family::V4), transfer::PORT).into()
    }

    pub fn exact_transfers(&self) -> Result<()> {
        for direction in [Direction::Upload, Direction::Download] {
            let request = Request {
                server: Self::server(),
                direction,
                size_bytes: BYTES,
                seed: 1,
                congestion_control: "cubic",
                timeout: PATIENCE,
            };
            match client::transfer(&self.client, &request)? {
                Outcome::Exact(_) => (),
                other => bail!("{direction:?}: {other:?}"),
            }
        }
        Ok(())
    }
}

pub fn is_active(port: &Value) -> bool {
    port["state"] == "active"
}
