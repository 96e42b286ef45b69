//! Hosts that know each other by etcd: the packaged one, on the hosts' network.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use serde_json::Value;
use vsnoop_testbed::hosts::{Etcd, EtcdOptions, EtcdTls, Host, Network, Plan, inner_v4, keygen};
use vsnoop_testbed::soak::soaked;
use vsnoop_testbed::wait::wait_until;

use crate::session::{session, settled};
use crate::{transfer, trial};

/// Short, so that a host that dies is gone soon.
const TTL_S: u64 = 5;
/// An entry that is gone before was taken out.
const LONG_TTL_S: u64 = 120;
/// `link.dead_after` where a host is killed: it is missed, and one that gets no CPU for a while is
/// not.
const MISSED_AFTER: Option<&str> = Some("20s");
/// A key that no host has.
const FRESH: &str = "YmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmI=";

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for transport in ["udp", "tls"] {
        let name = format!("membership::{transport}::a_host_joins_and_leaves_and_others_go_on");
        trials.push(trial(name, move || joins(transport)));
    }
    for (name, test) in [
        ("a_host_that_dies_is_gone_with_its_lease", dies as fn() -> Result<()>),
        ("a_host_changes_its_key_without_a_break", rotated),
        ("what_is_no_host_is_named_and_disturbs_nobody", refused),
        ("a_name_that_another_host_has_is_not_taken_from_it", taken),
        ("what_is_known_goes_on_while_etcd_is_away", away),
        ("a_host_that_only_etcd_misses_keeps_its_sessions", cut_off),
        ("a_host_whose_entry_is_deleted_is_ended", deleted),
        ("a_leader_is_killed_and_hosts_join_leave_and_change_keys", many),
        ("hosts_are_known_to_etcd_by_their_certificates", certified),
        ("a_password_that_is_wrong_is_said_and_tokens_are_renewed", passwords),
        ("a_reload_changes_how_etcd_is_reached", reloaded),
    ] {
        trials.push(trial(format!("membership::{name}"), test));
    }
    trials
}

/// A network whose hosts all know of this etcd; no link runs yet.
pub fn network(plan: Plan, nodes: usize, options: EtcdOptions) -> Result<(Network, Etcd)> {
    let network = Network::configured(plan)?;
    let etcd = network.etcd(nodes, options)?;
    announce(&network, &etcd, TTL_S)?;
    Ok((network, etcd))
}

/// All hosts know of this etcd, and have leases of this time.
fn announce(network: &Network, etcd: &Etcd, ttl_s: u64) -> Result<()> {
    let line = format!("ttl = \"{ttl_s}s\"\n");
    (0..network.hosts.len()).try_for_each(|host| network.announce(host, etcd, &line))
}

fn names(status: &Value, wanted: impl Fn(&Value) -> bool) -> Vec<&str> {
    let peers = status["peers"].as_array().into_iter().flatten();
    peers.filter(|peer| wanted(peer)).filter_map(|peer| peer["name"].as_str()).collect()
}

/// Waits until a host has these peers, all of them up.
fn until_peers(host: &Host, wanted: &[&str]) -> Result<()> {
    let what = format!("the peers are {wanted:?}");
    host.until(&what, |status| {
        names(status, |_| true) == wanted && names(status, |peer| peer["state"] == "up") == wanted
    })
}

