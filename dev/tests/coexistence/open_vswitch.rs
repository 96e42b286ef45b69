//! Open vSwitch, with its datapath in the kernel, or in user space.
//!
//! The latter reads and writes the tap by packet sockets. It knows no super-packets and no
//! checksums that are left to the device (unless `userspace-tso-enable` is set), so neither end
//! leaves any to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::capture::Capture;
use vsnoop_testbed::contained::{self, Contained, Network, Sandbox};
use vsnoop_testbed::guest::installed;
use vsnoop_testbed::net::{Netns, Offloads, check};
use vsnoop_testbed::topology::{
    BRIDGE, CLIENT_DEVICE, Family, PORT, Side, Topology, UPLINK, address,
};
use vsnoop_testbed::wait::wait_until;

use crate::scene::{BLOCKED_BYTES, FAMILIES, Scene, network};
use crate::trial;

const PATIENCE: Duration = Duration::from_secs(120);
const SWITCH: &str = "ovs0";
const PROGRAMS: [&str; 6] =
    ["ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-vswitchd", "ovs-ofctl", "ovs-appctl"];
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// Database and switch, with all files in the directory `$1`.
const DAEMONS: &str = "
    export OVS_RUNDIR=$1 OVS_LOGDIR=$1 OVS_DBDIR=$1
    ovsdb-tool create $1/conf.db $2
    ovsdb-server $1/conf.db --remote=punix:$1/db.sock --unixctl=$1/db.ctl --pidfile=$1/db.pid &
    ovs-vsctl --db=unix:$1/db.sock --retry --no-wait init
    exec ovs-vswitchd unix:$1/db.sock \
        --unixctl=$1/switch.ctl --pidfile=$1/switch.pid";

/// The part of Open vSwitch that carries the packets of a bridge.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Datapath {
    Kernel,
    UserSpace,
}

impl Datapath {
    /// Begins the names of its tests.
    fn group(self) -> &'static str {
        match self {
            Self::Kernel => "open_vswitch_kernel",
            Self::UserSpace => "open_vswitch",
        }
    }

    /// `datapath_type` of a bridge.
    fn name(self) -> &'static str {
        match self {
            Self::Kernel => "system",
            Self::UserSpace => "netdev",
        }
    }
}

pub fn trials() -> Vec<Trial> {
    trials_with(Datapath::UserSpace)
}

pub fn trials_with_kernel() -> Vec<Trial> {
    trials_with(Datapath::Kernel)
}

fn trials_with(datapath: Datapath) -> Vec<Trial> {
    let group = datapath.group();
    let mut trials = Vec::new();
    for (name, family) in FAMILIES {
        trials.push(trial(
            format!("{group}::a_vm_that_stands_still_is_acknowledged_for_{name}"),
            move || uploads(datapath, family),
        ));
    }
    trials.push(trial(format!("{group}::what_a_flow_drops_is_not_acknowledged"), move || {
        flow_drops(datapath)
    }));
    let late = match datapath {
        Datapath::Kernel => "the_vms_late_acks_are_kept_from_the_sender",
        Datapath::UserSpace => "the_vms_late_acks_reach_the_sender",
    };
    trials.push(trial(format!("{group}::{late}"), move || late_acks(datapath)));
    trials
}

pub fn probe(netns: &Netns) -> Result<()> {
    probe_with(Datapath::UserSpace, netns)
}

pub fn probe_with_kernel(netns: &Netns) -> Result<()> {
    probe_with(Datapath::Kernel, netns)
}

fn probe_with(datapath: Datapath, netns: &Netns) -> Result<()> {
    for program in PROGRAMS {
        installed(program, "openvswitch-switch")?;
    }
    Switch::start(netns, datapath).map(drop)
}

/// The daemons; they end when this is dropped, and their files go.
struct Switch {
    // Declared first, to end before its files go.
    _daemons: Contained,
    directory: Directory,
}

/// A directory that goes with all that is in it.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Switch {
    /// With a bridge, called [`SWITCH`].
    fn start(host: &Netns, datapath: Datapath) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("vst-ovs-{}-{number}", std::process::id());
        let directory = Directory(std::env::temp_dir().join(name));
        let path = &directory.0;
        fs::create_dir(path).with_context(|| format!("create {}", path.display()))?;
        let mut shell = Command::new("/bin/sh");
        shell.args(["-euc", DAEMONS, "sh"]).arg(path).arg(SCHEMA);
        let sandbox = Sandbox { network: Network::Of(host), root: None };
        let daemons = contained::start_program(&sandbox, &shell, Some(&path.join("log")))?;
        let switch = Self { _daemons: daemons, directory };
        wait_until("Open vSwitch runs", PATIENCE, || Ok(switch.path("switch.pid").exists()))
            .with_context(|| switch.log())?;
        let datapath_type = format!("datapath_type={}", datapath.name());
        switch.control(&["add-br", SWITCH, "--", "set", "bridge", SWITCH, &datapath_type])?;
        if datapath == Datapath::Kernel {
            // Where there is none, `ovs-vsctl` only warns.
            let device = host.ip(&format!("-details link show {SWITCH}"));
            let is_there = device.is_ok_and(|device| device.contains("openvswitch"));
            ensure!(is_there, "this kernel has no datapath of Open vSwitch");
        }
        Ok(switch)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.0.join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// `ovs-vsctl`, which waits until the switch is as it says.
    fn control(&self, arguments: &[&str]) -> Result<()> {
        let database = format!("--db=unix:{}", self.path("db.sock").display());
        let patience = format!("--timeout={}", PATIENCE.as_secs());
        let mut command = Command::new("ovs-vsctl");
        check(command.args([database, patience]).args(arguments))
            .with_context(|| self.log())
            .map(drop)
    }

    /// `ovs-ofctl` with this verb, and a flow.
    fn flows(&self, verb: &str, flow: &str) -> Result<String> {
        let socket = |path: &Path| format!("unix:{}", path.display());
        let switch = socket(&self.path(&format!("{SWITCH}.mgmt")));
        check(Command::new("ovs-ofctl").args([verb, &switch, flow])).with_context(|| self.log())
    }

    /// [`Switch::flows`], and waits until the datapath, which caches flows, obeys.
    fn change_flows(&self, verb: &str, flow: &str) -> Result<()> {
        self.flows(verb, flow)?;
        let target = format!("--target={}", self.path("switch.ctl").display());
        let patience = format!("--timeout={}", PATIENCE.as_secs());
        // The first may wait for a look at the cache that began before the change.
        for _ in 0..2 {
            check(Command::new("ovs-appctl").args([&target, &patience, "revalidator/wait"]))
                .with_context(|| self.log())?;
        }
        Ok(())
    }
}

