//! The guest's kernel, from the distribution's own package.
//!
//! The package is downloaded with apt and unpacked, never installed. Debian's kernel for clouds is
//! preferred (small, quick to boot, has netem and the like as modules); Ubuntu's for virtual
//! machines and Debian's general one follow. A kernel of a certain series can be asked for too: it
//! comes from the distribution or, if that has none, from the backports of Debian.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::packages::{Source, Unavailable, unavailable};

const META_PACKAGES: [&str; 3] =
    ["linux-image-cloud-amd64", "linux-image-virtual", "linux-image-amd64"];

/// The backports that have newer kernels, for a Debian that may be older.
const BACKPORTS: &str = "trixie-backports";
/// Debian's kernels for clouds.
const FLAVOUR: &str = "-cloud-amd64";

/// The directory of the lab's kernel.
const OF_THE_LAB: &str = "kernel";

/// An unpacked kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub image: PathBuf,
    pub version: String,
    /// `lib/modules/VERSION` of the package.
    pub modules: PathBuf,
}

/// Returns the cached kernel of the lab's machines, or downloads one.
pub fn prepare(dir: &Path) -> Result<Kernel> {
    obtain(&dir.join(OF_THE_LAB), || {
        let source = Source::own();
        let packages = packages_of(&source, behind(&source, &META_PACKAGES, "linux-image-")?)?;
        Ok((source, packages))
    })
}

/// Returns the cached kernel of a series ("6.12"), or downloads the newest one.
pub fn prepare_series(dir: &Path, series: &str) -> Result<Kernel> {
    // The lab's machines may have one.
    let of_the_lab = dir.join(OF_THE_LAB);
    if of_the_lab.is_dir() {
        let kernel = find(&of_the_lab)?;
        if kernel.version.starts_with(&format!("{series}.")) {
            return Ok(kernel);
        }
    }
    obtain(&dir.join(format!("kernel-{series}")), || {
        // A distribution has a meta package for a series only if it is not its own.
        let own = format!("linux-image-{series}{FLAVOUR}");
        let mut metas = vec![own.as_str()];
        metas.extend(META_PACKAGES);
        let source = Source::own();
        match behind(&source, &metas, &format!("linux-image-{series}.")) {
            Ok(image) => packages_of(&source, image).map(|packages| (source, packages)),
            Err(error) if error.is::<Unavailable>() => {
                let source = Source::suite(&dir.join("backports"), BACKPORTS)?;
                let packages = packages_of(&source, newest(&source, series)?)?;
                Ok((source, packages))
            }
            Err(error) => Err(error),
        }
    })
}

/// The kernel in this directory, or of the packages that `choose` names.
fn obtain(
    unpacked: &Path,
    choose: impl FnOnce() -> Result<(Source, Vec<String>)>,
) -> Result<Kernel> {
    if unpacked.is_dir() {
        return find(unpacked);
    }
    let (source, packages) = choose()?;
    let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
    let names = packages.join(", ");
    println!("guest kernel: downloading {names} (unpacked into build/guest, not installed)");
    source.unpack(&packages, unpacked, |staging| find(staging).map(drop))?;
    find(unpacked)
}

/// The concrete package behind the first of the meta packages that apt knows, whose name begins so.
fn behind(source: &Source, metas: &[&str], begin: &str) -> Result<String> {
    for meta in metas {
        if let Some(image) = source.depends(meta)?.into_iter().find(|it| it.starts_with(begin)) {
            return Ok(image);
        }
    }
    let metas = metas.join(", ");
    Err(unavailable(format!(
        "apt knows no package {begin}* behind any of {metas}: run `apt-get update` first"
    )))
}

/// The newest kernel of a series for clouds.
fn newest(source: &Source, series: &str) -> Result<String> {
    let begin = format!("linux-image-{series}.");
    let patch = |name: &String| {
        let number = name.strip_prefix(&begin)?.strip_suffix(FLAVOUR)?;
        number.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok()
    };
    let names = source.names(&begin)?.into_iter();
    let newest = names.filter_map(|name| Some((patch(&name)?, name))).max();
    let none = || unavailable(format!("neither the distribution nor {BACKPORTS} has {begin}*"));
    newest.map(|(_, name)| name).ok_or_else(none)
}

/// The packages of a kernel. Ubuntu has the modules apart from the image; Debian since 6.19 the
/// kernel itself, too, and the list of what is built in.
fn packages_of(source: &Source, image: String) -> Result<Vec<String>> {
    let apart = |part: &str| image.replacen("linux-image-", part, 1);
    let parts = ["linux-binary-", "linux-modules-", "linux-base-"].map(apart);
    let known = parts.each_ref().map(|part| source.known(part));
    // Backports keep the kernels of older versions longer than their modules.
    if known[0] && known.contains(&false) {
        return Err(unavailable(format!("{BACKPORTS} has {}, but not all of {parts:?}", parts[0])));
    }
    let known = parts.into_iter().zip(known).filter_map(|(part, known)| known.then_some(part));
    Ok([image].into_iter().chain(known).collect())
}

fn find(unpacked: &Path) -> Result<Kernel> {
    let trees = [unpacked.join("lib/modules"), unpacked.join("usr/lib/modules")];
    let modules = trees
        .iter()
        .filter_map(|tree| fs::read_dir(tree).ok())
        .flatten()
        .find_map(|entry| Some(entry.ok()?.path()))
        .with_context(|| {
            format!("no modules in {}: remove it and try again", unpacked.display())
        })?;
    let version = modules.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // Beside the modules in Debian since 6.19.
    let image = [unpacked.join(format!("boot/vmlinuz-{version}")), modules.join("vmlinuz")]
        .into_iter()
        .find(|path| path.is_file())
        .with_context(|| {
            format!("no kernel {version} in {}: remove it and try again", unpacked.display())
        })?;
    Ok(Kernel { image, version, modules })
}
