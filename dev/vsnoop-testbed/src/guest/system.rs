//! A guest's root file system, made of the distribution's packages by name.
//!
//! A [`System`] says which packages, and how they are set up. mmdebstrap installs them, with all
//! that they need, into a directory of the build directory (nothing is installed on the host). The
//! setup then runs natively in a copy of it, without a network, and mke2fs makes the copy a file
//! system that machines share: it is never written, each guest has its changes in memory.
//!
//! Both are kept under the hash of what they were made of, so that a changed system is made anew
//! and an unchanged one costs nothing. They appear at once: whatever is half made has another name,
//! and is removed by the next run. The directory is also where clients of the services run
//! ([`crate::contained::Sandbox`]).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Error, Result, bail, ensure};
use nix::sys::statvfs::statvfs;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::packages::{Source, unavailable};
use crate::contained::{self, Network, Sandbox, last_lines};
use crate::net::checked;

/// Parts of a guest's image.
#[derive(Clone, Debug, Deserialize)]
pub struct System {
    pub name: String,
    /// Names of packages, as apt knows them; what they need comes with them.
    pub packages: Vec<String>,
    /// Names of source packages of Debian, whose upstream tarballs are in [`SOURCES`].
    #[serde(default)]
    pub sources: Vec<String>,
    /// Memory of a machine, its changes of files included.
    pub memory_mb: u32,
    /// Files by their absolute paths, before the setup.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// A shell script that runs as root in the new system.
    #[serde(default)]
    pub setup: String,
}

impl System {
    /// A small one.
    pub fn for_tests() -> Self {
        Self {
            name: "test".into(),
            packages: vec!["netcat-openbsd".into()],
            sources: Vec::new(),
            memory_mb: 256,
            files: [("/etc/file".into(), "as it is\n".into())].into(),
            setup: "echo by the setup >/etc/made".into(),
        }
    }
}

/// Where a system is.
#[derive(Clone, Debug)]
pub struct Made {
    /// With the packages and without the setup: clients run in it.
    pub tree: PathBuf,
    pub disk: PathBuf,
}

/// Where the tarballs of [`System::sources`] are, below the root of the system.
const SOURCES: &str = "usr/local/src";
const INSTALLER: &str = "mmdebstrap";
/// Downloads through a slow line, on a busy machine.
const INSTALL_LIMIT: Duration = Duration::from_secs(1800);
const SETUP_LIMIT: Duration = Duration::from_secs(600);
/// A disk that has less is full.
const FULL_BYTES: u64 = 64 << 20;
/// Kernel messages and files that no process reads in a guest.
const LEFT_OUT: [&str; 3] = ["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*"];
/// Free space in a file system that is never written: what mke2fs itself needs.
const SPARE_KIB: u64 = 64 << 10;

/// Makes what is missing of a system in `dir`.
pub fn prepare(dir: &Path, system: &System) -> Result<Made> {
    let dir = dir.join("systems");
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let recipe = Recipe::new(&dir, system)?;
    let name = &system.name;
    let made = make(&recipe, system).map_err(|error| or_full_disk(error, &dir));
    made.with_context(|| format!("make the guest system {name} in {}", dir.display()))
}

/// Names of the parts of a system, from hashes of their contents.
struct Recipe {
    dir: PathBuf,
    suite: String,
    tree: String,
    disk: String,
    log: PathBuf,
}

impl Recipe {
    fn new(dir: &Path, system: &System) -> Result<Self> {
        let suite = suite(&fs::read_to_string("/etc/os-release").context("read /etc/os-release")?)?;
        let name = &system.name;
        let sources = system.sources.iter().map(|name| format!("source of {name}"));
        let packages: Vec<_> = system.packages.iter().cloned().chain(sources).collect();
        let packages = packages.join("\n");
        let tree = format!("{name}-{}", hash(&[&suite, &packages, &LEFT_OUT.join("\n")]));
        let files = system.files.iter().flat_map(|(path, content)| [path, content]);
        let parts: Vec<&str> =
            [&tree, &system.setup].into_iter().chain(files).map(String::as_str).collect();
        let disk = format!("{name}-{}.ext4", hash(&parts));
        let log = dir.join(format!("{name}.log"));
        Ok(Self { dir: dir.to_owned(), suite, tree, disk, log })
    }

