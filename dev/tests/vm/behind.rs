//! Guests behind a tap that are no busy endpoint with one card: one is idle and loses what it was
//! handed, one forwards to a slower path, one moves to its second card.
//!
//! ```text
//!   bridge of the stage ── vslab-behind0 ──[eth0  guest  eth2]── vslab-behind2 ── bridge ── leg
//!                       └─ vslab-behind1 ──[eth1       ]
//! ```
//! Each test does the same without vsnoop first: that says what is late here and today.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use vsnoop_guest::control::Command;
use vsnoop_guest::transfer::{self, Direction::Upload};
use vsnoop_testbed::client::{self, Outcome};
use vsnoop_testbed::guest;
use vsnoop_testbed::leg::{self, Leg, LegOptions};
use vsnoop_testbed::net::{Net, TapOptions};
use vsnoop_testbed::session::Session;
use vsnoop_testbed::stage::{BRIDGE, PREFIX_LENGTH, Stage, vm_address};
use vsnoop_testbed::vm::{Accelerator, Nic, Vm};
use vsnoop_tests::late;

use crate::{BOOT_TIMEOUT, Bench, KB, LIMIT, MB, PREFIX, Request, joined, wait_until};

const NAME: &str = "vslab-behind";
pub const TAPS: [&str; 3] = ["vslab-behind0", "vslab-behind1", "vslab-behind2"];
const LEG_BRIDGE: &str = "vslab-leg";
const LEG_PORT: &str = "vslab-far";
/// Its number among the machines of the stage.
pub const NUMBER: usize = 50;
/// Until it bonds both cards, the second one has an address that is in no use.
const UNUSED: &str = "169.254.9.1/30";
const SLOW: LegOptions =
    LegOptions { rate_mbit: 10, queue_bytes: 64 << 10, rtt: Duration::from_millis(100) };
const LEG_MTU_BYTES: u32 = 1400;
/// Twice the time after which both ends are reset of a VM that is not heard at its new port.
const UNHEARD: Duration = Duration::from_secs(20);
/// `attach` takes this option: the host acknowledges for a VM that answers promptly, too.
pub const HOLDS_ALWAYS: [&str; 1] = ["--no-passive"];

/// The machine and its second leg.
pub struct Behind {
    pub vm: Vm,
    leg: Leg,
}

impl Behind {
    pub fn build(session: &mut Session, accelerator: Accelerator, stage: &Stage) -> Result<Self> {
        let options = guest::Options { firewall: true, tools: true, ..guest::Options::default() };
        let image = guest::prepare(options)?;
        let host = stage.host();
        host.bridge(LEG_BRIDGE)?;
        let leg = Leg::lay(&Net::new(PREFIX), host, LEG_PORT, &SLOW)?;
        host.add_port(LEG_BRIDGE, LEG_PORT)?;
        let addresses = [
            format!("{}/{PREFIX_LENGTH}", vm_address(NUMBER, false)),
            UNUSED.to_owned(),
            format!("{}/{}", leg::NEAR, leg::PREFIX_LENGTH),
        ];
        let mut nics = Vec::new();
        for (number, address) in addresses.into_iter().enumerate() {
            let tap = TAPS[number];
            host.tap(tap, &TapOptions { persistent: true, ..TapOptions::default() })?;
            host.add_port(if number == 2 { LEG_BRIDGE } else { BRIDGE }, tap)?;
            session.note_port(host.name(), tap)?;
            let mac = format!("52:54:00:76:75:{number:02x}");
            nics.push(Nic { netns: host, tap: tap.to_owned(), mac, address, rx_queue_size: None });
        }
        let dir = session.scratch().join(NAME);
        let mut vm = Vm::start(NAME, &image, accelerator, &nics, &dir)?;
        session.note_process(vm.pid())?;
        vm.wait_ready(BOOT_TIMEOUT)?;
        // Its vCPU sleeps while the others are tested, and they while it is.
        vm.own_core()?;
        Ok(Self { vm, leg })
    }
}

/// Ports of the machine have vsnoop until this is dropped.
pub struct Attached<'a> {
    bench: &'a Bench,
    taps: &'a [&'a str],
}