fn joins(transport: &'static str) -> Result<()> {
    let plan = Plan { hosts: 3, transport, ..Plan::default() };
    let mut network = Network::configured(plan)?;
    let etcd = network.etcd(1, EtcdOptions::default())?;
    announce(&network, &etcd, LONG_TTL_S)?;
    let (two, third) = network.hosts.split_at_mut(2);
    two.iter_mut().try_for_each(Host::start)?;
    let ([a, b], [c]) = (&*two, third) else { unreachable!("three hosts") };
    until_peers(a, &["h1"])?;
    until_peers(b, &["h0"])?;
    let before = settled(a, "h1")?;
    let moved = AtomicU64::new(0);
    std::thread::scope(|scope| -> Result<()> {
        let running =
            scope.spawn(|| transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 64 << 20, &moved));
        transfer::until_moved(&moved, 4 << 20)?;
        for _ in 0..2 {
            c.start()?;
            until_peers(c, &["h0", "h1"])?;
            until_peers(a, &["h1", "h2"])?;
            until_peers(b, &["h0", "h2"])?;
            transfer::run(&a.vms[0], &c.vms[0], inner_v4(2, 0), 1 << 20, &AtomicU64::new(0))?;
            c.command(&["down", c.name()])?;
            c.kill();
            // Not by the end of its lease: the process has taken it out.
            wait_until("its entry is gone", Duration::from_secs(LONG_TTL_S / 2), || {
                Ok(etcd.control(&["get", "/vsnoop/test/h2"])?.is_empty())
            })?;
            until_peers(a, &["h1"])?;
            until_peers(b, &["h0"])?;
        }
        running.join().map_err(|_| anyhow::anyhow!("the transfer panicked"))?
    })?;
    ensure!(session(a, "h1")? == before, "{before:?} became {:?}", session(a, "h1")?);
    let membership = &a.status()?["membership"];
    ensure!(membership["source"] == "etcd" && membership["connected"] == true, "{membership}");
    ensure!(membership["hosts"] == 1 && membership["announced"] == true, "{membership}");
    ensure!(membership["refused"].as_array().is_some_and(Vec::is_empty), "{membership}");
    let source = a.peer("h1").context("a peer")?["source"].clone();
    ensure!(source == "etcd", "it is known by {source}");
    Ok(())
}

fn dies() -> Result<()> {
    let plan = Plan { hosts: 3, dead_after: MISSED_AFTER, ..Plan::default() };
    let (mut network, etcd) = network(plan, 1, EtcdOptions::default())?;
    start_all(&mut network, &[])?;
    let before = settled(&network.hosts[0], "h1")?;
    network.hosts[2].kill();
    until_peers(&network.hosts[0], &["h1"])?;
    until_peers(&network.hosts[1], &["h0"])?;
    ensure!(etcd.control(&["get", "/vsnoop/test/h2"])?.is_empty(), "its entry is left");
    // The next process finds no entry, or the one that was left.
    for _ in 0..2 {
        network.hosts[2].start()?;
        until_peers(&network.hosts[2], &["h0", "h1"])?;
        network.hosts[2].kill();
    }
    ensure!(session(&network.hosts[0], "h1")? == before, "the other was disturbed");
    Ok(())
}

/// Starts these hosts, all if none is named, and waits until each has all others for peers.
fn start_all(network: &mut Network, chosen: &[usize]) -> Result<()> {
    let all: Vec<_> = (0..network.hosts.len()).collect();
    let chosen = if chosen.is_empty() { &all[..] } else { chosen };
    for host in chosen {
        network.hosts[*host].start()?;
    }
    chosen.iter().try_for_each(|host| until_others(network, *host, chosen))
}

/// Waits until a host has exactly these others for peers, all up.
fn until_others(network: &Network, host: usize, all: &[usize]) -> Result<()> {
    let mut others: Vec<_> =
        all.iter().filter(|other| **other != host).map(|other| format!("h{other}")).collect();
    others.sort();
    let others: Vec<_> = others.iter().map(String::as_str).collect();
    until_peers(&network.hosts[host], &others)
}

