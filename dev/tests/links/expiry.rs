//! Keys and certificates that come to their end while a session is up.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer,
    KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use serde_json::Value;

use crate::certificates::by_names;
use crate::trial;
use vsnoop_testbed::hosts::{Host, Network, PORT, Plan, inner_v4, start_all};
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::wait::wait_until;

/// For a session to end after its certificate.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for transport in ["udp", "tls"] {
        trials.push(trial(
            format!("expiry::{transport}::keys_that_cannot_be_renewed_are_told_of_and_end"),
            move || keys(transport),
        ));
    }
    for transport in ["udp", "tls"] {
        trials.push(trial(
            format!("expiry::{transport}::a_session_ends_with_the_certificate"),
            move || certificate(transport),
        ));
        trials.push(trial(
            format!("expiry::{transport}::a_certificate_that_is_revoked_ends_its_session_only"),
            move || revoked(transport),
        ));
    }
    trials.push(trial("expiry::a_new_certificate_is_taken_without_a_break", renewed));
    trials
}

/// Tenths of a second for which a datagram is sent that must not arrive, and one that must.
const NEVER: usize = 10;
const PATIENT: usize = 200;

/// Sends datagrams from one VM to another, one in a tenth of a second; whether any arrives.
fn passes(from: &Netns, to: &Netns, at: IpAddr, tenths: usize) -> Result<bool> {
    let receiver = to.run(|| Ok(UdpSocket::bind(SocketAddr::new(at, 0))?))?;
    receiver.set_read_timeout(Some(Duration::from_millis(100))).context("a time limit")?;
    let at = receiver.local_addr().context("an address")?;
    let sender = from.run(|| Ok(UdpSocket::bind("0.0.0.0:0")?))?;
    for _ in 0..tenths {
        sender.send_to(b"x", at).context("sending")?;
        if receiver.recv(&mut [0; 9]).is_ok() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// New handshakes do not come through, data does.
fn keys(transport: &'static str) -> Result<()> {
    let network = Network::configured(Plan { transport, ..Plan::default() })?;
    let mut network = network;
    network.rekey_every("20s")?;
    start_all(&mut network.hosts)?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    for host in [a, b] {
        let drop = format!(
            "add table inet t; add chain inet t in {{ type filter hook input priority 0; }}; \
             add rule inet t in tcp dport {PORT} tcp flags & (syn | ack) == syn drop"
        );
        host.netns.nft(&drop)?;
    }
    ensure!(passes(&a.vms[0], &b.vms[0], inner_v4(1, 0), PATIENT)?, "before");
    a.until("a failing rekey is shown", |status| {
        let rekey = &status["peers"][0]["rekey"];
        rekey["reason"].as_str().is_some_and(|reason| reason.contains("calling"))
    })?;
    let peer = a.peer("h1")?;
    ensure!(peer["state"] == "up", "{peer}");
    let (since, ends) = (&peer["rekey"]["since"], &peer["rekey"]["ends"]);
    ensure!(since.as_u64() < ends.as_u64(), "{peer}");
    let shown = a.command(&["status", a.name()])?;
    ensure!(shown.contains("gets no new keys since"), "{shown}");
    ensure!(passes(&a.vms[0], &b.vms[0], inner_v4(1, 0), PATIENT)?, "until they end");
    for host in [a, b] {
        host.until("it has ended", |status| status["peers"][0]["state"] != "up")?;
    }
    ensure!(!passes(&a.vms[0], &b.vms[0], inner_v4(1, 0), NEVER)?, "under keys that have ended");
    let says = |host: &Host| host.words().contains("its keys have come to their end");
    ensure!(says(a) || says(b), "{}\n{}", a.words(), b.words());
    for host in [a, b] {
        host.netns.nft("delete table inet t")?;
    }
    a.until_all_up()
}

/// A private authority, and its files.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(network: &Network) -> Result<Self> {
        let key = KeyPair::generate().context("making a key")?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).context("making an authority")?;
        fs::write(network.file("ca.pem"), certificate.pem()).context("writing an authority")?;
        let authority = Self { issuer: Issuer::new(params, key) };
        authority.revoke(network, &[])?;
        Ok(authority)
    }

    /// Writes a certificate for a host, which ends at a time (in seconds since the epoch).
    fn certify(&self, network: &Network, host: usize, until_s: Option<u64>) -> Result<()> {
        let key = fs::read_to_string(network.key_file(host)).context("reading a key")?;
        let key = KeyPair::from_pem(&key).context("understanding a key")?;
        let mut params = CertificateParams::new([format!("h{host}")]).context("naming a host")?;
        params.serial_number = Some(SerialNumber::from(serial(host)));
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = match until_s {
            Some(until_s) => date_time_ymd(1970, 1, 1) + Duration::from_secs(until_s),
            None => date_time_ymd(2999, 1, 1),
        };
        let certificate = params.signed_by(&key, &self.issuer).context("signing")?;
        replace(&network.file(&format!("{host}.cert")), &certificate.pem())
    }

    /// Writes a list with these hosts.
    fn revoke(&self, network: &Network, hosts: &[usize]) -> Result<()> {
        let revoked_certs = hosts.iter().map(|host| RevokedCertParams {
            serial_number: SerialNumber::from(serial(*host)),
            revocation_time: date_time_ymd(2002, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2002, 1, 1),
            next_update: date_time_ymd(2999, 1, 1),
            crl_number: SerialNumber::from(1 + hosts.len() as u64),
            issuing_distribution_point: None,
            revoked_certs: revoked_certs.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer).context("signing a list")?;
        replace(&network.file("crl.pem"), &list.pem().context("a list as text")?)
    }
}

