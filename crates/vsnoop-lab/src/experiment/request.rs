//! HTTP requests by curl, and what their connections show.
//!
//! Times are those of segments at the client's device: from its SYN to the last byte of the
//! response (the server has confirmed), and to the acknowledgement of the request's last byte.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use vsnoop_guest::pattern::Pattern;
use vsnoop_guest::{control, web};
use vsnoop_testbed::capture::{Capture, CapturedSegment};
use vsnoop_testbed::interrupt;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::stage::Stage;

use super::ways::{Way, settle};
use crate::results::{Sample, size_text};

const CURL: &str = "curl";
const LIMIT_S: &str = "60";
/// The file's name at both ends.
const UPLOAD: &str = "upload";
/// Payload of a segment on a path of 1500 bytes, with timestamps.
const SEGMENT_BYTES: u32 = 1448;

/// Times in a request's connection, from the client's SYN on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The arrival of the SYN-ACK.
    pub connected: Duration,
    /// The arrival of the last byte of the response.
    pub confirmed: Duration,
    /// The arrival of the ACK of the request's last byte.
    pub acked: Duration,
    /// Segments that the client sent more than once.
    pub retransmissions: u32,
}

impl Times {
    /// `acked_ms` and `delivered_ms` begin with the SYN-ACK.
    pub fn sample(&self) -> Sample {
        let ms = |time: Duration| Some(time.as_secs_f64() * 1e3);
        Sample {
            connect_ms: ms(self.connected),
            acked_ms: ms(self.acked - self.connected),
            delivered_ms: ms(self.confirmed - self.connected),
            retransmissions: self.retransmissions,
            ..Sample::default()
        }
    }
}

/// What a measurement needs: a stage with a web server, and all packets of its client.
pub struct Exchange<'a> {
    pub stage: &'a Stage,
    pub capture: &'a Capture,
    pub scratch: PathBuf,
    pub machine: usize,
    pub way: Way<'a>,
}

impl Exchange<'_> {
    /// Uploads a file, which the guest compares, or fetches the small page `gets` times. Samples
    /// have what is seen at the client.
    pub fn make(&self, size_bytes: u64, gets: usize) -> Result<Vec<Sample>> {
        Ok(self.make_and(size_bytes, gets, || Ok(()))?.0)
    }

    /// Like [`Exchange::make`]; `ended` is called when all connections have ended, before the
    /// guest has further work.
    pub fn make_and<T>(
        &self,
        size_bytes: u64,
        gets: usize,
        ended: impl FnOnce() -> Result<T>,
    ) -> Result<(Vec<Sample>, T)> {
        // Drops the packets captured before this measurement.
        self.capture.take()?;
        let Way { server, tap } = self.way;
        let drops_before = self.stage.counts_of(tap)?.drops;
        let upload = (size_bytes != web::PAGE_BYTES).then(|| fastrand::u64(..));
        match upload {
            Some(seed) => {
                put(self.stage.client(), server, (UPLOAD, seed, size_bytes), &self.scratch)?;
            }
            None => get(self.stage.client(), server, gets)?,
        }
        settle(self.stage)?;
        let value = ended()?;
        let times = times(&self.capture.take()?, server.port())?;
        let tap_drops = self.stage.counts_of(tap)?.drops - drops_before;
        if let Some(seed) = upload {
            let name = UPLOAD.to_owned();
            let command = control::Command::VerifyFile { name, seed, size_bytes };
            self.stage.vm(self.machine).command(&command)?;
        }
        let expected = if upload.is_some() { 1 } else { gets };
        ensure!(times.len() == expected, "{} connections were seen, not {expected}", times.len());
        let sample = |times: Times| Sample { tap_drops, vm: self.machine, ..times.sample() };
        Ok((times.into_iter().map(sample).collect(), value))
    }
}

/// `PUT 1 MB`; the small page is fetched.
pub fn request_text(size_bytes: u64) -> String {
    let method = if size_bytes == web::PAGE_BYTES { "GET" } else { "PUT" };
    format!("{method} {}", size_text(size_bytes))
}

/// Fails, with the name of the package, if curl is not installed.
pub fn require_curl() -> Result<()> {
    let started = Command::new(CURL).arg("--version").stdout(Stdio::null()).status();
    ensure!(
        started.is_ok_and(|status| status.success()),
        "{CURL} cannot be started: install the package curl"
    );
    Ok(())
}

/// Sends a file of `size_bytes`, the pattern of `seed`, to be kept under `name`.
fn put(
    client: &Netns,
    server: SocketAddr,
    (name, seed, size_bytes): (&str, u64, u64),
    scratch: &Path,
) -> Result<()> {
    let file = scratch.join(name);
    let mut content = vec![0; size_bytes as usize];
    Pattern::new(seed).fill(&mut content);
    fs::write(&file, content).with_context(|| format!("write {}", file.display()))?;
    // Without this header curl asks first whether the server accepts a large file, which takes a
    // round trip.
    let upload = ["--header", "Expect:", "--upload-file", &file.to_string_lossy()];
    let sent = curl(client, &upload, &format!("http://{server}/{name}"));
    fs::remove_file(&file).with_context(|| format!("delete {}", file.display()))?;
    sent
}

