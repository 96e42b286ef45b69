//! A guest that is a process: User Mode Linux, a whole Linux on a tap, which boots in two seconds
//! and is as fast as a process.
//!
//! It has no vCPU that the host could tell from other threads. All its processes are in a PID
//! namespace of their own and end with it: it traces most of them, and they would run on without
//! their tracer.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use vsnoop_guest::control::ADDRESS_PARAMETER;

use crate::contained::last_lines;
use crate::guest::UserModeImage;
use crate::interrupt;
use crate::net::Netns;

const READY: &str = "vsnoop-guest: ready";
const POLL: Duration = Duration::from_millis(20);
const MEMORY_MB: u32 = 160;

/// How the guest's network device moves frames.
#[derive(Clone, Copy, Debug)]
pub enum Device {
    /// Super-packets, as a machine of QEMU has them.
    Vector,
    /// A system call for each MTU-sized frame; it loses what comes while it has no buffer.
    Single,
}

/// A running guest; it is killed when this is dropped, and dies with the thread that started it.
#[derive(Debug)]
pub struct UserModeGuest(Child);

impl UserModeGuest {
    /// Boots a guest behind a persistent tap of this namespace, and waits until it serves
    /// transfers. `address`: `ADDRESS/PREFIX`. Files go to `dir`.
    pub fn start(
        image: &UserModeImage,
        netns: &Netns,
        (tap, device): (&str, Device),
        address: &str,
        dir: &Path,
        timeout: Duration,
    ) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        let console = dir.join("console");
        let output = fs::File::create(&console).context("create the guest's console")?;
        let mut command = netns.command("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--"]);
        command
            .arg(&image.kernel)
            .arg(format!("mem={MEMORY_MB}M"))
            .arg(format!("initrd={}", image.initramfs.display()))
            .arg(format!("uml_dir={}/", dir.display()))
            .arg(match device {
                Device::Vector => format!("vec0:transport=tap,ifname={tap},depth=128,gro=1"),
                Device::Single => format!("eth0=tuntap,{tap}"),
            })
            .arg(match device {
                Device::Vector => format!("{ADDRESS_PARAMETER}=vec0:{address}"),
                Device::Single => format!("{ADDRESS_PARAMETER}={address}"),
            })
            // Without a terminal; the control channel's port is there and carries nothing.
            .args(["con0=null,fd:1", "con=null", "ssl=null", "quiet", "panic=-1"])
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("share the guest's console")?)
            .stderr(output);
        // SAFETY: prctl and setsid are plain system calls, allowed between fork and exec.
        unsafe {
            command.pre_exec(|| {
                nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
                // Ctrl-C on the terminal is for the program that started it.
                nix::unistd::setsid()?;
                Ok(())
            });
        }
        let child = command.spawn().context("start unshare: is util-linux installed?")?;
        let mut guest = Self(child);
        guest.wait_ready(&console, timeout)?;
        Ok(guest)
    }

    fn wait_ready(&mut self, console: &Path, timeout: Duration) -> Result<()> {
        let since = Instant::now();
        loop {
            interrupt::check()?;
            let text = fs::read(console).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            if text.contains(READY) {
                return Ok(());
            }
            if let Some(status) = self.0.try_wait().context("look after User Mode Linux")? {
                bail!("User Mode Linux ended ({status}): {}", last_lines(&text));
            }
            if since.elapsed() > timeout {
                bail!("User Mode Linux did not boot in {timeout:?}: {}", last_lines(&text));
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for UserModeGuest {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