/// Gives a host a new key, and waits until all others have a session with it.
fn change_key(network: &Network, host: usize, others: &[usize], round: usize) -> Result<String> {
    let file = network.file(&format!("{host}.{round}.key"));
    let new = keygen(&file)?;
    network.edit_config(host, |text| {
        let is_key = |line: &&str| line.starts_with("key = ");
        let before = text.lines().find(is_key).unwrap_or_default().to_owned();
        text.replacen(&before, &format!("key = \"{}\"", file.display()), 1)
    })?;
    let changed = &network.hosts[host];
    let name = format!("h{host}");
    let rekeys = |other: &usize| Ok(network.hosts[*other].peer(&name)?["rekeys"].clone());
    let before = others.iter().map(rekeys).collect::<Result<Vec<_>>>()?;
    let answer = changed.command(&["reload", changed.name(), "--json"])?;
    ensure!(answer.contains("\"key\":true"), "{answer}");
    for (other, before) in others.iter().zip(before) {
        network.hosts[*other].until("a session with the new key", |status| {
            let peers = status["peers"].as_array().into_iter().flatten();
            peers.clone().any(|peer| {
                peer["name"] == name.as_str()
                    && peer["state"] == "up"
                    && peer["rekeys"].as_u64() > before.as_u64()
            })
        })?;
    }
    Ok(new)
}

fn rotated() -> Result<()> {
    let (mut network, etcd) = network(Plan::default(), 1, EtcdOptions::default())?;
    start_all(&mut network, &[])?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let old = b.status()?["key"].as_str().context("a key")?.to_owned();
    let moved = AtomicU64::new(0);
    let new = std::thread::scope(|scope| -> Result<String> {
        let running =
            scope.spawn(|| transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 96 << 20, &moved));
        transfer::until_moved(&moved, 4 << 20)?;
        let new = change_key(&network, 1, &[0], 0)?;
        running.join().map_err(|_| anyhow::anyhow!("the transfer panicked"))??;
        Ok(new)
    })?;
    for (host, peer) in [(a, "h1"), (b, "h0")] {
        let peer = host.peer(peer)?;
        ensure!(peer["state"] == "up" && peer["reconnects"] == 0, "{peer}\n{}", host.words());
    }
    // In the end no host has the old key.
    a.until("the old key is taken back", |_| {
        let entry = etcd.control(&["get", "/vsnoop/test/h1"]).unwrap_or_default();
        entry.contains(&new) && !entry.contains(&old)
    })?;
    ensure!(a.peer("h1")?["reconnects"] == 0, "the session was made anew: {}", a.words());
    Ok(())
}

/// The reason why an entry is not taken.
fn reason<'s>(status: &'s Value, name: &str) -> Option<&'s str> {
    let refused = status["membership"]["refused"].as_array()?;
    refused.iter().find(|entry| entry["name"] == name)?["reason"].as_str()
}

