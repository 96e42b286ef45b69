//! Live migration: QEMU's own, to another QEMU of this host.
//!
//! A target is started like the machine that moves, with the same devices, and waits for it
//! ([`Movable::start_target`]). While [`Vm::migrate`] runs, QEMU copies the guest's memory, copies
//! pages again that the guest has changed meanwhile, stops the guest, copies the rest, and lets the
//! guest run at the target. The downtime is the time between the events STOP of the source and
//! RESUME of the target: what no network can hide.
//!
//! Under TCG QEMU 7.2 loses writes of a vCPU that is preempted while it notes a page as changed: of
//! guests that were copied while they ran, on a busy machine, one in five died of a corrupt stack.
//! There both QEMUs have the same file as their memory, and copy only the state of devices
//! (`x-ignore-shared`). What a migration takes for memory is spent on a device whose memory no
//! guest touches ([`UNTOUCHED_BYTES`] at [`BANDWIDTH_BYTES`] a second).

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::qmp::Qmp;
use super::{Accelerator, Nic, Vm, control};
use crate::guest::Image;
use crate::interrupt;

/// The socket over which a target gets the guest, in its directory.
const SOCKET: &str = "incoming";
/// Copied while the guest runs: as long as 256 MiB of a guest at QEMU's default bandwidth.
const UNTOUCHED_BYTES: usize = 64 << 20;
const BANDWIDTH_BYTES: u64 = 32 << 20;
const START_TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// QEMU's report of a migration that has succeeded.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// When the guest stopped at the source, and ran at the target; since 1970.
    pub stopped: Duration,
    pub resumed: Duration,
    /// From the command to its end.
    pub total: Duration,
    pub transferred_bytes: u64,
}

impl Migration {
    pub fn downtime(&self) -> Duration {
        self.resumed.saturating_sub(self.stopped)
    }
}

/// A machine that can move: what each of its QEMUs is started with.
#[derive(Clone, Copy, Debug)]
pub struct Movable<'a> {
    pub name: &'a str,
    pub image: &'a Image,
    pub accelerator: Accelerator,
    pub nics: &'a [Nic<'a>],
    /// No other QEMU uses it.
    pub dir: &'a Path,
    /// A file that all of them may have in common.
    pub memory: &'a Path,
}

impl Movable<'_> {
    /// Boots the guest.
    pub fn start(&self) -> Result<Vm> {
        self.launch(&[])
    }

    /// Starts a QEMU that waits for a guest, and returns when it does. Image, networks and memory
    /// are those of the machine that is to come.
    pub fn start_target(&self) -> Result<Vm> {
        let socket = self.dir.join(SOCKET);
        let incoming = format!("unix:{}", socket.display());
        let mut vm = self.launch(&["-incoming".to_owned(), incoming])?;
        let deadline = Instant::now() + START_TIMEOUT;
        // The socket is made after all devices.
        while !socket.exists() {
            interrupt::check()?;
            if let Some(status) = vm.child.try_wait().context("look after QEMU")? {
                bail!("{} ended while it started ({status}): {}", self.name, vm.last_words(""));
            }
            ensure!(Instant::now() < deadline, "{} does not wait for a guest", self.name);
            std::thread::sleep(POLL);
        }
        Ok(vm)
    }

    fn launch(&self, more: &[String]) -> Result<Vm> {
        let Self { name, image, accelerator, nics, dir, memory } = *self;
        let arguments = [&movable_memory(image, accelerator, memory)?, more].concat();
        Vm::launch(name, image, accelerator, nics, dir, &arguments)
    }
}

impl Vm {
    /// Moves the guest into `target`, which obeys commands when this returns. The guest of this
    /// machine has stopped for good.
    pub fn migrate(&self, target: &mut Self, timeout: Duration) -> Result<Migration> {
        let (from, to) = (self.name(), target.name().to_owned());
        let moved = self.send_to(&target.dir, timeout);
        let migration = moved.with_context(|| format!("migrate {from} to {to}"))?;
        let channel = control::Channel::connect(&target.dir.join("control"))?;
        *target.control() = Some(channel);
        Ok(migration)
    }

    fn send_to(&self, target: &Path, timeout: Duration) -> Result<Migration> {
        let mut source = self.qmp()?;
        let mut receiver = Qmp::connect(&target.join("qmp"))?;
        for qemu in [&mut source, &mut receiver] {
            leave_shared_memory(qemu)?;
        }
        let bandwidth = json!({ "max-bandwidth": BANDWIDTH_BYTES });
        source.execute("migrate-set-parameters", &bandwidth)?;
        let begin = Instant::now();
        let uri = format!("unix:{}", target.join(SOCKET).display());
        source.execute("migrate", &json!({ "uri": uri }))?;
        let end = loop {
            interrupt::check()?;
            let info = source.execute("query-migrate", &json!({}))?;
            match info["status"].as_str() {
                Some("completed") => break info,
                Some("failed" | "cancelled") => bail!("QEMU gave up: {info}"),
                _ => ensure!(begin.elapsed() < timeout, "not over within {timeout:?}: {info}"),
            }
            std::thread::sleep(POLL);
        };
        let total = begin.elapsed();
        let stopped = source.wait_event("STOP", timeout)?;
        let resumed = receiver.wait_event("RESUME", timeout)?;
        let transferred_bytes = end["ram"]["transferred"].as_u64();
        let transferred_bytes = transferred_bytes.context("QEMU did not say what it copied")?;
        Ok(Migration { stopped, resumed, total, transferred_bytes })
    }
}

/// Has QEMU not copy memory that is a file of several QEMUs.
pub fn leave_shared_memory(qemu: &mut Qmp) -> Result<()> {
    let ignore_shared = json!({ "capability": "x-ignore-shared", "state": true });
    let capabilities = json!({ "capabilities": [ignore_shared] });
    qemu.execute("migrate-set-capabilities", &capabilities).map(drop)
}

/// Arguments for the memory of a machine that can move; `file` is that of all its QEMUs.
pub fn movable_memory(image: &Image, accelerator: Accelerator, file: &Path) -> Result<Vec<String>> {
    let untouched = untouched_memory(&file.with_extension("untouched"))?;
    Ok([&memory_arguments(image, accelerator, file), &untouched[..]].concat())
}

/// A device with memory that is copied: pages of zeros would not be.
fn untouched_memory(file: &Path) -> Result<[String; 4]> {
    if !file.exists() {
        if let Some(dir) = file.parent() {
            fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        let filled = vec![0x5a; UNTOUCHED_BYTES];
        fs::write(file, filled).with_context(|| format!("write {}", file.display()))?;
    }
    let file = file.display();
    let object = format!(
        "memory-backend-file,id=untouched,size={UNTOUCHED_BYTES},mem-path={file},share=off"
    );
    // libvirt gives other devices the first slots.
    let device = "ivshmem-plain,memdev=untouched,master=on,addr=0x10".to_owned();
    Ok(["-object".to_owned(), object, "-device".to_owned(), device])
}

/// Memory in a file that another QEMU can map, where it must not be copied.
fn memory_arguments(image: &Image, accelerator: Accelerator, file: &Path) -> Vec<String> {
    if accelerator == Accelerator::Kvm {
        return Vec::new();
    }
    let (size, path) = (image.memory_mb, file.display());
    let object = format!("memory-backend-file,id=ram,size={size}M,mem-path={path},share=on");
    ["-object", &object, "-machine", "memory-backend=ram"].map(String::from).to_vec()
}
