//! Compiles the programs of accel/bpf/ for the build machine, together with native/kernel.c, which
//! simulates the kernel for them; and lwIP, the TCP of one kind of VM.
//!
//! The list of their maps and global variables is read from the types (BTF) of the object that
//! clang makes of the same source for BPF; the compiler computes the sizes.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use object::{Object, ObjectSection};

fn main() -> Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (accel, native) = (here.join("../../accel"), here.join("native"));
    let out = PathBuf::from(std::env::var("OUT_DIR").context("OUT_DIR is not set: run by cargo")?);
    for room in [accel.join("bpf"), accel.join("flow"), native.clone()] {
        println!("cargo:rerun-if-changed={}", room.display());
    }
    println!("cargo:rerun-if-env-changed=CLANG");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").context("no target architecture")?;

    let object = out.join("vsnoop.bpf.o");
    let status = Command::new(&clang)
        .args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-target", "bpf", "-mcpu=v3"])
        .arg("-Wno-unused-parameter")
        .arg(format!("-I{}", accel.join("bpf").display()))
        .arg(format!("-I{}", accel.join("flow").display()))
        .arg(format!("-I{}", native.display()))
        .arg(format!("-I/usr/include/{arch}-linux-gnu"))
        .arg("-include")
        .arg(native.join("sections.h"))
        .arg("-c")
        .arg(native.join("programs.bpf.c"))
        .arg("-o")
        .arg(&object)
        .status()
        .with_context(|| format!("cannot run {clang}: install clang (scripts/setup.sh does)"))?;
    if !status.success() {
        bail!("{clang} could not compile native/programs.bpf.c");
    }
    let types = Types::read(&object)?;
    std::fs::write(out.join("programs.h"), types.declarations()?)?;

    let mut build = cc::Build::new();
    build.compiler(&clang).file(native.join("kernel.c"));
    for room in [&native, &accel.join("bpf"), &accel.join("flow"), &out] {
        build.include(room);
    }
    build.warnings(true).extra_warnings(true).warnings_into_errors(true);
    // CO-RE's attribute exists for BPF only.
    build.flag("-Wno-unused-parameter").flag("-Wno-unknown-attributes");
    build.flag("-fsanitize=undefined").flag("-fno-sanitize=alignment");
    build.flag("-fsanitize-undefined-trap-on-error").opt_level(2).flag("-g").flag("-fexceptions");
    let objects =
        build.try_compile_intermediates().context("compiling the programs natively failed")?;
    let [object] = &objects[..] else { bail!("kernel.c is not one object") };
    let mut library = cc::Build::new();
    for copy in 0..COPIES {
        library.object(copy_of(object, copy)?);
    }
    library.try_compile("vsnoop_world").context("making a library of the programs failed")?;
    compile_lwip(&native.join("lwip"), &out, &clang)
}

/// The crate that has lwIP's sources, and the feature of this crate that names it.
const LWIP: (&str, &str) = ("lwip", "lwip-sources");

/// Compiles native/lwip/ and lwIP with its options. The sources are those of a crate that
/// Cargo.lock names and cargo downloads, but does not build: its own options are for another use.
fn compile_lwip(ours: &Path, out: &Path, clang: &str) -> Result<()> {
    let sources = lwip_sources()?;
    let mut vm = cc::Build::new();
    vm.compiler(clang).file(ours.join("vm.c")).include(ours);
    vm.flag("-isystem").flag(sources.join("include"));
    vm.warnings(true).extra_warnings(true).warnings_into_errors(true);
    vm.flag("-Wno-unused-parameter").opt_level(2).flag("-g").flag("-fexceptions");
    let mut build = cc::Build::new();
    build.compiler(clang).include(ours).include(sources.join("include"));
    for room in ["core", "core/ipv4", "core/ipv6"] {
        let room = sources.join(room);
        let mut files = Vec::new();
        for entry in room.read_dir().with_context(|| format!("cannot read {}", room.display()))? {
            files.push(entry?.path());
        }
        files.retain(|file| file.extension().is_some_and(|extension| extension == "c"));
        files.sort();
        for file in files.iter_mut().filter(|file| file.ends_with(SPLITS.0)) {
            *file = mend_split(file, out)?;
        }
        build.files(files);
    }
    for object in vm.try_compile_intermediates().context("compiling native/lwip failed")? {
        build.object(object);
    }
    build.warnings(false).opt_level(2).flag("-g").flag("-fexceptions");
    build.try_compile("vsnoop_world_lwip").context("compiling lwIP failed")
}

