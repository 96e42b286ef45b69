//! libvirt itself, with a guest that QEMU emulates: its network filter, its limit of bandwidth, and
//! our hook for domains whose monitor is taken.

mod daemon;

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use vsnoop_guest::control::ADDRESS_PARAMETER;
use vsnoop_guest::transfer::{self, Direction};
use vsnoop_testbed::client::{self, Outcome, Request};
use vsnoop_testbed::guest::{self, Image, KERNEL_COMMAND_LINE, installed};
use vsnoop_testbed::net::{Net, Netns, mac_text};
use vsnoop_testbed::topology::{
    BRIDGE, CLIENT_DEVICE, CLIENT_MAC, Family, PORT, Side, UPLINK, VM_MAC, address,
};
use vsnoop_testbed::vm;
use vsnoop_testbed::vsnoop::Vsnoop;
use vsnoop_testbed::wait::wait_until;
use vsnoop_testbed::workspace;
use vsnoop_tests::PREFIX;

use crate::{ebtables, trial};
use daemon::{Directory, Libvirt};

const DOMAIN: &str = "vst-domain";
/// Printed by the guest's init.
const READY: &str = "vsnoop-guest: ready";
/// Of each transfer.
const BYTES: u64 = 1_000_000;
/// Far longer than an emulated guest takes on a busy host.
const PATIENCE: Duration = Duration::from_secs(600);
/// One service runs in a `/run`.
static SERVICE: Mutex<()> = Mutex::new(());

pub fn trials() -> Vec<Trial> {
    vec![
        trial("libvirt::a_domain_with_clean_traffic_is_accelerated", clean_traffic),
        trial("libvirt::a_domain_with_bandwidth_keeps_its_limit", bandwidth),
        trial("libvirt::a_domain_without_a_monitor_is_paused_by_the_hook", hook),
    ]
}

pub fn probe(_: &Netns) -> Result<()> {
    for (program, package) in
        [("libvirtd", "libvirt-daemon"), ("virsh", "libvirt-clients"), ("ebtables", "iptables")]
    {
        installed(program, package)?;
    }
    let filter = "/etc/libvirt/nwfilter/clean-traffic.xml";
    ensure!(fs::exists(filter)?, "no {filter}: install libvirt-daemon-config-nwfilter");
    let file_systems = fs::read_to_string("/proc/filesystems")?;
    ensure!(file_systems.contains("\toverlay\n"), "this kernel has no overlayfs");
    vm::require_qemu()
}

/// A host with libvirt and a bridge, and a client on it.
struct Site {
    // Declared first, to end before its namespace.
    libvirt: Libvirt,
    image: Image,
    client: Netns,
    host: Netns,
}

impl Site {
    fn new(directory: Directory) -> Result<Self> {
        let image = guest::prepare(guest::Options {
            firewall: true,
            dctcp: true,
            ..guest::Options::default()
        })?;
        let net = Net::new(PREFIX);
        let (host, client) = (net.silent_host("host")?, net.host("client")?);
        host.bridge(BRIDGE)?;
        host.veth_port(BRIDGE, UPLINK, &client, CLIENT_DEVICE)?;
        client.set_mac(CLIENT_DEVICE, CLIENT_MAC)?;
        client.up_with(CLIENT_DEVICE, &[(address(Side::Client, Family::V4), 24)])?;
        let libvirt = Libvirt::start(&host, directory)?;
        Ok(Self { libvirt, image, client, host })
    }

    fn vsnoop(&self) -> Result<Vsnoop> {
        Ok(Vsnoop::find()?.in_netns(self.host.name()))
    }

    /// Starts the domain; `of_interface` is more of its interface.
    fn create(&self, of_interface: &str) -> Result<()> {
        let Image { kernel, initramfs, memory_mb, .. } = &self.image;
        let (kernel, initramfs) = (kernel.display(), initramfs.display());
        let (mac, ip) = (mac_text(VM_MAC), address(Side::Vm, Family::V4));
        let console = self.libvirt.path().join("console");
        let console = console.display();
        self.libvirt.create(&format!(
            "<domain type='qemu'>
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
             </domain>"
        ))
    }

