//! Guests at the ends: a machine that receives, and perhaps machines that send.

use std::time::Duration;

use anyhow::Result;
use vsnoop_guest::control::Command;
use vsnoop_testbed::fan_in::{
    FanIn, PORT, PREFIX_LENGTH, VM_ADDRESS, VM_MAC, sender_address, sender_mac,
};
use vsnoop_testbed::guest::{self, Image};
use vsnoop_testbed::net::mac_text;
use vsnoop_testbed::session::Session;
use vsnoop_testbed::vm::{self, Accelerator, Nic, OnHostCore, Vm};

const BOOT_TIMEOUT: Duration = Duration::from_secs(120);
/// A guest keeps its neighbour entries for the whole experiment: no ARP requests share the path
/// with the measured traffic.
const NEIGHBOURS_MS: &str = "86400000";

/// The image that guests boot.
pub struct Boot {
    pub image: Image,
    pub accelerator: Accelerator,
}

/// Running guests. The receiver's vCPU has a core for itself. Until this is dropped everything else
/// is on the other core, also the calling thread and what it starts.
pub struct Guests {
    pub receiver: Vm,
    pub senders: Vec<Vm>,
    _rest: OnHostCore,
}

impl Boot {
    pub fn prepare(session: &Session, image: Image) -> Result<Self> {
        let accelerator = vm::choose_accelerator(&image, &session.scratch())?;
        Ok(Self { image, accelerator })
    }

    fn start(&self, session: &mut Session, name: &str, network: Nic<'_>) -> Result<Vm> {
        let dir = session.scratch().join(name);
        session.claim_guest_core()?;
        let vm = Vm::start(name, &self.image, self.accelerator, &[network], &dir)?;
        session.note_process(vm.pid())?;
        Ok(vm)
    }
}

/// Checks that this machine can run guests, and makes their image before a session begins.
pub fn image() -> Result<Image> {
    vm::require_two_cores()?;
    vm::require_qemu()?;
    guest::prepare(guest::Options { dctcp: true, ..guest::Options::default() })
}

impl Guests {
    /// Boots the VM of a network that was built for one, and one sender for each of its places.
    pub fn boot(session: &mut Session, boot: &Boot, fan_in: &FanIn) -> Result<Self> {
        let network = |netns, tap: &str, mac, address| Nic {
            netns,
            tap: tap.to_owned(),
            mac: mac_text(mac),
            address: format!("{address}/{PREFIX_LENGTH}"),
            rx_queue_size: None,
        };
        let receiver = network(&fan_in.host, PORT, VM_MAC, VM_ADDRESS);
        let mut receiver = boot.start(session, "vslab-receiver", receiver)?;
        let mut senders = Vec::new();
        for (number, tap) in fan_in.switch.machine_ports().iter().enumerate() {
            let (mac, address) = (sender_mac(number), sender_address(number));
            let network = network(fan_in.switch.netns(), tap, mac, address);
            senders.push(boot.start(session, &format!("vslab-sender{number}"), network)?);
        }
        for vm in std::iter::once(&mut receiver).chain(&mut senders) {
            vm.wait_ready(BOOT_TIMEOUT)?;
            let mut settings = vec![
                ("net.ipv4.tcp_no_metrics_save", "1"),
                ("net.ipv4.neigh.eth0.base_reachable_time_ms", NEIGHBOURS_MS),
            ];
            if !fan_in.switch.machine_ports().is_empty() {
                settings.push(("net.ipv4.tcp_ecn", "1"));
            }
            for (key, value) in settings {
                vm.command(&Command::Sysctl { key: key.into(), value: value.into() })?;
            }
        }
        receiver.own_core()?;
        Ok(Self { receiver, senders, _rest: OnHostCore::enter()? })
    }
}
