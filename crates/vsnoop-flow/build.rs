//! Generates Rust's view of flow/*.h and compiles its static inline functions.
//!
//! The C headers are the only place where the shared types are written down;
//! bindgen makes the Rust types and, for each `static inline` decision, a C
//! wrapper that can be linked.

use std::path::{Path, PathBuf};

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    let flow = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../flow");
    let out = PathBuf::from(std::env::var("OUT_DIR").context("OUT_DIR is not set: run by cargo")?);
    let wrappers = out.join("wrappers.c");
    println!("cargo:rerun-if-changed={}", flow.display());

    bindgen::builder()
        .header(flow.join("flow.h").display().to_string())
        .clang_arg(format!("-I{}", flow.display()))
        .allowlist_file(format!("{}/.*", flow.display()))
        .wrap_static_fns(true)
        .wrap_static_fns_path(&wrappers)
        .wrap_static_fns_suffix("_native")
        .default_enum_style(bindgen::EnumVariation::ModuleConsts)
        .prepend_enum_name(false)
        .derive_default(true)
        .derive_eq(true)
        .layout_tests(false)
        .generate()
        .context("generating Rust's view of flow/ failed; is libclang installed?")?
        .write_to_file(out.join("flow.rs"))
        .context("cannot write flow.rs")?;

    cc::Build::new()
        .file(&wrappers)
        .include(&flow)
        .include(env!("CARGO_MANIFEST_DIR"))
        .warnings(false)
        .try_compile("vsnoop_flow")
        .context("compiling flow/ natively failed; is a C compiler installed?")?;
    Ok(())
}
