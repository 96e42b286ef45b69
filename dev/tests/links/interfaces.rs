//! Ports that are interfaces of other programs: VMs' frames cross them, also after they were
//! deleted and made again.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::socket::{setsockopt, sockopt};
use vsnoop_packet::builder::{Addresses, Ethernet, Route, UdpFrame};
use vsnoop_packet::format::{Tag, VLAN};
use vsnoop_packet::headers::Headers;
use vsnoop_packet::offload::OffloadState;
use vsnoop_packet::packet::Pool;
use vsnoop_packet::vnet::{GSO_UDP_L4, VirtioNetHdr};
use vsnoop_testbed::net::{Netns, Offloads, Tap, TapOptions};

use crate::{transfer, trial};
use vsnoop_testbed::hosts::{Host, Network, PORT, Plan, inner_v4, inner_v6, start_all};

const PATIENCE: Duration = Duration::from_secs(120);
/// Message about a port that has failed.
const SAID: &str = "port vm0 carries no frames";

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for transport in ["udp", "tls"] {
        trials.push(trial(format!("interfaces::{transport}::frames_cross_both_ways"), move || {
            let network = up(transport)?;
            cross(&network)
        }));
        trials.push(trial(
            format!("interfaces::{transport}::super_packets_of_udp_arrive_as_datagrams"),
            move || segmented(transport),
        ));
    }
    trials.push(trial("interfaces::an_interface_that_was_down_carries_frames_again", down_and_up));
    trials.push(trial("interfaces::an_interface_that_is_made_anew_is_joined", made_anew));
    trials.push(trial("interfaces::a_tap_of_the_link_that_was_deleted_is_told", own_tap));
    trials.push(trial("interfaces::frames_with_a_partial_checksum_are_exact", partial_checksums));
    trials.push(trial("interfaces::datagrams_of_a_super_packet_are_exact", exact));
    trials.push(trial("interfaces::what_cannot_be_described_is_counted_and_ends_nothing", unknown));
    trials.push(trial("interfaces::the_links_own_packets_are_not_carried", own_packets));
    trials
}

/// Two hosts whose links are not started, each with its VM's interface as the port.
fn build(transport: &'static str, vms_per_host: usize) -> Result<Network> {
    let network = Network::configured(Plan { transport, vms_per_host, ..Plan::default() })?;
    for host in 0..2 {
        network.edit_config(host, |text| {
            text.replace("bridge = \"br0\"\nname = \"vsl0\"", "interface = \"vm0\"")
        })?;
        if vms_per_host > 0 {
            network.hosts[host].netns.ip("link set vm0 nomaster")?;
        }
    }
    Ok(network)
}

fn start(mut network: Network) -> Result<Network> {
    start_all(&mut network.hosts)?;
    Ok(network)
}

fn up(transport: &'static str) -> Result<Network> {
    start(build(transport, 1)?)
}

fn cross(network: &Network) -> Result<()> {
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let moved = AtomicU64::new(0);
    for at in [inner_v4(1, 0), inner_v6(1, 0)] {
        transfer::run(&a.vms[0], &b.vms[0], at, 4 << 20, &moved)
            .with_context(|| format!("to {at}"))?;
    }
    Ok(())
}

fn until_port(host: &Host, what: &str, reason: Option<&str>) -> Result<()> {
    host.until(what, |status| {
        let port = &status["ports"][0];
        match reason {
            None => port["up"] == true && port["reason"].is_null(),
            Some(reason) => {
                port["up"] == false && port["reason"].as_str().is_some_and(|r| r.contains(reason))
            }
        }
    })
}

fn down_and_up() -> Result<()> {
    let network = up("udp")?;
    let a = &network.hosts[0];
    for times in 1..=2 {
        a.netns.ip("link set vm0 down")?;
        until_port(a, "the port is down", Some("`ip link set vm0 up`"))?;
        let text = a.command(&["status", a.name()])?;
        ensure!(text.contains(SAID), "it is not said: {text}");
        a.netns.ip("link set vm0 up")?;
        until_port(a, "the port is up", None)?;
        cross(&network)?;
        // The link logs each change once, also if frames were sent meanwhile.
        let said = a.words().matches(SAID).count();
        ensure!(said == times, "said {said} times, not {times}: {}", a.words());
    }
    Ok(())
}

fn made_anew() -> Result<()> {
    let network = up("udp")?;
    let a = &network.hosts[0];
    for waits in [true, false] {
        a.netns.delete("vm0")?;
        if waits {
            until_port(a, "the interface is missed", Some("no interface vm0"))?;
        }
        let vm = &a.vms[0];
        vm.veth("eth0", &a.netns, "vm0")?;
        vm.set_sysctl("net.ipv6.conf.eth0.accept_dad", "0")?;
        vm.add_address("eth0", inner_v4(0, 0), 24)?;
        vm.add_address("eth0", inner_v6(0, 0), 64)?;
        vm.up("eth0")?;
        a.netns.up("vm0")?;
        until_port(a, "the new interface is joined", None)?;
        cross(&network)?;
    }
    Ok(())
}