fn document(key: &str) -> String {
    format!(r#"{{"version":1,"keys":["{key}"],"addresses":[]}}"#)
}

fn refused() -> Result<()> {
    let plan = Plan { hosts: 3, ..Plan::default() };
    let (mut network, etcd) = network(plan, 1, EtcdOptions::default())?;
    // A peer of the file counts before etcd's.
    let keys = [0, 1, 2].map(|host| keygen_show(&network, host));
    let [own, of_b, of_c] = keys.map(|key| key.context("a key"));
    let (own, of_b, of_c) = (own?, of_b?, of_c?);
    network.edit_config(0, |text| {
        let peer = format!("[[peer]]\nname = \"fixed\"\nkey = \"{of_c}\"\n");
        format!("{text}{peer}address = \"10.77.0.3\"\n")
    })?;
    let (a, others) = network.hosts.split_at_mut(1);
    let a = &mut a[0];
    a.start()?;
    others.iter_mut().try_for_each(Host::start)?;
    until_peers(a, &["fixed", "h1"])?;
    // Either end may have called: a session is settled when both have it.
    until_peers(&others[0], &["h0", "h2"])?;
    until_peers(&others[1], &["h0", "h1"])?;
    let before = [settled(a, "h1")?, settled(a, "fixed")?];
    let long = "x".repeat(5000);
    let two = document(FRESH).replace("\"version\":1", "\"version\":2");
    for (name, value, why) in [
        ("garbage", "\u{1b}[2J no json", "no description"),
        ("later", &two, "newer vsnoop"),
        ("long", &long, "too long"),
        ("mine", &document(&own), "key of this host"),
        ("thief", &document(&of_b), "a key of h1"),
        ("fixed", &document(FRESH), "the file has a [[peer]]"),
        ("../x", &document(FRESH), "its name cannot be that of a host"),
    ] {
        etcd.control(&["put", &format!("/vsnoop/test/{name}"), value])?;
        a.until(why, |status| reason(status, name).is_some_and(|reason| reason.contains(why)))?;
    }
    // A host with the key of a peer of the file, under another name.
    a.until("h2 is refused", |status| {
        reason(status, "h2").is_some_and(|reason| reason.contains("a key of fixed"))
    })?;
    let text = a.command(&["status", a.name()])?;
    ensure!(text.contains("entry garbage in etcd is not taken"), "{text}");
    ensure!(!a.words().contains('\u{1b}'), "the log has what etcd has said");
    // An entry that goes bad leaves the peer as it was.
    etcd.control(&["put", "/vsnoop/test/guest", &document(FRESH)])?;
    a.until("a guest", |status| names(status, |_| true) == ["fixed", "guest", "h1"])?;
    etcd.control(&["put", "/vsnoop/test/guest", "{}"])?;
    a.until("it is refused", |status| reason(status, "guest").is_some())?;
    ensure!(names(&a.status()?, |_| true) == ["fixed", "guest", "h1"]);
    etcd.control(&["del", "/vsnoop/test/guest"])?;
    a.until("the guest is gone", |status| names(status, |_| true) == ["fixed", "h1"])?;
    for name in ["garbage", "later", "long", "mine", "thief", "fixed", "../x"] {
        etcd.control(&["del", &format!("/vsnoop/test/{name}")])?;
    }
    a.until("only h2 is refused", |status| {
        status["membership"]["refused"].as_array().map(Vec::len) == Some(1)
    })?;
    let now = [session(a, "h1")?, session(a, "fixed")?];
    ensure!(now == before, "{before:?} became {now:?}: {}", a.words());
    Ok(())
}

/// Another host has the name of this one.
fn taken() -> Result<()> {
    let (mut network, etcd) = network(Plan::default(), 1, EtcdOptions::default())?;
    start_all(&mut network, &[])?;
    let (a, b) = network.hosts.split_at_mut(1);
    let (a, b) = (&a[0], &mut b[0]);
    let get = ["get", "--print-value-only", "/vsnoop/test/h1"];
    let before = etcd.control(&get)?;
    b.command(&["down", b.name()])?;
    b.kill();
    etcd.control(&["put", "/vsnoop/test/h1", &document(FRESH)])?;
    b.start()?;
    b.until("the name is taken", |status| {
        let why = status["membership"]["not_announced"].as_str();
        why.is_some_and(|why| why.contains("announces the name h1"))
    })?;
    ensure!(etcd.control(&get)?.contains(FRESH), "it has written over the other");
    etcd.control(&["del", "/vsnoop/test/h1"])?;
    until_peers(a, &["h1"])?;
    let now = etcd.control(&get)?;
    ensure!(now == before, "{now} and not {before}");
    Ok(())
}

fn keygen_show(network: &Network, host: usize) -> Result<String> {
    let file = network.key_file(host).display().to_string();
    Ok(network.hosts[host].command(&["keygen", "--show", &file])?.trim().to_owned())
}

fn is_away(status: &Value) -> bool {
    let membership = &status["membership"];
    membership["connected"] == false && !membership["reason"].is_null()
}

fn away() -> Result<()> {
    let plan = Plan { hosts: 4, dead_after: MISSED_AFTER, ..Plan::default() };
    let (mut network, mut etcd) = network(plan, 1, EtcdOptions::default())?;
    start_all(&mut network, &[0, 1, 2])?;
    let before = settled(&network.hosts[0], "h1")?;
    etcd.kill_all()?;
    network.hosts[0].until("it is away", is_away)?;
    // A host comes up with the peers of its file, and says that there may be more.
    let of_a = keygen_show(&network, 0)?;
    let peer = format!("[[peer]]\nname = \"h0\"\nkey = \"{of_a}\"\naddress = \"10.77.0.1\"\n");
    network.edit_config(3, |text| format!("{text}{peer}"))?;
    network.hosts[3].start()?;
    network.hosts[3].until("it is away", is_away)?;
    ensure!(names(&network.hosts[3].status()?, |_| true) == ["h0"]);
    // For longer than the leases.
    std::thread::sleep(Duration::from_secs(7));
    for (host, others) in [(0, ["h1", "h2"]), (1, ["h0", "h2"]), (2, ["h0", "h1"])] {
        until_peers(&network.hosts[host], &others)?;
    }
    let (a, b) = (&network.hosts[0], &network.hosts[1]);
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 4 << 20, &AtomicU64::new(0))?;
    // One dies meanwhile: it stays known, and comes back without etcd.
    network.hosts[2].kill();
    network.hosts[0]
        .until("h2 is missed", |status| names(status, |peer| peer["state"] != "up") == ["h2"])?;
    etcd.start_all()?;
    for host in 0..2 {
        until_others(&network, host, &[0, 1, 3])?;
    }
    until_others(&network, 3, &[0, 1, 3])?;
    // The missed revisions are compacted: they cannot be watched.
    etcd.kill_all()?;
    network.hosts[1].until("it is away", is_away)?;
    etcd.start_all()?;
    etcd.control(&["put", "/vsnoop/test/x", "1"])?;
    etcd.control(&["del", "/vsnoop/test/x"])?;
    etcd.compact()?;
    network.hosts[2].start()?;
    for host in 0..4 {
        until_others(&network, host, &[0, 1, 2, 3])?;
    }
    let after = session(&network.hosts[0], "h1")?;
    ensure!(after == before, "{before:?} became {after:?}: {}", network.hosts[0].words());
    Ok(())
}