/// The network, with the switch in the place of the bridge.
fn switched(datapath: Datapath) -> Result<(Topology, Switch)> {
    let topology = network(|options| {
        if datapath == Datapath::UserSpace {
            options.from_client = Offloads::NONE;
            options.from_vm = Offloads::NONE;
            options.to_vm = Offloads::NONE;
        }
    })?;
    if datapath == Datapath::UserSpace {
        topology.client.set_offloads(CLIENT_DEVICE, false)?;
    }
    let host = &topology.host;
    host.delete(BRIDGE)?;
    let switch = Switch::start(host, datapath)?;
    for port in [UPLINK, PORT] {
        switch.control(&["add-port", SWITCH, port])?;
    }
    Ok((topology, switch))
}

fn uploads(datapath: Datapath, family: Family) -> Result<()> {
    let (topology, switch) = switched(datapath)?;
    let mut scene = Scene::new(&topology, family).with_context(|| switch.log())?;
    for _ in 0..3 {
        scene.upload()?;
        scene.download()?;
    }
    scene.detach()
}

fn flow_drops(datapath: Datapath) -> Result<()> {
    let (topology, switch) = switched(datapath)?;
    let mut scene = Scene::new(&topology, Family::V4).with_context(|| switch.log())?;
    scene.upload()?;
    scene.stop_the_vm();
    let flow = format!("tcp,nw_dst={}", address(Side::Vm, Family::V4));
    switch.change_flows("add-flow", &format!("priority=100,{flow},actions=drop"))?;
    let early = scene.attached.counter("early_bytes")?;
    scene.send_what_is_dropped(|| {
        let text = switch.flows("dump-flows", &flow)?;
        let count = text.split("n_packets=").nth(1).and_then(|rest| rest.split(',').next());
        Ok(count.with_context(|| format!("no flow {flow}: {text}"))?.parse()?)
    })?;
    ensure!(scene.attached.counter("early_bytes")? == early, "{}", scene.attached.describe());
    switch.change_flows("del-flows", &flow)?;
    // By vsnoop, or by the VM where the switch has changed the order of segments meanwhile.
    scene.is_acknowledged()?;
    scene.let_the_vm_run();
    scene.pair.vm.receive(BLOCKED_BYTES)?;
    scene.upload()?;
    scene.detach()
}

/// The datapath in the kernel gets what the VM sends from the hook, as a bridge does; that in user
/// space reads it before.
fn late_acks(datapath: Datapath) -> Result<()> {
    let (topology, switch) = switched(datapath)?;
    let mut scene = Scene::new(&topology, Family::V4).with_context(|| switch.log())?;
    let (at_vm, at_client) = (Capture::start(&topology.vm)?, Capture::start(&topology.client)?);
    let before = scene.attached.counter("suppressed")?;
    scene.upload()?;
    scene.attached.until_nothing_is_outstanding()?;
    // Segments with an identification of 0, and others: the host's are 0, and seldom one of the
    // VM's is.
    let acks = |capture: &Capture, outgoing: bool| {
        let segments = capture.take()?.into_iter().filter(|it| it.outgoing == outgoing);
        let (zeros, others): (Vec<_>, Vec<_>) =
            segments.partition(|segment| segment.identification == Some(0));
        anyhow::Ok((zeros.len() as u64, others.len() as u64))
    };
    // Not by their order: ACKs of host and VM may overtake each other on two CPUs.
    let (mut sent, mut sent_zeros, mut suppressed, mut received) = (0, 0, 0, 0);
    let mut has_come = || {
        received += acks(&at_client, false)?.1;
        suppressed = scene.attached.counter("suppressed")? - before;
        let (zeros, others) = acks(&at_vm, true)?;
        (sent, sent_zeros) = (sent + zeros + others, sent_zeros + zeros);
        let kept = if datapath == Datapath::Kernel { suppressed } else { 0 };
        ensure!(received + kept <= sent, "more of the VM's ACKs came than should");
        Ok(received + kept + sent_zeros >= sent)
    };
    let waited = scene.attached.wait_until("all ACKs of the VM have come", &mut has_come);
    waited.with_context(|| format!("{sent} sent, {suppressed} suppressed, {received} received"))?;
    ensure!(suppressed > 0, "{}", scene.attached.describe());
    scene.detach()
}