    /// Removes what was half made, and what was made of other recipes.
    fn remove_others(&self, system: &System) -> Result<()> {
        let ours = |name: &str| {
            name.strip_prefix(&system.name).is_some_and(|rest| rest.starts_with('-'))
                && name != self.tree
                && name != self.disk
        };
        for entry in fs::read_dir(&self.dir).context("list the systems")? {
            let entry = entry.context("list the systems")?;
            if entry.file_name().to_str().is_some_and(ours) {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }
}

fn make(recipe: &Recipe, system: &System) -> Result<Made> {
    recipe.remove_others(system)?;
    let (tree, disk) = (recipe.dir.join(&recipe.tree), recipe.dir.join(&recipe.disk));
    if !tree.is_dir() {
        let partial = recipe.dir.join(format!("{}.partial", recipe.tree));
        install(recipe, system, &partial)
            .and_then(|()| add_sources(recipe, system, &partial))
            .inspect_err(|_| drop(remove(&partial)))?;
        fs::rename(&partial, &tree).context("put the installed packages into their place")?;
    }
    if !disk.is_file() {
        let partial = recipe.dir.join(format!("{}.partial", recipe.disk));
        let copy = recipe.dir.join(format!("{}.copy", recipe.disk));
        let written = set_up(recipe, system, &tree, &copy).and_then(|()| write(&copy, &partial));
        // The space is needed, also where the copy could not be set up.
        let removed = remove(&copy);
        written.and(removed).inspect_err(|_| drop(remove(&partial)))?;
        fs::rename(&partial, &disk).context("put the file system into its place")?;
    }
    Ok(Made { tree, disk })
}

fn install(recipe: &Recipe, system: &System, tree: &Path) -> Result<()> {
    println!(
        "guest system {}: installing {} into build/guest (some minutes, once)",
        system.name,
        system.packages.join(", ")
    );
    let mut command = Command::new(INSTALLER);
    command.args(["--mode=root", "--variant=essential", "--format=directory"]);
    command.arg("--aptopt=APT::Install-Recommends \"false\"");
    // A crash of the host leaves a half made directory, which is removed.
    command.arg("--dpkgopt=force-unsafe-io");
    command.args(LEFT_OUT.map(|path| format!("--dpkgopt=path-exclude={path}")));
    command.arg(format!("--include={}", system.packages.join(",")));
    command.arg(&recipe.suite).arg(tree);
    let sandbox = Sandbox { network: Network::Host, root: None };
    let mut running = contained::start_program(&sandbox, &command, Some(&recipe.log))?;
    let status = running.wait(INSTALL_LIMIT).context("install the packages")?;
    if status.code() == Some(contained::NOT_FOUND) {
        bail!("{INSTALLER} cannot be started: install the package {INSTALLER}");
    }
    if !status.success() {
        return Err(unavailable(format!(
            "{INSTALLER} could not install the packages: {} (all that it printed: {})",
            last_words(&recipe.log),
            recipe.log.display()
        )));
    }
    Ok(())
}

fn add_sources(recipe: &Recipe, system: &System, tree: &Path) -> Result<()> {
    if system.sources.is_empty() {
        return Ok(());
    }
    println!(
        "guest system {}: downloading the source of {}",
        system.name,
        system.sources.join(", ")
    );
    let lists = recipe.dir.join(format!("{}.lists", recipe.tree));
    let added = Source::sources(&lists, &recipe.suite)
        .and_then(|source| source.tarballs(&system.sources, &tree.join(SOURCES)));
    added.and(remove(&lists))
}

fn set_up(recipe: &Recipe, system: &System, tree: &Path, copy: &Path) -> Result<()> {
    checked(
        "cp",
        [tree.as_os_str(), copy.as_os_str()].into_iter().chain(ARCHIVE.map(AsRef::as_ref)),
    )
    .context("copy the installed packages")?;
    for (path, content) in &system.files {
        let path = copy.join(path.trim_start_matches('/'));
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
        }
        fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
    }
    if system.setup.is_empty() {
        return Ok(());
    }
    println!("guest system {}: setting it up", system.name);
    let sandbox = Sandbox { network: Network::None, root: Some(copy) };
    let mut running = contained::start(&sandbox, &system.setup, Some(&recipe.log))?;
    let status = running.wait(SETUP_LIMIT).context("set the system up")?;
    ensure!(
        status.success(),
        "the setup ended with {status}: {} (all that it printed: {})",
        last_words(&recipe.log),
        recipe.log.display()
    );
    Ok(())
}

/// `cp` keeps owners, links and modes too, and shares blocks where the file system can.
const ARCHIVE: [&str; 2] = ["--archive", "--reflink=auto"];

/// Writes the directory as a file system.
fn write(tree: &Path, disk: &Path) -> Result<()> {
    let used = checked("du", [OS_KIB.as_ref(), tree.as_os_str()]).context("measure the system")?;
    let used_kib: u64 = used.split_whitespace().next().unwrap_or_default().parse().context("du")?;
    let size = format!("{}K", used_kib + used_kib / 8 + SPARE_KIB);
    let features = ["-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d"];
    let arguments = features.map(AsRef::as_ref).into_iter();
    let arguments = arguments.chain([tree.as_os_str(), disk.as_os_str(), size.as_ref()]);
    checked("mke2fs", arguments).context("write the file system").map(drop)
}

/// `du` prints the sum alone, in KiB.
const OS_KIB: &str = "-sk";

/// The distribution's release, as its archive calls it.
fn suite(os_release: &str) -> Result<String> {
    let line = os_release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let suite = line.map(|name| name.trim_matches('"').to_owned());
    suite.context("/etc/os-release names no VERSION_CODENAME: guests need a Debian-family machine")
}

/// Hashes the parts and where each ends; short enough for a file's name.
fn hash(parts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Err(_) => return Ok(()),
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    };
    removed.with_context(|| format!("remove {}", path.display()))
}

