//! Compiles bpf/*.bpf.c with clang; the objects are embedded in the crate, and the names of their
//! maps and programs become enums (src/objects.rs). Of the programs on a tap only the instructions
//! are, and what they refer to (src/entry.rs).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SymbolKind};

fn main() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let out = PathBuf::from(std::env::var("OUT_DIR").context("OUT_DIR is not set: run by cargo")?);
    for room in ["bpf", "flow"] {
        println!("cargo:rerun-if-changed={}", root.join(room).display());
    }
    println!("cargo:rerun-if-env-changed=CLANG");

    compile(&root, &out)?;
    drop_line_info(&out.join("vsnoop.bpf.o"))?;
    drop_line_info(&out.join("vsnoop_incast.bpf.o"))?;

    let mut text = String::new();
    for (module, objects) in [
        // Names that both objects of one source have.
        ("vsnoop", &["vsnoop", "vsnoop_incast"][..]),
        ("port", &["port", "port_incast"]),
        ("uplink", &["uplink"]),
        ("split", &["split"]),
    ] {
        let mut names = Names::default();
        for object in objects {
            names.add(&out.join(format!("{object}.bpf.o")))?;
        }
        text += &names.module(module);
    }
    text += &entry(&out)?;
    let file = out.join("objects.rs");
    std::fs::write(&file, text).with_context(|| format!("write {}", file.display()))
}

/// Compiles the sources in `root` to objects in `out`.
fn compile(root: &Path, out: &Path) -> anyhow::Result<()> {
    // libbpf's headers, from the same release that will load the object.
    let libbpf = std::env::var("DEP_BPF_INCLUDE").context("libbpf-sys exports no headers")?;
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    // Debian keeps asm/types.h in a directory of the architecture's own.
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").context("no target architecture")?;
    for (name, object, with) in [
        ("vsnoop", "vsnoop", Some("-DINCAST_USED=0")),
        ("vsnoop", "vsnoop_incast", None),
        ("port", "port", Some("-DINCAST_USED=0")),
        ("port", "port_incast", None),
        ("uplink", "uplink", None),
        ("split", "split", None),
        ("entry", "entry", None),
    ] {
        let status = Command::new(&clang)
            .args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-target", "bpf", "-mcpu=v3"])
            // Helpers take untyped pointers; records are declared for CO-RE only.
            .args(["-Wno-unused-parameter", "-Wno-missing-declarations"])
            // clang copies the text of each source line into .BTF, which the kernel keeps for each
            // port; of a path that it cannot open it has none.
            .arg(format!("-ffile-prefix-map={}=vsnoop", root.display()))
            .arg(format!("-I{}", root.join("flow").display()))
            .arg(format!("-I{libbpf}"))
            .arg(format!("-I/usr/include/{arch}-linux-gnu"))
            .args(with)
            .arg("-c")
            .arg(root.join(format!("bpf/{name}.bpf.c")))
            .arg("-o")
            .arg(out.join(format!("{object}.bpf.o")))
            .status()
            .with_context(|| {
                format!("cannot run {clang}: install clang (scripts/setup.sh does)")
            })?;
        if !status.success() {
            bail!("{clang} could not compile bpf/{name}.bpf.c");
        }
    }
    Ok(())
}

/// The names of an object's maps and programs, by which libbpf knows them.
#[derive(Default)]
struct Names {
    maps: BTreeSet<String>,
    programs: BTreeSet<String>,
}

