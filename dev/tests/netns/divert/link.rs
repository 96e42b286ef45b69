//! A link at its simplest: it reads the tap at one host and writes that at the other.
//!
//! It is a thread of the test, or a process of its own that the test may kill ([`Process`]): this
//! program, started again.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use ipnet::IpNet;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use vsnoop_divert::{Action, Diversion, Reentry, Rule, Sources, parse_destination, prepare_tap};
use vsnoop_netdev::tap::{self, Tap, TapOptions};
use vsnoop_packet::packet::Pool;
use vsnoop_testbed::hosts::Network;
use vsnoop_testbed::topology::{Family, PORT};
use vsnoop_testbed::wait::wait_until;

use super::hosts::LINK_TAP;

/// The environment variable that makes this program a link: its two ends.
const ENDS: &str = "VSNOOP_TEST_LINK";

/// Counters of the frames that a link carried from one host.
#[derive(Debug, Default)]
struct Carried {
    frames: AtomicU64,
    bytes: AtomicU64,
    largest: AtomicU64,
    refused: AtomicU64,
}

/// One end: its namespace, its VM's addresses, and its rules.
#[derive(Clone, Debug)]
struct LinkEnd {
    netns: String,
    own: Vec<IpNet>,
    rules: Vec<Rule>,
}

/// A running link; it ends when this is dropped.
pub struct Link {
    pub diversions: [Diversion; 2],
    carried: Arc<[Carried; 2]>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Rules that send all packets of one VM to the other through the link, if this is the action.
pub fn rules(hosts: &Network, to: usize, action: Action) -> Vec<Rule> {
    let whole = |address: IpAddr| Rule { prefix: address.into(), action };
    [Family::V4, Family::V6].map(|family| whole(hosts.vm_address(to, family))).to_vec()
}

fn ends(hosts: &Network, rules_of: impl Fn(usize) -> Vec<Rule>) -> [LinkEnd; 2] {
    [0, 1].map(|number| LinkEnd {
        netns: hosts.hosts[number].netns.name().to_owned(),
        own: [Family::V4, Family::V6]
            .map(|family| hosts.vm_address(number, family).into())
            .to_vec(),
        rules: rules_of(number),
    })
}

impl Link {
    /// Diverts all that the VMs send to each other.
    pub fn start(hosts: &Network) -> Result<Self> {
        Self::with(hosts, |number| rules(hosts, 1 - number, Action::DivertOrPass))
    }

    /// Diverts by these rules of each host.
    pub fn with(hosts: &Network, rules_of: impl Fn(usize) -> Vec<Rule>) -> Result<Self> {
        Self::between(&ends(hosts, rules_of))
    }

    fn between(ends: &[LinkEnd; 2]) -> Result<Self> {
        let [(left, left_reentry, left_diversion), (right, right_reentry, right_diversion)] =
            [open(&ends[0])?, open(&ends[1])?];
        let (carried, stop) = (Arc::<[Carried; 2]>::default(), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::Builder::new().name("link".into()).spawn({
            let (carried, stop) = (carried.clone(), stop.clone());
            move || {
                let (taps, reentries) = ([left, right], [left_reentry, right_reentry]);
                // A tap that was deleted under us is the end of the link, not a fault of the
                // test's.
                if let Err(error) = carry(&taps, &reentries, &carried, &stop) {
                    eprintln!("the link has ended: {error:#}");
                    // Its taps stay open, as those of a process that does not look.
                    while !stop.load(Ordering::Relaxed) {
                        std::thread::sleep(std::time::Duration::from_millis(10));
                    }
                }
            }
        })?;
        let diversions = [left_diversion, right_diversion];
        let link = Self { diversions, carried, stop, thread: Some(thread) };
        link.set_up(true)?;
        Ok(link)
    }

    pub fn set_up(&self, is_up: bool) -> Result<()> {
        self.diversions.iter().try_for_each(|diversion| Ok(diversion.set_up(is_up)?))
    }

    /// Bytes of frames from both hosts.
    pub fn bytes(&self) -> u64 {
        self.carried.iter().map(|carried| carried.bytes.load(Ordering::Relaxed)).sum()
    }

    /// Frames from each host.
    pub fn frames(&self) -> [u64; 2] {
        [0, 1].map(|number| self.carried[number].frames.load(Ordering::Relaxed))
    }

    /// Frames that must not come out.
    pub fn refused(&self) -> u64 {
        self.carried.iter().map(|carried| carried.refused.load(Ordering::Relaxed)).sum()
    }

    /// Bytes of the largest frame.
    pub fn largest(&self) -> u64 {
        let sizes = self.carried.iter().map(|carried| carried.largest.load(Ordering::Relaxed));
        sizes.max().unwrap_or(0)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn open(end: &LinkEnd) -> Result<(Tap, Reentry, Diversion)> {
    inside(&end.netns, || {
        let tap = open_tap()?;
        let ready = prepare_tap(LINK_TAP, 1500, &end.own)?;
        let port = nix::net::if_::if_nametoindex(PORT).context("find the VM's tap")?;
        let diversion = Diversion::attach(port, ready.ifindex, &end.rules, Sources::default())?;
        Ok((tap, Reentry::new(ready.mac, end.own.clone()), diversion))
    })
    .with_context(|| format!("one end of a link, in {}", end.netns))
}

/// A program that another test has forked keeps the tap of an earlier link until its exec.
fn open_tap() -> Result<Tap> {
    let mut opened = None;
    wait_until(
        "the tap of the earlier link is free",
        Duration::from_secs(10),
        || match Tap::open(LINK_TAP, &TapOptions::default()) {
            Err(tap::Error::Make { source: Errno::EBUSY, .. }) => Ok(false),
            other => {
                opened = Some(other?);
                Ok(true)
            }
        },
    )?;
    opened.context("no tap")
}

/// On a thread inside this namespace.
pub fn inside<T: Send>(netns: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let handle = File::open(Path::new("/run/netns").join(netns))
        .with_context(|| format!("open network namespace {netns}"))?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            setns(handle.as_fd(), CloneFlags::CLONE_NEWNET).context("enter it")?;
            work()
        });
        thread.join().map_err(|_| anyhow!("a thread panicked"))?
    })
}