/// The end of a log, which says what went wrong.
fn last_words(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    last_lines(&String::from_utf8_lossy(&text))
}

/// A full disk has many faces: the error names it.
fn or_full_disk(error: Error, dir: &Path) -> Error {
    let free = statvfs(dir).map(|stat| stat.blocks_available() * stat.fragment_size());
    let said = format!("{error:#}").contains("No space left");
    if said || free.is_ok_and(|free| free < FULL_BYTES) {
        return error.context("the disk is full");
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(packages: &[&str], setup: &str) -> System {
        let packages = packages.iter().map(|name| (*name).to_owned()).collect();
        System { packages, setup: setup.into(), ..System::for_tests() }
    }

    #[test]
    fn a_changed_setup_keeps_the_packages_and_changed_packages_keep_nothing() {
        let recipe = |system: &System| Recipe::new(Path::new("/nowhere"), system).unwrap();
        let first = recipe(&system(&["nginx", "git"], "true"));
        let again = recipe(&system(&["nginx", "git"], "true"));
        assert_eq!((&first.tree, &first.disk), (&again.tree, &again.disk));
        let other = recipe(&system(&["nginx", "git"], "false"));
        assert_eq!(first.tree, other.tree);
        assert_ne!(first.disk, other.disk);
        let other = recipe(&system(&["nginx\ngit"], "true"));
        assert_eq!(first.tree, other.tree);
        let mut with_source = system(&["nginx", "git"], "true");
        with_source.sources = vec!["hpcc".into()];
        assert_ne!(first.tree, recipe(&with_source).tree);
        let other = recipe(&system(&["nginx"], "true"));
        assert_ne!(first.tree, other.tree);
        assert_ne!(first.disk, other.disk);
    }

    #[test]
    fn what_was_half_made_and_other_recipes_are_removed_and_other_systems_stay() {
        let dir = std::env::temp_dir().join(format!("vsnoop-systems-{}", std::process::id()));
        fs::create_dir_all(dir.join("test-1234.partial/etc")).unwrap();
        fs::write(dir.join("test-1234.ext4"), "").unwrap();
        fs::write(dir.join("test.log"), "").unwrap();
        fs::create_dir(dir.join("tester-1234")).unwrap();
        let system = system(&["nginx"], "");
        let recipe = Recipe::new(&dir, &system).unwrap();
        fs::create_dir(dir.join(&recipe.tree)).unwrap();
        recipe.remove_others(&system).unwrap();
        let names = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(names, [recipe.tree, "test.log".into(), "tester-1234".into()]);
    }

    #[test]
    fn the_release_is_read_with_and_without_quotes_and_its_lack_is_an_error() {
        assert_eq!(suite("ID=debian\nVERSION_CODENAME=bookworm\n").unwrap(), "bookworm");
        assert_eq!(suite("VERSION_CODENAME=\"noble\"").unwrap(), "noble");
        assert!(suite("ID=fedora\n").unwrap_err().to_string().contains("VERSION_CODENAME"));
    }
}