fn cut_off() -> Result<()> {
    let plan = Plan { hosts: 3, dead_after: MISSED_AFTER, ..Plan::default() };
    let (mut network, etcd) = network(plan, 1, EtcdOptions::default())?;
    start_all(&mut network, &[])?;
    let [a, b, c] = &network.hosts[..] else { unreachable!("three hosts") };
    let before = [settled(a, "h2")?, settled(b, "h2")?, settled(c, "h0")?];
    let node = etcd.address(0);
    c.netns.ip(&format!("route add blackhole {node}/32"))?;
    c.until("etcd is away", is_away)?;
    for host in [a, b] {
        host.until("its lease has ended", |status| {
            status["membership"]["leaving"] == serde_json::json!(["h2"])
        })?;
    }
    let now = [session(a, "h2")?, session(b, "h2")?, session(c, "h0")?];
    ensure!(now == before, "{before:?} became {now:?}: {}", c.words());
    transfer::run(&a.vms[0], &c.vms[0], inner_v4(2, 0), 4 << 20, &AtomicU64::new(0))?;
    c.netns.ip(&format!("route del blackhole {node}/32"))?;
    for host in [a, b] {
        host.until("it is there again", |status| {
            status["membership"]["leaving"] == serde_json::json!([])
                && status["membership"]["hosts"] == 2
        })?;
    }
    let now = [session(a, "h2")?, session(b, "h2")?, session(c, "h0")?];
    ensure!(now == before, "{before:?} became {now:?}: {}", c.words());
    // Cut off again, it ends at once.
    c.netns.ip(&format!("route add blackhole {node}/32"))?;
    a.until("its lease has ended", |status| {
        status["membership"]["leaving"] == serde_json::json!(["h2"])
    })?;
    network.hosts[2].kill();
    until_peers(&network.hosts[0], &["h1"])?;
    until_peers(&network.hosts[1], &["h0"])
}