/// Fetches the server's small page `times` times, each in a connection of its own.
pub fn get(client: &Netns, server: SocketAddr, times: usize) -> Result<()> {
    let url = format!("http://{server}/{}?[1-{times}]", web::PAGE);
    curl(client, &["--header", "Connection: close"], &url)
}

fn curl(client: &Netns, options: &[&str], url: &str) -> Result<()> {
    let output = client
        .command(CURL)
        .args(["--silent", "--show-error", "--fail", "--noproxy", "*", "--max-time", LIMIT_S])
        .args(["--output", "/dev/null"])
        .args(options)
        .arg(url)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {CURL}"))?;
    // Ctrl-C ends curl too, since it has the same terminal.
    interrupt::check()?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{url}: {CURL} ended with {}: {}", output.status, complaint.trim());
    }
    Ok(())
}

/// The requests to a server's port among the client's captured segments, in the order of their
/// connections.
fn times(segments: &[CapturedSegment], server_port: u16) -> Result<Vec<Times>> {
    let opened = segments.iter().filter(|one| one.destination_port == server_port && one.syn);
    let mut ports: Vec<u16> = opened.map(|syn| syn.source_port).collect();
    ports.dedup();
    ports.into_iter().map(|port| times_of(segments, port, server_port)).collect()
}

/// The times of the connection from this port of the client.
fn times_of(segments: &[CapturedSegment], port: u16, server_port: u16) -> Result<Times> {
    let ports = |one: &CapturedSegment| (one.source_port, one.destination_port);
    let sent = |one: &&CapturedSegment| ports(one) == (port, server_port);
    let received = |one: &&CapturedSegment| ports(one) == (server_port, port);
    let syn = segments.iter().find(|one| sent(one) && one.syn).context("no SYN was seen")?;
    // Offsets in the client's stream; wrapping, as sequence numbers do.
    let offset = |number: u32| number.wrapping_sub(syn.seq.wrapping_add(1)) as i32;
    let (mut end, mut retransmitted_bytes) = (0, Vec::new());
    for one in segments.iter().filter(sent).filter(|one| one.payload_bytes > 0) {
        let begin = offset(one.seq);
        let again = (end - begin).clamp(0, one.payload_bytes as i32);
        retransmitted_bytes.push(again as u32);
        end = end.max(begin + one.payload_bytes as i32);
    }
    let acked = segments
        .iter()
        .filter(received)
        .find(|one| one.ack.is_some_and(|ack| offset(ack) >= end))
        .context("the request was not acknowledged")?;
    let syn_ack = segments.iter().find(|one| received(one) && one.syn);
    let syn_ack = syn_ack.context("no SYN-ACK was seen")?;
    // Retransmissions of the response do not count: the first segment that reaches the end does.
    let reached = |one: &CapturedSegment| one.seq.wrapping_sub(syn_ack.seq) + one.payload_bytes;
    let response = || segments.iter().filter(received).filter(|one| one.payload_bytes > 0);
    let end = response().map(reached).max().context("there was no response")?;
    let confirmed = response().find(|one| reached(one) == end).context("there was no response")?;
    Ok(Times {
        connected: syn_ack.at.saturating_sub(syn.at),
        confirmed: confirmed.at.saturating_sub(syn.at),
        acked: acked.at.saturating_sub(syn.at),
        retransmissions: retransmitted_bytes.iter().map(|n| n.div_ceil(SEGMENT_BYTES)).sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: u16 = 40_000;
    const PORT: u16 = 80;

    fn sent(at_ms: u64, seq: u32, payload_bytes: u32) -> CapturedSegment {
        CapturedSegment {
            at: Duration::from_millis(at_ms),
            source_port: CLIENT,
            destination_port: PORT,
            seq,
            ack: Some(1),
            payload_bytes,
            ..CapturedSegment::default()
        }
    }

    /// The first of the response, unless it is changed.
    fn received(at_ms: u64, ack: u32, payload_bytes: u32) -> CapturedSegment {
        let other = sent(at_ms, 1, payload_bytes);
        CapturedSegment { source_port: PORT, destination_port: CLIENT, ack: Some(ack), ..other }
    }

    #[test]
    fn times_begin_with_the_syn_and_repeated_segments_are_counted() {
        // The numbers wrap within the request.
        let first = u32::MAX - 1000;
        let syn = CapturedSegment { syn: true, ack: None, ..sent(10, first.wrapping_sub(1), 0) };
        let second = first.wrapping_add(2000);
        let segments = [
            syn,
            CapturedSegment { syn: true, seq: 0, ..received(30, first, 0) },
            sent(31, first, 2000),
            sent(32, second, 4000),
            received(52, second, 0),
            sent(60, second, 2000),
            received(80, second.wrapping_add(4000), 0),
            received(90, second.wrapping_add(4000), 100),
            CapturedSegment { seq: 101, ..received(91, second.wrapping_add(4000), 50) },
            CapturedSegment { seq: 101, ..received(300, second.wrapping_add(4000), 50) },
        ];
        let expected = Times {
            connected: Duration::from_millis(20),
            confirmed: Duration::from_millis(81),
            acked: Duration::from_millis(70),
            retransmissions: 2,
        };
        assert_eq!(times(&segments, PORT).unwrap(), [expected]);
        assert!(times(&segments[..6], PORT).is_err());
    }
}