impl Names {
    fn add(&mut self, file: &Path) -> anyhow::Result<()> {
        let bytes = std::fs::read(file).with_context(|| format!("read {}", file.display()))?;
        let elf = parse(&bytes)?;
        // libbpf makes a map of each section with variables.
        for section in elf.sections().filter(|section| section.size() > 0) {
            let name = section.name()?;
            let is_of = |prefix: &str| {
                let rest = name.strip_prefix(prefix);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            if [".data", ".rodata", ".bss"].into_iter().any(is_of) {
                self.maps.insert(name.to_owned());
            }
        }
        for symbol in elf.symbols().filter(ObjectSymbol::is_global) {
            let Some(index) = symbol.section_index() else { continue };
            let section = elf.section_by_index(index)?;
            match (symbol.kind(), section.name()?) {
                (SymbolKind::Data, ".maps") => self.maps.insert(symbol.name()?.to_owned()),
                // .text has the functions that programs call.
                (SymbolKind::Text, section) if section != ".text" => {
                    self.programs.insert(symbol.name()?.to_owned())
                }
                _ => continue,
            };
        }
        Ok(())
    }

    fn module(&self, name: &str) -> String {
        let maps = enumeration("Map", &self.maps);
        let programs = enumeration("Program", &self.programs);
        format!("/// Of bpf/{name}.bpf.c.\npub(crate) mod {name} {{\n{maps}{programs}}}\n")
    }
}

fn enumeration(kind: &str, names: &BTreeSet<String>) -> String {
    if names.is_empty() {
        return String::new();
    }
    let variants: Vec<_> = names.iter().map(|name| variant(name)).collect();
    let list = variants.join(", ");
    let all: String = variants.iter().map(|variant| format!("Self::{variant}, ")).collect();
    let arms: String = names
        .iter()
        .zip(&variants)
        .map(|(name, variant)| format!("Self::{variant} => {name:?}, "))
        .collect();
    format!(
        "#[derive(Clone, Copy, Debug, PartialEq, Eq)]\n\
         #[allow(clippy::enum_variant_names)]\n\
         pub(crate) enum {kind} {{ {list} }}\n\
         impl super::Named for {kind} {{\n\
             const ALL: &'static [Self] = &[{all}];\n\
             fn name(self) -> &'static str {{ match self {{ {arms} }} }}\n\
         }}\n"
    )
}

/// Instructions and references of the two programs on a tap.
fn entry(out: &Path) -> anyhow::Result<String> {
    /// Bytes of an instruction.
    const INSTRUCTION: usize = 8;
    let file = out.join("entry.bpf.o");
    let bytes = std::fs::read(&file).with_context(|| format!("read {}", file.display()))?;
    let elf = parse(&bytes)?;
    let (mut names, mut programs) = (BTreeSet::new(), String::new());
    for (program, section) in [("TO_VM", "tcx/egress"), ("FROM_VM", "tcx/ingress")] {
        let section = elf.section_by_name(section).context("an object without an entry")?;
        let mut references = String::new();
        for (offset, relocation) in section.relocations() {
            let RelocationTarget::Symbol(index) = relocation.target() else {
                bail!("a reference of the entry that is no name")
            };
            let name = variant(elf.symbol_by_index(index)?.name()?);
            references += &format!("({}, Reference::{name}), ", offset as usize / INSTRUCTION);
            names.insert(name);
        }
        let code = out.join(format!("{program}.bin"));
        std::fs::write(&code, section.data()?)
            .with_context(|| format!("write {}", code.display()))?;
        programs += &format!(
            "pub(crate) static {program}: Entry = Entry {{\n\
                 instructions: include_bytes!({:?}),\n\
                 references: &[{references}],\n\
             }};\n",
            code.display().to_string()
        );
    }
    let names: String = names.iter().map(|name| format!("{name}, ")).collect();
    Ok(format!(
        "/// Of bpf/entry.bpf.c.\n\
         pub(crate) mod entry {{\n\
             #[derive(Clone, Copy, Debug)]\n\
             pub(crate) enum Reference {{ {names} }}\n\
             pub(crate) struct Entry {{\n\
                 pub(crate) instructions: &'static [u8],\n\
                 pub(crate) references: &'static [(usize, Reference)],\n\
             }}\n\
             {programs}\
         }}\n"
    ))
}

/// `grant_queue`: `GrantQueue`; `.data.uplink`: `DataUplink`.
fn variant(name: &str) -> String {
    let words = name.split(['_', '.']).filter(|word| !word.is_empty());
    words.map(|word| word[..1].to_uppercase() + &word[1..]).collect()
}

/// Takes the line information out of an object: the kernel would keep it, three times as large as
/// the program itself. What is lost is the source in the verifier's log.
///
/// `.BTF.ext` begins with a header (linux/btf.h, libbpf's struct btf_ext_header) whose fourth and
/// fifth words after `hdr_len` say where line information is and how long; nothing is moved.
fn drop_line_info(file: &Path) -> anyhow::Result<()> {
    const LINE_INFO_LEN: usize = 20;
    let mut bytes = std::fs::read(file).with_context(|| format!("read {}", file.display()))?;
    let section = parse(&bytes)?.section_by_name(".BTF.ext").and_then(|found| found.file_range());
    let (start, _) = section.context("an object without .BTF.ext")?;
    let at = start as usize + LINE_INFO_LEN;
    bytes.get_mut(at..at + 4).context("a short .BTF.ext")?.fill(0);
    std::fs::write(file, bytes).with_context(|| format!("write {}", file.display()))
}

fn parse(object: &[u8]) -> anyhow::Result<ElfFile64<'_>> {
    ElfFile64::parse(object).context("clang's object cannot be read")
}
