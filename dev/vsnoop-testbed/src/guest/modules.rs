//! Selects the module files that the guest needs, in the order of loading.
//!
//! A package that was unpacked but never installed has no `modules.dep`; the dependencies are read
//! from the modules themselves (`depends=` in the section .modinfo).

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use object::{Object, ObjectSection};

/// A module as the guest's kernel loads it.
pub struct Module {
    pub name: String,
    pub bytes: Vec<u8>,
}

/// `wanted` and all that they depend on, dependencies first; what is built into the kernel is left
/// out.
pub fn resolve(modules: &Path, wanted: &[&str]) -> Result<Vec<Module>> {
    let mut files = HashMap::new();
    index(&modules.join("kernel"), &mut files)?;
    let builtin = fs::read_to_string(modules.join("modules.builtin"))
        .context("read the list of built-in modules")?
        .lines()
        .map(|line| module_name(Path::new(line)))
        .collect();
    let mut resolver = Resolver { files, builtin, seen: HashSet::new(), order: Vec::new() };
    for name in wanted {
        resolver.add(name)?;
    }
    Ok(resolver.order)
}

struct Resolver {
    files: HashMap<String, PathBuf>,
    builtin: HashSet<String>,
    seen: HashSet<String>,
    order: Vec<Module>,
}

impl Resolver {
    fn add(&mut self, name: &str) -> Result<()> {
        if self.builtin.contains(name) || !self.seen.insert(name.to_owned()) {
            return Ok(());
        }
        let Some(path) = self.files.get(name) else {
            bail!("the guest's kernel has no module {name}");
        };
        let bytes = read(path).with_context(|| format!("read {}", path.display()))?;
        for dependency in dependencies(&bytes).with_context(|| format!("parse {name}"))? {
            self.add(&dependency)?;
        }
        self.order.push(Module { name: name.to_owned(), bytes });
        Ok(())
    }
}

fn index(dir: &Path, files: &mut HashMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let path = entry.with_context(|| format!("list {}", dir.display()))?.path();
        if path.is_dir() {
            index(&path, files)?;
        } else if path.to_string_lossy().contains(".ko") {
            files.insert(module_name(&path), path);
        }
    }
    Ok(())
}

/// `kernel/drivers/net/virtio-net.ko.xz` is the module `virtio_net`.
fn module_name(path: &Path) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    file.split(".ko").next().unwrap_or_default().replace('-', "_")
}

/// Decompressed: not every guest kernel can do that itself.
fn read(path: &Path) -> Result<Vec<u8>> {
    let tool = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return Ok(fs::read(path)?),
    };
    let output =
        Command::new(tool).arg("-dc").arg(path).output().with_context(|| format!("run {tool}"))?;
    ensure!(output.status.success(), "{tool} failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}

fn dependencies(module: &[u8]) -> Result<Vec<String>> {
    let file = object::File::parse(module).context("not an ELF object")?;
    let section = file.section_by_name(".modinfo").context("no section .modinfo")?;
    let info = section.data().context("section .modinfo")?;
    Ok(info
        .split(|&byte| byte == 0)
        .filter_map(|entry| entry.strip_prefix(b"depends="))
        .flat_map(|list| list.split(|&byte| byte == b','))
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).replace('-', "_"))
        .collect())
}
