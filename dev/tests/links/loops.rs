//! A second path at layer 2 beside a link: the loop is told, a port is stopped for it, or spanning
//! tree finds it.

use std::time::Duration;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use vsnoop_testbed::hosts::{Host, Network, Plan, inner_v4};
use vsnoop_testbed::wait::wait_until;

use crate::raw_vm::PATIENCE;
use crate::trial;

const ECHOES: u16 = 20;
const ECHO_PATIENCE: Duration = Duration::from_secs(60);
/// Waits this long for one echo, which may be lost while addresses are learned again.
const LOST_AFTER: Duration = Duration::from_secs(1);

pub fn trials() -> Vec<Trial> {
    vec![
        trial("loops::a_loop_is_told_and_nothing_is_stopped_unless_it_is_asked_for", told),
        trial("loops::a_port_that_closes_a_loop_is_stopped_and_named", stopped),
        trial("loops::bridges_of_two_hosts_make_one_spanning_tree", spanning_tree),
    ]
}

/// A cable between the bridges of both hosts.
fn cable(network: &Network) -> Result<()> {
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    a.netns.veth("cable", &b.netns, "cable")?;
    for host in [a, b] {
        host.netns.add_port("br0", "cable")?;
    }
    Ok(())
}

fn problems(status: &Value) -> Vec<String> {
    let problems = status["problems"].as_array().into_iter().flatten();
    problems.filter_map(|problem| Some(problem["what"].as_str()?.to_owned())).collect()
}

fn says_loop(status: &Value) -> bool {
    problems(status).iter().any(|what| what.starts_with("a loop: "))
}

fn is_stopped(host: &Host) -> Result<bool> {
    let port = &host.status()?["ports"][0];
    let reason = port["reason"].as_str().unwrap_or_default();
    Ok(port["up"] == false && reason.contains("closes a loop"))
}

/// The VMs ask all for each other, again and again.
fn speak(network: &Network) -> Result<()> {
    for host in &network.hosts {
        host.vms[0].ip("neigh flush dev eth0")?;
        // Answered or not.
        let _ = host.vms[0].ping(inner_v4(1 - host.number(), 0), 1);
    }
    Ok(())
}

/// Both VMs reach each other, and lose nothing from then on.
fn reach_each_other(network: &Network) -> Result<()> {
    for host in &network.hosts {
        let (vm, other) = (&host.vms[0], inner_v4(1 - host.number(), 0));
        let what = format!("the VM of {} reaches the other", host.name());
        wait_until(&what, PATIENCE, || Ok(vm.ping_each(other, 1, LOST_AFTER).is_ok()))?;
    }
    for host in &network.hosts {
        host.vms[0].ping_each(inner_v4(1 - host.number(), 0), ECHOES, ECHO_PATIENCE)?;
    }
    Ok(())
}

fn told() -> Result<()> {
    let network = Network::up(Plan::default())?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    a.vms[0].ping_each(inner_v4(1, 0), ECHOES, ECHO_PATIENCE)?;
    for host in [a, b] {
        ensure!(problems(&host.status()?).is_empty(), "{:?}", problems(&host.status()?));
    }
    cable(&network)?;
    wait_until("the loop is told", PATIENCE, || {
        speak(&network)?;
        Ok(says_loop(&a.status()?) || says_loop(&b.status()?))
    })?;
    for host in [a, b] {
        ensure!(!is_stopped(host)?, "a port is stopped");
    }
    a.netns.delete("cable")?;
    wait_until("the loop is over", PATIENCE, || {
        Ok(!says_loop(&a.status()?) && !says_loop(&b.status()?))
    })?;
    reach_each_other(&network)
}

fn stopped() -> Result<()> {
    let network = Network::up(Plan { link: "loop = \"block\"\n", ..Plan::default() })?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    cable(&network)?;
    wait_until("a port is stopped", PATIENCE, || {
        speak(&network)?;
        Ok(is_stopped(a)? || is_stopped(b)?)
    })?;
    let host = if is_stopped(a)? { a } else { b };
    let status = host.status()?;
    let is_said = problems(&status).iter().any(|what| what.starts_with("port vsl0 is stopped"));
    ensure!(is_said, "{:?}", problems(&status));
    // By the cable: the bridges send nothing to a stopped port.
    reach_each_other(&network)?;
    ensure!(is_stopped(host)?, "it carries frames again");
    a.netns.delete("cable")?;
    for host in &network.hosts {
        network.edit_config(host.number(), |text| text.replace("loop = \"block\"\n", ""))?;
        host.command(&["reload", host.name()])?;
    }
    wait_until("no port is stopped", PATIENCE, || Ok(!is_stopped(a)? && !is_stopped(b)?))?;
    reach_each_other(&network)
}

fn spanning_tree() -> Result<()> {
    let network = Network::up(Plan { link: "stp = true\n", ..Plan::default() })?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    for host in [a, b] {
        host.netns.ip("link set br0 type bridge stp_state 1 forward_delay 200 hello_time 100")?;
    }
    cable(&network)?;
    let ports = |host: &Host| host.netns.ip("-d link show master br0");
    wait_until("a port is blocked", PATIENCE, || {
        Ok([ports(a)?, ports(b)?].iter().any(|ports| ports.contains("state blocking")))
    })?;
    a.vms[0].ping_each(inner_v4(1, 0), ECHOES, ECHO_PATIENCE)?;
    b.vms[0].ping_each(inner_v4(0, 0), ECHOES, ECHO_PATIENCE)
}
