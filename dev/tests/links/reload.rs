//! A link whose configuration changes while it runs.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde_json::Value;

use crate::session::{session, settled};
use crate::{transfer, trial};
use vsnoop_testbed::hosts::{Host, Network, PORT, Plan, inner_v4, keygen};
use vsnoop_testbed::wait::wait_until;

/// A busy machine needs less time than this.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for transport in ["udp", "tls"] {
        let name = format!("reload::{transport}::a_peer_comes_and_goes_and_others_do_not_notice");
        trials.push(trial(name, move || peer_comes(transport)));
    }
    trials.push(trial("reload::an_error_names_its_line_and_leaves_all_as_it_was", wrong));
    trials.push(trial("reload::what_cannot_change_is_refused_before_anything_is_changed", fixed));
    trials.push(trial("reload::a_tap_that_somebody_has_made_is_not_taken", taken));
    trials.push(trial("reload::ports_come_and_go_while_others_carry", ports));
    trials.push(trial("reload::a_key_is_replaced_without_a_break", rotated));
    trials.push(trial("reload::a_peer_whose_key_is_taken_out_is_ended", unpinned));
    trials.push(trial("reload::dead_after_applies_to_connections_that_are_open", dead_after));
    trials.push(trial("reload::sighup_reloads", sighup));
    trials
}

fn reload(host: &Host) -> Result<Value> {
    let text = host.command(&["reload", host.name(), "--json"])?;
    serde_json::from_str(&text).context("the answer is no JSON")
}

/// The configuration without the table of a peer.
fn without(text: &str, peer: &str) -> String {
    let name = format!("\nname = \"{peer}\"");
    let tables = text.split("[[peer]]").filter(|table| !table.starts_with(&name));
    tables.collect::<Vec<_>>().join("[[peer]]")
}

fn peer_comes(transport: &'static str) -> Result<()> {
    let mut network = Network::configured(Plan { hosts: 3, transport, ..Plan::default() })?;
    let whole = network.config(0)?;
    network.edit_config(0, |text| without(text, "h2"))?;
    for host in &mut network.hosts {
        host.start()?;
    }
    let [a, b, c] = &network.hosts[..] else { unreachable!("three hosts") };
    let is_up = |status: &Value, name: &str| {
        let peers = status["peers"].as_array().into_iter().flatten();
        peers.clone().any(|peer| peer["name"] == name && peer["state"] == "up")
    };
    a.until("h1 is up", |status| is_up(status, "h1"))?;
    b.until("h0 and h2 are up", |status| is_up(status, "h0") && is_up(status, "h2"))?;
    ensure!(a.status()?["peers"].as_array().map(Vec::len) == Some(1));
    let moved = AtomicU64::new(0);
    std::thread::scope(|scope| -> Result<()> {
        let running =
            scope.spawn(|| transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 96 << 20, &moved));
        transfer::until_moved(&moved, 4 << 20)?;
        let before = settled(a, "h1")?;
        let frames = |host: &Host| -> Result<u64> {
            host.peer("h1")?["sent"]["frames"].as_u64().context("frames")
        };
        let counted = frames(a)?;
        for round in 0..3 {
            network.edit_config(0, |_| whole.clone())?;
            let answer = reload(a)?;
            ensure!(answer["peers"]["added"][0] == "h2", "{answer}");
            ensure!(answer["peers"]["changed"] == serde_json::json!([]), "{answer}");
            ensure!(a.status()?["peers"].as_array().map(Vec::len) == Some(2), "when it answers");
            a.until("h2 is up", |status| is_up(status, "h2"))?;
            c.until("h0 is up", |status| is_up(status, "h0"))?;
            if round == 0 {
                transfer::run(&a.vms[0], &c.vms[0], inner_v4(2, 0), 4 << 20, &AtomicU64::new(0))?;
            }
            network.edit_config(0, |text| without(text, "h2"))?;
            let answer = reload(a)?;
            ensure!(answer["peers"]["removed"][0] == "h2", "{answer}");
            c.until("h0 is gone", |status| !is_up(status, "h0"))?;
        }
        ensure!(frames(a)? >= counted, "its counters began anew");
        let now = session(a, "h1")?;
        ensure!(now == before, "{before:?} became {now:?}: {}", a.words());
        running.join().map_err(|_| anyhow::anyhow!("the transfer panicked"))?
    })?;
    ensure!(b.peer("h0")?["reconnects"] == 0, "it was disturbed: {}", b.words());
    Ok(())
}

