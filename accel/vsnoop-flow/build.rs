//! The shared types are defined in the C headers only; bindgen makes the Rust types and, for each
//! `static inline` decision, a C wrapper that can be linked.

use std::path::{Path, PathBuf};

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    let flow = Path::new(env!("CARGO_MANIFEST_DIR")).join("../flow");
    let out = PathBuf::from(std::env::var("OUT_DIR").context("OUT_DIR is not set: run by cargo")?);
    let wrappers = out.join("wrappers.c");
    println!("cargo:rerun-if-changed={}", flow.display());
    let with_packets = std::env::var_os("CARGO_FEATURE_NATIVE_PACKETS").is_some();
    let native = Path::new(env!("CARGO_MANIFEST_DIR")).join("native");

    let mut builder = bindgen::builder();
    if with_packets {
        println!("cargo:rerun-if-changed={}", native.display());
        builder = builder
            .header(native.join("packets.h").display().to_string())
            .allowlist_file(format!("{}/.*", native.display()));
    }
    builder
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
        .derive_hash(true)
        .layout_tests(false)
        .generate()
        .context("generating Rust's view of flow/ failed; is libclang installed?")?
        .write_to_file(out.join("flow.rs"))
        .context("cannot write flow.rs")?;

    let mut build = cc::Build::new();
    build.file(&wrappers).include(&flow).include(env!("CARGO_MANIFEST_DIR"));
    build.warnings(true).extra_warnings(true).warnings_into_errors(true);
    // Decisions of one kind share a signature.
    build.flag("-Wno-unused-parameter");
    if with_packets {
        let bpf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bpf");
        println!("cargo:rerun-if-changed={}", bpf.display());
        build.file(native.join("packets.c"));
        build.include(bpf).include(native);
        // Not all of bpf/ is called here, and the unrolling pragmas are clang's.
        build.flag("-Wno-unused-function").flag("-Wno-unknown-pragmas");
        forbid_undefined_behaviour(&mut build);
    }
    build
        .try_compile("vsnoop_flow")
        .context("compiling flow/ natively failed; is a C compiler installed?")?;
    Ok(())
}

/// For tests and fuzzing: undefined behaviour in the C code kills the process, except unaligned
/// headers, which kernel and BPF machine can read.
fn forbid_undefined_behaviour(build: &mut cc::Build) {
    build.flag("-fsanitize=undefined").flag("-fno-sanitize=alignment");
    build.flag("-fsanitize-undefined-trap-on-error");
    if std::env::var("CARGO_CFG_SANITIZE").is_ok_and(|s| s.contains("address")) {
        // cargo-fuzz; its runtime is LLVM's.
        build.compiler("clang").flag("-fsanitize=address").flag("-fsanitize=fuzzer-no-link");
    }
}
