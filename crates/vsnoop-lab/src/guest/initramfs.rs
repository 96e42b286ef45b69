//! The initramfs: our init, the modules with their order, and for tests nft with its libraries.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use cpio::newc::{self, ModeFileType};

use super::{Options, kernel::Kernel, modules, write_whole};

const MODULES: [&str; 2] = ["virtio_pci", "virtio_net"];
const FIREWALL_MODULES: [&str; 2] = ["nf_tables", "nft_numgen"];
/// Everything in a guest may be read and run by its only user.
const MODE: u32 = 0o755;
const NFT: [&str; 2] = ["/usr/sbin/nft", "/sbin/nft"];

pub fn write(path: &Path, kernel: &Kernel, init: &Path, options: Options) -> Result<()> {
    let mut archive = Archive::default();
    for dir in ["dev", "proc", "sys", "bin", "modules"] {
        archive.directory(dir)?;
    }
    archive.file("init", &read(init)?)?;

    let mut wanted = MODULES.to_vec();
    if options.firewall {
        wanted.extend(FIREWALL_MODULES);
    }
    let mut order = String::new();
    for module in modules::resolve(&kernel.modules, &wanted)? {
        let file = format!("{}.ko", module.name);
        archive.file(&format!("modules/{file}"), &module.bytes)?;
        order += &file;
        order.push('\n');
    }
    archive.file("modules/order", order.as_bytes())?;

    if options.firewall {
        let nft = NFT.map(PathBuf::from).into_iter().find(|path| path.is_file());
        let nft = nft.context("nft is not installed: install the package nftables")?;
        archive.file("bin/nft", &read(&nft)?)?;
        for library in libraries(&nft)? {
            archive.file_with_parents(&library)?;
        }
    }
    write_whole(path, &archive.finish()?)
}

/// The shared libraries of a program and its loader, by the names that the loader looks for.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("run ldd")?;
    ensure!(output.status.success(), "ldd {} failed", program.display());
    let text = String::from_utf8_lossy(&output.stdout);
    // `libnftables.so.1 => /lib/x86_64-linux-gnu/libnftables.so.1 (0x...)`, or the loader's path
    // alone.
    let paths: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect();
    if paths.is_empty() {
        bail!("ldd named no library of {}", program.display());
    }
    Ok(paths)
}

/// A cpio archive in the making.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    made: Vec<PathBuf>,
}

impl Archive {
    fn directory(&mut self, name: &str) -> Result<()> {
        let path = PathBuf::from(name);
        if !self.made.contains(&path) {
            self.entry(name, ModeFileType::Directory, &[])?;
            self.made.push(path);
        }
        Ok(())
    }

    fn file(&mut self, name: &str, content: &[u8]) -> Result<()> {
        self.entry(name, ModeFileType::Regular, content)
    }

    /// Puts a file of the host at the same path into the guest.
    fn file_with_parents(&mut self, path: &Path) -> Result<()> {
        let inside = path.strip_prefix("/").context("a library's path is not absolute")?;
        let mut parents: Vec<_> = inside.ancestors().skip(1).collect();
        parents.reverse();
        for parent in parents.iter().filter(|parent| !parent.as_os_str().is_empty()) {
            self.directory(&parent.to_string_lossy())?;
        }
        self.file(&inside.to_string_lossy(), &read(path)?)
    }

    fn entry(&mut self, name: &str, kind: ModeFileType, content: &[u8]) -> Result<()> {
        let size = u32::try_from(content.len()).with_context(|| format!("{name} is too large"))?;
        let builder = newc::Builder::new(name).mode(MODE).set_mode_file_type(kind).nlink(1);
        let mut writer = builder.write(&mut self.bytes, size);
        writer.write_all(content).with_context(|| format!("add {name}"))?;
        writer.finish().with_context(|| format!("add {name}"))?;
        Ok(())
    }

    fn finish(self) -> Result<Vec<u8>> {
        let mut bytes = self.bytes;
        newc::trailer(&mut bytes).context("end the archive")?;
        Ok(bytes)
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("read {}", path.display()))
}