fn wrong() -> Result<()> {
    let network = Network::up(Plan::default())?;
    let a = &network.hosts[0];
    let before = settled(a, "h1")?;
    let text = network.config(0)?;
    network.edit_config(0, |text| text.replace("transport = \"udp\"", "transport = \"udq\""))?;
    let line = 1 + text.lines().position(|line| line.starts_with("transport")).context("a line")?;
    let error = reload(a).err().context("it was taken")?.to_string();
    let named =
        error.contains(&format!("line {line}, column ")) && error.contains("peer.transport");
    ensure!(named && error.contains("goes on as it was"), "{error}");
    ensure!(session(a, "h1")? == before, "{before:?} became {:?}", session(a, "h1")?);
    network.edit_config(0, |_| text.clone())?;
    ensure!(reload(a)?["peers"]["changed"] == serde_json::json!([]));
    ensure!(session(a, "h1")? == before, "{before:?} became {:?}", session(a, "h1")?);
    Ok(())
}

fn fixed() -> Result<()> {
    let network = Network::up(Plan::default())?;
    let a = &network.hosts[0];
    let text = network.config(0)?;
    for (from, to, named) in [
        ("network = \"test\"", "network = \"other\"", "link.network"),
        ("[link]\n", "[link]\nmtu = 9000\n", "link.mtu"),
        ("[link]\n", "[link]\nlocal = \"10.1.0.0/16\"\n", "link.local"),
        (":7757\"\nkey", ":7758\"\nkey", "link.listen"),
        ("bridge = \"br0\"\n", "bridge = \"br9\"\n", "no bridge br9"),
    ] {
        let edited = text.replacen(from, to, 1);
        ensure!(edited != text, "{from:?} is not in {text}");
        // The daemon refuses changes that it could make together with this one.
        network.edit_config(0, |_| without(&edited, "h1").replace("[[port]]", &other_peer()))?;
        let error = reload(a).err().with_context(|| format!("{to:?} was taken"))?.to_string();
        ensure!(error.contains(named), "{named} is not in {error}");
        ensure!(a.peer("h1")?["state"] == "up");
    }
    Ok(())
}

/// A VM's, say; `up` refuses it, too.
fn taken() -> Result<()> {
    let network = Network::up(Plan::default())?;
    let a = &network.hosts[0];
    let text = network.config(0)?;
    network.edit_config(0, |_| format!("{text}[[port]]\ntap = \"taken0\"\n"))?;
    for kind in ["", "multi_queue"] {
        a.netns.ip(&format!("tuntap add dev taken0 mode tap vnet_hdr {kind}"))?;
        let error = reload(a).err().context("it was taken")?.to_string();
        ensure!(error.contains("taken0 exists already"), "{error}");
        ensure!(a.status()?["ports"].as_array().map(Vec::len) == Some(1));
        a.netns.ip("link del taken0")?;
    }
    reload(a).map(drop)
}

/// A `[[peer]]` with an unused key, and the head of the next table.
fn other_peer() -> String {
    let key = "YmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmI=";
    format!("[[peer]]\nname = \"x\"\nkey = \"{key}\"\n[[port]]")
}