fn own_tap() -> Result<()> {
    let network = Network::up(Plan::default())?;
    let a = &network.hosts[0];
    a.netns.delete("vsl0")?;
    until_port(a, "the tap is missed", Some("start the link again"))
}

/// Sends of many datagrams at once between VMs: they are not split before the port.
fn segmented(transport: &'static str) -> Result<()> {
    const SIZE: usize = 1200;
    const DATAGRAMS: usize = 30;
    const SENDS: usize = 10;
    let network = up(transport)?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let received = |host: &Host| -> Result<u64> {
        host.status()?["ports"][0]["received"]["frames"].as_u64().context("frames")
    };
    let before = received(a)?;
    for (from, to) in [(inner_v4(0, 0), inner_v4(1, 0)), (inner_v6(0, 0), inner_v6(1, 0))] {
        let bind = |netns: &Netns, at: IpAddr| {
            netns.run(|| UdpSocket::bind(SocketAddr::new(at, 0)).context("binding"))
        };
        let (sender, receiver) = (bind(&a.vms[0], from)?, bind(&b.vms[0], to)?);
        sender.connect(receiver.local_addr()?).context("connecting")?;
        setsockopt(&sender, sockopt::UdpGsoSegment, &(SIZE as i32)).context("UDP_SEGMENT")?;
        receiver.set_read_timeout(Some(Duration::from_secs(2)))?;
        for number in 0..SENDS {
            // The last is shorter.
            let sent: Vec<_> =
                (0..SIZE * DATAGRAMS - 100).map(|at| (at * 31 % 251 + number) as u8).collect();
            until_arrived(&sender, &receiver, &sent, SIZE)
                .with_context(|| format!("send {number} to {to}"))?;
        }
    }
    let frames = received(a)? - before;
    // Datagrams of both families.
    let datagrams = 2 * SENDS * DATAGRAMS;
    ensure!(frames < datagrams as u64 / 2, "{frames} frames of {datagrams} datagrams");
    Ok(())
}

/// Sends until all datagrams have come, in order; the first may be lost while neighbours are asked
/// for.
fn until_arrived(from: &UdpSocket, to: &UdpSocket, sent: &[u8], size: usize) -> Result<()> {
    let since = Instant::now();
    let mut buffer = vec![0; 65_536];
    'again: while since.elapsed() < PATIENCE {
        from.send(sent).context("sending")?;
        for expected in sent.chunks(size) {
            let Ok(length) = to.recv(&mut buffer) else { continue 'again };
            ensure!(buffer[..length] == *expected, "a datagram of {length} bytes is another one");
        }
        return Ok(());
    }
    anyhow::bail!("they do not all arrive")
}

/// Taps as the VMs' interfaces, whose frames are the test's; nothing is left to their reader.
fn raw(network: &Network) -> Result<[Tap; 2]> {
    let tap = |host: &Host| -> Result<Tap> {
        let options = TapOptions { offloads: Offloads::NONE, ..TapOptions::default() };
        let tap = host.netns.tap("vm0", &options)?;
        // The host's own noise would come, too.
        host.netns.set_sysctl("net.ipv6.conf.vm0.disable_ipv6", "1")?;
        host.netns.up("vm0")?;
        Ok(tap)
    };
    Ok([tap(&network.hosts[0])?, tap(&network.hosts[1])?])
}

/// A frame of UDP with a correct checksum, or with one that the receiver has to complete.
fn datagram(
    v6: bool,
    tagged: bool,
    id: u16,
    payload: &[u8],
    whole: bool,
) -> (VirtioNetHdr, Vec<u8>) {
    let tag = Tag { ether_type: VLAN, id: 0x3000 | 77 };
    let ethernet = Ethernet {
        source: [2, 0, 0, 0, 0, 9],
        destination: [0xff; 6],
        tags: [tagged.then_some(tag), None],
    };
    let v6_host = |last| std::array::from_fn(|at| if at == 15 { last } else { 0xfd });
    let addresses = if v6 {
        Addresses::V6(v6_host(1), v6_host(2))
    } else {
        Addresses::V4([10, 9, 0, 1], [10, 9, 0, 2])
    };
    let route = Route { identification: id, ..Route::new(ethernet, addresses) };
    let frame = UdpFrame { route, source_port: 0x1234, destination_port: 0x5678 };
    if whole {
        return (VirtioNetHdr::default(), frame.build(payload));
    }
    let frame = frame.partial(payload);
    let offload = OffloadState { needs_checksum: true, gso: None };
    (offload.header(Headers::parse(&frame).as_ref(), frame.len()), frame)
}

