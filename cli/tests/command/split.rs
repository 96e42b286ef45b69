//! A download that is split while something happens: each byte arrives, or both ends are reset.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use vsnoop_bpf::Port;
use vsnoop_bpf::split::SplitPort;
use vsnoop_testbed::topology::{self, CLIENT_DEVICE};

use crate::helper::{AttachedNetwork, Pair};
use crate::sandbox::{pid_of, running, vsnoop, vsnoop_in, wait_until};

/// Bytes before and after what happens.
const SOME: u64 = 2 << 20;
/// A VM that sends without a pause may send more at each moment at which its connection could be
/// split. One that is late does not.
const TRIED: u64 = 8 << 20;
const MOST_TRIES: usize = 50;
/// The VM counts as late for the whole test.
const FOR_EVER_NS: u64 = u64::MAX / 2;

pub fn trials() -> Vec<Trial> {
    trials![
        a_download_that_is_split_is_exact,
        a_split_download_is_shown_once_with_how_it_is_sent,
        a_split_download_survives_what_an_operator_does,
        a_split_download_is_exact_or_reset_at_both_ends_when_all_is_taken_off,
        a_split_download_is_exact_or_reset_at_both_ends_when_the_splitter_is_killed,
        a_rst_of_an_end_of_a_split_download_reaches_the_other_and_is_not_counted,
        a_split_download_whose_end_answers_no_more_is_reset_and_counted_as_silent,
    ]
}

/// How a transfer has ended at one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Complete,
    Reset,
}

/// An end of a connection.
#[derive(Clone, Copy, Debug)]
enum Of {
    Vm,
    Peer,
}

/// A stream that the VM sends until it is told to stop, and that the client reads and compares.
pub struct Download {
    /// The sockets that send and receive, to reset one.
    ends: Pair,
    is_enough: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    server: JoinHandle<Result<(End, u64)>>,
    client: JoinHandle<Result<End>>,
}

impl Download {
    fn start(network: &AttachedNetwork) -> Result<Self> {
        let pair = network.connect()?;
        let (is_enough, received) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (stop, counted) = (Arc::clone(&is_enough), Arc::clone(&received));
        let (server, client) = (pair.server.try_clone()?, pair.client.try_clone()?);
        Ok(Self {
            ends: pair,
            is_enough,
            received,
            server: thread::spawn(move || send(server, &stop)),
            client: thread::spawn(move || receive(client, &counted)),
        })
    }

    /// Waits for this many more bytes, or for the end.
    pub fn until_more(&self, bytes: u64) -> Result<()> {
        let wanted = self.received.load(Ordering::Relaxed) + bytes;
        wait_until("more has arrived", || {
            let is_over = self.client.is_finished();
            Ok(is_over || self.received.load(Ordering::Relaxed) >= wanted)
        })
    }

    /// One end sends a RST: a socket that is connected to nothing does.
    fn reset_by(&self, end: Of) -> Result<()> {
        let socket = match end {
            Of::Vm => &self.ends.server,
            Of::Peer => &self.ends.client,
        };
        let nothing = libc::sockaddr { sa_family: libc::AF_UNSPEC as _, sa_data: [0; 14] };
        let length = size_of_val(&nothing) as libc::socklen_t;
        // SAFETY: The address is valid, and as long as is said.
        let done = unsafe { libc::connect(socket.as_raw_fd(), &nothing, length) };
        ensure!(done == 0, "{}", std::io::Error::last_os_error());
        Ok(())
    }

    /// Ends it. Both ends have to agree.
    pub fn end(self) -> Result<End> {
        self.is_enough.store(true, Ordering::Relaxed);
        let joined = self.client.join().ok().context("the client has failed")?;
        let client = joined.context("the client")?;
        // The last descriptor of the client's socket: its kernel sends the FIN now.
        drop(self.ends);
        let joined = self.server.join().ok().context("the server has failed")?;
        let (server, sent) = joined.context("the server")?;
        let received = self.received.load(Ordering::Relaxed);
        match (client, server) {
            (End::Complete, End::Complete) => ensure!(received == sent, "{received} of {sent}"),
            (End::Reset, End::Reset) => {}
            other => bail!("{received} of {sent}: {other:?}"),
        }
        Ok(client)
    }
}