fn ports() -> Result<()> {
    let network = Network::up(Plan::default())?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    a.netns.bridge("br1")?;
    a.netns.ip("link add pair0 type veth peer name pair1")?;
    a.netns.ip("link set pair0 up")?;
    let moved = AtomicU64::new(0);
    let text = network.config(0)?;
    let master = |name: &str| a.netns.ip(&format!("-o link show {name}"));
    std::thread::scope(|scope| -> Result<()> {
        let running =
            scope.spawn(|| transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 64 << 20, &moved));
        transfer::until_moved(&moved, 4 << 20)?;
        let before = settled(a, "h1")?;
        for _ in 0..2 {
            let more = "[[port]]\nbridge = \"br1\"\nname = \"vsl1\"\n[[port]]\ntap = \"vsl2\"\n\
                        [[port]]\ninterface = \"pair0\"\n";
            network.edit_config(0, |_| format!("{text}{more}"))?;
            let answer = reload(a)?;
            let added = &answer["ports"]["added"];
            ensure!(*added == serde_json::json!(["vsl1", "vsl2", "pair0"]), "{answer}");
            a.until("all ports carry", |status| {
                let ports = status["ports"].as_array().into_iter().flatten();
                ports.clone().count() == 4 && ports.clone().all(|port| port["up"] == true)
            })?;
            ensure!(master("vsl1")?.contains("master br1"), "{}", master("vsl1")?);
            // The tap leaves its bridge.
            let bare = more.replace("bridge = \"br1\"\nname", "tap");
            network.edit_config(0, |_| format!("{text}{bare}"))?;
            ensure!(reload(a)?["ports"]["changed"] == serde_json::json!(["vsl1"]));
            ensure!(!master("vsl1")?.contains("master"), "{}", master("vsl1")?);
            network.edit_config(0, |_| text.clone())?;
            let answer = reload(a)?;
            ensure!(answer["ports"]["removed"].as_array().map(Vec::len) == Some(3), "{answer}");
            for gone in ["vsl1", "vsl2"] {
                ensure!(master(gone).is_err(), "{gone} is still there");
            }
        }
        ensure!(session(a, "h1")? == before, "{before:?} became {:?}", session(a, "h1")?);
        running.join().map_err(|_| anyhow::anyhow!("the transfer panicked"))?
    })
}

/// Host 1 gets another key: first its peer knows both, then host 1 has the new one, then its peer
/// knows that alone.
fn rotated() -> Result<()> {
    let network = Network::up(Plan::default())?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let file = network.file("new.key");
    let new = keygen(&file)?;
    let text = network.config(0)?;
    let old = text.split("[[peer]]").nth(1).and_then(|table| table.split("key = ").nth(1));
    let old = old.and_then(|rest| rest.lines().next()).context("no key")?;
    let moved = AtomicU64::new(0);
    std::thread::scope(|scope| -> Result<()> {
        let running =
            scope.spawn(|| transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 96 << 20, &moved));
        transfer::until_moved(&moved, 4 << 20)?;
        network.edit_config(0, |text| text.replace(old, &format!("[{old}, \"{new}\"]")))?;
        ensure!(reload(a)?["peers"]["changed"] == serde_json::json!(["h1"]));
        let own = network.key_file(1).display().to_string();
        network.edit_config(1, |text| text.replace(&own, &file.display().to_string()))?;
        let rekeys = b.peer("h0")?["rekeys"].as_u64();
        ensure!(reload(b)?["key"] == true);
        ensure!(b.status()?["key"] == new.as_str());
        b.until("a session with the new key", |status| {
            status["peers"][0]["rekeys"].as_u64() > rekeys
        })?;
        network.edit_config(0, |_| text.replace(old, &format!("\"{new}\"")))?;
        reload(a)?;
        running.join().map_err(|_| anyhow::anyhow!("the transfer panicked"))?
    })?;
    for (host, peer) in [(a, "h1"), (b, "h0")] {
        let peer = host.peer(peer)?;
        ensure!(peer["state"] == "up" && peer["reconnects"] == 0, "{peer}\n{}", host.words());
    }
    Ok(())
}

