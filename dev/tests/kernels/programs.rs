//! Test programs of this workspace, which run in a machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use vsnoop_testbed::workspace;

/// Names the directory in which scripts/beside.sh has noted the test programs that it runs.
const NOTED: &str = "VSNOOP_TEST_PROGRAMS";

/// Test programs of the workspace: those that were noted, or else as cargo builds them now, in the
/// profile of this program.
pub fn test_programs<const N: usize>(names: [&str; N]) -> Result<[PathBuf; N]> {
    match std::env::var_os(NOTED) {
        Some(directory) => noted(Path::new(&directory), names),
        None => built(names),
    }
}

/// A noted program is a file `RANK.NAME-HASH`, perhaps with a part, with a line `program='PATH'`.
fn noted<const N: usize>(directory: &Path, names: [&str; N]) -> Result<[PathBuf; N]> {
    let mut found = [const { None }; N];
    for file in directory.read_dir().with_context(|| format!("read {}", directory.display()))? {
        let file = file?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = name.split_once('.').and_then(|(_, name)| name.rsplit_once('-'));
        let Some(place) = names.iter().position(|wanted| Some(*wanted) == name.map(|it| it.0))
        else {
            continue;
        };
        let text = std::fs::read_to_string(&file)?;
        let program = text.lines().find_map(|line| line.strip_prefix("program='"));
        found[place] = program.and_then(|line| line.strip_suffix('\'')).map(PathBuf::from);
    }
    ensure!(found.iter().all(Option::is_some), "{names:?} are not all in {}", directory.display());
    Ok(found.map(Option::unwrap_or_default))
}

fn built<const N: usize>(names: [&str; N]) -> Result<[PathBuf; N]> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    let packages = ["-p", "vsnoop-bpf", "-p", "vsnoop-divert", "-p", "vsnoop-tests"];
    command.args(["test", "--locked", "--no-run", "--quiet"]).args(packages);
    command.args(["--message-format", "json-render-diagnostics"]);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    for name in names {
        command.args(["--test", name]);
    }
    let output = command
        .current_dir(workspace::root()?)
        .stderr(Stdio::inherit())
        .output()
        .context("run cargo (is the Rust toolchain in PATH?)")?;
    ensure!(output.status.success(), "cargo could not build the tests ({})", output.status);
    let text = String::from_utf8(output.stdout).context("cargo printed no text")?;
    let mut found = [const { None }; N];
    for line in text.lines() {
        let message: Value = serde_json::from_str(line).context("cargo printed no JSON")?;
        let target = message["target"]["name"].as_str().unwrap_or_default();
        let place = names.iter().position(|name| *name == target);
        if let (Some(place), Some(program)) = (place, message["executable"].as_str()) {
            found[place] = Some(PathBuf::from(program));
        }
    }
    ensure!(found.iter().all(Option::is_some), "cargo did not name {}", names.join(" and "));
    Ok(found.map(Option::unwrap_or_default))
}
