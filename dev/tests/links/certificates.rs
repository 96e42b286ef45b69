//! Hosts that know each other by a private authority, one of which has a certificate that has
//! expired.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};

use crate::{transfer, trial};
use vsnoop_testbed::hosts::{Network, Plan, inner_v4};
use vsnoop_testbed::wait::wait_until;

/// Until a host that is refused has called again.
const PATIENCE: Duration = Duration::from_secs(180);
/// The host whose certificate has expired.
const EXPIRED: usize = 2;

pub fn trials() -> Vec<Trial> {
    ["udp", "tls"]
        .into_iter()
        .flat_map(|transport| {
            [("calls", true), ("is_called", false)].map(|(word, calls)| {
                let name = format!(
                    "certificates::{transport}::one_that_expired_is_refused_when_it_{word}"
                );
                trial(name, move || expired(transport, calls))
            })
        })
        .collect()
}

/// `calls`: it has the addresses of the others; else they have its.
fn expired(transport: &'static str, calls: bool) -> Result<()> {
    let mut network = Network::configured(Plan { hosts: 3, transport, ..Plan::default() })?;
    certify(&network, Some(EXPIRED))?;
    for host in 0..3 {
        let calls_it = (host == EXPIRED) == calls;
        network.edit_config(host, |text| {
            let peers = text.split("[[peer]]").enumerate().map(|(table, text)| {
                // Those of the peers stand in their order, without the host itself.
                let peer = if table > host { table } else { table.wrapping_sub(1) };
                let keeps = table == 0 || (peer != EXPIRED && host != EXPIRED) || calls_it;
                let lines = text.lines().filter(|line| keeps || !line.starts_with("address"));
                lines.map(|line| format!("{line}\n")).collect::<String>()
            });
            peers.collect::<Vec<_>>().join("[[peer]]")
        })?;
    }
    let (valid, bad) = network.hosts.split_at_mut(EXPIRED);
    for host in valid.iter_mut() {
        host.start()?;
    }
    let is_up = |status: &serde_json::Value, name: &str| {
        let peers = status["peers"].as_array();
        peers.is_some_and(|peers| peers.iter().any(|p| p["name"] == name && p["state"] == "up"))
    };
    valid[0].until("the valid ones are up", |status| is_up(status, "h1"))?;
    valid[1].until("the valid ones are up", |status| is_up(status, "h0"))?;

    let moved = AtomicU64::new(0);
    let bad = &mut bad[0];
    std::thread::scope(|scope| -> Result<()> {
        let [a, b] = &*valid else { unreachable!("two valid hosts") };
        let running =
            scope.spawn(|| transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 64 << 20, &moved));
        transfer::until_moved(&moved, 8 << 20)?;
        bad.start()?;
        // The caller gets the reason, and reports it to its operator.
        let (caller, name, word) = if calls {
            (&*bad, "h0", "our certificate is not valid")
        } else {
            (a, "h2", "a certificate that has expired")
        };
        caller.until("the reason is shown", |status| {
            let peers = status["peers"].as_array().into_iter().flatten();
            peers
                .filter(|peer| peer["name"] == name)
                .any(|peer| peer["reason"].as_str().is_some_and(|reason| reason.contains(word)))
        })?;
        // The called link reports it, too, but not for each call.
        if calls {
            a.until("the call was reported", |_| a.words().contains("has expired"))?;
            let refused_at = || anyhow::Ok(caller.peer("h0")?["since"].clone());
            for _ in 0..2 {
                let before = refused_at()?;
                wait_until("it was refused again", PATIENCE, || Ok(refused_at()? != before))?;
            }
            let words = a.words();
            let said: Vec<_> = words.lines().filter(|line| line.contains("has expired")).collect();
            ensure!(said.len() == 1 && said[0].contains("WARN"), "not one warning: {words}");
        }
        let words = caller.words();
        let is_said = |line: &&str| line.contains(&format!("peer {name}: ")) && line.contains(word);
        ensure!(words.lines().any(|line| is_said(&line)), "no line about {name}: {words}");
        running.join().map_err(|_| anyhow::anyhow!("the transfer panicked"))?
    })?;
    for (host, peer) in [(&valid[0], "h1"), (&valid[1], "h0")] {
        let (peer, expired) = (host.peer(peer)?, host.peer("h2")?);
        ensure!(peer["state"] == "up" && peer["reconnects"] == 0, "it was disturbed: {peer}");
        ensure!(expired["state"] != "up", "the one that expired is up: {expired}");
    }
    ensure!(bad.peer("h0")?["state"] != "up", "{}", bad.peer("h0")?);
    Ok(())
}

/// Gives each of three hosts a certificate for its key, and has each know the others by their
/// names. The certificate of `expired` has expired.
pub fn certify(network: &Network, expired: Option<usize>) -> Result<()> {
    let authority_key = KeyPair::generate().context("making a key")?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&authority_key).context("making an authority")?;
    let authority = network.file("ca.pem");
    fs::write(&authority, certificate.pem()).context("writing an authority")?;
    let issuer = Issuer::new(params, authority_key);
    for host in 0..3 {
        let is_over = expired == Some(host);
        let last = date_time_ymd(if is_over { 2002 } else { 2999 }, 1, 1);
        let file = network.file(&format!("{host}.cert"));
        let key = fs::read_to_string(network.key_file(host)).context("reading a key")?;
        let key = KeyPair::from_pem(&key).context("understanding a key")?;
        let mut params = CertificateParams::new([format!("h{host}")]).context("naming a host")?;
        (params.not_before, params.not_after) = (date_time_ymd(2001, 1, 1), last);
        let certificate = params.signed_by(&key, &issuer).context("signing")?;
        fs::write(&file, certificate.pem()).context("writing a certificate")?;
        network.edit_config(host, |text| by_names(text, &file, &authority))?;
    }
    Ok(())
}

/// Peers by the names in their certificates instead of their keys.
pub fn by_names(text: &str, certificate: &Path, authority: &Path) -> String {
    let files =
        format!("[link]\ncert = \"{}\"\nca = \"{}\"\n", certificate.display(), authority.display());
    let mut peer = "";
    let lines = text.lines().map(|line| {
        if let Some(name) = line.strip_prefix("name = ") {
            peer = name;
        }
        let is_peer_key = line.starts_with("key = ") && peer.starts_with("\"h");
        if is_peer_key { format!("subject = {peer}\n") } else { format!("{line}\n") }
    });
    lines.collect::<String>().replacen("[link]\n", &files, 1)
}
