//! Where things are: the source tree, its build and result directories, and the programs beside us.
//!
//! `cargo test` of vsnoop-tests does not build the `vsnoop` command that its tests run. One that
//! the tree built earlier is used only if cargo would not build it anew: cargo leaves beside each
//! program the list of the files it was made of (`vsnoop.d`), and none of them may be newer. Files
//! that cargo does not look at, or not by their age (Cargo.toml), do not count, so that building
//! always helps.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use anyhow::{Context, Result, anyhow};

/// The source tree: the nearest directory with a `Cargo.lock`, looking upwards from this
/// executable, then from the working directory.
pub fn root() -> Result<PathBuf> {
    let executable = env::current_exe().context("find this executable")?;
    let working = env::current_dir().context("find the working directory")?;
    [executable, working]
        .iter()
        .flat_map(|start| start.ancestors())
        .find(|dir| dir.join("Cargo.lock").is_file() && dir.join("accel").is_dir())
        .map(Path::to_path_buf)
        .context("the vsnoop source tree was not found: run vsnoop-lab from inside it")
}

/// Caches that are expensive to make: the guest's kernel and image, the answer about KVM.
pub fn build_dir() -> Result<PathBuf> {
    Ok(root()?.join("build").join("guest"))
}

/// The `vsnoop` command: `VSNOOP_BIN`, or beside this executable, or one directory up (tests run
/// from `deps`), or a release build of the tree. An error when the tree has changed since it was
/// built. The first answer is kept: a program that attached with this command can detach with it,
/// even if the tree changes meanwhile.
pub fn vsnoop_command() -> Result<PathBuf> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| find_vsnoop().map_err(|error| format!("{error:#}")));
    found.clone().map_err(|error| anyhow!(error))
}

fn find_vsnoop() -> Result<PathBuf> {
    if let Some(given) = env::var_os("VSNOOP_BIN") {
        let path = PathBuf::from(given);
        anyhow::ensure!(path.is_file(), "VSNOOP_BIN={} is not a file", path.display());
        return Ok(path);
    }
    let executable = env::current_exe().context("find this executable")?;
    let beside = executable.ancestors().skip(1).take(2).map(|dir| dir.join("vsnoop"));
    let found = beside
        .chain(root().map(|root| root.join("target/release/vsnoop")))
        .find(|path| path.is_file())
        .context("the vsnoop command is not built: run `cargo build --release -p vsnoop`")?;
    if let Ok(root) = root() {
        refuse_stale(&found, &root)?;
    }
    Ok(found)
}

/// Refuses a program in the tree's target directory that is older than one of its sources.
fn refuse_stale(program: &Path, root: &Path) -> Result<()> {
    let target = root.join("target");
    if !program.starts_with(&target) {
        return Ok(());
    }
    let Ok(list) = fs::read_to_string(program.with_extension("d")) else { return Ok(()) };
    let built = modified(program).with_context(|| format!("look at {}", program.display()))?;
    let release = if program.starts_with(target.join("release")) { " --release" } else { "" };
    let is_source = |path: &&PathBuf| path.starts_with(root) && !path.starts_with(&target);
    for source in sources(&list).iter().filter(is_source) {
        let changed =
            if source.exists() { newer_than(built, source) } else { Some(source.clone()) };
        let Some(changed) = changed else { continue };
        anyhow::bail!(
            "{} was built before {} changed, of which it is made: run `cargo build{release} -p vsnoop`, \
             or set VSNOOP_BIN to the program that is meant",
            program.display(),
            changed.canonicalize().unwrap_or(changed).display()
        );
    }
    Ok(())
}

/// The files of a rule of make: `PROGRAM: FILE FILE ...`, where a blank within a name is escaped.
fn sources(list: &str) -> Vec<PathBuf> {
    const BLANK: &str = "\0";
    let rule = list.lines().next().unwrap_or_default().replace("\\ ", BLANK);
    let files = rule.split_once(": ").map_or("", |(_, files)| files);
    files.split_whitespace().map(|file| PathBuf::from(file.replace(BLANK, " "))).collect()
}

/// A file at or below `path` that changed after `built`.
fn newer_than(built: SystemTime, path: &Path) -> Option<PathBuf> {
    if path.is_file() && modified(path).is_ok_and(|modified| modified > built) {
        return Some(path.to_owned());
    }
    let mut entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.find_map(|entry| newer_than(built, &entry.path()))
}

fn modified(path: &Path) -> io::Result<SystemTime> {
    fs::metadata(path)?.modified()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use super::*;

    /// A tree with a program of target/release that is made of one file and one directory.
    struct Tree {
        root: PathBuf,
        program: PathBuf,
    }

    impl Tree {
        fn new(name: &str) -> Self {
            let root = env::temp_dir().join(format!("vsnoop {name} {}", std::process::id()));
            let program = root.join("target/release/vsnoop");
            let tree = Self { root, program };
            for (file, hour) in [
                ("src/main.rs", 1),
                ("flow/types.h", 1),
                ("target/release/vsnoop", 2),
                ("src/unused.rs", 3),
                ("target/release/generated.rs", 3),
            ] {
                tree.write(file, hour);
            }
            let escaped =
                |file: &str| tree.root.join(file).display().to_string().replace(' ', "\\ ");
            let files =
                ["src/main.rs", "flow", "target/release/generated.rs"].map(escaped).join(" ");
            let list = format!("{}: {files} /dev/null\n", escaped("target/release/vsnoop"));
            fs::write(tree.program.with_extension("d"), list).unwrap();
            tree
        }

        fn write(&self, file: &str, hour: u64) {
            let path = self.root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(hour * 3600);
            File::create(path).unwrap().set_modified(at).unwrap();
        }

        fn complaint(&self) -> Option<String> {
            refuse_stale(&self.program, &self.root).err().map(|error| error.to_string())
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.root);
        }
    }

    #[test]
    fn a_program_that_is_newer_than_its_sources_is_taken() {
        assert_eq!(Tree::new("fresh").complaint(), None);
    }

    #[test]
    fn a_program_older_than_a_source_is_refused_with_the_command_that_helps() {
        for source in ["src/main.rs", "flow/types.h", "flow/new.h"] {
            let tree = Tree::new("stale");
            tree.write(source, 3);
            let text = tree.complaint().unwrap_or_else(|| panic!("{source} was overlooked"));
            assert!(text.contains(source), "{text}");
            assert!(text.contains("`cargo build --release -p vsnoop`"), "{text}");
        }
    }

    #[test]
    fn a_program_whose_source_is_gone_is_refused() {
        let tree = Tree::new("renamed");
        fs::remove_file(tree.root.join("src/main.rs")).unwrap();
        assert!(tree.complaint().is_some_and(|text| text.contains("src/main.rs")));
    }

    #[test]
    fn a_program_from_elsewhere_is_not_judged() {
        let tree = Tree::new("elsewhere");
        tree.write("src/main.rs", 3);
        assert!(refuse_stale(&tree.program, &tree.root.join("other")).is_ok());
    }
}
