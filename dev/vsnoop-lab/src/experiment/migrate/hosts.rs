//! Two hosts on the bridge of a stage, and the machine that moves between them.
//!
//! ```text
//!   client ──── path ──── bridge ──── uplink ─ bridge ─ tap ── VM      host 0
//!                              └───── uplink ─ bridge ─ tap           host 1
//! ```

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use vsnoop_testbed::guest::Image;
use vsnoop_testbed::net::{Net, Netns, TapOptions};
use vsnoop_testbed::session::{PREFIX, Session};
use vsnoop_testbed::stage::{BRIDGE, PREFIX_LENGTH, Stage, vm_address};
use vsnoop_testbed::vm::{Accelerator, FOLLOWED, Migration, Movable, Nic, Vm};
use vsnoop_testbed::vsnoop::{Service, Vsnoop};
use vsnoop_testbed::wait::wait_until;

const HOST_BRIDGE: &str = "br0";
const UPLINK: &str = "uplink";
const TAP: &str = "vslab-tap0";
const MAC: &str = "52:54:00:76:75:00";
/// A file in the directory of the machines.
const MEMORY: &str = "memory";
/// Files of the service.
const CONFIG: &str = "service.toml";
const LOG: &str = "service.log";
/// The longest wait for what the service does.
const SERVICE_TIMEOUT: Duration = Duration::from_secs(120);
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(120);

/// A host: a namespace with a bridge and a persistent tap.
pub struct Host {
    netns: Netns,
    pub vsnoop: Vsnoop,
}

pub struct Hosts {
    // Before the namespaces that it is in.
    vm: Vm,
    hosts: [Host; 2],
    place: usize,
    image: Image,
    accelerator: Accelerator,
    /// In no namespace of a host: a service finds both hosts by their names.
    vsnoop: Vsnoop,
    scratch: PathBuf,
    /// Each QEMU has a name and a directory of its own.
    started: usize,
}

impl Hosts {
    /// Boots the machine at host 0.
    pub fn build(
        session: &mut Session,
        image: &Image,
        accelerator: Accelerator,
        stage: &Stage,
        vsnoop: &Vsnoop,
    ) -> Result<Self> {
        let net = Net::new(PREFIX);
        let [first, second] = [0, 1].map(|number| Host::build(&net, number, stage, vsnoop));
        let hosts = [first?, second?];
        let scratch = session.scratch();
        let name = &vm_name(0);
        let (dir, memory) = (&scratch.join(name), &scratch.join(MEMORY));
        let nics = &[hosts[0].nic()];
        let mut vm = Movable { name, image, accelerator, nics, dir, memory }.start()?;
        session.note_process(vm.pid())?;
        vm.wait_ready(BOOT_TIMEOUT)?;
        let (image, vsnoop) = (image.clone(), vsnoop.clone());
        Ok(Self { vm, hosts, place: 0, image, accelerator, vsnoop, scratch, started: 1 })
    }

    pub fn vm(&self) -> &Vm {
        &self.vm
    }

    /// Where the machine is.
    pub fn source(&self) -> &Host {
        &self.hosts[self.place]
    }

    /// Where it goes next.
    pub fn target(&self) -> &Host {
        &self.hosts[1 - self.place]
    }

    /// A QEMU at the other host, which waits for the machine.
    pub fn start_target(&mut self, session: &mut Session) -> Result<Vm> {
        let name = &vm_name(self.started);
        self.started += 1;
        let (dir, memory) = (&self.scratch.join(name), &self.scratch.join(MEMORY));
        let (image, accelerator) = (&self.image, self.accelerator);
        let nics = &[self.target().nic()];
        let vm = Movable { name, image, accelerator, nics, dir, memory }.start_target()?;
        session.note_process(vm.pid())?;
        Ok(vm)
    }

    /// Starts a service for both hosts, and waits until it has attached their ports.
    pub fn serve(&self, session: &mut Session) -> Result<Service> {
        let [first, second] = [0, 1].map(|number: usize| self.hosts[number].netns.name());
        let monitors = self.scratch.join("*").join(FOLLOWED);
        let text = format!(
            "[[port]]\nnetns = [\"{first}\", \"{second}\"]\ninterface = \"{TAP}\"\nqmp = \"{}\"\n",
            monitors.display()
        );
        let [config, log] = [CONFIG, LOG].map(|name| self.scratch.join(name));
        fs::write(&config, text).with_context(|| format!("write {}", config.display()))?;
        let service = self.vsnoop.serve(&config, &log)?;
        session.note_process(service.pid())?;
        for host in &self.hosts {
            wait_until("the service attaches a port", SERVICE_TIMEOUT, || {
                Ok(host.state()?.as_deref() == Some("active"))
            })
            .with_context(|| fs::read_to_string(&log).unwrap_or_default())?;
        }
        Ok(service)
    }

    /// Moves the machine, and returns its QEMU of before, which still holds the tap there.
    pub fn migrate(&mut self, mut target: Vm) -> Result<(Migration, Vm)> {
        let migration = self.vm.migrate(&mut target, MIGRATION_TIMEOUT)?;
        self.place = 1 - self.place;
        Ok((migration, std::mem::replace(&mut self.vm, target)))
    }
}

impl Host {
    fn build(net: &Net, number: usize, stage: &Stage, vsnoop: &Vsnoop) -> Result<Self> {
        let netns = net.silent_host(&format!("host{number}"))?;
        netns.bridge(HOST_BRIDGE)?;
        stage.host().veth_port(BRIDGE, &format!("vslab-to{number}"), &netns, UPLINK)?;
        netns.add_port(HOST_BRIDGE, UPLINK)?;
        netns.tap(TAP, &TapOptions { persistent: true, ..TapOptions::default() })?;
        netns.add_port(HOST_BRIDGE, TAP)?;
        let vsnoop = vsnoop.in_netns(netns.name());
        Ok(Self { netns, vsnoop })
    }

    fn nic(&self) -> Nic<'_> {
        Nic {
            netns: &self.netns,
            tap: TAP.to_owned(),
            mac: MAC.to_owned(),
            address: format!("{}/{PREFIX_LENGTH}", vm_address(0, false)),
            rx_queue_size: None,
        }
    }

    /// The state of its port; `None` if it is not attached.
    fn state(&self) -> Result<Option<String>> {
        let status = self.vsnoop.status_of_all()?;
        Ok(status["ports"][0]["state"].as_str().map(str::to_owned))
    }

    /// Waits until the service has detached the port of a machine that has left.
    pub fn until_detached(&self) -> Result<()> {
        wait_until("the service detaches the port", SERVICE_TIMEOUT, || Ok(self.state()?.is_none()))
    }

    pub fn attach(&self) -> Result<()> {
        self.vsnoop.attach(TAP)
    }

    pub fn detach(&self) -> Result<()> {
        self.vsnoop.detach_all()
    }

    pub fn pause(&self) -> Result<()> {
        self.vsnoop.pause(TAP)
    }

    /// Acknowledged early, and not by the guest yet.
    pub fn outstanding_bytes(&self) -> Result<u64> {
        let status = self.vsnoop.status(TAP)?;
        let bytes = status["ports"][0]["outstanding_bytes"].as_u64();
        bytes.context("vsnoop status has no outstanding_bytes")
    }

    pub fn early_acks(&self) -> Result<u64> {
        let stats = self.vsnoop.stats(TAP)?;
        stats["ports"][0]["early_acks"].as_u64().context("vsnoop stats has no early_acks")
    }
}

fn vm_name(number: usize) -> String {
    format!("vslab-move{number}")
}