/// Written by an operator, after the host has lost the right to write it.
fn deleted() -> Result<()> {
    let plan = Plan { hosts: 3, ..Plan::default() };
    let (mut network, mut etcd) = network(plan, 1, EtcdOptions::default())?;
    users(&mut etcd, 3)?;
    for host in 0..3 {
        login(&network, host, &format!("word-{host}"))?;
    }
    start_all(&mut network, &[])?;
    let [a, b, c] = &network.hosts[..] else { unreachable!("three hosts") };
    let before = settled(a, "h1")?;
    etcd.control(&["role", "revoke-permission", "h2", "/vsnoop/test/h2"])?;
    etcd.control(&["del", "/vsnoop/test/h2"])?;
    until_peers(a, &["h1"])?;
    until_peers(b, &["h0"])?;
    c.until("it knows", |status| names(status, |peer| peer["state"] == "up").is_empty())?;
    ensure!(session(a, "h1")? == before, "the other was disturbed");
    // With the right it is there again.
    etcd.control(&["role", "grant-permission", "h2", "readwrite", "/vsnoop/test/h2"])?;
    (0..3).try_for_each(|host| until_others(&network, host, &[0, 1, 2]))
}

/// Three nodes, and many hosts that come and go while one leader is killed after the other.
fn many() -> Result<()> {
    let hosts = soaked(6, 20);
    let plan = Plan { hosts, dead_after: MISSED_AFTER, ..Plan::default() };
    let (mut network, mut etcd) = network(plan, 3, EtcdOptions::default())?;
    let all: Vec<_> = (0..hosts).collect();
    let (last, others) = all.split_last().context("a host")?;
    start_all(&mut network, others)?;
    let before = settled(&network.hosts[0], "h1")?;
    for round in 0..soaked(1, 3) {
        let leader = etcd.leader()?;
        etcd.kill(leader)?;
        let since = std::time::Instant::now();
        network.hosts[*last].start()?;
        all.iter().try_for_each(|host| until_others(&network, *host, &all))?;
        eprintln!("{hosts} hosts, leader killed: joined after {:?}", since.elapsed());
        let since = std::time::Instant::now();
        change_key(&network, *last, others, round)?;
        eprintln!("{hosts} hosts: a new key is known after {:?}", since.elapsed());
        let since = std::time::Instant::now();
        network.hosts[*last].command(&["down", network.hosts[*last].name()])?;
        network.hosts[*last].kill();
        others.iter().try_for_each(|host| until_others(&network, *host, others))?;
        eprintln!("{hosts} hosts: left after {:?}", since.elapsed());
        etcd.start_all()?;
        // All nodes are there.
        let since = std::time::Instant::now();
        network.hosts[*last].start()?;
        all.iter().try_for_each(|host| until_others(&network, *host, &all))?;
        eprintln!("{hosts} hosts, three nodes: joined after {:?}", since.elapsed());
        network.hosts[*last].kill();
        others.iter().try_for_each(|host| until_others(&network, *host, others))?;
    }
    let after = session(&network.hosts[0], "h1")?;
    ensure!(after == before, "{before:?} became {after:?}: {}", network.hosts[0].words());
    Ok(())
}

/// Roles as the documents advise: a host writes its own entry and reads all.
fn users(etcd: &mut Etcd, hosts: usize) -> Result<()> {
    etcd.control(&["user", "add", "root:word-of-root"])?;
    etcd.control(&["user", "grant-role", "root", "root"])?;
    for host in 0..hosts {
        let (name, key) = (format!("h{host}"), format!("/vsnoop/test/h{host}"));
        etcd.control(&["role", "add", &name])?;
        let grant = ["role", "grant-permission", &name];
        etcd.control(&[&grant[..], &["--prefix", "read", "/vsnoop/test/"]].concat())?;
        etcd.control(&[&grant[..], &["readwrite", &key]].concat())?;
        etcd.control(&["user", "add", &format!("{name}:word-{host}")])?;
        etcd.control(&["user", "grant-role", &name, &name])?;
    }
    etcd.control(&["auth", "enable"])?;
    etcd.options.user = Some("root:word-of-root".to_owned());
    Ok(())
}