impl<'a> Attached<'a> {
    pub fn to(bench: &'a Bench, taps: &'a [&'a str], options: &[&str]) -> Result<Self> {
        let this = Self { bench, taps };
        taps.iter().try_for_each(|tap| bench.stage.attach_tap(tap, options))?;
        Ok(this)
    }

    pub fn count(&self, name: &str) -> Result<u64> {
        let vsnoop = self.bench.stage.vsnoop()?;
        self.taps.iter().map(|tap| Ok(late::count(&vsnoop.stats(tap)?, name))).sum()
    }

    /// Connections that vsnoop has reset, for whatever reason.
    fn resets(&self) -> Result<u64> {
        let vsnoop = self.bench.stage.vsnoop()?;
        let of_port = |tap: &&str| -> Result<u64> {
            let stats = vsnoop.stats(tap)?;
            let resets = stats["ports"][0]["resets"].as_object().context("no resets")?;
            let counted = resets.iter().filter(|(reason, _)| *reason != "bytes");
            Ok(counted.filter_map(|(_, count)| count.as_u64()).sum())
        };
        self.taps.iter().map(of_port).sum()
    }

    pub fn story(&self) -> String {
        let tell = || -> Result<String> {
            let vsnoop = self.bench.stage.vsnoop()?;
            let of_port = |tap: &&str| Ok(format!("{} {}", vsnoop.stats(tap)?, vsnoop.flows(tap)?));
            Ok(self.taps.iter().map(of_port).collect::<Result<Vec<_>>>()?.join("\n"))
        };
        tell().unwrap_or_else(|error| format!("{error:#}"))
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        for tap in self.taps {
            if let Err(error) = self.bench.stage.detach_tap(tap) {
                eprintln!("{error:#}");
            }
        }
    }
}

/// A request to the machine, or through it.
fn request(bench: &Bench, through: bool, size_bytes: u64, timeout: Duration) -> Request {
    let machine = (vm_address(NUMBER, false), transfer::PORT).into();
    let server = if through { bench.behind.leg.server() } else { machine };
    Request { server, timeout, ..bench.request(0, Upload, size_bytes) }
}

/// Uploads of these sizes at once; the time of the longest.
pub fn at_once(bench: &Bench, through: bool, sizes: &[u64], limit: Duration) -> Result<Duration> {
    let upload = |bytes: u64| -> Result<Duration> {
        let since = Instant::now();
        match client::transfer(bench.stage.client(), &request(bench, through, bytes, limit))? {
            Outcome::Exact(_) => Ok(since.elapsed()),
            other => bail!("upload of {bytes} bytes: {other:?} after {:?}", since.elapsed()),
        }
    };
    thread::scope(|scope| {
        let jobs: Vec<_> = sizes.iter().map(|bytes| scope.spawn(move || upload(*bytes))).collect();
        jobs.into_iter().try_fold(Duration::ZERO, |longest, job| Ok(longest.max(joined(job)?)))
    })
}

/// Nothing but these uploads runs in the guest, so that a lost tail brings no answer by itself.
pub fn idle_guest(bench: &Bench) -> Result<()> {
    const PAIRS_OFF: usize = 20;
    const PAIRS: usize = 40;
    let vm = &bench.behind.vm;
    vm.command(&Command::Firewall { drop_percent: 5 })?;
    let pairs = |count: usize, limit: Duration| -> Result<Duration> {
        let sizes = [100 * KB, MB].into_iter().cycle().take(count);
        sizes.into_iter().try_fold(Duration::ZERO, |longest, bytes| {
            Ok(longest.max(at_once(bench, false, &[bytes, bytes], limit)?))
        })
    };
    let result = pairs(PAIRS_OFF, LIMIT).context("without vsnoop").and_then(|longest| {
        if !bench.attached {
            return Ok(());
        }
        let attached = Attached::to(bench, &TAPS[..1], &[])?;
        let with = pairs(PAIRS, late::limit(longest)).with_context(|| attached.story())?;
        eprintln!("the longest without vsnoop {longest:?}, with it {with:?}");
        ensure!(attached.count("early_acks")? > 0, "nothing was acknowledged early");
        Ok(())
    });
    let drops = vm.stats()?.firewall_drops;
    vm.command(&Command::Firewall { drop_percent: 0 })?;
    result?;
    ensure!(drops > 0, "the firewall has dropped nothing: nothing was tested");
    Ok(())
}

/// A path behind the guest that is slow and takes smaller segments than the tap.
pub fn router(bench: &Bench) -> Result<()> {
    const PAIRS: u64 = 3;
    let Behind { vm, leg } = &bench.behind;
    let client = bench.stage.client();
    let forward = |on: &str| {
        let (key, value) = ("net.ipv4.ip_forward".to_owned(), on.to_owned());
        vm.command(&Command::Sysctl { key, value })
    };
    forward("1")?;
    vm.script(&format!("ip link set eth2 mtu {LEG_MTU_BYTES}"))?;
    client.ip(&format!("route replace {} via {}", leg::NETWORK, vm_address(NUMBER, false)))?;
    // Payload that was sent on the leg, over what was received.
    let run = |limit: Duration| -> Result<(Duration, f64)> {
        // The client is to learn the MTU anew.
        client.ip("route flush cache")?;
        let (before, mut longest) = (leg.sent_bytes(), at_once(bench, true, &[100 * KB], limit)?);
        for _ in 0..PAIRS {
            longest = longest.max(at_once(bench, true, &[MB, MB], limit)?);
        }
        let sent = leg.sent_bytes() - before;
        Ok((longest, sent as f64 / (PAIRS * 2 * MB + 100 * KB) as f64))
    };
    let result = run(LIMIT).context("without vsnoop").and_then(|(longest, off)| {
        if !bench.attached {
            return Ok(());
        }
        let attached = Attached::to(bench, &TAPS[..1], &[])?;
        let (with, on) = run(late::limit(longest)).with_context(|| attached.story())?;
        let (early, left) = (attached.count("early_bytes")?, attached.count("forwarded")?);
        eprintln!(
            "sent for each byte: {off:.3}, {on:.3} with vsnoop; {longest:?}, {with:?}; {early} bytes \
             early, {left} connections forwarded"
        );
        // Without vsnoop, the bytes that the queue loses of a pair's slow start differ by as much.
        ensure!(on < off + 0.15, "{on:.2} bytes were sent for each, {off:.2} without vsnoop");
        Ok(())
    });
    forward("0")?;
    result
}

/// Bonds both cards, as an administrator does who wants to survive the loss of one.
const BOND: &str = "
ip addr flush dev eth0
ip addr flush dev eth1
ip link set eth0 down
ip link set eth1 down
ip link add cards type bond mode active-backup miimon 100
ip link set eth0 master cards
ip link set eth1 master cards
ip link set cards up
";

/// The cable of the card in use is pulled while the host holds data.
pub fn fail_over(bench: &Bench) -> Result<()> {
    let vm = &bench.behind.vm;
    let address = vm_address(NUMBER, false);
    vm.script(&format!("{BOND} ip addr add {address}/{PREFIX_LENGTH} dev cards"))?;
    let until_active = |nic: usize| {
        wait_until("the bond uses a card with a link", || {
            let state =
                vm.script("while read -r line; do echo \"$line\"; done </proc/net/bonding/cards")?;
            Ok(state.contains(&format!("Currently Active Slave: eth{nic}")))
        })
    };
    until_active(0)?;
    let longest = moved(bench, [0, 1], LIMIT, None).context("without vsnoop")?;
    if !bench.attached {
        return Ok(());
    }
    let attached = Attached::to(bench, &TAPS[..2], &HOLDS_ALWAYS)?;
    for cards in [[1, 0], [0, 1]] {
        until_active(cards[0])?;
        moved(bench, cards, late::limit(longest) + UNHEARD, Some(&attached)).with_context(
            || format!("from card {} to {}: {}", cards[0], cards[1], attached.story()),
        )?;
    }
    Ok(())
}

/// A transfer that moves from one card to the other; the time from then to its end.
fn moved(
    bench: &Bench,
    [from, to]: [usize; 2],
    limit: Duration,
    attached: Option<&Attached>,
) -> Result<Duration> {
    /// More than passes before the machine stands still.
    const BYTES: u64 = 60 * MB;
    let vm = &bench.behind.vm;
    let carried = || Ok::<_, anyhow::Error>(bench.stage.counts_of(TAPS[from])?.to_vm_bytes);
    let resets = || attached.map_or(Ok(0), Attached::resets);
    vm.set_link(to, true)?;
    let before = resets()?;
    let time = thread::scope(|scope| {
        let since = carried()?;
        let up = scope.spawn(|| {
            let request = request(bench, false, BYTES, limit);
            client::transfer(bench.stage.client(), &request)
        });
        wait_until("the transfer moves", || Ok(up.is_finished() || carried()? > since + MB))?;
        vm.pause()?;
        if let Some(attached) = attached {
            wait_until("the host holds data", || Ok(held(attached)? > 0))?;
        }
        ensure!(!up.is_finished(), "the transfer was over before the card was");
        vm.set_link(from, false)?;
        vm.go_on()?;
        let moved = Instant::now();
        match joined(up)? {
            Outcome::Exact(_) => (),
            Outcome::Broken(_) if attached.is_some() => {
                ensure!(resets()? > before, "a reset was not counted");
            }
            other => bail!("{other:?}"),
        }
        Ok(moved.elapsed())
    })?;
    // The bridge knows where the machine is.
    at_once(bench, false, &[100 * KB], limit).context("the next connection")?;
    Ok(time)
}

/// Bytes that only the host has.
fn held(attached: &Attached) -> Result<u64> {
    let vsnoop = attached.bench.stage.vsnoop()?;
    let of_port = |tap: &&str| {
        let stats = vsnoop.stats(tap)?;
        Ok(stats["ports"][0]["hold"]["held_bytes"].as_u64().unwrap_or(0))
    };
    attached.taps.iter().map(of_port).sum()
}
