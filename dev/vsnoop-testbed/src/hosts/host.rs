//! One host, and its link: `vsnoop link up --foreground`.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::net::{Netns, check};
use crate::relay::{Freeze, Relay};
use crate::{wait, workspace};

/// The longest wait for a link to start, or for its status to change.
const PATIENCE: Duration = Duration::from_secs(120);
/// A busy link may refuse to say how it is, or say it late: how often it is asked, and the pause.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(200);
/// The time after SIGTERM until a link is killed.
const END_PATIENCE: Duration = Duration::from_secs(60);

/// A host with its VMs. Relays are declared first, to end before their namespaces.
#[derive(Debug)]
pub struct Host {
    number: usize,
    name: String,
    /// Devices of the VMs behind taps.
    pub(super) relays: Vec<Relay>,
    pub netns: Arc<Netns>,
    pub vms: Vec<Arc<Netns>>,
    pub(super) config: PathBuf,
    pub link: Option<Child>,
    /// Where the link's log goes from its next start on; else to a file.
    pub stderr: Option<OwnedFd>,
}

/// Starts all links, and waits until each has all its peers.
pub fn start_all(hosts: &mut [Host]) -> Result<()> {
    for host in &mut *hosts {
        host.start()?;
    }
    hosts.iter().try_for_each(Host::until_all_up)
}

impl Host {
    /// Makes a host whose link is called `name`, and not configured yet.
    pub(super) fn new(
        number: usize,
        name: String,
        netns: Arc<Netns>,
        vms: Vec<Arc<Netns>>,
        config: PathBuf,
    ) -> Self {
        Self { number, name, relays: Vec::new(), netns, vms, config, link: None, stderr: None }
    }

    /// Makes the VMs behind taps share their core, or not.
    pub fn set_freeze(&self, freeze: Freeze) {
        self.relays.iter().for_each(|relay| relay.set_freeze(freeze));
    }

    /// Sets the link's configuration, which it reads at its next start.
    pub fn configure(&self, text: &str) -> Result<()> {
        fs::write(&self.config, text).with_context(|| format!("writing {}", self.config.display()))
    }

    pub fn start(&mut self) -> Result<()> {
        let log = fs::File::create(self.log()).context("making a log")?;
        let stderr = match &self.stderr {
            Some(other) => other.try_clone(),
            None => log.try_clone().map(OwnedFd::from),
        };
        let child = self
            .netns
            .command(workspace::vsnoop_command()?)
            .args(["link", "up", "--foreground"])
            .arg(&self.config)
            .env("RUST_LOG", "info")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(stderr.context("sharing a log")?)
            .spawn()
            .context("starting a link")?;
        self.link = Some(child);
        let since = Instant::now();
        while let Err(error) = status(&self.netns, &self.name) {
            let ended = self.link.as_mut().map(Child::try_wait).transpose();
            let ended = ended.context("asking whether a link has ended")?.flatten();
            if ended.is_some() || since.elapsed() > PATIENCE {
                let words = self.words();
                bail!("link {} is not up: ended {ended:?}; {error:#}; {words}", self.name);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Kills the link, which sends no close message then.
    pub fn kill(&mut self) {
        if let Some(mut link) = self.link.take() {
            // It may have ended already.
            let _ = link.kill();
            let _ = link.wait();
        }
    }

    pub(super) fn tell_to_end(&self) {
        if let Some(link) = &self.link {
            // The link may have ended; its id is not used again before we wait for it.
            let _ = kill(Pid::from_raw(link.id() as i32), Signal::SIGTERM);
        }
    }

    /// Ends the link as an operator does, so that nothing is left; kills it if it does not end.
    pub fn end(&mut self) {
        self.tell_to_end();
        let since = Instant::now();
        while let Some(link) = &mut self.link
            && matches!(link.try_wait(), Ok(None))
            && since.elapsed() < END_PATIENCE
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill();
    }

    fn log(&self) -> PathBuf {
        self.config.with_extension("log")
    }

    /// The log of the link.
    pub fn words(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// `vsnoop link ...` here.
    pub fn command(&self, arguments: &[&str]) -> Result<String> {
        command(&self.netns, arguments)
    }

    pub fn number(&self) -> usize {
        self.number
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The link's part of `vsnoop link status --json`.
    pub fn status(&self) -> Result<Value> {
        for _ in 1..ATTEMPTS {
            if let Ok(status) = status(&self.netns, &self.name) {
                return Ok(status);
            }
            std::thread::sleep(PAUSE);
        }
        status(&self.netns, &self.name)
    }

    /// A number in `/proc/PID/status` of the link, such as `VmRSS` (KiB) or `Threads`.
    pub fn in_proc_status(&self, key: &str) -> Result<u64> {
        let pid = self.link.as_ref().context("no link runs")?.id();
        let text = fs::read_to_string(format!("/proc/{pid}/status"))
            .context("asking how a link's process is")?;
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.with_context(|| format!("no {key} in the status of process {pid}"))
    }

    /// Files and sockets that the link has open.
    pub fn descriptors(&self) -> Result<u64> {
        let pid = self.link.as_ref().context("no link runs")?.id();
        let files = fs::read_dir(format!("/proc/{pid}/fd"));
        Ok(files.context("listing what a link has open")?.count() as u64)
    }

    pub fn peer(&self, name: &str) -> Result<Value> {
        let status = self.status()?;
        let peers = status["peers"].as_array().context("no peers in the status")?;
        peers.iter().find(|peer| peer["name"] == name).cloned().context("no such peer")
    }

    pub fn until_all_up(&self) -> Result<()> {
        self.until("all peers are up", all_up)
    }

    /// Waits until the status is as wanted.
    pub fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<()> {
        let since = Instant::now();
        loop {
            let shown = match status(&self.netns, &self.name) {
                Ok(status) if wanted(&status) => return Ok(()),
                Ok(status) => status["peers"].to_string(),
                // A busy link answers the next time.
                Err(error) => format!("{error:#}"),
            };
            ensure!(
                since.elapsed() < PATIENCE,
                "{what}: not at {} after {PATIENCE:?}: {shown}\n{}",
                self.name,
                self.words()
            );
            wait::sleep_between_looks(since.elapsed());
        }
    }
}

/// `vsnoop link ...` in this namespace.
fn command(netns: &Netns, arguments: &[&str]) -> Result<String> {
    check(netns.command(workspace::vsnoop_command()?).arg("link").args(arguments))
}

/// The part of a link in `vsnoop link status --json`.
pub fn status(netns: &Netns, name: &str) -> Result<Value> {
    let text = command(netns, &["status", name, "--json"])?;
    let mut all: Value = serde_json::from_str(&text).context("the status is no JSON")?;
    let link = all["links"].get_mut(0).map(Value::take);
    link.with_context(|| format!("no link in {text}"))
}

/// Whether a link that has this status reaches all its peers.
pub fn all_up(status: &Value) -> bool {
    let peers = status["peers"].as_array();
    peers.is_some_and(|peers| peers.iter().all(|peer| peer["state"] == "up"))
}

/// Writes into a pipe until it takes no more. Writers that wait go on to do so.
pub fn fill_pipe(writer: &OwnedFd) -> Result<()> {
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let mut own = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .context("opening a pipe anew")?;
    // A page at a time, then what remains of the last one.
    for length in [4096, 1] {
        loop {
            match own.write(&vec![b'.'; length]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("filling a pipe"),
            }
        }
    }
    Ok(())
}

/// The file of a link's control socket, to see that it is gone.
pub fn socket(name: &str) -> PathBuf {
    Path::new("/run/vsnoop/link").join(format!("{name}.sock"))
}
