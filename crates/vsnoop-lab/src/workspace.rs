//! Where things are: the source tree, its build and result directories, and the programs beside us.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The source tree: the nearest directory with a `Cargo.lock`, looking upwards from this
/// executable, then from the working directory.
pub fn root() -> Result<PathBuf> {
    let executable = env::current_exe().context("find this executable")?;
    let working = env::current_dir().context("find the working directory")?;
    [executable, working]
        .iter()
        .flat_map(|start| start.ancestors())
        .find(|dir| dir.join("Cargo.lock").is_file() && dir.join("crates").is_dir())
        .map(Path::to_path_buf)
        .context("the vsnoop source tree was not found: run vsnoop-lab from inside it")
}

/// Caches that are expensive to make: the guest's kernel and image, the answer about KVM.
pub fn build_dir() -> Result<PathBuf> {
    Ok(root()?.join("build").join("guest"))
}

/// The `vsnoop` command: `VSNOOP_BIN`, or beside this executable, or one directory up (tests run
/// from `deps`), or a release build of the tree.
pub fn vsnoop_command() -> Result<PathBuf> {
    if let Some(given) = env::var_os("VSNOOP_BIN") {
        let path = PathBuf::from(given);
        anyhow::ensure!(path.is_file(), "VSNOOP_BIN={} is not a file", path.display());
        return Ok(path);
    }
    let executable = env::current_exe().context("find this executable")?;
    let beside = executable.ancestors().skip(1).take(2).map(|dir| dir.join("vsnoop"));
    beside
        .chain(root().map(|root| root.join("target/release/vsnoop")))
        .find(|path| path.is_file())
        .context("the vsnoop command is not built: run `cargo build --release -p vsnoop`")
}
