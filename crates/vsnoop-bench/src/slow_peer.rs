//! What a peer behind a slow line costs the others of a link over udp: the round trip to a fast
//! peer beside a flood to the slow one, over the round trip of the same path at rest.
//!
//! ```text
//! [host 0: vsl0]--link--+--bridge--+--[host 1: vsl0], its line has 10 Mb/s and a long queue
//!                                  +--[host 2: vsl0]
//! ```
//!
//! The hosts are their own VMs: their taps have addresses.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vsnoop_lab::results::Figure;
use vsnoop_testbed::net::{Net, Netns, checked};
use vsnoop_testbed::workspace;

use crate::figures::{figure, median, say};
use crate::stage::PREFIX;

const HOSTS: u8 = 3;
const SLOW: u8 = 1;
const FAST: u8 = 2;
const PORT: u16 = 7757;
const PREFIX_LENGTH: u8 = 24;
/// Until every link has its peers.
const PATIENCE: Duration = Duration::from_secs(60);
const ROUNDS: usize = 5;
const ECHOES: u16 = 100;
const LINE: &str = "tbf rate 10mbit burst 16kb limit 64mb";
/// The flood: about 100 Mb/s.
const DATAGRAM_BYTES: usize = 1400;
const BURST: usize = 20;
const PAUSE: Duration = Duration::from_millis(2);
/// What the slow line had once more than fits into any buffer was sent.
const FLOODED: Duration = Duration::from_secs(2);

pub fn measure() -> Result<Vec<Figure>> {
    let net = Net::new(PREFIX);
    let directory = Directory(std::env::temp_dir().join(net.name("slow")));
    std::fs::create_dir_all(&directory.0).context("make a directory")?;
    let middle = net.host("m")?;
    middle.bridge("net")?;
    let hosts: Vec<_> =
        (0..HOSTS).map(|number| net.host(&number.to_string())).collect::<Result<_>>()?;
    for (number, host) in hosts.iter().enumerate() {
        middle.veth_port("net", &format!("to{number}"), host, "uplink")?;
        host.up_with("uplink", &[(outer(number as u8).into(), PREFIX_LENGTH)])?;
    }
    let _links = start(&net, &hosts, &directory.0)?;
    for (number, host) in hosts.iter().enumerate() {
        host.add_address("vsl0", inner(number as u8).into(), PREFIX_LENGTH)?;
    }
    let echoes = || -> Result<Vec<f64>> {
        let times = hosts[0].ping(inner(FAST), ECHOES)?;
        let lost = usize::from(ECHOES) - times.len();
        ensure!(lost == 0, "{lost} of {ECHOES} echoes of the fast peer were lost");
        Ok(times.iter().map(Duration::as_secs_f64).collect())
    };
    echoes()?;
    let (mut idle, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        idle.push(median(echoes()?));
        middle.tc(&format!("qdisc add dev to{SLOW} root {LINE}"))?;
        beside.push(median(beside_flood(&hosts[0], echoes)?));
        middle.tc(&format!("qdisc del dev to{SLOW} root"))?;
    }
    let ratio = median(beside) / median(idle);
    say(&format!(
        "beside a flooded slow peer the round trip to another is {ratio:.2} times as long"
    ));
    Ok(vec![figure("other_peer_ping_ratio_beside_slow_peer", ratio, "", "lower")])
}

/// What `echoes` returns while datagrams flood the slow peer.
fn beside_flood<T>(from: &Netns, echoes: impl Fn() -> Result<T>) -> Result<T> {
    let socket = from.run(|| UdpSocket::bind((inner(0), 0)).context("bind"))?;
    let to = SocketAddr::from((inner(SLOW), 9));
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                for _ in 0..BURST {
                    // The tap may have no room.
                    let _ = socket.send_to(&[0; DATAGRAM_BYTES], to);
                }
                std::thread::sleep(PAUSE);
            }
        });
        std::thread::sleep(FLOODED);
        let result = echoes();
        ends.store(true, Ordering::Relaxed);
        result
    })
}

fn start(net: &Net, hosts: &[Netns], directory: &Path) -> Result<Vec<LinkProcess>> {
    let program = workspace::vsnoop_command()?;
    let text = program.to_string_lossy().into_owned();
    let file = |number: u8| directory.join(format!("{number}.key")).display().to_string();
    let keys = (0..HOSTS).map(|number| checked(&text, ["link", "keygen", &file(number)]));
    let keys = keys.collect::<Result<Vec<_>>>()?;
    let mut links = Vec::new();
    for (number, host) in (0..HOSTS).zip(hosts) {
        let name = net.name(&number.to_string());
        let mut config = format!(
            "[link]\nname = \"{name}\"\nnetwork = \"slow\"\nlisten = \"0.0.0.0:{PORT}\"\n\
             key = \"{}\"\n[[port]]\ntap = \"vsl0\"\n",
            file(number)
        );
        for peer in (0..HOSTS).filter(|peer| *peer != number) {
            let key = keys[usize::from(peer)].trim();
            config += &format!(
                "[[peer]]\nname = \"h{peer}\"\nkey = \"{key}\"\naddress = \"{}:{PORT}\"\n",
                outer(peer)
            );
        }
        let path = directory.join(format!("{number}.toml"));
        std::fs::write(&path, config).context("write a configuration")?;
        let mut command = host.command(&program);
        command.args(["link", "up", "--foreground"]).arg(path);
        command.env("RUST_LOG", "error").stdin(Stdio::null()).stdout(Stdio::null());
        links.push(LinkProcess(command.spawn().context("start a link")?));
    }
    let since = Instant::now();
    for (number, host) in (0..HOSTS).zip(hosts) {
        let name = net.name(&number.to_string());
        loop {
            let mut command = host.command(&program);
            let output = command.args(["link", "status", &name, "--json"]).output();
            let shown = output.context("run vsnoop link status")?.stdout;
            let up = String::from_utf8_lossy(&shown).matches("\"state\":\"up\"").count();
            if up == usize::from(HOSTS - 1) {
                break;
            }
            ensure!(since.elapsed() < PATIENCE, "the link of host {number} has {up} peers");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(links)
}

fn outer(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 92, 0, 1 + number)
}

fn inner(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 93, 0, 1 + number)
}

struct LinkProcess(Child);

impl Drop for LinkProcess {
    fn drop(&mut self) {
        // It may have ended already; nobody else has waited for it.
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
