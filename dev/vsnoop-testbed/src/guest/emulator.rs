//! A QEMU process that emulates a machine and shows its console.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::Signal;

use super::KERNEL_COMMAND_LINE;

const QEMU: &str = "qemu-system-x86_64";
const CPUS: &str = "2";
/// One thread for both CPUs: a kernel patches its own code, while it boots and whenever one of its
/// branches is switched, and with a thread for each CPU the other may still run the old code, of
/// which the kernel dies. It takes no more of the host's time.
const ACCELERATOR: &str = "tcg,thread=single";
/// A machine that gets no CPU for some seconds warns of that, in the middle of a line that a
/// program writes to the same console. A kernel that panics still says so.
const QUIET: &str = "loglevel=1 nosoftlockup rcupdate.rcu_cpu_stall_suppress=1";
const LOOK_EVERY: Duration = Duration::from_millis(50);
const READ_BYTES: usize = 4096;

/// A machine without network and, unless `options` say so, without a disk.
pub struct Emulator<'a> {
    pub kernel: &'a Path,
    pub initramfs: &'a [u8],
    pub memory_mb: u32,
    /// More arguments of QEMU.
    pub options: &'a [String],
}

impl Emulator<'_> {
    /// Boots the machine and waits until it powers off; after `limit` it is killed. Returns its
    /// console, and QEMU's exit status if it ended by itself. `show` gets what it prints, as soon
    /// as it does.
    pub fn run(
        &self,
        limit: Duration,
        show: impl Fn(&str) + Send,
    ) -> Result<(String, Option<ExitStatus>)> {
        // In memory, so that nothing remains if this process is killed.
        let image = memfd_create(c"vsnoop-lab-initramfs", MFdFlags::MFD_CLOEXEC)
            .context("make a file for the initramfs")?;
        let mut image = File::from(image);
        image.write_all(self.initramfs).context("write the initramfs")?;
        let initramfs = format!("/proc/{}/fd/{}", std::process::id(), image.as_raw_fd());
        let mut process = Process(self.start(&initramfs)?);
        let mut output = process.0.stdout.take().context("QEMU's output was not kept")?;
        thread::scope(|scope| {
            let console = scope.spawn(move || read(&mut output, show));
            let status = process.wait(limit);
            // Dead, it has closed the console; otherwise the reader would never end.
            drop(process);
            let bytes =
                console.join().expect("reading does not panic").context("read the console")?;
            let console = String::from_utf8_lossy(&bytes).replace('\r', "");
            Ok((console, status?))
        })
    }

    fn start(&self, initramfs: &str) -> Result<Child> {
        let mut command = Command::new(QEMU);
        command
            .args(["-nodefaults", "-no-user-config", "-display", "none"])
            .args(["-machine", "pc", "-smp", CPUS, "-m", &self.memory_mb.to_string()])
            .args(["-accel", ACCELERATOR, "-cpu", "qemu64"])
            .arg("-kernel")
            .arg(self.kernel)
            .args(["-initrd", initramfs, "-append", &format!("{KERNEL_COMMAND_LINE} {QUIET}")])
            .args(["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"])
            .args(self.options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        // SAFETY: prctl is a plain system call, allowed between fork and exec.
        unsafe {
            command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?));
        }
        command
            .spawn()
            .with_context(|| format!("start {QEMU}: is the package qemu-system-x86 installed?"))
    }
}

fn read(output: &mut impl Read, show: impl Fn(&str)) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    let mut chunk = [0; READ_BYTES];
    loop {
        match output.read(&mut chunk)? {
            0 => return Ok(all),
            count => {
                show(&String::from_utf8_lossy(&chunk[..count]));
                all.extend_from_slice(&chunk[..count]);
            }
        }
    }
}

/// A process that dies with its owner, or with the thread that started it.
struct Process(Child);

impl Process {
    /// How it ended by itself.
    fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if let Some(status) = self.0.try_wait().context("look after QEMU")? {
                return Ok(Some(status));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(None)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already, and killing one that was waited for is an error too.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
