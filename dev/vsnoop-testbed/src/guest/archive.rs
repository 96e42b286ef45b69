//! A cpio archive in the making: files, modules in the order of their loading, programs of this
//! host with the shared libraries they need.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use cpio::newc::{self, ModeFileType};

use super::{kernel::Kernel, modules};

/// Everything in a guest may be read and run by its only user.
const MODE: u32 = 0o755;
/// Directories in which programs are searched: PATH of a service may lack the directories for root.
const PROGRAM_DIRS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// A program of this host, by its name; an error names the package that has it.
pub fn installed(name: &str, package: &str) -> Result<PathBuf> {
    PROGRAM_DIRS
        .map(|dir| Path::new(dir).join(name))
        .into_iter()
        .find(|path| path.is_file())
        .with_context(|| format!("{name} is not installed: install the package {package}"))
}

#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    made: Vec<PathBuf>,
}

impl Archive {
    pub fn directory(&mut self, name: &str) -> Result<()> {
        if self.is_new(Path::new(name)) {
            self.entry(name, ModeFileType::Directory, &[])?;
        }
        Ok(())
    }

    pub fn file(&mut self, name: &str, content: &[u8]) -> Result<()> {
        if !self.is_new(Path::new(name)) {
            bail!("two files of an initramfs are called {name}");
        }
        self.entry(name, ModeFileType::Regular, content)
    }

    /// The modules `wanted` and all that they need go to `modules/`; `modules/order` lists their
    /// files, dependencies first.
    pub fn modules(&mut self, kernel: &Kernel, wanted: &[&str]) -> Result<()> {
        self.directory("modules")?;
        let mut order = String::new();
        for module in modules::resolve(&kernel.modules, wanted)? {
            let file = format!("{}.ko", module.name);
            self.file(&format!("modules/{file}"), &module.bytes)?;
            order += &file;
            order.push('\n');
        }
        self.file("modules/order", order.as_bytes())
    }

    /// Puts a program of the host into `bin/` under this name, and its libraries where it looks for
    /// them.
    pub fn program(&mut self, name: &str, program: &Path) -> Result<()> {
        self.directory("bin")?;
        self.file(&format!("bin/{name}"), &read(program)?)?;
        for library in libraries(program)? {
            self.host_file(&library)?;
        }
        Ok(())
    }

    /// Puts a file of the host at the same path into the guest, unless it is there.
    pub fn host_file(&mut self, path: &Path) -> Result<()> {
        let inside = path
            .strip_prefix("/")
            .with_context(|| format!("{} is not absolute", path.display()))?;
        let mut parents: Vec<_> = inside.ancestors().skip(1).collect();
        parents.reverse();
        for parent in parents.iter().filter(|parent| !parent.as_os_str().is_empty()) {
            self.directory(&parent.to_string_lossy())?;
        }
        if self.is_new(inside) {
            self.entry(&inside.to_string_lossy(), ModeFileType::Regular, &read(path)?)?;
        }
        Ok(())
    }

    /// Notes the path; `false` if it was noted before.
    fn is_new(&mut self, path: &Path) -> bool {
        let new = !self.made.iter().any(|made| made == path);
        if new {
            self.made.push(path.to_owned());
        }
        new
    }

    fn entry(&mut self, name: &str, kind: ModeFileType, content: &[u8]) -> Result<()> {
        let size = u32::try_from(content.len()).with_context(|| format!("{name} is too large"))?;
        let builder = newc::Builder::new(name).mode(MODE).set_mode_file_type(kind).nlink(1);
        let mut writer = builder.write(&mut self.bytes, size);
        writer.write_all(content).with_context(|| format!("add {name}"))?;
        writer.finish().with_context(|| format!("add {name}"))?;
        Ok(())
    }

    pub fn finish(self) -> Result<Vec<u8>> {
        let mut bytes = self.bytes;
        newc::trailer(&mut bytes).context("end the archive")?;
        Ok(bytes)
    }
}

/// The shared libraries of a program and its loader, by the names that the loader looks for.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("run ldd")?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        // A static program has none.
        if complaint.contains("not a dynamic executable") {
            return Ok(Vec::new());
        }
        bail!("ldd {} failed: {}", program.display(), complaint.trim());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    if let Some(missing) = text.lines().find(|line| line.contains("not found")) {
        bail!("a library of {} is not installed: {}", program.display(), missing.trim());
    }
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

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("read {}", path.display()))
}