fn serial(host: usize) -> u64 {
    100 + host as u64
}

/// At once, as programs that renew certificates do.
fn replace(file: &Path, text: &str) -> Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, text).context("writing a file")?;
    fs::rename(&new, file).context("renaming a file")
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Hosts that know each other by names.
fn certified(hosts: usize, transport: &'static str) -> Result<(Network, Authority)> {
    let network = Network::configured(Plan { hosts, transport, ..Plan::default() })?;
    let authority = Authority::new(&network)?;
    for host in 0..hosts {
        authority.certify(&network, host, None)?;
        let (file, ca) = (network.file(&format!("{host}.cert")), network.file("ca.pem"));
        let list = format!("[link]\ncrl = \"{}\"\n", network.file("crl.pem").display());
        network
            .edit_config(host, |text| by_names(text, &file, &ca).replacen("[link]\n", &list, 1))?;
    }
    Ok((network, authority))
}

/// With the shortest certificate that ends after the session has carried something.
fn certificate(transport: &'static str) -> Result<()> {
    for valid_s in [30, 120, 480] {
        let (mut network, authority) = certified(2, transport)?;
        let until_s = now_s() + valid_s;
        authority.certify(&network, 1, Some(until_s))?;
        let carried = carries(&mut network, until_s);
        if now_s() < until_s {
            carried?;
            return ends_with(&network, &authority, until_s);
        }
    }
    bail!("this machine is too slow for the test")
}

/// Starts both hosts, whose session is to end at this time.
fn carries(network: &mut Network, until_s: u64) -> Result<()> {
    start_all(&mut network.hosts)?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    ensure!(a.peer("h1")?["expires"] == until_s, "{}", a.peer("h1")?);
    ensure!(passes(&a.vms[0], &b.vms[0], inner_v4(1, 0), PATIENT)?, "before");
    Ok(())
}

/// The session ends at this time, and there is one again with another certificate.
fn ends_with(network: &Network, authority: &Authority, until_s: u64) -> Result<()> {
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let limit = Duration::from_secs(until_s.saturating_sub(now_s())) + PATIENCE;
    wait_until("it has ended", limit, || Ok(!is_up(a, "h1")?))?;
    ensure!(now_s() >= until_s, "too early: {}", a.words());
    b.until("it knows", |status| status["peers"][0]["state"] != "up")?;
    ensure!(!passes(&a.vms[0], &b.vms[0], inner_v4(1, 0), NEVER)?, "with an expired certificate");
    ensure!(a.words().contains("its certificate has expired"), "{}", a.words());
    authority.certify(network, 1, None)?;
    b.command(&["reload", b.name()])?;
    a.until_all_up()
}

fn is_up(host: &Host, name: &str) -> Result<bool> {
    Ok(host.peer(name)?["state"] == "up")
}

/// By a list that changes, without a command.
fn revoked(transport: &'static str) -> Result<()> {
    let (mut network, authority) = certified(3, transport)?;
    start_all(&mut network.hosts)?;
    let [a, b, c] = &network.hosts[..] else { unreachable!("three hosts") };
    authority.revoke(&network, &[2])?;
    for host in [a, b] {
        host.until("the list counts", |status| {
            let peers = status["peers"].as_array().into_iter().flatten();
            peers.clone().any(|peer| peer["name"] == "h2" && peer["state"] != "up")
        })?;
    }
    ensure!(!passes(&a.vms[0], &c.vms[0], inner_v4(2, 0), NEVER)?, "with a revoked certificate");
    ensure!(a.words().contains("not trusted any more"), "{}", a.words());
    ensure!(is_up(a, "h1")? && a.peer("h1")?["reconnects"] == 0, "it was disturbed");
    // An invalid list changes nothing and is reported.
    replace(&network.file("crl.pem"), "no list")?;
    let has_problem = |status: &Value| {
        let problems = status["problems"].to_string();
        problems.contains("crl.pem") && problems.contains("no revocation list")
    };
    a.until("the problem is shown", has_problem)?;
    ensure!(is_up(a, "h1")? && !is_up(a, "h2")?);
    authority.revoke(&network, &[])?;
    a.until_all_up()?;
    ensure!(!has_problem(&a.status()?));
    ensure!(a.peer("h1")?["reconnects"] == 0, "it was disturbed");
    Ok(())
}

fn renewed() -> Result<()> {
    let (mut network, authority) = certified(2, "udp")?;
    let until_s = now_s() + 3600;
    authority.certify(&network, 1, Some(until_s))?;
    start_all(&mut network.hosts)?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    authority.certify(&network, 1, None)?;
    b.command(&["reload", b.name()])?;
    // The new one is shown with the next handshake.
    a.until("it is shown", |status| {
        let peer = &status["peers"][0];
        peer["state"] == "up" && peer["expires"].as_u64().is_none_or(|until| until > until_s)
    })?;
    ensure!(a.peer("h1")?["reconnects"] == 0 && b.peer("h0")?["reconnects"] == 0);
    Ok(())
}
