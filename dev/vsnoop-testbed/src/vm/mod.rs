//! Virtual machines: QEMU processes with a tap, a console, a control channel and QMP.
//!
//! A [`Vm`] is killed when it is dropped. It also dies with the thread that started it (a
//! parent-death signal), so that even `kill -9` of the lab leaves no QEMU behind: start VMs on a
//! thread that outlives them.

mod accel;
mod control;
mod hogs;
mod migration;
mod probe;
mod qmp;
pub mod quota;
mod sched;
mod share;
mod slices;
mod snapshot;
mod turns;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use vsnoop_guest::control::{
    ADDRESS_PARAMETER, Command as GuestCommand, DISK_PARAMETER, Reply, Stats,
};

pub use accel::Accelerator;
pub use hogs::Hogs;
pub use migration::{Migration, Movable, leave_shared_memory, movable_memory};
pub use probe::choose as choose_accelerator;
pub use qmp::Qmp;
pub use sched::{GUEST_CORE, HOST_CORE, OnHostCore, as_a_guest, pin_self, require_two_cores};
pub use share::Share;
pub use slices::Slices;
pub use turns::{Begin, SLICE};

use quota::Quota;

use crate::guest::{Image, KERNEL_COMMAND_LINE};
use crate::interrupt;
use crate::net::Netns;

const QEMU: &str = "qemu-system-x86_64";
const READY: &str = "vsnoop-guest: ready";
const SCRIPT_POLL: Duration = Duration::from_millis(20);
/// A QMP monitor in the directory of a machine, for a service that follows it.
pub const FOLLOWED: &str = "followed.qmp";

/// Fails, with the name of the package, if QEMU is not installed.
pub fn require_qemu() -> Result<()> {
    let started = Command::new(QEMU).arg("--version").stdout(Stdio::null()).status();
    if !started.is_ok_and(|status| status.success()) {
        bail!("{QEMU} cannot be started: install the package qemu-system-x86");
    }
    Ok(())
}

/// A network interface of a machine.
#[derive(Clone, Debug)]
pub struct Nic<'a> {
    /// Holds the tap; QEMU runs inside it.
    pub netns: &'a Netns,
    pub tap: String,
    pub mac: String,
    /// `ADDRESS/PREFIX`.
    pub address: String,
    /// Frames that the device's receive queue holds, instead of QEMU's 256.
    pub rx_queue_size: Option<u16>,
}

/// A running virtual machine.
#[derive(Debug)]
pub struct Vm {
    name: String,
    child: Child,
    dir: PathBuf,
    /// Locked for a command and its answer.
    control: Mutex<Option<control::Channel>>,
    /// Read at the first use.
    vcpus: OnceLock<Vec<Pid>>,
    /// The vCPUs' control group, removed after the process, whose threads are in it.
    quota: Mutex<Option<Quota>>,
}

impl Vm {
    /// Starts QEMU, in the namespace of its first network; [`Vm::wait_ready`] then waits for the
    /// guest. Files go to `dir`.
    pub fn start(
        name: &str,
        image: &Image,
        accelerator: Accelerator,
        nics: &[Nic],
        dir: &Path,
    ) -> Result<Self> {
        Self::launch(name, image, accelerator, nics, dir, &[])
    }

    /// Starts QEMU with further arguments.
    fn launch(
        name: &str,
        image: &Image,
        accelerator: Accelerator,
        nics: &[Nic],
        dir: &Path,
        more: &[String],
    ) -> Result<Self> {
        // Deletes the output of an earlier machine of this name.
        if dir.exists() {
            fs::remove_dir_all(dir).with_context(|| format!("empty {}", dir.display()))?;
        }
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        let mut command = Self::qemu(name, image, accelerator, nics, dir);
        let errors = fs::File::create(dir.join("qemu")).context("create QEMU's log")?;
        command
            .args(more)
            .stdin(Stdio::null())
            .stdout(errors.try_clone().context("share QEMU's log")?)
            .stderr(errors);
        // SAFETY: prctl and setsid are plain system calls, allowed between fork and exec.
        unsafe {
            command.pre_exec(|| {
                nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
                // Ctrl-C on the terminal is for the lab, which ends its machines itself.
                nix::unistd::setsid()?;
                Ok(())
            });
        }
        let child = command
            .spawn()
            .with_context(|| format!("start {QEMU}: is the package qemu-system-x86 installed?"))?;
        let (control, vcpus, quota) = (Mutex::new(None), OnceLock::new(), Mutex::new(None));
        Ok(Self { name: name.to_owned(), child, dir: dir.to_owned(), control, vcpus, quota })
    }