    fn until_the_guest_serves(&self) -> Result<()> {
        let console = self.libvirt.path().join("console");
        let text = || fs::read_to_string(&console).unwrap_or_default();
        wait_until("the guest serves", PATIENCE, || Ok(text().contains(READY)))
            .with_context(|| format!("{}\n{}", text(), self.libvirt.log()))
    }

    fn exact_transfers(&self) -> Result<()> {
        for direction in [Direction::Upload, Direction::Download] {
            let request = Request {
                server: (address(Side::Vm, Family::V4), transfer::PORT).into(),
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

    /// The port in `vsnoop status`, or `null`.
    fn port(&self) -> Result<Value> {
        let status = self.vsnoop()?.status_of_all()?;
        let ports = status["ports"].as_array().context("no ports")?;
        let is_ours =
            |port: &&Value| port["port"] == PORT && port["netns_name"] == self.host.name();
        Ok(ports.iter().find(is_ours).cloned().unwrap_or_default())
    }

    fn until_port(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut port = Value::Null;
        wait_until(what, PATIENCE, || {
            port = self.port()?;
            Ok(is_so(&port))
        })
        .with_context(|| format!("{port}"))?;
        Ok(port)
    }
}

fn service() -> MutexGuard<'static, ()> {
    SERVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_active(port: &Value) -> bool {
    port["state"] == "active"
}

fn clean_traffic() -> Result<()> {
    let site = Site::new(Directory::new()?)?;
    let vsnoop = site.vsnoop()?;
    let _only = service();
    let config = site.libvirt.path().join("vsnoop.toml");
    // libvirtd opens the tap, and passes it on to the QEMU that has the name.
    fs::write(&config, "[[port]]\nname = \"domains\"\nvm = \"vst-dom*\"\npassive = false\n")?;
    let service = vsnoop.serve(&config, &site.libvirt.path().join("service.log"))?;
    site.create(&format!(
        "<filterref filter='clean-traffic'><parameter name='IP' value='{}'/></filterref>",
        address(Side::Vm, Family::V4)
    ))?;
    let port = site.until_port("the domain's tap is attached", is_active)?;
    ensure!(port["table"] == "domains" && port["attached_by"] == "service", "{port}");
    site.until_the_guest_serves()?;
    for _ in 0..3 {
        site.exact_transfers()?;
    }
    let early = site.port()?["early_acks"].as_u64().context("no early_acks")?;
    ensure!(early > 0, "nothing was acknowledged early: {}", site.port()?);
    let own = format!("--ip-src {} -j RETURN", address(Side::Vm, Family::V4));
    let passed = ebtables::frames(&site.host, &format!("I-{PORT}-ipv4-ip"), &own)?;
    ensure!(passed > early, "{early} early ACKs, and {passed} frames passed libvirt's chain");
    for part in ["mac", "ipv4-ip", "arp-mac", "arp-ip"] {
        let dropped = ebtables::frames(&site.host, &format!("I-{PORT}-{part}"), "-j DROP")?;
        ensure!(dropped == 0, "{dropped} frames dropped: {part}");
    }
    site.libvirt.virsh(&["destroy", DOMAIN])?;
    site.until_port("the port is gone with its domain", Value::is_null)?;
    drop(service);
    Ok(())
}

/// libvirt's limit needs sfq and a filter by mark. A kernel without them gets the rest of it: HTB,
/// through whose default class all goes in any case.
fn bandwidth() -> Result<()> {
    let directory = Directory::new()?;
    directory.program(
        "tc",
        "#!/bin/sh\n\
         /sbin/tc \"$@\" && exit\n\
         case \" $* \" in *' sfq '* | *' fw '*) exit 0 ;; esac\n\
         exit 2\n",
    )?;
    let site = Site::new(directory)?;
    let vsnoop = site.vsnoop()?;
    let _only = service();
    let config = site.libvirt.path().join("vsnoop.toml");
    fs::write(&config, format!("[[port]]\ninterface = \"{PORT}\"\n"))?;
    let _service = vsnoop.serve(&config, &site.libvirt.path().join("service.log"))?;
    site.create("<bandwidth><inbound average='10000' peak='20000' burst='1024'/></bandwidth>")?;
    site.until_the_guest_serves()?;
    let limits = || site.host.tc(&format!("class show dev {PORT}"));
    let before = limits()?;
    let qdiscs = site.host.tc(&format!("qdisc show dev {PORT}"))?;
    ensure!(before.contains("htb 1:1"), "libvirt's limit is not there: {before}{qdiscs}");
    // The service is there before the tap, and waits until libvirt has set it up.
    let mut said = Value::Null;
    wait_until("the service says why nothing is acknowledged early", PATIENCE, || {
        said = vsnoop.status_of_all()?;
        let refused = &said["service"]["failed"][0];
        let reason = refused["reason"].as_str().unwrap_or_default();
        let is_refused = reason.contains("htb 1:") && reason.contains("<bandwidth>");
        Ok(refused["port"] == PORT && is_refused)
    })
    .with_context(|| said.to_string())?;
    site.exact_transfers()?;
    ensure!(limits()? == before, "the limit was {before}, and is {}", limits()?);
    Ok(())
}

/// A snapshot of memory is a migration to a file, after which the VM runs on.
fn hook() -> Result<()> {
    let directory = Directory::new()?;
    let calls = directory.0.join("calls");
    fs::copy(workspace::root()?.join("deploy/libvirt/qemu"), directory.0.join("hook"))?;
    // It runs in the host's namespace, where the port is.
    directory.program(
        "vsnoop",
        &format!(
            "#!/bin/sh\n{} \"$@\"\nstatus=$?\necho \"$1 $2 $status\" >>{}\nexit $status\n",
            workspace::vsnoop_command()?.display(),
            calls.display(),
        ),
    )?;
    let site = Site::new(directory)?;
    site.create("")?;
    site.until_the_guest_serves()?;
    let vsnoop = site.vsnoop()?;
    vsnoop.attach_with(PORT, &["--no-passive"])?;
    site.exact_transfers()?;
    let made = || fs::read_to_string(&calls).unwrap_or_default();
    // libvirt names snapshots by the second.
    let snapshot = |name: &str| {
        let memory = format!("file={}/memory,snapshot=external", site.libvirt.path().display());
        site.libvirt.virsh(&["snapshot-create-as", DOMAIN, name, "--memspec", &memory])
    };
    snapshot("first")?;
    wait_until("the port was paused and resumed", PATIENCE, || {
        Ok(made().contains(&format!("resume {PORT} 0")))
    })
    .with_context(|| format!("{}\n{}", made(), site.libvirt.log()))?;
    let paused = made().lines().position(|call| call.starts_with(&format!("pause {PORT} ")));
    ensure!(paused.is_some(), "never paused: {}", made());
    ensure!(is_active(&site.port()?), "{}", site.port()?);
    site.exact_transfers()?;

    // What an operator has paused is not the hook's to resume.
    vsnoop.pause(PORT)?;
    fs::remove_file(&calls)?;
    fs::remove_file(site.libvirt.path().join("memory"))?;
    snapshot("second")?;
    wait_until("the hook has looked at the port", PATIENCE, || {
        Ok(made().contains(&format!("status {PORT} 0")))
    })?;
    site.libvirt.virsh(&["destroy", DOMAIN])?;
    let follower = site.libvirt.path().join("run/vsnoop/libvirt").join(DOMAIN);
    wait_until("its follower has ended", PATIENCE, || Ok(!follower.exists()))?;
    ensure!(!made().contains("pause") && !made().contains("resume"), "{}", made());
    Ok(())
}
