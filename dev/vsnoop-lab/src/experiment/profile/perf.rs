//! Where the host spends its CPU time, by perf: samples of the CPU clock in our own processes, by
//! function. The kernel names the functions of BPF programs for it.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PERF: &str = "perf";
const FREQUENCY_HZ: u32 = 10_000;
/// The time that a sample stands for.
pub const PERIOD: Duration = Duration::from_micros(1_000_000 / FREQUENCY_HZ as u64);
/// Until perf samples: it opens an event for each thread first.
const START: Duration = Duration::from_millis(500);

/// A running record of some processes, those that they start included.
pub struct Recording {
    child: Child,
    file: PathBuf,
}

/// Fails, with the name of the package, if perf is not installed.
pub fn require() -> Result<()> {
    let started = Command::new(PERF).arg("--version").stdout(Stdio::null()).status();
    ensure!(
        started.is_ok_and(|status| status.success()),
        "{PERF} cannot be started: install the package linux-perf"
    );
    Ok(())
}

impl Recording {
    pub fn start(processes: &[Pid], scratch: &Path) -> Result<Self> {
        let file = scratch.join("perf.data");
        let ids: Vec<_> = processes.iter().map(Pid::to_string).collect();
        let child = Command::new(PERF)
            .args(["record", "--quiet", "--event", "cpu-clock"])
            .args(["--freq", &FREQUENCY_HZ.to_string(), "--pid", &ids.join(",")])
            .arg("--output")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {PERF}"))?;
        std::thread::sleep(START);
        Ok(Self { child, file })
    }

    /// Ends it; the CPU time of each function.
    pub fn end(mut self) -> Result<BTreeMap<String, Duration>> {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).context("end perf")?;
        let mut complaint = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut complaint).context("read what perf says")?;
        }
        // SIGINT is its ordinary end.
        self.child.wait().context("wait for perf")?;
        let output = Command::new(PERF)
            .args(["report", "--stdio", "--quiet", "--fields", "sample,sym"])
            .args(["--field-separator", ";", "--input"])
            .arg(&self.file)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("start {PERF}"))?;
        ensure!(output.status.success(), "{PERF} has no samples: {}", complaint.trim());
        Ok(parse(&String::from_utf8_lossy(&output.stdout)))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lines are `SAMPLES ;[k] FUNCTION`.
fn parse(text: &str) -> BTreeMap<String, Duration> {
    let mut times = BTreeMap::new();
    for line in text.lines() {
        let Some((count, symbol)) = line.split_once(';') else { continue };
        let Ok(count) = count.trim().parse::<u32>() else { continue };
        let name = symbol.trim().trim_start_matches("[k]").trim_start_matches("[.]").trim();
        *times.entry(name.to_owned()).or_default() += PERIOD * count;
    }
    times
}

/// The function of a BPF program, as perf calls it: `bpf_prog_0123456789abcdef_to_vm`.
pub fn of_bpf(symbol: &str) -> Option<&str> {
    let (tag, name) = symbol.strip_prefix("bpf_prog_")?.split_once('_')?;
    (tag.len() == 16 && tag.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_become_time_and_functions_of_bpf_lose_their_tag() {
        let times = parse("30         ;[k] bpf_prog_0123456789abcdef_to_vm\n\n10 ;[.] main\n");
        assert_eq!(times["bpf_prog_0123456789abcdef_to_vm"], Duration::from_millis(3));
        assert_eq!(times["main"], Duration::from_millis(1));
        assert_eq!(of_bpf("bpf_prog_0123456789abcdef_to_vm"), Some("to_vm"));
        assert_eq!(of_bpf("bpf_prog_run_pin_on_cpu"), None);
    }
}