/// The file of lwIP with tcp_split_unsent_seg(), the text there, and its replacement.
///
/// It divides a segment for a small window, and moves FIN and PSH to the second part. But its macro
/// only adds flags: the first part keeps its FIN, which then stands before the end of the stream.
const SPLITS: (&str, &str, &str) = (
    "tcp_out.c",
    "TCPH_SET_FLAG(useg->tcphdr, split_flags);",
    "TCPH_FLAGS_SET(useg->tcphdr, split_flags);",
);

/// A copy of [`SPLITS`] in which the first part has the flags that it is to have.
fn mend_split(file: &Path, out: &Path) -> Result<PathBuf> {
    let (name, wrong, right) = SPLITS;
    let source =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    ensure!(source.matches(wrong).count() == 1, "{name} of lwIP is not the one that is known");
    let mended = out.join(name);
    std::fs::write(&mended, source.replace(wrong, right))
        .with_context(|| format!("cannot write {}", mended.display()))?;
    Ok(mended)
}

/// Where cargo has put the sources of lwIP.
fn lwip_sources() -> Result<PathBuf> {
    let cargo = std::env::var("CARGO").context("CARGO is not set: run by cargo")?;
    let target = std::env::var("TARGET").context("TARGET is not set: run by cargo")?;
    let mut command = Command::new(cargo);
    command.args(["metadata", "--format-version", "1", "--locked", "--features", LWIP.1]);
    command.args(["--filter-platform", &target]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = command.output().context("cannot run cargo metadata")?;
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata, which finds lwIP's sources: {why}");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let lwip = packages.iter().find(|package| package["name"] == LWIP.0);
    let manifest = lwip.and_then(|package| package["manifest_path"].as_str());
    let manifest = manifest.context("cargo metadata does not name the crate lwip")?;
    Ok(Path::new(manifest).with_file_name("src"))
}

/// Copies of the programs, one per thread that runs them: the number that src/native.rs declares.
const COPIES: usize = 4;

/// A copy of the programs. Only what Rust refers to has a global name, which ends with the copy's
/// number: the programs have common names.
fn copy_of(object: &Path, number: usize) -> Result<PathBuf> {
    let copy = object.with_extension(format!("{number}.o"));
    let entry = format!("world_programs_{number}");
    let status = Command::new("objcopy")
        .arg(format!("--redefine-sym=world_programs={entry}"))
        .arg(format!("--keep-global-symbol={entry}"))
        .args([object, &copy])
        .status()
        .context("cannot run objcopy: install binutils (scripts/setup.sh does)")?;
    if !status.success() {
        bail!("objcopy could not copy {}", object.display());
    }
    Ok(copy)
}

/// The types of a BPF object that are needed here. Layout: the kernel's documentation of BTF.
struct Types {
    types: Vec<Type>,
}

#[derive(Default)]
struct Type {
    name: String,
    kind: u32,
    /// The type that it points to, is an array of, or has as a variable.
    target: usize,
    /// Members of a struct, or variables of a section.
    members: Vec<(String, usize)>,
}

const KIND_ARRAY: u32 = 3;
const KIND_DATASEC: u32 = 15;

impl Types {
    fn read(object: &Path) -> Result<Self> {
        let bytes = std::fs::read(object)?;
        let file = object::File::parse(&*bytes)?;
        let section = file.section_by_name(".BTF").context("the object has no BTF")?;
        let data = section.data()?;
        let u32_at = |at: usize| -> Result<u32> {
            Ok(u32::from_le_bytes(data.get(at..at + 4).context("BTF is cut off")?.try_into()?))
        };
        let header = u32_at(4)? as usize;
        let types_at = header + u32_at(8)? as usize;
        let types_end = types_at + u32_at(12)? as usize;
        let strings = header + u32_at(16)? as usize;
        let name = |offset: u32| -> Result<String> {
            let rest =
                data.get(strings + offset as usize..).context("a name beyond the strings")?;
            let end = rest.iter().position(|&b| b == 0).context("a name without an end")?;
            Ok(String::from_utf8(rest[..end].to_vec())?)
        };
        let mut types = vec![Type::default()];
        let mut at = types_at;
        while at < types_end {
            let (info, target) = (u32_at(at + 4)?, u32_at(at + 8)? as usize);
            let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
            let mut new = Type { name: name(u32_at(at)?)?, kind, target, members: Vec::new() };
            at += 12;
            let extra = match kind {
                1 | 14 | 17 => 4,
                KIND_ARRAY => {
                    new.target = u32_at(at)? as usize;
                    12
                }
                4 | 5 => {
                    for i in 0..count {
                        let member = at + 12 * i;
                        let named = name(u32_at(member)?)?;
                        new.members.push((named, u32_at(member + 4)? as usize));
                    }
                    12 * count
                }
                6 | 13 => 8 * count,
                KIND_DATASEC => {
                    for i in 0..count {
                        new.members.push((String::new(), u32_at(at + 12 * i)? as usize));
                    }
                    12 * count
                }
                19 => 12 * count,
                2 | 7..=12 | 16 | 18 => 0,
                other => bail!("BTF has a kind {other} that build.rs does not know"),
            };
            at += extra;
            types.push(new);
        }
        Ok(Self { types })
    }

    /// Variables of the sections whose names `want`, each with its type.
    fn variables(&self, want: impl Fn(&str) -> bool) -> BTreeMap<&str, usize> {
        let sections = self.types.iter().filter(|t| t.kind == KIND_DATASEC && want(&t.name));
        let variables = sections.flat_map(|s| &s.members).map(|&(_, at)| &self.types[at]);
        variables.map(|v| (v.name.as_str(), v.target)).collect()
    }

    /// programs.h: all maps and global variables, for the compiler to measure.
    fn declarations(&self) -> Result<String> {
        let mut text = String::new();
        let mut maps = Vec::new();
        let mut inner = Vec::new();
        let all = self.variables(|name| name == ".maps");
        for (name, at) in &all {
            let members = &self.types[*at].members;
            let mut within = -1;
            if let Some((_, values)) = members.iter().find(|(member, _)| member == "values") {
                // An array of pointers to the inner map.
                let pointer = self.types[*values].target;
                let map = self.types[pointer].target;
                within = (all.len() + inner.len()) as i32;
                let path = format!("{name}.values[0]->");
                inner.push(definition("0", &format!("{name}*"), &path, &self.types[map], -1)?);
            }
            let path = format!("{name}.");
            maps.push(definition(&format!("&{name}"), name, &path, &self.types[*at], within)?);
        }
        writeln!(text, "static const struct world_map world_maps[] = {{")?;
        maps.iter().chain(&inner).for_each(|map| text.push_str(map));
        writeln!(text, "}};\nstatic const struct world_global world_globals[] = {{")?;
        let is_data =
            |name: &str| [".data", ".bss", ".rodata"].iter().any(|start| name.starts_with(start));
        let globals = self.variables(is_data);
        for name in globals.keys() {
            writeln!(text, "\t{{ (void *)&{name}, \"{name}\", sizeof({name}) }},")?;
        }
        writeln!(text, "}};")?;
        Ok(text)
    }
}

/// An initialiser of struct world_map. `path`: expression for the map's members.
fn definition(map: &str, name: &str, path: &str, map_type: &Type, inner: i32) -> Result<String> {
    let has = |member: &str| map_type.members.iter().any(|(name, _)| name == member);
    let number = |member: &str| {
        if has(member) { format!("sizeof(*{path}{member}) / sizeof(int)") } else { "0".into() }
    };
    let size = |typed: &str, sized: &str| {
        if has(typed) { format!("sizeof(*{path}{typed})") } else { number(sized) }
    };
    Ok(format!(
        "\t{{ {map}, \"{name}\", {}, {}, {}, {}, {}, {inner} }},\n",
        number("type"),
        size("key", "key_size"),
        if has("values") { "4".into() } else { size("value", "value_size") },
        number("max_entries"),
        number("map_flags"),
    ))
}