fn byte_at(offset: u64) -> u8 {
    (offset % 251) as u8
}

fn is_reset(error: &std::io::Error) -> bool {
    [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&error.kind())
}

fn send(mut server: TcpStream, is_enough: &AtomicBool) -> Result<(End, u64)> {
    let mut sent = 0;
    while !is_enough.load(Ordering::Relaxed) {
        let chunk: Vec<_> = (sent..sent + 16_384).map(byte_at).collect();
        match server.write_all(&chunk) {
            Ok(()) => sent += chunk.len() as u64,
            Err(error) if is_reset(&error) => return Ok((End::Reset, sent)),
            Err(error) => return Err(error.into()),
        }
    }
    match server.shutdown(Shutdown::Write).and_then(|()| server.read(&mut [0])) {
        Ok(0) => Ok((End::Complete, sent)),
        Ok(_) => bail!("the client has sent something"),
        Err(error) if is_reset(&error) || error.kind() == ErrorKind::NotConnected => {
            Ok((End::Reset, sent))
        }
        Err(error) => Err(error.into()),
    }
}

fn receive(mut client: TcpStream, received: &AtomicU64) -> Result<End> {
    let mut buffer = vec![0; 65_536];
    loop {
        let length = match client.read(&mut buffer) {
            Ok(0) => return Ok(End::Complete),
            Ok(length) => length,
            Err(error) if is_reset(&error) => return Ok(End::Reset),
            Err(error) => return Err(error.into()),
        };
        let begin = received.load(Ordering::Relaxed);
        let is_exact = (begin..).zip(&buffer[..length]).all(|(at, byte)| byte_at(at) == *byte);
        ensure!(is_exact, "wrong bytes behind {begin}");
        received.store(begin + length as u64, Ordering::Relaxed);
    }
}

/// A port with downloads, whose VM counts as late.
pub struct Late {
    pub network: AttachedNetwork,
    pub split: SplitPort,
}

impl Late {
    fn new(role: &str) -> Result<Self> {
        let network = AttachedNetwork::new(role)?;
        vsnoop_in(network.topology.host.name(), ON)?.ok()?;
        Self::on(network)
    }

    /// Opens the split connections of a port that has downloads.
    pub fn on(network: AttachedNetwork) -> Result<Self> {
        let split = open(&network)?;
        Ok(Self { network, split })
    }

    /// A download that is split now.
    pub fn download(&self) -> Result<Download> {
        // Of a connection that began before that, the hooks do not know enough.
        wait_until("the splitter works", || Ok(self.split.counters().is_on == 1))?;
        self.split.extend_late(0, FOR_EVER_NS);
        for _ in 0..MOST_TRIES {
            let download = Download::start(&self.network)?;
            let is_split = || !self.split.split_flows().is_empty();
            let received = || download.received.load(Ordering::Relaxed);
            wait_until("it is split, or has had time for it", || {
                Ok(is_split() || received() > TRIED)
            })?;
            if is_split() {
                download.until_more(SOME)?;
                return Ok(download);
            }
            ensure!(download.end()? == End::Complete, "it was reset without being split");
        }
        bail!("of {MOST_TRIES} none was split: {:?}", self.split.counters())
    }

    /// Counts of `resets`, by reason.
    fn resets(&self) -> Result<Value> {
        let stats = self.network.vsnoop(&["stats", topology::PORT, "--json"])?;
        Ok(stats["ports"][0]["resets"].clone())
    }

    fn vsnoop(&self, arguments: &[&str]) -> Result<()> {
        vsnoop_in(self.network.topology.host.name(), arguments)?.ok().map(drop)
    }
}

