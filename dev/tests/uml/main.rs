//! Many connections at once to a fast real guest: User Mode Linux, behind an attached tap.
//!
//! ```text
//! [client]--veth--[bridge]--[tap]--[User Mode Linux]
//! ```
//! Each round has [`ROUND`] transfers side by side. Rounds without vsnoop come first: they say how
//! long a transfer takes here and today. `VSNOOP_SOAK=1` has ten times as many transfers, and as
//! many without vsnoop, in turn.

use std::fmt;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use vsnoop_guest::transfer::Direction::{self, Download, Upload};
use vsnoop_guest::transfer::PORT;
use vsnoop_testbed::client::{self, Outcome, Request};
use vsnoop_testbed::guest::{self, Unavailable, UserModeImage};
use vsnoop_testbed::interrupt;
use vsnoop_testbed::net::{Net, Netns, Offloads, TapOptions, remove_stale};
use vsnoop_testbed::soak::soaked;
use vsnoop_testbed::user_mode::{Device, UserModeGuest};
use vsnoop_testbed::vsnoop::Vsnoop;
use vsnoop_tests::{PREFIX, late};

const BRIDGE: &str = "br0";
const TAP: &str = "tap0";
const CLIENT: &str = "10.80.0.1";
const GUEST: &str = "10.80.0.2";
const PREFIX_LENGTH: u8 = 24;
const KB: u64 = 1000;
const MB: u64 = 1000 * KB;
/// A round has these uploads, downloads, and short ones.
const ROUND: [(Direction, u64); 14] = [
    (Upload, MB),
    (Upload, MB),
    (Upload, MB),
    (Upload, MB),
    (Upload, MB),
    (Upload, MB),
    (Download, MB),
    (Download, MB),
    (Download, MB),
    (Download, MB),
    (Download, MB),
    (Download, MB),
    (Upload, KB),
    (Download, KB),
];
const ROUNDS_OFF: usize = 4;
const ROUNDS: usize = 15;
const SOAK_TIMES: usize = 10;
/// Far longer than booting takes on a busy machine.
const BOOT: Duration = Duration::from_secs(120);
/// Without vsnoop, for whatever transfers it is.
const LIMIT: Duration = Duration::from_secs(300);
/// In each direction, one after the other, while the guest is idle otherwise.
const ALONE: usize = 20;

const TESTS: [(&str, Device); 2] = [
    ("of_many_transfers_at_once_none_hangs_super_packets", Device::Vector),
    ("of_many_transfers_at_once_none_hangs_mtu_sized", Device::Single),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let image = if arguments.list { Err("only listed".to_owned()) } else { image() };
    let ignored = image.is_err();
    if let Err(reason) = &image {
        eprintln!("tests with User Mode Linux: {reason}");
    }
    let trials = TESTS.map(|(name, device)| {
        let image = image.clone();
        let run = move || {
            let image = image.map_err(Failed::from)?;
            many_at_once(&image, device).map_err(|error| Failed::from(format!("{error:#}")))
        };
        Trial::test(name, run).with_kind("uml").with_ignored_flag(ignored)
    });
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}

/// The guest, or why there is none on this machine.
fn image() -> Result<UserModeImage, String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("they need root".into());
    }
    if let Err(error) = interrupt::install() {
        eprintln!("{error:#}");
    }
    match guest::prepare_user_mode() {
        Err(error) if error.is::<Unavailable>() => Err(format!("{error:#}")),
        Err(error) => panic!("no guest: {error:#}"),
        Ok(image) => Ok(image),
    }
}

/// The guest, its host and its client.
struct Rig {
    // Before the namespaces.
    _guest: UserModeGuest,
    vsnoop: Vsnoop,
    client: Netns,
    _host: Netns,
    _dir: Dir,
}