    /// QEMU with the machine's devices.
    fn qemu(
        name: &str,
        image: &Image,
        accelerator: Accelerator,
        nics: &[Nic],
        dir: &Path,
    ) -> Command {
        let mut append = String::from(KERNEL_COMMAND_LINE);
        let mut command = match nics.first() {
            Some(network) => network.netns.command(QEMU),
            None => Command::new(QEMU),
        };
        command
            .args(["-name", &format!("{name},debug-threads=on")])
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
            .args(["-machine", "pc", "-smp", "1", "-m", &image.memory_mb.to_string()])
            .args(accelerator.arguments())
            .arg("-kernel")
            .arg(&image.kernel)
            .arg("-initrd")
            .arg(&image.initramfs)
            .args(["-serial", &format!("file:{}", dir.join("console").display())])
            .args(["-chardev", &unix_socket("control", &dir.join("control"))])
            .args(["-serial", "chardev:control"])
            .args(["-chardev", &unix_socket("qmp", &dir.join("qmp"))])
            .args(["-mon", "chardev=qmp,mode=control"])
            .args(["-chardev", &unix_socket("followed", &dir.join(FOLLOWED))])
            .args(["-mon", "chardev=followed,mode=control"]);
        if let Some(disk) = &image.disk {
            let drive = format!("file={},format=raw,if=none,id=root,readonly=on", disk.display());
            command.args(["-drive", &drive, "-device", "virtio-blk-pci,drive=root"]);
            append += &format!(" {DISK_PARAMETER}");
        }
        for (number, network) in nics.iter().enumerate() {
            let (tap, mac) = (&network.tap, &network.mac);
            let netdev = format!("tap,id=net{number},ifname={tap},script=no,downscript=no");
            let mut device = format!("virtio-net-pci,netdev=net{number},mac={mac},romfile=");
            if let Some(frames) = network.rx_queue_size {
                device += &format!(",rx_queue_size={frames}");
            }
            command.args(["-netdev", &netdev, "-device", &device]);
        }
        if !nics.is_empty() {
            let addresses: Vec<_> = nics.iter().map(|network| &*network.address).collect();
            append += &format!(" {ADDRESS_PARAMETER}={}", addresses.join(","));
        }
        command.args(["-append", &append]);
        command
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Waits until the guest serves transfers and commands.
    pub fn wait_ready(&mut self, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        let console = self.dir.join("console");
        loop {
            interrupt::check()?;
            let text = fs::read(&console).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            if text.contains(READY) {
                break;
            }
            if let Some(status) = self.child.try_wait().context("look after QEMU")? {
                bail!("{} ended while it booted ({status}): {}", self.name, self.last_words(&text));
            }
            if Instant::now() > deadline {
                bail!(
                    "{} did not boot within {} s: {}",
                    self.name,
                    timeout.as_secs(),
                    self.last_words(&text)
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let channel = control::Channel::connect(&self.dir.join("control"))?;
        *self.control() = Some(channel);
        self.command(&GuestCommand::Ping).map(drop)
    }

    fn last_words(&self, console: &str) -> String {
        let qemu = fs::read_to_string(self.dir.join("qemu")).unwrap_or_default();
        let lines: Vec<_> = console.lines().chain(qemu.lines()).filter(|l| !l.is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(5)..];
        if last.is_empty() { "it printed nothing".into() } else { last.join(" | ") }
    }

    /// Sends a command to the guest and returns its answer.
    pub fn command(&self, command: &GuestCommand) -> Result<Reply> {
        let name = &self.name;
        let mut control = self.control();
        let control = control.as_mut().with_context(|| format!("{name} is not ready"))?;
        match control.ask(command).with_context(|| format!("command to {name}"))? {
            Reply::Failed { message } => bail!("{name} could not do {command:?}: {message}"),
            reply => Ok(reply),
        }
    }

    fn control(&self) -> MutexGuard<'_, Option<control::Channel>> {
        // A panic elsewhere leaves at worst an answer unread, which the next command reports.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a shell script in the guest, whose image has tools, until it ends; returns its output.
    pub fn script(&self, script: &str) -> Result<String> {
        let name = "script".to_owned();
        self.command(&GuestCommand::Start { name: name.clone(), script: script.to_owned() })?;
        loop {
            interrupt::check()?;
            match self.command(&GuestCommand::Ended { name: name.clone() })? {
                Reply::Ended { status: Some(0), output } => return Ok(output),
                Reply::Ended { status: None, .. } => std::thread::sleep(SCRIPT_POLL),
                other => bail!("a script in {}: {other:?}", self.name),
            }
        }
    }

    /// Stops the vCPUs, as a host does that pauses a machine; QEMU goes on.
    pub fn pause(&self) -> Result<()> {
        self.tell_qemu("stop", &json!({}))
    }

    pub fn go_on(&self) -> Result<()> {
        self.tell_qemu("cont", &json!({}))
    }

    /// Plugs the cable of a network interface in or pulls it.
    pub fn set_link(&self, nic: usize, up: bool) -> Result<()> {
        self.tell_qemu("set_link", &json!({ "name": format!("net{nic}"), "up": up }))
    }

    fn tell_qemu(&self, command: &str, arguments: &Value) -> Result<()> {
        self.qmp()?.execute(command, arguments).with_context(|| self.name.clone()).map(drop)
    }

    pub fn stats(&self) -> Result<Stats> {
        match self.command(&GuestCommand::Stats)? {
            Reply::Stats(stats) => Ok(stats),
            other => bail!("{} answered {other:?} to a question for its counts", self.name),
        }
    }

    /// Stops the whole process, like a host without CPU time for this VM; the tap's ring fills.
    pub fn freeze(&self) -> Result<()> {
        kill(self.pid(), Signal::SIGSTOP).with_context(|| format!("freeze {}", self.name))
    }

    pub fn thaw(&self) -> Result<()> {
        kill(self.pid(), Signal::SIGCONT).with_context(|| format!("thaw {}", self.name))
    }

    /// Gives the vCPUs the guests' core, where no ordinary thread runs before them, and QEMU's
    /// other threads the host's.
    pub fn own_core(&self) -> Result<()> {
        let vcpus = self.vcpu_threads()?;
        sched::alone(self.pid(), &vcpus).with_context(|| format!("place {}", self.name))
    }

    /// Puts the vCPUs on the guests' core, under the host's ordinary scheduler, and QEMU's other
    /// threads on the host's.
    pub fn place(&self) -> Result<()> {
        let vcpus = self.vcpu_threads()?;
        sched::place(self.pid(), &vcpus).with_context(|| format!("place {}", self.name))
    }

    /// Puts QEMU's other threads on the vCPUs' core, where they run before the vCPUs; with `false`
    /// on the host's again.
    pub fn beside_vcpus(&self, beside: bool) -> Result<()> {
        let vcpus = self.vcpu_threads()?;
        let place = if beside { sched::beside } else { sched::place };
        place(self.pid(), &vcpus).with_context(|| format!("place {}", self.name))
    }

    /// Puts the vCPUs on the guests' core, limited to `percent` of its time, and QEMU's other
    /// threads on the host's core.
    pub fn limit(&self, percent: u32) -> Result<()> {
        let vcpus = self.vcpu_threads()?;
        sched::place(self.pid(), &vcpus).with_context(|| format!("place {}", self.name))?;
        let mut quota = self.quota.lock().unwrap_or_else(PoisonError::into_inner);
        // Stored before it is used: the group is removed after the process, which may be in it.
        quota.insert(Quota::new(self.pid(), percent)?).limit(&vcpus)
    }

    /// How long the vCPUs have waited because their quota was used up; `None` without a quota.
    pub fn throttled(&self) -> Result<Option<Duration>> {
        let quota = self.quota.lock().unwrap_or_else(PoisonError::into_inner);
        quota.as_ref().map(Quota::throttled).transpose()
    }

    /// Asks QEMU once.
    pub fn vcpu_threads(&self) -> Result<Vec<Pid>> {
        if let Some(vcpus) = self.vcpus.get() {
            return Ok(vcpus.clone());
        }
        let vcpus = self
            .qmp()
            .and_then(|mut qmp| qmp.vcpu_threads())
            .with_context(|| format!("ask {} for its vCPU threads", self.name))?;
        Ok(self.vcpus.get_or_init(|| vcpus).clone())
    }

    fn qmp(&self) -> Result<Qmp> {
        Qmp::connect(&self.dir.join("qmp"))
    }

    /// CPU time that the vCPUs have used.
    pub fn vcpu_time(&self) -> Result<Duration> {
        self.vcpu_threads()?.into_iter().map(sched::cpu_time).sum()
    }

    /// CPU time that the vCPUs have waited for while others ran.
    pub fn queued_time(&self) -> Result<Duration> {
        self.vcpu_threads()?.into_iter().map(sched::queued_time).sum()
    }

    /// Gives the vCPUs a priority over all ordinary threads of the core, or none; those with a
    /// quota run without it, or with it again.
    pub fn favour(&self, favoured: bool) -> Result<()> {
        let quota = self.quota.lock().unwrap_or_else(PoisonError::into_inner);
        match &*quota {
            Some(quota) => quota.lift(favoured),
            None => sched::favour(&self.vcpu_threads()?, favoured),
        }
        .with_context(|| format!("favour {}: {favoured}", self.name))
    }

    fn end(&mut self) {
        // It may have ended already, and waiting for a child that was waited for is an error too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.end();
    }
}

fn unix_socket(id: &str, path: &Path) -> String {
    format!("socket,id={id},path={},server=on,wait=off", path.display())
}
