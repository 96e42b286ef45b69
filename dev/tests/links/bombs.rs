//! A peer whose key is known and whose records are authentic, and that means harm: what it sends
//! becomes a thousand times as much where it is decompressed.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_link::compress::{CompressionLimits, Encoded, Encoder, Method, Owner, Policy};
use vsnoop_link::handshake::{Direction, Hello, HelloTransport, Purpose, Versions};
use vsnoop_link::identity::{PeerId, Trust};
use vsnoop_link::wire::item::{COMPRESSED, FrameHeader, Way};
use vsnoop_linkd::handshake::tcp_handshake::{self, Established};
use vsnoop_linkd::identity::{credentials, key_file};
use vsnoop_packet::headers::FlowHash;
use vsnoop_packet::offload::state::OffloadState;

use crate::{transfer, trial};
use vsnoop_testbed::hosts::{Network, PORT, Plan, inner_v4, outer};
use vsnoop_testbed::soak::soaked;

/// The host whose key the hostile peer has; its link does not run.
const HOSTILE: usize = 2;
const FRAME_BYTES: usize = 65_000;
/// Bombs of one connection: 2 GB of frames in about 2 MB.
const BOMBS: usize = 30_000;
const BOMBS_SOAKED: usize = 300_000;
/// Bound on the growth of the link's memory, KiB. One window of a dictionary is twice that.
const MORE_KIB: u64 = 64 << 10;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("bombs::tls::another_peer_goes_on_and_memory_is_bounded", bombs),
        trial("bombs::tls::what_was_not_accepted_ends_the_session", not_accepted),
    ]
}

/// Three hosts, of which two have links that are up with each other.
fn network() -> Result<Network> {
    let mut network = Network::configured(Plan { hosts: 3, transport: "tls", ..Plan::default() })?;
    for host in [0, 1] {
        network.let_wait(host, HOSTILE)?;
    }
    let (two, _) = network.hosts.split_at_mut(HOSTILE);
    two.iter_mut().try_for_each(|host| host.start())?;
    network.hosts[0].until("h1 is up", |status| status["peers"][0]["state"] == "up")?;
    Ok(network)
}

fn bombs() -> Result<()> {
    let network = network()?;
    let [a, b, _] = &network.hosts[..] else { unreachable!("three hosts") };
    let moved = AtomicU64::new(0);
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 16 << 20, &moved)?;
    let before_kib = a.in_proc_status("VmRSS")?;
    let mut hostile = Hostile::join(&network)?;
    let count = soaked(BOMBS, BOMBS_SOAKED);
    let encoder = &mut Encoder::new(hostile.accepted, Box::new(|| 0));
    std::thread::scope(|scope| -> Result<()> {
        let bombing =
            scope.spawn(|| (0..count).try_for_each(|_| hostile.send(&bomb(encoder, None)?)));
        for at in [inner_v4(1, 0), inner_v4(1, 0)] {
            transfer::run(&a.vms[0], &b.vms[0], at, 8 << 20, &moved)?;
        }
        bombing.join().map_err(|_| anyhow::anyhow!("the hostile peer panicked"))?
    })?;
    a.until("all bombs have gone off", |status| {
        status["peers"][1]["received"]["frames"].as_u64() >= Some(count as u64)
    })?;
    let peer = a.peer("h1")?;
    ensure!(peer["state"] == "up" && peer["reconnects"] == 0, "{peer}");
    let after_kib = a.in_proc_status("VmHWM")?;
    ensure!(after_kib < before_kib + MORE_KIB, "from {before_kib} to {after_kib} KiB");
    Ok(())
}

/// A dictionary, which no rule of the host asks for, with windows of 128 MB.
fn not_accepted() -> Result<()> {
    let network = network()?;
    let a = &network.hosts[0];
    let before_kib = a.in_proc_status("VmRSS")?;
    let mut hostile = Hostile::join(&network)?;
    ensure!(hostile.accepted.dictionaries == 0, "{:?}", hostile.accepted);
    let encoder = &mut Encoder::new(CompressionLimits::MOST, Box::new(|| 0));
    // It ends before all of them are sent.
    let _ = (0..BOMBS).try_for_each(|_| hostile.send(&bomb(encoder, Some(128 << 20))?));
    a.until("the session has ended", |status| status["peers"][1]["not_accepted"] == 1)?;
    ensure!(a.words().contains("not accepted here"), "{}", a.words());
    let after_kib = a.in_proc_status("VmHWM")?;
    ensure!(after_kib < before_kib + MORE_KIB, "from {before_kib} to {after_kib} KiB");
    a.until("h1 is up", |status| status["peers"][0]["state"] == "up")?;
    ensure!(a.peer("h1")?["reconnects"] == 0, "the other peer was lost");
    Ok(())
}

/// A frame of zeros, as an item.
fn bomb(encoder: &mut Encoder, dictionary: Option<u32>) -> Result<Vec<u8>> {
    let policy = Policy { method: Method::Zstd { level: 1 }, owner: Owner::Named(1), dictionary };
    let header = FrameHeader::new(OffloadState::default(), Way::Forwarded);
    let mut item = vec![COMPRESSED];
    let parts: [&[u8]; 2] = [header.bytes(), &[0; FRAME_BYTES]];
    let encoded = encoder.encode(FlowHash(1), &policy, &parts, 0, &mut item);
    ensure!(encoded == Encoded::Compressed, "zeros are compressed");
    Ok(item)
}

/// A peer of host 0 in this process.
struct Hostile {
    connection: Established,
    /// The log of host 0.
    accepted: CompressionLimits,
    /// Keeps the session as it was made.
    _other: Established,
}

impl Hostile {
    fn join(network: &Network) -> Result<Self> {
        let control = dial(network, Purpose::Control)?;
        let session = control.outcome.theirs.session;
        let data = |direction| dial(network, Purpose::Data { session, index: 0, direction });
        let (connection, other) = (data(Direction::ToAcceptor)?, data(Direction::ToInitiator)?);
        Ok(Self { connection, accepted: control.outcome.theirs.accepts, _other: other })
    }

    fn send(&mut self, item: &[u8]) -> Result<()> {
        let Established { outcome, stream } = &mut self.connection;
        let tls = &mut outcome.tls;
        let length = (item.len() as u32).to_be_bytes();
        tls.writer().write_all(&[&length, item].concat()).context("encrypting")?;
        while tls.wants_write() {
            tls.write_tls(stream).context("sending")?;
        }
        Ok(())
    }
}

fn dial(network: &Network, purpose: Purpose) -> Result<Established> {
    let theirs = key_file::read_public_key(&network.key_file(0))?;
    let identity = credentials::read_identity(&network.key_file(HOSTILE), None)?;
    let initiator = identity.make_initiator(&PeerId::new("h0"), &Trust::key(theirs))?;
    let hello = Hello {
        versions: Versions::OURS,
        purpose,
        network: "test".to_owned(),
        instance: 1,
        session: 1,
        epoch: 0,
        transport: HelloTransport::Tls,
        connections: 1,
        mtu_bytes: 1500,
        takes: Vec::new(),
        accepts: CompressionLimits::MOST,
        ecn: true,
        software: String::new(),
    };
    let at = SocketAddr::new(outer(0), PORT);
    let stream = network.hosts[HOSTILE].netns.run(|| Ok(TcpStream::connect(at)?))?;
    let deadline = Instant::now() + Duration::from_secs(60);
    let established = tcp_handshake::dial(stream, &initiator, hello, deadline)
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(established)
}
