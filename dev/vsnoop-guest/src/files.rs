//! The web server and the files that it took in.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, ensure};
use vsnoop_guest::pattern::Pattern;
use vsnoop_guest::web::{CONFIGURATION, PROGRAM, ROOT};

/// Where the server complains.
const LOG: &str = "/run/nginx.log";

/// Starts the server, which goes into the background when it listens.
pub fn serve() -> Result<()> {
    // Not our own output, which the server would keep open in the background.
    let complaints = File::create(LOG).with_context(|| format!("create {LOG}"))?;
    let status = Command::new(PROGRAM)
        .args(["-c", CONFIGURATION])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(complaints)
        .status()
        .with_context(|| format!("start {PROGRAM}: was the image built with the web server?"))?;
    let complaint = || fs::read_to_string(LOG).unwrap_or_default();
    ensure!(status.success(), "{PROGRAM} ended with {status}: {}", complaint());
    Ok(())
}

/// Is this file the pattern of `seed`? It is deleted either way.
pub fn verify(name: &str, seed: u64, size_bytes: u64) -> Result<()> {
    let path = Path::new(ROOT).join(name);
    let verified = compare(&path, seed, size_bytes);
    fs::remove_file(&path).with_context(|| format!("delete {}", path.display()))?;
    verified
}

fn compare(path: &Path, seed: u64, size_bytes: u64) -> Result<()> {
    let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let mut pattern = Pattern::new(seed);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = file.read(&mut buffer).with_context(|| format!("read {}", path.display()))?;
        if count == 0 {
            break;
        }
        pattern
            .verify(&buffer[..count])
            .map_err(|at| anyhow!("{} has a wrong byte at {at}", path.display()))?;
    }
    let length = pattern.offset_bytes();
    ensure!(length == size_bytes, "{} has {length} bytes of {size_bytes}", path.display());
    Ok(())
}