/// Removed when this is dropped.
struct Dir(std::path::PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Rig {
    fn build(image: &UserModeImage, device: Device) -> Result<Self> {
        remove_stale(PREFIX)?;
        let net = Net::new(PREFIX);
        let (host, client) = (net.host("host")?, net.host("client")?);
        host.bridge(BRIDGE)?;
        host.veth_port(BRIDGE, "uplink", &client, "eth0")?;
        let offloads = match device {
            Device::Vector => Offloads::SUPER_PACKETS,
            Device::Single => Offloads::NONE,
        };
        host.tap(TAP, &TapOptions { persistent: true, offloads, ..TapOptions::default() })?;
        host.add_port(BRIDGE, TAP)?;
        client.up_with("eth0", &[(CLIENT.parse()?, PREFIX_LENGTH)])?;
        let dir = Dir(std::env::temp_dir().join(net.name("uml")));
        let address = format!("{GUEST}/{PREFIX_LENGTH}");
        let guest = UserModeGuest::start(image, &host, (TAP, device), &address, &dir.0, BOOT)?;
        let vsnoop = Vsnoop::find()?.in_netns(host.name());
        Ok(Self { _guest: guest, vsnoop, client, _host: host, _dir: dir })
    }

    /// One transfer, and how long it took.
    fn transfer(&self, direction: Direction, bytes: u64, limit: Duration) -> Result<Duration> {
        let since = Instant::now();
        let request = Request {
            server: SocketAddr::new(GUEST.parse()?, PORT),
            direction,
            size_bytes: bytes,
            seed: fastrand::u64(..),
            congestion_control: "cubic",
            timeout: limit,
        };
        match client::transfer(&self.client, &request)? {
            Outcome::Exact(_) => Ok(since.elapsed()),
            other => bail!("{direction:?} of {bytes} bytes: {other:?} after {:?}", since.elapsed()),
        }
    }

    /// A round; adds how long its transfers took.
    fn round(&self, limit: Duration, times: &mut Times) -> Result<()> {
        thread::scope(|scope| {
            let start =
                |(direction, bytes)| scope.spawn(move || self.transfer(direction, bytes, limit));
            for job in ROUND.map(start) {
                let time = job.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                times.0.push(time);
            }
            Ok(())
        })
    }

    /// Rounds without vsnoop, and then as many or more with it.
    fn block(&self, off: usize, without: &mut Times, with: &mut Times) -> Result<()> {
        for _ in 0..off {
            self.round(LIMIT, without).context("without vsnoop")?;
        }
        let limit = late::limit(without.longest());
        self.vsnoop.attach(TAP)?;
        for number in 0..ROUNDS {
            self.round(limit, with)
                .with_context(|| format!("round {number}, attached; {}", self.story()))?;
        }
        for direction in [Upload, Download] {
            for _ in 0..ALONE {
                self.transfer(direction, MB, limit).with_context(|| self.story())?;
            }
        }
        let early = late::count(&self.vsnoop.stats(TAP)?, "early_acks");
        ensure!(early > 0, "nothing was acknowledged early: {}", self.story());
        self.vsnoop.detach(TAP)
    }

    fn story(&self) -> String {
        let tell = || {
            Ok::<_, anyhow::Error>(format!(
                "{} {}",
                self.vsnoop.stats(TAP)?,
                self.vsnoop.flows(TAP)?
            ))
        };
        tell().unwrap_or_else(|error| format!("{error:#}"))
    }
}

/// How long transfers took.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn longest(&self) -> Duration {
        self.0.iter().max().copied().unwrap_or_default()
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = |seconds| self.0.iter().filter(|time| time.as_secs() >= seconds).count();
        let (all, longest) = (self.0.len(), self.longest());
        write!(f, "the longest of {all} {longest:.1?}, {} over 1 s, {} over 5 s", over(1), over(5))
    }
}

/// A lost segment is mended as soon as without vsnoop, for each of many connections.
fn many_at_once(image: &UserModeImage, device: Device) -> Result<()> {
    let (blocks, off) = soaked((1, ROUNDS_OFF), (SOAK_TIMES, ROUNDS));
    let rig = Rig::build(image, device)?;
    let (mut without, mut with) = (Times::default(), Times::default());
    let result = (0..blocks).try_for_each(|_| rig.block(off, &mut without, &mut with));
    eprintln!("without vsnoop {without}; with it {with}");
    result
}
