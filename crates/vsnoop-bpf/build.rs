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
    for name in ["vsnoop", "uplink", "divert"] {
        let status = Command::new(&clang)
            .args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-target", "bpf", "-mcpu=v3"])
            // Helpers take untyped pointers; records are declared for CO-RE only.
            .args(["-Wno-unused-parameter", "-Wno-missing-declarations"])
            .arg(format!("-I{}", root.join("flow").display()))
            .arg(format!("-I{libbpf}"))
            .arg(format!("-I/usr/include/{arch}-linux-gnu"))
            .arg("-c")
            .arg(root.join(format!("bpf/{name}.bpf.c")))
            .arg("-o")
            .arg(out.join(format!("{name}.bpf.o")))
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
