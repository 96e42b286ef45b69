//! HTTP requests by curl, each on a connection of its own.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use vsnoop_guest::pattern::Pattern;
use vsnoop_guest::{control, web};
use vsnoop_testbed::capture::Capture;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::stage::Stage;

use super::times::{Times, times};
use crate::experiment::ways::{Way, settle};
use crate::results::{Sample, size_text};

const CURL: &str = "curl";
const LIMIT_S: &str = "60";
/// The file's name at both ends.
const UPLOAD: &str = "upload";

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
pub fn put(
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