const ON: [&str; 4] = ["set", topology::PORT, "--downloads", "on"];

fn open(network: &AttachedNetwork) -> Result<SplitPort> {
    let host = &network.topology.host;
    let index = host.run(|| Ok(nix::net::if_::if_nametoindex(topology::PORT)?))?;
    Ok(SplitPort::open(&Port::open(host.inode()?, index)?)?)
}

fn a_download_that_is_split_is_exact() -> Result<()> {
    let late = Late::new("exact")?;
    for _ in 0..3 {
        let download = late.download()?;
        ensure!(download.end()? == End::Complete, "it was reset");
    }
    let counters = late.split.counters();
    ensure!(counters.from_sockets > 0 && counters.to_sockets > 0, "nothing went by the sockets");
    late.network.detach()
}

/// The port's part of a document.
fn seen(late: &Late, command: &str) -> Result<Value> {
    let host = late.network.topology.host.name();
    Ok(vsnoop_in(host, [command, topology::PORT, "--json"])?.json()?["ports"][0].clone())
}

fn a_split_download_is_shown_once_with_how_it_is_sent() -> Result<()> {
    let late = Late::new("shown")?;
    late.vsnoop(&["set", topology::PORT, "--congestion-control", "reno"])?;
    ensure!(seen(&late, "status")?["congestion_control"] == "reno");
    let download = late.download()?;
    let status = seen(&late, "status")?;
    ensure!(status["split"]["connections"] == 1, "{status}");
    let flows = seen(&late, "flows")?["flows"].as_array().context("flows")?.clone();
    let split: Vec<_> = flows.iter().filter(|flow| flow["mode"] == "split").collect();
    ensure!(flows.iter().filter(|flow| !flow["split"].is_null()).count() == 1, "{flows:?}");
    let [one] = split[..] else { bail!("it is not shown once: {flows:?}") };
    let to_peer = &one["split"]["to_peer"];
    ensure!(to_peer["congestion_control"] == "reno", "{one}");
    ensure!(to_peer["congestion_window"].as_u64() > Some(0), "{one}");
    ensure!(to_peer["round_trip_ns"].as_u64() > Some(0), "{one}");
    ensure!(one["split"]["held_to_peer_bytes"].is_u64(), "{one}");
    // It does not need the splitter for that, nor waits for it.
    let splitter = Pid::from_raw(running("splitter")?);
    kill(splitter, Signal::SIGSTOP)?;
    let stopped = ["status", "flows", "stats"].map(|command| seen(&late, command));
    kill(splitter, Signal::SIGCONT)?;
    let [status, flows, _] = stopped.map(|seen| seen.context("while the splitter stood still"));
    ensure!(status?["split"]["connections"] == 1, "it is not seen");
    ensure!(flows?["flows"].as_array().is_some_and(|flows| !flows.is_empty()), "it is not seen");
    let host = late.network.topology.host.name();
    let text = vsnoop_in(host, ["flows", topology::PORT])?.ok()?.out;
    ensure!(text.contains("split: peer") && text.contains("reno"), "{text}");
    let text = vsnoop_in(host, ["status"])?.ok()?.unfolded();
    ensure!(text.contains(&format!("splitter {splitter}, keeper ")), "{text}");
    ensure!(download.end()? == End::Complete, "it was reset");
    wait_until("its bytes are counted, and how it ended", || {
        let split = &seen(&late, "stats")?["split"];
        let is_over = split["ended"] == 1 || split["joined"] == 1;
        let counted = split["to_peer_bytes"].as_u64() > Some(SOME);
        Ok(is_over && counted && split["held_to_peer_bytes"] == 0 && split["connections"] == 0)
    })?;
    late.network.detach()
}

