//! Privileges of a running link: /proc shows those of each thread, and the link still works with
//! them. vsnoop-linkd (`privileges::tests`) tests that forbidden calls fail.

use std::fs;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::unistd::User;
use vsnoop_testbed::hosts::{Host, Network, Plan, inner_v4, socket};
use vsnoop_testbed::topology::Family;

use crate::{transfer, trial};

const NET_ADMIN: u64 = 1 << 12;
const BPF: u64 = 1 << 39;
/// Every host has this user.
const USER: &str = "nobody";
const AS_USER: &str = "user = \"nobody\"\n";

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for transport in ["udp", "tls"] {
        for (who, link) in [("as_root", ""), ("as_another_user", AS_USER)] {
            // The peer is killed, and has to be missed.
            let plan = Plan { transport, link, dead_after: Some("5s"), ..Plan::default() };
            let name = format!("privileges::{transport}::a_link_has_what_it_uses_{who}");
            trials.push(trial(name, move || bridged(plan)));
        }
    }
    for (who, link) in [("as_root", ""), ("as_another_user", AS_USER)] {
        let name = format!("privileges::divert::a_tap_that_comes_again_is_hooked_{who}");
        trials.push(trial(name, move || diverting(Plan { link, ..Plan::routed() })));
    }
    trials
}

/// Every thread of the link has these capabilities and no others, may gain none, and is filtered.
fn has(host: &Host, plan: &Plan, capabilities: u64) -> Result<()> {
    let pid = host.link.as_ref().context("no link runs")?.id();
    let uid = match plan.link {
        "" => 0,
        _ => User::from_name(USER)?.context("no such user")?.uid.as_raw(),
    };
    let zero = format!("{:016x}", 0);
    let mask = format!("{capabilities:016x}");
    let wanted = [
        ("CapInh", zero.clone()),
        ("CapPrm", mask.clone()),
        ("CapEff", mask.clone()),
        ("CapBnd", mask),
        ("CapAmb", zero),
        ("NoNewPrivs", "1".to_owned()),
        ("Seccomp", "2".to_owned()),
        ("Uid", [uid; 4].map(|uid| uid.to_string()).join("\t")),
    ];
    let mut threads = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).context("listing threads")? {
        // One of a handshake may end meanwhile.
        let Ok(status) = fs::read_to_string(task?.path().join("status")) else { continue };
        for (name, value) in &wanted {
            let found = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let found = found.with_context(|| format!("no {name} in {status}"))?.trim();
            ensure!(found == value, "{name} is {found}, not {value}: {status}");
        }
        threads += 1;
    }
    ensure!(threads >= 4, "{threads} threads: control, callers, egress and ingress at least");
    Ok(())
}

fn bridged(plan: Plan) -> Result<()> {
    let moved = AtomicU64::new(0);
    let mut network = Network::up(plan.clone())?;
    let (left, right) = network.hosts.split_at_mut(1);
    let (a, b) = (&mut left[0], &mut right[0]);
    has(a, &plan, NET_ADMIN)?;
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 4 << 20, &moved)?;
    // CAP_NET_ADMIN: the bridge takes the tap again.
    a.netns.ip("link set vsl0 nomaster")?;
    a.until("the tap is put back", |status| status["ports"][0]["up"] == true)?;
    // A new session, by new sockets at the link's port.
    b.kill();
    a.until("the peer is missed", |status| status["peers"][0]["state"] != "up")?;
    b.start()?;
    a.until_all_up()?;
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 4 << 20, &moved)?;
    has(a, &plan, NET_ADMIN)?;
    a.command(&["down", a.name()])?;
    ensure!(!socket(a.name()).exists(), "the socket is left");
    ensure!(!a.words().contains("remove /run"), "it complains: {}", a.words());
    Ok(())
}

fn diverting(plan: Plan) -> Result<()> {
    let moved = AtomicU64::new(0);
    let mut network = Network::up(plan.clone())?;
    let active = |host: &Host| {
        host.until("it diverts", |status| {
            let diverts = status["diverts"].as_array();
            diverts.is_some_and(|all| all.iter().all(|divert| divert["state"] == "active"))
        })
    };
    for again in [false, true] {
        if again {
            network.disconnect_vms(0)?;
            network.connect_vms(0)?;
        }
        network.hosts.iter().try_for_each(active)?;
        let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
        has(a, &plan, NET_ADMIN | BPF)?;
        let at = network.vm_address(1, Family::V4);
        transfer::run(&a.vms[0], &b.vms[0], at, 4 << 20, &moved)?;
    }
    Ok(())
}