fn login(network: &Network, host: usize, password: &str) -> Result<()> {
    let file = network.file(&format!("{host}.password"));
    fs::write(&file, format!("{password}\n")).context("writing a password")?;
    fs::set_permissions(&file, Permissions::from_mode(0o600)).context("protecting a password")?;
    let line = format!("user = \"h{host}\"\npassword = \"{}\"\n", file.display());
    network.edit_config(host, |text| match text.contains("\nuser = ") {
        true => text.to_owned(),
        false => text.replacen("[etcd]\n", &format!("[etcd]\n{line}"), 1),
    })
}

fn passwords() -> Result<()> {
    let plan = Plan { hosts: 3, ..Plan::default() };
    // Tokens end while they are in use.
    let arguments = &["--auth-token-ttl", "2"];
    let options = EtcdOptions { arguments, ..EtcdOptions::default() };
    let (mut network, mut etcd) = network(plan, 1, options)?;
    users(&mut etcd, 3)?;
    login(&network, 0, "word-0")?;
    login(&network, 1, "word-1")?;
    login(&network, 2, "another word")?;
    start_all(&mut network, &[0, 1])?;
    let c = &mut network.hosts[2];
    c.start()?;
    c.until("the password is refused", |status| {
        let why = status["membership"]["reason"].as_str().unwrap_or_default();
        why.contains("user h2") && why.contains("invalid user ID or password")
    })?;
    ensure!(!c.words().contains("another word"), "the log has the password");
    login(&network, 2, "word-2")?;
    let c = &network.hosts[2];
    c.command(&["reload", c.name()])?;
    (0..3).try_for_each(|host| until_others(&network, host, &[0, 1, 2]))?;
    let before = settled(&network.hosts[0], "h1")?;
    std::thread::sleep(Duration::from_secs(5));
    // With a token that has ended meanwhile.
    change_key(&network, 1, &[0, 2], 0)?;
    let [state, _, reconnects, _] = session(&network.hosts[0], "h1")?;
    ensure!(state == "up" && reconnects == before[2], "{}", network.hosts[0].words());
    // The entry of another host is not for this one to write.
    etcd.options.user = Some("h2:word-2".to_owned());
    let denied = etcd.control(&["put", "/vsnoop/test/h1", "{}"]);
    let denied = denied.err().context("a host has written what another one says")?.to_string();
    ensure!(denied.contains("permission denied"), "{denied}");
    Ok(())
}

/// Makes the files by which nodes and hosts know each other, hosts by the names of users.
fn certificates(network: &Network, hosts: usize) -> Result<EtcdTls> {
    let key = KeyPair::generate().context("making a key")?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).context("making an authority")?;
    let ca = network.file("etcd-ca.pem");
    fs::write(&ca, authority.pem()).context("writing an authority")?;
    let issuer = Issuer::new(params, key);
    let make = |name: &str, addresses: &[String]| -> Result<_> {
        let key = KeyPair::generate().context("making a key")?;
        let mut params = CertificateParams::new(addresses).context("naming a node")?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &issuer).context("signing")?;
        let files = ["pem", "key"].map(|kind| network.file(&format!("etcd-{name}.{kind}")));
        fs::write(&files[0], certificate.pem()).context("writing a certificate")?;
        fs::write(&files[1], key.serialize_pem()).context("writing a key")?;
        let private = Permissions::from_mode(0o600);
        fs::set_permissions(&files[1], private).context("protecting a key")?;
        let [certificate, key] = files;
        Ok((certificate, key))
    };
    for host in 0..hosts {
        make(&format!("h{host}"), &[])?;
    }
    let node = make("node", &["10.77.0.240".to_owned()])?;
    Ok(EtcdTls { ca, node, client: make("root", &[])? })
}