fn a_split_download_survives_what_an_operator_does() -> Result<()> {
    let mut late = Late::new("oper")?;
    let port = topology::PORT;
    let download = late.download()?;
    late.vsnoop(&["pause", port])?;
    ensure!(late.split.split_flows().is_empty(), "it is split still");
    download.until_more(SOME)?;
    late.vsnoop(&["resume", port])?;
    download.until_more(SOME)?;
    ensure!(download.end()? == End::Complete, "it was reset by a pause");

    let download = late.download()?;
    late.vsnoop(&["set", port, "--downloads", "off"])?;
    download.until_more(SOME)?;
    ensure!(download.end()? == End::Complete, "it was reset when downloads were switched off");

    late.vsnoop(&ON)?;
    late.split = open(&late.network)?;
    let download = late.download()?;
    late.vsnoop(&["detach", port])?;
    download.until_more(SOME)?;
    ensure!(download.end()? == End::Complete, "it was reset by a detach");
    Ok(())
}

fn a_split_download_is_exact_or_reset_at_both_ends_when_all_is_taken_off() -> Result<()> {
    for _ in 0..3 {
        let late = Late::new("panic")?;
        let download = late.download()?;
        vsnoop(["off", "--all"])?.ok()?;
        download.until_more(SOME)?;
        download.end()?;
        late.network.connect()?.exchange(100_000)?;
    }
    Ok(())
}

fn a_split_download_is_exact_or_reset_at_both_ends_when_the_splitter_is_killed() -> Result<()> {
    let late = Late::new("killed")?;
    for _ in 0..5 {
        let download = late.download()?;
        let pid = running("splitter")?;
        kill(Pid::from_raw(pid), Signal::SIGKILL)?;
        download.until_more(SOME)?;
        download.end()?;
        wait_until("another splitter runs", || {
            Ok(pid_of("splitter")?.is_some_and(|now| now != pid))
        })?;
        // Split by the next one.
        let download = late.download()?;
        ensure!(download.end()? == End::Complete, "the next one was reset");
    }
    late.network.detach()
}

fn a_rst_of_an_end_of_a_split_download_reaches_the_other_and_is_not_counted() -> Result<()> {
    let late = Late::new("rst")?;
    for end in [Of::Vm, Of::Peer] {
        let download = late.download()?;
        download.reset_by(end)?;
        // The end that did it is not connected any more, whatever it tries.
        let other = match end {
            Of::Vm => download.client.join().map(|joined| joined.map(|end| end == End::Reset)),
            Of::Peer => {
                download.server.join().map(|joined| joined.map(|(end, _)| end == End::Reset))
            }
        };
        ensure!(other.ok().context("an end has failed")??, "{end:?}: the other ended otherwise");
        wait_until("it is over", || Ok(late.split.split_flows().is_empty()))?;
        let resets = late.resets()?;
        ensure!(resets["detached"] == 0 && resets["silent"] == 0, "{end:?}: {resets}");
        ensure!(resets["bytes"] == 0, "{end:?}: {resets}");
    }
    late.network.detach()
}

fn a_split_download_whose_end_answers_no_more_is_reset_and_counted_as_silent() -> Result<()> {
    let late = Late::new("gone")?;
    // The kernel gives up after a few timeouts instead of 924 s.
    let output = Command::new("ip")
        .args(["netns", "exec", vsnoop_host::split::namespace::NAME])
        .args(["sysctl", "-w", "net.ipv4.tcp_retries2=3"])
        .output()?;
    ensure!(output.status.success(), "{output:?}");
    let download = late.download()?;
    late.network.topology.client.ip(&format!("link set {CLIENT_DEVICE} down"))?;
    let (end, _) = download.server.join().ok().context("the VM's end has failed")??;
    ensure!(end == End::Reset, "the VM's end {end:?}");
    wait_until("it is counted", || Ok(late.resets()?["silent"] == 1))?;
    ensure!(late.resets()?["detached"] == 0, "{}", late.resets()?);
    download.ends.client.shutdown(Shutdown::Both)?;
    late.network.detach()
}