fn carry(
    taps: &[Tap; 2],
    reentries: &[Reentry; 2],
    carried: &[Carried; 2],
    stop: &AtomicBool,
) -> Result<()> {
    let mut packet = Pool::default().take();
    while !stop.load(Ordering::Relaxed) {
        let mut waits = taps.each_ref().map(|tap| PollFd::new(tap.as_fd(), PollFlags::POLLIN));
        poll(&mut waits, PollTimeout::from(10u8)).context("poll")?;
        for (from, to) in [(0, 1), (1, 0)] {
            while taps[from].read(&mut packet).context("read")? {
                if parse_destination(packet.frame()).is_none() {
                    continue;
                }
                let counters = &carried[from];
                if !reentries[to].admit_frame(packet.frame_mut()) {
                    counters.refused.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let bytes = packet.frame().len() as u64;
                counters.frames.fetch_add(1, Ordering::Relaxed);
                counters.bytes.fetch_add(bytes, Ordering::Relaxed);
                counters.largest.fetch_max(bytes, Ordering::Relaxed);
                taps[to].write(&packet).context("write")?;
            }
        }
    }
    Ok(())
}

/// A link that is a process.
pub struct Process(Child);

impl Process {
    /// Diverts all that the VMs send to each other.
    pub fn start(hosts: &Network) -> Result<Self> {
        let ends = ends(hosts, |_| Vec::new());
        let text = ends.map(|end| {
            let own = end.own.iter().map(ToString::to_string);
            std::iter::once(end.netns.clone()).chain(own).collect::<Vec<_>>().join(",")
        });
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command.env(ENDS, text.join(";")).stdin(Stdio::null()).stdout(Stdio::piped());
        // SAFETY: a plain system call, which may stand between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // The link does not outlive this program, even if that is killed.
                match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let mut child = command.spawn().context("start a link")?;
        let output = child.stdout.take().context("its output")?;
        let this = Self(child);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).context("wait for it")?;
        ensure!(line == "ready\n", "the link does not start, and says {line:?}");
        Ok(this)
    }

    /// Kills the link with SIGKILL.
    pub fn kill(mut self) -> Result<()> {
        self.0.kill().context("kill the link")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the link if this program was started as one; then it never returns.
pub fn serve() -> Result<()> {
    let Some(text) = std::env::var_os(ENDS) else { return Ok(()) };
    let text = text.into_string().map_err(|text| anyhow!("{ENDS}: {}", text.display()))?;
    let mut ends = text.split(';').map(|end| {
        let mut words = end.split(',');
        let netns = words.next().unwrap_or_default().to_owned();
        let own = words.map(str::parse).collect::<Result<Vec<IpNet>, _>>()?;
        anyhow::Ok(LinkEnd { netns, own, rules: Vec::new() })
    });
    let mut end = || ends.next().with_context(|| format!("{ENDS}: {text}"))?;
    let mut ends: [LinkEnd; 2] = [end()?, end()?];
    for (from, to) in [(0, 1), (1, 0)] {
        let action = Action::DivertOrPass;
        ends[from].rules =
            ends[to].own.iter().map(|prefix| Rule { prefix: *prefix, action }).collect();
    }
    let _link = Link::between(&ends)?;
    println!("ready");
    loop {
        std::thread::park();
    }
}