fn certified() -> Result<()> {
    let network = Network::configured(Plan { hosts: 3, ..Plan::default() })?;
    let tls = certificates(&network, 3)?;
    let ca = tls.ca.clone();
    let options = EtcdOptions { tls: Some(tls), ..EtcdOptions::default() };
    let mut etcd = network.etcd(1, options)?;
    users(&mut etcd, 2)?;
    // `etcdctl` has the certificate of root.
    etcd.options.user = None;
    for host in 0..3 {
        let file = |kind: &str| network.file(&format!("etcd-h{host}.{kind}")).display().to_string();
        let (certificate, key) = (file("pem"), file("key"));
        let more =
            format!("ca = \"{}\"\ncert = \"{certificate}\"\nkey = \"{key}\"\n", ca.display());
        network.announce(host, &etcd, &more)?;
    }
    let mut network = network;
    start_all(&mut network, &[0, 1])?;
    // The certificate is in order, but there is no such user.
    network.hosts[2].start()?;
    network.hosts[2].until("it may not", |status| {
        let why = status["membership"]["reason"].as_str().unwrap_or_default();
        why.contains("permission denied")
    })?;
    // A node with a certificate of another authority is refused.
    let other = KeyPair::generate().context("making a key")?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let other = params.self_signed(&other).context("making an authority")?;
    fs::write(&ca, other.pem()).context("writing an authority")?;
    network.hosts[2].end();
    network.hosts[2].start()?;
    network.hosts[2].until("the node is not believed", |status| {
        let why = status["membership"]["reason"].as_str().unwrap_or_default();
        why.contains("certificate")
    })?;
    until_peers(&network.hosts[0], &["h1"])
}

fn reloaded() -> Result<()> {
    let plan = Plan { hosts: 3, link: "user = \"nobody\"\n", ..Plan::default() };
    let (mut network, _etcd) = network(plan, 1, EtcdOptions::default())?;
    start_all(&mut network, &[])?;
    let [a, b, c] = &network.hosts[..] else { unreachable!("three hosts") };
    let before = settled(a, "h1")?;
    let reload = |host: &Host| host.command(&["reload", host.name(), "--json"]);
    // Another directory: it has no hosts, and sessions that are up go on.
    let whole = network.config(2)?;
    network.edit_config(2, |text| text.replace("[etcd]\n", "[etcd]\nprefix = \"/other/\"\n"))?;
    ensure!(reload(c)?.contains("[etcd]"));
    let leaving = |status: &Value, names: &[&str]| {
        status["membership"]["leaving"] == serde_json::json!(names)
    };
    a.until("h2 is gone from there", |status| leaving(status, &["h2"]))?;
    c.until("the others are not there", |status| leaving(status, &["h0", "h1"]))?;
    ensure!(session(c, "h0")?[0] == "up");
    network.edit_config(2, |_| whole.clone())?;
    reload(c)?;
    a.until("h2 is there", |status| leaving(status, &[]))?;
    c.until("the others are there", |status| leaving(status, &[]))?;
    // Without etcd there are the peers of the file.
    let of_b = keygen_show(&network, 1)?;
    network.edit_config(0, |text| {
        let own = text.split("[etcd]").next().unwrap_or_default();
        format!("{own}[[peer]]\nname = \"h1\"\nkey = \"{of_b}\"\naddress = \"10.77.0.2\"\n")
    })?;
    let answer = reload(a)?;
    ensure!(answer.contains("\"removed\":[\"h2\"]"), "{answer}");
    ensure!(names(&a.status()?, |_| true) == ["h1"]);
    ensure!(a.status()?["membership"]["source"] == "file");
    b.until("h0 is gone from etcd", |status| leaving(status, &["h0"]))?;
    ensure!(session(a, "h1")? == before, "{before:?} became {:?}", session(a, "h1")?);
    Ok(())
}
