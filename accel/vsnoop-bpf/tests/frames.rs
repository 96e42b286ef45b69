//! The stack frames of the programs, as Linux 6.6 to 6.8 counts them.
//!
//! The verifier refuses a program if the frames along a chain of calls, callbacks given to
//! bpf_loop() included, have more than MAX_BPF_STACK bytes together. Before Linux 6.9 it rounds
//! each frame up to 32 bytes, since then to 16 where a JIT compiles programs
//! (kernel/bpf/verifier.c, round_up_stack_depth()). The kernels under which other tests run, 6.12
//! and newer, thus accept programs that 6.6 to 6.8 refuse, so this test computes the frames from
//! the compiled objects.
//!
//! It counts all instructions, also those that the verifier finds to be unreachable.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use libbpf_sys::{BPF_ADD, BPF_ALU, BPF_ALU64, BPF_CALL, BPF_JMP, BPF_LD, BPF_LDX, BPF_MOV};
use libbpf_sys::{BPF_PSEUDO_CALL, BPF_REG_10, BPF_ST, BPF_STX, BPF_X};
use object::elf::{R_BPF_64_32, R_BPF_64_64};
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol};
use object::{RelocationFlags, RelocationTarget, SymbolKind};

/// linux/filter.h
const MAX_BPF_STACK: u32 = 512;
const ROUNDED_TO: u32 = 32;
/// Those with programs.
const OBJECTS: [&str; 5] = ["vsnoop", "vsnoop_incast", "split", "entry", "uplink"];

#[test]
fn stack_frames_fit_as_linux_before_6_9_rounds_them() {
    for object in OBJECTS {
        let file = format!("{}/{object}.bpf.o", env!("OUT_DIR"));
        let functions = functions(&std::fs::read(file).expect("build.rs has written it"));
        // The compiler leaves out a static function that nothing calls.
        let called: BTreeSet<_> = functions.values().flat_map(|one| &one.calls).collect();
        let missed = functions.iter().find(|(at, one)| one.is_static && !called.contains(at));
        assert_eq!(missed.map(|(_, one)| &one.name), None, "{object}: where is it called?");

        let chains = functions.keys().map(|at| deepest(&functions, *at));
        let (depth, chain) = chains.max().expect("an object has functions");
        let text = format!("{object}: {depth} of {MAX_BPF_STACK} bytes: {}", chain.join(", "));
        println!("{text}");
        assert!(depth <= MAX_BPF_STACK, "{text}");
    }
}

/// Index of a section, and the offset in it.
type Place = (usize, u64);

struct Function {
    name: String,
    is_static: bool,
    /// In bytes, not rounded.
    frame: u32,
    /// Functions that it calls or gives to helpers; and other objects that it names.
    calls: Vec<Place>,
}

/// Depth in bytes of the deepest chain of calls from the function at `at`, and the chain itself:
/// functions with their frames.
fn deepest(functions: &BTreeMap<Place, Function>, at: Place) -> (u32, Vec<String>) {
    let Function { name, frame, calls, .. } = &functions[&at];
    let calls = calls.iter().filter(|at| functions.contains_key(at));
    let (depth, mut chain) = calls.map(|at| deepest(functions, *at)).max().unwrap_or_default();
    chain.insert(0, format!("{name} {frame}"));
    (depth + (*frame).max(1).next_multiple_of(ROUNDED_TO), chain)
}

/// The functions of an ELF object, by the place of their first instruction.
fn functions(bytes: &[u8]) -> BTreeMap<Place, Function> {
    let elf = ElfFile64::<LittleEndian>::parse(bytes).expect("an ELF object");
    let mut functions = BTreeMap::new();
    for symbol in elf.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
        let section = symbol.section_index().expect("the object defines its functions");
        let home = elf.section_by_index(section).expect("an index of the object");
        let relocations: HashMap<u64, _> = home.relocations().collect();
        let begin = symbol.address();
        let code = home.data_range(begin, symbol.size()).ok().flatten().expect("a whole function");
        let code: Vec<_> = code.as_chunks().0.iter().map(Instruction::new).collect();
        let target = |(at, one): (u64, &Instruction)| {
            let call = (i64::from(one.imm) + 1) * 8;
            let Some(relocation) = relocations.get(&at) else {
                // A call of a static function in the same section has none.
                let calls = one.code == BPF_JMP | BPF_CALL && one.src == BPF_PSEUDO_CALL as usize;
                return calls.then(|| (section.0, at.wrapping_add_signed(call)));
            };
            let RelocationTarget::Symbol(symbol) = relocation.target() else { return None };
            let symbol = elf.symbol_by_index(symbol).expect("an index of the object");
            let RelocationFlags::Elf { r_type } = relocation.flags() else { return None };
            let added = match r_type {
                R_BPF_64_64 => one.imm.into(),
                R_BPF_64_32 => call,
                _ => return None,
            };
            // A function of the kernel has no section.
            Some((symbol.section_index()?.0, symbol.address().wrapping_add_signed(added)))
        };
        let function = Function {
            name: symbol.name().expect("UTF-8").to_owned(),
            is_static: symbol.is_local(),
            frame: frame(&code),
            calls: (begin..).step_by(8).zip(&code).filter_map(target).collect(),
        };
        functions.insert((section.0, begin), function);
    }
    functions
}

/// linux/bpf.h, struct bpf_insn. A 64-bit constant has two; the second one has only `imm`.
struct Instruction {
    code: u32,
    dst: usize,
    src: usize,
    off: i32,
    imm: i32,
}

impl Instruction {
    fn new(&[code, registers, o0, o1, i0, i1, i2, i3]: &[u8; 8]) -> Self {
        let (dst, src) = ((registers & 0xf).into(), (registers >> 4).into());
        let off = i16::from_le_bytes([o0, o1]).into();
        Self { code: code.into(), dst, src, off, imm: i32::from_le_bytes([i0, i1, i2, i3]) }
    }
}

/// How many bytes below r10, the frame pointer, a function's instructions reach.
fn frame(code: &[Instruction]) -> u32 {
    // Of registers that point into the frame, the offset from r10.
    let mut offsets = [None; 11];
    offsets[BPF_REG_10 as usize] = Some(0);
    let mut lowest = 0;
    for &Instruction { code, dst, src, off, imm } in code {
        let pointer = |register: usize, added| offsets[register].map(|offset: i32| offset + added);
        let reached = match code & 7 {
            BPF_LDX => pointer(src, off),
            BPF_ST | BPF_STX => pointer(dst, off),
            _ if code == BPF_ALU64 | BPF_MOV | BPF_X => pointer(src, 0),
            _ if code == BPF_ALU64 | BPF_ADD => pointer(dst, imm),
            _ => None,
        };
        lowest = lowest.min(reached.unwrap_or(0));
        match code & 7 {
            BPF_ALU | BPF_ALU64 => offsets[dst] = reached,
            BPF_LD | BPF_LDX => offsets[dst] = None,
            _ if code == BPF_JMP | BPF_CALL => offsets[..6].fill(None),
            _ => (),
        }
    }
    lowest.unsigned_abs()
}
