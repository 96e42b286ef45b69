//! Compiles bpf/*.bpf.c with clang; the objects are embedded in the crate.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

fn main() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let out = PathBuf::from(std::env::var("OUT_DIR").context("OUT_DIR is not set: run by cargo")?);
    // libbpf's headers, from the same release that will load the object.
    let libbpf = std::env::var("DEP_BPF_INCLUDE").context("libbpf-sys exports no headers")?;
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    for room in ["bpf", "flow"] {
        println!("cargo:rerun-if-changed={}", root.join(room).display());
    }
    println!("cargo:rerun-if-env-changed=CLANG");

    // Debian keeps asm/types.h in a directory of the architecture's own.
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").context("no target architecture")?;
    for (name, object, with) in [
        ("vsnoop", "vsnoop", Some("-DINCAST_USED=0")),
        ("vsnoop", "vsnoop_incast", None),
        ("port", "port", None),
        ("uplink", "uplink", None),
        ("divert", "divert", None),
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
    drop_line_info(&out.join("vsnoop.bpf.o"))?;
    drop_line_info(&out.join("vsnoop_incast.bpf.o"))
}

/// Takes the line information out of an object: the kernel would keep it, three times as large as
/// the program itself. What is lost is the source in the verifier's log.
///
/// `.BTF.ext` begins with a header (linux/btf.h, libbpf's struct btf_ext_header) whose fourth and
/// fifth words after `hdr_len` say where line information is and how long; nothing is moved.
fn drop_line_info(object: &Path) -> anyhow::Result<()> {
    const LINE_INFO_LEN: usize = 20;
    let mut bytes = std::fs::read(object).with_context(|| format!("read {}", object.display()))?;
    let section = section(&bytes, b".BTF.ext").context("an object without .BTF.ext")?;
    let at = section + LINE_INFO_LEN;
    bytes.get_mut(at..at + 4).context("a short .BTF.ext")?.fill(0);
    std::fs::write(object, bytes).with_context(|| format!("write {}", object.display()))
}

/// Where a section of an ELF file begins (elf(5), 64 bit, little endian as all of `-target bpf`
/// here).
fn section(bytes: &[u8], name: &[u8]) -> Option<usize> {
    let number = |at: usize, size: usize| {
        let field = bytes.get(at..at + size)?;
        Some(field.iter().rev().fold(0usize, |sum, byte| sum << 8 | usize::from(*byte)))
    };
    let (table, size) = (number(0x28, 8)?, number(0x3a, 2)?);
    let (count, names) = (number(0x3c, 2)?, number(0x3e, 2)?);
    let offset = |index: usize| number(table + index * size + 0x18, 8);
    let names = offset(names)?;
    (0..count).find_map(|index| {
        let at = names + number(table + index * size, 4)?;
        let is_it = bytes.get(at..at + name.len() + 1)?.strip_suffix(b"\0")? == name;
        is_it.then(|| offset(index))?
    })
}
