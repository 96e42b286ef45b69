//! Compiles link/bpf/divert.bpf.c with clang; the object is embedded in the crate. bindgen makes
//! Rust types of the records that the program shares with user space (link/bpf/divert.h).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use bindgen::callbacks::{DeriveInfo, ParseCallbacks, TypeKind};

fn main() -> anyhow::Result<()> {
    let link = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let out = PathBuf::from(std::env::var("OUT_DIR").context("OUT_DIR is not set: run by cargo")?);
    println!("cargo:rerun-if-changed={}", link.join("bpf").display());
    println!("cargo:rerun-if-env-changed=CLANG");
    compile_program(&link, &out)?;
    bindgen::builder()
        .header(link.join("bpf/divert.h").display().to_string())
        .allowlist_file(format!("{}/.*", link.join("bpf").display()))
        .default_enum_style(bindgen::EnumVariation::ModuleConsts)
        .prepend_enum_name(false)
        .derive_default(true)
        .layout_tests(false)
        .parse_callbacks(Box::new(AsBytes))
        .generate()
        .context("generating Rust's view of link/bpf/divert.h failed; is libclang installed?")?
        .write_to_file(out.join("types.rs"))
        .context("cannot write types.rs")
}

/// Records are read and written as bytes.
#[derive(Debug)]
struct AsBytes;

impl ParseCallbacks for AsBytes {
    fn add_derives(&self, info: &DeriveInfo<'_>) -> Vec<String> {
        let traits = ["FromBytes", "Immutable", "IntoBytes", "KnownLayout"];
        let is_record = matches!(info.kind, TypeKind::Struct);
        let derived = traits.iter().filter(|_| is_record);
        derived.map(|name| format!("zerocopy::{name}")).collect()
    }
}

fn compile_program(link: &Path, out: &Path) -> anyhow::Result<()> {
    // libbpf's headers, from the same release that will load the object.
    let libbpf = std::env::var("DEP_BPF_INCLUDE").context("libbpf-sys exports no headers")?;
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    // Debian keeps asm/types.h in a directory of the architecture's own.
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").context("no target architecture")?;
    let status = Command::new(&clang)
        .args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-target", "bpf", "-mcpu=v3"])
        // clang copies the text of each source line into .BTF, which the kernel keeps; of a path
        // that it cannot open it has none.
        .arg(format!("-ffile-prefix-map={}=vsnoop", link.display()))
        .arg(format!("-I{libbpf}"))
        .arg(format!("-I/usr/include/{arch}-linux-gnu"))
        .arg("-c")
        .arg(link.join("bpf/divert.bpf.c"))
        .arg("-o")
        .arg(out.join("divert.bpf.o"))
        .status()
        .with_context(|| format!("cannot run {clang}: install clang (scripts/setup.sh does)"))?;
    if !status.success() {
        bail!("{clang} could not compile link/bpf/divert.bpf.c");
    }
    Ok(())
}