/// The session of a key that is pinned no more does not go on.
fn unpinned() -> Result<()> {
    let network = Network::up(Plan::default())?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let key = keygen(&network.file("other.key"))?;
    let public = b.status()?["key"].as_str().context("no key")?.to_owned();
    network.edit_config(0, |text| text.replace(&public, &key))?;
    reload(a)?;
    ensure!(a.peer("h1")?["state"] != "up", "{}", a.peer("h1")?);
    a.until("the reason is shown", |status| {
        status["peers"][0]["reason"].as_str().is_some_and(|reason| reason.contains("pinned"))
    })?;
    b.until("it knows", |status| status["peers"][0]["state"] != "up")?;
    network.edit_config(0, |text| text.replace(&key, &public))?;
    reload(a)?;
    a.until_all_up()
}

/// Asks the kernel for `TCP_USER_TIMEOUT` (RFC 5482) of a host's connections to its peers.
fn user_timeouts(host: &Host) -> Result<Vec<Duration>> {
    let pid = host.status()?["pid"].as_i64().context("pid")? as i32;
    let pid = Pid::from_raw(pid).context("a process")?;
    let process = pidfd_open(pid, PidfdFlags::empty()).context("pidfd_open")?;
    let mut timeouts = Vec::new();
    let files = format!("/proc/{}/fd", pid.as_raw_pid());
    for file in std::fs::read_dir(&files).with_context(|| files.clone())? {
        let number = file?.file_name().to_string_lossy().parse()?;
        // It may have been closed meanwhile.
        let Ok(file) = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) else { continue };
        let socket = socket2::SockRef::from(&file);
        let ports = [socket.local_addr(), socket.peer_addr()].map(|address| {
            address.ok().and_then(|address| address.as_socket()).map(|address| address.port())
        });
        if ports[1].is_some() && ports.contains(&Some(PORT)) {
            timeouts.extend(socket.tcp_user_timeout().ok().flatten());
        }
    }
    Ok(timeouts)
}

fn dead_after() -> Result<()> {
    const CONNECTIONS: usize = 4;
    let plan = Plan { transport: "tls", dead_after: Some("60s"), ..Plan::default() };
    let network = Network::up(plan)?;
    let a = &network.hosts[0];
    let until = |expected: u64| {
        wait_until(&format!("it is {expected} s"), PATIENCE, || {
            let timeouts = user_timeouts(a)?;
            let all = timeouts.iter().all(|timeout| *timeout == Duration::from_secs(expected));
            Ok(timeouts.len() >= CONNECTIONS && all)
        })
    };
    let before = settled(a, "h1")?;
    until(60)?;
    network.edit_config(0, |text| text.replace("dead_after = \"60s\"", "dead_after = \"90s\""))?;
    reload(a)?;
    until(90)?;
    ensure!(session(a, "h1")? == before, "{before:?} became {:?}", session(a, "h1")?);
    Ok(())
}

fn sighup() -> Result<()> {
    let mut network = Network::configured(Plan::default())?;
    network.edit_config(0, |text| {
        text.replace("[[peer]]", &other_peer().replace("[[port]]", "[[peer]]"))
    })?;
    network.hosts.iter_mut().try_for_each(Host::start)?;
    let a = &network.hosts[0];
    a.until("h1 is up", |status| status["peers"][1]["state"] == "up")?;
    let before = settled(a, "h1")?;
    network.edit_config(0, |text| without(text, "x"))?;
    let pid = a.status()?["pid"].as_i64().context("pid")? as i32;
    let hup = nix::sys::signal::Signal::SIGHUP;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), hup).context("SIGHUP")?;
    a.until("the other peer is gone", |status| {
        status["peers"].as_array().map(Vec::len) == Some(1)
    })?;
    ensure!(session(a, "h1")? == before, "{before:?} became {:?}", session(a, "h1")?);
    network.edit_config(0, |text| text.replace("[[peer]]", "[[pear]]"))?;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), hup).context("SIGHUP")?;
    a.until("it is logged", |_| a.words().contains("the configuration stays as it was"))?;
    ensure!(session(a, "h1")? == before, "{before:?} became {:?}", session(a, "h1")?);
    Ok(())
}
