//! Broadcasts of a VM are bounded for each VM, and multicast goes to members of the group only.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use vsnoop_packet::packet::Pool;
use vsnoop_testbed::hosts::{Host, Network, Plan};
use vsnoop_testbed::net::Tap;
use vsnoop_testbed::wait::wait_until;

use crate::raw_vm::{BROADCAST, OTHER, OWNER, PATIENCE, frame, introduce, raw_vm, receive, send};
use crate::trial;

/// 239.1.2.3.
const GROUP: [u8; 6] = [1, 0, 0x5e, 1, 2, 3];

pub fn trials() -> Vec<Trial> {
    vec![
        trial("floods::a_vm_that_floods_is_bounded_and_its_neighbour_is_not", bounded),
        trial("floods::multicast_goes_to_members_and_queriers", multicast),
        trial("floods::a_peer_that_comes_up_after_a_query_gets_all_groups", comes_late),
    ]
}

/// The frames that wait at a tap, up to the one with this number of this source.
fn frames_until(tap: &Tap, end: &[u8], is_wanted: impl Fn(&[u8]) -> bool) -> Result<u64> {
    let mut packet = Pool::default().take();
    let mut count = 0;
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        if !tap.read(&mut packet).context("read a frame")? {
            thread::sleep(Duration::from_micros(200));
        } else if packet.frame() == end {
            return Ok(count);
        } else {
            count += u64::from(is_wanted(packet.frame()));
        }
    }
    bail!("the last frame was lost")
}

/// An attacker sends ten times as many broadcasts as it may, from addresses of its own making. Its
/// neighbour's are sent on all the same; every frame that was not is counted.
fn bounded() -> Result<()> {
    const FRAMES: u64 = 4000;
    const RATE: f64 = 100.0;
    let plan = Plan { vms_per_host: 0, link: "flood_rate = 100\n", ..Plan::default() };
    let network = Network::up(plan)?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let (attacker, neighbour) = (raw_vm(a, "raw0")?, raw_vm(a, "raw1")?);
    let other = raw_vm(b, "raw")?;
    introduce(&neighbour, &other, OWNER)?;
    // An address has a rate of its own once it is known for a while.
    thread::sleep(Duration::from_secs(10));
    let before = flood(a)?;
    let since = Instant::now();
    let mut arrived = 0;
    for number in 0..FRAMES as u32 {
        let [high, low] = (number as u16 % 40).to_be_bytes();
        send(&attacker, &frame(BROADCAST, [6, 0, 0, 0, high, low], number))?;
        if number % 100 == 99 {
            let own = frame(BROADCAST, OWNER, number);
            send(&neighbour, &own)?;
            arrived += frames_until(&other, &own, |frame| frame[6] == 6)?;
            thread::sleep(Duration::from_millis(100));
        }
    }
    let allowed = 4.0 * RATE * (1.0 + since.elapsed().as_secs_f64());
    let dropped = flood(a)? - before;
    ensure!(arrived >= 1 && dropped >= 1, "{arrived} arrived, {dropped} were not sent");
    // The bridge of the host sends some of its own (MLD), for which nothing is left.
    ensure!(
        arrived + dropped <= FRAMES + FRAMES / 100,
        "{arrived} arrived, {dropped} were not sent"
    );
    ensure!(arrived as f64 <= allowed + 1.0, "{arrived} arrived, {allowed} are allowed");
    Ok(())
}

/// Frames that were not copied to peers.
fn flood(host: &Host) -> Result<u64> {
    let status = host.status()?;
    Ok(status["ports"][0]["dropped"]["flood"].as_u64().unwrap_or(0))
}

/// The first host has a querier (its bridge), the second a member with a real stack, the third
/// sends; the fourth has neither and gets nothing.
fn multicast() -> Result<()> {
    const FRAMES: u32 = 100;
    let network = Network::up(Plan { hosts: 4, ..Plan::default() })?;
    let [querier, member, source, aside] = &network.hosts[..] else { unreachable!("four hosts") };
    // Only the link keeps frames from these VMs.
    for host in [member, source, aside] {
        host.netns.ip("link set br0 type bridge mcast_snooping 0")?;
    }
    let sender = raw_vm(source, "raw")?;
    let (near, far) = (raw_vm(member, "raw")?, raw_vm(aside, "raw")?);
    introduce(&sender, &near, OWNER)?;
    introduce(&sender, &far, OWNER)?;
    // Without a querier all get it.
    let first = frame(GROUP, OWNER, 0);
    send(&sender, &first)?;
    receive(&near, &first, &[])?;
    receive(&far, &first, &[])?;

    member.vms[0].ip("addr add 239.1.2.3/32 dev eth0 autojoin")?;
    // An IGMPv3 query each second: a member reports that it leaves even if another one reported
    // last.
    querier.netns.ip("link set br0 type bridge mcast_snooping 1 mcast_igmp_version 3 \
         mcast_startup_query_interval 100 mcast_startup_query_count 60 \
         mcast_query_response_interval 50 mcast_querier 1")?;
    wait_until("querier and member are known", PATIENCE, || {
        Ok(knows(source, "01:00:5e:00:00:01")? && knows(source, "01:00:5e:01:02:03")?)
    })?;

    let data: Vec<_> = (1..=FRAMES).map(|number| frame(GROUP, OWNER, number)).collect();
    for one in &data {
        send(&sender, one)?;
        receive(&near, one, &[])?;
    }
    let end = frame(BROADCAST, OTHER, 1);
    send(&sender, &end)?;
    receive(&far, &end, &data)?;

    // The member leaves: the group has the querier's host only.
    member.vms[0].ip("addr del 239.1.2.3/32 dev eth0")?;
    wait_until("the member is forgotten", PATIENCE, || Ok(!knows(source, "01:00:5e:01:02:03")?))?;
    let last = frame(GROUP, OWNER, FRAMES + 1);
    send(&sender, &last)?;
    let end = frame(BROADCAST, OTHER, 2);
    send(&sender, &end)?;
    receive(&near, &end, &[last])
}

/// A querier has asked before the link of the third host is started, and does not ask again soon:
/// that host's VMs have had no reason to report.
fn comes_late() -> Result<()> {
    let mut network = Network::configured(Plan { hosts: 3, ..Plan::default() })?;
    for host in &mut network.hosts[..2] {
        host.start()?;
    }
    let [querier, source, _] = &network.hosts[..] else { unreachable!("three hosts") };
    source.netns.ip("link set br0 type bridge mcast_snooping 0")?;
    querier.until("the source is up", |status| status["peers"][0]["state"] == "up")?;
    querier.netns.ip("link set br0 type bridge mcast_snooping 1 mcast_igmp_version 3 \
         mcast_startup_query_count 1 mcast_query_response_interval 50 mcast_querier 1")?;
    wait_until("the querier is known", PATIENCE, || knows(source, "01:00:5e:00:00:01"))?;
    network.hosts[2].start()?;
    network.hosts[2].until_all_up()?;
    let [_, source, late] = &network.hosts[..] else { unreachable!("three hosts") };
    late.netns.ip("link set br0 type bridge mcast_snooping 0")?;
    let (sender, member) = (raw_vm(source, "raw")?, raw_vm(late, "raw")?);
    introduce(&sender, &member, OWNER)?;
    let data = frame(GROUP, OWNER, 1);
    send(&sender, &data)?;
    receive(&member, &data, &[])
}

/// Does the link know members of this group?
fn knows(host: &Host, group: &str) -> Result<bool> {
    Ok(host.command(&["status", host.name(), "--flows", "--json"])?.contains(group))
}