/// Sends one frame until exactly these were read in a row at the other end.
fn arrives(from: &Tap, to: &Tap, sent: &(VirtioNetHdr, Vec<u8>), wanted: &[Vec<u8>]) -> Result<()> {
    let mut pool = Pool::default();
    let (mut packet, mut read) = (pool.take(), pool.take());
    packet.fill(sent.0, &sent.1);
    let since = Instant::now();
    let mut got: Vec<Vec<u8>> = Vec::new();
    while since.elapsed() < PATIENCE {
        ensure!(from.write(&packet).context("writing a frame")?, "no room for a frame");
        got.clear();
        let again = Instant::now() + Duration::from_millis(500);
        while Instant::now() < again {
            if !to.read(&mut read).context("reading a frame")? {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            got.push(read.frame().to_vec());
            if got.ends_with(wanted) {
                return Ok(());
            }
        }
    }
    let differs = got.iter().zip(wanted).position(|(got, wanted)| got != wanted);
    anyhow::bail!("{} frames arrived, not {}; first other: {differs:?}", got.len(), wanted.len())
}

/// A packet socket gets the VLAN tag as metadata, and the checksum's offset as if there were
/// none.
fn partial_checksums() -> Result<()> {
    let network = build("udp", 0)?;
    let taps = raw(&network)?;
    let _network = start(network)?;
    for v6 in [false, true] {
        for tagged in [false, true] {
            let sent = datagram(v6, tagged, 7, &[0x5a; 999], false);
            let wanted = [datagram(v6, tagged, 7, &[0x5a; 999], true).1];
            arrives(&taps[0], &taps[1], &sent, &wanted)
                .with_context(|| format!("IPv6 {v6}, tag {tagged}"))?;
        }
    }
    Ok(())
}

fn exact() -> Result<()> {
    const SIZE: usize = 1000;
    let network = build("udp", 0)?;
    let taps = raw(&network)?;
    let _network = start(network)?;
    let payload: Vec<_> = (0..9 * SIZE + 17).map(|at| (at * 13 % 251) as u8).collect();
    for v6 in [false, true] {
        for tagged in [false, true] {
            let (mut header, frame) = datagram(v6, tagged, u16::MAX - 3, &payload, false);
            header.gso_type = GSO_UDP_L4;
            header.gso_size = (SIZE as u16).into();
            let parts = payload.chunks(SIZE).zip(0..);
            let wanted: Vec<_> = parts
                .map(|(part, at)| {
                    let id = (u16::MAX - 3).wrapping_add(at);
                    datagram(v6, tagged, id, part, true).1
                })
                .collect();
            arrives(&taps[1], &taps[0], &(header, frame), &wanted)
                .with_context(|| format!("IPv6 {v6}, tag {tagged}"))?;
        }
    }
    Ok(())
}

/// A datagram that is to leave in fragments: no `virtio_net_hdr` that the kernel writes says so.
fn unknown() -> Result<()> {
    const GSO_UDP: u8 = 3;
    let network = build("udp", 0)?;
    let taps = raw(&network)?;
    let network = start(network)?;
    let a = &network.hosts[0];
    let (mut header, frame) = datagram(false, false, 1, &[5; 5000], false);
    header.gso_type = GSO_UDP;
    header.gso_size = 1480.into();
    let mut packet = Pool::default().take();
    packet.fill(header, &frame);
    for _ in 0..10 {
        ensure!(taps[0].write(&packet).context("writing a frame")?, "no room for a frame");
    }
    a.until("they are counted", |status| status["dropped"]["malformed_frames"] == 10)?;
    let (alone, wanted) =
        (datagram(false, false, 7, &[6; 99], false), datagram(false, false, 7, &[6; 99], true).1);
    arrives(&taps[0], &taps[1], &alone, &[wanted])?;
    until_port(a, "the port is up", None)
}

/// The interface by which the peer reaches this host is a port, too, which `up` cannot know.
fn own_packets() -> Result<()> {
    let mut network = Network::configured(Plan::default())?;
    network.let_wait(0, 1)?;
    network.edit_config(0, |text| {
        text.replace("[[peer]]", "[[port]]\ninterface = \"uplink\"\n[[peer]]")
    })?;
    let tap = network.hosts[1].netns.tap("raw", &TapOptions::default())?;
    network.hosts[1].netns.add_port("br0", "raw")?;
    start_all(&mut network.hosts)?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let moved = AtomicU64::new(0);
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 1 << 20, &moved)?;
    a.until("the link's own packets are counted", |status| {
        status["dropped"]["own"].as_u64() > Some(100)
    })?;
    let port = PORT.to_be_bytes();
    let mut read = Pool::default().take();
    while tap.read(&mut read).context("reading a frame")? {
        let frame = read.frame();
        let is_own = frame.get(34..38).is_some_and(|ports| {
            frame[12..14] == [8, 0] && (ports[..2] == port || ports[2..] == port)
        });
        ensure!(!is_own, "a packet of the link was carried: {:02x?}", &frame[..38]);
    }
    Ok(())
}
